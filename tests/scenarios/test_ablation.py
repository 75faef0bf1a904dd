"""The ablation keeps its rows, goes on with the next one, and mixes nothing."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import hypot
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from benchmarks.study import ablation, tuned_rows
from benchmarks.study.__main__ import main
from benchmarks.study.ablation import CONTROLLED, FIRST, NO_PRICE, RIVAL, ROWS, row_of
from benchmarks.study.tuned_rows import Asked, change_of
from kit.errors import InputError
from policies.rules.controlled import ControlSpec
from policies.rules.specs import LadderRule
from policies.rules.tide import TideRule
from scenarios.learn.course import Course
from scenarios.learn.settings import options_of
from scenarios.learn.tune import FloorError, tune_world
from scenarios.metrics.statistics import relative_half_width
from scenarios.world.materials import load_world
from scenarios.world.world import World
from tests.scenarios.test_tune import KNOBS, SCENARIO


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**SCENARIO, "tuning": {"floor": 0.75, "levels": 1}}))
    return path


def test_an_interrupted_one_goes_on_with_the_next_row(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, Any, float | None]] = []

    def told(world: World, name: str, knobs: Any, first: dict[str, Any] | None) -> dict[str, Any]:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append((name, knobs, None if first is None else first["mean_ms"]))
        figures = {"accuracy": 0.75, "std_ms": 1.0, "p99_ms": 9.0, "change_pct": 0.0, "seeds": [1]}
        return {"switch": name, "scenario": world.scenario.name, "mean_ms": float(len(made)), **figures}

    monkeypatch.setattr(ablation, "row_of", told)
    out = tmp_path / "rows.json"
    assert main(["ablation", str(scenario), "--json", str(out)]) == 130
    assert [row["switch"] for row in json.loads(out.read_text())["rows"]] == [*ROWS][:3]
    before = made.copy()
    made[:] = [("", None, None)] * 4
    assert main(["ablation", str(scenario), "--json", str(out)]) == 0
    after = made[4:]
    assert [name for name, *_ in before + after] == [*ROWS, CONTROLLED, NO_PRICE, RIVAL]
    assert {first for *_, first in (before + after)[1:]} == {1.0}, "all are set beside the first"
    for name, knobs, _ in before + after:
        assert all(getattr(knobs, key) == value for key, value in ROWS.get(name, {}).items())
        assert knobs.levels == 1, "the scenario's"


def test_what_is_picked_from_lists_has_a_row_each(scenario: Path) -> None:
    """By names that tuning knows."""
    rows = [replace(KNOBS, **changes) for changes in ROWS.values()]
    document = yaml.safe_load(scenario.read_text())
    document["router"] = {"hold_limit_s": 0.016}
    scenario.write_text(yaml.safe_dump(document))
    world = load_world(scenario)
    with ThreadPoolExecutor(1) as workers:
        keys = [{key for key, _ in options_of(TideRule(), Course(world, row, workers))} for row in rows]
    assert keys[0] == {"placement", "hold", "group"}
    assert [keys[0] - found for found in keys if found != keys[0]] == [{"placement"}, {"hold"}, {"group"}]


def test_what_is_not_picked_is_as_it_was(scenario: Path) -> None:
    knobs = replace(KNOBS, floor=0.75, decisions=3_000, as_they_are=("placement", "hold", "group"))
    found = tune_world(load_world(scenario), "tide", knobs)
    assert isinstance(found.spec, TideRule)
    assert (found.spec.placement, found.spec.hold, found.spec.group) == ("sticky", None, "largest")
    assert found.spent.settings == 0


def test_rows_of_another_command_are_left_alone(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.json"
    text = json.dumps({"command": f"python -m benchmarks.study ablation {scenario} --decisions 7", "rows": []})
    out.write_text(text)
    assert main(["ablation", str(scenario), "--json", str(out), "--decisions", "8"]) == 2
    assert "can't stand beside those of" in capsys.readouterr().err
    for other in ("[1]", '{"a": 1}'):
        (tmp_path / "other.json").write_text(other)
        assert main(["ablation", str(scenario), "--json", str(tmp_path / "other.json")]) == 2
        assert "other.json: has no rows of a table; name another file, or delete it" in capsys.readouterr().err
    assert out.read_text() == text


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ({"tuning": {"floor": 0.74, "levels": 1}}, True),
        ({"workload": {"kind": "poisson", "rate_img_s": 4000}}, True),
        ({"duration_s": 2.5}, True),
        ({"compare": {"seeds": [100, 101, 102]}}, True),
        ({"compare": {"seeds": [100, 101], "routers": ["random"]}}, False),
        ({"validate": {"seeds": [7]}, "training": {"clip": 0.3}}, False),
    ],
)
def test_rows_of_another_state_of_a_scenario_are_left_alone(
    scenario: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    is_refused: bool,
) -> None:
    """Of the same name; who routes, and how PPO is trained, decides no row."""
    monkeypatch.setattr(ablation, "row_of", lambda world, name, *_: {"switch": name, "scenario": world.scenario.name})
    out = tmp_path / "rows.json"
    ablation.make_rows(Asked([scenario], 10, 1), out)
    text = out.read_text()
    assert tuned_rows.outdated(json.loads(text), tmp_path) == []
    scenario.write_text(yaml.safe_dump(yaml.safe_load(scenario.read_text()) | changes))
    assert tuned_rows.outdated(json.loads(text), tmp_path) == ["tiny"] * is_refused
    assert tuned_rows.outdated(json.loads(text), tmp_path / "else") == ["tiny"]
    if is_refused:
        with pytest.raises(InputError, match=r"rows of another state of tiny, .*; name another file, or delete it"):
            ablation.make_rows(Asked([scenario], 10, 1), out)
    else:
        ablation.make_rows(Asked([scenario], 10, 1), out)
    assert out.read_text() == text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["none.yaml"], "none.yaml"),
        (["SCENARIO", "--decisions", "0"], "--decisions: '0': must be a whole number, at least 1"),
        (["SCENARIO", "--searches", "-1"], "--searches: '-1': must be a whole number, at least 1"),
        (["SCENARIO", "--duration", "0s"], "--duration: '0s': must be from"),
        (["FLOORLESS"], "tuning.floor: missing"),
    ],
)
def test_wrong_input_is_one_message(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    floorless = tmp_path / "floorless.yaml"
    floorless.write_text(yaml.safe_dump(SCENARIO))
    named = [{"SCENARIO": str(scenario), "FLOORLESS": str(floorless)}.get(flag, flag) for flag in flags]
    assert main(["ablation", *named, "--json", str(tmp_path / "rows.json")]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


def test_a_row_is_of_the_reported_seeds(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set beside itself nothing changes; where no setting keeps the floor, that is the row."""
    world, knobs = load_world(scenario), replace(KNOBS, floor=0.75, decisions=3_000)
    first = row_of(world, "all", knobs, None)
    assert first["seeds"] == [100, 101]
    assert len(first["means_s"]) == 2
    assert first["change_pct"] == {"mean": 0.0, "ci95": 0.0}
    again = row_of(world, "again", knobs, first)
    assert again["change_pct"] == {"mean": 0.0, "ci95": 0.0}
    slower = row_of(world, "again", knobs, {**first, "means_s": [value / 2 for value in first["means_s"]]})
    assert slower["change_pct"]["mean"] == pytest.approx(100.0)
    monkeypatch.setattr(ablation, "tune_world", MagicMock(side_effect=FloorError("the most was 0.7")))
    assert "the most was" in row_of(world, "too much", knobs, first)["problem"]


def test_several_searches_widen_a_rows_interval(scenario: Path) -> None:
    """Its figures are their means, by seed and in all; each stands beside."""
    world, knobs = load_world(scenario), replace(KNOBS, floor=0.75, decisions=3_000, searches=2)
    first = row_of(world, RIVAL, knobs, None)
    row = row_of(world, RIVAL, replace(knobs, tail=0.0, seed=1), first)
    assert len(row["searches"]) == 2
    for key in ("mean_ms", "std_ms", "p99_ms", "image_j"):
        assert row[key] == pytest.approx(sum(each[key] for each in row["searches"]) / 2)
    assert 1000 * sum(row["means_s"]) / 2 == pytest.approx(row["mean_ms"])
    assert all(std_s > 0 for std_s in row["stds_s"])
    alone = {key: value for key, value in first.items() if key != "searches"}
    seeds_alone = change_of({**row, "searches": []}, alone, "means_s", "mean_ms")
    assert row["change_pct"]["mean"] == pytest.approx(seeds_alone["mean"])
    ci95 = row["change_pct"]["ci95"]
    assert ci95 is not None
    assert seeds_alone["ci95"] is not None
    assert ci95 > seeds_alone["ci95"]


def test_the_rival_is_the_ladder_and_one_row_keeps_goals(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, but with a controller that knows no limit of the p99: what that alone costs."""
    world, knobs = load_world(scenario), replace(KNOBS, floor=0.75, decisions=3_000)
    ran: list[Any] = []

    def held_out(world: World, specs: Any, knobs: Any) -> Any:
        ran.extend(specs)
        return tuned_rows.held_out(world, specs, knobs)

    monkeypatch.setattr(ablation, "held_out", held_out)
    for name in (FIRST, CONTROLLED, RIVAL):
        row_of(world, name, knobs, None)
    plain, controlled, rival = ran
    assert (plain.control, controlled.control) == (None, ControlSpec(floor=0.75, p99_limit_s=0.0))
    assert controlled.model_copy(update={"control": None}) == plain
    assert isinstance(rival, LadderRule)


def test_where_nothing_is_searched_the_floor_is_set_all_the_same(scenario: Path) -> None:
    found = tune_world(load_world(scenario), "tide", replace(KNOBS, floor=0.75, decisions=0))
    assert isinstance(found.spec, TideRule)
    assert found.spec.rise == TideRule().rise
    assert found.figures.accuracy >= 0.75
    assert found.history == (), "no generation"


def test_each_scenario_has_its_own_first_row(scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are set beside their own scenario's."""
    other, out, firsts = tmp_path / "other.yaml", tmp_path / "rows.json", []
    other.write_text(scenario.read_text().replace("name: tiny", "name: other"))

    def told(world: World, name: str, knobs: Any, first: dict[str, Any] | None) -> dict[str, Any]:
        firsts.append(None if first is None else (first["scenario"], first["switch"]))
        return {"switch": name, "scenario": world.scenario.name}

    monkeypatch.setattr(ablation, "row_of", told)
    ablation.make_rows(Asked([scenario, other], 10, 1), out)
    rest = len(ablation.rows_wanted()) - 1
    assert firsts == [None, *[("tiny", FIRST)] * rest, None, *[("other", FIRST)] * rest]


def test_a_change_holds_the_spread_of_both_rows_searches() -> None:
    """Each as a share of the change, twice that of a square; by the named figure; of the base itself none."""

    def row(means_s: list[float], means_ms: list[float]) -> dict[str, Any]:
        return {"means_s": means_s, "searches": [{"mean_ms": each, "std_ms": 7.0} for each in means_ms]}

    ours, base = row([2.0, 2.0], [1900.0, 2100.0]), row([1.0, 1.0], [980.0, 1020.0])
    shares = [relative_half_width([each["mean_ms"] for each in one["searches"]]) for one in (ours, base)]
    for power, pct in ((1, 200.0), (2, 400.0)):
        found = change_of(ours, base, "means_s", "mean_ms", power)
        assert found["mean"] == pytest.approx(pct - 100)
        assert found["ci95"] == pytest.approx(pct * power * hypot(*shares))
    assert change_of(ours, base, "means_s", "std_ms")["ci95"] == 0.0
    assert change_of(base, base, "means_s", "mean_ms") == {"mean": 0.0, "ci95": 0.0}
