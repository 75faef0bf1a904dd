"""What serving costs beyond forward passes, and what routers' decisions take, measured by short runs here.

Costs of serving: a pass in a calibration loop finds its caches warm; a served batch does not, and micro-batches and
requests travel between processes that share cores. These costs are this host's, so `measure_serving` measures them on
it, with a router (`random`) and a seed that no reported run uses. They are written to the profiles:

    router_host            what the router's process does for a micro-batch and for each of its images, sent and
    returned handover               from that process to a server's, and back, if no pass runs on the device
    dispatch_s             within a server's process, command to pass, and pass end to the scheduler; likewise
    busy_serving           the same ways and dispatches if some pass runs
    the link's latency     of a micro-batch from the router, departure to arrival, less its bytes at the link's rate and
                           the handover
    fetch_s                the same of what another server has, with its bytes: its process is asked, and answers
    served_extra_...       what a served pass takes more than the calibrated one; extra_after_pause_s: and after a pause
    served_ratios          how single served passes of a real device vary around that
    CPU work                 what a server's process does besides passes on a CPU device's cores

Two loads are served, a light one and one that keeps the fullest device busy for half of the time. Both are searched for
here, because an estimate may be far from this host's capacity. Then both runs are simulated with the measured costs. If
simulation and measurement are far apart, everything is measured again, and in the end refused.

Decisions: the costs of the router's process above are those of the router `random`; a learned router, or a rule that
looks at every server, takes longer. So `measure_decisions` calls its policy as the router calls it: in one process, on
the router's cores, over views of a simulation of the scenario, in turns with `random`. It measures CPU time, which does
not count waiting.

The pause before a decision is the gap between its view and the previous one, waited for as the router waits. After a
pause caches are cold: a loop without pauses would find decisions several times as fast as they are while serving.
"""

from __future__ import annotations

import time  # noqa: TID251 - CPU time of a real decision
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from calibrate.datasheet import STAMP
from calibrate.device_identity import Interference, require_quiet
from hw.networks.datasets import Dataset
from hw.networks.network_files import ModelFile
from hw.router.local_cluster import HardwareCluster
from hw.router.router_loop import no_collections, on_cores, own_cores
from hw.telemetry import cpu_name
from kit.errors import WorkError
from kit.random_streams import derived_seed, stream
from policies.interfaces import RoutingPolicy
from policies.router_plans import by_plan
from policies.run_records import STAGES, RunRecord
from policies.vocabulary import NS_PER_S, BatchingDelay, Choice, ClusterView
from scenarios.executors.executor_runs import RealRun, RunObserver, hardware_servers, real_cluster, run_on_hardware
from scenarios.executors.serving_costs import WARMUP_S, DeviceCosts, ServingCosts, costs_of
from scenarios.executors.validation_plan import observed_slowdowns
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import build_experiment
from scenarios.files.scenario_keys import PoissonWorkload
from scenarios.files.series_files import SCHEMA, DecisionTime
from scenarios.metrics.run_result import Result
from scenarios.runs.simulated_runs import run_simulation
from scenarios.terminal.progress import Say
from sim.device_profile import Profile, RouterHost

ROUTER = "random"
RUN_S, LOOK_S = 5.0, 2.0
LIGHT, BUSY = 0.15, 0.5  # of the fullest device's time, or of the router's
START_SHARE = 0.02  # of the estimated capacity
LOOKS, TRIES = 8, 3
FULL, MAX_BACKLOG = 0.85, 0.15  # of a device's time; of the images that came, at the end
TELLING = 0.08  # a device that was busy for less reveals no capacity
NEAR, FAR = 0.25, 0.5  # simulation's error: what is taken without a word, and what is refused


@dataclass(frozen=True, slots=True)
class ServedRun:
    """One run on executors, and at what scale of the workload."""

    scale: float
    rate_img_s: float
    result: Result
    record: RunRecord


@dataclass(frozen=True, slots=True)
class Apart:
    """How far a run's simulation with what was found is from it; latencies in seconds."""

    rate_img_s: float
    simulated_s: float
    measured_s: float
    stage: str
    stage_simulated_s: float
    stage_measured_s: float

    @property
    def error(self) -> float:
        """The error of the simulated mean latency, as a share of the measured one."""
        return self.simulated_s / self.measured_s - 1

    def __str__(self) -> str:
        return (
            f"at {self.rate_img_s:.3g} images/s {1e3 * self.simulated_s:.3g} ms simulated, {1e3 * self.measured_s:.3g} "
            f"measured; most apart is `{self.stage}`, {1e3 * self.stage_simulated_s:.3g} and "
            f"{1e3 * self.stage_measured_s:.3g} ms"
        )


@dataclass(frozen=True, slots=True)
class ServingOverheads:
    """What was found.

    Attributes:
        others: what other programs took of the devices meanwhile, in words.
        apart: how far simulation with it is from what was measured, at each load.
    """

    costs: ServingCosts
    others: str
    apart: tuple[Apart, ...] = ()


def measure_serving(
    experiment: Experiment,
    model: ModelFile | None,
    dataset: Dataset | None,
    seed: int,
    *,
    allow_busy: bool = False,
    say: Say = lambda _: None,
) -> ServingOverheads:
    """Serve Poisson arrivals at two loads and look at every stage of every micro-batch.

    `model` and `dataset`: see `scenarios.executors.executor_runs`.
    `say` is called when servers go down or are back, and for what does not agree.

    Raises:
        InputError: other processes used much of the devices meanwhile, and that is not allowed.
        WorkError: no load is stable here, or what was found does not explain what was measured.
    """
    arrivals = PoissonWorkload(kind="poisson", rate_img_s=experiment.capacity_img_s)
    update = {"workload": arrivals, "faults": (), "deadline_s": None, "shed": False}
    plain = replace(experiment, scenario=experiment.scenario.model_copy(update=update))
    best: tuple[float, ServingOverheads] | None = None
    with real_cluster(plain, model) as cluster:

        def serve(share: float, duration_s: float) -> ServedRun:
            return _serve(plain, cluster, dataset, derived_seed(seed, "serving"), share, duration_s, say)

        for attempt in range(TRIES):
            overheads = _measure_once(plain, serve, allow_busy)
            worst = max(abs(each.error) for each in overheads.apart)
            if best is None or worst < best[0]:
                best = worst, overheads
            if worst <= NEAR:
                break
            again = "; measured again" if attempt + 1 < TRIES else ""
            problems = "; ".join(map(str, overheads.apart))
            say(f"serving: what it costs does not explain what was measured: {problems}{again}")
    assert best is not None, "tried at least once"
    worst, overheads = best
    if worst > FAR and not allow_busy:
        problem = f"costs of serving were not measurable in {TRIES} tries: " + "; ".join(map(str, overheads.apart))
        remedy = "let nothing else run, or calibrate again (a longer calibration.budget); with calibration.allow_busy "
        raise WorkError(f"{problem}. {remedy}it is taken as it is, and simulation will be as far off")
    for server in experiment.cluster.servers:
        if not overheads.costs.devices[server.device].dispatch_s:
            say(f"{server.name}: no pass had its device to itself; what serving it costs there was not measured")
    return overheads


def _measure_once(
    experiment: Experiment, serve: Callable[[float, float], ServedRun], allow_busy: bool
) -> ServingOverheads:
    profiles = experiment.profiles
    share, use = _telling_share(serve, profiles)
    runs = [serve(share * target / use, RUN_S) for target in (LIGHT, BUSY)]
    while use_of(runs[1].record, profiles) > FULL or _is_drowning(runs[1].record):
        runs[1] = serve(runs[1].scale / 2, RUN_S)
    loads = [load for run in runs if (load := run.record.background_load) is not None]
    most = max(loads, key=lambda load: load.share, default=None)
    others = Interference(None) if most is None else Interference(most.share, stolen=most.stolen)
    require_quiet("what serving costs", others, allow_busy)
    owners = [server.device for server in experiment.cluster.servers]
    costs = costs_of([run.record for run in runs], experiment.cluster.devices, owners)
    paired = paired_experiment(experiment, costs)
    return ServingOverheads(costs, str(others), tuple(_apart(paired, run) for run in runs))


def _serve(
    experiment: Experiment,
    cluster: HardwareCluster,
    dataset: Dataset | None,
    seed: int,
    share: float,
    duration_s: float,
    say: Say,
) -> ServedRun:
    run = RealRun(
        ROUTER, experiment.router(ROUTER), seed, duration_s, min(WARMUP_S, duration_s / 2), share,
        emulate_links=False, keep_log=False, measures_costs=True,
    )  # fmt: skip
    result, record = run_on_hardware(experiment, cluster, dataset, run, RunObserver(say=say))
    return ServedRun(share, share * experiment.capacity_img_s, result, record)


def _telling_share(serve: Callable[[float, float], ServedRun], profiles: Sequence[Profile]) -> tuple[float, float]:
    """Return a stable share of the estimated capacity, and the share of time that the busiest part is busy at it.

    Some device, or the router, is busy enough there to reveal the real capacity.

    Raises:
        WorkError: backlogs grow at any.
    """
    share = START_SHARE
    for _ in range(LOOKS):
        run = serve(share, LOOK_S)
        use = use_of(run.record, profiles)
        if use > FULL or _is_drowning(run.record):
            share /= 4
        elif use < TELLING:
            share *= min(8.0, LIGHT / max(use, 0.01))
        else:
            return share, use
    raise WorkError(
        f"no load was found that the executors sustain here: at {run.rate_img_s:.3g} images/s the fullest device was "
        f"busy for {100 * use:.0f} % of the time; let nothing else run, or take a smaller network"
    )


def use_of(record: RunRecord, profiles: Sequence[Profile]) -> float:
    """Return the share of the time that the fullest device, or the router's process, was busy.

    A CPU device is busy with what its workers do besides passes, too.

    Args:
        profiles: of each server.
    """
    shares = [record.router_busy_ns / record.ended_ns]
    for device in {server.device for server in record.servers}:
        indices = {index for index, server in enumerate(record.servers) if server.device == device}
        cpu_work = (cost for cost in record.cpu_work if cost.server in indices and profiles[cost.server].is_on_cores)
        busy_ns = sum(cost.cpu_ns for cost in cpu_work)
        until_ns = 0
        batches = (batch for batch in record.batches if batch.server in indices)
        for batch in sorted(batches, key=lambda batch: batch.started_ns):  # for how long some pass ran
            busy_ns += max(0, batch.forward_ended_ns - max(until_ns, batch.started_ns))
            until_ns = max(until_ns, batch.forward_ended_ns)
        shares.append(busy_ns / record.ended_ns)
    return max(shares)


def _is_drowning(record: RunRecord) -> bool:
    """Return whether much of what came was still there at the last arrival."""
    last_ns = max((request.arrived_ns for request in record.requests), default=0)
    unfinished = sum(request.finished_ns > last_ns for request in record.requests)
    return unfinished > max(10.0, MAX_BACKLOG * len(record.requests))


def _apart(experiment: Experiment, run: ServedRun) -> Apart:
    """Simulate it: the same arrivals, router and slowdowns."""
    owners = [server.device for server in experiment.cluster.servers]
    simulated, _ = run_simulation(
        experiment, experiment.router(ROUTER), ROUTER, run.result["seed"],
        duration_s=RUN_S, warmup_s=WARMUP_S, scale=run.scale,
        slowdowns=observed_slowdowns(run.record, experiment.cluster.devices, owners),
    )  # fmt: skip
    simulated_stages, measured_stages = simulated["stages_s"], run.result["stages_s"]
    latency_s, measured_s = simulated["latency_s"]["mean"], run.result["latency_s"]["mean"]
    if simulated_stages is None or measured_stages is None or latency_s is None or measured_s is None:
        raise WorkError(f"nothing was served in {RUN_S:g} s at {run.rate_img_s:.3g} images/s")
    stage = max(STAGES, key=lambda name: abs(simulated_stages[name] - measured_stages[name]))
    return Apart(run.rate_img_s, latency_s, measured_s, stage, simulated_stages[stage], measured_stages[stage])


def paired_experiment(experiment: Experiment, costs: ServingCosts) -> Experiment:
    """Return the experiment with the costs that were found."""
    profiles = {
        spec.name: with_costs(profile, costs.router_host, costs.devices[spec.device])
        for spec, profile in zip(experiment.cluster.servers, experiment.profiles, strict=True)
    }
    return build_experiment(experiment.scenario, profiles, experiment.accuracy)


def with_overheads(profile: Profile, overheads: ServingOverheads, device: int) -> Profile:
    """Return a device's profile with what serving on this host costs; what was calibrated stays as it is."""
    served = with_costs(profile, overheads.costs.router_host, overheads.costs.devices[device])
    if not overheads.others:
        return served
    stamps = {**served.device.stamps, "interference_serving": overheads.others}
    return served.model_copy(update={"device": served.device.model_copy(update={"stamps": stamps})})


def with_costs(profile: Profile, router_host: RouterHost | None, costs: DeviceCosts) -> Profile:
    """Return the profile with them; what it may have named of another host is removed."""
    stamps = {name: text for name, text in profile.device.stamps.items() if name != STAMP}
    update: dict[str, object] = {
        "device": profile.device.model_copy(update={"stamps": stamps}),
        "router_host": router_host,
        "handover": costs.handover,
        "busy_serving": costs.busy,
        "cpu_work": costs.cpu_work,
    }
    if costs.dispatch_s:
        update["dispatch_s"] = costs.dispatch_s
    if costs.transfer_s is not None and profile.link is not None:
        update["link"] = profile.link.model_copy(update={"latency_s": costs.transfer_s})
    if costs.fetch_s is not None:
        update["fetch_s"] = costs.fetch_s
    if (extra := costs.extra) is not None:
        update |= {
            "served_extra_s": extra.always_s,
            "served_extra_share": extra.share,
            "served_extra_per_byte_s": extra.per_byte_s,
            "extra_after_pause_s": extra.after_pause_s,
            "served_ratios": costs.ratios,
        }
    return profile.model_copy(update=update)


def is_served(profile: Profile) -> bool:
    """Return whether what serving costs is in a profile."""
    return profile.router_host is not None


# ------------------------------------------------------------------------------------------------------------ decisions


VIEWS = 288
FIRST = 32  # of them that do not count: a plan is made, memory is touched for the first time
ROUNDS = 5  # of each decision the median counts: a host that stalls in one of them is left out

MAX_GAP_NS = NS_PER_S // 1000  # between two decisions; a longer one would make nothing colder

Clock = Callable[[], int]
Wait = Callable[[int], None]
Make = Callable[[], RoutingPolicy]


class _EnoughError(Exception):
    """Raised when there are enough views."""


class _Recorder:
    """A policy that keeps the views that it decides on."""

    def __init__(self, policy: RoutingPolicy) -> None:
        self.views: list[ClusterView] = []
        self._policy = policy

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | BatchingDelay:
        if len(self.views) == VIEWS:
            raise _EnoughError
        self.views.append(view)
        return self._policy.choose(view, rng)


def views_of(experiment: Experiment, policy: RoutingPolicy, seed: int) -> list[ClusterView]:
    """Return the first views of a simulation with that policy: fewer if the run is short."""
    recorder = _Recorder(policy)
    with suppress(_EnoughError):
        experiment.simulation(experiment.run_spec(seed, detail=False)).finish(recorder, stream(seed, "deciding"))
    return recorder.views


def measure_decisions(experiment: Experiment, router: str, make: Make, seed: int) -> DecisionTime:
    """Measure one router, which `make` makes again each time; the views are the same for the same seed.

    Raises:
        InputError: no image arrives.
    """
    seed = derived_seed(seed, "deciding")
    views = views_of(experiment, make(), seed)
    cores = own_cores(hardware_servers(experiment))
    with no_collections(), on_cores(cores):
        wait = _spin if cores else _sleep
        own_s, random_s = beside_random(
            views,
            lambda: by_plan(make(), experiment.cluster.router),
            lambda: by_plan(experiment.router("random"), experiment.cluster.router),
            seed,
            wait=wait,
        )
    return DecisionTime(
        schema=SCHEMA,
        router=router,
        provenance="measured",
        machine=cpu_name(),
        cores=cores,
        views=len(views),
        rounds=ROUNDS,
        own_s=own_s,
        random_s=random_s,
    )


def _sleep(gap_ns: int) -> None:
    time.sleep(gap_ns / NS_PER_S)


def _spin(gap_ns: int) -> None:
    """Wait as the router does on dedicated cores (`hw.router.router_loop`)."""
    until_ns = time.monotonic_ns() + gap_ns
    while time.monotonic_ns() < until_ns:
        pass


def beside_random(
    views: Sequence[ClusterView],
    make: Make,
    make_random: Make,
    seed: int,
    *,
    clock: Clock = time.thread_time_ns,
    wait: Wait = _sleep,
) -> tuple[float, float]:
    """Return mean seconds of a decision of either policy; of each view the median of its rounds counts.

    A policy may remember what it has decided: it sees the views in their order, and in each round it is a fresh one.
    """
    times_ns = [view.now_ns for view in views]
    gaps_ns = [min(MAX_GAP_NS, after - before) for before, after in pairwise([*times_ns[:1], *times_ns])]
    took_ns: NDArray[np.int64] = np.empty((2, ROUNDS, len(views)), np.int64)
    for turn in range(ROUNDS):
        pair = [(maker(), stream(seed, f"deciding:{name}")) for name, maker in (("own", make), ("random", make_random))]
        for index, view in enumerate(views):
            for row, (policy, rng) in enumerate(pair):
                wait(gaps_ns[index])
                began_ns = clock()
                policy.choose(view, rng)
                took_ns[row, turn, index] = clock() - began_ns
    counted = np.median(took_ns, axis=1)[:, min(FIRST, len(views) - 1) :]
    own_s, random_s = counted.mean(axis=1) / NS_PER_S
    return float(own_s), float(random_s)
