"""`slimsched compare`: its flags, and what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios.metrics.router_comparison import compare_results
from scenarios.show.comparison_table import comparison_table
from slimsched.cli import main
from tests.scenarios.files import write_scenario


def test_processes_pairs_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes give the same document; another baseline and a picture need no new runs."""
    path = write_scenario(tmp_path)
    found = {}
    for jobs in ("1", "2"):
        run = tmp_path / jobs
        assert main(["compare", str(path), "--out", str(run), "--jobs", jobs, "--json", "-"]) == 0
        streams = capsys.readouterr()
        found[jobs] = json.loads(streams.out)
        assert "compare: 4 of 4 runs" in streams.err
        assert found[jobs] == json.loads((run / "comparison.json").read_text())
    assert found["1"] == found["2"]
    assert found["1"] == compare_results(json.loads((tmp_path / "2" / "results.json").read_text()))
    assert found["1"]["paired"]["against"] == "random"
    picture = tmp_path / "trade.svg"
    flags = ["--out", str(tmp_path / "1"), "--set", "compare.baseline=jsq"]
    assert main(["compare", str(path), *flags]) == 0
    streams = capsys.readouterr()
    assert "compare: skipped, done before" in streams.err
    told = streams.out.splitlines()
    assert max(map(len, told[:-1])) <= 100
    assert [len(line.split()) for line in told if line.startswith("---")] == [6], "one table"
    assert told[-1] == f"all other numbers, and charts: slimsched report {tmp_path / '1'}"
    assert main(["report", str(tmp_path / "1"), "--plot", str(picture), "--quiet"]) == 0
    assert "<svg" in picture.read_text()
    assert json.loads((tmp_path / "1" / "comparison.json").read_text())["paired"]["against"] == "jsq"


def test_a_run_folder_that_was_moved_goes_on_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scenario(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "tiny.yaml"]) == 0
    Path("runs/tiny").rename("runs/moved")
    assert main(["compare", "runs/moved/scenario.yaml"]) == 0
    assert "compare: skipped, done before" in capsys.readouterr().err
    assert [folder.name for folder in Path("runs").iterdir()] == ["moved"]


def test_the_bound_is_beside_each_router(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody is better than it, and at the scenario's load everybody knows how far from it they are."""
    path = write_scenario(tmp_path)
    flags = [
        "--router",
        "fixed:1,1",
        "--router",
        "fixed:0.5,0.5",
        "--seed",
        "0",
        "--out",
        str(tmp_path / "r"),
        "--bound",
    ]
    assert main(["compare", str(path), *flags, "--json", "-"]) == 0
    streams = capsys.readouterr()
    assert "bound %" in streams.err  # what is for people, for the document is on standard output
    fronts = json.loads(streams.out)["pareto"]["fronts"]
    for cost in ("latency_mean_s", "energy_dynamic_j"):
        assert all(row["gap_pct"] > -1e-6 for row in fronts[cost])  # rounding: without loads energy is the bound itself
    assert [row["gap_pct"] < 50 for row in fronts["latency_mean_s"]] == [True, True]  # there is nothing to wait for
    assert fronts["latency_p99_s"][0]["bound"] is None  # the model knows means


def test_records_of_long_runs_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above a number of images the report would be gigabytes; what keeps one run's record is named."""
    monkeypatch.setattr("scenarios.job.comparing_stage.KEPT_IMAGES", 10)
    path = write_scenario(tmp_path)
    assert main(["compare", str(path), "--out", str(tmp_path / "r")]) == 0
    assert "slimsched simulate --out" in capsys.readouterr().err
    assert not list((tmp_path / "r").glob("simulation/*"))


def test_routers_compare_at_the_floor_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By their dials, which the document names; what has none is named, too, and a floor there must be."""
    path = write_scenario(tmp_path, "rate_img_s: 200", "rate_img_s: 2000")
    run = ["compare", str(path), "-r", "ladder", "-r", "jsq", "--out", str(tmp_path / "r"), "--equal-accuracy"]
    assert main(run) == 2
    assert "slo.floor: missing; name the accuracy that all are to have" in capsys.readouterr().err
    assert main([*run, "--set", "slo.floor=0.99"]) == 2
    capsys.readouterr()
    assert main([*run, "--set", "slo.floor=0.8"]) == 0
    found = json.loads((tmp_path / "r" / "comparison.json").read_text())
    assert "without a dial, and as they are: jsq" in " ".join(comparison_table(found).notes)
    assert found["equal"]["floor"] == 0.8
    assert found["equal"]["dials"]["jsq"] is None
    accuracy = {row["router"]: row["expected_accuracy"]["mean"] for row in found["rows"]}
    assert accuracy["ladder"] == pytest.approx(0.8, abs=0.005), "this tiny ladder has few steps"
    assert accuracy["jsq"] == pytest.approx(0.9)
    assert main(run[:-1]) == 0, "made again without"
    assert json.loads((tmp_path / "r" / "comparison.json").read_text())["equal"] is None
