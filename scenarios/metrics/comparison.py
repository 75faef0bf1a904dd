"""Results set side by side: routers against a baseline over seeds.

It computes from finished results alone, however they were made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from hw.networks.accuracy import MEASURED, PAPER, AccuracyProvenance
from kit.errors import InputError, nearest
from policies.vocabulary import Provenance
from scenarios.metrics.catalogue import COSTS, MEASURES, PAIRED, Measure
from scenarios.metrics.pareto import ParetoPoint, contributions, hypervolume, pareto_front, share_covered, worst_corner
from scenarios.metrics.result import Engine, Result, charged_decisions
from scenarios.metrics.served import leaves_many, served
from scenarios.metrics.signatures import tally
from scenarios.metrics.slo import SloDocument
from scenarios.metrics.statistics import change_pct, estimate, paired_difference, paired_ratio

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
    """What the compared routers cover of one trade-off, down from a reference; see `scenarios.metrics.pareto`."""

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
        accuracy_provenance=_weakest_accuracy(results),
        engine=results[0]["engine"],
        baseline=baseline if base else None,
        rows=rows,
        paired=_paired(by_router, baseline) if base else None,
        pareto=_pareto(rows, points, serving, bounds or {}),
        hypervolume={cost: _hypervolume(of, (references or {}).get(cost)) for cost, of in serving.items() if of},
        worst=[_worst(router, runs) for router, runs in by_router.items()],
        emulated_slowdowns=sorted({k for result in results for k in result["emulated_slowdowns"]}),
        own_decision_s=charged_decisions(results),
        slo=results[0]["slo"],
        learned=list(learned),
        unreliable=list(unreliable),
        equal=equal,
    )


def _weakest_accuracy(results: Sequence[Result]) -> AccuracyProvenance:
    return PAPER if any(result["accuracy_provenance"] == PAPER for result in results) else MEASURED


def _row(router: str, runs: Sequence[Result], base: Mapping[int, Result]) -> dict[str, Any]:
    row: dict[str, Any] = {"router": router, "seeds": [run["seed"] for run in runs]}
    for key in _AVERAGED:
        row[key] = _fold([run[key] for run in runs])  # type: ignore[literal-required]
    if "classes" in runs[0]:
        row["classes"] = _fold([run["classes"] for run in runs])
    paired = [(run, base[run["seed"]]) for run in runs if run["seed"] in base]
    for key, measure in _CHANGES.items():
        row[key] = estimate([change_pct(measure.of(run), measure.of(other)) for run, other in paired])
    shares = served(runs)
    row["failures"], row["is_flagged"] = shares["failures"], leaves_many(shares)
    row["by_seed"] = {measure.name: [measure.of(run) for run in runs] for measure in PAIRED}
    row["signatures"] = tally(run["signatures"] for run in runs)
    return row


def _fold(values: Sequence[Any]) -> Any:
    """Combine the same numbers of several runs, leaf by leaf."""
    if isinstance(values[0], Mapping):
        return {key: _fold([value[key] for value in values]) for key in values[0]}
    return estimate(values)


# ---------------------------------------------------------------------------------------------------- pairs and worst


def _paired(by_router: Mapping[str, Sequence[Result]], baseline: str) -> Paired:
    others = {result["seed"]: result for result in by_router[baseline]}
    rows: list[dict[str, Any]] = []
    for router, runs in by_router.items():
        common = [run for run in runs if run["seed"] in others]
        row: dict[str, Any] = {"router": router, "seeds": [run["seed"] for run in common]}
        for measure in PAIRED:
            both = [[measure.of(run) for run in each] for each in (common, [others[run["seed"]] for run in common])]
            row[measure.name] = {**paired_difference(*both), "ratio": paired_ratio(*both)}
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
    at = bisect_right([known for known, _ in curve], accuracy + 10**-ACCURACY_DIGITS)
    return curve[at - 1][1] if at else None


def _hypervolume(points: Sequence[ParetoPoint], reference: ParetoPoint | None) -> Hypervolume:
    corner = reference or worst_corner(points)
    return Hypervolume(
        reference={"accuracy": corner.accuracy, "cost": corner.cost},
        area=hypervolume(points, corner),
        share=share_covered(points, corner),
        contributions=contributions(points, corner),
    )
