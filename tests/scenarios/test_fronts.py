"""Fronts of energy against p99: limits are common to all kinds, rows are kept, and what misses a limit is shown so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import yaml

from benchmarks.study import fronts
from benchmarks.study.__main__ import main
from benchmarks.study.fronts import Limit, limits_of
from benchmarks.study.pictures import HOLLOW, energy_chart
from benchmarks.study.tuned_rows import Asked
from kit.documents import read_json
from scenarios.learn.knobs import TuningKnobs
from scenarios.learn.tune import FloorError
from scenarios.learn.tuning import Tuning
from scenarios.world.materials import load_world
from scenarios.world.world import World
from tests.scenarios.test_tune import SCENARIO


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    tuning = {"floor": 0.75, "levels": 1, "decisions": 4000, "episodes": 2, "episode_s": 0.5}
    path.write_text(yaml.safe_dump({**SCENARIO, "tuning": tuning}))
    return path


def quick(p99_ms: float, unserved: float = 0.0) -> dict[str, Any]:
    return {"p99_ms": p99_ms, "unserved": unserved}


def test_limits_are_times_the_lowest_p99_and_what_is_promised() -> None:
    """Who could not be tuned sets none, nor who leaves images unserved; a promise that is near one has no own row."""
    rows = [quick(20.0), quick(10.0), quick(5.0, unserved=0.02), {"problem": "no floor"}]
    own = [Limit(11.0, "1.1 times"), Limit(15.0, "1.5 times"), Limit(20.0, "2 times"), Limit(30.0, "3 times")]
    assert limits_of(rows, None) == own
    assert limits_of(rows, 0.018) == [*own[:2], Limit(18.0, "promised"), *own[2:]]
    assert limits_of(rows, 0.050) == [*own, Limit(50.0, "promised")]
    assert limits_of(rows, 0.0203) == limits_of(rows, 0.009) == own, "near another, or below the lowest"
    assert [limit.ms for limit in limits_of([quick(5.0, unserved=0.02)], None)] == pytest.approx([5.5, 7.5, 10, 15])
    assert limits_of([{"problem": "no floor"}], 0.1) == []


def test_kinds_have_common_limits_and_each_its_own_quickest(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both quickest first, then both at each limit; energy is against the kind's own; an interrupted one goes on."""
    made: list[tuple[str, float | None, float | None]] = []
    p99s_ms = {"tide": 40.0, "ladder": 30.0}

    def row_of(world: World, kind: str, limit: Limit | None, base: TuningKnobs, quickest: Any) -> dict[str, Any]:
        if len(made) == most:
            raise KeyboardInterrupt
        made.append((kind, limit.ms if limit else None, quickest and quickest["p99_ms"]))
        row = {"scenario": world.scenario.name, "router": kind, "limit_ms": limit and limit.ms}
        return {**row, "unserved": 0.0, "p99_ms": p99s_ms[kind]}

    monkeypatch.setattr(fronts, "row_of", row_of)
    document = yaml.safe_load(scenario.read_text())
    scenario.write_text(yaml.safe_dump({**document, "service": {"p99_limit_s": 0.05}}))
    path, asked = tmp_path / "fronts.json", Asked([scenario], 4000, 2)
    most = 5
    with pytest.raises(KeyboardInterrupt):
        fronts.make_rows(asked, ("tide", "ladder"), path)
    most = 100
    fronts.make_rows(asked, ("tide", "ladder"), path)
    limits = [30 * 1.1, 45.0, 50.0, 60.0, 90.0]
    assert made == [("tide", None, None), ("ladder", None, None)] + [
        (kind, pytest.approx(limit), p99s_ms[kind]) for limit in limits for kind in ("tide", "ladder")
    ]
    assert len(read_json(path)["rows"]) == 12


def test_a_row_has_less_energy_than_its_quickest_and_says_whether_its_limit_was_kept(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the p99 on the reported seeds."""
    path = tmp_path / "fronts.json"
    monkeypatch.setattr(fronts, "TIMES", (3.0,))
    command = ["fronts", str(scenario), "--router", "ladder", "--decisions", "4000", "--searches", "2"]
    assert main([*command, "--json", str(path)]) == 0
    quickest, frugal = read_json(path)["rows"]
    assert (quickest["limit_ms"], frugal["limit_ms"]) == (None, 3 * quickest["p99_ms"])
    assert frugal["image_j"] < 0.99 * quickest["image_j"]
    change_pct = 100 * (frugal["image_j"] / quickest["image_j"] - 1)
    assert frugal["energy_pct"]["mean"] == pytest.approx(change_pct, abs=1)
    assert all(len(row["searches"]) == 2 and len(row["stds_s"]) == 2 for row in (quickest, frugal))
    assert quickest["seeds"] == [100, 101]
    assert "| tiny | ladder | the quickest |" in capsys.readouterr().out
    assert fronts.is_kept(quickest)
    assert fronts.is_kept({**frugal, "p99_ms": frugal["limit_ms"]})
    assert not fronts.is_kept({**frugal, "p99_ms": 1.01 * frugal["limit_ms"]})


def test_a_kind_whose_quickest_can_not_be_tuned_has_no_front(scenario: Path) -> None:
    world = load_world(scenario)
    base = Tuning(scenario, "milp").knobs(world)
    row = fronts.row_of(world, "milp", Limit(9.0, "promised"), base, {"problem": "no floor"})
    assert (row["problem"], row["limit_ms"]) == ("the quickest could not be tuned", 9.0)
    row = fronts.row_of(world, "milp", None, replace(base, floor=0.7643, decisions=1000), None)
    assert "no setting keeps an accuracy of 0.7643" in row["problem"]


def test_who_missed_the_limit_the_floor_or_images_is_hollow_and_on_no_line() -> None:
    good = {"scenario": "tiny", "router": "tide", "limit_ms": 30.0, "p99_ms": 20.0, "image_j": 0.2,
            "unserved": 0.0, "accuracy": 0.75, "floor": 0.75}  # fmt: skip
    bad = [{"p99_ms": 31.0}, {"p99_ms": 22.0, "unserved": 0.02}, {"p99_ms": 23.0, "accuracy": 0.7494}]
    beaten, far = {**good, "p99_ms": 25.0, "image_j": 0.25}, {**good, "p99_ms": 41.0, "limit_ms": 50.0, "image_j": 0.1}
    quickest = {**good, "limit_ms": None, "p99_ms": 10.0, "image_j": 0.3}
    rows = [quickest, good, beaten, far, *({**good, **changes} for changes in bad)]
    (axes,) = (each for each in energy_chart(rows).axes if each.lines)
    lines = [(np.asarray(line.get_xdata()).tolist(), line.get_fillstyle()) for line in axes.lines]
    drawn = [line for line in lines if line[0]]
    assert drawn == [([10.0, 20.0], "full"), ([10.0, 20.0, 25.0], "full"), ([31.0, 22.0, 23.0], "none")]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["tide", HOLLOW]
    (axes,) = (each for each in energy_chart(rows[:2]).axes if each.lines)
    assert HOLLOW not in axes.get_legend_handles_labels()[1]


def test_energy_is_tuned_at_the_limit_that_the_row_tells(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the quickest for latency, whatever the scenario's objective."""
    tune = MagicMock(side_effect=FloorError("no setting"))
    monkeypatch.setattr(fronts, "tune_world", tune)
    world = load_world(scenario)
    base = replace(Tuning(scenario, "ladder").knobs(world), objective="energy", p99_limit_s=7.0)
    row = fronts.row_of(world, "ladder", Limit(30.0, "1.5 times"), base, {"p99_ms": 20.0, "mean_ms": 9.0})
    fronts.row_of(world, "ladder", None, base, None)
    asked = [call.args[2] for call in tune.call_args_list]
    assert row["limit_ms"] == pytest.approx(30.0)
    assert [each.objective for each in asked] == ["energy", "latency"]
    assert asked[0].p99_limit_s == pytest.approx(0.03)
