"""Results set side by side: trade-offs of accuracy against a cost, routers against a baseline, and which router wins.

The module computes from finished documents alone (results, a comparison, a validation), however they were made, and
independently of sentences and charts.

Trade-offs: up in accuracy and down in cost is better. One point *beats* another that has no more accuracy and no less
cost, unless they are the same point.

Ranking: a router that keeps the floor of accuracy and serves at least 99 % can win. The one with the lowest p99 latency
does (or the lowest energy per image, at a p99 within its limit, if the scenario tunes for that). A winner needs
significance: over at least `MIN_RUNS` runs, the paired 95 % interval of its lead over each of the other routers must
not include equality. All routers not significantly different from the first tie with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, TypedDict

import numpy as np

from hw.networks.accuracy_table import MEASURED, PAPER, AccuracyProvenance
from kit.errors import InputError, nearest
from policies.vocabulary import Provenance
from scenarios.metrics.failure_signs import leaves_many, served, signature_counts
from scenarios.metrics.fidelity import PairDocument, ValidationDocument, is_flagged, middle_load
from scenarios.metrics.metric_catalogue import COSTS, MEASURES, PAIRED, Measure
from scenarios.metrics.run_result import Engine, Result, charged_decisions
from scenarios.metrics.slo import SloDocument, has_floor
from scenarios.metrics.statistics import (
    MeanInterval,
    PairedRatio,
    change_pct,
    estimate,
    paired_difference,
    paired_ratio,
)


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """One router: accuracy in [0, 1] and a cost in any one unit."""

    name: str
    accuracy: float
    cost: float

    def beats(self, other: ParetoPoint) -> bool:
        """Check whether this point is at least as good on both, and better on one."""
        is_no_worse = self.accuracy >= other.accuracy and self.cost <= other.cost
        return is_no_worse and (self.accuracy, self.cost) != (other.accuracy, other.cost)


def pareto_front(points: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    """Return the points that no other one beats, from the cheapest on; two that are the same are both on it."""
    front: list[ParetoPoint] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.accuracy)):
        if not front or not front[-1].beats(point):
            front.append(point)
    return front


def worst_corner(points: Sequence[ParetoPoint]) -> ParetoPoint:
    """Return the least accuracy of any with the highest cost of any: what every router is at least as good as."""
    return ParetoPoint("worst", min(point.accuracy for point in points), max(point.cost for point in points))


def hypervolume(points: Sequence[ParetoPoint], reference: ParetoPoint) -> float:
    """Return the area that some point covers: no better than the point on both, and no worse than the reference.

    In two dimensions the hypervolume indicator of Zitzler and Thiele (1998) is a staircase under the front. A point
    that does not beat the reference covers nothing.
    """
    covered, cost = 0.0, reference.cost
    within = [point for point in points if point.cost < reference.cost]
    for point in reversed(pareto_front(within)):  # from the most accurate on: each covers what is between the costs
        height = max(0.0, point.accuracy - reference.accuracy)
        covered += height * (cost - point.cost)
        cost = point.cost
    return covered


def share_covered(points: Sequence[ParetoPoint], reference: ParetoPoint) -> float | None:
    """Return hypervolume over the rectangle from the reference to the best accuracy at the least cost; None if flat.

    1 means that one point has both.
    """
    ideal = ParetoPoint("ideal", max(point.accuracy for point in points), min(point.cost for point in points))
    rectangle = hypervolume([ideal], reference)
    return hypervolume(points, reference) / rectangle if rectangle else None


def contributions(points: Sequence[ParetoPoint], reference: ParetoPoint) -> dict[str, float]:
    """Return, for each name, the hypervolume that no other name covers."""
    area = hypervolume(points, reference)
    others_of = {point.name: [other for other in points if other is not point] for point in points}
    return {name: area - hypervolume(others, reference) for name, others in others_of.items()}


# ----------------------------------------------------------------------------------------------------------- comparison


BASELINE = "random"
_AVERAGED = tuple(dict.fromkeys(measure.keys[0] for measure in MEASURES.values() if measure.is_averaged))
_CHANGES = {  # against the baseline
    "latency_change_pct": MEASURES["latency_mean_s"],
    "energy_change_pct": MEASURES["energy_j"],
    "energy_per_image_change_pct": MEASURES["energy_per_image_j"],
}
ACCURACY_DIGITS = 9  # sums of the same priors differ beyond them


class Paired(TypedDict):
    """Differences seed by seed against one router; a row has `router`, `seeds`, and differences and ratios."""

    against: str
    rows: list[dict[str, Any]]


class FrontRow(TypedDict):
    """One router in one trade-off; `bound`: the least cost at no more than its accuracy, if it is known.

    A router that leaves too many images unserved is on no front, and beats no other.
    """

    router: str
    accuracy: float
    cost: float
    on_front: bool
    bound: float | None
    gap_pct: float | None


class Pareto(TypedDict):
    """Trade-offs by cost. `accuracy` is the measure that is on the other axis."""

    accuracy: str
    fronts: dict[str, list[FrontRow]]
    bounds: dict[str, list[tuple[float, float]]]


class Hypervolume(TypedDict):
    """What the compared routers cover of one trade-off, down from a reference; see
    `scenarios.metrics.router_comparison`."""

    reference: dict[str, float]
    area: float
    share: float | None
    contributions: dict[str, float]


class EqualAccuracy(TypedDict):
    """The mean accuracy that all have, and each router's dial: None for one that has none."""

    floor: float
    dials: dict[str, float | None]


class ComparisonDocument(TypedDict):
    """`slimsched.comparison/1`.

    A row has `router`, `seeds`, a result's numbers as estimates, and the changes; if requests have classes, `classes`,
    too.

    A row's `failures` are shares of what arrived, by reason; `is_flagged` is true if it leaves more than 1 % unserved;
    `by_seed` has the values of `PAIRED`, one a seed.

    Attributes:
        learned: the routers that have learned, according to their files.
        unreliable: the servers whose calibration stayed disturbed.
        equal: what each router's dial was set to, so that all have one accuracy; None if none was set.
    """

    schema: str
    scenario: str
    provenance: str
    accuracy_provenance: AccuracyProvenance
    engine: Engine
    baseline: str | None
    rows: list[dict[str, Any]]
    paired: Paired | None
    pareto: Pareto
    hypervolume: dict[str, Hypervolume]
    worst: list[dict[str, Any]]
    emulated_slowdowns: list[float]
    own_decision_s: dict[str, float]
    slo: SloDocument | None
    learned: list[str]
    unreliable: list[str]
    equal: EqualAccuracy | None


Bounds = Mapping[str, Sequence[tuple[float, float]]]


def compare_results(
    results: Sequence[Result],
    baseline: str | None = None,
    *,
    bounds: Bounds | None = None,
    references: Mapping[str, ParetoPoint] | None = None,
    learned: Sequence[str] = (),
    unreliable: Sequence[str] = (),
    equal: EqualAccuracy | None = None,
) -> ComparisonDocument:
    """Compare routers, one row each, in order of first appearance; changes are against the baseline's run of that seed.

    Args:
        baseline: the router that changes and paired differences are to; by default `random`, if it is among them.
        bounds: by cost (a name of `COSTS`), points (accuracy, least cost that any router can have).
        references: by cost, from where hypervolume is counted; by default the worst of the routers on both axes.
        learned, unreliable, equal: see `ComparisonDocument`.

    Raises:
        InputError: `baseline` is not a router of the results.
    """
    assert results, "nothing to compare"
    by_router: dict[str, list[Result]] = {}
    for result in results:
        by_router.setdefault(result["router"], []).append(result)
    if baseline is not None and baseline not in by_router:
        raise InputError("--baseline", "", f"{baseline!r} is not compared here; {nearest(baseline, by_router)}")
    baseline = baseline or BASELINE
    base = {result["seed"]: result for result in by_router.get(baseline, [])}
    rows = [_row(router, runs, base) for router, runs in by_router.items()]
    points, able = _points(rows), {row["router"] for row in rows if not row["is_flagged"]}
    serving = {cost: [point for point in of if point.name in able] for cost, of in points.items()}
    return ComparisonDocument(
        schema="slimsched.comparison/1",
        scenario=results[0]["scenario"],
        provenance=str(Provenance.weakest(*(Provenance(result["provenance"]) for result in results))),
        accuracy_provenance=PAPER if any(result["accuracy_provenance"] == PAPER for result in results) else MEASURED,
        engine=results[0]["engine"],
        baseline=baseline if base else None,
        rows=rows,
        paired=_paired(by_router, baseline) if base else None,
        pareto=_pareto(rows, points, serving, bounds or {}),
        hypervolume={cost: _hypervolume(of, (references or {}).get(cost)) for cost, of in serving.items() if of},
        worst=[_worst(router, runs) for router, runs in by_router.items()],
        emulated_slowdowns=sorted({slowdown for result in results for slowdown in result["emulated_slowdowns"]}),
        own_decision_s=charged_decisions(results),
        slo=results[0]["slo"],
        learned=list(learned),
        unreliable=list(unreliable),
        equal=equal,
    )


def _row(router: str, runs: Sequence[Result], base: Mapping[int, Result]) -> dict[str, Any]:
    row: dict[str, Any] = {"router": router, "seeds": [run["seed"] for run in runs]}
    for key in _AVERAGED:
        row[key] = _fold([run[key] for run in runs])  # type: ignore[literal-required]
    if "classes" in runs[0]:
        row["classes"] = _fold([run["classes"] for run in runs])
    paired = [(run, base[run["seed"]]) for run in runs if run["seed"] in base]
    for key, measure in _CHANGES.items():
        row[key] = estimate([change_pct(measure.of(run), measure.of(baseline_run)) for run, baseline_run in paired])
    shares = served(runs)
    row["failures"], row["is_flagged"] = shares["failures"], leaves_many(shares)
    row["by_seed"] = {measure.name: [measure.of(run) for run in runs] for measure in PAIRED}
    row["signatures"] = signature_counts(run["signatures"] for run in runs)
    return row


def _fold(values: Sequence[Any]) -> Any:
    """Combine the same numbers of several runs, leaf by leaf."""
    if isinstance(values[0], Mapping):
        return {key: _fold([value[key] for value in values]) for key in values[0]}
    return estimate(values)


# ---------------------------------------------------------------------------------------------------- pairs and worst


def _paired(by_router: Mapping[str, Sequence[Result]], baseline: str) -> Paired:
    baseline_runs = {result["seed"]: result for result in by_router[baseline]}
    rows: list[dict[str, Any]] = []
    for router, runs in by_router.items():
        common = [run for run in runs if run["seed"] in baseline_runs]
        row: dict[str, Any] = {"router": router, "seeds": [run["seed"] for run in common]}
        for measure in PAIRED:
            values = [measure.of(run) for run in common]
            references = [measure.of(baseline_runs[run["seed"]]) for run in common]
            row[measure.name] = {**paired_difference(values, references), "ratio": paired_ratio(values, references)}
        rows.append(row)
    return Paired(against=baseline, rows=rows)


def _worst(router: str, runs: Sequence[Result]) -> dict[str, Any]:
    """Return the worst seed of each measure; null if a seed has no value."""
    row: dict[str, Any] = {"router": router}
    for measure in PAIRED:
        values = [measure.of(run) for run in runs]
        row[measure.name] = None if None in values else (min if measure.better == "higher" else max)(values)
    return row


# ---------------------------------------------------------------------------------------------------------- trade-offs


def accuracy_measure(rows: Sequence[Mapping[str, Any]]) -> Measure:
    """Return the accuracy axis of trade-offs: without the chance of labels, if all routers have that measure."""
    labels, expected = MEASURES["accuracy"], MEASURES["expected_accuracy"]
    return labels if any(_mean(row, expected) is None for row in rows) else expected


def _mean(row: Mapping[str, Any], measure: Measure) -> float | None:
    value = measure.of(row)
    return None if value is None else value["mean"]


def _points(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[ParetoPoint]]:
    """Return the routers that have both numbers, for each cost."""
    axis, points = accuracy_measure(rows), {}
    for measure in COSTS:
        positions = [(row["router"], _mean(row, axis), _mean(row, measure)) for row in rows]
        points[measure.name] = [
            ParetoPoint(router, round(accuracy, ACCURACY_DIGITS), cost)
            for router, accuracy, cost in positions
            if accuracy is not None and cost is not None
        ]
    return points


def _pareto(
    rows: Sequence[Mapping[str, Any]],
    points: Mapping[str, Sequence[ParetoPoint]],
    serving: Mapping[str, Sequence[ParetoPoint]],
    bounds: Bounds,
) -> Pareto:
    """Return trade-offs: of `points`, those of `serving` can be on a front."""
    curves = {name: sorted(bounds.get(name, ())) for name in points}
    return Pareto(
        accuracy=accuracy_measure(rows).name,
        fronts={name: _front_rows(of, pareto_front(serving[name]), curves[name]) for name, of in points.items()},
        bounds={name: curve for name, curve in curves.items() if curve},
    )


def _front_rows(
    points: Sequence[ParetoPoint], front: Sequence[ParetoPoint], curve: Sequence[tuple[float, float]]
) -> list[FrontRow]:
    rows = []
    for point in points:
        bound = least_cost(curve, point.accuracy)
        rows.append(
            FrontRow(
                router=point.name,
                accuracy=point.accuracy,
                cost=point.cost,
                on_front=point in front,
                bound=bound,
                gap_pct=change_pct(point.cost, bound),
            )
        )
    return rows


def bound_accuracies(comparison: ComparisonDocument, between: int = 7) -> list[float]:
    """Return where a bound should be known: at every router's accuracy, and at `between` more, ascending."""
    accuracies = {row["accuracy"] for rows in comparison["pareto"]["fronts"].values() for row in rows}
    if not accuracies:
        return []
    slack = 10**-ACCURACY_DIGITS  # an accuracy that was rounded up may be beyond what the best tuple has
    along = np.linspace(min(accuracies), max(accuracies), between + 2)[1:-1].tolist() if len(accuracies) > 1 else []
    return [max(0.0, accuracy - slack) for accuracy in sorted({*accuracies, *along})]


def least_cost(curve: Sequence[tuple[float, float]], accuracy: float) -> float | None:
    """Return the bound at the last of its points with no more accuracy: more accuracy can't be cheaper.

    Between two points a straight line would be above the bound, which is convex.
    """
    at = bisect_right(curve, accuracy + 10**-ACCURACY_DIGITS, key=lambda point: point[0])
    return curve[at - 1][1] if at else None


def _hypervolume(points: Sequence[ParetoPoint], reference: ParetoPoint | None) -> Hypervolume:
    corner = reference or worst_corner(points)
    return Hypervolume(
        reference={"accuracy": corner.accuracy, "cost": corner.cost},
        area=hypervolume(points, corner),
        share=share_covered(points, corner),
        contributions=contributions(points, corner),
    )


# -------------------------------------------------------------------------------------------------------------- ranking


MIN_RUNS: Final = 5  # of fewer a 95 % interval is hardly known: with three it is 2.2 times as wide as with many
P99, ENERGY, MEAN = (MEASURES[name] for name in ("latency_p99_s", "energy_per_image_j", "latency_mean_s"))

SideName = Literal["simulated", "executors"]


@dataclass(frozen=True)
class Promise:
    """What routers are held to: by which measure the least wins, at which floor of accuracy and limit of the p99."""

    objective: Measure = P99
    floor: float | None = None
    p99_limit_s: float | None = None
    class_floors: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, slo: SloDocument | None) -> Promise:
        """Return the promise that results record."""
        if slo is None:
            return cls()
        if classes := slo.get("classes"):
            return cls(class_floors={name: each["floor"] for name, each in classes.items() if each["floor"]})
        if slo.get("objective") == "energy":
            return cls(ENERGY, slo["floor"] or None, slo["p99_limit_s"] or None)
        return cls(P99, slo["floor"] or None)

    def missed_by(self, router: RankedRouter) -> bool:
        """Return whether it breaks the floor, or a limit that comes with the objective."""
        keeps = has_floor(router.accuracy, self.floor)
        keeps = keeps and all(has_floor(router.class_accuracies[name], at) for name, at in self.class_floors.items())
        return not keeps or (self.p99_limit_s is not None and router.p99_s > self.p99_limit_s)


@dataclass(frozen=True)
class RankedRouter:
    """A router with what it reached.

    Attributes:
        accuracy: over many runs as long as these, as far as that is known: what a floor is of.
        p99_s: the mean of its runs' p99 latencies.
        values: of the objective, by what runs of two routers have in common: the seed (of the mean over its repeats),
            or, with one seed, the repeat.
    """

    router: str
    accuracy: float
    p99_s: float
    values: Mapping[int, float]
    class_accuracies: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def mean(self) -> float:
        """The mean of the objective, over its runs."""
        return float(np.mean(list(self.values.values())))

    @property
    def interval(self) -> MeanInterval:
        """The mean objective with its 95 % interval."""
        return estimate(list(self.values.values()))

    def lead(self, other: RankedRouter) -> PairedRatio:
        """Return its objective as a multiple of the other's, over the runs that both have."""
        common = sorted(self.values.keys() & other.values.keys())
        return paired_ratio([self.values[run] for run in common], [other.values[run] for run in common])

    def differs(self, other: RankedRouter) -> bool:
        """Return whether its lead, or lag, is statistically significant."""
        lead = self.lead(other)
        return lead["runs"] >= MIN_RUNS and lead["differs"] is True


@dataclass(frozen=True)
class Ranking:
    """The routers of one ranking, in simulation or on executors.

    Attributes:
        able: those that can win, the best first.
        missed: those that break what is promised; `left_out`: those that serve too little, or can't be judged.
    """

    promise: Promise
    able: tuple[RankedRouter, ...]
    missed: tuple[RankedRouter, ...] = ()
    left_out: tuple[str, ...] = ()

    @classmethod
    def by(cls, promise: Promise, judged: Iterable[RankedRouter], left_out: Iterable[str] = ()) -> Ranking:
        """Return the ranking of those that can be judged."""
        ranked = sorted(judged, key=lambda router: router.mean)
        missed = tuple(filter(promise.missed_by, ranked))
        return cls(promise, tuple(router for router in ranked if router not in missed), missed, tuple(left_out))

    @property
    def judged(self) -> tuple[RankedRouter, ...]:
        """All routers with known results."""
        return (*self.able, *self.missed)

    @property
    def is_open(self) -> bool:
        """Whether there are two that can win, and too few runs to decide between them."""
        return len(self.able) > 1 and min(self.able[0].lead(other)["runs"] for other in self.able[1:]) < MIN_RUNS

    @property
    def tied(self) -> tuple[RankedRouter, ...]:
        """The routers not distinguishable from the first one; without a floor, none that is less accurate."""
        ties = [router for router in self.able[1:] if not router.differs(self.able[0])]
        if self.promise.floor is not None or self.promise.class_floors:
            return tuple(ties)
        return tuple(router for router in ties if has_floor(router.accuracy, self.able[0].accuracy))

    @property
    def winner(self) -> RankedRouter | None:
        """The winner; None for a tie, after too few runs, and if fewer than two can win."""
        return self.able[0] if len(self.able) > 1 and not self.tied and not self.is_open else None

    @property
    def first(self) -> tuple[str, ...]:
        """The routers that have won, or tie: the best, and those not distinguishable from it."""
        return tuple(router.router for router in (*self.able[:1], *self.tied))

    def of(self, router: str | None) -> RankedRouter | None:
        """Return that router, if it can win."""
        return next((one for one in self.able if one.router == router), None)


def compared(comparison: ComparisonDocument, of: Measure | None = None) -> Ranking:
    """Rank the routers of a simulated comparison; `of`: by another measure than the objective."""
    promise, axis = Promise.of(comparison["slo"]), accuracy_measure(comparison["rows"])
    judged, left_out = [], []
    for row in comparison["rows"]:
        values, p99_s = row["by_seed"][(of or promise.objective).name], P99.of(row)["mean"]
        accuracy = axis.of(row)["mean"]
        if row["is_flagged"] or None in (*values, p99_s, accuracy):
            left_out.append(row["router"])
        else:
            by_seed = dict(zip(row["seeds"], values, strict=True))
            classes = {name: axis.of(metrics)["mean"] or 0.0 for name, metrics in row.get("classes", {}).items()}
            judged.append(RankedRouter(row["router"], accuracy, p99_s, by_seed, classes))
    return Ranking.by(promise, judged, left_out)


def validated(
    validation: ValidationDocument,
    side: SideName,
    *,
    of: Measure | None = None,
    promise: Promise | None = None,
    long_run: Mapping[str, float | None] | None = None,
) -> Ranking:
    """Rank the routers in simulation or on executors, by a validation, at the load that charts show.

    Args:
        of: by another measure than the objective.
        promise: instead of what the validation's runs record.
        long_run: by router the expected accuracy in many simulated runs, such as a comparison's. A few runs can't show
            which router keeps a floor: of twenty seconds of bursts the accuracies of two seeds differ by a point. On
            executors the difference from simulation of the same arrivals is added.
    """
    load = middle_load(row["load"] for row in validation["rows"])
    pairs = [pair for pair in validation["pairs"] if pair["load"] == load]
    if promise is None:
        promise = Promise.of(pairs[0]["executors"]["slo"] if pairs else None)
    judged, left_out = [], []
    for row in (row for row in validation["rows"] if row["load"] == load):
        its_pairs = [pair for pair in pairs if pair["router"] == row["router"]]
        values, p99_s = by_run(its_pairs, side, of or promise.objective), by_run(its_pairs, side, P99)
        accuracy = _accuracy(pairs, its_pairs, side, (long_run or {}).get(row["router"]))
        if is_flagged(row["served"]) or values is None or p99_s is None or accuracy is None:
            left_out.append(row["router"])
        else:
            of_classes = _class_accuracies([pair[side] for pair in its_pairs])
            p99_mean_s = float(np.mean(list(p99_s.values())))
            judged.append(RankedRouter(row["router"], accuracy, p99_mean_s, values, of_classes))
    return Ranking.by(promise, judged, left_out)


def _class_accuracies(runs: Sequence[Result]) -> dict[str, float]:
    """Return the mean accuracy of each class in runs in which a request of it was completed; 0 if there are none."""
    axis = MEASURES["expected_accuracy"]
    of_class = {name: [axis.of(run["classes"][name]) for run in runs] for name in runs[0].get("classes", {})}
    completed = {name: [accuracy for accuracy in values if accuracy is not None] for name, values in of_class.items()}
    return {name: float(np.mean(values)) if values else 0.0 for name, values in completed.items()}


def _accuracy(
    pairs: Sequence[PairDocument], own: Sequence[PairDocument], side: SideName, long_run: float | None
) -> float | None:
    is_expected = all(pair[each]["expected_accuracy"] is not None for pair in pairs for each in (side, "simulated"))
    axis = MEASURES["expected_accuracy" if is_expected else "accuracy"]
    measured, simulated = (by_run(own, each, axis) for each in (side, "simulated"))
    if measured is None:
        return None
    reached = float(np.mean(list(measured.values())))
    if long_run is None or simulated is None:
        return reached
    return long_run + reached - float(np.mean(list(simulated.values())))


def long_run_accuracies(comparison: ComparisonDocument | None) -> dict[str, float | None]:
    """Return, by router, the long-run accuracy as measured by a comparison's runs."""
    rows: Sequence[Mapping[str, Any]] = [] if comparison is None else comparison["rows"]
    return {row["router"]: MEASURES["expected_accuracy"].of(row)["mean"] for row in rows}


def by_run(pairs: Sequence[PairDocument], side: SideName, measure: Measure) -> dict[int, float] | None:
    """Return a router's values, or None if one is missing.

    Repeats of one trace are not independent: over seeds, each is the mean of its repeats; of one seed, by repeat.
    """
    is_one = len({pair["seed"] for pair in pairs}) == 1
    values: dict[int, list[float]] = {}
    for pair in pairs:
        if (value := measure.of(pair[side])) is None:
            return None
        values.setdefault(pair["repeat"] if is_one else pair["seed"], []).append(value)
    return {run: float(np.mean(of)) for run, of in values.items()}
