"""Is a faster router ever worse? One kind tuned at several decision times and blocks a server, waiting or not.

    python -m benchmarks.study faster scenarios/main-mmpp-10g.yaml scenarios/main-poisson70-10g.yaml

Deciding takes the time of the row and nothing else, so that it alone differs. Each row is tuned by several searches
with one budget, levelled to the scenario's floor, and run on seeds that no tuning saw. Rows are told as they come, and
kept: an interrupted run goes on with the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.study.tuned_rows import Asked, RowsFile, flaws, held_out, searched_specs
from kit.errors import InputError, WorkError
from scenarios.learn.course import unserved
from scenarios.learn.knobs import TuningKnobs
from scenarios.learn.tune import tune_world
from scenarios.metrics.served import MARK
from scenarios.show.numbers import NONE
from scenarios.show.table import Table, columns
from scenarios.world.world import World

SCHEMA: Final = "slimsched.faster/1"
DECISIONS_US: Final = (1000, 100, 10, 3)
BLOCKS: Final = (4, 16, 64)


@dataclass(frozen=True)
class Point:
    """One row: how long a decision takes, how many blocks a server may have at once, whether the router may wait."""

    decision_us: int
    blocks: int
    may_wait: bool

    def world(self, world: World) -> World:
        """The scenario's world with it."""
        limit_ns = world.cluster.router.hold_limit_ns if self.may_wait else 0
        router = replace(world.cluster.router, outstanding_blocks=self.blocks, hold_limit_ns=limit_ns)
        return replace(
            world, cluster=replace(world.cluster, router=router, decision_ns=1000 * self.decision_us, host=None)
        )


def points() -> Iterator[Point]:
    """All rows of a scenario."""
    for blocks, may_wait, decision_us in product(BLOCKS, (True, False), DECISIONS_US):
        yield Point(decision_us, blocks, may_wait)


def row_of(world: World, kind: str, point: Point, knobs: TuningKnobs) -> dict[str, Any]:
    """Tune, and run what each search found on the seeds of the scenario's comparison."""
    its = point.world(world)
    row = {"scenario": world.scenario.name, "router": kind, **vars(point), "floor": knobs.floor}
    try:
        found = tune_world(its, kind, knobs)
    except WorkError as error:
        return {**row, "problem": str(error)}
    searches = held_out(its, searched_specs(found), knobs)
    return {
        **row,
        "means_ms": [float(1000 * np.mean([score.mean_s for score in scores])) for scores in searches],
        "p99s_ms": [float(1000 * np.mean([score.p99_s for score in scores])) for scores in searches],
        "accuracies": [float(np.mean([score.accuracy for score in scores])) for scores in searches],
        "unserved": unserved([score for scores in searches for score in scores]),
    }


def make_rows(asked: Asked, kind: str, path: Path) -> None:
    """Every row of these scenarios that is not there yet.

    Raises:
        InputError: a scenario has no floor, or nobody may wait in it; what is there is of another command, or of
            another state of a scenario.
    """
    kept = RowsFile(path, SCHEMA, asked.command("faster", f" --router {kind}"), asked.scenarios)
    for scenario in asked.scenarios:
        world = asked.world(scenario)
        if not world.cluster.router.hold_limit_ns:
            raise InputError(str(scenario), "router.hold_limit_s", "must be above 0: rows with and without waiting")
        for point in points():
            if not kept.of(world.scenario.name, **vars(point)):
                row = row_of(world, kind, point, asked.knobs(world))
                kept.add(row, ("decision_us", "blocks", "may_wait", "means_ms", "problem"))


def faster_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each scenario, number of blocks, and whether the router may wait; a cell's flaws are told."""
    lines = []
    groups = dict.fromkeys((row["scenario"], row["blocks"], row["may_wait"]) for row in rows)
    for scenario, blocks, may_wait in groups:
        found = {
            row["decision_us"]: _cell(row)
            for row in rows
            if (row["scenario"], row["blocks"], row["may_wait"]) == (scenario, blocks, may_wait)
        }
        cells = [found.get(us, NONE) for us in DECISIONS_US]
        lines.append([f"`{scenario}`", str(blocks), "yes" if may_wait else "no", *cells])
    return Table(columns("scenario", "blocks", "may wait", *(f"{us} us" for us in DECISIONS_US)), lines)


def _cell(row: Mapping[str, Any]) -> str:
    if "problem" in row:
        return str(row["problem"])
    text, flawed = f"{np.mean(row['means_ms']):.2f} ({_range(row)})", _flaws(row)
    return f"{text}{MARK} ({flawed})" if flawed else text


def verdicts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence a scenario: where it may wait, which decision time is worse than a slower one, by number of blocks."""
    waiting = [row for row in rows if row["may_wait"]]
    found: dict[str, list[str]] = {}
    for scenario, blocks in dict.fromkeys((row["scenario"], row["blocks"]) for row in waiting):
        own = {row["decision_us"]: row for row in waiting if (row["scenario"], row["blocks"]) == (scenario, blocks)}
        found.setdefault(scenario, []).append(f"{blocks} blocks: {_verdict(own)}")
    return [f"{scenario}, waiting: {'; '.join(texts)}." for scenario, texts in found.items()]


def _verdict(own: Mapping[int, Mapping[str, Any]]) -> str:
    """Of the rows by decision time: worse is who lies, with all its searches, above all those of a slower one."""
    able = {us: row for us, row in sorted(own.items(), reverse=True) if "problem" not in row and not _flaws(row)}
    left_out = ", ".join(f"{us} us" for us in DECISIONS_US if us not in able)
    rest = f" (left out, for no figures or marked ones: {left_out})" if left_out else ""
    if len(able) < 2 or any(len(row["means_ms"]) < 2 for row in able.values()):
        return f"can't be said, for want of rows with two searches or more{rest}"
    worse = [
        f"{quick} us ({_range(able[quick])} ms) is worse than {slow} us ({_range(able[slow])} ms)"
        for slow, quick in combinations(able, 2)
        if min(able[quick]["means_ms"]) > max(able[slow]["means_ms"])
    ]
    return f"{', '.join(worse) or 'never worse'} beyond the searches' ranges{rest}"


def _range(row: Mapping[str, Any]) -> str:
    return f"{min(row['means_ms']):.2f} to {max(row['means_ms']):.2f}"


def _flaws(row: Mapping[str, Any]) -> str:
    return flaws({**row, "accuracy": np.mean(row["accuracies"])})
