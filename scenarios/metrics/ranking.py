"""Which router wins, in simulation or on executors: the one rule, used by the terminal, the report and the pages.

A router that keeps the floor of accuracy and serves at least 99 % can win: the one with the lowest p99 latency does (or
energy an image, at a p99 within its limit, if the scenario tunes for that). A winner needs significance: over at least
`MIN_RUNS` runs the paired 95 % interval of its lead over each of the others must leave out that they are equal. All
routers not significantly different from the first tie with it.

It computes from finished documents alone (a comparison, a validation), independently of sentences and charts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np

from scenarios.metrics.catalogue import MEASURES, Measure
from scenarios.metrics.comparison import ComparisonDocument, accuracy_measure
from scenarios.metrics.fidelity import PairDocument, ValidationDocument, is_flagged, middle_load
from scenarios.metrics.result import Result
from scenarios.metrics.slo import SloDocument, has_floor
from scenarios.metrics.statistics import MeanInterval, PairedRatio, estimate, paired_ratio

MIN_RUNS: Final = 5  # of fewer a 95 % interval is hardly known: with three it is 2.2 times as wide as with many
P99, ENERGY, MEAN = (MEASURES[name] for name in ("latency_p99_s", "energy_per_image_j", "latency_mean_s"))

InWorld = Literal["simulated", "hardware"]


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

    def missed_by(self, one: RankedRouter) -> bool:
        """Return whether it breaks the floor, or a limit that comes with the objective."""
        keeps = has_floor(one.accuracy, self.floor)
        keeps = keeps and all(has_floor(one.class_accuracies[name], at) for name, at in self.class_floors.items())
        return not keeps or (self.p99_limit_s is not None and one.p99_s > self.p99_limit_s)


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
        """The same with the 95 % interval."""
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
        ranked = sorted(judged, key=lambda one: one.mean)
        missed = tuple(filter(promise.missed_by, ranked))
        return cls(promise, tuple(one for one in ranked if one not in missed), missed, tuple(left_out))

    @property
    def judged(self) -> tuple[RankedRouter, ...]:
        """All routers with known results."""
        return (*self.able, *self.missed)

    @property
    def is_open(self) -> bool:
        """Whether there are two that can win, and too few runs to decide between them."""
        return len(self.able) > 1 and min(self.able[0].lead(one)["runs"] for one in self.able[1:]) < MIN_RUNS

    @property
    def tied(self) -> tuple[RankedRouter, ...]:
        """All not distinguishable from the first one; without a floor, none that is less accurate."""
        alike = [one for one in self.able[1:] if not one.differs(self.able[0])]
        if self.promise.floor is not None or self.promise.class_floors:
            return tuple(alike)
        return tuple(one for one in alike if has_floor(one.accuracy, self.able[0].accuracy))

    @property
    def winner(self) -> RankedRouter | None:
        """None for a tie, after too few runs, and if fewer than two can win."""
        return self.able[0] if len(self.able) > 1 and not self.tied and not self.is_open else None

    @property
    def first(self) -> tuple[str, ...]:
        """The routers that have won, or tie: the best, and those not distinguishable from it."""
        return tuple(one.router for one in (*self.able[:1], *self.tied))

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
            judged.append(RankedRouter(row["router"], accuracy, p99_s, by_seed, _of_classes(row, axis)))
    return Ranking.by(promise, judged, left_out)


def _of_classes(row: Mapping[str, Any], axis: Measure) -> dict[str, float]:
    """Return the mean accuracy of each class; 0 of one of which no request was completed."""
    return {name: axis.of(each)["mean"] or 0.0 for name, each in row.get("classes", {}).items()}


def validated(
    validation: ValidationDocument,
    world: InWorld,
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
        promise = Promise.of(pairs[0]["hardware"]["slo"] if pairs else None)
    judged, left_out = [], []
    for row in (row for row in validation["rows"] if row["load"] == load):
        its_pairs = [pair for pair in pairs if pair["router"] == row["router"]]
        values, p99_s = by_run(its_pairs, world, of or promise.objective), by_run(its_pairs, world, P99)
        accuracy = _accuracy(pairs, its_pairs, world, (long_run or {}).get(row["router"]))
        if is_flagged(row["served"]) or values is None or p99_s is None or accuracy is None:
            left_out.append(row["router"])
        else:
            of_classes = _class_accuracies([pair[world] for pair in its_pairs])
            p99_mean_s = float(np.mean(list(p99_s.values())))
            judged.append(RankedRouter(row["router"], accuracy, p99_mean_s, values, of_classes))
    return Ranking.by(promise, judged, left_out)


def _class_accuracies(runs: Sequence[Result]) -> dict[str, float]:
    """Return the same as `_of_classes`, of those runs in which a request of the class was completed."""
    axis = MEASURES["expected_accuracy"]
    of_class = {name: [axis.of(run["classes"][name]) for run in runs] for name in runs[0].get("classes", {})}
    known = {name: [each for each in values if each is not None] for name, values in of_class.items()}
    return {name: float(np.mean(values)) if values else 0.0 for name, values in known.items()}


def _accuracy(
    pairs: Sequence[PairDocument], own: Sequence[PairDocument], world: InWorld, long_run: float | None
) -> float | None:
    is_expected = all(pair[each]["expected_accuracy"] is not None for pair in pairs for each in (world, "simulated"))
    axis = MEASURES["expected_accuracy" if is_expected else "accuracy"]
    here, simulated = (by_run(own, each, axis) for each in (world, "simulated"))
    if here is None:
        return None
    reached = float(np.mean(list(here.values())))
    if long_run is None or simulated is None:
        return reached
    return long_run + reached - float(np.mean(list(simulated.values())))


def long_run_accuracies(comparison: ComparisonDocument | None) -> dict[str, float | None]:
    """Return, by router, the long-run accuracy as measured by a comparison's runs."""
    rows: Sequence[Mapping[str, Any]] = [] if comparison is None else comparison["rows"]
    return {row["router"]: MEASURES["expected_accuracy"].of(row)["mean"] for row in rows}


def by_run(pairs: Sequence[PairDocument], world: InWorld, measure: Measure) -> dict[int, float] | None:
    """Return a router's values, or None if one is missing.

    Repeats of one trace are not independent: over seeds, each is the mean of its repeats; of one seed, by repeat.
    """
    is_one = len({pair["seed"] for pair in pairs}) == 1
    values: dict[int, list[float]] = {}
    for pair in pairs:
        if (value := measure.of(pair[world])) is None:
            return None
        values.setdefault(pair["repeat"] if is_one else pair["seed"], []).append(value)
    return {run: float(np.mean(of)) for run, of in values.items()}
