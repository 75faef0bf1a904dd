"""What a router carries: the largest rate at floor and limit, by which routers, and that rows are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.study import carried
from benchmarks.study.__main__ import main
from benchmarks.study.carried import STEP, WIDEST, is_carried, largest
from kit.documents import read_json
from policies.rules.controlled import ControlSpec
from scenarios.learn.tuning import Tuning, tune_router
from sim.compiled.scoring import RunScore
from tests.scenarios.test_tune import write_promising

SCORE = RunScore(1000, 20, 0.02, 0.0, 0.02, 0.05, 0.75, 0.0, 9, failed=5, image_j=0.1)


@pytest.mark.parametrize("most", [0.06, 0.3, 1.0, 1.01, 7.3, 19.0])
def test_the_largest_scale_is_found_within_a_percent(most: float) -> None:
    asked: list[float] = []

    def keeps(scale: float) -> bool:
        asked.append(scale)
        return scale <= most

    found = largest(keeps)
    assert found is not None
    assert found <= most < 1.0101 * found
    assert len(asked) == len(set(asked)), "no scale twice"


@pytest.mark.parametrize(("keeps", "least", "most"), [(lambda _: True, WIDEST, STEP * WIDEST), (lambda _: False, 0, 0)])
def test_nobody_looks_without_end(keeps: Callable[[float], bool], least: float, most: float) -> None:
    assert least <= (largest(keeps) or 0) <= most


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({}, True),
        ({"p99_s": 0.0501}, False),
        ({"accuracy": 0.7495}, True),
        ({"accuracy": 0.7494}, False),
        ({"failed": 11, "unfinished": 11}, False),
        ({"unfinished": 36}, False),
    ],
)
def test_what_is_carried(changes: dict[str, Any], holds: bool) -> None:
    """Limit, floor within 0.05 points, hardly any failure, no queue that grows."""
    assert is_carried(replace(SCORE, **changes), 0.75, 0.05) is holds


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return write_promising(tmp_path / "tiny.yaml")


def test_rows_are_of_routers_of_now_and_kept(scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed by seed; what is there is not made again."""
    for kind in ("fixed", "ladder"):
        tune_router(Tuning(scenario, kind, tmp_path / f"data/routers/tiny/{kind}.rule.yaml"), quiet=True)
    out = tmp_path / "carried.json"
    command = ["carried", str(scenario), "--seeds", "2", "--json", str(out), "--jobs", "1"]
    assert main(command) == 0
    rows = {row["router"]: row for row in read_json(out)["rows"]}
    assert rows.keys() == {"fixed", "ladder"}, "the others have no file"
    assert rows["fixed"]["controls"] is False, "it can't"
    for row in rows.values():
        assert row["seeds"] == [100, 101]
        assert len(row["images_s"]) == 2
        assert all(p99_ms <= 50 for p99_ms in row["p99s_ms"])
        assert all(accuracy >= 0.7495 for accuracy in row["accuracies"])
    plain = carried.row_of
    monkeypatch.setattr(carried, "row_of", None)
    assert main(command) == 0
    monkeypatch.setattr(carried, "row_of", plain)
    ladder = tmp_path / "data/routers/tiny/ladder.rule.yaml"
    ladder.write_text(f"# by another search\n{ladder.read_text()}")
    assert main(command) == 0
    after = {row["router"]: row for row in read_json(out)["rows"]}
    assert after["fixed"] == rows["fixed"]
    assert after["ladder"]["file"] != rows["ladder"]["file"]
    assert {**after["ladder"], "file": ""} == {**rows["ladder"], "file": ""}


def test_the_better_way_counts(scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As tuned, or told the floor alone; for all seeds the same."""
    tune_router(Tuning(scenario, "ladder", tmp_path / "data/routers/tiny/ladder.rule.yaml"), quiet=True)
    carries = {None: [(100.0, SCORE), (300.0, SCORE)], ControlSpec(floor=0.75, p99_limit_s=0.0): [(190.0, SCORE)] * 2}

    def by_seed(world: Any, spec: Any, seeds: Any) -> list[tuple[float, RunScore]]:
        return carries[spec.control]

    monkeypatch.setattr(carried, "_by_seed", by_seed)
    wanted = carried.Wanted(scenario, "ladder", (100, 101))
    row = carried.row_of(None, wanted)
    assert (row["controls"], row["images_s"]) == (False, [100.0, 300.0])
    carries[None] = []
    row = carried.row_of(None, wanted)
    assert (row["controls"], row["images_s"]) == (True, [190.0, 190.0])


def test_a_router_that_keeps_no_rate_has_no_figure(scenario: Path, tmp_path: Path) -> None:
    document = yaml.safe_load(scenario.read_text())
    scenario.write_text(yaml.safe_dump({**document, "service": {"floor": 0.75, "p99_limit_s": 1e-5}}))
    tune_router(Tuning(scenario, "fixed", tmp_path / "data/routers/tiny/fixed.rule.yaml"), quiet=True)
    row = carried.row_of(None, carried.Wanted(scenario, "fixed", (100,)))
    assert row["problem"] == "no rate from 0.05 times the scenario's is carried with every seed"
    assert "images_s" not in row


@pytest.mark.parametrize(
    ("service", "flags", "said"),
    [
        ({"floor": 0.75}, [], "service.p99_limit_s: missing"),
        ({"floor": 0.75, "p99_limit_s": 0.05}, ["--seeds", "9"], "--seeds: 9; tiny.yaml has 2"),
    ],
)
def test_wrong_input_is_one_message(
    scenario: Path, capsys: pytest.CaptureFixture[str], service: dict[str, float], flags: list[str], said: str
) -> None:
    document = yaml.safe_load(scenario.read_text())
    scenario.write_text(yaml.safe_dump({**document, "service": service}))
    assert main(["carried", str(scenario), "--json", str(scenario.parent / "x.json"), *flags]) == 2
    assert said in capsys.readouterr().err
