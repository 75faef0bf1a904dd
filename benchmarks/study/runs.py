"""The grid of the results: scenario x router x seed, and the fluid bound at each router's accuracy and rate."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from math import floor, log10
from pathlib import Path
from typing import Any, Final

from benchmarks.grid import GridRow, Row, code_state, kept_rows, make_rows
from benchmarks.study.candidates import STATIONARY, ScenarioCase, state_of
from kit.documents import inputs_hash
from kit.errors import WorkError
from kit.named_files import named_files
from kit.parallel import Jobs
from scenarios.files.router_names import display_name
from scenarios.metrics.result import Result
from scenarios.runs.bound import FluidModel, oracle_accuracy, window_rates_img_s
from scenarios.runs.simulate import simulate_metrics
from scenarios.world.routers import RouterMaker
from scenarios.world.world import World

COMPUTING: Final = ("numpy", "numba", "scipy")
NOT_OF_A_RUN: Final = ("compare", "tuning", "training", "validate_", "calibration")  # parts of a scenario
BOUNDS: Final = "bounds.jsonl"

Corner = tuple[float, float]
"""Where a bound is asked for: accuracy, images a second."""


def versions() -> dict[str, str]:
    """Of what computes."""
    return {"python": platform.python_version(), **{name: version(name) for name in COMPUTING}}


def rows_file(case: ScenarioCase, out: Path) -> Path:
    """Where a scenario's runs are kept."""
    return out / f"{case.name}.jsonl"


def run_points(case: ScenarioCase) -> list[GridRow]:
    """A scenario's runs, one a router and seed; each with what makes the router on any machine."""
    decided_by = _decided_by(case)
    return [
        GridRow(
            {"scenario": case.name, "router": candidate.label, "seed": seed},
            inputs_hash(decided_by, candidate.name, candidate.group, *([candidate.file] if candidate.file else [])),
            (candidate.maker(case.world), case.is_paper),
        )
        for candidate in case.candidates
        for seed in case.seeds
    ]


def _decided_by(case: ScenarioCase) -> str:
    files = [file.path for file in named_files(case.scenario) if file.key.split(".")[0] not in NOT_OF_A_RUN]
    state = state_of(case.scenario, NOT_OF_A_RUN)
    return inputs_hash(state, case.scenario.training.deterministic, versions(), code_state(), *files)


def run_missing(cases: Sequence[ScenarioCase], out: Path, jobs: Jobs, *, quiet: bool = False) -> int:
    """Make every run that is not kept; returns how many that were.

    Raises:
        WorkError: a process was killed, or a run can't go on.
    """
    from scenarios.terminal.compiling import telling  # it opens numba

    count = 0
    with telling(lambda text: print(text, file=sys.stderr)):
        for case in cases:
            points, worlds = run_points(case), {case.name: case.world.with_series()}
            prepare = partial(_compile, points[0])
            count += make_rows(rows_file(case, out), points, _run, worlds, jobs=jobs, prepare=prepare, quiet=quiet)
    return count


def _run(worlds: Mapping[str, World], point: GridRow, **options: Any) -> Row:
    """One run, in whatever process; what servers did is not kept."""
    maker: RouterMaker
    maker, is_detailed = point.given  # details are GPU var and stages
    world = worlds[point.key["scenario"]]
    options = {"engine": "compiled", "detail": is_detailed, **options}
    router, name = maker.make(world.context), display_name(maker.name)
    return {"result": {**simulate_metrics(world, router, name, point.key["seed"], **options), "servers": []}}


def _compile(point: GridRow, worlds: Mapping[str, World]) -> None:
    """Once on a machine, and not in every process: a run of a second does it."""
    duration_s = min(1.0, worlds[point.key["scenario"]].scenario.duration_s)
    _run(worlds, point, duration_s=duration_s, warmup_s=0.0)


def results_of(case: ScenarioCase, out: Path) -> dict[str, list[Result]]:
    """By router, what is kept of a scenario; who has not run with every seed is left out."""
    points = run_points(case)
    by_router: dict[str, list[Result]] = {}
    for point, row in zip(points, kept_rows(rows_file(case, out), points), strict=True):
        if row is not None:
            by_router.setdefault(point.key["router"], []).append(row["result"])
    return {router: results for router, results in by_router.items() if len(results) == len(case.seeds)}


# -------------------------------------------------------------------------------------------------------------- bounds


def corner_of(results: Sequence[Result]) -> Corner | None:
    """Where the bound of some runs is asked for: their accuracy and rate, rounded down, which can only lower it."""
    accuracies = [result["expected_accuracy"] for result in results]
    rate_img_s = sum(result["images"]["completed"] / result["duration_s"] for result in results) / len(results)
    if None in accuracies or rate_img_s <= 0:
        return None
    accuracy = sum(value for value in accuracies if value is not None) / len(accuracies)
    unit = 10.0 ** (floor(log10(rate_img_s)) - 2)
    return floor(accuracy * 1e4) / 1e4, round(floor(rate_img_s / unit) * unit, 6)


def bounds_of(cases: Sequence[ScenarioCase], out: Path, jobs: Jobs, *, quiet: bool = False) -> list[Row]:
    """Of each scenario a row with `bounds`, [accuracy, rate, least dynamic J an image, least mean latency] a corner
    within capacity, and `oracle`: the accuracy of one that knows the first seed's arrivals, where the load moves.
    """
    points, worlds = [], {}
    for case in cases:
        corners = {corner for results in results_of(case, out).values() if (corner := corner_of(results)) is not None}
        seed = None if case.load == STATIONARY or case.is_paper else case.seeds[0]
        key = {"scenario": case.name, "corners": sorted(map(list, corners)), "seed": seed}
        points.append(GridRow(key, _decided_by(case)))
        worlds[case.name] = case.world.with_series()
    make_rows(out / BOUNDS, points, _solve, worlds, jobs=jobs, quiet=quiet)
    return [row for row in kept_rows(out / BOUNDS, points) if row is not None]


def _solve(worlds: Mapping[str, World], point: GridRow) -> Row:
    world = worlds[point.key["scenario"]]
    model, bounds = FluidModel(world), []
    for accuracy, rate_img_s in point.key["corners"]:
        try:
            least = (model.energy_j(accuracy, rate_img_s), model.latency_s(accuracy, rate_img_s))
        except WorkError:  # beyond capacity
            continue
        bounds.append([accuracy, rate_img_s, *least])
    seed, oracle = point.key["seed"], None
    if seed is not None and point.key["corners"]:
        oracle = oracle_accuracy(model, window_rates_img_s(world, seed).tolist()).accuracy
    return {"bounds": bounds, "oracle": oracle}
