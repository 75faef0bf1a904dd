"""The suite: scenarios and drawn clusters with fixed seeds, on which routers race at equal accuracy.

The bundled files: `scenarios/data/suite.yaml` (which cases, which seeds, the floors of the drawn clusters) and
`scenarios/data/suite.csv` (the figures of the published routers, by `python -m benchmarks suite`).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pydantic import Field

from hw.version import code_here
from kit import strict
from kit.documents import inputs_hash, read_text
from kit.errors import InputError, nearest
from kit.strict import StrictModel
from scenarios.files.router_names import decided_by, display_name
from scenarios.files.shipped import SHIPPED, SHIPPED_SCENARIOS
from scenarios.learn.clusters import Clusters, drawn_world
from scenarios.metrics.suite import Case, SuiteScore, cases_of, rows_of
from scenarios.runs.bound import FluidModel
from scenarios.runs.equal import EqualRuns
from scenarios.runs.folder import RunFolder
from scenarios.terminal.progress import Progress
from scenarios.world.materials import load_world
from scenarios.world.world import World

FILE: Final = SHIPPED / "suite.yaml"
PUBLISHED: Final = SHIPPED / "suite.csv"


class SuiteFile(StrictModel):
    """Which cases there are. Whoever changes one makes another suite, with another name."""

    schema_: Literal["slimsched.suite/1"] = Field(alias="schema")
    name: str
    seeds: tuple[int, ...]
    scenarios: tuple[str, ...] = Field(description="by the names of those that ship; each has a floor (tuning.floor)")
    clusters: Clusters = Field(description="what the others are drawn from")
    drawn: Mapping[str, float] = Field(description="the drawn clusters: name and floor of each")


@dataclass(frozen=True, slots=True)
class SuiteCase:
    """A case that can be run."""

    name: str
    floor: float
    world: World
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
        world = drawn_world(suite.clusters, name.removeprefix("drawn-"))
        return SuiteCase(name, suite.drawn[name.removeprefix("drawn-")], world, suite.seeds)
    world = load_world(SHIPPED_SCENARIOS / f"{name}.yaml")
    floor = world.scenario.tuning.floor
    assert floor is not None, "a scenario of the suite has a floor"
    return SuiteCase(name, floor, world, suite.seeds)


def published() -> tuple[Case, ...]:
    """Return the cases with the routers whose figures are bundled."""
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        return cases_of([_typed(row) for row in csv.DictReader(file)])


def _typed(row: Mapping[str, str]) -> dict[str, Any]:
    words, found = ("case", "router"), dict[str, Any](row)
    for key, text in row.items():
        if key not in words:
            found[key] = text == "True" if key == "is_kept" else float(text) if text else None
    return {**found, "seed": int(row["seed"])}


def race(routers: Sequence[str], folder: RunFolder, only: Sequence[str] = (), *, quiet: bool = False) -> SuiteScore:
    """Run routers on the suite at equal accuracy, next to the published ones.

    Args:
        routers: by name or file.
        folder: keeps finished cases, from which the next call resumes.
        only: cases; all by default.

    Raises:
        InputError: no such case or router, or one that doesn't fit a case.
    """
    suite, known = read_suite(), {case.name: case for case in published()}
    names = case_names(suite)
    for name in only:
        if name not in names:
            raise InputError("--only", "", f"{name!r} is no case; {nearest(name, names)}")
    wanted = [name for name in names if not only or name in only]
    memo, cases = folder.memo("suite", inputs_hash(FILE, code_here())), []
    finished = {row["inputs"]: row["rows"] for row in memo.rows}
    with Progress("suite", len(wanted) * len(routers), unit="router and case", quiet=quiet) as progress:
        for name in wanted:
            case = load_case(suite, name)
            its = known.get(name) or Case(name, case.floor, bound_s(case), {})
            runs = EqualRuns(case.world, case.seeds)
            for router in routers:
                label = display_name(router)
                inputs = inputs_hash(name, label, decided_by(router, "--router"))
                if inputs not in finished:
                    rows = rows_of([replace(its, routers={label: runs.at_floor(router, case.floor)})])
                    memo.add({"inputs": inputs, "rows": rows})
                    finished[inputs] = rows
                its = replace(its, routers={**its.routers, **cases_of(finished[inputs])[0].routers})
                progress.update(1)
            cases.append(its)
    entrants = tuple(map(display_name, routers))
    others = dict.fromkeys(router for case in known.values() for router in case.routers if router not in entrants)
    return SuiteScore(published=tuple(others), entrants=entrants, cases=tuple(cases))


def bound_s(case: SuiteCase) -> float:
    """Return the mean latency that no router can beat at the case's floor."""
    return FluidModel(case.world).bound(case.floor, case.world.mean_rate_img_s).latency_mean_s
