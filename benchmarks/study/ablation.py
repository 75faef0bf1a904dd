"""What each ingredient of Tide is worth: tuned without it, with the same budget, and run on seeds that no tuning saw.

    python -m benchmarks.study ablation scenarios/main-mmpp-10g.yaml scenarios/main-failing-10g.yaml

Rows are told as they come, and kept: an interrupted run goes on with the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.study.tuned_rows import Asked, RowsFile, change_of, figures_row, held_out, searched_specs
from kit.errors import WorkError
from policies.registry import TIDE
from policies.rules.controlled import ControlSpec
from scenarios.learn.knobs import TuningKnobs
from scenarios.learn.tune import tune_world
from scenarios.learn.tuned_files import with_control
from scenarios.metrics.statistics import Estimate
from scenarios.world.world import World

SCHEMA: Final = "slimsched.ablation/1"
ROWS: Final[dict[str, dict[str, Any]]] = {
    "tide, all of it": {},
    "placement: sticky, none is picked": {"as_they_are": ("placement",)},
    "nobody is held": {"as_they_are": ("hold",)},
    "groups up to the largest": {"as_they_are": ("group",)},
    "the mean alone, no tail": {"tail": 0.0},
    "five times the weight of the tail": {"tail": 1.0},
    "a steep wall at the floor instead of a controlled worth": {"pid": False},
    "rates drawn from 0.8 to 1.2 times": {"rates": (0.8, 1.2)},
    "nothing is searched, only the floor set": {"decisions": 0},
}
FIRST: Final = next(iter(ROWS))
NO_TAIL: Final = "the mean alone, no tail"
TAILS: Final = (NO_TAIL, FIRST, "five times the weight of the tail")
CONTROLLED: Final = "all of it, told to keep the floor while it serves"
NO_PRICE: Final = "no price: one tuple, whatever the load"
RIVAL: Final = "ladder, the same search"
_KINDS: Final = {NO_PRICE: "fixed", RIVAL: "ladder"}
LITTLE_VARIANCE_PCT: Final = 5.0  # more than the ladder's, at most, for nearly all
MOST_GAIN_PCT: Final = 80.0  # of the gain over the ladder


def row_of(world: World, name: str, knobs: TuningKnobs, first: dict[str, Any] | None) -> dict[str, Any]:
    """Tune, run what each search found, and set their means beside the scenario's first row, seed by seed."""
    try:
        found = tune_world(world, _KINDS.get(name, TIDE), knobs)
    except WorkError as error:
        return {"switch": name, "scenario": world.scenario.name, "problem": str(error)}
    specs = searched_specs(found)
    if name == CONTROLLED:
        specs = [with_control(spec, ControlSpec(floor=knobs.floor, p99_limit_s=0.0)) for spec in specs]
    figures = figures_row(world, held_out(world, specs, knobs))
    base = figures if first is None else first
    return {
        "switch": name,
        "scenario": world.scenario.name,
        "floor": knobs.floor,
        **figures,
        "change_pct": change_of(figures, base, "means_s", "mean_ms"),
        "p99_change_pct": change_of(figures, base, "p99s_s", "p99_ms"),
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

    scenario: str
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
    """By scenario and weight of the tail; of none where a row that this needs has no figures by seed."""
    scenarios = dict.fromkeys(row["scenario"] for row in rows)
    return [tail for name in scenarios for tail in _tails([row for row in rows if row["scenario"] == name])]


def _tails(rows: Sequence[Mapping[str, Any]]) -> list[Tail]:
    found = {row["switch"]: row for row in rows if "stds_s" in row}
    if RIVAL not in found or NO_TAIL not in found:
        return []
    rival, plain_pct = found[RIVAL], _gain_pct(found[NO_TAIL], found[RIVAL])
    return [
        Tail(
            scenario=rival["scenario"],
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


def rows_wanted() -> dict[str, dict[str, Any]]:
    """All rows of a scenario, and what is other for them in the tuning's knobs."""
    return {**ROWS, CONTROLLED: {}, NO_PRICE: {}, RIVAL: {}}


def make_rows(asked: Asked, path: Path) -> None:
    """Every row of these scenarios that is not there yet, a scenario's first row first: its others are set beside it.

    Raises:
        InputError: a scenario has no floor; what is there is of another command, or of another state of one.
        WorkError: a first row can't be made.
    """
    kept = RowsFile(path, SCHEMA, asked.command("ablation"), asked.scenarios)
    for scenario in asked.scenarios:
        world = asked.world(scenario)
        for name, changes in rows_wanted().items():
            own = kept.of(world.scenario.name)
            if any(row["switch"] == name for row in own):
                continue
            row = row_of(world, name, replace(asked.knobs(world), **changes), own[0] if own else None)
            if not own and "problem" in row:
                raise WorkError(row["problem"])
            kept.add(row, ("switch", "accuracy", "mean_ms", "p99_ms", "problem"))
