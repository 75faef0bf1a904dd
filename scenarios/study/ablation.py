"""What each ingredient of Tide is worth: tuned without it, with the same budget, and run on seeds that no tuning saw.

    python -m scenarios.study ablation scenarios/main-mmpp-10g.yaml --decisions 40000000 --json docs/ablation.json

Rows are told as they come, and kept: an interrupted run goes on with the next one.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from policies.errors import InputError, WorkError
from policies.tide.knobs import KIND as TIDE
from scenarios.files.documents import read_json, write_json
from scenarios.learn.course import MOST_THREADS, Course, unserved
from scenarios.learn.knobs import TuningKnobs
from scenarios.learn.tune import Tuned, tune_world
from scenarios.metrics.statistics import estimate
from scenarios.world.materials import load_world
from scenarios.world.world import World
from sim.compiled.scoring import RunScore

SCHEMA: Final = "slimsched.ablation/1"
ROWS: Final[dict[str, dict[str, Any]]] = {
    "tide, all of it": {},
    "no arrival rates in the price": {"without": ("rates",)},
    "no expected work in the price": {"without": ("backlog",)},
    "no queue in the price": {"without": ("queue",)},
    "no waiting time in the price": {"without": ("waited",)},
    "worth of widths as the table says": {"without": ("worth",)},
    "placement: shortest expected delay, not learned": {"without": ("placement",)},
    "all candidates in one block": {"without": ("group",)},
    "a width's cost on average, not on the placed server": {"without": ("own_cost",)},
    "servers are as fast as their profiles": {"without": ("slowdown",)},
    "a block's own time costs nothing": {"without": ("delay",)},
    "no holding on to widths": {"without": ("hold",)},
    "what will come back to a place does not count": {"without": ("coming",)},
    "the mean alone, no tail": {"tail": 0.0},
    "a steep wall at the floor instead of a controlled price": {"pid": False},
    "other arrivals for each candidate": {"common": False},
    "plain latencies, not their logarithms": {"logs": False},
    "no race: those that blew up run to the end": {"race": False},
    "rates drawn from 0.8 to 1.2 times": {"rates": (0.8, 1.2)},
}
RIVAL: Final = "ladder, the same search"


def held_out(world: World, found: Tuned, knobs: TuningKnobs) -> list[RunScore]:
    """The scenario's own runs with the seeds of its comparison."""
    with ThreadPoolExecutor(MOST_THREADS) as workers:
        course = Course(world, knobs, workers)
        seeds = world.scenario.compare.seeds
        return course.measure(
            [(found.spec.make(world.context), world.run_spec(seed, detail=False, end="cut")) for seed in seeds]
        )


def row_of(world: World, name: str, kind: str, knobs: TuningKnobs, first: dict[str, Any] | None) -> dict[str, Any]:
    """Tune, run, and set beside the first row, seed by seed."""
    try:
        found = tune_world(world, kind, knobs)
    except WorkError as error:
        return {"switch": name, "scenario": world.scenario.name, "problem": str(error)}
    scores = held_out(world, found, knobs)
    means = [score.mean_s for score in scores]
    base = means if first is None else first["means_s"]
    return {
        "switch": name,
        "scenario": world.scenario.name,
        "floor": knobs.floor,
        "accuracy": float(np.mean([score.accuracy for score in scores])),
        "mean_ms": float(1000 * np.mean(means)),
        "std_ms": float(1000 * np.mean([score.std_s for score in scores])),
        "p99_ms": float(1000 * np.mean([score.p99_s for score in scores])),
        "unserved": unserved(scores),
        "change_pct": estimate([100 * (a - b) / b for a, b in zip(means, base, strict=True)]),
        "means_s": means,
        "seeds": list(world.scenario.compare.seeds),
        "decisions": found.spent.search,
        "settings": {key: value for key, value in asdict(knobs).items() if key not in ("floor", "decisions")},
    }


def kept_rows(path: Path, command: str) -> list[dict[str, Any]]:
    """The rows that an interrupted run has left.

    Raises:
        InputError: they are of another command.
    """
    if not path.exists():
        return []
    found = read_json(path)
    if found.get("command") != command:
        problem = f"{path}: has rows of {found.get('command')!r}, which can't stand beside those of {command!r}"
        raise InputError("--json", "", f"{problem}; name another file, or delete it")
    rows: list[dict[str, Any]] = found["rows"]
    return rows


def make_rows(world: World, base: TuningKnobs, path: Path, command: str) -> None:
    """Every row that is not there yet, the first first: the others are set beside it.

    Raises:
        InputError: what is there is of another command.
        WorkError: the first can't be made.
    """
    rows = kept_rows(path, command)
    for name, changes in {**ROWS, RIVAL: {}}.items():
        if any(row["switch"] == name for row in rows):
            continue
        kind = "ladder" if name == RIVAL else TIDE
        rows.append(row_of(world, name, kind, replace(base, **changes), rows[0] if rows else None))
        if "problem" in rows[0]:
            raise WorkError(rows[0]["problem"])
        write_json(path, {"schema": SCHEMA, "command": command, "rows": rows})
        told = {key: rows[-1].get(key) for key in ("accuracy", "mean_ms", "p99_ms", "problem")}
        sys.stderr.write(f"{name}: {told}\n")


def make_table(scenario: Path, decisions: int, seed: int, path: Path) -> None:
    """Every row of a scenario that is not there yet.

    Raises:
        InputError: the scenario has no floor, or what is there is of another command.
        WorkError: the first row can't be made.
    """
    world = load_world(scenario)
    tuning = world.scenario.tuning
    if tuning.floor is None:
        raise InputError(str(scenario), "tuning.floor", "missing; every row is tuned to keep it")
    base = TuningKnobs(
        floor=tuning.floor, decisions=decisions, seed=seed,
        episodes=tuning.episodes, episode_s=tuning.episode_s, levels=tuning.levels,
    )  # fmt: skip
    seeded = f" --seed {seed}" if seed else ""
    command = f"python -m scenarios.study ablation {scenario.as_posix()} --decisions {decisions}{seeded}"
    make_rows(world, base, path, command)
