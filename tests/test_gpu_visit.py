"""A visit to a GPU on a machine without one: its plan is consistent, a cut step keeps its numbers, `keep` joins."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import visit
from benchmarks.gpu.checks import CHECKS
from benchmarks.gpu.evidence import Finding, write
from benchmarks.marked import filled
from scenarios.runs.folder import STAGES
from tests import tiny

NULL = {"gpu": "Null GPU (nothing is computed)", "commit": "0123456789abcdef"}
H200 = {"gpu": "NVIDIA H200", "commit": "0123456789abcdef"}
BEGIN, END = "<!-- visit: begin -->", "<!-- visit: end -->"
PAGE = f"above\n{BEGIN}\nstale\n{END}\nbelow\n"
FAKE = [sys.executable, "-m", "tests.fake_gpu_checks"]


@pytest.mark.parametrize("number", visit.SECONDS)
def test_the_steps_of_a_visit_are_known_and_fit_into_its_seconds(number: int) -> None:
    chosen = visit.steps(number)
    names = [step.name for step in chosen]
    assert len(set(names)) == len(names)
    assert {*names} <= {check.id for check in CHECKS} | {"main", visit.BESIDE}
    assert sum(step.expected_s for step in chosen if step.name != visit.BESIDE) <= visit.SECONDS[number]
    assert all(1.2 * step.expected_s <= step.deadline_s for step in chosen)
    assert all(step.predicted for step in chosen)


def carried_out(
    out: Path, monkeypatch: pytest.MonkeyPatch, *names: str, deadline_s: float = 5.0, seconds: float = 60.0
) -> dict[str, Any]:
    """Steps that are fake checks of these names; returns what was found of each."""
    monkeypatch.setattr(visit.Step, "command", lambda step, *_: [*FAKE, "--check", step.name, "--out", str(out)])
    chosen = [visit.Step(1, name, deadline_s / 2, deadline_s, "something") for name in names]
    visit.carry_out(chosen, seconds, out, "scenario.yaml", H200)
    evidence = json.loads((out / "visit-1" / "evidence.json").read_text())
    return {each["id"]: each for each in evidence["found"]}


def test_a_step_that_is_cut_is_terminated_first_and_keeps_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = carried_out(tmp_path, monkeypatch, "saves", "passes", deadline_s=3.0)
    assert (found["saves"]["verdict"], found["saves"]["reason"]) == ("failed", "not done within 3 s")
    assert found["saves"]["numbers"] == {"answer": 42, "none": "NaN", "saved": 1}
    assert found["passes"]["verdict"] == "passed"


def test_a_step_without_time_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = carried_out(tmp_path, monkeypatch, "passes", deadline_s=100.0, seconds=12.0)
    assert found["passes"]["verdict"] == "skipped"


def test_gpu_visit_reports_the_step_that_runs_alongside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit, "BESIDE", "hangs")
    found = carried_out(tmp_path, monkeypatch, "hangs", "passes")
    assert [(each["verdict"], each["reason"]) for each in found.values()] == [("passed", ""), ("failed", "not done")]


def test_a_main_job_that_is_cut_counts_the_runs_that_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / STAGES).mkdir()
    lines = ['{"inputs": "these"}', *(json.dumps({"run": number}) for number in range(3)), '{"run": ']
    (tmp_path / STAGES / "validate-01.jsonl").write_text("\n".join(lines))
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "a.yaml").write_text(tiny.profile("a").to_yaml())
    monkeypatch.setattr(visit, "validate_results", lambda runs, _: {"pairs": runs, "rows": [], "warnings": []})
    monkeypatch.setattr(visit, "other_loads", lambda _: [])
    finding = visit._of_main(Finding("main", "failed", "not done within 3 s"), tmp_path)
    assert (finding.verdict, finding.reason) == ("failed", "not done within 3 s")
    assert (finding.numbers["runs"], finding.numbers["stages"]) == (3, "")
    assert finding.numbers["a_captured"] == "all"


def kept(out: Path, monkeypatch: pytest.MonkeyPatch, stamp: dict[str, str]) -> Path:
    """Evidence of both visits, kept in a checkout's stand-in; returns that."""
    for number, name, value in ((1, "F1", 7.0), (2, "main", 8.0)):
        findings = [Finding(name, "passed", "", {"found": value}, 2.0)]
        (out / f"visit-{number}").mkdir()
        write(out / f"visit-{number}", "this", stamp, {name: ""}, findings)
    root = out / "root"
    (root / "docs").mkdir(parents=True)
    (root / "docs" / "page.md").write_text(PAGE)
    monkeypatch.setattr(visit, "ROOT", root)
    monkeypatch.setattr(visit, "PAGE", root / "docs" / "page.md")
    assert visit.main(["keep", str(out)]) == 0
    return root / "docs"


def test_keep_joins_both_visits_and_fills_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = kept(tmp_path, monkeypatch, H200)
    document = json.loads((docs / "data" / "gpu" / "h200-01234567.json").read_text())
    assert (document["rehearsal"], document["stamps"]) == (False, H200)
    assert [(each["visit"], each["id"]) for each in document["found"]] == [(1, "F1"), (2, "main")]
    lines = (docs / "page.md").read_text().splitlines()
    assert any(line.startswith("| 1: F1 |") and "found 7" in line for line in lines)
    assert any(line.startswith("| 2: main |") and "found 8" in line for line in lines)


def test_a_rehearsal_is_kept_as_one_and_no_number_of_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = kept(tmp_path, monkeypatch, NULL)
    document = json.loads((docs / "data" / "gpu" / "rehearsal-01234567.json").read_text())
    assert document["rehearsal"] is True
    page = (docs / "page.md").read_text()
    assert "Rehearsed on the null CUDA" in page
    assert "found 7" not in page


def test_keep_names_the_remedy_if_there_is_no_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert visit.main(["keep", str(tmp_path)]) == 2
    assert "visit 1 first" in capsys.readouterr().out


def test_only_what_is_between_the_markers_is_replaced() -> None:
    assert filled(PAGE, "visit", "| new |") == f"above\n{BEGIN}\n\n| new |\n\n{END}\nbelow\n"
    assert filled(filled(PAGE, "visit", "| new |"), "visit", "| new |") == filled(PAGE, "visit", "| new |")


def test_a_page_without_markers_is_refused() -> None:
    for page in ("above", f"above\n{BEGIN}\nbelow", f"{END}\n{BEGIN}"):
        with pytest.raises(ValueError, match="visit: begin"):
            filled(page, "visit", "| new |")
