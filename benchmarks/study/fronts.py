"""Energy an image against p99 latency: kinds of routers tuned for energy at limits of the p99 that all have in common.

    python -m benchmarks.study fronts scenarios/main-mmpp-10g.yaml scenarios/main-poisson70-10g.yaml

First each kind is tuned for latency: its quickest row. The limits are so many times the lowest p99 of these rows, and
what the scenario promises (`service.p99_limit_s`), so kinds can be compared at equal limits. All keep the scenario's
floor on the runs of their tuning, and run on seeds that no tuning saw. Rows are told as they come, and kept: an
interrupted run goes on with the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from benchmarks.study.tuned_rows import Asked, RowsFile, change_of, figures_row, flaws, held_out, searched_specs
from kit.errors import WorkError
from scenarios.learn.knobs import TuningKnobs
from scenarios.learn.tune import tune_world
from scenarios.metrics.served import LIMIT, MARK
from scenarios.show import numbers
from scenarios.show.numbers import NONE, number
from scenarios.show.table import Table, columns
from scenarios.world.world import World

SCHEMA: Final = "slimsched.fronts/1"
KINDS: Final = ("tide", "ladder")
TIMES: Final = (1.1, 1.5, 2.0, 3.0)  # the lowest p99 of all kinds' quickest rows
ALIKE: Final = 0.02  # of a limit: one that is so near to another has no row of its own


@dataclass(frozen=True)
class Limit:
    """Of the p99 latency, and what it is: so many times the lowest, or what is promised."""

    ms: float
    what: str


def limits_of(quickest: Sequence[Mapping[str, Any]], promised_s: float | None) -> list[Limit]:
    """Common to all kinds, ascending, from the rows that are tuned for latency; none where none of these has figures.

    Who leaves many images unserved is quick with the others, and sets no limit unless all do.
    """
    found = [row for row in quickest if "problem" not in row]
    able = [row for row in found if row["unserved"] <= LIMIT] or found
    if not able:
        return []
    lowest_ms = min(row["p99_ms"] for row in able)
    limits = [Limit(times * lowest_ms, f"{times:g} times") for times in TIMES]
    promised_ms = 1000 * (promised_s or 0.0)
    if promised_ms > lowest_ms and all(abs(limit.ms - promised_ms) > ALIKE * promised_ms for limit in limits):
        limits.append(Limit(promised_ms, "promised"))
    return sorted(limits, key=lambda limit: limit.ms)


def make_rows(asked: Asked, kinds: Sequence[str], path: Path) -> None:
    """Every row of these scenarios that is not there yet; the quickest of all kinds first, for they set the limits.

    Raises:
        InputError: a scenario has no floor; what is there is of another command, or of another state of one.
    """
    kept = RowsFile(path, SCHEMA, asked.command("fronts", f" --router {' '.join(kinds)}"), asked.scenarios)
    for scenario in asked.scenarios:
        world = asked.world(scenario)
        knobs = asked.knobs(world)
        for kind in kinds:
            _add(kept, world, knobs, kind, None)
        quickest = kept.of(world.scenario.name, limit_ms=None)
        limits = limits_of(quickest, world.scenario.service.p99_limit_s)
        for limit, kind in product(limits, kinds):
            _add(kept, world, knobs, kind, limit)


def _add(kept: RowsFile, world: World, knobs: TuningKnobs, kind: str, limit: Limit | None) -> None:
    """A row, unless it is there; a kind's first is its quickest."""
    own = kept.of(world.scenario.name, router=kind)
    if not any(row["limit_ms"] == (limit and limit.ms) for row in own):
        row = row_of(world, kind, limit, knobs, own[0] if own else None)
        kept.add(row, ("router", "limit", "limit_ms", "p99_ms", "image_j", "accuracy", "problem"))


def row_of(
    world: World, kind: str, limit: Limit | None, base: TuningKnobs, quickest: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Tune for latency, or for energy within a limit; run, and set its energy beside its quickest's, seed by seed."""
    row = {"scenario": world.scenario.name, "router": kind, "floor": base.floor}
    if limit is None:
        knobs, row = replace(base, objective="latency"), {**row, "limit": "the quickest", "limit_ms": None}
    else:
        knobs = replace(base, objective="energy", p99_limit_s=limit.ms / 1000)
        row |= {"limit": limit.what, "limit_ms": limit.ms}
    if quickest is not None and "problem" in quickest:
        return {**row, "problem": "the quickest could not be tuned"}
    try:
        specs = searched_specs(tune_world(world, kind, knobs))
    except WorkError as error:
        return {**row, "problem": str(error)}
    figures = figures_row(world, held_out(world, specs, knobs))
    return {**row, **figures, "energy_pct": change_of(figures, quickest or figures, "images_j", "image_j")}


def is_kept(row: Mapping[str, Any]) -> bool:
    """Whether a row with figures kept its limit on the seeds that no tuning saw; the quickest has none to keep."""
    return row["limit_ms"] is None or bool(row["p99_ms"] <= row["limit_ms"])


def front_table(fronts: Mapping[str, Any]) -> Table:
    """A row a scenario, kind and limit."""
    head = columns("scenario", "router", "limit of p99, ms", "p99 ms", "kept", "J an image", "energy", "mean ms")
    rows = [_cells(row) for row in fronts["rows"]]
    return Table([*head, *columns("standard deviation, ms", "accuracy %")], rows)


def _cells(row: Mapping[str, Any]) -> list[str]:
    is_quickest = row["limit_ms"] is None
    limit = row["limit"] if is_quickest else f"{number(row['limit_ms'], None)} ({row['limit']})"
    if "problem" in row:
        return [row["scenario"], row["router"], f"{limit}: {row['problem']}", *[NONE] * 7]
    flawed = flaws(row)
    return [
        row["scenario"],
        f"{row['router']}{MARK} ({flawed})" if flawed else row["router"],
        limit,
        number(row["p99_ms"], None),
        NONE if is_quickest else "yes" if is_kept(row) else "no",
        number(row["image_j"], None),
        NONE if is_quickest else numbers.change(row["energy_pct"]),
        number(row["mean_ms"], None),
        number(row["std_ms"], None),
        number(row["accuracy"], 2, 100),
    ]
