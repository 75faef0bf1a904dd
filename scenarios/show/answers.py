"""What a reader asks first, and its answers: did a learned router win, can the simulation be trusted, what next.

Facts of a run's comparison and validation, and the case that each answer is; the sentences are `templates/answers.j2`.
How far off simulation is, is told of the router and load where it is worst: a mean over routers would hide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, Literal

from scenarios.files.made_routers import LEARNED, TUNED_HERE
from scenarios.metrics.catalogue import MEASURES, Measure
from scenarios.metrics.comparison import ComparisonDocument
from scenarios.metrics.fidelity import RankCorrelation, Row, ValidationDocument, is_flagged
from scenarios.metrics.ranking import RankedRouter, Ranking, compared, validated
from scenarios.show.numbers import plural
from scenarios.show.table import framed
from scenarios.show.validation import emulated_devices, is_host_busy, rows_at_middle
from scenarios.show.wording import say
from scenarios.show.words import origin_text, provenance, slo_measures
from scenarios.terminal.screen import screen_width

Mood = Literal["yes", "no", "open"]
TrustCase = Literal["not run", "unserved", "unpromised", "order alone", "yes", "latencies alone", "no"]
WON, TRUSTED, NEXT = "Did a learned router win?", "Can the simulation be trusted?", "What to do next?"
LADDER: Final = f"{TUNED_HERE}ladder"  # what a learned router is set beside, whoever else is quicker
_UNSERVED: Final[tuple[Mood, TrustCase]] = "no", "unserved"
_MAX_SEEDS: Final = 200  # more are no advice
_WELL_KEPT: Final = 0.95  # of the windows
_MEAN, _P99, _ATTAINMENT = (MEASURES[name] for name in ("latency_mean_s", "latency_p99_s", "slo_attainment"))


@dataclass(frozen=True, slots=True)
class Answer:
    """One question with its answer; the mood says how it is colored: a good answer, a bad one, or none."""

    question: str
    text: str
    mood: Mood = "open"


def answers(comparison: ComparisonDocument | None, validation: ValidationDocument | None) -> list[Answer]:
    """The three of them; none where neither document has two routers side by side."""
    validation = validation if validation is not None and validation["rows"] else None
    contests = []
    if validation is not None:
        contests.append(_contest(_on_executors(validation), validated(validation, "hardware")))
    if comparison is not None:
        contests.append(_contest(_in_simulation(comparison), compared(comparison)))
    if max((len(each.ranking.candidates) + len(each.ranking.left_out) for each in contests), default=0) < 2:
        return []
    most = _best_attainment(comparison)
    sentences = [say("answers", "won", each) for each in contests]
    sentences += [say("answers", "attainment", comparison["slo"], most)] if comparison and most else []
    mood, trusted = _trusted(comparison, validation)
    advice = _next(contests, trusted, most)
    return [
        Answer(WON, " ".join(sentences), contests[0].mood),
        Answer(TRUSTED, say("answers", "trusted", trusted), mood),
        Answer(NEXT, say("answers", "next", advice)),
    ]


def format_answers(
    comparison: ComparisonDocument | None, validation: ValidationDocument | None, more: Sequence[Answer] = ()
) -> str:
    """The answers in a frame that fits the terminal, and more; empty where no two routers stand beside each other."""
    entries = answers(comparison, validation)
    return box_text([*entries, *more], screen_width()) if entries else ""


def box_text(entries: Sequence[Answer], width: int | None) -> str:
    """Answers in a frame, as wide as the terminal but no wider than is good to read."""
    return framed(((each.question, each.text) for each in entries), width)


def _on_executors(validation: ValidationDocument) -> str:
    """Where a validation's hardware runs were made, and how many."""
    runs = max(len(row["seeds"]) * row["repeats"] for row in rows_at_middle(validation["rows"]))
    devices = emulated_devices(validation)
    what = f"executors whose devices are {devices}" if devices else "real executors"
    return f"on {what} ({plural(runs, 'run')} a router)"


def _in_simulation(comparison: ComparisonDocument) -> str:
    """Say that a comparison's runs are simulated, how many there are, and the weakest origin of what they rest on."""
    seeds = max(len(row["seeds"]) for row in comparison["rows"])
    return f"in simulation ({provenance(comparison).partition(';')[0]}, {plural(seeds, 'seed')})"


# ------------------------------------------------------------------------------------------- did a learned router win?


@dataclass(frozen=True, slots=True)
class Contest:
    """What became of the learned routers in one world.

    Attributes:
        where: the world, and how much was run there.
        case: which sentence of the template it is.
        one, other: whom that sentence sets beside whom.
    """

    where: str
    ranking: Ranking
    mood: Mood
    case: Literal["left out", "rules", "nobody", "lost", "not shown", "won"]
    one: RankedRouter | None = None
    other: RankedRouter | None = None

    @property
    def beside(self) -> Iterator[tuple[RankedRouter, RankedRouter]]:
        """Each learned router, and the rules that no other sentence sets it beside: the quickest that is as accurate,
        and the tuned ladder."""
        rules = [each.router for each in self.ranking.candidates if each.router not in LEARNED]
        for one in _learned(self.ranking):
            ladder = self.ranking.of(LADDER)
            ladder = ladder if ladder is not None and ladder.is_match_for(one) and one.is_match_for(ladder) else None
            beside = (self.ranking.baseline_of(one, rules), ladder)
            for rule in {each.router: each for each in beside if each is not None}.values():
                if (one, rule) != (self.one, self.other):
                    yield one, rule


def _learned(ranking: Ranking) -> list[RankedRouter]:
    return [each for each in ranking.candidates if each.router in LEARNED]


def _contest(where: str, ranking: Ranking) -> Contest:
    learned, winner = _learned(ranking), ranking.winner
    baseline = None if winner is None else ranking.next_of(winner)
    if not learned and any(name in LEARNED for name in ranking.left_out):
        return Contest(where, ranking, "no", "left out")
    if not learned:
        return Contest(where, ranking, "open", "rules", winner, baseline)
    if winner is None or baseline is None:
        return Contest(where, ranking, "no", "nobody")
    one, other = winner, baseline
    if winner.router not in LEARNED:
        one, other = min(learned, key=lambda each: (not each.is_match_for(winner), each.mean_s)), winner
    if one.is_match_for(other) and not one.lead(other)["differs"]:
        return Contest(where, ranking, "open", "not shown", one, other)
    return Contest(where, ranking, *(("yes", "won") if one is winner else ("no", "lost")), one, other)


def _best_attainment(comparison: ComparisonDocument | None) -> dict[str, Any] | None:
    """The row of who keeps what is promised in most of the windows; None where nothing is, or nobody can be judged."""
    if comparison is None or not slo_measures(comparison["slo"]):
        return None
    rows = [row for row in comparison["rows"] if not row["is_flagged"] and _ATTAINMENT.of(row)["mean"] is not None]
    return max(rows, key=lambda row: float(_ATTAINMENT.of(row)["mean"]), default=None)


# -------------------------------------------------------------------------------------- can the simulation be trusted?


@dataclass(frozen=True, slots=True)
class Trust:
    """What validation says of the simulation; without one only where its numbers come from is known.

    Attributes:
        apart, alike: pairs of routers that executors tell apart, and those of them that simulation orders so.
        named: whom simulation of the same arrivals had named as winner, if that is another one.
        farthest: the largest error of each latency.
    """

    case: TrustCase
    origin: str = ""
    apart: int = 0
    alike: int = 0
    named: RankedRouter | None = None
    farthest: Sequence[Mapping[str, Any]] = ()
    is_metered: bool = True
    devices: str = ""
    is_busy: bool = False


def _trusted(comparison: ComparisonDocument | None, validation: ValidationDocument | None) -> tuple[Mood, Trust]:
    if validation is None:
        return "open", Trust("not run", origin="" if comparison is None else origin_text(comparison))
    rows = [row for row in validation["rows"] if not is_flagged(row["served"])]
    judged = [met for row in rows for measure in (_MEAN, _P99) if (met := row["met"][measure.stem]) is not None]
    apart = sum(each["separated_pairs"] for each in validation["ranking"])
    alike = sum(map(_alike_pairs, validation["ranking"]))
    order: Mood = "open" if not apart else "yes" if alike == apart else "no"
    mood, case = _judged(judged, order) if rows else _UNSERVED
    real, simulated = validated(validation, "hardware").winner, validated(validation, "simulated").winner
    several = len({row["load"] for row in validation["rows"]}) > 1
    return mood, Trust(
        case,
        apart=apart,
        alike=alike,
        named=simulated if real and simulated and simulated.router != real.router else None,
        farthest=[each for measure in (_MEAN, _P99) if (each := _worst(rows, measure, several))],
        is_metered=not any("energy" in name for pair in validation["pairs"] for name in pair["not_applicable"]),
        devices=emulated_devices(validation),
        is_busy=is_host_busy(validation),
    )


def _judged(judged: Sequence[bool], order: Mood) -> tuple[Mood, TrustCase]:
    """Judge by whether each latency is within what is promised, and by what is known of the order of routers."""
    if not judged:
        return order, "unpromised"
    if all(judged):
        return order, "yes" if order == "yes" else "latencies alone"
    return ("open", "order alone") if order == "yes" else ("no", "no")


def _alike_pairs(ranking: RankCorrelation) -> int:
    """How many of the pairs that executors tell apart simulation orders alike."""
    return round(((ranking["tau_separated"] or 0.0) + 1) / 2 * ranking["separated_pairs"])


def _worst(rows: Sequence[Row], measure: Measure, several: bool) -> dict[str, Any] | None:
    """The largest error of all routers and loads, in percent; `load` where there are several."""
    known = [(error, row) for row in rows if (error := row["error_pct"][measure.stem]["mean"]) is not None]
    if not known:
        return None
    error, row = max(known, key=lambda each: abs(each[0]))
    return {
        "title": measure.title,
        "error_pct": error,
        "router": row["router"],
        "load": row["load"] if several else None,
        "allowed_pct": row["target_pct"][measure.stem],
    }


# -------------------------------------------------------------------------------------------------- what to do next?


def _next(contests: Sequence[Contest], trusted: Trust, most: Mapping[str, Any] | None) -> dict[str, Any]:
    """Facts for at most a few sentences, the most useful one first."""
    ranking = contests[0].ranking
    winner = ranking.winner
    baseline = None if winner is None else ranking.next_of(winner)
    return {
        "left_out": any(each.ranking.left_out for each in contests),
        "is_poorly_kept": most is not None and _ATTAINMENT.of(most)["mean"] < _WELL_KEPT,
        "trusted": trusted,
        "winner": winner,
        "baseline": baseline,
        "word": "seeds" if trusted.case == "not run" else "runs",
        "needed": None if winner is None or baseline is None else _runs_needed(winner, baseline),
        "is_rule": winner is not None and winner.router not in LEARNED and bool(_learned(ranking)),
    }


def _runs_needed(one: RankedRouter, other: RankedRouter) -> int | None:
    """About how many would show their difference (an interval narrows with the root of their number), where it is
    more than there are, and somebody could make them."""
    lead, runs = one.lead(other)["difference"], len(one.latency_s)
    if not lead["mean"] or not lead["ci95"]:
        return None
    needed = ceil(runs * (lead["ci95"] / lead["mean"]) ** 2)
    return needed if runs < needed <= _MAX_SEEDS else None
