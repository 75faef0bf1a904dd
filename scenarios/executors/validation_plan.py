"""The devices' actual slowdown for paired simulations, and the runs of a validation, their rates and order.

Slowdown: how fast a virtual machine's core is depends on its host's other tenants. Like the arrivals, this comes from
outside: a simulation that draws it at random is compared with another run than the one that was made. Workers on CPUs
time a fixed piece of work between their batches (`hw.host_resources`); the profile has its time at full speed.

`Campaign` receives two sides, simulation and executors, as functions: each takes a `PlannedRun` and returns its result
and record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from kit.errors import InputError, WorkError
from policies.run_records import RunRecord, ServerClock
from policies.vocabulary import NS_PER_S
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.files.scenario_keys import Scenario, ValidateSection
from scenarios.metrics.fidelity import (
    GROWTH_OF_SATURATION,
    BackgroundShares,
    ClockRow,
    Kind,
    Sides,
    ValidationRun,
    reference_img_s,
)
from scenarios.metrics.run_result import Result
from sim.device_profile import Profile
from sim.device_tables import DeviceTables

SMOOTHED = 3  # readings; a single long one was interrupted
FASTEST, SLOWEST = 0.9, 5.0  # times full speed: what is beyond was not a reading of the slowdown

Changes = tuple[tuple[int, float], ...]


def observed_slowdowns(record: RunRecord, devices: Sequence[DeviceTables], owners: Sequence[int]) -> dict[int, Changes]:
    """Return, by device, (when, how many times as long things take from then on); of those that were read.

    Args:
        owners: for each server the index of its device.
    """
    by_server = {}
    for index, tables in enumerate(devices):
        readings = sorted((at, read_s) for server, at, read_s in record.references if owners[server] == index)
        changes = _changes(readings, tables.profile)
        if changes:
            by_server[index] = changes
    return by_server


def mean_slowdown(changes: Changes, until_ns: int) -> float:
    """Return the average over the time from the start of a run."""
    times = [at for at, _ in changes] + [max(until_ns, changes[-1][0] + 1)]
    lasted = np.diff(np.asarray(times, dtype=np.float64))
    return float(np.average([factor for _, factor in changes], weights=lasted))


def _changes(readings: Sequence[tuple[int, float]], profile: Profile) -> Changes:
    """Return the changes: each reading holds from half-way after the one before; the first one from the start."""
    slowdown = profile.slowdown
    if slowdown is None or not slowdown.reference_s or len(readings) < SMOOTHED:
        return ()
    times = np.asarray([at for at, _ in readings], dtype=np.float64)
    slowdowns = np.asarray([read_s for _, read_s in readings]) / slowdown.reference_s
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(slowdowns, SMOOTHED // 2, mode="edge"), SMOOTHED)
    factors = np.clip(np.median(windows, axis=1) ** slowdown.reference_exponent, FASTEST, SLOWEST)
    starts = np.concatenate([[0.0], (times[1:] + times[:-1]) / 2])
    return tuple((int(start), float(factor)) for start, factor in zip(starts, factors, strict=True))


# ------------------------------------------------------------------------------------------------------------- the runs


OVERLOAD = 1.25  # the next try of a saturated run, in times of the last one's throughput
_MAX_GROWTH = 0.3  # of its arrivals: a backlog that grows by more means that the overload was needlessly high
_ATTEMPTS = 6


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run that is to be made.

    `scale` multiplies the workload's own rate; a saturated run is cut at its end; of a probe only its latencies or
    its backlog are asked. `slowdowns` are those that the devices had in the executor run of which a simulated one
    is the paired simulation.
    """

    kind: Kind
    router: str
    load: float | None
    rate_img_s: float | None
    scale: float
    seed: int
    repeat: int = 0
    is_probe: bool = False
    slowdowns: Mapping[int, Changes] = field(default_factory=dict)

    @property
    def is_calm(self) -> bool:
        """Whether the run has no planned faults, since it measures the devices' limits."""
        return self.kind != "pair"

    @property
    def place(self) -> str:
        """The run's place among those of its router, in words."""
        measure = self.kind if self.kind != "pair" else "" if self.load is None else f"load {self.load:g}"
        return ", ".join(filter(None, [measure, f"seed {self.seed}", f"repeat {self.repeat}" if self.repeat else ""]))


class PlannedPair(NamedTuple):
    """All repeats of one router, load and seed, in simulation and on executors."""

    router: str
    load: float | None
    seed: int
    rate_img_s: float | None


Ran = tuple[Result, RunRecord]
Side = Callable[[PlannedRun], Ran]


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A pair of runs that has been made now; `simulated` is None if an earlier repeat has its record."""

    run: ValidationRun
    planned: PlannedRun
    executors: RunRecord
    simulated: RunRecord | None


@dataclass(frozen=True)
class ValidationPlan:
    """What is to be validated.

    Attributes:
        routers: their names in results.
        section: of the scenario: seeds, loads, repeats, and whether to saturate.
        base_img_s: the workload's own mean rate; None for a trace.
        capacity_img_s: the cluster's estimated capacity, at which the search for an overload begins.
        warmup_s, duration_s: the window of each run.
    """

    routers: tuple[str, ...]
    section: ValidateSection
    base_img_s: float | None
    capacity_img_s: float
    warmup_s: float
    duration_s: float

    @classmethod
    def of(cls, side: Experiment, routers: Sequence[str], section: ValidateSection) -> ValidationPlan:
        """Plan what a scenario's own section asks for.

        Raises:
            InputError: a trace is to be run at given loads, or nothing is left after the warm-up.
        """
        duration_s, warmup_s = require_plan(side.scenario, section)
        return cls(tuple(routers), section, side.rate_img_s, side.capacity_img_s, warmup_s, duration_s)

    @property
    def is_saturated(self) -> bool:
        """Whether each router is run above capacity, too: loads are shares of that."""
        return self.section.saturate or bool(self.section.loads)

    @property
    def hardware_runs(self) -> int:
        """The number of runs on executors."""
        section = self.section
        pairs = len(section.seeds) * section.repeats * max(1, len(section.loads))
        return len(self.routers) * (pairs + 1 if self.is_saturated else pairs)

    def pairs(self) -> list[PlannedPair]:
        """Return those at the workload's own rate."""
        seeds, rate_img_s = self.section.seeds, self.base_img_s
        return [PlannedPair(router, None, seed, rate_img_s) for router in self.routers for seed in seeds]

    def scale_of(self, rate_img_s: float | None) -> float:
        """Return what multiplies the workload's own rate to give this one."""
        return 1.0 if rate_img_s is None or self.base_img_s is None else rate_img_s / self.base_img_s

    def in_order(self, runs: Iterable[ValidationRun]) -> list[ValidationRun]:
        """Return runs in the order of an undisturbed campaign, so that a run made again has its place."""
        kinds: tuple[Kind, ...] = ("saturated", "pair")

        def position(run: ValidationRun) -> tuple[int, ...]:
            load = 0 if run["load"] is None else self.section.loads.index(run["load"])
            seed, router = self.section.seeds.index(run["seed"]), self.routers.index(run["router"])
            return kinds.index(run["kind"]), run["repeat"], seed, load, router

        return sorted(runs, key=position)


def require_plan(scenario: Scenario, section: ValidateSection) -> tuple[float, float]:
    """Return how long each run's images arrive, and for how long they do not count; it needs no profile.

    Raises:
        InputError: a trace is to be run at given loads, or nothing would be left to count.
    """
    if (section.loads or section.saturate) and scenario.workload.base_img_s(1.0) is None:
        key = "validate.loads" if section.loads else "validate.saturate"
        problem = "a trace has no rate to set; leave it out, or take another workload (poisson, mmpp ...)"
        raise InputError(scenario.name, key, problem)
    duration_s = section.duration_s or scenario.duration_s
    warmup_s = scenario.warmup_s if section.warmup_s is None else section.warmup_s
    if warmup_s >= duration_s:
        key = "validate.duration_s" if section.warmup_s is None else "validate.warmup_s"
        problem = f"the warm-up ({warmup_s:g} s) must be shorter than the run ({duration_s:g} s)"
        raise InputError(scenario.name, key, problem)
    return duration_s, warmup_s


class Campaign:
    """Every run of a plan; iterate over `carry_out` and keep what it yields.

    Args:
        finished: what an earlier try has left; those runs are not made again.
        slowdowns_of: the devices' slowdowns in a executor run, if they were read; its paired simulation replays them.
    """

    def __init__(
        self,
        plan: ValidationPlan,
        simulation: Side,
        executors: Side,
        finished: Sequence[ValidationRun] = (),
        slowdowns_of: Callable[[RunRecord], Mapping[int, Changes]] = lambda _: {},
    ) -> None:
        self.plan = plan
        self._slowdowns_of = slowdowns_of
        self.runs: list[ValidationRun] = []
        self._simulation = simulation
        self._executors = executors
        self._earlier: dict[tuple[object, ...], ValidationRun] = {
            (run["kind"], run["router"], run["load"], run["seed"], run["repeat"]): run for run in finished
        }
        self._paired: dict[tuple[object, ...], Result] = {}

    def carry_out(self) -> Iterator[FinishedRun]:
        """Yield saturated runs first, then repeats (outermost, so that routers alternate)."""
        if self.plan.is_saturated:
            for router in self.plan.routers:
                yield from self._saturated(router)
        rates = self._rates()
        for repeat in range(self.plan.section.repeats):
            for seed in self.plan.section.seeds:
                for load, rate_img_s in rates:
                    for router in self.plan.routers:
                        scale = self.plan.scale_of(rate_img_s)
                        yield from self._make(PlannedRun("pair", router, load, rate_img_s, scale, seed, repeat))

    # ----------------------------------------------------------------------------------------------------- the rates

    def _rates(self) -> list[tuple[float | None, float | None]]:
        """Return (load, rate); the same for every router, so that all see the same arrivals."""
        if not self.plan.section.loads:
            return [(None, self.plan.base_img_s)]
        reference = reference_img_s(run for run in self.runs if run["kind"] == "saturated")
        if not reference:
            raise WorkError("a saturated run completed no image on executors: no capacity to take shares of")
        return [(load, load * reference) for load in self.plan.section.loads]

    def _saturated(self, router: str) -> Iterator[FinishedRun]:
        """Run at the rate that saturates executors, searched for from the one that saturates the simulation."""
        seed, rate_img_s = self.plan.section.seeds[0], 2 * self.plan.capacity_img_s
        planned = PlannedRun("saturated", router, None, rate_img_s, self.plan.scale_of(rate_img_s), seed)
        earlier = self._earlier.get((*_key_of(planned), 0))
        if earlier is not None:
            self._keep(earlier)
            return
        probe, _ = self._saturate(self._simulation, replace(planned, is_probe=True))
        planned, (executors, record) = self._saturate(self._executors, replace(probe, is_probe=False))
        yield self._finish(planned, executors, record)

    def _saturate(self, side: Side, planned: PlannedRun) -> tuple[PlannedRun, Ran]:
        """Run the planned run at a rate at which the backlog grows, but no more than it must.

        Far above capacity the images that completed are fewer: first segments displace last ones. If no try is in the
        band, the one with the highest throughput is taken, saturated or not.
        """
        low, high = 0.0, inf
        tries: list[tuple[PlannedRun, Ran]] = []
        for _ in range(_ATTEMPTS):
            ran = side(planned)
            if not ran[0]["images"]["completed"]:
                where = "executors" if ran[0]["mode"] == "executors" else "the simulation"
                problem = f"{where} served nothing in {self.plan.duration_s:g} s at {planned.rate_img_s:g} images/s"
                remedy = "give validate.duration_s more time, or see its failures"
                raise WorkError(f"{planned.router}: {problem}; {remedy}")
            tries.append((planned, ran))
            rate_img_s, growth = planned.rate_img_s or 0.0, self._backlog_growth(ran[1])
            if GROWTH_OF_SATURATION <= growth <= _MAX_GROWTH:
                return planned, ran
            if growth < GROWTH_OF_SATURATION:
                low, guess = rate_img_s, rate_img_s * OVERLOAD
            else:
                high, guess = rate_img_s, rate_img_s * (1 - growth) * OVERLOAD
            if not low < guess < high:
                guess = sqrt(low * high) if low else high / 2
            planned = replace(planned, rate_img_s=guess, scale=self.plan.scale_of(guess))
        return max(tries, key=lambda attempt: attempt[1][0]["throughput_img_s"])

    def _backlog_growth(self, record: RunRecord) -> float:
        """Return by how much the backlog grew over the window, as a share of what arrived in it."""
        start_ns, end_ns = self.plan.warmup_s * NS_PER_S, self.plan.duration_s * NS_PER_S
        arrived = sum(start_ns < request.arrived_ns <= end_ns for request in record.requests)
        finished = sum(
            request.status != "in_flight" and start_ns < request.finished_ns <= end_ns for request in record.requests
        )
        return (arrived - finished) / arrived if arrived else 0.0

    # ----------------------------------------------------------------------------------------------------- one run

    def _make(self, planned: PlannedRun) -> Iterator[FinishedRun]:
        """Make a executor run and its paired simulation, unless an earlier try has them."""
        earlier = self._earlier.get((*_key_of(planned), planned.repeat))
        if earlier is not None:
            self._keep(earlier)
        else:
            yield self._finish(planned, *self._executors(planned))

    def _keep(self, run: ValidationRun) -> None:
        self._paired[run["kind"], run["router"], run["load"], run["seed"]] = run["simulated"]
        self.runs.append(run)

    def _finish(self, planned: PlannedRun, executors: Result, record: RunRecord) -> FinishedRun:
        """Pair a executor run with its simulation.

        One paired simulation serves all repeats if the devices' slowdowns are not known.
        """
        planned = replace(planned, slowdowns=self._slowdowns_of(record))
        paired, paired_record = (None if planned.slowdowns else self._paired.get(_key_of(planned))), None
        if paired is None:
            paired, paired_record = self._simulation(planned)
        growth: Sides[float] | None = None
        if planned.kind == "saturated":
            assert paired_record is not None, "there is one saturated run of a router"
            growth = Sides(simulated=self._backlog_growth(paired_record), executors=self._backlog_growth(record))
        load = record.background_load
        run = ValidationRun(
            kind=planned.kind,
            router=executors["router"],
            load=planned.load,
            rate_img_s=planned.rate_img_s,
            seed=executors["seed"],
            repeat=planned.repeat,
            simulated=paired,
            executors=executors,
            backlog_growth=growth,
            slowdown=_mean_of(planned.slowdowns, record.ended_ns),
            background_load=None if load is None else BackgroundShares(programs=load.programs, stolen=load.stolen),
            clocks=[_clock_row(record, clock) for clock in record.clocks],
        )
        self._keep(run)
        return FinishedRun(run, planned, record, paired_record if planned.repeat == 0 else None)


def _clock_row(record: RunRecord, clock: ServerClock) -> ClockRow:
    name = record.servers[clock.server].name
    return ClockRow(server=name, offset_s=clock.offset_ns / 1e9, error_s=clock.error_ns / 1e9, jumps=clock.jumps)


def _mean_of(slowdowns: Mapping[int, Changes], until_ns: int) -> float | None:
    return (
        sum(mean_slowdown(changes, until_ns) for changes in slowdowns.values()) / len(slowdowns) if slowdowns else None
    )


def _key_of(planned: PlannedRun) -> tuple[object, ...]:
    """Return what a planned run shares with its paired simulation."""
    return (planned.kind, planned.router, planned.load, planned.seed)
