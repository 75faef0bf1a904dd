"""docs/run-folder.md lists the files of a run folder and their columns: those that the code writes, in its order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyarrow import parquet

from scenarios.runs.folder import FILES, FOLDERS
from scenarios.runs.run_store import RECORD_FILES
from slimsched.cli import main
from tests.jobs.experiments import trace_of, write_case
from tests.scenarios.files import write_scenario
from tests.test_docs import ROOT

PAGE = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")


def first_cells(title: str) -> list[str]:
    """The names in the first column of the table under a heading; `# ` is the page's own."""
    after = re.split(r"^#+ ", PAGE.partition(f"{title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line for line in after.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


def test_every_file_and_folder_is_on_it() -> None:
    known = {*FILES, *(f"{name}/" for name in FOLDERS)}
    named = set(first_cells("# Files of a run folder"))
    patterns = {"KIND.rule.yaml", "KIND-keeping.rule.yaml", "score-KIND.json", "training-KIND.json"}
    written_out = {name for name in known for pattern in patterns if _is_of(name, pattern)}
    assert named == (known - written_out) | patterns


def _is_of(name: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace("KIND", "[a-z-]+"), name) is not None


def test_every_file_of_a_record_is_on_it() -> None:
    assert set(RECORD_FILES) < set(first_cells("## A run's record"))


def test_the_columns_are_those_that_a_run_writes(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    assert main(["simulate", str(path), "--router", "jsq", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    (folder,) = (tmp_path / "run" / "simulation").iterdir()
    for table in ("requests", "micro_batches", "batches", "telemetry"):
        written = parquet.read_schema(folder / f"{table}.parquet").names
        assert first_cells(f"### `{table}.parquet`") == written


def test_the_columns_are_those_of_training_jobs(tmp_path: Path) -> None:
    path, out = write_case(tmp_path, trace_of([(0, 10, 1)])), tmp_path / "runs"
    assert main(["jobs", "compare", str(path), "--policy", "fifo", "--out", str(out), "--quiet"]) == 0
    (run,) = out.rglob("*.jobsrun.parquet")
    assert first_cells("### `POLICY.jobsrun.parquet`") == parquet.read_schema(run).names


@pytest.mark.parametrize("table", ["results", "requests"])
def test_run_folder_page_has_no_columns_for_absent_csv_files(table: str) -> None:
    assert first_cells(f"### `{table}.csv`") == []
