"""The table of decision times: what a row's world is, and that an interrupted one goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.errors import InputError
from scenarios.files.documents import read_json
from scenarios.learn.tuning import knobs_of
from scenarios.show.table import to_markdown
from scenarios.study import faster
from scenarios.study.tuned_rows import Asked
from scenarios.world.materials import load_world

SCENARIO = Path("scenarios/main-mmpp-10g.yaml")


def test_a_row_changes_deciding_and_nothing_else() -> None:
    """Its time, the blocks at a server, and whether anybody may be held."""
    world = load_world(SCENARIO)
    fast = faster.Point(3, 16, True).world(world).cluster
    assert (fast.decision_ns, fast.host, fast.router.outstanding_blocks) == (3000, None, 16)
    assert fast.router.hold_limit_ns == world.cluster.router.hold_limit_ns > 0
    assert faster.Point(3, 16, False).world(world).cluster.router.hold_limit_ns == 0
    assert fast.devices == world.cluster.devices


def test_a_row_has_the_figures_of_so_many_searches() -> None:
    """Of each its own, by the number that was asked for and not the scenario's; all at one floor."""
    world = load_world(SCENARIO)
    world = replace(world, scenario=world.scenario.model_copy(update={"duration_s": 2.0, "warmup_s": 0.5}))
    knobs = knobs_of(world, seed=0, decisions=60_000, searches=2)
    row = faster.row_of(world, "ladder", faster.Point(100, 16, True), knobs)
    assert (row["scenario"], row["router"], row["blocks"]) == ("main-mmpp-10g", "ladder", 16)
    assert world.scenario.tuning.searches == 3
    assert [len(row[key]) for key in ("means_ms", "p99s_ms", "accuracies")] == [2, 2, 2]
    assert len(set(row["means_ms"])) == 2, "two searches that found one rule would be a wonder"
    assert all(mean_ms < p99_ms for mean_ms, p99_ms in zip(row["means_ms"], row["p99s_ms"], strict=True))


def test_rows_are_kept_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted table goes on with the row that is missing; other settings are refused."""
    made: list[faster.Point] = []

    def row_of(world: Any, kind: str, point: faster.Point, *_: Any) -> dict[str, Any]:
        if len(made) == most:
            raise KeyboardInterrupt
        made.append(point)
        return {"scenario": world.scenario.name, **vars(point), "means_ms": [1.0, 3.0]}

    monkeypatch.setattr(faster, "row_of", row_of)
    path, most = tmp_path / "faster.json", 5
    with pytest.raises(KeyboardInterrupt):
        faster.make_rows(Asked([SCENARIO], 1000, 2), "ladder", path)
    most = 1000
    faster.make_rows(Asked([SCENARIO], 1000, 2), "ladder", path)
    rows = read_json(path)["rows"]
    assert made == list(faster.points()), "each once"
    assert [(row["decision_us"], row["blocks"], row["may_wait"]) for row in rows] == [
        (point.decision_us, point.blocks, point.may_wait) for point in faster.points()
    ]
    assert "| `main-mmpp-10g` | 16 | no | 2.00 (1.00 to 3.00) | 2.00" in to_markdown(faster.faster_table(rows))
    with pytest.raises(InputError, match="which can't stand beside"):
        faster.make_rows(Asked([SCENARIO], 1000, 2), "tide", path)


def test_a_scenario_in_which_nobody_may_wait_is_refused(tmp_path: Path) -> None:
    """There is nothing to compare."""
    path = tmp_path / "none.yaml"
    document = yaml.safe_load(SCENARIO.read_text())
    folder = str(SCENARIO.parent.resolve() / "data")
    document["model"]["accuracy"] = document["model"]["accuracy"].replace("data", folder, 1)
    document["router"]["hold_limit_s"] = 0
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match=r"router.hold_limit_s: must be above 0"):
        faster.make_rows(Asked([path], 1000, 1), "ladder", tmp_path / "faster.json")
    with pytest.raises(InputError, match=r"tuning.floor: missing; every row"):
        faster.make_rows(Asked([SCENARIO.parent / "paper.yaml"], 1000, 1), "ladder", tmp_path / "faster.json")
