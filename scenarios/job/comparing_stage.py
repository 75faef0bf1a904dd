"""The stage `compare`, every router with every seed, and the suite: fixed cases on which routers race.

The suite's bundled files are `scenarios/data/suite.yaml` (the cases, their seeds, the floors of the drawn clusters) and
`scenarios/data/suite.csv` (the figures of the published routers, by `python -m benchmarks suite`).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from kit import strict
from kit.documents import inputs_hash, read_text, write_json
from kit.errors import InputError, nearest
from kit.plugins import code_here
from kit.strict import StrictModel
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import load_experiment
from scenarios.files.bundled_files import SHIPPED, SHIPPED_SCENARIOS
from scenarios.files.router_files import decided_by, display_name, learned_among
from scenarios.job.job_stages import Run
from scenarios.learn.drawn_clusters import Clusters, drawn_experiment
from scenarios.metrics.result_documents import Case, SuiteScore, cases_of, rows_of
from scenarios.metrics.router_comparison import Bounds, ComparisonDocument, EqualAccuracy, compare_results
from scenarios.metrics.run_result import Result, Simulator
from scenarios.metrics.slo import Slo
from scenarios.runs.fluid_bound import FluidModel
from scenarios.runs.folder import RunFolder
from scenarios.runs.router_planning import EqualRuns
from scenarios.runs.run_store import write_run
from scenarios.runs.simulated_runs import able_to_run, run_simulation, simulate_all
from scenarios.show.command_tables import unreliable
from scenarios.terminal.progress import Progress

STAGE = "compare"
Within = Callable[[], AbstractContextManager[None]]
RESULTS = "results.json"
RECORDS = "records"
RECORDS_FORM = 3  # of what is kept: since 3 a result records what was offered
KEPT_IMAGES = 200_000  # of a run whose record the report shows: beyond, it is gigabytes


# ------------------------------------------------------------------------------------------------------------ the stage


def compare(
    run: Run,
    experiment: Experiment,
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
        equal: as which dials were set in the experiment (`equalled`).

    Raises:
        InputError: the baseline is not compared.
    """
    section = run.scenario.compare
    names, baseline = [display_name(router) for router in section.routers], section.baseline
    if baseline is not None and (baseline := display_name(baseline)) not in names:
        problem = f"{baseline!r} is not compared here; {nearest(baseline, names)}"
        raise InputError(run.scenario.name, "compare.baseline", problem)
    results = _compared(run, experiment, engine, jobs, within)
    compared = partial(
        compare_results, results, baseline, learned=learned_among(section.routers, run.folder.path),
        unreliable=[
            server.name for server in run.scenario.cluster.owners if unreliable(experiment.profile_of(server.name))
        ],
        equal=equal,
    )  # fmt: skip
    document = compared()
    if bounds is not None:
        document = compared(bounds=bounds(document))
    write_json(run.folder / "comparison.json", document)
    return document


def equalled(run: Run, experiment: Experiment) -> tuple[Experiment, EqualAccuracy]:
    """Return the experiment in which every router with a dial has the scenario's floor on the comparison's own runs.

    Raises:
        InputError: the scenario names no floor, or no dial of a router has it.
    """
    section, floor = run.scenario.compare, Slo.of(run.scenario).floor
    if floor is None:
        remedy = "name the accuracy that all are to have, such as --set slo.floor=0.75"
        raise InputError(run.scenario.name, "slo.floor", f"missing; {remedy}")
    runs, dials = EqualRuns(experiment, section.seeds, run.folder.path), dict[str, float | None]()
    with Progress("equal accuracy", len(section.routers), unit="router", quiet=run.quiet) as progress:
        for router in section.routers:
            dial = runs.at_floor(router, floor)
            if dial.by is not None and not dial.is_kept:
                problem = f"no dial of {router} has {100 * floor:g} % on these runs; compare without it, or lower it"
                raise InputError(run.scenario.name, "slo.floor", problem)
            dials[display_name(router)] = dial.by
            progress.update(1)
    turned = {name: by for name, by in dials.items() if by is not None}
    texts = [f"{name} {'has no dial' if by is None else f'{by:+.2f}'}" for name, by in dials.items()]
    run.say(f"equal accuracy: dials at {100 * floor:g} %: {', '.join(texts)}")
    return experiment.with_dials(turned), EqualAccuracy(floor=floor, dials=dials)


def engine_to_go_on(run: Run, experiment: Experiment, quicker: Simulator) -> Simulator:
    """Return the engine that has made this comparison, or a part of it: results of both are not comparable.

    If there is none: the faster one, or simpy, with a message, if that can't do what the scenario asks for.
    """
    other: Simulator = "simpy" if quicker == "compiled" else "compiled"
    begun = {engine: _fingerprint(run, experiment, engine) for engine in (quicker, other)}
    for engine, fingerprint in begun.items():
        if run.folder.is_done(STAGE, fingerprint):
            return engine
    for engine, fingerprint in begun.items():
        if run.folder.memo(STAGE, fingerprint).rows:
            return engine
    return able_to_run(experiment, quicker, lambda: experiment.run_spec(run.scenario.compare.seeds[0]), run.say)


def _fingerprint(run: Run, experiment: Experiment, engine: Simulator) -> str:
    section = run.scenario.compare
    shape = (run.scenario.duration_s, run.scenario.warmup_s, run.scenario.training.deterministic, engine)
    slo = Slo.of(run.scenario)
    return run.fingerprint(
        *run.experiment_parts(), *run.router_parts(section.routers), section.seeds, shape, RESULTS, RECORDS_FORM,
        slo.floor, run.scenario.slo.model_dump(mode="json"),
        *experiment.decision_parts([display_name(router) for router in section.routers]), dict(experiment.dials),
    )  # fmt: skip


def _compared(run: Run, experiment: Experiment, engine: Simulator, jobs: int, within: Within) -> list[Result]:
    """Run the stage: all results, of which those of an interrupted comparison are not made again."""
    section = run.scenario.compare
    fingerprint = _fingerprint(run, experiment, engine)
    target = run.folder / RESULTS
    memo = run.folder.memo(STAGE, fingerprint)

    def work() -> Sequence[Path]:
        earlier: list[Result] = list(memo.rows)
        with within(), Progress("compare", section.runs, unit="run", quiet=run.quiet) as progress:

            def keep(result: Result) -> None:
                if result not in earlier:
                    memo.add(result)
                progress.update(1)

            results = simulate_all(
                experiment, section.routers, section.seeds, made_in=run.folder.path, finished=earlier, on_result=keep,
                engine=engine, jobs=jobs,
            )  # fmt: skip
        write_json(target, results)
        return [target]

    run.stage(STAGE, fingerprint, work)
    memo.path.unlink(missing_ok=True)
    _keep_records(run, experiment, engine, fingerprint, within)
    return results_of(run)


def results_of(run: Run) -> list[Result]:
    """Return what was compared, run by run."""
    results: list[Result] = run.folder.read_json(RESULTS)
    return results


def _keep_records(run: Run, experiment: Experiment, engine: Simulator, fingerprint: str, within: Within) -> None:
    """Run the stage `records`: whole records, for the report, of the routers that no validation will keep."""
    validated = run.scenario.validate_.routers if run.can_validate else ()
    routers = [router for router in run.scenario.compare.routers if router not in validated]
    seed = run.scenario.compare.seeds[0]

    def work() -> Sequence[Path]:
        run.folder.remove_outputs(RECORDS)
        images = len(experiment.arrivals_ns(seed, run.scenario.duration_s))
        if images > KEPT_IMAGES:
            remedy = "`slimsched simulate --out` keeps one run's"
            run.say(f"compare: {images} images a run are too many for the report: no records of them; {remedy}")
            return []
        written = []
        with within():
            for router in routers:
                policy = experiment.router(router, run.folder.path)
                result, record = run_simulation(experiment, policy, display_name(router), seed, engine=engine)
                written += write_run(run.folder, result, record)
        return written

    run.stage(RECORDS, inputs_hash(fingerprint, [display_name(router) for router in routers]), work)


# ------------------------------------------------------------------------------------------------------------ the suite


FILE: Final = SHIPPED / "suite.yaml"
PUBLISHED: Final = SHIPPED / "suite.csv"


class SuiteFile(StrictModel):
    """The cases of a suite. A changed case makes another suite, with another name."""

    schema_: Literal["slimsched.suite/1"] = Field(alias="schema")
    name: str
    seeds: tuple[int, ...]
    scenarios: tuple[str, ...] = Field(description="by the names of the bundled ones; each has a floor (tuning.floor)")
    clusters: Clusters = Field(description="what the others are drawn from")
    drawn: Mapping[str, float] = Field(description="the drawn clusters: name and floor of each")


@dataclass(frozen=True, slots=True)
class SuiteCase:
    """A case that can be run."""

    name: str
    floor: float
    experiment: Experiment
    seeds: tuple[int, ...]


def read_suite() -> SuiteFile:
    """Read the bundled suite."""
    return strict.validate(SuiteFile, strict.mapping(read_text(FILE), str(FILE)), str(FILE))


def case_names(suite: SuiteFile) -> tuple[str, ...]:
    """Return the names of all cases."""
    return (*suite.scenarios, *(f"drawn-{name}" for name in suite.drawn))


def load_case(suite: SuiteFile, name: str) -> SuiteCase:
    """Load a case by its name."""
    if name.startswith("drawn-"):
        experiment = drawn_experiment(suite.clusters, name.removeprefix("drawn-"))
        return SuiteCase(name, suite.drawn[name.removeprefix("drawn-")], experiment, suite.seeds)
    experiment = load_experiment(SHIPPED_SCENARIOS / f"{name}.yaml")
    floor = experiment.scenario.tuning.floor
    assert floor is not None, "a scenario of the suite has a floor"
    return SuiteCase(name, floor, experiment, suite.seeds)


def published() -> tuple[Case, ...]:
    """Return the cases with the routers whose figures are bundled."""
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        return cases_of([_typed(row) for row in csv.DictReader(file)])


def _typed(row: Mapping[str, str]) -> dict[str, Any]:
    texts, typed = ("case", "router"), dict[str, Any](row)
    for key, text in row.items():
        if key not in texts:
            typed[key] = text == "True" if key == "is_kept" else float(text) if text else None
    return {**typed, "seed": int(row["seed"])}


def race(routers: Sequence[str], folder: RunFolder, only: Sequence[str] = (), *, quiet: bool = False) -> SuiteScore:
    """Run routers on the suite at equal accuracy, next to the published ones.

    Args:
        routers: by name or file.
        folder: keeps finished cases, from which the next call resumes.
        only: cases; all by default.

    Raises:
        InputError: no such case or router, or one that doesn't fit a case.
    """
    suite, published_cases = read_suite(), {case.name: case for case in published()}
    names = case_names(suite)
    for name in only:
        if name not in names:
            raise InputError("--only", "", f"{name!r} is not a case; {nearest(name, names)}")
    selected = [name for name in names if not only or name in only]
    memo, cases = folder.memo("suite", inputs_hash(FILE, code_here())), []
    finished = {row["inputs"]: row["rows"] for row in memo.rows}
    with Progress("suite", len(selected) * len(routers), unit="router and case", quiet=quiet) as progress:
        for name in selected:
            case = load_case(suite, name)
            entry = published_cases.get(name) or Case(name, case.floor, bound_s(case), {})
            runs = EqualRuns(case.experiment, case.seeds)
            for router in routers:
                label = display_name(router)
                inputs = inputs_hash(name, label, decided_by(router, "--router"))
                if inputs not in finished:
                    rows = rows_of([replace(entry, routers={label: runs.at_floor(router, case.floor)})])
                    memo.add({"inputs": inputs, "rows": rows})
                    finished[inputs] = rows
                entry = replace(entry, routers={**entry.routers, **cases_of(finished[inputs])[0].routers})
                progress.update(1)
            cases.append(entry)
    entrants = tuple(map(display_name, routers))
    others = dict.fromkeys(
        router for case in published_cases.values() for router in case.routers if router not in entrants
    )
    return SuiteScore(published=tuple(others), entrants=entrants, cases=tuple(cases))


def bound_s(case: SuiteCase) -> float:
    """Return the mean latency that no router can beat at the case's floor."""
    return FluidModel(case.experiment).bound(case.floor, case.experiment.mean_rate_img_s).latency_mean_s
