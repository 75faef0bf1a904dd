"""Commands that need the simulator alone: simulate, compare, capacity, bound."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from functools import partial
from typing import TYPE_CHECKING

from scenarios.commands.shared import (
    announcing_compilation,
    begin_job,
    load_world_of,
    make_job,
    require_made,
    require_unique,
    scenario_and_folder,
    spread,
    tell_effort,
    tell_foreign,
    tell_overload,
    with_routers,
)
from scenarios.files.router_names import check_router
from scenarios.metrics.served import require_completed
from scenarios.runs.folder import RunFolder
from scenarios.runs.records import write_run
from scenarios.show.numbers import number
from scenarios.show.result import format_result
from scenarios.terminal.output import Output

CAPACITY_RUNS = 8  # that a search takes, about

if TYPE_CHECKING:
    from scenarios.metrics.comparison import Bounds, Comparison
    from scenarios.terminal.progress import Progress
    from scenarios.world.world import World


def simulate(arguments: Namespace) -> int:
    """One simulated run; its record is kept where `--out` says."""
    from scenarios.files.router_names import display_name
    from scenarios.runs.simulate import run_simulation, simulate_metrics

    output = Output(arguments)
    check_router(arguments.router, "--router")
    scenario, folder = scenario_and_folder(arguments)
    world = load_world_of(scenario, folder)
    tell_effort(output, world, 1, arguments.engine)
    tell_foreign(output, world, (arguments.router,))
    tell_overload(output, world)
    seed = scenario.seed if arguments.seed is None else arguments.seed
    router = world.router(arguments.router, folder)
    name = display_name(arguments.router)
    with announcing_compilation(output, (arguments.router,), arguments.engine):
        if arguments.out is None:
            result = simulate_metrics(world, router, name, seed, engine=arguments.engine)
        else:
            run_folder = RunFolder(arguments.out, output.remark)
            with run_folder.opened(arguments.scenario, maker="simulate"):
                result, record = run_simulation(world, router, name, seed, engine=arguments.engine)
                write_run(run_folder, result, record)
    output.result(format_result(result), result)
    require_completed([result])
    return 0


def compare(arguments: Namespace) -> int:
    """Routers x seeds in simulation."""
    from scenarios.files.router_names import display_name
    from scenarios.job import comparison as stage
    from scenarios.job.deciding import with_decision_times
    from scenarios.runs.bound import require_solvable
    from scenarios.runs.simulate import default_jobs
    from scenarios.show.answers import format_answers
    from scenarios.show.comparison import format_all

    output = Output(arguments)
    scenario, folder = scenario_and_folder(arguments)
    scenario = with_routers(scenario, "compare", arguments)
    require_made(scenario.compare.routers, folder)
    given = scenario.compare
    runs = len(given.routers) * len(given.seeds)
    world = load_world_of(scenario, folder)
    tell_effort(output, world, runs, arguments.engine, jobs=arguments.jobs or 1)
    if arguments.bound:
        require_solvable(world)
    tell_foreign(output, world, given.routers)
    job = make_job(scenario, folder, output)
    with job.folder.opened(arguments.scenario), announcing_compilation(output, given.routers, arguments.engine):
        world = with_decision_times(job, begin_job(job), given.routers)
        tell_overload(output, world)
        own_jobs = partial(default_jobs, world, runs, given.seeds[0], arguments.engine)
        with spread(arguments, lambda: arguments.jobs or own_jobs()) as jobs:
            comparison = stage.compare(
                job,
                world,
                arguments.engine,
                jobs=jobs,
                against=None if arguments.against is None else display_name(arguments.against),
                bounds=(lambda found: _bounds(world, found, output)) if arguments.bound else None,
            )
    texts = filter(None, [format_answers(comparison, None), format_all(comparison)])
    output.result("\n\n".join(texts), comparison)
    if arguments.picture is not None and any(comparison["pareto"]["fronts"].values()):
        from scenarios.show import charts

        charts.save(charts.trade_off_chart(comparison), arguments.picture)
    require_completed(stage.results_of(job))
    return 0


def _bounds(world: World, comparison: Comparison, output: Output) -> Bounds:
    """The fluid bound at each router's accuracy and between, as points (accuracy, least cost)."""
    from scenarios.metrics.comparison import bound_accuracies
    from scenarios.runs.bound import OF_A_BOUND, FluidModel

    accuracies = bound_accuracies(comparison)
    curves: dict[str, list[tuple[float, float]]] = {"latency_mean_s": [], "energy_dynamic_j": []}
    with _solving(OF_A_BOUND * len(accuracies), output) as progress:
        model = FluidModel(world, on_solved=progress.update)
        for accuracy in accuracies:
            found = model.bound(accuracy, world.mean_rate_img_s)
            curves["latency_mean_s"].append((accuracy, found.latency_s))
            if found.energy_per_image_j is not None:
                curves["energy_dynamic_j"].append((accuracy, found.energy_per_image_j))
    return curves


def _solving(programmes: int, output: Output) -> Progress:
    from scenarios.terminal.progress import Progress

    return Progress("bound", programmes, unit="programme", quiet=output.quiet)


def capacity(arguments: Namespace) -> int:
    """The largest rate that is stable, and keeps what the flags ask."""
    from scenarios.files.router_names import display_name
    from scenarios.metrics.service import Promise
    from scenarios.runs.capacity import Search, under_poisson
    from scenarios.runs.capacity import capacity as find_capacity
    from scenarios.show.capacity import capacity_text, tried_text

    output = Output(arguments)
    check_router(arguments.router, "--router")
    scenario, folder = scenario_and_folder(arguments)
    world = load_world_of(scenario, folder)
    tell_effort(output, under_poisson(world), CAPACITY_RUNS, arguments.engine, duration_s=arguments.duration)
    tell_foreign(output, world, (arguments.router,))
    search = Search(
        display_name(arguments.router),
        require_unique("--seed", tuple(arguments.seed or (scenario.seed,))),
        arguments.duration,
        arguments.precision,
        arguments.workload == "own",
        arguments.engine,
        Promise(arguments.floor, arguments.p99),
    )
    with announcing_compilation(output, (arguments.router,), arguments.engine):
        found = find_capacity(
            world,
            lambda: world.router(arguments.router, folder),
            search,
            on_progress=lambda tried: output.remark(tried_text(tried, search.promise)),
        )
    document = {"schema": "slimsched.capacity/1", "engine": arguments.engine, **dataclasses.asdict(found)}
    return output.result(capacity_text(found, search), document)


def bound(arguments: Namespace) -> int:
    """What the fluid model allows; with a load that moves also what an oracle could make of it."""
    from scenarios.runs.bound import OF_A_BOUND, FluidModel, oracle_of, programmes_of_an_oracle

    output = Output(arguments)
    world = load_world_of(*scenario_and_folder(arguments))
    tell_effort(output, world, 1, "compiled")
    accuracy = min(world.accuracy.prior.top1.values()) if arguments.accuracy is None else arguments.accuracy
    with _solving(OF_A_BOUND + programmes_of_an_oracle(world.scenario), output) as progress:
        model = FluidModel(world, on_solved=progress.update)
        found = model.bound(accuracy, world.mean_rate_img_s)
        oracle = oracle_of(model, arguments.window)
    rate = f"at {number(found.rate_img_s, 1)} images/s" if found.rate_img_s else "at the trace's own rate"
    lines = [
        f"at a mean accuracy of at least {100 * found.accuracy:.2f} %, no router can",
        f"  serve more than {found.capacity_img_s:.1f} images/s",
        f"  have a mean latency below {found.latency_s * 1000:.2f} ms",
    ]
    if found.energy_per_image_j is not None and found.total_energy_per_image_j is not None:
        joules = f"{found.energy_per_image_j:.4f} J/image above idle, or {found.total_energy_per_image_j:.4f} with it,"
        lines.append(f"  spend less than {joules} {rate}")
    if oracle is not None:
        lines += [
            f"the load moves, to {oracle.peak_img_s:.0f} images/s in {oracle.window_s:g} s: a router that knew it,",
            f"and carried each window's images within it, would have {100 * oracle.accuracy:.2f} % (an estimate)",
        ]
    document = {
        "schema": "slimsched.bound/1",
        **dataclasses.asdict(found),
        "oracle": None if oracle is None else dataclasses.asdict(oracle),
    }
    return output.result("\n".join(lines), document)
