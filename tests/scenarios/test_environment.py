"""environment.json belongs to the results: of each stage what it was made with, whoever looks at the folder later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.documents import read_json
from scenarios.job import job_stages
from scenarios.runs.folder import ENVIRONMENT_SCHEMA, RunFolder, environment
from scenarios.show.report import build_report
from slimsched.cli import main
from tests.scenarios.files import write_scenario
from tests.scenarios.folders import run_folder

pytestmark = pytest.mark.usefixtures("undrawn")


def compare(scenario: Path, *flags: str) -> dict[str, Any]:
    """The comparison, and what the folder tells of it."""
    assert main(["compare", str(scenario), "--out", str(scenario.parent / "run"), *flags]) == 0
    document: dict[str, Any] = read_json(scenario.parent / "run" / "environment.json")
    return document


def test_environment_file_keeps_versions_of_the_stage_that_made_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = write_scenario(tmp_path)
    before = compare(scenario, "--seed", "0")
    assert before["schema"] == ENVIRONMENT_SCHEMA
    assert list(before["stages"]) == ["compare", "records"]
    assert before["stages"]["compare"]["packages"]["numpy"] is not None
    RunFolder(tmp_path / "run").note_environment("train", {"python": "3.0"})
    monkeypatch.setattr(job_stages, "environment", lambda *_: {"python": "9.9"})
    assert compare(scenario, "--seed", "0")["stages"] == {**before["stages"], "train": {"python": "3.0"}}
    again = {stage: {"python": "9.9"} for stage in ("compare", "records")}
    assert compare(scenario, "--seed", "1")["stages"] == {**again, "train": {"python": "3.0"}}


def test_the_report_says_where_stages_differ(tmp_path: Path) -> None:
    """What they have in common once, what they do not with the stages that it is of."""
    folder = run_folder(tmp_path, routers=("random",), seeds=(0,), profiles=())
    page = build_report(folder).read_text()
    assert page.count('<td class="text">packages</td>') == 1
    other = environment([{"name": "toy", "kind": "cpu"}], {"seed": 0})
    other["packages"]["torch"] = "0.0.1"
    folder.note_environment("train", other)
    page = build_report(folder).read_text()
    assert '<td class="text">packages</td>' not in page
    assert '<td class="text">packages (compare, validate)</td>' in page
    assert "torch 0.0.1" in page.partition('<td class="text">packages (train)</td>')[2].partition("</tr>")[0]
    assert page.count('<td class="text">system</td>') == 1
