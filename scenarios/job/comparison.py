"""The stage `compare`: every router with every seed, in simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from kit.documents import inputs_hash, write_json
from kit.errors import InputError, nearest
from scenarios.files.router_names import display_name, learned_among
from scenarios.job.context import Run
from scenarios.metrics.comparison import Bounds, ComparisonDocument, EqualAccuracy, compare_results
from scenarios.metrics.result import Result, Simulator
from scenarios.metrics.slo import Slo
from scenarios.runs.engines import able_to_run
from scenarios.runs.equal import EqualRuns
from scenarios.runs.records import write_run
from scenarios.runs.simulate import run_simulation, simulate_all
from scenarios.show.profile import unreliable
from scenarios.terminal.progress import Progress
from scenarios.world.world import World

STAGE = "compare"
Within = Callable[[], AbstractContextManager[None]]
RESULTS = "results.json"
RECORDS = "records"
RECORDS_FORM = 3  # of what is kept: since 3 a result records what was offered
KEPT_IMAGES = 200_000  # of a run whose record the report shows: beyond, it is gigabytes


def compare(
    run: Run,
    world: World,
    engine: Simulator = "simpy",
    *,
    jobs: int = 1,
    bounds: Callable[[ComparisonDocument], Bounds] | None = None,
    within: Within = nullcontext,
    equal: EqualAccuracy | None = None,
) -> ComparisonDocument:
    """Run every router with every seed, in simulation.

    Args:
        jobs: number of runs at a time.
        bounds: makes the points of the bounds, once it is known how accurate the routers are.
        within: is entered if something is to be run.
        equal: as which dials were set in the world (`equalled`).

    Raises:
        InputError: the baseline is not compared.
    """
    section = run.scenario.compare
    names, baseline = [display_name(router) for router in section.routers], section.baseline
    if baseline is not None and (baseline := display_name(baseline)) not in names:
        problem = f"{baseline!r} is not compared here; {nearest(baseline, names)}"
        raise InputError(run.scenario.name, "compare.baseline", problem)
    results = _compared(run, world, engine, jobs, within)
    compared = partial(
        compare_results, results, baseline, learned=learned_among(section.routers, run.folder.path),
        unreliable=[server.name for server in run.scenario.cluster.owners if unreliable(world.profile_of(server.name))],
        equal=equal,
    )  # fmt: skip
    document = compared()
    if bounds is not None:
        document = compared(bounds=bounds(document))
    write_json(run.folder / "comparison.json", document)
    return document


def equalled(run: Run, world: World) -> tuple[World, EqualAccuracy]:
    """Return the world in which every router with a dial has the scenario's floor on the comparison's own runs.

    Raises:
        InputError: the scenario names no floor, or no dial of a router has it.
    """
    given, floor = run.scenario.compare, Slo.of(run.scenario).floor
    if floor is None:
        remedy = "name the accuracy that all are to have, such as --set slo.floor=0.75"
        raise InputError(run.scenario.name, "slo.floor", f"missing; {remedy}")
    runs, dials = EqualRuns(world, given.seeds, run.folder.path), dict[str, float | None]()
    with Progress("equal accuracy", len(given.routers), unit="router", quiet=run.quiet) as progress:
        for router in given.routers:
            found = runs.at_floor(router, floor)
            if found.by is not None and not found.is_kept:
                problem = f"no dial of {router} has {100 * floor:g} % on these runs; compare without it, or lower it"
                raise InputError(run.scenario.name, "slo.floor", problem)
            dials[display_name(router)] = found.by
            progress.update(1)
    turned = {name: by for name, by in dials.items() if by is not None}
    told = [f"{name} {'has no dial' if by is None else f'{by:+.2f}'}" for name, by in dials.items()]
    run.say(f"equal accuracy: dials at {100 * floor:g} %: {', '.join(told)}")
    return world.with_dials(turned), EqualAccuracy(floor=floor, dials=dials)


def engine_to_go_on(run: Run, world: World, quicker: Simulator) -> Simulator:
    """Return the engine that has made this comparison, or a part of it: results of both are not comparable.

    If there is none: the faster one, or simpy, with a message, if that can't do what the scenario asks for.
    """
    other: Simulator = "simpy" if quicker == "compiled" else "compiled"
    begun = {engine: _fingerprint(run, world, engine) for engine in (quicker, other)}
    for engine, fingerprint in begun.items():
        if run.folder.is_done(STAGE, fingerprint):
            return engine
    for engine, fingerprint in begun.items():
        if run.folder.memo(STAGE, fingerprint).rows:
            return engine
    return able_to_run(world, quicker, lambda: world.run_spec(run.scenario.compare.seeds[0]), run.say)


def _fingerprint(run: Run, world: World, engine: Simulator) -> str:
    given = run.scenario.compare
    shape = (run.scenario.duration_s, run.scenario.warmup_s, run.scenario.training.deterministic, engine)
    promised = Slo.of(run.scenario)
    return run.fingerprint(
        *run.world_parts(), *run.router_parts(given.routers), given.seeds, shape, RESULTS, RECORDS_FORM,
        promised.floor, run.scenario.slo.model_dump(mode="json"),
        *world.decision_parts([display_name(router) for router in given.routers]), dict(world.dials),
    )  # fmt: skip


def _compared(run: Run, world: World, engine: Simulator, jobs: int, within: Within) -> list[Result]:
    """Run the stage: all results, of which those of an interrupted comparison are not made again."""
    given = run.scenario.compare
    fingerprint = _fingerprint(run, world, engine)
    target = run.folder / RESULTS
    memo = run.folder.memo(STAGE, fingerprint)

    def work() -> Sequence[Path]:
        known: list[Result] = list(memo.rows)
        with within(), Progress("compare", given.runs, unit="run", quiet=run.quiet) as progress:

            def keep(result: Result) -> None:
                if result not in known:
                    memo.add(result)
                progress.update(1)

            results = simulate_all(
                world, given.routers, given.seeds, made_in=run.folder.path, finished=known, on_result=keep,
                engine=engine, jobs=jobs,
            )  # fmt: skip
        write_json(target, results)
        return [target]

    run.stage(STAGE, fingerprint, work)
    memo.path.unlink(missing_ok=True)
    _keep_records(run, world, engine, fingerprint, within)
    return results_of(run)


def results_of(run: Run) -> list[Result]:
    """Return what was compared, run by run."""
    results: list[Result] = run.folder.read_json(RESULTS)
    return results


def _keep_records(run: Run, world: World, engine: Simulator, fingerprint: str, within: Within) -> None:
    """Run the stage `records`: whole records, for the report, of the routers that no validation will keep."""
    validated = run.scenario.validate_.routers if run.can_validate else ()
    routers = [router for router in run.scenario.compare.routers if router not in validated]
    seed = run.scenario.compare.seeds[0]

    def work() -> Sequence[Path]:
        run.folder.remove_outputs(RECORDS)
        images = len(world.arrivals_ns(seed, run.scenario.duration_s))
        if images > KEPT_IMAGES:
            remedy = "`slimsched simulate --out` keeps one run's"
            run.say(f"compare: {images} images a run are too many for the report: no records of them; {remedy}")
            return []
        written = []
        with within():
            for router in routers:
                policy = world.router(router, run.folder.path)
                result, record = run_simulation(world, policy, display_name(router), seed, engine=engine)
                written += write_run(run.folder, result, record)
        return written

    run.stage(RECORDS, inputs_hash(fingerprint, [display_name(router) for router in routers]), work)
