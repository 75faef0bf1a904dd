"""What a reader asks first, and its answers: did a learned router win, can the simulation be trusted, what next.

Pure functions of a run's comparison and validation. How far off simulation is, is told of the router and load where it
is worst: a mean over routers would hide it. The whole story, sentence by sentence: `scenarios.show.verdict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from textwrap import wrap
from typing import Final, Literal

from scenarios.files.made_routers import LEARNED
from scenarios.metrics.catalogue import MEASURES, Measure
from scenarios.metrics.comparison import Comparison
from scenarios.metrics.fidelity import Row, Validation, is_marked
from scenarios.metrics.standing import Contender, Standing, compared, validated
from scenarios.show.numbers import interval, number, plural
from scenarios.show.validation import busy_warnings, emulated_devices
from scenarios.show.verdict import (
    alike_pairs,
    at,
    in_simulation,
    lead_text,
    learned_of,
    ms,
    on_executors,
    points_text,
)
from scenarios.show.words import kept_measures, promise_text, provenance_text
from scenarios.terminal.screen import screen_width

Mood = Literal["yes", "no", "open"]
WON, TRUSTED, NEXT = "Did a learned router win?", "Can the simulation be trusted?", "What to do next?"
_WIDEST: Final = 100  # characters of a box: longer lines are hard to read
_MOST_SEEDS: Final = 200  # more are no advice
_WELL_KEPT: Final = 0.95  # of the windows
_MEAN, _P99, _KEPT = (MEASURES[name] for name in ("latency_mean_s", "latency_p99_s", "kept_share"))


@dataclass(frozen=True, slots=True)
class Answer:
    """One question with its answer; the mood says how it is colored: a good answer, a bad one, or none."""

    question: str
    text: str
    mood: Mood = "open"


def answers(comparison: Comparison | None, validation: Validation | None) -> list[Answer]:
    """The three of them; none where neither document has two routers side by side."""
    validation = validation if validation is not None and validation.get("rows") else None
    worlds: list[tuple[str, Standing]] = []
    if validation is not None:
        worlds.append((on_executors(validation), validated(validation, "hardware")))
    if comparison is not None:
        worlds.append((in_simulation(comparison), compared(comparison)))
    if max((len(standing.contenders) + len(standing.left_out) for _, standing in worlds), default=0) < 2:
        return []
    told = [_won(where, standing) for where, standing in worlds]
    most = _most_kept(comparison)
    won = Answer(WON, " ".join([*(text for _, text in told), *([most.text] if most else [])]), told[0][0])
    trusted = _trusted(comparison, validation)
    return [won, trusted, Answer(NEXT, " ".join(_next(worlds, validation, trusted, most)))]


def format_answers(comparison: Comparison | None, validation: Validation | None) -> str:
    """The answers in a frame that fits the terminal; empty where no two routers stand beside each other."""
    found = answers(comparison, validation)
    return box_text(found, screen_width()) if found else ""


def box_text(found: Sequence[Answer], width: int | None) -> str:
    """The answers in a frame of plain characters, as wide as the terminal but no wider than is good to read."""
    room = min(width or _WIDEST, _WIDEST) - 4
    lines: list[str] = []
    for answer in found:
        lines += [
            *([""] if lines else []),
            answer.question,
            *(f"  {line}" for line in wrap(answer.text, room - 2, break_on_hyphens=False)),
        ]
    rule = f"+{'-' * (room + 2)}+"
    return "\n".join([rule, *(f"| {line.ljust(room)} |" for line in lines), rule])


# ------------------------------------------------------------------------------------------- did a learned router win?


def _won(where: str, standing: Standing) -> tuple[Mood, str]:
    """Of one world: the mood, and a sentence or two."""
    learned, winner = learned_of(standing), standing.winner
    there = f"{where[:1].lower()}{where[1:]}"
    if not learned:
        absent = [name for name in standing.left_out if name in LEARNED]
        if not absent:
            return "open", f"No learned router took part. {_best_rule(there, standing)}"
        return "no", f"No: {there} {', '.join(absent)} can't be judged, or left too much unserved."
    if winner is None:
        return "no", f"No: {there} nobody wins, whoever is quicker is less accurate."
    if winner.router in LEARNED:
        return _learned_wins(there, winner, standing.next_of(winner))
    best = min(learned, key=lambda one: (not one.is_match_for(winner), one.mean_s))
    figures = f"{best.router} has a mean latency of {ms(best.mean_s)} at {at(best)}"
    if best.is_match_for(winner):
        figures += f", {lead_text(best, winner)}"
        if not best.lead(winner)["differs"]:
            return "open", f"Not shown: {there} {figures}, {_why_open(best, winner)}."
    else:
        figures += f", {points_text(winner.accuracy - best.accuracy)} less accurate"
    wins = f"{winner.router} (a rule) wins with {ms(winner.mean_s)} at {at(winner)}"
    return "no", f"No: {there} {wins}; {figures}."


def _best_rule(there: str, standing: Standing) -> str:
    winner = standing.winner
    if winner is None:
        return f"{there[:1].upper()}{there[1:]} no rule wins: whoever is quicker is less accurate."
    rival = standing.next_of(winner)
    figures = f"{ms(winner.mean_s)} at {at(winner)}, {lead_text(winner, rival)} ({at(rival)})"
    chance = "" if winner.lead(rival)["differs"] else f", {_why_open(winner, rival)}"
    return f"Of the rules {winner.router} is the quickest {there}: a mean latency of {figures}{chance}."


def _learned_wins(there: str, winner: Contender, rival: Contender) -> tuple[Mood, str]:
    figures = f"{winner.router} has a mean latency of {ms(winner.mean_s)} at {at(winner)}"
    figures += f", {lead_text(winner, rival)} ({at(rival)})"
    if winner.lead(rival)["differs"]:
        return "yes", f"Yes: {there} {figures}."
    return "open", f"Not shown: {there} {figures}, {_why_open(winner, rival)}."


def _why_open(one: Contender, other: Contender) -> str:
    return "and one run says nothing of chance" if one.lead(other)["differs"] is None else "which chance explains"


@dataclass(frozen=True, slots=True)
class _Kept:
    """Who keeps what the scenario promises in most of the time, in which share of it, and that in a sentence."""

    router: str
    share: float
    text: str


def _most_kept(comparison: Comparison | None) -> _Kept | None:
    """None where nothing is promised, or nobody can be judged."""
    service = None if comparison is None else comparison.get("service")
    if comparison is None or service is None or not kept_measures(service):
        return None
    found = {row["router"]: _KEPT.of(row) for row in comparison["rows"] if not row.get("is_marked")}
    able = {router: kept for router, kept in found.items() if kept["mean"] is not None}
    if not able:
        return None
    best = max(able, key=lambda router: able[router]["mean"])
    share = f"{interval(able[best], 1, 100)} % of them"
    return _Kept(best, able[best]["mean"], f"Promised is {promise_text(service)}: {best} keeps most, {share}.")


# -------------------------------------------------------------------------------------- can the simulation be trusted?


def _trusted(comparison: Comparison | None, validation: Validation | None) -> Answer:
    if validation is None:
        origin = f" {provenance_text(comparison)}" if comparison is not None else ""
        return Answer(TRUSTED, f"Not known: nothing of this was run on executors.{origin}")
    rows = [row for row in validation["rows"] if not _is_marked(row)]
    judged = [met for row in rows for measure in (_MEAN, _P99) if (met := row["met"][measure.stem]) is not None]
    mood, order = _order(validation)
    if not rows:
        mood, text = "no", "No: nobody served enough on executors to be judged"
    elif not judged:
        mood, text = "open", f"Not known: nothing is promised here. {order}"
    elif all(judged):
        text = f"Yes, its latencies are within what is promised. {order}" if mood == "yes" else f"In part. {order}"
    elif mood == "yes":
        mood, text = "open", f"For the order of the routers, not for milliseconds. {order}"
    else:
        mood, text = "no", f"No. {order}"
    parts = [f"{text.rstrip('.')}.", *_farthest(rows, validation), *_beware(validation)]
    return Answer(TRUSTED, " ".join(parts), mood)


def _is_marked(row: Row) -> bool:
    return "served" in row and is_marked(row["served"])


def _order(validation: Validation) -> tuple[Mood, str]:
    """Of all loads together, and only of pairs that executors tell apart."""
    known = validation.get("ranking", [])
    apart, alike = sum(each["separated_pairs"] for each in known), sum(map(alike_pairs, known))
    if not apart:
        return "open", "Executors tell no two routers apart, so its order can't be judged."
    pairs = f"{alike} of {plural(apart, 'pair')} of routers that executors tell apart"
    return ("yes" if alike == apart else "no"), f"It orders {pairs} as they do."


def _farthest(rows: Sequence[Row], validation: Validation) -> Iterator[str]:
    """The largest errors of mean and p99, of which router, and at which load where there are several."""
    several = len({row["load"] for row in validation["rows"]}) > 1
    told = [_worst(rows, measure, several) for measure in (_MEAN, _P99)]
    if found := [text for text in told if text]:
        yield f"Where it is farthest off: {'; '.join(found)}."


def _worst(rows: Sequence[Row], measure: Measure, several: bool) -> str:
    known = [(error, row) for row in rows if (error := row["error_pct"][measure.stem]["mean"]) is not None]
    if not known:
        return ""
    error, row = max(known, key=lambda each: abs(each[0]))
    allowed = row["target_pct"][measure.stem]
    of = row["router"] + (f" at load {row['load']:g}" if several and row["load"] is not None else "")
    promise = "" if allowed is None else f", {allowed:g} % allowed"
    return f"{measure.title} {number(error, 1, signed=True)} % ({of}{promise})"


def _beware(validation: Validation) -> Iterator[str]:
    if any("energy" in name for pair in validation["pairs"] for name in pair["not_applicable"]):
        yield "Energy was not metered on the hardware: nothing here checks it."
    if devices := emulated_devices(validation):
        yield f"The devices were {devices}: nothing is said of real ones."
    if busy_warnings(validation):
        yield "Other programs kept this host busy, so part of the error is theirs."


# -------------------------------------------------------------------------------------------------- what to do next?


def _next(
    worlds: Sequence[tuple[str, Standing]], validation: Validation | None, trusted: Answer, most: _Kept | None
) -> Iterator[str]:
    """At most a few sentences, the most useful one first."""
    standing = worlds[0][1]
    if any(each.left_out for _, each in worlds):
        yield "Lower the rate, or add a server, until every router serves what arrives."
    elif most is not None and most.share < _WELL_KEPT:
        yield "Nobody keeps what is promised all the time: lower the rate, add a server, or promise less (`service`)."
    if validation is None:
        yield "Measure your own devices (`slimsched calibrate`), then set this beside real runs (`slimsched validate`)."
    elif busy_warnings(validation):
        yield "Stop what else runs on this host, and validate again into a folder of its own (--out)."
    elif trusted.mood != "yes":
        yield "Calibrate for longer (`calibration.budget`) on a quiet host, and repeat each run (`validate.repeats`)."
    winner = standing.winner
    if winner is None:
        return
    rival = standing.next_of(winner)
    differs = winner.lead(rival)["differs"]
    if not differs:
        yield _more_runs(winner, rival, "seeds" if validation is None else "runs")
    elif winner.router not in LEARNED and learned_of(standing):
        yield f"Serve with {winner.router}, or train the learned routers for longer (`training`, `tuning`)."
    else:
        yield f"Serve with {winner.router}, and try it under another load."


def _more_runs(winner: Contender, rival: Contender, word: str) -> str:
    """About how many would show such a difference: an interval narrows with the root of their number."""
    lead, runs = winner.lead(rival)["difference"], len(winner.latency_s)
    if lead["mean"] and lead["ci95"]:
        needed = ceil(runs * (lead["ci95"] / lead["mean"]) ** 2)
        if runs < needed <= _MOST_SEEDS:
            return f"About {needed} {word} would tell {winner.router} from {rival.router} (there were {runs})."
        return f"Take either: {winner.router} and {rival.router} are too alike to tell them apart with {runs} {word}."
    return f"Make more {word}: with one nobody knows what is chance."
