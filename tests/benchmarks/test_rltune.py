"""RLTune beside the order that it is given: changes are paired, and hold what differs between trainings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from benchmarks.__main__ import main
from benchmarks.study.rltune import ratio_pct
from kit.random_streams import stream


def test_windows_are_paired() -> None:
    """Windows that differ by a factor of a thousand, and each a tenth slower: the change is certain."""
    given_s = stream(0, "waits").uniform(1, 1000, 40)
    assert ratio_pct(1.1 * given_s[None], given_s) == pytest.approx((10, 10, 10))


def test_an_interval_holds_what_differs_between_trainings() -> None:
    given_s = stream(0, "waits").uniform(1, 1000, 40)
    mean, low, high = ratio_pct(np.stack([0.8 * given_s, given_s, 1.5 * given_s]), given_s)
    assert (mean, low, high) == pytest.approx((10, -20, 50), abs=5)


@pytest.mark.slow
def test_the_command_trains_and_fills_page_and_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = Path("scenarios/data/jobtraces/drawn-64-gpus.jobtrace.parquet").resolve()
    keys = {"schema": "slimsched.jobs/1", "name": "drawn", "trace": str(trace), "policies": ["qssf"]}
    (tmp_path / "drawn.yaml").write_text(yaml.safe_dump({**keys, "cluster": {"nodes": [{"count": 8, "gpus": 8}]}}))
    (tmp_path / "jobs-learning.md").write_text("<!-- rltune: begin -->\n<!-- rltune: end -->\n")
    words = ["--seeds", "2", "--epochs", "1", "--episodes", "1", "--jobs", "1"]
    folders = ["--runs", str(tmp_path / "runs"), "--docs", str(tmp_path)]
    assert main(["rltune", str(tmp_path / "drawn.yaml"), *words, *folders]) == 0
    rows = pd.read_csv(tmp_path / "data/rltune.csv", dtype={"seed": str}).set_index(["policy", "seed"])
    for way in ("drawn", "likeliest"):
        each = rows.loc[f"rltune, {way}"]
        assert each.loc["all", "wait_s"] == pytest.approx(each.loc[["0", "1"], "wait_s"].mean(), rel=1e-4)
        assert each.loc["all", "change_pct_low"] <= each.loc["all", "change_pct"] <= each.loc["all", "change_pct_high"]
    page = (tmp_path / "jobs-learning.md").read_text()
    assert capsys.readouterr().out.strip() in page
    assert str(tmp_path) not in page
