"""Runs what is not stored yet. One small file a run, and what it was made of in it: an interrupted command goes on.

A stored run counts as long as scenario, router, seed, the sources that decide figures (without their comments) and the
versions of the packages that compute are the same.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from math import floor, log10
from pathlib import Path
from typing import Any, Final, Unpack

from benchmarks.study.cases import STATIONARY, WINDOWED, Case, Contender
from benchmarks.study.sources import sources_hash
from kit.documents import inputs_hash, read_json, write_json
from kit.errors import WorkError
from kit.named_files import named_files
from kit.parallel import Jobs, each
from scenarios.files.reading import relative_paths
from scenarios.files.router_names import display_name
from scenarios.metrics.result import Result
from scenarios.runs.bound import FluidModel, oracle_accuracy, window_rates_img_s
from scenarios.runs.simulate import RunOptions, simulate_metrics
from scenarios.terminal.progress import Progress
from scenarios.world.routers import RouterMaker
from scenarios.world.world import World

COMPUTING: Final = ("numpy", "numba", "scipy")
RUN_MAKERS: Final = ("scenarios.runs.simulate", "scenarios.world.materials")  # with all that they import
BOUND_MAKERS: Final = (*RUN_MAKERS, "benchmarks.study.runs")
NOT_OF_A_RUN: Final = frozenset({"compare", "tuning", "training", "validate", "calibration"})  # parts of a scenario


# ------------------------------------------------------------------------------------------------------- fingerprints


def versions() -> dict[str, str]:
    """Of what computes."""
    return {"python": platform.python_version(), **{name: version(name) for name in COMPUTING}}


def scenario_hash(case: Case) -> str:
    """Of everything that a scenario's runs depend on but the router and the seed."""
    dumped = relative_paths(case.scenario, case.path.parent).model_dump(mode="json", by_alias=True)
    given = {part: value for part, value in dumped.items() if part not in NOT_OF_A_RUN}
    given["deterministic"] = case.scenario.training.deterministic
    files = [file.path for file in named_files(case.scenario) if file.key.split(".")[0] not in NOT_OF_A_RUN]
    return inputs_hash(given, versions(), *files)


def router_hash(contender: Contender) -> str:
    """Of a router's name, and of what its file holds."""
    words = [contender.name, contender.group] if contender.group in WINDOWED else [contender.name]
    words += [] if contender.margin is None else [repr(contender.margin)]
    return inputs_hash(*words, *([contender.file] if contender.file else []))


# ---------------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Task:
    """One run that is to be made, and where its result goes; `detail`: whether GPU var and stages are asked for."""

    scenario: str
    router: Contender
    seed: int
    path: Path
    inputs: str
    detail: bool


def tasks_of(case: Case, out: Path) -> dict[str, list[Task]]:
    """By a contender's label, its runs, one a seed."""
    of_scenario, of_sources = scenario_hash(case), sources_hash(RUN_MAKERS)
    found: dict[str, list[Task]] = {}
    for contender in case.contenders:
        inputs = inputs_hash(of_scenario, of_sources, router_hash(contender))
        place = out / case.name / re.sub(r"[^A-Za-z0-9.-]+", "-", contender.label)
        found[contender.label] = [
            Task(case.name, contender, seed, place / f"seed{seed}.json", inputs, case.is_paper) for seed in case.seeds
        ]
    return found


def stored(task: Task) -> Result | None:
    """A run's result if it is there and was made of the same."""
    found = _read(task.path)
    if found is None or found.get("inputs") != task.inputs:
        return None
    result: Result = found["result"]
    return result


def run_missing(cases: Sequence[Case], out: Path, jobs: Jobs, *, quiet: bool = False) -> int:
    """Make every run that is not stored; returns how many that were.

    Raises:
        WorkError: a process was killed, or a run can't go on.
    """
    wanted = [task for case in cases for tasks in tasks_of(case, out).values() for task in tasks]
    missing = [task for task in wanted if stored(task) is None]
    if not missing:
        return 0
    from scenarios.terminal.compiling import telling  # it opens numba

    names = {task.scenario for task in missing}
    worlds = {case.name: case.world.with_series() for case in cases if case.name in names}
    runs = [_Run(task.scenario, task.router.maker(worlds[task.scenario]), task.seed, task.detail) for task in missing]
    with (
        telling(lambda text: print(text, file=sys.stderr)),
        Progress("results", len(wanted), unit="run", quiet=quiet) as progress,
        closing(each(_run, worlds, runs, jobs, partial(_compile, runs[0]))) as made,
    ):
        progress.set(len(wanted) - len(missing))
        for place, result in made:
            task = missing[place]
            write_json(task.path, {"inputs": task.inputs, "result": result})
            progress.note = f" ({task.scenario})"
            progress.update()
    return len(missing)


@dataclass(frozen=True)
class _Run:
    """What of a task is needed to make the run, on whatever machine."""

    scenario: str
    router: RouterMaker
    seed: int
    detail: bool

    def result(self, world: World, **options: Unpack[RunOptions]) -> Result:
        router, name = self.router.make(world.context), display_name(self.router.name)
        given: RunOptions = {**options, "engine": "compiled", "detail": self.detail}
        return simulate_metrics(world, router, name, self.seed, **given)


def _compile(run: _Run, worlds: Mapping[str, World]) -> None:
    """Once on a machine, and not in every process: a run of a second does it."""
    world = worlds[run.scenario]
    run.result(world, duration_s=min(1.0, world.scenario.duration_s), warmup_s=0.0)


def _run(worlds: Mapping[str, World], run: _Run) -> Result:
    """One run, in whatever process; what servers did is not kept."""
    return {**run.result(worlds[run.scenario]), "servers": []}


def collect(case: Case, out: Path) -> dict[str, list[Result]]:
    """By label, what is stored of a case; who has not run with every seed is left out."""
    found = {label: [stored(task) for task in tasks] for label, tasks in tasks_of(case, out).items()}
    return {
        label: [result for result in results if result is not None]
        for label, results in found.items()
        if None not in results
    }


# -------------------------------------------------------------------------------------------------------------- bounds

Point = tuple[float, float]  # (accuracy, images a second)


def point_of(results: Sequence[Result]) -> Point | None:
    """Where the bound of some runs is asked for: their accuracy and rate, rounded down, which can only lower it."""
    accuracies = [result["expected_accuracy"] for result in results]
    rate_img_s = sum(result["images"]["completed"] / result["duration_s"] for result in results) / len(results)
    if None in accuracies or rate_img_s <= 0:
        return None
    accuracy = sum(value for value in accuracies if value is not None) / len(accuracies)
    unit = 10.0 ** (floor(log10(rate_img_s)) - 2)
    return floor(accuracy * 1e4) / 1e4, round(floor(rate_img_s / unit) * unit, 6)


@dataclass(frozen=True)
class Fluid:
    """What the fluid model says of one scenario.

    Attributes:
        energy_j, latency_s: by point, the least dynamic energy an image and mean latency; absent beyond capacity.
        oracle: the estimated accuracy of one that knows the arrivals of the first seed (`scenarios.runs.bound.Oracle`).
    """

    energy_j: Mapping[Point, float]
    latency_s: Mapping[Point, float]
    oracle: float | None = None


@dataclass(frozen=True)
class _FluidTask:
    scenario: str
    points: tuple[Point, ...]
    seed: int | None


def fluid_of(cases: Sequence[Case], out: Path, jobs: Jobs, *, quiet: bool = False) -> dict[str, Fluid]:
    """By scenario; what was computed before is read."""
    tasks, files = [], {case.name: _fluid_file(case, out) for case in cases}
    for case in cases:
        wanted = {point for results in collect(case, out).values() if (point := point_of(results)) is not None}
        known, oracle = files[case.name].points, files[case.name].oracle
        needs_oracle = case.load != STATIONARY and not case.is_paper and oracle is None
        points = tuple(sorted(wanted - set(known)))
        if points or (needs_oracle and wanted):
            tasks.append(_FluidTask(case.name, points, case.seeds[0] if needs_oracle else None))
    worlds = {case.name: case.world.with_series() for case in cases if case.name in {task.scenario for task in tasks}}
    with (
        Progress("bounds", len(tasks), unit="scenario", quiet=quiet or not tasks) as progress,
        closing(each(_solve, worlds, tasks, jobs)) as made,
    ):
        for place, (solved, oracle) in made:
            file = files[tasks[place].scenario]
            file.points.update(solved)
            file.oracle = file.oracle if oracle is None else oracle
            file.write()
            progress.update()
    return {name: file.fluid() for name, file in files.items()}


def _solve(
    worlds: Mapping[str, World], task: _FluidTask
) -> tuple[dict[Point, tuple[float, float] | None], float | None]:
    world = worlds[task.scenario]
    model = FluidModel(world)
    solved: dict[Point, tuple[float, float] | None] = {}
    for accuracy, rate_img_s in task.points:
        try:
            solved[accuracy, rate_img_s] = (model.energy_j(accuracy, rate_img_s), model.latency_s(accuracy, rate_img_s))
        except WorkError:  # beyond capacity
            solved[accuracy, rate_img_s] = None
    if task.seed is None:
        return solved, None
    return solved, oracle_accuracy(model, window_rates_img_s(world, task.seed).tolist()).accuracy


class _FluidFile:
    """One scenario's bounds on disk."""

    def __init__(self, path: Path, inputs: str) -> None:
        self._path, self._inputs = path, inputs
        found = _read(path)
        known = found if found is not None and found.get("inputs") == inputs else {"points": [], "oracle": None}
        self.points: dict[Point, tuple[float, float] | None] = {
            (accuracy, rate): None if least is None else (least[0], least[1])
            for accuracy, rate, least in known["points"]
        }
        self.oracle: float | None = known["oracle"]

    def write(self) -> None:
        points = [(*point, least) for point, least in sorted(self.points.items())]
        write_json(self._path, {"inputs": self._inputs, "points": points, "oracle": self.oracle})

    def fluid(self) -> Fluid:
        solved = {point: least for point, least in self.points.items() if least is not None}
        energy_j = {point: least[0] for point, least in solved.items()}
        return Fluid(energy_j, {point: least[1] for point, least in solved.items()}, self.oracle)


def _fluid_file(case: Case, out: Path) -> _FluidFile:
    return _FluidFile(out / case.name / "bounds.json", inputs_hash(scenario_hash(case), sources_hash(BOUND_MAKERS)))


def _read(path: Path) -> dict[str, Any] | None:
    """A stored document; None where there is none."""
    if not path.is_file():
        return None
    found: dict[str, Any] = read_json(path)
    return found
