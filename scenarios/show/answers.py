"""A reader's first questions, and their answers: which router won, can the simulation be trusted, what next.

Facts of a run's comparison and validation, and the case that each answer is; the sentences are `templates/answers.j2`.
`scenarios.metrics.router_comparison` alone decides which router wins. The simulation is trusted if what executors
showed is inside the ranges that it predicted, or near them. Its error is that of the worst router and load: a mean over
routers would hide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log
from typing import Any, Final, Literal, NamedTuple

from scenarios.metrics.failure_signs import is_saturated
from scenarios.metrics.fidelity import (
    PREDICTED,
    PROMISED_PCT,
    RankCorrelation,
    Row,
    ValidationDocument,
    farthest_stage,
    is_flagged,
    replayed_error_pct,
)
from scenarios.metrics.metric_catalogue import MEASURES, Measure
from scenarios.metrics.router_comparison import (
    MIN_RUNS,
    ComparisonDocument,
    RankedRouter,
    Ranking,
    SideName,
    compared,
    long_run_accuracies,
    validated,
)
from scenarios.metrics.statistics import Coverage, estimate, half_width_pct, holds
from scenarios.show.result_words import origin_text, provenance, slo_measures
from scenarios.show.tables import Answer, plural
from scenarios.show.validation_table import emulated_devices, is_host_busy, rows_at_middle
from scenarios.show.wording import lines_of

Mood = Literal["yes", "no", "open"]
TrustCase = Literal["not run", "unserved", "unpredicted", "yes", "near", "wide", "no"]
TRUSTED: Final = "Trusted"
WON: Final = "Winner"
EXCLUDED: Final = "Excluded"
SATURATED: Final = "Saturated"
SLO: Final = "SLO"
NEXT: Final = "Next"
_MOODS: Final[Mapping[TrustCase, Mood]] = {"yes": "yes", "near": "yes", "no": "no", "unserved": "no"}
_MAX_SEEDS: Final = 200  # more seeds are not advised
_WELL_KEPT: Final = 0.95  # of the windows
_MEAN, _ATTAINMENT = MEASURES["latency_mean_s"], MEASURES["slo_attainment"]
_OFFERED, _COMPLETED = (MEASURES[name] for name in ("offered_img_s", "throughput_img_s"))


def answers(comparison: ComparisonDocument | None, validation: ValidationDocument | None) -> list[Answer]:
    """Return all answers; with a validation, first whether to trust simulation; none without two routers."""
    validation = validation if validation is not None and validation["rows"] else None
    contests = list(_contests(comparison, validation))
    if len(contests) == 2 and contests[0].case == "open" and contests[1].winner == contests[0].first:
        contests.reverse()  # the few runs on executors only confirm the winner of simulation
    if max((contest.routers for contest in contests), default=0) < 2:
        return []
    most = _best_attainment(comparison)
    before = ["", *(contest.winner for contest in contests)]  # the same winner again needs no figures
    won = [line for each in zip(contests, before, strict=False) for line in lines_of("answers", "won", *each)]
    excluded, saturated = (
        [line for contest in contests for line in lines_of("answers", macro, contest)]
        for macro in ("excluded", "saturated")
    )
    promise = contests[0].ranking.promise
    is_near = any(router.accuracy < (promise.floor or 0.0) for contest in contests for router in contest.ranking.able)
    slo = lines_of("answers", "slo", promise, comparison and comparison["slo"], most, is_near)
    mood, trusted = _trusted(comparison, validation)
    judged = Answer(TRUSTED, lines_of("answers", "trusted", trusted), mood)
    results = [Answer(WON, won, contests[0].mood), Answer(EXCLUDED, excluded), Answer(SATURATED, saturated)]
    results.append(Answer(SLO, slo))
    advice = Answer(NEXT, lines_of("answers", "next", _next(contests, trusted, most)))
    replies = [judged, *results, advice] if validation else [*results, judged, advice]
    return [reply for reply in replies if reply.lines]


def _contests(comparison: ComparisonDocument | None, validation: ValidationDocument | None) -> Iterator[Contest]:
    learned = frozenset(() if comparison is None else comparison["learned"])
    if validation is not None:
        ranking = validated(validation, "executors", long_run=long_run_accuracies(comparison))
        yield Contest("executors", _on_executors(validation), ranking, learned, _saturated_on_executors(validation))
    if comparison is not None:
        where = _in_simulation(comparison)
        yield Contest("simulation", where, compared(comparison), learned, _saturated_in(comparison))


def _on_executors(validation: ValidationDocument) -> str:
    """Describe the devices of a validation's runs on executors, and how many runs there are."""
    runs = max(len(row["seeds"]) * row["repeats"] for row in rows_at_middle(validation["rows"]))
    devices = emulated_devices(validation)
    return ", ".join(filter(None, ("executors", devices, f"{plural(runs, 'run')} a router")))


def _in_simulation(comparison: ComparisonDocument) -> str:
    """Describe a comparison's runs: simulated, the weakest origin of what they rest on, and how many there are."""
    seeds = max(len(row["seeds"]) for row in comparison["rows"])
    return f"simulation, {provenance(comparison).partition(';')[0]}, {plural(seeds, 'seed')}"


# -------------------------------------------------------------------------------------------------- which router won?


class Saturated(NamedTuple):
    """A router that completes less than arrives, in images a second."""

    router: str
    offered_img_s: float
    completed_img_s: float


@dataclass(frozen=True, slots=True)
class Contest:
    """The routers' results in simulation or on executors.

    Attributes:
        where: simulation or executors, on what devices, and how much was run there.
        learned: the routers that have learned.
    """

    side: Literal["executors", "simulation"]
    where: str
    ranking: Ranking
    learned: frozenset[str]
    saturated: Sequence[Saturated] = ()

    @property
    def routers(self) -> int:
        """How many there are."""
        return len(self.ranking.judged) + len(self.ranking.left_out)

    @property
    def case(self) -> Literal["nobody", "alone", "open", "tie", "won"]:
        """Which sentence of the template it is."""
        if len(self.ranking.able) < 2:
            return "alone" if self.ranking.able else "nobody"
        return "won" if self.ranking.winner else "open" if self.ranking.is_open else "tie"

    @property
    def first(self) -> str:
        """The first of those that keep what is promised, by chance or not; empty if none does."""
        return self.ranking.able[0].router if self.ranking.able else ""

    @property
    def winner(self) -> str:
        """The winner's name; empty if none can be named."""
        return self.ranking.winner.router if self.ranking.winner else ""

    @property
    def mood(self) -> Mood:
        """Good if a router has won."""
        return "yes" if self.case == "won" else "no" if self.case == "nobody" else "open"

    @property
    def behind(self) -> list[RankedRouter]:
        """Learned routers that lose significantly to the first, but for the one that it is compared with anyhow."""
        lost = (router for router in self.ranking.able[2:] if router.router not in self.ranking.first)
        return [router for router in lost if router.router in self.learned]


def _saturated_in(comparison: ComparisonDocument) -> list[Saturated]:
    means = [(row["router"], *(each.of(row)["mean"] for each in (_OFFERED, _COMPLETED))) for row in comparison["rows"]]
    return [Saturated(*each) for each in means if is_saturated(*each[1:])]


def _saturated_on_executors(validation: ValidationDocument) -> list[Saturated]:
    saturated = []
    for row in rows_at_middle(validation["rows"]):
        point = row["router"], row["load"]
        runs = [pair["executors"] for pair in validation["pairs"] if (pair["router"], pair["load"]) == point]
        offered, completed = (estimate([each.of(run) for run in runs])["mean"] for each in (_OFFERED, _COMPLETED))
        if offered is not None and completed is not None and is_saturated(offered, completed):
            saturated.append(Saturated(row["router"], offered, completed))
    return saturated


def _best_attainment(comparison: ComparisonDocument | None) -> dict[str, Any] | None:
    """Return the row of the router that keeps its promise in most windows; None without a promise, or any to judge."""
    if comparison is None or not slo_measures(comparison["slo"]):
        return None
    rows = [row for row in comparison["rows"] if not row["is_flagged"] and _ATTAINMENT.of(row)["mean"] is not None]
    return max(rows, key=lambda row: float(_ATTAINMENT.of(row)["mean"]), default=None)


# -------------------------------------------------------------------------------------- can the simulation be trusted?


@dataclass(frozen=True, slots=True)
class Trust:
    """What validation shows of the simulation; without one only the origin of its numbers is known.

    Attributes:
        apart, agreeing: pairs of routers that differ significantly on executors, and those of them that simulation
            orders so.
        other_winner: the router that has won in simulation of the same arrivals, if that is another one.
        unreliable: servers whose calibration stayed disturbed.
        coverage: by the title of a latency, how many measured values are inside their predicted ranges.
        widest_pct: half the widest predicted range, as a share of its median.
        farthest: the largest bias of each latency, with the stage that differs most there.
    """

    case: TrustCase
    origin: str = ""
    apart: int = 0
    agreeing: int = 0
    other_winner: RankedRouter | None = None
    unreliable: Sequence[str] = ()
    coverage: Mapping[str, Coverage] = field(default_factory=dict)
    widest_pct: float = 0.0
    farthest: Sequence[Mapping[str, Any]] = ()
    is_metered: bool = True
    devices: str = ""
    is_busy: bool = False


def _trusted(comparison: ComparisonDocument | None, validation: ValidationDocument | None) -> tuple[Mood, Trust]:
    unreliable = [] if comparison is None else comparison["unreliable"]
    if validation is None:
        return "open", Trust(
            "not run", origin="" if comparison is None else origin_text(comparison), unreliable=unreliable
        )
    rows = [row for row in validation["rows"] if not is_flagged(row["served"])]
    apart = sum(each["separated_pairs"] for each in validation["ranking"])
    case: TrustCase = _judged(rows, [each for each in validation["coverage"].values() if each]) if rows else "unserved"
    long_run = long_run_accuracies(comparison)
    sides: tuple[SideName, SideName] = ("executors", "simulated")
    real, simulated = (validated(validation, side, long_run=long_run).winner for side in sides)
    several = len({row["load"] for row in validation["rows"]}) > 1
    ranges = [interval for row in rows for measure in PREDICTED if (interval := row["predicted"].get(measure.stem))]
    return _MOODS.get(case, "open"), Trust(
        case,
        apart=apart,
        agreeing=sum(map(_agreeing_pairs, validation["ranking"])),
        other_winner=simulated if real and simulated and simulated.router != real.router else None,
        unreliable=unreliable,
        coverage={measure.title: each for measure in PREDICTED if (each := validation["coverage"].get(measure.stem))},
        widest_pct=max((half_width_pct(interval) or 0.0 for interval in ranges), default=0.0),
        farthest=[worst for measure in PREDICTED if (worst := _worst(rows, measure, several))],
        is_metered=not any("energy" in name for pair in validation["pairs"] for name in pair["not_applicable"]),
        devices=emulated_devices(validation),
        is_busy=is_host_busy(validation),
    )


def _judged(rows: Sequence[Row], coverage: Sequence[Coverage]) -> TrustCase:
    """Judge whether values are inside the ranges; outside, but near; or neither."""
    if not coverage:
        return "unpredicted"
    stems = [measure.stem for measure in PREDICTED]
    if all(map(holds, coverage)):
        return "wide" if any(row["case"].get(stem) == "wide" for row in rows for stem in stems) else "yes"
    errors = [(abs(row["error_pct"].get(stem) or 0.0), PROMISED_PCT[stem]) for row in rows for stem in stems]
    return "near" if all(error <= promised for error, promised in errors) else "no"


def _agreeing_pairs(ranking: RankCorrelation) -> int:
    """Count the pairs that executors distinguish and simulation orders the same way."""
    return round(((ranking["tau_separated"] or 0.0) + 1) / 2 * ranking["separated_pairs"])


def _worst(rows: Sequence[Row], measure: Measure, several: bool) -> dict[str, Any] | None:
    """Return the largest bias of all routers and loads, in percent; `load` only if there are several."""
    biases = [(error, row) for row in rows if (error := row["error_pct"].get(measure.stem)) is not None]
    if not biases:
        return None
    error, row = max(biases, key=lambda bias: abs(bias[0]))
    return {
        "title": measure.title,
        "error_pct": error,
        "router": row["router"],
        "load": row["load"] if several else None,
        "stage": farthest_stage(row) if measure is _MEAN else None,
        "replayed_pct": replayed_error_pct(row) if measure is _MEAN else None,
    }


# -------------------------------------------------------------------------------------------------- what to do next?


def _next(contests: Sequence[Contest], trusted: Trust, most: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return facts for at most a few sentences, the most useful one first."""
    ranking, case = contests[0].ranking, contests[0].case
    return {
        "is_saturated": any(map(_is_too_much, contests)),
        "is_poorly_kept": most is not None and _ATTAINMENT.of(most)["mean"] < _WELL_KEPT,
        "trusted": trusted,
        "case": case,
        "ranking": ranking,
        "missed": ranking.missed and not ranking.able,
        "word": "seeds" if trusted.case == "not run" else "runs",
        "least": MIN_RUNS,
        "needed": _runs_needed(ranking.able[0], ranking.tied[0]) if case == "tie" else None,
    }


def _is_too_much(contest: Contest) -> bool:
    """Return whether no router serves what arrives."""
    return {router.router for router in contest.ranking.judged} <= {each.router for each in contest.saturated}


def _runs_needed(first: RankedRouter, second: RankedRouter) -> int | None:
    """Return about how many runs would show their difference, if it is more than there are and they can be made.

    An interval narrows with the root of their number.
    """
    lead = first.lead(second)
    if lead["ratio"] is None or lead["high"] is None or not log(lead["ratio"]):
        return None
    needed = ceil(lead["runs"] * (log(lead["high"] / lead["ratio"]) / log(lead["ratio"])) ** 2)
    return needed if lead["runs"] < needed <= _MAX_SEEDS else None
