"""The documents of `capacity`, `bound`, `plan` and `suite`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import msgspec
import numpy as np

from hw.router.ray_cluster import HostFacts
from kit.documents import OwnDocument
from scenarios.metrics.failure_signs import LIMIT
from scenarios.metrics.statistics import MeanInterval, PairedRatio, Range, paired_ratio
from sim.device_profile import Link

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
class Sustained:
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

    def meets(self, other: Sustained | None) -> bool:
        """Check whether the ranges overlap: the two are not distinguishable."""
        return other is not None and self.high_img_s > other.low_img_s and other.high_img_s > self.low_img_s


@dataclass(frozen=True)
class PlannedRouter:
    """One router.

    Attributes:
        role: the two kinds of plain replication have each image stay on one server, at one width tuple.
        rule: of one that has neither a name nor a file: what its file would hold.
        outcome: under the scenario's own load.
        sustained: None if no rate keeps what is asked.
    """

    router: str
    role: Role
    rule: Mapping[str, Any] | None
    outcome: Outcome
    sustained: Sustained | None


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
        sustained: with the device lost; None for more load, which does not change it, or without a sustained rate.
    """

    what: str
    outcome: Outcome
    sustained: Sustained | None


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
        nearest: without a choice, the router that comes nearest under the scenario's load: of those that keep the
            floor, if there are any, the one that serves most (up to 99 %), and of these the lowest p99.
        tied: those not distinguishable from the one that sustains the highest rate, without the choice.
        fastest: of those that keep floor and limit, the one with the lowest p99 under the scenario's load.
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
    fastest: str | None
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
        return 1 if self.choice is None else 0

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a router."""
        return [
            {
                "router": router.router,
                "role": router.role,
                "keeps": router.outcome.keeps,
                "latency_p99_s": router.outcome.latency_p99_s["mean"],
                "accuracy": router.outcome.accuracy["mean"],
                "energy_per_image_j": router.outcome.energy_per_image_j["mean"],
                "sustained_img_s": router.sustained and router.sustained.mean_img_s,
            }
            for router in self.routers
        ]


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


Figure = Literal["mean_s", "p99_s"]


@dataclass(frozen=True, slots=True)
class Run:
    """What a router has in one run: mean accuracy by the table, latencies, energy an image, share that is unserved."""

    seed: int
    accuracy: float
    mean_s: float
    p99_s: float
    image_j: float
    unserved: float


@dataclass(frozen=True, slots=True)
class Equal:
    """A router's runs of one case, at the dial where its mean accuracy is the floor.

    Attributes:
        by: its dial; None if it has none, and is as it is.
        is_kept: whether it has the floor, and at most `CLOSE` above it if its dial allows.
    """

    by: float | None
    is_kept: bool
    runs: tuple[Run, ...]

    def mean(self, name: str) -> float:
        """Return the mean of a figure of `Run`, over its runs."""
        return float(np.mean([getattr(run, name) for run in self.runs]))

    @property
    def counts(self) -> bool:
        """Whether it may be compared: it keeps the floor, and serves."""
        return self.is_kept and self.mean("unserved") <= LIMIT

    def against(self, other: Equal, figure: Figure) -> PairedRatio:
        """Return the ratio of a figure to another router's, seed by seed."""
        return paired_ratio(*([getattr(run, figure) for run in each.runs] for each in (self, other)))


@dataclass(frozen=True, slots=True)
class Case:
    """One case of the suite.

    Attributes:
        floor: mean accuracy that every router has.
        bound_s: the mean latency that no router can beat there.
        routers: those built into the suite, and those that entered, by name.
    """

    name: str
    floor: float
    bound_s: float
    routers: Mapping[str, Equal]

    def best(self, among: Sequence[str], figure: Figure = "p99_s") -> str | None:
        """Return the router with the least mean figure of those that count."""
        able = [name for name in among if name in self.routers and self.routers[name].counts]
        return min(able, key=lambda name: self.routers[name].mean(figure), default=None)


@dataclass(frozen=True, kw_only=True)
class SuiteScore(OwnDocument):
    """What `slimsched suite` found: `slimsched.suite-score/1`.

    Attributes:
        published: routers whose figures ship with the suite; entrants: those that were run now.
    """

    schema: str = "slimsched.suite-score/1"
    published: tuple[str, ...]
    entrants: tuple[str, ...]
    cases: tuple[Case, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row a case, router and run."""
        return rows_of(self.cases)


def rows_of(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return a row a case, router and run, as the suite's file of published figures has them."""
    return [
        {
            "case": case.name, "floor": case.floor, "bound_s": case.bound_s, "router": name, "dial": equal.by,
            "is_kept": equal.is_kept, **{field: getattr(run, field) for field in Run.__slots__},
        }
        for case in cases
        for name, equal in case.routers.items()
        for run in equal.runs
    ]  # fmt: skip


def cases_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Case, ...]:
    """Return the cases of `rows_of`'s rows."""
    cases: dict[str, Case] = {}
    for row in rows:
        case = cases.setdefault(row["case"], Case(row["case"], row["floor"], row["bound_s"], {}))
        run = Run(**{field: row[field] for field in Run.__slots__})
        before = case.routers.get(row["router"])
        equal = Equal(row["dial"], row["is_kept"], (*(before.runs if before else ()), run))
        cases[case.name] = Case(case.name, case.floor, case.bound_s, {**case.routers, row["router"]: equal})
    return tuple(cases.values())


LINKS_SCHEMA: Final = "slimsched.links/1"
CHECK_SCHEMA: Final = "slimsched.cluster/1"
SIZES: Final = (256, 4096, 65536, 1 << 20)  # bytes of a move, as a calibration on one host has them


@dataclass(frozen=True, slots=True)
class HostClock:
    """How far a host's clock is ahead of the router's, and how wrong that may be."""

    host: str
    offset_s: float
    error_s: float


@dataclass(frozen=True, slots=True)
class HostLink:
    """From one host to another: what a move takes, its command and its answer included."""

    source: str
    destination: str
    latency_s: float
    bandwidth_bytes_s: float

    @property
    def link(self) -> Link:
        """The link, as a profile has it."""
        return Link(latency_s=self.latency_s, bandwidth_bytes_s=self.bandwidth_bytes_s)


@dataclass(frozen=True, slots=True)
class ClusterMeasurements:
    """All of a cluster: what its file has."""

    schema: str = field(default=LINKS_SCHEMA, kw_only=True)
    provenance: str = field(default="measured", kw_only=True)
    clocks: tuple[HostClock, ...]
    links: tuple[HostLink, ...]

    def into(self, host: str) -> Link:
        """Return the link that brings activations to a host: the slowest from other hosts, or its own if alone."""
        incoming = [each.link for each in self.links if each.destination == host and each.source != host]
        incoming = incoming or [each.link for each in self.links if each.destination == host]
        return max(incoming, key=lambda link: link.latency_s + SIZES[-1] / link.bandwidth_bytes_s)


@dataclass(frozen=True, slots=True)
class CheckedHost:
    """One host.

    Attributes:
        servers: of the scenario, that are there.
        facts: None if it does not answer, or is not there.
        problems: what does not fit, each with the remedy.
    """

    host: str
    servers: tuple[str, ...]
    facts: HostFacts | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckedCluster:
    """All hosts that the scenario names, others that are there, and the links between those that answered."""

    hosts: tuple[CheckedHost, ...]
    others: tuple[str, ...]
    measured: ClusterMeasurements | None

    @property
    def fits(self) -> bool:
        """Whether nothing prevents a run."""
        return not any(host.problems for host in self.hosts)

    def document(self) -> dict[str, Any]:
        """Return the document that `--json` writes."""
        hosts, links = (None if part is None else msgspec.to_builtins(part) for part in (self.hosts, self.measured))
        return {"schema": CHECK_SCHEMA, "hosts": hosts, "others": list(self.others), "fits": self.fits, "links": links}
