"""What needs the simulator alone: one run, a comparison, a capacity, a bound, and a plan of what to run where."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from kit.errors import InputError
from scenarios.metrics.result_documents import Bound, Capacity, Plan, SuiteScore
from slimsched.arguments import (
    LONGEST,
    Changes,
    Duration,
    Engine,
    Names,
    Out,
    Router,
    Routers,
    Scenario,
    ScenarioLike,
    Seed,
    Seeds,
    changes_of,
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
    from scenarios.experiment.resolved_scenario import Experiment
    from scenarios.files.scenario_keys import CompareSection
    from scenarios.job.job_stages import Run
    from scenarios.metrics.router_comparison import Bounds
    from scenarios.metrics.router_comparison import ComparisonDocument as Document
    from scenarios.metrics.run_result import Simulator
    from scenarios.metrics.slo import Slo
    from scenarios.runs.folder import RunFolder


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
        scenario: a scenario's file (YAML), or a bundled scenario's name, such as quickstart.
        router: the router: its name (docs/routers.md), a rule file, a trained router's file, or a custom
            `module:Class`.
        seed: the seed; the scenario's by default.
        engine: `simpy`, the reference, or `compiled`: identical to the last bit, many times as fast once compiled (10
            to 20 s, once on a machine). `auto` takes the faster for this run.
        out: a run folder for the run's record; without it nothing is written.
        changes: values that replace the scenario's, by dotted keys, such as workload.rate_img_s=600.

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
    from scenarios.files.router_files import check_router, display_name
    from scenarios.files.scenario_reading import require_router
    from scenarios.runs.simulated_runs import run_simulation, simulate_metrics

    router_name = str(router)
    require_within("--seed", seed, 0, LONGEST)
    check_router(router_name, "--router")
    run = begin(scenario, changes, out)
    require_router(router_name, run.scenario)
    experiment = run.experiment()
    seed = run.scenario.seed if seed is None else seed
    used_engine = ready_engine(experiment, engine, 1, seed)
    warn_of_routers(experiment, (router_name,), run.folder.path)
    tell_overload(experiment)
    name = display_name(router_name)
    with announcing_compilation((router_name,), used_engine):
        policy = experiment.router(router_name, run.folder.path)
        if out is None:
            return RunResult(simulate_metrics(experiment, policy, name, seed, engine=used_engine))
        from scenarios.runs.run_store import write_run

        with run.opened():
            result, record = run_simulation(experiment, policy, name, seed, engine=used_engine)
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

    Each router runs with each seed. An interrupted comparison resumes.

    Args:
        scenario: a scenario's file (YAML), or a bundled scenario's name.
        routers: a router, by name, file, or `NAME=FILE` to rename it in tables, instead of the scenario's
            (`compare.routers`); may be given several times.
        seeds: a seed, instead of the scenario's (`compare.seeds`); may be given several times.
        engine: as for `simulate`; `auto` keeps the engine that began the comparison.
        jobs: the number of parallel processes; by default one a core, or one for little work.
        bound: also compute the bound for any router, in some seconds.
        equal_accuracy: set every router's dial so that all have the scenario's floor on these runs, to 0.02 points; a
            router without a dial is unchanged. A custom class has one if it has an attribute `dial`.
        out: the run folder for the results; `runs/NAME` by default.
        changes: values that replace the scenario's, by dotted keys, such as workload.rate_img_s=600.

    Returns:
        The comparison. It runs parallel processes, so a script needs the guard of `__main__`.

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
    from scenarios.job import comparing_stage as stage
    from scenarios.job.profile_stages import with_decision_times
    from scenarios.runs.simulated_runs import default_jobs

    section, equal = run.scenario.compare, None
    experiment = run.experiment()
    used_engine = _engine_for(experiment, section, engine, jobs or 1, bound)
    warn_of_routers(experiment, section.routers, run.folder.path)
    with run.opened():
        run.describe()
        with announcing_compilation(section.routers):
            experiment = with_decision_times(run, experiment, section.routers)
        tell_overload(experiment)
        if equal_accuracy:
            with announcing_compilation(section.routers, "compiled"):
                experiment, equal = stage.equalled(run, experiment)
        if engine == "auto":
            used_engine = stage.engine_to_go_on(run, experiment, used_engine)
        within = partial(announcing_compilation, section.routers, used_engine)
        jobs = jobs or default_jobs(experiment, section.runs, section.seeds[0], used_engine)
        bounds = partial(_bounds, experiment) if bound else None
        document = stage.compare(run, experiment, used_engine, jobs=jobs, bounds=bounds, within=within, equal=equal)
    return Comparison(document, stage.results_of(run), run.folder.path)


def _engine_for(
    experiment: Experiment, section: CompareSection, engine: Engine, processes: int, bound: bool
) -> Simulator:
    """Return what computes the comparison; raises `InputError` without memory or a solver for all of it."""
    from scenarios.runs.fluid_bound import require_solvable
    from scenarios.runs.simulated_runs import engine_of, require_memory

    used_engine = engine_of(experiment, engine, section.runs)
    require_memory(experiment, used_engine, processes=processes)
    if bound:
        require_solvable(experiment)
    return used_engine


def _bounds(experiment: Experiment, comparison: Document) -> Bounds:
    """Return the fluid bound at each router's accuracy and between, as points (accuracy, least cost)."""
    from scenarios.metrics.router_comparison import bound_accuracies
    from scenarios.runs.fluid_bound import OF_A_BOUND, FluidModel

    accuracies = bound_accuracies(comparison)
    curves: dict[str, list[tuple[float, float]]] = {"latency_mean_s": [], "energy_dynamic_j": []}
    with solving(OF_A_BOUND * len(accuracies)) as progress:
        # a router is held to its mean, whatever its classes have
        model = FluidModel(experiment, on_solved=progress.update)
        for accuracy in accuracies:
            bound = model.bound(accuracy, experiment.mean_rate_img_s)
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
    """Find the largest rate that a router sustains, in simulation.

    With classes of requests, every class must meet its objective.

    Args:
        scenario: a scenario's file (YAML), or a bundled scenario's name.
        router: the router's name, or a trained router's file.
        seeds: a seed; the scenario's by default. May be given several times: then most of them must be stable.
        p99_s: also require a p99 latency of at most this, such as 10ms.
        floor: also require this mean accuracy, 0 to 1, by the table, of the widths that ran.
        duration_s: the length of a run (20s); near its limit a router may take long to fail.
        precision: the precision, as a share of the rate.
        out: the run folder with network and profiles that the scenario does not name; `runs/NAME` by default.
        changes: values that replace the scenario's, by dotted keys.

    Raises:
        InputError: no such scenario or router, or something that it needs is missing.

    Example:
        ```python
        limit = slimsched.capacity(short, "jsq", p99_s=0.2, duration_s=2, precision=0.2)
        print(f"{limit.stable_img_s:.0f} images/s are sustained, {limit.unstable_img_s:.0f} are not")
        ```
    """
    from scenarios.files.router_files import check_router, display_name
    from scenarios.files.scenario_reading import require_router
    from scenarios.metrics.slo import Slo
    from scenarios.metrics.statistics import NEW_RUNS
    from scenarios.runs import capacity_search as searching
    from scenarios.show.wording import say

    require_within("--floor", floor, 0, 1)
    require_within("--precision", precision, 0.001, 0.5)
    router_name = str(router)
    check_router(router_name, "--router")
    run = begin(scenario, changes, out)
    require_router(router_name, run.scenario)
    experiment = run.experiment()
    chosen_seeds = require_unique("--seed", tuple(seeds) or (run.scenario.seed,))
    searched = searching.under_poisson(experiment)
    runs = CAPACITY_RUNS * (len(chosen_seeds) // 2 + 1) + 4  # most of the seeds decide if it is sustained
    if p99_s is not None:
        runs += NEW_RUNS
    used_engine = ready_engine(searched, "auto", runs, chosen_seeds[0], duration_s=duration_s)
    warn_of_routers(experiment, (router_name,), run.folder.path)
    slo = Slo(floor, p99_s, classes=Slo.of(run.scenario).classes)
    name = display_name(router_name)
    search = searching.Search(name, chosen_seeds, duration_s, precision, used_engine, slo, is_checked=True)
    with announcing_compilation((router_name,), used_engine):
        return searching.capacity(
            experiment,
            lambda: experiment.router(router_name, run.folder.path),
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

    It is the optimum of a linear program; nothing is simulated. The mean accuracy is at least the scenario's floor, if
    any. With classes of requests, each has its share of the images, and its floor.

    Args:
        scenario: a scenario's file (YAML), or a bundled scenario's name.
        out: the run folder with network and profiles that the scenario does not name; `runs/NAME` by default.
        changes: values that replace the scenario's, by dotted keys, such as slo.floor=0.75.

    Raises:
        InputError: no width tuple is so accurate, or something that it needs is missing.

    Example:
        ```python
        limit = slimsched.bound("paper", changes={"workload.rate_img_s": 300, "slo.floor": 0.75})
        print(f"at most {limit.capacity_img_s:.0f} images/s; at 300, {1000 * limit.latency_mean_s:.1f} ms or more")
        ```
    """
    from scenarios.runs.fluid_bound import OF_A_BOUND, FluidModel, oracle_of, programmes_of_an_oracle
    from scenarios.runs.simulated_runs import require_memory

    experiment = begin(scenario, changes, out).experiment()
    require_memory(experiment, "compiled")
    floor, classes = experiment.scenario.slo.floor, experiment.scenario.classes
    least = min(experiment.accuracy.prior.accuracies.values()) if floor is None else floor
    if any(each.floor for each in classes):
        least = max(least, sum(each.share * (each.floor or least) for each in classes))
    with solving(OF_A_BOUND + programmes_of_an_oracle(experiment.scenario)) as progress:
        model = FluidModel(experiment, on_solved=progress.update, classes=classes)
        return replace(model.bound(least, experiment.mean_rate_img_s), oracle=oracle_of(model))


@verb
def suite(routers: Routers = (), *, only: Names = (), out: Out = None) -> SuiteScore:
    """Compare routers with the published ones over the suite, at equal accuracy.

    The suite has a dozen scenarios and a dozen drawn clusters, with fixed seeds that no tuning saw. Every router's dial
    is set to each case's accuracy; a router without a dial is unchanged, and marked. An interrupted call resumes.

    Args:
        routers: a router's name, file (of a Gymnasium policy, too: docs/how-to-add.md) or custom `module:Class`; may be
            given several times.
        only: a case's name; may be given several times (all).
        out: the folder for finished cases; `runs/suite` by default.

    Raises:
        InputError: no such router or case.

    Example:
        ```python
        score = slimsched.suite(["ladder"], only=["memory-tight"])
        print(score.cases[0].routers["ladder"].mean("p99_s"))
        ```
    """
    from kit.files import writable_folder
    from scenarios.files.router_files import check_router
    from scenarios.job.comparing_stage import race
    from scenarios.runs.folder import RunFolder

    names = tuple(map(str, routers))
    if not names:
        raise InputError("--router", "", "missing; name a router, such as --router ladder")
    for name in names:
        check_router(name, "--router")
    folder = RunFolder(writable_folder(Path(out or "runs/suite")), observer().remark)
    with folder.opened(), announcing_compilation(names, "compiled"):
        return race(names, folder, only, quiet=observer().quiet)


CARRIED_S: Final = 20.0
SEEDS: Final = 3  # of the comparison's


@verb
def plan(
    scenario: ScenarioLike,
    /,
    routers: Routers = (),
    *,
    out: Out = None,
    changes: Changes | None = None,
) -> Plan:
    """Show what to run where, its capacity, and the effect of more load or a lost device.

    Routers are compared with plain replication: every image at full width, or at the one width tuple that keeps the
    floor and has the highest capacity. All of it is simulated: under the scenario's load, and for capacity under
    Poisson arrivals, as `capacity` does, in runs of 20 s, or of the scenario's length if that is shorter. The goals are
    the scenario's `slo`; the default floor is the untuned ladder's accuracy.

    Args:
        scenario: a scenario's file (YAML), or a bundled scenario's name.
        routers: a router, by name or file, instead of the scenario's (`compare.routers`); may be given several times.
            Kinds that keep goals are always tried, untuned.
        out: the run folder with network, profiles and routers, which receives the rule to run if it has no file yet;
            `runs/NAME` by default.
        changes: values that replace the scenario's, by dotted keys, such as slo.floor=0.75. The first three of
            `compare.seeds` are used.

    Raises:
        InputError: no such scenario or router, or something that it needs is missing.

    Example:
        ```python
        what = slimsched.plan(short, ["jsq"])
        print(what.choice, [(server.server, round(server.share, 2)) for server in what.servers])
        ```
    """
    from scenarios.files.router_files import display_name, require_distinct_names
    from scenarios.metrics.statistics import NEW_RUNS
    from scenarios.runs import router_planning
    from scenarios.terminal.progress import Progress

    run = with_routers(begin(scenario, changes, out), "compare", routers)
    keys = run.scenario
    if keys.classes:
        remedy = "`slimsched capacity` shows what each router sustains, class by class"
        raise InputError(keys.name, "classes", f"a plan has no classes of requests; {remedy}")
    experiment = run.experiment()
    names = tuple(map(str, keys.compare.routers))
    require_distinct_names(names)
    chosen_seeds = keys.compare.seeds[:SEEDS]
    slo = _slo_of(experiment)
    if doubt := router_planning.floor_doubt(experiment, slo):
        observer().remark(f"warning: {doubt}")
    candidates, unmade = router_planning.candidates(experiment, slo, names, run.folder.path)
    runs = CAPACITY_RUNS * len(candidates) * len(chosen_seeds) + NEW_RUNS
    engine = ready_engine(experiment, "auto", runs, chosen_seeds[0])
    tell_overload(experiment)
    steps = router_planning.steps_of(experiment, len(candidates), len(chosen_seeds))
    with (
        nullcontext() if run.folder.is_in_use else run.opened(),  # a `serve` may be in progress there
        announcing_compilation(names, engine),
        Progress("plan", steps, unit="step", quiet=observer().quiet) as progress,
    ):
        trial = router_planning.Trial(
            experiment, slo, chosen_seeds, engine, min(CARRIED_S, keys.duration_s), progress.update
        )
        result = replace(
            router_planning.plan(trial, candidates, unmade),
            unreliable=_unreliable(experiment),
            trusted=_trusted(run.folder),
        )
        result = _with_rule(result, run)
    router = str(result.file or {display_name(name): name for name in names}.get(result.choice or "", result.choice))
    commands = () if result.choice is None else _commands(run, _arguments(scenario, changes, out), router)
    return replace(result, commands=commands)


def _slo_of(experiment: Experiment) -> Slo:
    """Return the scenario's SLO; with the untuned ladder's accuracy, if it names no floor."""
    from scenarios.learn.tune import params_of
    from scenarios.metrics.slo import Slo

    slo = Slo.of(experiment.scenario)
    if slo.floor is not None:
        return slo
    floor = params_of(experiment).floor
    observer().remark(f"no floor is named (slo.floor): the untuned ladder's is taken, {100 * (floor or 0):.1f} %")
    return replace(slo, floor=floor)


def _unreliable(experiment: Experiment) -> tuple[str, ...]:
    from scenarios.show.command_tables import unreliable

    owners = experiment.scenario.cluster.owners
    return tuple(server.name for server in owners if unreliable(experiment.profile_of(server.name)))


def _trusted(folder: RunFolder) -> tuple[str, ...]:
    from kit.documents import told_of
    from scenarios.show.answers import TRUSTED, answers

    files = ("comparison.json", "validation.json")
    comparison, validation = (folder.read_json(name) if (folder / name).exists() else None for name in files)
    with told_of(folder / "validation.json", folder.remedy("validation.json")):
        replies = answers(comparison, validation) if validation else []
    return next((tuple(reply.lines) for reply in replies if reply.label == TRUSTED), ())


def _with_rule(plan: Plan, run: Run) -> Plan:
    """Write the rule of a choice that has no file yet."""
    from policies.router_names import rule_from_dict
    from scenarios.files.bundled_files import planned_file
    from scenarios.files.router_files import write_rule

    choice = plan.of(plan.choice)
    if choice is None or choice.rule is None:
        return plan
    file = run.folder / planned_file(choice.router)
    write_rule(file, rule_from_dict(choice.rule, str(file)))
    return replace(plan, file=file)


def _commands(run: Run, arguments: Sequence[str], router: str) -> tuple[str, ...]:
    """Return what to type to continue with a router; executors serve if each server has a device."""
    verbs = ("simulate", "serve") if run.can_validate else ("simulate",)
    scenario, *options = arguments
    return tuple(shlex.join(["slimsched", verb, scenario, "--router", router, *options]) for verb in verbs)


def _arguments(scenario: ScenarioLike, changes: Mapping[str, Any] | None, out: Out) -> list[str]:
    """Return a scenario with its changes and its run folder, as commands take them."""
    path, settings = scenario, changes_of(changes)
    if isinstance(scenario, Scenario):
        path, settings = scenario.path, json.loads(scenario.changed or "{}")
    arguments = [str(path)]
    for key, value in settings.items():
        arguments += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value, default=str)}"]
    return [*arguments, *([] if out is None else ["--out", str(out)])]
