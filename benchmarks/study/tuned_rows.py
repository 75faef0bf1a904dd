"""What tables have in common whose rows are tuned and run: kept as they come, on seeds that no tuning saw."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.study.cases import ROUTERS, tuned_file
from benchmarks.study.findings import EQUAL
from kit.documents import read_json, write_json
from kit.errors import InputError
from kit.named_files import with_paths
from policies.rules.specs import RouterSpec, RuleSpec
from scenarios.files.reading import load_scenario
from scenarios.files.router_names import read_rule
from scenarios.files.spec import Scenario
from scenarios.learn.course import Course, Run, unserved, workers_of
from scenarios.learn.knobs import TuningKnobs
from scenarios.learn.stale import why_tune
from scenarios.learn.tune import Tuned
from scenarios.learn.tuning import Tuning, knobs_of
from scenarios.metrics.served import LIMIT
from scenarios.metrics.statistics import Estimate, estimate, relative_half_width, widened
from scenarios.world.materials import load_world
from scenarios.world.world import World
from sim.compiled.scoring import RunScore


@dataclass(frozen=True)
class Asked:
    """What a table is made of.

    Attributes:
        decisions: of a search.
        searches: of a row.
        duration_s: of the full-length runs; None for the scenario's.
    """

    scenarios: Sequence[Path]
    decisions: int
    searches: int
    duration_s: float | None = None

    def command(self, table: str, more: str = "") -> str:
        """That makes it."""
        names = " ".join(each.as_posix() for each in self.scenarios)
        length = "" if self.duration_s is None else f" --duration {self.duration_s:g}s"
        return (
            f"python -m benchmarks.study {table} {names}{more} --decisions {self.decisions} --searches {self.searches}"
            f"{length}"
        )

    def world(self, scenario: Path) -> World:
        """A scenario's, with this length.

        Raises:
            InputError: it has no floor.
        """
        world = load_world(scenario)
        if world.scenario.tuning.floor is None:
            raise InputError(str(scenario), "tuning.floor", "missing; every row is tuned to keep it")
        if self.duration_s is None:
            return world
        return replace(world, scenario=world.scenario.model_copy(update={"duration_s": self.duration_s}))

    def knobs(self, world: World) -> TuningKnobs:
        """The scenario's, with this budget."""
        return knobs_of(world, seed=0, decisions=self.decisions, searches=self.searches)


def router_file_of(scenario: Path, kind: str) -> Path:
    """Where the tuned router of this kind lies beside a scenario."""
    return tuned_file(scenario.parent / ROUTERS / scenario.stem, kind)


def digest_of(scenario: Scenario) -> str:
    """Of what decides a scenario's rows; files by their names alone, so that it is the same on every machine.

    Keys at their defaults count for nothing: a key that is new changes no scenario that does not use it.
    """
    rest: dict[str, Any] = {
        "compare": {"routers"},
        "validate_": True,
        "training": True,
    }  # rows name their routers, which are tuned
    named = with_paths(scenario, lambda path: Path(path).name)
    told = named.model_dump(mode="json", exclude=rest, exclude_defaults=True)
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def outdated(made: Mapping[str, Any], folder: Path) -> list[str]:
    """The scenarios of a table's rows that are not, in this folder, what they were when the rows were made."""
    told, files = (
        made.get("scenarios", {}),
        {row["scenario"]: folder / f"{row['scenario']}.yaml" for row in made["rows"]},
    )
    return [
        name
        for name, file in files.items()
        if name not in told or not file.is_file() or told[name] != digest_of(load_scenario(file))
    ]


class RowsFile:
    """The rows of a table, in a file from which an interrupted run goes on.

    Raises:
        InputError: the file's rows are of another command, or of another state of a scenario.
    """

    def __init__(self, path: Path, schema: str, command: str, scenarios: Sequence[Path]) -> None:
        states = {found.name: digest_of(found) for found in map(load_scenario, scenarios)}
        self._path, self._head = path, {"schema": schema, "command": command, "scenarios": states}
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            found = read_json(path)
            if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
                raise InputError("--json", "", f"{path}: has no rows of a table; name another file, or delete it")
            if found.get("command") != command:
                problem = f"{path}: has rows of {found.get('command')!r}, which can't stand beside those of {command!r}"
                raise InputError("--json", "", f"{problem}; name another file, or delete it")
            told = found.get("scenarios", {})
            if changed := [name for name, digest in states.items() if told.get(name) != digest]:
                problem = f"{path}: has rows of another state of {', '.join(changed)}, whose file has changed since"
                raise InputError("--json", "", f"{problem}; name another file, or delete it")
            self.rows = found["rows"]

    def of(self, scenario: str, **facts: Any) -> list[dict[str, Any]]:
        """The rows of a scenario that have these values."""
        return [row for row in self.rows if row["scenario"] == scenario and facts.items() <= row.items()]

    def forget_others(self, scenario: str, router: str, file: str) -> None:
        """Leave out what was made with another file of that router; the next row that is added writes it."""
        self.rows = [
            row
            for row in self.rows
            if (row["scenario"], row["router"]) != (scenario, router) or row.get("file") == file
        ]

    def add(self, row: dict[str, Any], told: Sequence[str]) -> None:
        """Keep it, and tell these of its figures."""
        self.rows.append(row)
        write_json(self._path, {**self._head, "rows": self.rows})
        sys.stderr.write(f"{row['scenario']}: { {key: row[key] for key in told if key in row} }\n")


def held_out(world: World, specs: Sequence[RouterSpec], knobs: TuningKnobs) -> list[list[RunScore]]:
    """Each router on the scenario's own runs with the seeds of its comparison."""
    with workers_of() as workers:
        course = Course(world, knobs, workers)
        runs = [Run(seed) for seed in world.scenario.compare.seeds]
        return [course.measure([(spec, run) for run in runs]) for spec in specs]


def rule_of_now(scenario: Path, world: World, kind: str) -> RuleSpec | None:
    """The tuned rule of this kind that lies beside a scenario; None where there is none, or a stale one."""
    file, tuning = router_file_of(scenario, kind), Tuning(scenario, kind)
    if not file.is_file() or why_tune(file, tuning.command(tuning.knobs(world)), world):
        return None
    return read_rule(file)


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
        "p99s_s": [float(np.mean([score.p99_s for score in of])) for of in by_seed],
        "images_j": [float(np.mean([score.image_j for score in of])) for of in by_seed],
        "searches": [_means(each) for each in scores],
        "seeds": list(world.scenario.compare.seeds),
    }


def flaws(row: Mapping[str, Any]) -> str:
    """What a row's figures were bought with, in words: images left unserved, accuracy below its floor, or nothing."""
    found = [f"{100 * row['unserved']:.1f} % unserved"] if row["unserved"] > LIMIT else []
    if row["accuracy"] < row["floor"] - EQUAL:
        found.append(f"{100 * row['accuracy']:.2f} % accurate")
    return ", ".join(found)


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
