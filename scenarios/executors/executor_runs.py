"""Runs on real executors, one after the other, alone or each with its paired simulation."""

from __future__ import annotations

import time  # noqa: TID251 - wall time of a real run
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hw.device_settings import DeviceSpec
from hw.networks.datasets import Dataset
from hw.networks.network_files import ModelFile
from hw.router.interventions import DrainRequest, nobody
from hw.router.local_cluster import HardwareCluster
from hw.router.ray_workers import RayHosts
from hw.router.router_loop import Routing, RunProgress
from hw.router.run_requests import HardwareRun
from hw.router.server_port import HardwareServer
from hw.telemetry import usable_cores
from kit.random_streams import stream
from policies.interfaces import RoutingPolicy
from policies.router_plans import by_plan
from policies.run_records import RunRecord
from scenarios.executors.device_choice import (
    Hosts,
    as_calibrated,
    blank_images,
    device_of,
    emulated_device,
    host_key,
    host_names,
    joined_hosts,
    section_of,
    served_of,
)
from scenarios.executors.validation_plan import (
    Campaign,
    Changes,
    FinishedRun,
    PlannedRun,
    Ran,
    ValidationPlan,
    observed_slowdowns,
)
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.files.router_files import display_name
from scenarios.metrics.failure_signs import diagnosed
from scenarios.metrics.fidelity import ValidationRun
from scenarios.metrics.run_result import Result, RunLabel, summarise, window_of
from scenarios.runs.simulated_runs import able_to_run, engine_of, run_simulation
from scenarios.terminal.progress import Say

LANES_CORES = 5  # a GPU's server needs: the wait for each of its four blocks spins, and words come meanwhile
SATURATED_IMAGES = 10_000
FEW_SIZES = 32  # of batches: up to this number all are warmed up, of more only powers of two and the largest


def hardware_servers(experiment: Experiment) -> list[HardwareServer]:
    """Return the scenario's servers as the executors take them."""
    sections = experiment.scenario.cluster.named_servers

    def real_device(index: int) -> DeviceSpec:
        section, params = section_of(sections[index], sections), experiment.cluster.servers[index].params
        device = as_calibrated(device_of(sections[index], sections), section, experiment.profiles[index])
        sizes = params.padded_sizes or warm_batches(params.batch_limit)
        return replace(device, warm_sizes=sizes) if device.kind == "cuda" else device

    return [
        HardwareServer(
            name=spec.name,
            device=real_device(index) if section.emulated is None else emulated_device(experiment, index),
            params=spec.params,
            bare_idle_w=profile.power.bare_idle_w,
            context_idle_w=profile.power.context_idle_w,
            sensor_period_s=profile.sensor.period_s,
            captured=profile.execution.get("captured", ""),
        )
        for index, (section, spec, profile) in enumerate(
            zip(sections, experiment.cluster.servers, experiment.profiles, strict=True)
        )
    ]


def on_own_cores(servers: Sequence[HardwareServer], cores: Sequence[int]) -> list[HardwareServer]:
    """Give GPUs' servers without named cores equal parts of the free cores; the first of these is the router's.

    A process with dedicated cores polls instead of sleeping.

    Args:
        cores: of this machine.
    """
    unpinned = [server.name for server in servers if not server.device.cores]
    pinned = {core for server in servers for core in server.device.cores}
    free = [core for core in cores if core not in pinned][1:]
    share = len(free) // max(1, len(unpinned))
    has_unpinned_cpu = any(server.name in unpinned and server.device.physical[0] != "cuda" for server in servers)
    if has_unpinned_cpu or share < LANES_CORES:
        return [*servers]
    parts = {name: tuple(free[share * index : share * (index + 1)]) for index, name in enumerate(unpinned)}
    return [
        replace(server, device=replace(server.device, cores=parts.get(server.name, server.device.cores)))
        for server in servers
    ]


def warm_batches(batch_limit: int) -> tuple[int, ...]:
    """Return the batches that every worker runs once before it serves.

    The first pass of a size may take ten times as long as the next, because a CPU's kernels are made for each shape.
    """
    if batch_limit <= FEW_SIZES:
        return tuple(range(1, batch_limit + 1))
    return (*(1 << power for power in range(batch_limit.bit_length()) if 1 << power < batch_limit), batch_limit)


@contextmanager
def real_cluster(
    experiment: Experiment, model: ModelFile | None, *, is_urgent: bool = False
) -> Iterator[HardwareCluster]:
    """Start the scenario's servers as workers, on this machine or its cluster's hosts; they stop when the block ends.

    Args:
        model: what they serve; emulated ones need none.
        is_urgent: clients wait: the block begins before the workers are ready, and they warm up with batches of
            one alone.
    """
    with ExitStack() as stack:
        servers, carrier = hardware_servers(experiment), None
        if experiment.scenario.cluster.backend == "ray":
            hosts = stack.enter_context(joined_hosts(experiment.scenario.cluster, experiment.scenario.name))
            servers, carrier = on_hosts(experiment, servers, hosts, model)
        else:
            servers = on_own_cores(servers, usable_cores())
        cluster = HardwareCluster(
            model if model is not None else served_of(experiment),
            servers,
            warm_batches=(1,)
            if is_urgent
            else warm_batches(max(server.params.batch_limit for server in experiment.cluster.servers)),
            supervision=experiment.cluster.supervision,
            largest_micro_batch=experiment.cluster.router.micro_batch_sizes[-1],
            carrier=carrier,
            waits=not is_urgent,
        )
        yield stack.enter_context(cluster)


def on_hosts(
    experiment: Experiment, servers: Sequence[HardwareServer], hosts: Hosts, model: ModelFile | None
) -> tuple[list[HardwareServer], RayHosts]:
    """Return the servers with their machines, and what starts their workers there."""
    cluster = experiment.scenario.cluster
    names, executors = host_names(cluster, hosts), list[HardwareServer]()
    for section, server, host in zip(cluster.named_servers, servers, names, strict=True):
        device = server.device
        if isinstance(device, DeviceSpec):
            device_there = hosts.ask(host, host_key(cluster, section), device_of, section, cluster.named_servers)
            device = replace(device, vram_bytes=device_there.vram_bytes)
        executors.append(replace(server, device=device, machine=hosts.machine_of(host), host=host))
    return executors, RayHosts(hosts.cluster, names, None if model is None else model.path)


def without_faults(experiment: Experiment) -> Experiment:
    """Return the same experiment with nothing planned to go wrong."""
    return replace(experiment, scenario=experiment.scenario.model_copy(update={"faults": ()}))


@dataclass(frozen=True, slots=True)
class RealRun:
    """One run in real time, with the arrivals, images, faults and random stream that the simulation has at this seed.

    Attributes:
        router: its name in the result, and of its random stream.
        scale: multiplies the workload's rate.
        end: the scenario's unless it is given.
        image_limit: beyond this number of requests the same images come again (a saturated run's would not fit into
            memory).
        measures_costs: whether to measure what the router's process and the port cost.
    """

    router: str
    policy: RoutingPolicy
    seed: int
    duration_s: float
    warmup_s: float
    scale: float = 1.0
    end: str | None = None
    image_limit: int | None = None
    emulate_links: bool = True
    keep_log: bool = True
    measures_costs: bool = False


Frontend = Callable[[Sequence[tuple[str, str]]], AbstractContextManager[DrainRequest]]
"""Within it, the operator may drain servers (each its name and its host's); see `scenarios.runs.operator_control`."""


@dataclass(frozen=True, slots=True)
class RunObserver:
    """Reports of real runs in progress: how far they are, and (in words) servers that go down or are back.

    Attributes:
        front end: by which the operator has servers drained.
    """

    on_progress: Callable[[RunProgress], None] | None = None
    say: Say = lambda _: None
    frontend: Frontend = lambda _: nullcontext(nobody)

    def of(self, run: str) -> RunObserver:
        """Return the same observer, whose words name the run."""
        return replace(self, say=lambda text: self.say(f"{run}: {text}"))


def run_on_hardware(
    experiment: Experiment,
    cluster: HardwareCluster,
    dataset: Dataset | None,
    run: RealRun,
    observer: RunObserver | None = None,
    drained: DrainRequest = nobody,
) -> tuple[Result, RunRecord]:
    """Carry out one run on executors that are there.

    Args:
        dataset: whose test images the requests are; emulated servers need none: which of their labels are right is as
            in simulation.
        drained: which servers the operator has drained now.
    """
    began_ns = time.monotonic_ns()
    record = _carried_out(experiment, cluster, dataset, run, observer or RunObserver(), drained)
    return _summarised(experiment, run, record, dataset is None, (time.monotonic_ns() - began_ns) / 1e9), record


def _carried_out(
    experiment: Experiment,
    cluster: HardwareCluster,
    dataset: Dataset | None,
    run: RealRun,
    observer: RunObserver,
    drained: DrainRequest,
) -> RunRecord:
    seed = run.seed
    planned = experiment.run_spec(seed, duration_s=run.duration_s, scale=run.scale, end=run.end)
    is_emulated = dataset is None
    if dataset is None:
        dataset, images = blank_images(experiment), np.zeros(1, dtype=np.int64)
    else:
        images = experiment.images(seed, len(planned.arrivals_ns))[: run.image_limit]
    request = HardwareRun(
        arrivals_ns=planned.arrivals_ns,
        images=dataset.test_images,
        labels=dataset.test_labels,
        shown=images,
        horizon_ns=planned.horizon_ns,
        end=planned.end,
        deadlines_ns=planned.deadlines_ns,
        classes=planned.classes,
        drain_limit_ns=planned.drain_limit_ns,
        keep_log=run.keep_log,
        faults=planned.faults,
        goals=planned.goals,
        links=experiment.emulated_links(seed) if run.emulate_links else None,
        measures_costs=run.measures_costs,
        is_correct=planned.correctness.is_correct if is_emulated else None,
    )
    spec = experiment.cluster
    rng = stream(seed, f"router:{run.router}")
    routing = Routing(by_plan(run.policy, spec.router), rng, spec.weights, spec.prior)
    return cluster.run(request, spec.router, routing, observer.on_progress, observer.say, drained)


def _summarised(experiment: Experiment, run: RealRun, record: RunRecord, is_emulated: bool, wall_s: float) -> Result:
    planned = experiment.run_spec(run.seed, duration_s=run.duration_s, scale=run.scale, end=run.end)
    label = RunLabel(
        scenario=experiment.scenario.name,
        router=run.router,
        seed=run.seed,
        mode="executors",
        engine="emulated" if is_emulated else "torch",
        provenance=experiment.power_provenance,  # times and labels are measured; watts may be weaker
        accuracy_provenance=experiment.accuracy.provenance,
        emulated_slowdowns=experiment.emulated_slowdowns,
    )
    window = window_of(experiment.scenario, run.warmup_s, run.duration_s, planned.end, planned.classes)
    return diagnosed(
        summarise(record, label, window, wall_s=wall_s, prior=experiment.accuracy.prior), experiment.signature_context
    )


def validate_runs(
    experiment: Experiment,
    model: ModelFile | None,
    dataset: Dataset | None,
    plan: ValidationPlan,
    *,
    made_in: Path | None = None,
    finished: Sequence[ValidationRun] = (),
    observer: RunObserver | None = None,
) -> Generator[FinishedRun]:
    """Carry out every run of the plan not among `finished`, on one set of executors and in simulation.

    `made_in` is the folder of the run that makes the scenario's own routers.
    """
    faultless = without_faults(experiment)
    observer = observer or RunObserver()
    files = {display_name(router): router for router in plan.section.routers}
    engine = engine_of(experiment, "auto", plan.hardware_runs, duration_s=plan.duration_s)
    engine = able_to_run(experiment, engine, lambda: experiment.run_spec(plan.section.seeds[0]), observer.say)

    def experiment_of(planned: PlannedRun) -> Experiment:
        return faultless if planned.is_calm else experiment

    def simulate(planned: PlannedRun) -> Ran:
        """Simulate with the slowdowns of its executor run, if they are known: see
        `scenarios.executors.validation_plan`."""
        return run_simulation(
            experiment_of(planned),
            experiment.router(files[planned.router], made_in),
            planned.router,
            planned.seed,
            duration_s=plan.duration_s,
            warmup_s=plan.warmup_s,
            scale=planned.scale,
            end=_end_of(planned),
            detail=not planned.is_probe,
            slowdowns=planned.slowdowns,
            engine=engine,
        )

    def slowdowns_of(record: RunRecord) -> Mapping[int, Changes]:
        owners = [server.device for server in experiment.cluster.servers]
        return observed_slowdowns(record, experiment.cluster.devices, owners)

    with (
        real_cluster(experiment, model) as cluster,
        observer.frontend([(server.name, server.host) for server in cluster.servers]) as drained,
    ):

        def serve(planned: PlannedRun) -> Ran:
            run = RealRun(
                planned.router,
                experiment.router(files[planned.router], made_in),
                planned.seed,
                plan.duration_s,
                plan.warmup_s,
                scale=planned.scale,
                end=_end_of(planned),
                image_limit=SATURATED_IMAGES if planned.kind == "saturated" else None,
            )
            run_observer = observer.of(f"{planned.router}, {planned.place}")
            return run_on_hardware(experiment_of(planned), cluster, dataset, run, run_observer, drained)

        yield from Campaign(plan, simulate, serve, finished, slowdowns_of).carry_out()


def _end_of(planned: PlannedRun) -> str | None:
    """Return the end of a run: a saturated one's backlog is not worked off."""
    return "cut" if planned.kind == "saturated" else None
