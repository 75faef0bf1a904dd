"""Simulated runs: one router with one seed, or many routers with many seeds on the same arrivals."""

from __future__ import annotations

import time  # noqa: TID251 - wall time of a run
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from hw.host.limits import core_count
from kit.chance import derived_seed, stream
from kit.parallel import each
from policies.interfaces import RoutingPolicy
from policies.records import RunRecord
from scenarios.files.router_names import display_name, require_distinct_names
from scenarios.metrics.result import Result, RunLabel, Simulator, summarise, window_of
from scenarios.metrics.signatures import against_reference, diagnosed
from scenarios.world.routers import RouterMaker
from scenarios.world.world import World

if TYPE_CHECKING:
    from sim.cluster import Simulation
    from sim.compiled.simulation import CompiledSimulation

FEW_IMAGES: Mapping[Simulator, int] = {"simpy": 20_000, "compiled": 500_000}  # in all runs: seconds of one process


class RunOptions(TypedDict, total=False):
    """What one run may have otherwise than the scenario; both engines give the same.

    Attributes:
        scale: multiplies the workload's rate.
        detail: without it only requests are recorded.
        keep_log: every step; by the reference alone.
        slowdowns: those of the devices if they are known (`RunSpec.slowdowns`).
        replica: the number of another draw of all that profiles leave to chance; arrivals, images and faults stay.
    """

    duration_s: float | None
    warmup_s: float | None
    scale: float
    end: str | None
    detail: bool
    keep_log: bool
    slowdowns: Mapping[int, tuple[tuple[int, float], ...]] | None
    replica: int
    engine: Simulator


def run_simulation(
    world: World, policy: RoutingPolicy, router: str, seed: int, **options: Unpack[RunOptions]
) -> tuple[Result, RunRecord]:
    """Run once and return the summary and the record. `router` names the policy in the result and its random stream.

    Both engines give the same result but for `wall_s` and `engine`, and the same record. Without the record,
    `simulate_metrics` is faster and takes far less memory.
    """
    result, simulation = _simulate(world, policy, router, seed, options)
    return result, simulation.record()


def simulate_metrics(
    world: World, policy: RoutingPolicy, router: str, seed: int, **options: Unpack[RunOptions]
) -> Result:
    """Return the result of `run_simulation`, bit for bit, without its record."""
    return _simulate(world, policy, router, seed, options)[0]


def _simulate(
    world: World, policy: RoutingPolicy, router: str, seed: int, options: RunOptions
) -> tuple[Result, Simulation | CompiledSimulation]:
    world = world.decided_by(router)
    scenario, engine = world.scenario, options.get("engine", "simpy")
    duration_s, warmup_s = options.get("duration_s"), options.get("warmup_s")
    run = world.run_spec(
        seed,
        duration_s=duration_s,
        scale=options.get("scale", 1.0),
        end=options.get("end"),
        detail=options.get("detail", True),
        keep_log=options.get("keep_log", False),
        slowdowns=options.get("slowdowns"),
    )
    if "replica" in options:
        run = replace(run, seed=derived_seed(seed, f"replica {options['replica']}"))
    if engine == "compiled":
        world.simulation(run, engine).advance()  # compiled or loaded now: that is not part of the run's wall time
    began_ns = time.monotonic_ns()
    simulation = world.simulation(run, engine)
    simulation.finish(policy, stream(seed, f"router:{router}"))
    columns = simulation.columns()
    wall_s = (time.monotonic_ns() - began_ns) / 1e9
    label = RunLabel(
        scenario=scenario.name,
        router=router,
        seed=seed,
        mode="simulation",
        engine=engine,
        provenance=world.provenance,
        accuracy_provenance=world.accuracy.provenance,
        emulated_slowdowns=world.emulated_slowdowns,
        own_decision_s=world.decision_times_s.get(router, 0.0),
    )
    warmup_s = scenario.warmup_s if warmup_s is None else warmup_s
    window = window_of(scenario, warmup_s, duration_s or scenario.duration_s, run.end, run.classes)
    result = summarise(columns, label, window, wall_s=wall_s, prior=world.accuracy.prior)
    return diagnosed(result, world.signature_context), simulation


def simulate_world(
    world: World, router: str, seed: int, made_in: Path | None = None, engine: Simulator = "simpy"
) -> Result:
    """Run the scenario once with one router."""
    return simulate_metrics(world, world.router(router, made_in), display_name(router), seed, engine=engine)


def simulate_all(
    world: World,
    routers: Sequence[str],
    seeds: Sequence[int],
    *,
    made_in: Path | None = None,
    finished: Sequence[Result] = (),
    on_result: Callable[[Result], None] | None = None,
    engine: Simulator = "simpy",
    jobs: int = 1,
) -> list[Result]:
    """Run every router with every seed, in that order; runs that are among `finished` are not run again.

    Args:
        made_in: the folder of the run that makes the scenario's own routers.
        on_result: called with each result, as it comes.
        jobs: number of runs at a time (`kit.parallel`); the results are the same, bit for bit but for `wall_s`.

    Raises:
        InputError: two routers have one name, or one is not known or not made yet.
        WorkError: a process was killed, or a run can't continue.
    """
    require_distinct_names(routers)
    known = {(result["router"], result["seed"]): result for result in finished}
    wanted = [(router, seed) for router in routers for seed in seeds]
    results = [known.get((display_name(router), seed)) for router, seed in wanted]
    for result in results:
        if result is not None and on_result is not None:
            on_result(result)
    open_places = [place for place, result in enumerate(results) if result is None]
    makers = {router: world.router_maker(router, made_in) for router in {wanted[place][0] for place in open_places}}
    tasks = [(makers[router], seed) for router, seed in (wanted[place] for place in open_places)]
    prepare = partial(_compile, seeds[0]) if engine == "compiled" else None
    with closing(each(_run_of, (world.with_series(), engine), tasks, jobs, prepare)) as runs:
        for place, result in runs:
            results[open_places[place]] = result
            if on_result is not None:
                on_result(result)
    return against_reference([result for result in results if result is not None], world.signature_context)


def _compile(seed: int, common: tuple[World, Simulator]) -> None:
    """Compile once on a machine, and not in every process."""
    world, engine = common
    world.simulation(world.run_spec(seed), engine).advance()


def _run_of(common: tuple[World, Simulator], task: tuple[RouterMaker, int]) -> Result:
    """Run one run, in any process, of any machine."""
    (world, engine), (maker, seed) = common, task
    return simulate_metrics(world, maker.make(world.context), display_name(maker.name), seed, engine=engine)


def default_jobs(world: World, runs: int, seed: int, engine: Simulator) -> int:
    """Return as many processes as there are cores; 1 if starting them would take longer than the runs."""
    images = runs * len(world.arrivals_ns(seed, world.scenario.duration_s))
    return core_count() if images > FEW_IMAGES[engine] else 1
