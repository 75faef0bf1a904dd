"""What needs the simulator alone: one run, a comparison, a capacity, a bound."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kit.errors import InputError
from scenarios.metrics.limits import Bound, Capacity
from scenarios.metrics.suite import SuiteScore
from slimsched.arguments import (
    LONGEST,
    Changes,
    Duration,
    Engine,
    Names,
    Out,
    Router,
    Routers,
    ScenarioLike,
    Seed,
    Seeds,
    require_unique,
    require_within,
)
from slimsched.results import Comparison, RunResult
from slimsched.working import (
    announcing_compilation,
    begin,
    observer,
    ready_engine,
    require_made,
    solving,
    tell_overload,
    verb,
    warn_of_routers,
    with_routers,
)

if TYPE_CHECKING:
    from scenarios.files.spec import CompareSection
    from scenarios.metrics.comparison import Bounds
    from scenarios.metrics.comparison import ComparisonDocument as Document
    from scenarios.metrics.result import Simulator
    from scenarios.world.world import World

CAPACITY_RUNS = 8  # that a search takes, about


@verb
def simulate(
    scenario: ScenarioLike,
    /,
    router: Router = "random",
    *,
    seed: Seed = None,
    engine: Engine = "auto",
    out: Out = None,
    changes: Changes | None = None,
) -> RunResult:
    """Simulate one run with one router.

    Args:
        scenario: a scenario's file (YAML), or a shipped one by name, such as quickstart; or what `load` returned.
        router: by name (docs/routers.md), a rule file, a trained router's file, or `module:Class` of your own.
        seed: the scenario's by default.
        engine: `simpy`, the reference, or `compiled`: the same to the last bit, many times as fast once it is compiled
            (10 to 20 s, once on a machine). `auto` takes the quicker for this run alone.
        out: a run folder that keeps the run's record; without one nothing is written.
        changes: other values than the scenario's, by dotted keys, such as workload.rate_img_s=600.

    Returns:
        The run's numbers. One that completed nothing has latencies of None.

    Raises:
        InputError: no such scenario or router, or something that it needs is missing.
        UnsupportedScenario: the compiled engine was asked for, and can't do what the scenario asks for.

    Example:
        ```python
        result = slimsched.simulate(short, "jsq", seed=1)
        print(f"{1000 * result.latency_p99_s:.1f} ms at {result.accuracy:.1%}, {result.energy_per_image_j:.3f} J")
        print([(server.name, round(server.utilization, 2)) for server in result.servers])
        ```
    """
    from scenarios.files.reading import require_router
    from scenarios.files.router_names import check_router, display_name
    from scenarios.runs.simulate import run_simulation, simulate_metrics

    named = str(router)
    require_within("--seed", seed, 0, LONGEST)
    check_router(named, "--router")
    run = begin(scenario, changes, out)
    require_router(named, run.scenario)
    world = run.world()
    seed = run.scenario.seed if seed is None else seed
    chosen = ready_engine(world, engine, 1, seed)
    warn_of_routers(world, (named,), run.folder.path)
    tell_overload(world)
    name = display_name(named)
    with announcing_compilation((named,), chosen):
        policy = world.router(named, run.folder.path)
        if out is None:
            return RunResult(simulate_metrics(world, policy, name, seed, engine=chosen))
        from scenarios.runs.records import write_run

        with run.opened():
            result, record = run_simulation(world, policy, name, seed, engine=chosen)
            write_run(run.folder, result, record)
    return RunResult(result)


@verb
def compare(
    scenario: ScenarioLike,
    /,
    routers: Routers = (),
    seeds: Seeds = (),
    *,
    engine: Engine = "auto",
    jobs: Annotated[int | None, Parameter(alias="-j")] = None,
    bound: bool = False,
    equal_accuracy: bool = False,
    out: Out = None,
    changes: Changes | None = None,
) -> Comparison:
    """Compare routers in simulation, on the same arrivals.

    Each router runs with each seed. Interrupted, the same call goes on from what is finished.

    Args:
        scenario: a scenario's file (YAML), or a shipped one by name; or what `load` returned.
        routers: by name, file, or `NAME=FILE` for another name in tables, instead of the scenario's
            (`compare.routers`); may be given several times.
        seeds: instead of the scenario's (`compare.seeds`); may be given several times.
        engine: as for `simulate`; `auto` goes on with the one that has begun the comparison.
        jobs: parallel processes; by default one a core, or one for little work. Scripts need the guard of `__main__`.
        bound: also compute the bound that no router can beat; takes some seconds.
        equal_accuracy: set every router's dial so that all have the scenario's floor on these very runs, to 0.02
            points; a router without a dial is as it is. A custom class has one if it has an attribute `dial`.
        out: the run folder, which keeps the results; `runs/NAME` by default.
        changes: other values than the scenario's, by dotted keys, such as workload.rate_img_s=600.

    Raises:
        InputError: a router is not known or not made yet, or something is missing.
        UnsupportedScenario: the compiled engine was asked for, and can't do what the scenario asks for.

    Example:
        ```python
        table = slimsched.compare(short, ["random", "jsq", "ladder"], seeds=[0, 1], out="runs/short")
        for summary in table.routers:
            print(summary.router, f"{summary.estimates['latency_mean_s']:.4f} s")
        rows = table.rows()  # a row a router and seed; table.to_frame() is the same for pandas
        ```
    """
    require_within("--jobs", jobs, 1, 1024)
    run = with_routers(begin(scenario, changes, out), "compare", routers, seeds)
    require_made(run, "compare")
    from scenarios.job import comparison as stage
    from scenarios.job.deciding import with_decision_times
    from scenarios.runs.simulate import default_jobs

    given, equal = run.scenario.compare, None
    world = run.world()
    chosen = _engine_for(world, given, engine, jobs or 1, bound)
    warn_of_routers(world, given.routers, run.folder.path)
    with run.opened():
        run.describe()
        with announcing_compilation(given.routers):
            world = with_decision_times(run, world, given.routers)
        tell_overload(world)
        if equal_accuracy:
            with announcing_compilation(given.routers, "compiled"):
                world, equal = stage.equalled(run, world)
        if engine == "auto":
            chosen = stage.engine_to_go_on(run, world, chosen)
        within = partial(announcing_compilation, given.routers, chosen)
        jobs = jobs or default_jobs(world, given.runs, given.seeds[0], chosen)
        bounds = partial(_bounds, world) if bound else None
        document = stage.compare(run, world, chosen, jobs=jobs, bounds=bounds, within=within, equal=equal)
    return Comparison(document, stage.results_of(run), run.folder.path)


def _engine_for(world: World, given: CompareSection, engine: Engine, processes: int, bound: bool) -> Simulator:
    """Return what computes the comparison; raises `InputError` without memory or a solver for all of it."""
    from scenarios.runs.bound import require_solvable
    from scenarios.runs.engines import engine_of, require_memory

    chosen = engine_of(world, engine, given.runs)
    require_memory(world, chosen, processes=processes)
    if bound:
        require_solvable(world)
    return chosen


def _bounds(world: World, comparison: Document) -> Bounds:
    """Return the fluid bound at each router's accuracy and between, as points (accuracy, least cost)."""
    from scenarios.metrics.comparison import bound_accuracies
    from scenarios.runs.bound import OF_A_BOUND, FluidModel

    accuracies = bound_accuracies(comparison)
    curves: dict[str, list[tuple[float, float]]] = {"latency_mean_s": [], "energy_dynamic_j": []}
    with solving(OF_A_BOUND * len(accuracies)) as progress:
        model = FluidModel(world, on_solved=progress.update)  # a router is held to its mean, whatever its classes have
        for accuracy in accuracies:
            bound = model.bound(accuracy, world.mean_rate_img_s)
            curves["latency_mean_s"].append((accuracy, bound.latency_mean_s))
            if bound.energy_dynamic_j is not None:
                curves["energy_dynamic_j"].append((accuracy, bound.energy_dynamic_j))
    return curves


@verb
def capacity(
    scenario: ScenarioLike,
    /,
    router: Router = "random",
    seeds: Seeds = (),
    *,
    p99_s: Duration | None = None,
    floor: float | None = None,
    duration_s: Duration = 20.0,
    precision: float = 0.05,
    out: Out = None,
    changes: Changes | None = None,
) -> Capacity:
    """Find the largest rate that a router carries, by simulation.

    Where requests have classes, each class must be kept what it is promised.

    Args:
        scenario: a scenario's file (YAML), or a shipped one by name; or what `load` returned.
        router: by name, or a trained router's file.
        seeds: the scenario's by default; may be given several times: then most of them must be stable.
        p99_s: also ask for a p99 latency of at most that, such as 10ms.
        floor: also ask for at least this mean accuracy, 0 to 1, by the table, of the widths that ran.
        duration_s: of each run, 20s by default; near its limit a router may take long to show that it fails.
        precision: of the rate, as a share of it.
        out: the run folder whose network and profiles are taken where the scenario names none; `runs/NAME` by default.
        changes: other values than the scenario's, by dotted keys.

    Raises:
        InputError: no such scenario or router, or something that it needs is missing.

    Example:
        ```python
        limit = slimsched.capacity(short, "jsq", p99_s=0.2, duration_s=2, precision=0.2)
        print(f"{limit.stable_img_s:.0f} images/s are carried, {limit.unstable_img_s:.0f} are not")
        ```
    """
    from scenarios.files.reading import require_router
    from scenarios.files.router_names import check_router, display_name
    from scenarios.metrics.prediction import NEW_RUNS
    from scenarios.metrics.slo import Slo
    from scenarios.runs import capacity as searching
    from scenarios.show.wording import say

    require_within("--floor", floor, 0, 1)
    require_within("--precision", precision, 0.001, 0.5)
    named = str(router)
    check_router(named, "--router")
    run = begin(scenario, changes, out)
    require_router(named, run.scenario)
    world = run.world()
    chosen_seeds = require_unique("--seed", tuple(seeds) or (run.scenario.seed,))
    searched = searching.under_poisson(world)
    runs = CAPACITY_RUNS * (len(chosen_seeds) // 2 + 1) + 4  # most of the seeds decide if it is sustained
    if p99_s is not None:
        runs += NEW_RUNS
    chosen = ready_engine(searched, "auto", runs, chosen_seeds[0], duration_s=duration_s)
    warn_of_routers(world, (named,), run.folder.path)
    slo = Slo(floor, p99_s, classes=Slo.of(run.scenario).classes)
    search = searching.Search(display_name(named), chosen_seeds, duration_s, precision, chosen, slo, is_checked=True)
    with announcing_compilation((named,), chosen):
        return searching.capacity(
            world,
            lambda: world.router(named, run.folder.path),
            search,
            on_progress=lambda tried: observer().remark(say("capacity", "tried", tried, slo)),
        )


@verb
def bound(
    scenario: ScenarioLike,
    /,
    *,
    out: Out = None,
    changes: Changes | None = None,
) -> Bound:
    """Compute a bound that no router can beat.

    It is a linear programme; nothing is simulated. Its mean accuracy is the scenario's floor at least, and any where
    the scenario has none. Where requests have classes, each class has its share of the images, and its floor.

    Args:
        scenario: a scenario's file (YAML), or a shipped one by name; or what `load` returned.
        out: the run folder whose network and profiles are taken where the scenario names none; `runs/NAME` by default.
        changes: other values than the scenario's, by dotted keys, such as slo.floor=0.75.

    Raises:
        InputError: no width tuple is so accurate, or something that it needs is missing.

    Example:
        ```python
        limit = slimsched.bound("paper", changes={"workload.rate_img_s": 300, "slo.floor": 0.75})
        print(f"at most {limit.capacity_img_s:.0f} images/s; at 300, {1000 * limit.latency_mean_s:.1f} ms or more")
        ```
    """
    from scenarios.runs.bound import OF_A_BOUND, FluidModel, oracle_of, programmes_of_an_oracle
    from scenarios.runs.engines import require_memory

    world = begin(scenario, changes, out).world()
    require_memory(world, "compiled")
    floor, classes = world.scenario.slo.floor, world.scenario.classes
    least = min(world.accuracy.prior.top1.values()) if floor is None else floor
    if any(each.floor for each in classes):
        least = max(least, sum(each.share * (each.floor or least) for each in classes))
    with solving(OF_A_BOUND + programmes_of_an_oracle(world.scenario)) as progress:
        model = FluidModel(world, on_solved=progress.update, classes=classes)
        return replace(model.bound(least, world.mean_rate_img_s), oracle=oracle_of(model))


@verb
def suite(routers: Routers = (), *, only: Names = (), out: Out = None) -> SuiteScore:
    """Race routers at equal accuracy over the suite, next to the published ones.

    The suite has a dozen scenarios and a dozen drawn clusters, with fixed seeds that no tuning saw. In each of them
    every router's dial is set so that it has the case's accuracy; one without a dial is as it is, and its row states
    that. If it is interrupted, the same call resumes.

    Args:
        routers: by name, file (of a Gymnasium policy, too: docs/how-to-add.md) or a custom `module:Class`; may be
            given several times.
        only: cases by name; may be given several times. All by default.
        out: the folder that keeps finished cases; `runs/suite` by default.

    Raises:
        InputError: no such router or case.

    Example:
        ```python
        score = slimsched.suite(["ladder"], only=["memory-tight"])
        print(score.cases[0].routers["ladder"].mean("p99_s"))
        ```
    """
    from kit.files import writable_folder
    from scenarios.files.router_names import check_router
    from scenarios.job.suite import race
    from scenarios.runs.folder import RunFolder

    named = tuple(map(str, routers))
    if not named:
        raise InputError("--router", "", "missing; name a router, such as --router ladder")
    for name in named:
        check_router(name, "--router")
    folder = RunFolder(writable_folder(Path(out or "runs/suite")), observer().remark)
    with folder.opened(), announcing_compilation(named, "compiled"):
        return race(named, folder, only, quiet=observer().quiet)
