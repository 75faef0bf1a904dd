"""A cluster's capacity, and the bound that no router beats on it: the documents of `capacity` and `bound`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kit.results import OwnDocument
from scenarios.metrics.prediction import Range


@dataclass(frozen=True)
class Oracle:
    """What a router that knows all arrivals beforehand could reach, estimated window by window.

    Attributes:
        accuracy: its mean accuracy over all images.
        peak_img_s: the highest rate of a window.
        overload_share: of the windows, in which more waited than even the narrowest tuple can serve.
    """

    window_s: float
    accuracy: float
    peak_img_s: float
    overload_share: float


@dataclass(frozen=True, kw_only=True)
class Bound(OwnDocument):
    """What no router can beat at a mean accuracy of at least `accuracy`: `slimsched.bound/2`.

    Latency and energies are the least that are possible at the scenario's mean rate; compare them with a run's numbers
    of the same names. Queues, loads, memory and partly filled batches are left out, so every real run is worse. The
    random draws of a single run (arrivals, times) may be above or below their means: let runs be long.

    Attributes:
        accuracy: that was asked for, or the least that any width tuple has.
        classes: if requests have classes, the floor of each, which is kept as well; 0 for none.
        rate_img_s: the scenario's mean rate, in images a second; None for a trace.
        capacity_img_s: the largest rate that can be sustained at this accuracy.
        latency_mean_s: the least mean latency at the rate; if the rate is None or beyond the capacity, of an image in
            an empty system.
        energy_dynamic_j: the least energy of computing an image; None if the rate is None or beyond the capacity.
        energy_per_image_j: the same with the image's share of what the devices draw when they do nothing.
        oracle: an estimate, not a bound, of a router that knows all arrivals in advance; None if the load is constant.
    """

    schema: str = "slimsched.bound/2"
    accuracy: float
    rate_img_s: float | None
    capacity_img_s: float
    latency_mean_s: float
    energy_dynamic_j: float | None = None
    energy_per_image_j: float | None = None
    oracle: Oracle | None = None
    classes: Mapping[str, float] = field(default_factory=dict)

    @property
    def oracle_accuracy(self) -> float | None:
        """The oracle's mean accuracy."""
        return None if self.oracle is None else self.oracle.accuracy

    def rows(self) -> list[dict[str, Any]]:
        """Return one row."""
        (row,) = super().rows()
        return [{**{name: row[name] for name in row if name != "oracle"}, "oracle_accuracy": self.oracle_accuracy}]


@dataclass(frozen=True)
class ClassCarried:
    """What was asked for a class of requests, and what it has at the sustained rate."""

    floor: float | None
    p99_limit_s: float | None
    p99_s: float | None
    accuracy: float | None


@dataclass(frozen=True)
class FallenRate:
    """A rate below the sustained one at which a run with another seed did not keep what is asked."""

    rate_img_s: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Capacity(OwnDocument):
    """The largest sustained rate, which is between `stable_img_s` and `unstable_img_s`: `slimsched.capacity/1`.

    Attributes:
        engine: that ran.
        workload: the kind of arrivals it was searched with.
        runs: simulations that this rests on.
        checks: runs at 0.97 and 0.9 of `stable_img_s` with two other seeds.
        fell: those that did not keep what is asked.
        floor, p99_limit_s: what else was asked of a rate than that it is stable; None for nothing.
        p99_s, accuracy, energy_per_image_j: at `stable_img_s`, means over the runs that sustain it.
        p99_range_s: there, over runs with other seeds: it holds the p99 of a further one with a chance of 90 %. None if
            no p99 was asked for, or a run had none.
        duration_s: of each run.
        classes: by name, if requests have classes: each must be kept what it is promised.
    """

    _left_out: ClassVar[tuple[str, ...]] = ("remarks", "duration_s")

    schema: str = "slimsched.capacity/1"
    engine: str
    router: str
    workload: str
    seeds: tuple[int, ...]
    stable_img_s: float
    unstable_img_s: float
    runs: int
    floor: float | None
    p99_limit_s: float | None
    p99_s: float | None
    accuracy: float | None
    energy_per_image_j: float | None
    duration_s: float
    p99_range_s: Range | None = None
    checks: int = 0
    fell: tuple[FallenRate, ...] = ()
    classes: Mapping[str, ClassCarried] = field(default_factory=dict)
