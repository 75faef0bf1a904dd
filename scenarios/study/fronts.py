"""Energy an image against p99 latency: each kind tuned for energy at several limits, from its quickest on.

    python -m scenarios.study fronts scenarios/main-mmpp-10g.yaml scenarios/main-poisson70-10g.yaml

The quickest is the tuned router that ships, where it is of now; else it is tuned. The limits are so many times its p99.
All keep the scenario's floor on the runs of their tuning, and run on seeds that no tuning saw. Rows are told as they
come, and kept: an interrupted run goes on with the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from policies.errors import WorkError
from policies.rules.specs import RouterSpec
from scenarios.learn.knobs import TuningKnobs
from scenarios.learn.tune import tune_world
from scenarios.metrics.served import LIMIT
from scenarios.metrics.statistics import Estimate
from scenarios.show import numbers
from scenarios.show.numbers import NONE, number
from scenarios.show.table import Table, columns
from scenarios.show.words import marked
from scenarios.study.tuned_rows import Asked, RowsFile, change_of, figures_row, held_out, rule_of_now, searched_specs
from scenarios.world.world import World

SCHEMA: Final = "slimsched.fronts/1"
KINDS: Final = ("tide", "ladder")
TIMES: Final = (1.1, 1.5, 2.0, 3.0)  # the quickest's p99
QUICKEST: Final = 1.0  # the row that is tuned for latency


@dataclass(frozen=True)
class Point:
    """One row: a kind in a scenario, and at how many times its quickest's p99 energy is made small."""

    router: str
    times: float


def make_rows(asked: Asked, kinds: Sequence[str], path: Path) -> None:
    """Every row of these scenarios that is not there yet.

    Raises:
        InputError: a scenario has no floor; what is there is of another command.
    """
    kept = RowsFile(path, SCHEMA, asked.command("fronts", f" --router {' '.join(kinds)}"))
    for scenario in asked.scenarios:
        world = asked.world(scenario)
        shipped = {kind: None if asked.duration_s else rule_of_now(scenario, world, kind) for kind in kinds}
        for point in (Point(kind, times) for kind in kinds for times in (QUICKEST, *TIMES)):
            own = kept.of(world.scenario.name, router=point.router)
            if any(row["times"] == point.times for row in own):
                continue
            row = row_of(world, point, asked.knobs(world), own[0] if own else None, shipped[point.router])
            kept.add(row, ("router", "times", "p99_ms", "limit_ms", "image_j", "accuracy", "problem"))


def row_of(
    world: World, point: Point, base: TuningKnobs, quickest: Mapping[str, Any] | None, shipped: RouterSpec | None
) -> dict[str, Any]:
    """Tune (or take what ships), run, and set its energy beside the quickest's, seed by seed."""
    row: dict[str, Any] = {"scenario": world.scenario.name, **vars(point), "floor": base.floor}
    if quickest is None:
        knobs, row = replace(base, objective="latency"), {**row, "ships": shipped is not None, "limit_ms": None}
    elif "problem" in quickest:
        return {**row, "problem": "the quickest could not be tuned"}
    else:
        limit_ms = point.times * quickest["p99_ms"]
        knobs, row = replace(base, objective="energy", p99_limit_s=limit_ms / 1000), {**row, "limit_ms": limit_ms}
    try:
        specs = [shipped] if quickest is None and shipped else searched_specs(tune_world(world, point.router, knobs))
    except WorkError as error:
        return {**row, "problem": str(error)}
    figures = figures_row(world, held_out(world, specs, knobs))
    return {**row, **figures, "energy_pct": change_of(figures, quickest or figures, "images_j", "image_j")}


def front_table(fronts: Mapping[str, Any]) -> Table:
    """A row a scenario, kind and limit."""
    head = columns("scenario", "router", "limit of p99, ms", "p99 ms", "kept", "J an image", "energy", "mean ms")
    rows = [_cells(row) for row in fronts["rows"]]
    return Table([*head, *columns("standard deviation, ms", "accuracy %")], rows)


def _cells(row: Mapping[str, Any]) -> list[str]:
    limit_ms = row.get("limit_ms")
    limit = "the quickest" if row["times"] == QUICKEST else f"{number(limit_ms, None)} ({row['times']:g} times)"
    if "problem" in row:
        return [row["scenario"], row["router"], f"{limit}: {row['problem']}", *[NONE] * 7]
    change: Estimate = row["energy_pct"]
    return [
        row["scenario"],
        marked(row["router"], row["unserved"] > LIMIT),
        limit,
        number(row["p99_ms"], None),
        NONE if limit_ms is None else "yes" if row["p99_ms"] <= limit_ms else "no",
        number(row["image_j"], None),
        NONE if limit_ms is None else numbers.change(change),
        number(row["mean_ms"], None),
        number(row["std_ms"], None),
        number(row["accuracy"], 2, 100),
    ]
