"""What a run's comparison and validation say, in one paragraph: who won, by how much, and what simulation was worth.

A pure function of the two documents. What is kept of a promise to users comes first, then where a learned router
loses; where chance could have made a difference, that is said, with numbers. What counts as winning:
`scenarios.metrics.standing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from scenarios.files.made_routers import LEARNED, TUNED_HERE
from scenarios.metrics.catalogue import MEASURES
from scenarios.metrics.comparison import Comparison
from scenarios.metrics.fidelity import Ranking, Row, Validation
from scenarios.metrics.standing import COMPARABLE, Contender, Standing, compared, validated
from scenarios.metrics.statistics import change_pct
from scenarios.show.numbers import NONE, PLUS_MINUS, duration, interval, number, plural, share
from scenarios.show.validation import busy_warnings, emulated_devices, rows_at_middle
from scenarios.show.words import kept_measures, promise_text
from sim.profile import origin_of

LADDER = f"{TUNED_HERE}ladder"  # what a learned router is set beside, whoever else is quicker
MOST_TOLD = 3  # routers, of those that keep most of what is promised
_LATENCY, _ACCURACY, _P99 = (MEASURES[name] for name in ("latency_mean_s", "accuracy", "latency_p99_s"))
_KEPT, _ENERGY = MEASURES["kept_share"], MEASURES["energy_per_image_j"]
_POINT = 100.0  # points of accuracy in one


def verdict(comparison: Comparison | None, validation: Validation | None) -> str:
    """The paragraph; empty where neither document says anything of routers side by side."""
    return " ".join(_sentences(comparison, validation))


def _sentences(comparison: Comparison | None, validation: Validation | None) -> Iterator[str]:
    if comparison is not None:
        yield from _kept(comparison)
    if validation is not None and validation.get("rows"):
        real = validated(validation, "hardware")
        yield from _losses(real, on_executors(validation))
        yield from _outcome(real, on_executors(validation))
        yield from _others(real)
        yield from _fidelity(validation, real)
    if comparison is not None:
        where, standing = in_simulation(comparison), compared(comparison)
        if validation is None:
            yield from _losses(standing, where)
        yield from _outcome(standing, where)
        if validation is None:
            yield from _others(standing)
            yield "Nothing of this was run on executors."


def on_executors(validation: Validation) -> str:
    """Where a validation's hardware runs were made, and how many: the beginning of a sentence."""
    runs = max(len(row["seeds"]) * row["repeats"] for row in rows_at_middle(validation["rows"]))
    devices = emulated_devices(validation)
    what = f"executors whose devices are {devices}" if devices else "real executors"
    return f"On {what} ({plural(runs, 'run')} a router)"


def in_simulation(comparison: Comparison) -> str:
    """Likewise of a comparison's runs, with the weakest origin of what they rest on."""
    seeds = max(len(row["seeds"]) for row in comparison["rows"])
    origin = origin_of(comparison["provenance"], comparison.get("emulated_slowdowns", []))
    return f"In simulation ({origin}, {plural(seeds, 'seed')})"


def _kept(comparison: Comparison) -> Iterator[str]:
    """Who keeps what the scenario promises in most of the time, and what users and the meter have of it."""
    service = comparison.get("service")
    if service is None or not kept_measures(service):
        return
    able = [row for row in comparison["rows"] if not row.get("is_marked") and _KEPT.of(row)["mean"]]  # None, or never
    able.sort(key=lambda row: (-_KEPT.of(row)["mean"], _ENERGY.of(row)["mean"] or inf))
    told = [f"{row['router']} {interval(_KEPT.of(row), 1, 100)} % ({_felt(row, able[0])})" for row in able[:MOST_TOLD]]
    if told:
        yield (
            f"{in_simulation(comparison)}, of what is promised, {promise_text(service)}, most is kept by "
            f"{', '.join(told)}."
        )


def _felt(row: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """Its p99, accuracy and energy; that also against the first one's, with its sign."""
    p99_s, accuracy, joules = (measure.of(row)["mean"] for measure in (_P99, _ACCURACY, _ENERGY))
    text = f"p99 {duration(p99_s)}, accuracy {share(accuracy)}, {number(joules, None)} {_ENERGY.unit}"
    less = None if row is first else change_pct(joules, _ENERGY.of(first)["mean"])
    return text if less is None else f"{text}: {number(less, 1, signed=True)} %"


def lead_text(found: Contender, other: Contender) -> str:
    """By how much it is slower or quicker, `8.3 +-1.1 % below that of x`: of the other's mean, not a mean of percents,
    which one slow run can turn round. An interval wider than the other's mean leaves no number worth reading."""
    lead, of_s = found.lead(other)["difference"], other.mean_s
    mean_s, half_s = lead["mean"], lead["ci95"]
    if mean_s is None:
        return f"{NONE} %"
    side = f"{'below' if mean_s <= 0 else 'above'} that of {other.router}"
    if half_s is not None and half_s > max(of_s, abs(mean_s)):
        return f"{side} (runs differ too much to say by how much)"
    half = "" if half_s is None else PLUS_MINUS + number(half_s / of_s, 1, 100)
    return f"{number(abs(mean_s) / of_s, 1, 100)}{half} % {side}"


def at(found: Contender) -> str:
    """`87.50 % accuracy`."""
    return f"{number(found.accuracy, 2, _ACCURACY.scale)} % accuracy"


def ms(value_s: float) -> str:
    """`16.79 ms`."""
    return f"{number(value_s, 2, _LATENCY.scale)} {_LATENCY.unit}"


# ------------------------------------------------------------------------------------------------------ who won or lost


def _rules(standing: Standing) -> list[str]:
    return [each.router for each in standing.contenders if each.router not in LEARNED]


def learned_of(standing: Standing) -> list[Contender]:
    """Those of them that a run trains."""
    return [each for each in standing.contenders if each.router in LEARNED]


def _losses(standing: Standing, where: str) -> Iterator[str]:
    """Learned routers that a rule beats by more than chance."""
    for one in learned_of(standing):
        rival = standing.rival_of(one, _rules(standing))
        if rival is not None and rival.beats(one) and one.lead(rival)["differs"]:
            yield (
                f"{where} the learned router {one.router} loses: its mean latency, {ms(one.mean_s)} at {at(one)}, is "
                f"{lead_text(one, rival)} (a rule, {at(rival)})."
            )


def _outcome(standing: Standing, where: str) -> Iterator[str]:
    """Who won, and whether chance could have done it."""
    yield from _left_out(standing, where)
    if len(standing.contenders) < 2:
        who = f"{standing.contenders[0].router} alone" if standing.contenders else "no router"
        yield f"{where} nobody wins: {who} can be judged."
        return
    winner = standing.winner
    if winner is None:
        yield f"{where} nobody wins: whoever is quicker is less accurate, by more than {points_text(COMPARABLE)}."
        return
    rival = standing.next_of(winner)
    differs = winner.lead(rival)["differs"]
    figures = f"a mean latency of {ms(winner.mean_s)} at {at(winner)}, {lead_text(winner, rival)} ({at(rival)})"
    if differs:
        others = "of comparable accuracy" if rival.is_match_for(winner) else "that it beats; none is as accurate"
        yield f"{where} {winner.router} wins: {figures}, the quickest other {others}."
    elif differs is None:
        yield f"{where} {winner.router} is the quickest, but a single run says nothing of chance: {figures}."
    else:
        yield f"{where} it is a tie: {winner.router} has {figures}, which chance explains."


def _left_out(standing: Standing, where: str) -> Iterator[str]:
    if standing.left_out:
        who = ", ".join(standing.left_out)
        yield f"{where} {who} left more than 1 % of the images unserved, or can't be judged, and can't win."


def _others(standing: Standing) -> Iterator[str]:
    """What became of learned routers that neither lost nor won, and of all beside the tuned ladder."""
    winner = standing.winner
    ladder = standing.of(LADDER)
    for one in learned_of(standing):
        rival = standing.rival_of(one, _rules(standing))
        if rival is None:
            if one is not winner:
                yield f"{one.router} is more accurate than every rule ({at(one)}), and slower ({ms(one.mean_s)})."
        elif not rival.beats(one) and winner is not None and one is not winner and not one.is_match_for(winner):
            short = points_text(winner.accuracy - one.accuracy)
            yield f"{one.router} is not set beside {winner.router}: {ms(one.mean_s)}, but {short} less accurate."
        elif rival.beats(one) and not one.lead(rival)["differs"] and not _is_of_outcome(standing, rival, one):
            yield f"{one.router} and {rival.router} can't be told apart: {ms(one.mean_s)}, {lead_text(one, rival)}."
        if ladder is not None and _is_told_beside(standing, one, ladder):
            yield f"Levelled, {one.router}'s mean latency is {lead_text(one, ladder)}{_of_chance(one, ladder)}."


def _is_of_outcome(standing: Standing, one: Contender, other: Contender) -> bool:
    """Whether who won is told of these two."""
    return one is standing.winner and other is standing.next_of(one)


def _is_told_beside(standing: Standing, one: Contender, ladder: Contender) -> bool:
    """The ladder at the same accuracy, unless another sentence sets the two side by side."""
    if one is standing.winner:
        told: Contender | None = standing.next_of(one)
    else:
        told = standing.rival_of(one, _rules(standing))
        told = told if told is not None and told.beats(one) else None
    return told is not ladder and one.is_match_for(ladder) and ladder.is_match_for(one)


def _of_chance(one: Contender, other: Contender) -> str:
    return "" if one.lead(other)["differs"] else ", which chance explains"


def points_text(accuracy: float) -> str:
    """`0.1 points`, of a difference."""
    return f"{number(accuracy, 1, _POINT)} points"


# ------------------------------------------------------------------------------------------- what simulation was worth


def _fidelity(validation: Validation, real: Standing) -> Iterator[str]:
    """What simulation had promised of the same arrivals, how far off it was, and how it orders routers."""
    promised = validated(validation, "simulated")
    rows = [row for row in rows_at_middle(validation["rows"]) if real.of(row["router"]) is not None]
    winner = real.winner
    if winner is not None and (twin := promised.of(winner.router)) is not None:
        text = f"Simulation of the same arrivals had promised {ms(twin.mean_s)} for {winner.router}"
        named = promised.winner
        if named is not None and named.router != winner.router:
            text += f", and another winner: {named.router}, at {ms(named.mean_s)}"
        yield f"{text}."
    if errors := [_span_of(rows, measure.stem) for measure in (_LATENCY, _P99)]:
        yield f"Its mean latencies are off by {errors[0]}, its p99 by {errors[1]}."
    yield from _order(validation, rows)
    if busy_warnings(validation):
        yield "Other programs kept this host busy: what differs is not the simulator's alone."


def _span_of(rows: list[Row], stem: str) -> str:
    """The errors of all routers, `-2.0 to +9.1 %`."""
    errors = [error for row in rows if (error := row["error_pct"][stem]["mean"]) is not None]
    if not errors:
        return f"{NONE} %"
    low, high = (number(each, 1, signed=True) for each in (min(errors), max(errors)))
    return f"{low} %" if low == high else f"{low} to {high} %"


def alike_pairs(found: Ranking) -> int:
    """How many of the pairs that executors tell apart simulation orders alike."""
    return round(((found["tau_separated"] or 0.0) + 1) / 2 * found["separated_pairs"])


def _order(validation: Validation, rows: list[Row]) -> Iterator[str]:
    """How many pairs the executors tell apart, and how many of these simulation orders alike."""
    found = next((each for each in validation.get("ranking", []) if rows and each["load"] == rows[0]["load"]), None)
    if found is None or not found["pairs"]:
        return
    apart, pairs = found["separated_pairs"], plural(found["pairs"], "pair")
    if apart:
        alike = alike_pairs(found)
        all_of = "all of these" if alike == apart else f"{alike} of these"
        yield (
            f"The executors tell {apart} of {pairs} of routers apart (the paired 95 % interval leaves 0 out); "
            f"simulation orders {all_of} alike."
        )
        return
    means_s = [mean for row in rows if (mean := row["hardware"][_LATENCY.stem]["mean"]) is not None]
    noises = [pct for row in rows if (pct := row["repeatability_pct"][_LATENCY.stem]) is not None]
    spread = f"their mean latencies span {ms(min(means_s))} to {ms(max(means_s))}"
    noise = f"between repeats one router's differs by up to {number(max(noises), 1)} %" if noises else ""
    why = f"{spread}, and {noise}" if noise else f"{spread}, and without repeats nobody knows the noise"
    yield f"The executors tell none of {pairs} of routers apart: {why}."
    yield "This machine is too noisy to tell them apart, or too little was run."
