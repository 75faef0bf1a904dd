"""Runs and comparisons in simulation."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

from kit.errors import InputError
from scenarios.files.reading import require_router
from scenarios.files.router_names import display_name
from scenarios.runs.folder import RunFolder
from scenarios.tasks.asked import (
    Asked,
    Listener,
    announcing_compilation,
    job_of,
    ready_engine,
    require_made,
    spread,
    tell_foreign,
    tell_overload,
    world_of,
)

if TYPE_CHECKING:
    from scenarios.metrics.comparison import Bounds, Comparison
    from scenarios.metrics.result import Result
    from scenarios.runs.engines import EngineChoice
    from scenarios.terminal.progress import Progress
    from scenarios.world.world import World


def simulate(asked: Asked, router: str, seed: int | None, choice: EngineChoice, *, keeps: bool) -> Result:
    """One simulated run; its record is kept in the run folder where `keeps`.

    Raises:
        InputError: no such router, or something that the run needs is missing.
        UnsupportedScenario: the compiled engine was asked for, and can't do what the scenario asks for.
    """
    from scenarios.runs.records import write_run
    from scenarios.runs.simulate import run_simulation, simulate_metrics

    output, scenario = asked.output, asked.scenario
    require_router(router, scenario)
    world = world_of(scenario, asked.folder)
    seed = scenario.seed if seed is None else seed
    engine = ready_engine(output, world, choice, 1, seed)
    tell_foreign(output, world, (router,))
    tell_overload(output, world)
    policy, name = world.router(router, asked.folder), display_name(router)
    with announcing_compilation(output, (router,), engine):
        if not keeps:
            return simulate_metrics(world, policy, name, seed, engine=engine)
        folder = RunFolder(asked.folder, output.remark)
        with folder.opened(asked.path):
            result, record = run_simulation(world, policy, name, seed, engine=engine)
            write_run(folder, result, record)
    return result


def compare(
    asked: Asked,
    choice: EngineChoice,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    baseline: str | None = None,
    with_bound: bool = False,
) -> tuple[Comparison, list[Result]]:
    """The scenario's routers with its seeds in simulation, kept in the run folder; and the runs.

    Args:
        choice: the engine; `auto` goes on with the one that has begun it, or takes the quicker.
        jobs: processes beside each other; by default as many as the work is worth.
        ray: a Ray cluster's address, whose cores make the runs.
        baseline: the router that changes and differences are to; `random` by default, where it is compared.

    Raises:
        InputError: a router was not made yet, `baseline` is not compared, or something is missing.
        UnsupportedScenario: the compiled engine was asked for, and can't do what the scenario asks for.
    """
    require_made(asked.scenario.compare, asked.folder)
    from scenarios.job import comparison as stage  # opens torch, which takes long: after what is checked at once
    from scenarios.job.deciding import with_decision_times
    from scenarios.runs.bound import require_solvable
    from scenarios.runs.engines import engine_of, require_memory
    from scenarios.runs.simulate import default_jobs

    given, output = asked.scenario.compare, asked.output
    runs = len(given.routers) * len(given.seeds)
    job = job_of(asked)
    world = job.world()
    engine = engine_of(world, choice, runs)
    require_memory(world, engine, processes=jobs or 1)
    if with_bound:
        require_solvable(world)
    tell_foreign(output, world, given.routers)
    with job.folder.opened(asked.path):
        job.describe()
        with announcing_compilation(output, given.routers):
            world = with_decision_times(job, world, given.routers)
        tell_overload(output, world)
        if choice == "auto":
            engine = stage.engine_to_go_on(job, world, engine)
        with (
            announcing_compilation(output, given.routers, engine),
            spread(ray, jobs, partial(default_jobs, world, runs, given.seeds[0], engine)) as places,
        ):
            comparison = stage.compare(
                job,
                world,
                engine,
                jobs=places,
                baseline=None if baseline is None else display_name(baseline),
                bounds=(lambda found: _bounds(world, found, output)) if with_bound else None,
            )
    return comparison, stage.results_of(job)


def bound(asked: Asked, accuracy: float | None, window_s: float) -> dict[str, Any]:
    """What no router can beat, and what an oracle could make of a load that moves: `slimsched.bound/2`.

    Args:
        accuracy: at least this mean accuracy, 0 to 1; None for any.
        window_s: length of the oracle's windows, in seconds.

    Raises:
        InputError: no width tuple is so accurate, or the windows don't fit the scenario.
    """
    from scenarios.runs.bound import OF_A_BOUND, FluidModel, oracle_of, programmes_of_an_oracle
    from scenarios.runs.engines import require_memory

    if accuracy is not None and not 0 <= accuracy <= 1:
        raise InputError("--accuracy", "", f"{accuracy:g} is no share; allowed is 0 to 1")
    if not window_s > 0:
        raise InputError("--window", "", f"{window_s:g} s are no length; allowed is more than 0")
    output, world = asked.output, world_of(asked.scenario, asked.folder)
    require_memory(world, "compiled")
    least = min(world.accuracy.prior.top1.values()) if accuracy is None else accuracy
    with solving(OF_A_BOUND + programmes_of_an_oracle(world.scenario), output) as progress:
        model = FluidModel(world, on_solved=progress.update)
        found = model.bound(least, world.mean_rate_img_s)
        oracle = oracle_of(model, window_s)
    return {
        "schema": "slimsched.bound/2",
        "accuracy": found.accuracy,
        "rate_img_s": found.rate_img_s,
        "capacity_img_s": found.capacity_img_s,
        "latency_mean_s": found.latency_s,  # as numbers of a run are called (docs/metrics.md), from here on
        "energy_dynamic_j": found.energy_per_image_j,
        "energy_per_image_j": found.total_energy_per_image_j,
        "oracle": None if oracle is None else dataclasses.asdict(oracle),
    }


def _bounds(world: World, comparison: Comparison, output: Listener) -> Bounds:
    """The fluid bound at each router's accuracy and between, as points (accuracy, least cost)."""
    from scenarios.metrics.comparison import bound_accuracies
    from scenarios.runs.bound import OF_A_BOUND, FluidModel

    accuracies = bound_accuracies(comparison)
    curves: dict[str, list[tuple[float, float]]] = {"latency_mean_s": [], "energy_dynamic_j": []}
    with solving(OF_A_BOUND * len(accuracies), output) as progress:
        model = FluidModel(world, on_solved=progress.update)
        for accuracy in accuracies:
            found = model.bound(accuracy, world.mean_rate_img_s)
            curves["latency_mean_s"].append((accuracy, found.latency_s))
            if found.energy_per_image_j is not None:
                curves["energy_dynamic_j"].append((accuracy, found.energy_per_image_j))
    return curves


def solving(programmes: int, output: Listener) -> Progress:
    """A bar over the programmes of a bound."""
    from scenarios.terminal.progress import Progress

    return Progress("bound", programmes, unit="programme", quiet=output.quiet)
