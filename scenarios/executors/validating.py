"""Runs on real executors, each with its paired simulation."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from hw.networks.datasets import Dataset
from hw.networks.registry import ModelFile
from policies.records import RunRecord
from scenarios.executors.campaign import Campaign, FinishedRun, PlannedRun, Ran, ValidationPlan
from scenarios.executors.run import (
    SATURATED_IMAGES,
    RealRun,
    RunObserver,
    real_cluster,
    run_on_hardware,
    without_faults,
)
from scenarios.executors.slowdown import Changes, observed_slowdowns
from scenarios.files.router_names import display_name
from scenarios.metrics.fidelity import ValidationRun
from scenarios.runs.engines import able_to_run, engine_of
from scenarios.runs.simulate import run_simulation
from scenarios.world.world import World


def validate_runs(
    world: World,
    model: ModelFile | None,
    dataset: Dataset | None,
    plan: ValidationPlan,
    routers: Sequence[str],
    *,
    made_in: Path | None = None,
    finished: Sequence[ValidationRun] = (),
    observer: RunObserver | None = None,
) -> Generator[FinishedRun]:
    """Carry out every run of the plan not among `finished`, on one set of executors and in simulation.

    `made_in` is the folder of the run that makes the scenario's own routers.
    """
    calm, observer = without_faults(world), observer or RunObserver()
    files = {display_name(router): router for router in routers}
    engine = engine_of(world, "auto", plan.hardware_runs, duration_s=plan.duration_s)
    engine = able_to_run(world, engine, lambda: world.run_spec(plan.section.seeds[0]), observer.say)

    def world_of(planned: PlannedRun) -> World:
        return calm if planned.is_calm else world

    def simulate(planned: PlannedRun) -> Ran:
        """Simulate with the slowdowns of its hardware run, if they are known: see `scenarios.executors.slowdown`."""
        return run_simulation(
            world_of(planned),
            world.router(files[planned.router], made_in),
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
        owners = [server.device for server in world.cluster.servers]
        return observed_slowdowns(record, world.cluster.devices, owners)

    def wanted_of(planned: PlannedRun) -> RealRun:
        return RealRun(
            planned.router,
            world.router(files[planned.router], made_in),
            planned.seed,
            plan.duration_s,
            plan.warmup_s,
            scale=planned.scale,
            end=_end_of(planned),
            image_limit=SATURATED_IMAGES if planned.kind == "saturated" else None,
        )

    with (
        real_cluster(world, model) as cluster,
        observer.door([(server.name, server.host) for server in cluster.servers]) as drained,
    ):

        def serve(planned: PlannedRun) -> Ran:
            heard = observer.of(f"{planned.router}, {planned.place}")
            return run_on_hardware(world_of(planned), cluster, dataset, wanted_of(planned), heard, drained)

        yield from Campaign(plan, simulate, serve, finished, slowdowns_of).carry_out()


def _end_of(planned: PlannedRun) -> str | None:
    """Return the end of a run: a saturated one's backlog is not worked off."""
    return "cut" if planned.kind == "saturated" else None
