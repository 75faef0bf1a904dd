"""The same workload in simulation and on real executors, and the replay of what the real ones did."""

from __future__ import annotations

import time  # noqa: TID251 - wall time of a real run
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hw.accuracy import MEASURED
from hw.cluster import HardwareCluster, HardwareRun, Progress
from hw.datasets import Dataset
from hw.device import DeviceSpec
from hw.networks import ModelFile
from hw.server import HardwareServer
from policies.chance import stream
from policies.errors import InputError
from policies.records import RunRecord
from policies.routing import RoutingPolicy
from scenarios.compare import display_name, run_simulation
from scenarios.compose import World
from scenarios.result import Result, summarise
from scenarios.spec import GB, DeviceSection, ServerSection

WARM_BATCHES = (1, 2, 8)


@dataclass(frozen=True)
class ValidationPair:
    """One router with one seed in both worlds."""

    simulated: tuple[Result, RunRecord]
    hardware: tuple[Result, RunRecord]


def device_spec(section: DeviceSection) -> DeviceSpec:
    """A scenario's device as the executors take it; memory is asked of the device where none is given."""
    spec = DeviceSpec(
        kind=section.kind,
        cores=section.cores,
        threads=section.threads,
        onednn=section.onednn,
        index=section.index,
        idle_w=section.idle_w,
        tdp_w=section.tdp_w,
    )
    return spec if section.vram_gb is None else replace(spec, vram_bytes=int(section.vram_gb * GB))


def device_of(server: ServerSection, servers: Sequence[ServerSection]) -> DeviceSpec:
    """The device that a server runs on: its own, or that of the server it shares with."""
    owner = next(s for s in servers if s.name == (server.shares_device_with or server.name))
    return device_spec(owner.device or DeviceSection())


@contextmanager
def real_cluster(world: World, model: ModelFile) -> Iterator[HardwareCluster]:
    """The scenario's servers as executor processes on this machine; gone when the block ends."""
    sections = world.scenario.cluster.named_servers
    servers = [
        HardwareServer(
            name=spec.name,
            device=device_of(section, sections),
            knobs=spec.knobs,
            bare_idle_w=profile.power.bare_idle_w,
            context_idle_w=profile.power.context_idle_w,
        )
        for section, spec, profile in zip(sections, world.cluster.servers, world.profiles, strict=True)
    ]
    period_s = min(profile.sensor.period_s for profile in world.profiles)
    with HardwareCluster(model, servers, sensor_period_s=period_s, warm_batches=WARM_BATCHES) as cluster:
        yield cluster


def run_on_hardware(
    world: World,
    cluster: HardwareCluster,
    dataset: Dataset,
    policy: RoutingPolicy,
    router: str,
    seed: int,
    *,
    duration_s: float,
    warmup_s: float,
    keep_log: bool = True,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[Result, RunRecord]:
    """One run in real time, with the arrivals, images and random stream that the simulation has at this seed."""
    scenario = world.scenario
    planned = world.run_spec(seed, duration_s=duration_s)
    images = world.images(seed, len(planned.arrivals_ns))
    run = HardwareRun(
        arrivals_ns=planned.arrivals_ns,
        images=dataset.test_images[images],
        labels=dataset.test_labels[images],
        horizon_ns=planned.horizon_ns,
        end=planned.end,
        deadline_ns=planned.deadline_ns,
        drain_limit_ns=planned.drain_limit_ns,
        keep_log=keep_log,
    )
    began_ns = time.monotonic_ns()
    rng = stream(seed, f"router:{router}")
    spec = world.cluster
    record = cluster.run(run, spec.router, spec.weights, spec.prior, policy, rng, on_progress)
    result = summarise(
        record,
        scenario=scenario.name,
        router=router,
        seed=seed,
        mode="hardware",
        engine="torch",
        provenance=world.power_provenance,  # times and labels are measured; watts may be weaker
        accuracy_provenance=MEASURED,
        warmup_s=warmup_s,
        horizon_s=duration_s,
        deadline_s=scenario.deadline_s,
        wall_s=(time.monotonic_ns() - began_ns) / 1e9,
    )
    return result, record


def validate_pairs(
    world: World,
    model: ModelFile,
    dataset: Dataset,
    routers: Sequence[str],
    seeds: Sequence[int],
    *,
    trained: Path | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
) -> Iterator[ValidationPair]:
    """Each router with each seed, in simulation and on one set of executors; seeds outermost, so routers alternate."""
    given = world.scenario.validate_
    if world.scenario.faults:
        problem = "planned faults can't be brought about on real executors; validate without them, or use `compare`"
        raise InputError(world.scenario.name, "faults", problem)
    duration_s = given.duration_s or world.scenario.duration_s
    warmup_s = world.scenario.warmup_s if given.warmup_s is None else given.warmup_s
    with real_cluster(world, model) as cluster:
        for seed in seeds:
            for router in routers:
                name = display_name(router)

                def tell(progress: Progress, name: str = name) -> None:
                    if on_progress is not None:
                        on_progress(name, progress)

                hardware = run_on_hardware(
                    world,
                    cluster,
                    dataset,
                    world.router(router, trained),
                    name,
                    seed,
                    duration_s=duration_s,
                    warmup_s=warmup_s,
                    on_progress=tell,
                )
                policy = world.router(router, trained)
                simulated = run_simulation(world, policy, name, seed, duration_s=duration_s, warmup_s=warmup_s)
                yield ValidationPair(simulated, hardware)
