"""What each ingredient of Tide is worth: tuned without it, with the same budget, and run on seeds that no tuning saw.

    python -m scenarios.study ablation scenarios/main-mmpp-10g.yaml --decisions 40000000 --json docs/ablation.json

Rows are told as they come, and kept: an interrupted run goes on with the next one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from policies.errors import InputError, WorkError
from policies.registry import TIDE
from policies.rules.specs import RouterSpec, RuleSpec
from scenarios.files.documents import read_json, write_json
from scenarios.learn.course import MOST_THREADS, Course, unserved
from scenarios.learn.knobs import TuningKnobs
from scenarios.learn.tune import Tuned, tune_world
from scenarios.metrics.statistics import Estimate, estimate, relative_half_width, widened
from scenarios.world.materials import load_world
from scenarios.world.world import World
from sim.compiled.scoring import RunScore

SCHEMA: Final = "slimsched.ablation/1"
ROWS: Final[dict[str, dict[str, Any]]] = {
    "tide, all of it": {},
    "a price that does not follow the load": {"without": ("rise",)},
    "no hysteresis": {"without": ("hysteresis",)},
    "placement: sticky, none is picked": {"as_they_are": ("placement",)},
    "nobody is held": {"as_they_are": ("hold",)},
    "groups up to the largest": {"as_they_are": ("group",)},
    "the mean alone, no tail": {"tail": 0.0},
    "five times the weight of the tail": {"tail": 1.0},
    "a steep wall at the floor instead of a controlled worth": {"pid": False},
    "other arrivals for each candidate": {"common": False},
    "plain latencies, not their logarithms": {"logs": False},
    "no race: those that blew up run to the end": {"race": False},
    "rates drawn from 0.8 to 1.2 times": {"rates": (0.8, 1.2)},
}
FIRST: Final = next(iter(ROWS))
NO_TAIL: Final = "the mean alone, no tail"
TAILS: Final = (NO_TAIL, FIRST, "five times the weight of the tail")
RIVAL: Final = "ladder, the same search"
LITTLE_VARIANCE_PCT: Final = 5.0  # more than the ladder's, at most, for nearly all
MOST_GAIN_PCT: Final = 80.0  # of the gain over the ladder


def held_out(world: World, specs: Sequence[RouterSpec], knobs: TuningKnobs) -> list[list[RunScore]]:
    """Each router on the scenario's own runs with the seeds of its comparison."""
    with ThreadPoolExecutor(MOST_THREADS) as workers:
        course = Course(world, knobs, workers)
        runs = [world.run_spec(seed, detail=False, end="cut") for seed in world.scenario.compare.seeds]
        return [course.measure([(spec.make(world.context), run) for run in runs]) for spec in specs]


def searched_specs(found: Tuned) -> list[RuleSpec]:
    """What each search found; the winner where there was none."""
    specs = [each.racer.spec for each in found.race if each.racer.is_of_search]
    return specs or [found.spec]


def figures_row(world: World, scores: Sequence[Sequence[RunScore]]) -> dict[str, Any]:
    """Means over searches and seeds; by seed the mean, the standard deviation, and energy; by search its own means."""
    flat = [score for each in scores for score in each]
    by_seed = list(zip(*scores, strict=True))
    return {
        "accuracy": float(np.mean([score.accuracy for score in flat])),
        **_means(flat),
        "unserved": unserved(flat),
        "means_s": [float(np.mean([score.mean_s for score in of])) for of in by_seed],
        "stds_s": [float(np.sqrt(np.mean([score.std_s**2 for score in of]))) for of in by_seed],
        "images_j": [float(np.mean([score.image_j for score in of])) for of in by_seed],
        "searches": [_means(each) for each in scores],
        "seeds": list(world.scenario.compare.seeds),
    }


def _means(scores: Sequence[RunScore]) -> dict[str, float]:
    return {
        "mean_ms": float(1000 * np.mean([score.mean_s for score in scores])),
        "std_ms": float(1000 * np.mean([score.std_s for score in scores])),
        "p99_ms": float(1000 * np.mean([score.p99_s for score in scores])),
        "image_j": float(np.mean([score.image_j for score in scores])),
    }


def change_of(
    row: Mapping[str, Any], base: Mapping[str, Any], by_seed: str, by_search: str, power: int = 1
) -> Estimate:
    """Of one row against another in percent, seed by seed; its interval holds the spread of both rows' searches."""
    pairs = zip(row[by_seed], base[by_seed], strict=True)
    ratio = estimate([100 * (a / b) ** power for a, b in pairs])
    spreads = [] if row is base else [power * _spread(each, by_search) for each in (row, base)]
    wider = widened(ratio, *spreads)
    assert wider["mean"] is not None, "it has run with some seed"
    return Estimate(mean=wider["mean"] - 100, ci95=wider["ci95"])


def _spread(row: Mapping[str, Any], key: str) -> float:
    return relative_half_width([each[key] for each in row.get("searches", ())])


def row_of(world: World, name: str, kind: str, knobs: TuningKnobs, first: dict[str, Any] | None) -> dict[str, Any]:
    """Tune, run what each search found, and set their means beside the first row, seed by seed."""
    try:
        found = tune_world(world, kind, knobs)
    except WorkError as error:
        return {"switch": name, "scenario": world.scenario.name, "problem": str(error)}
    figures = figures_row(world, held_out(world, searched_specs(found), knobs))
    base = figures if first is None else first
    return {
        "switch": name,
        "scenario": world.scenario.name,
        "floor": knobs.floor,
        **figures,
        "change_pct": change_of(figures, base, "means_s", "mean_ms"),
        "decisions": found.spent.search,
        "settings": {key: value for key, value in asdict(knobs).items() if key not in ("floor", "decisions")},
    }


@dataclass(frozen=True)
class Tail:
    """What a weight of the tail is worth.

    Attributes:
        gain_pct: by how much its mean latency is lower than the tuned ladder's.
        kept_pct: the share of the gain without a tail that this is.
        variance_pct: change of the variance of latencies against the ladder's.
    """

    switch: str
    weight: float
    gain_pct: float
    kept_pct: float | None
    variance_pct: Estimate

    @property
    def holds(self) -> bool:
        """Whether nearly all of the gain comes with hardly more variance than the ladder's."""
        more_pct = self.variance_pct["mean"]
        return self.kept_pct is not None and self.kept_pct > MOST_GAIN_PCT and (more_pct or 0.0) < LITTLE_VARIANCE_PCT


def tails(rows: Sequence[Mapping[str, Any]]) -> list[Tail]:
    """By the weight of the tail; empty where a row that this needs has no figures by seed."""
    found = {row["switch"]: row for row in rows if "stds_s" in row}
    if RIVAL not in found or NO_TAIL not in found:
        return []
    rival, plain_pct = found[RIVAL], _gain_pct(found[NO_TAIL], found[RIVAL])
    return [
        Tail(
            switch=name,
            weight=found[name]["settings"]["tail"],
            gain_pct=_gain_pct(found[name], rival),
            kept_pct=100 * _gain_pct(found[name], rival) / plain_pct if plain_pct > 0 else None,
            variance_pct=change_of(found[name], rival, "stds_s", "std_ms", power=2),
        )
        for name in TAILS
        if name in found
    ]


def _gain_pct(row: Mapping[str, Any], rival: Mapping[str, Any]) -> float:
    return 100 * (1 - float(row["mean_ms"]) / float(rival["mean_ms"]))


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


def make_table(scenario: Path, decisions: int, seed: int, path: Path, searches: int = 1) -> None:
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
        floor=tuning.floor, decisions=decisions, searches=searches, seed=seed,
        episodes=tuning.episodes, episode_s=tuning.episode_s, levels=tuning.levels,
    )  # fmt: skip
    more = (f" --seed {seed}" if seed else "") + (f" --searches {searches}" if searches > 1 else "")
    command = f"python -m scenarios.study ablation {scenario.as_posix()} --decisions {decisions}{more}"
    make_rows(world, base, path, command)
