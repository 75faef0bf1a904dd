"""Fronts of energy against p99: limits follow the quickest, rows are kept, and what ships is taken if it is of now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from scenarios.files.documents import read_json
from scenarios.files.router_names import read_rule
from scenarios.learn.tuning import Tuning, tune_router
from scenarios.study import fronts
from scenarios.study.__main__ import main
from scenarios.study.tuned_rows import rule_of_now
from scenarios.world.materials import load_world
from tests.scenarios.test_tune import SCENARIO


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    tuning = {"floor": 0.75, "levels": 1, "decisions": 4000, "episodes": 2, "episode_s": 0.5}
    path.write_text(yaml.safe_dump({**SCENARIO, "tuning": tuning}))
    return path


def test_each_limit_is_so_many_times_the_quickests_p99(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupted one goes on with the row that is missing."""
    path, rows_of = tmp_path / "fronts.json", fronts.row_of
    made: list[float] = []

    def row_of(world: Any, point: fronts.Point, *rest: Any) -> dict[str, Any]:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(point.times)
        return rows_of(world, point, *rest)

    monkeypatch.setattr(fronts, "row_of", row_of)
    monkeypatch.setattr(fronts, "TIMES", (2.0, 3.0))
    command = ["fronts", str(scenario), "--router", "ladder", "--decisions", "4000", "--searches", "2"]
    assert main([*command, "--json", str(path)]) == 130
    monkeypatch.setattr(fronts, "row_of", rows_of)
    assert main([*command, "--json", str(path)]) == 0
    rows = read_json(path)["rows"]
    assert made == [1.0, 2.0]
    assert [row["times"] for row in rows] == [1.0, 2.0, 3.0]
    quickest = rows[0]
    assert [row["limit_ms"] for row in rows] == [None, 2 * quickest["p99_ms"], 3 * quickest["p99_ms"]]
    assert rows[2]["image_j"] < 0.99 * quickest["image_j"]
    assert rows[2]["energy_pct"]["mean"] == pytest.approx(100 * (rows[2]["image_j"] / quickest["image_j"] - 1), abs=1)
    assert all(len(row["searches"]) == 2 and len(row["stds_s"]) == 2 for row in rows)
    assert "| tiny | ladder | the quickest |" in capsys.readouterr().out


def test_what_ships_is_the_quickest_where_it_is_of_now(scenario: Path) -> None:
    """Else it is tuned."""
    world = load_world(scenario)
    file = scenario.parent / "data/routers/tiny/fixed.rule.yaml"
    assert rule_of_now(scenario, world, "fixed") is None
    tune_router(Tuning(scenario, "fixed", file), quiet=True)
    found = rule_of_now(scenario, world, "fixed")
    assert found == read_rule(file)
    base = Tuning(scenario, "fixed").knobs(world)
    row = fronts.row_of(world, fronts.Point("fixed", 1.0), base, None, found)
    assert (row["ships"], row["seeds"], row["limit_ms"]) == (True, [100, 101], None)
    document = yaml.safe_load(scenario.read_text())
    scenario.write_text(yaml.safe_dump({**document, "tuning": {**document["tuning"], "floor": 0.74}}))
    assert rule_of_now(scenario, load_world(scenario), "fixed") is None


def test_a_kind_whose_quickest_can_not_be_tuned_has_no_front(scenario: Path) -> None:
    base = Tuning(scenario, "milp").knobs(load_world(scenario))
    row = fronts.row_of(load_world(scenario), fronts.Point("milp", 1.5), base, {"problem": "no floor"}, None)
    assert row["problem"] == "the quickest could not be tuned"
