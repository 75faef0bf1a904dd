"""What to run where, and the capacity with it: the document of `slimsched plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Literal

from kit.results import OwnDocument
from scenarios.metrics.prediction import Range
from scenarios.metrics.statistics import MeanInterval

Role = Literal["candidate", "full width", "single width"]


@dataclass(frozen=True)
class Outcome:
    """What a router reaches under one load, over the seeds.

    Attributes:
        unserved: mean share of the images.
        keeps: whether it serves 99 %, and its means keep floor and limit.
    """

    latency_p99_s: MeanInterval
    accuracy: MeanInterval
    energy_per_image_j: MeanInterval
    unserved: float
    keeps: bool


@dataclass(frozen=True)
class Carried:
    """The largest rate at which floor and limit are kept, searched with each seed on its own.

    Attributes:
        low_img_s: sustained with every seed; high_img_s: with none; mean_img_s: of the largest sustained ones.
        accuracy, energy_per_image_j: there, means over the seeds.
    """

    low_img_s: float
    mean_img_s: float
    high_img_s: float
    accuracy: float
    energy_per_image_j: float

    def meets(self, other: Carried | None) -> bool:
        """Check whether the ranges overlap: the two are not distinguishable."""
        return other is not None and self.high_img_s > other.low_img_s and other.high_img_s > self.low_img_s


@dataclass(frozen=True)
class PlannedRouter:
    """One router.

    Attributes:
        role: the two kinds of plain replication have each image stay on one server, at one width tuple.
        rule: of one that has neither a name nor a file: what its file would hold.
        outcome: under the scenario's own load.
        carried: None if no rate keeps what is asked.
    """

    router: str
    role: Role
    rule: Mapping[str, Any] | None
    outcome: Outcome
    carried: Carried | None


@dataclass(frozen=True)
class PlannedServer:
    """What the chosen router has one server do, in one run of the first seed.

    Attributes:
        share: of all passes of an image through a segment.
        mean_batch: images.
        widths: for each segment, the share of its passes here that each width has; empty without passes here.
        names: of a family's members, by width; empty if a width is called by its number.
        working_set: for each segment the widths of the instances that routers have it hold; empty if memory holds
            all full-width ones.
    """

    server: str
    device: str
    share: float
    utilization: float
    mean_power_w: float
    mean_batch: float
    widths: tuple[Mapping[float, float], ...]
    names: Mapping[float, str] = field(default_factory=dict)
    working_set: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Change:
    """What the chosen router reaches after a change: a larger load, or a device lost for the whole run.

    Attributes:
        what: `load`, or the lost server's name (servers that share its device are lost, too).
        carried: with the device lost; None for more load, which does not change it, or without a sustained rate.
    """

    what: str
    outcome: Outcome
    carried: Carried | None


@dataclass(frozen=True, kw_only=True)
class Plan(OwnDocument):
    """What to run where: `slimsched.plan/1`.

    Attributes:
        floor, p99_limit_s: what is to be kept.
        is_floor_named: whether the scenario names that floor; if not, it is the untuned ladder's accuracy.
        rate_img_s: the scenario's mean rate; None for a trace.
        choice: the router to run; None if none keeps floor and limit under the scenario's load and sustains a rate. Of
            those that do, it sustains the highest rate, or uses the fewest joules if `tuning.objective` is energy; of
            those that are not distinguishable it has the lowest p99. It is never `random`.
        nearest: if there is no choice, the router that comes nearest under the scenario's load: of those that keep the
            floor, if there are any, the one that serves most (up to 99 %), and of these the lowest p99.
        tied: those not distinguishable from the one that sustains the highest rate, without the choice.
        quickest: of those that keep floor and limit, the one with the lowest p99 under the scenario's load.
        p99_range_s: of the choice, or of the nearest, under the scenario's load, over runs with other seeds: it holds
            the p99 of a further one with a chance of 90 %. None if a run completed nothing.
        routers: all that were tried, full width and the best single width among them.
        servers: what the choice has each server do.
        changes: what ten more percent of load, and the loss of the fastest device, do to the choice.
        unmade: routers of the scenario that were not tried, because its run has not made them yet.
        provenance, accuracy_provenance: of what all rests on.
        assumed: parts of the profiles that are not measured, each with its origin.
        unreliable: the servers whose calibration stayed disturbed.
        trusted: what real runs in the run folder show of the simulation, in lines; empty if there are none.
        file: the path of the choice's rule; None if it has a name or a file already.
        commands: what to type to continue with the choice.
    """

    _left_out: ClassVar[tuple[str, ...]] = ("remarks", "duration_s", "file", "commands")

    schema: str = "slimsched.plan/1"
    scenario: str
    engine: str
    seeds: tuple[int, ...]
    duration_s: float
    floor: float | None
    is_floor_named: bool
    p99_limit_s: float | None
    rate_img_s: float | None
    provenance: str
    accuracy_provenance: str
    assumed: Mapping[str, str]
    choice: str | None
    tied: tuple[str, ...]
    nearest: str | None
    quickest: str | None
    p99_range_s: Range | None
    routers: tuple[PlannedRouter, ...]
    servers: tuple[PlannedServer, ...]
    changes: tuple[Change, ...]
    unmade: tuple[str, ...]
    unreliable: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    file: Path | None = None
    commands: tuple[str, ...] = ()

    def of(self, router: str | None) -> PlannedRouter | None:
        """Return that router; None if it was not tried."""
        return next((each for each in self.routers if each.router == router), None)

    @property
    def members(self) -> dict[str, float]:
        """The share of the passes of each member of a family, the largest first; empty for a slimmable network."""
        shares: dict[str, float] = {}
        for server in self.servers:
            for width, share in server.widths[0].items() if server.names else ():
                name = server.names[width]
                shares[name] = shares.get(name, 0.0) + server.share * share
        return dict(sorted(shares.items(), key=itemgetter(1), reverse=True))

    @property
    def exit_code(self) -> int:
        """1 if nothing keeps what is asked."""
        return int(self.choice is None)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a router."""
        return [
            {
                "router": each.router,
                "role": each.role,
                "keeps": each.outcome.keeps,
                "latency_p99_s": each.outcome.latency_p99_s["mean"],
                "accuracy": each.outcome.accuracy["mean"],
                "energy_per_image_j": each.outcome.energy_per_image_j["mean"],
                "carried_img_s": each.carried and each.carried.mean_img_s,
            }
            for each in self.routers
        ]
