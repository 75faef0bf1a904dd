"""Grids of tuned routers, and routers that are tuned again: what is asked, what rows say, what is shown of now."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import yaml

from benchmarks.__main__ import main
from benchmarks.grid import Row, read_rows
from benchmarks.study import tables
from benchmarks.study.candidates import read_case
from benchmarks.study.pictures import HOLLOW, energy_chart
from benchmarks.study.tables import ALL, LADDER, NO_TAIL, Budget, limits_of
from benchmarks.study.tune import KINDS, Wanted, tune_all, tunings
from kit.errors import WorkError
from scenarios.files.router_names import read_rule
from scenarios.learn.tune import FloorError
from scenarios.world.materials import load_world
from sim.compiled.scoring import RunScore
from tests.benchmarks.cases import WORLD, write_case, write_tuned

PLACE = "data/routers/main-tiny"
SHORT = {"floor": 0.8, "decisions": 2000, "episodes": 1, "episode_s": 0.2, "matching_runs": 1}
SCORE = RunScore(1000, 20, 0.02, 0.0, 0.02, 0.05, 0.75, 0.0, 9, failed=5, image_j=0.1)


def row(mean_ms: float, *, scenario: str = "main-a", **changes: Any) -> Row:
    """A tuned row of two seeds and one search."""
    found = {"mean_ms": mean_ms, "std_ms": 1.0, "p99_ms": 20.0, "image_j": 0.2, "accuracy": 0.75}
    row = {"scenario": scenario, "floor": 0.75, "unserved": 0.0, **found, **changes}
    by_seed = {"means_s": row["mean_ms"], "stds_s": row["std_ms"], "p99s_s": row["p99_ms"], "images_j": row["image_j"]}
    return row | {key: [value, value] for key, value in by_seed.items()} | {"searches_found": [row]}


# -------------------------------------------------------------------------------------------------------------- frames


def test_an_ablation_is_against_all_of_it_and_says_what_failed() -> None:
    rows = [
        row(10, switch=ALL),
        row(11, switch="nobody is held"),
        {"scenario": "main-a", "switch": "x", "problem": "p"},
    ]
    frame = tables.ablation_frame(rows).set_index("switch")
    assert frame.loc["nobody is held", "mean_pct"] == pytest.approx(10)
    assert frame.loc["x", "problem"] == "p"


def test_what_a_tail_costs_of_the_gain_and_saves_of_the_variance() -> None:
    """Against the ladder: 4 of 10 ms without a tail; with it nine tenths of that, at 4 % more variance, not 24 %."""
    rows = [row(6.4, switch=ALL, std_ms=1.02), row(6.0, switch=NO_TAIL, std_ms=1.1135)]
    assert tables.tail_frame(rows).empty
    frame = tables.tail_frame([*rows, row(10.0, switch=LADDER)])
    assert list(frame["switch"]) == [NO_TAIL, ALL]
    assert list(frame["of_gain_without_tail_pct"]) == pytest.approx([100, 90])
    assert list(frame["variance_pct"]) == pytest.approx([24, 4.04], rel=1e-2)
    assert list(frame["holds"]) == [False, True]


def test_a_faster_router_is_worse_beyond_both_ranges_alone() -> None:
    """Rows with flaws, or of one search, are compared with nobody."""

    def point(us: int, *means: float, **changes: Any) -> Row:
        key: Row = {"router": "ladder", "blocks": 4, "may_wait": True, "decision_us": us}
        return row(means[0], **key, **changes) | {"searches_found": [{"mean_ms": mean} for mean in means]}

    rows = [point(1000, 5, 6), point(100, 5.5, 7), point(10, 7.1, 8), point(3, 9, 9.5, accuracy=0.74)]
    assert list(tables.faster_frame(rows)["worse_than_us"]) == [None, None, 100, None]
    assert not tables.faster_frame([point(1000, 5), point(10, 9)])["worse_than_us"].notna().any()


def test_limits_are_common_and_set_by_who_serves() -> None:
    """So many times the lowest p99, and what is promised unless one is as near."""
    quickest = [row(1, p99_ms=30.0), row(1, p99_ms=20.0, unserved=0.02), {"problem": "no floor"}]
    assert [limit for limit, _ in limits_of(quickest, 0.05)] == pytest.approx([33, 45, 50, 60, 90])
    assert [what for _, what in limits_of(quickest, 0.0601)] == ["1.1 times", "1.5 times", "2 times", "3 times"]
    assert limits_of(quickest[2:], 0.05) == []


def test_who_missed_the_limit_the_floor_or_images_is_hollow_and_on_no_line() -> None:
    def point(limit_ms: float | None, p99_ms: float, **changes: Any) -> Row:
        return row(9, router="compass", limit="x", limit_ms=limit_ms, p99_ms=p99_ms, **changes)

    good = [point(None, 10.0, image_j=0.3), point(30.0, 20.0), point(30.0, 25.0, image_j=0.25)]
    bad = [point(30.0, 31.0), point(30.0, 22.0, unserved=0.02), point(30.0, 23.0, accuracy=0.7494)]
    frame = tables.front_frame([*good, *bad, point(50.0, 41.0, image_j=0.1)])
    assert frame["kept"].tolist() == [None, True, True, False, True, True, True]
    assert frame["energy_pct"].tolist()[:2] == pytest.approx([0, -100 / 3])
    (axes,) = (each for each in energy_chart(frame).axes if each.lines)
    lines = [(np.asarray(line.get_xdata()).tolist(), line.get_fillstyle()) for line in axes.lines]
    drawn = [line for line in lines if line[0]]
    assert drawn == [([10.0, 20.0], "full"), ([10.0, 20.0, 25.0], "full"), ([31.0, 22.0, 23.0], "none")]
    assert axes.get_legend_handles_labels()[1] == ["compass", HOLLOW]


# ---------------------------------------------------------------------------------------------------------------- rows


def test_rows_are_tuned_kept_and_shown_while_the_scenario_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each command a row or two; a second call makes none, and another state of the scenario shows none."""
    path = write_case(tmp_path, tuning=SHORT, duration_s=0.5, slo={"floor": 0.8, "p99_limit_s": 0.05})
    document = yaml.safe_load(path.read_text())
    path.write_text(
        yaml.safe_dump({**document, "router": {**document.get("router", {}), "max_batching_delay_s": 0.01}})
    )
    for name, few in (("SWITCHES", {ALL: {}, tables.CONTROL: {}}), ("BLOCKS", (4,)), ("DECISIONS_US", (10,))):
        monkeypatch.setattr(tables, name, few)
    monkeypatch.setattr(tables, "TIMES", (3.0,))
    budget = ["--decisions", "500", "--searches", "1"]
    counts = {"ablation": 2, "faster": 2, "fronts": 2}
    for name, count in counts.items():
        command = [name, str(path), *budget, "--json", str(tmp_path / f"{name}.jsonl")]
        command += ["--router", "ladder"] if name == "fronts" else []
        assert main(command) == 0
        before = read_rows(tmp_path / f"{name}.jsonl")
        assert len(before) >= count
        with monkeypatch.context() as nothing:
            nothing.setattr(tables, "tune_world", None)
            assert main(command) == 0
        assert read_rows(tmp_path / f"{name}.jsonl") == before
    assert tables.frames(tmp_path, [read_case(path)]).keys() >= counts.keys()
    path.write_text(path.read_text().replace("warmup_s: 0", "warmup_s: 0.1"))
    assert tables.frames(tmp_path, [read_case(path)]) == {}


def test_a_row_that_cannot_be_tuned_is_one_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, budget = write_case(tmp_path), Budget(500, 1)
    monkeypatch.setattr(tables, "tune_world", MagicMock(side_effect=FloorError("no setting keeps it")))
    point = budget.point(path, router="ladder", limit=tables.QUICKEST, limit_ms=None)
    assert tables.try_limit(budget, point) == {"floor": 0.8, "problem": "no setting keeps it"}


@pytest.mark.parametrize(
    ("changes", "command", "told"),
    [
        ({"tuning": {}}, ["ablation"], "tuning.floor: missing"),
        ({}, ["faster", "--router", "jsq"], "'jsq' is not tuned"),
    ],
)
def test_wrong_input_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], command: list[str], told: str
) -> None:
    path = write_case(tmp_path)
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))
    assert main([*command, str(path), "--json", str(tmp_path / "x.jsonl")]) == 2
    assert told in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------- `make routers`


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"tuning.decisions": "15000000"}, "tuning.decisions 15000000, now 40000000"),
        ({"devices": ["A100"]}, "devices ['A100'], now ["),
        ({"load": {"workload": {"rate_img_s": 7.0}}}, "load {'workload': {'rate_img_s': 7.0}}, now {"),
        ({"deciding": {"decision_s": 7.0}}, "deciding {'decision_s': 7.0}, now {"),
    ],
)
def test_a_stale_file_is_tuned_again_and_why_is_said(
    tmp_path: Path, changes: dict[str, Any], why: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was made by another command, or for another world; of a note that there is none the command alone."""
    path = write_case(tmp_path)
    write_tuned(path, "ladder", changes=changes)
    write_tuned(path, "milp", changes=changes)
    found = {each.router: each.why for each in tunings(tmp_path, router=("ladder", "milp"))}
    ladder, milp = why is None, why is None or changes.keys() <= set(WORLD)
    assert list(found) == [kind for kind, is_fresh in (("ladder", ladder), ("milp", milp)) if not is_fresh]
    assert all(why is not None and each.startswith(why) for each in found.values())
    assert main(["tune", "--scenarios", str(tmp_path), "--router", "ladder", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert (why or "nothing to tune") in out
    assert why is None or out.startswith(f"slimsched train {path} --router ladder (")
    forced = tunings(tmp_path, router=KINDS, force=True)
    assert [each.router for each in forced] == list(KINDS)


def test_a_floor_that_cant_be_kept_is_a_result_and_any_other_error_the_end(tmp_path: Path) -> None:
    write_case(tmp_path)
    tried: list[str] = []

    def tune(wanted: Wanted, is_alone: bool) -> str:
        assert is_alone
        tried.append(wanted.router)
        if wanted.router == "infaas":
            raise FloorError("no setting keeps the floor")
        if wanted.router == "milp":
            raise WorkError("the disk is full")
        return "tuned"

    with pytest.raises(WorkError, match="the disk is full"):
        tune_all(tunings(tmp_path, router=("slackfit", "infaas", "milp", "fixed"), force=True), 1, tune)
    assert tried == ["slackfit", "infaas", "milp"]


def test_beside_each_other_they_are_as_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Processes of one thread find what one process with threads does."""
    made = []
    for jobs in ("1", "2"):
        folder = tmp_path / jobs
        folder.mkdir()
        path = write_case(folder, tuning=SHORT, duration_s=0.5)
        flags = ["--scenarios", str(folder), "--router", "ladder", "fixed", "--jobs", jobs, "--force"]
        assert main(["tune", *flags]) == 0
        rules = [read_rule(folder / PLACE / f"{kind}.rule.yaml") for kind in ("ladder", "fixed")]
        made.append(
            [rule.model_copy(update={"made_by": {"final_scores": rule.made_by["final_scores"]}}) for rule in rules]
        )
        assert capfd.readouterr().out.count("main-tiny: ") == 2
        assert tables.rule_of_now(path, load_world(path), "ladder") is not None
    assert made[0] == made[1]
