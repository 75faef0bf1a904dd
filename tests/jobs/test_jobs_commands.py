"""`slimsched jobs`: from a log to a trace to its figures, as a user does it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from jobs.job_traces import read_trace
from scenarios.files.bundled_files import SHIPPED
from slimsched.cli import main
from tests.jobs.logs import SACCT, drawn, write_log
from tests.jobs.test_bad_logs import row

pytestmark = pytest.mark.usefixtures("one_process")

SHIPPED_TRACE = SHIPPED / "jobtraces" / "drawn-64-gpus.jobtrace.parquet"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_log_to_figures(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(here, "sacct", drawn(40))
    with (here / "sacct.log").open("a") as file:
        file.write(f"{row(JobIDRaw='7.batch')}\n")
    assert main(["jobs", "import", "sacct.log", "--json", "import.json"]) == 0
    streams = capsys.readouterr()
    for said in ("sacct (detected by its first lines)", "41 rows, 40 jobs", "steps of jobs", "from 2023-01"):
        assert said in streams.out
    assert "reading sacct.log: 41 rows in" in streams.err
    document = json.loads((here / "import.json").read_text())
    assert (document["trace"], document["jobs"]) == ("sacct.jobtrace.parquet", 40)
    assert document["left_out"] == [
        {"reason": "steps of jobs (`sacct -X` leaves them out)", "rows": 1, "first_line": 42}
    ]
    assert main(["jobs", "inspect", "sacct.jobtrace.parquet", "--gpus", "64", "--json", "-", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["jobs"], found["load"]["gpus"]) == ("slimsched.jobsummary/1", 40, 64)


def test_a_table_with_doubtful_numbers(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GPUs that are no number are not called none, a part that is rounded up is told, and so are very short runs."""
    (here / "mine.csv").write_text("submit_s,run_s,gpus\n5,1,0.5\n6,1,2 GPUs\n7,1,\n8,2,2\n9,1,1.5\n")
    assert main(["jobs", "import", "mine.csv", "--json", "i.json"]) == 0
    found = json.loads((here / "i.json").read_text())
    assert [(each["reason"], each["rows"]) for each in found["left_out"]] == [
        ("unread GPUs, such as '2 GPUs'; write a number", 1),
        ("ask for no GPU", 1),
    ]
    assert [(each["reason"].partition(",")[0], each["rows"]) for each in found["noted"]] == [
        ("ask for a part of a GPU", 2)
    ]
    assert found["run_p50_s"] == 1
    said = capsys.readouterr().out
    assert "; median run 1.0 s" in said
    assert "the median run time is 1 s: are these seconds?" in said
    (here / "long.csv").write_text("submit_s,run_s,gpus\n5,10,1\n6,600,1\n7,11,1\n")
    assert main(["jobs", "import", "long.csv"]) == 0
    assert "are these seconds?" not in capsys.readouterr().out


def test_a_trace_replaces_one_of_its_own_and_nothing_else(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(here, "sacct", drawn(5))
    words = ["jobs", "import", "sacct.log", "--out", "t", "--quiet"]
    assert [main(words), main(words)] == [0, 0]
    former = (here / "t").read_bytes()
    (here / "a.log").write_text(f"{SACCT}\n")
    assert main(["jobs", "import", "a.log", "--out", "t"]) == 2  # no row of it makes a job
    assert (here / "t").read_bytes() == former
    for content in (b"a: scenario\n", SHIPPED_TRACE.read_bytes()):
        (here / "t").write_bytes(content)
        capsys.readouterr()
        assert main(words) == 2
        assert "t: exists, and is not a trace of `jobs import`; name another" in capsys.readouterr().err
        assert (here / "t").read_bytes() == content


@pytest.mark.parametrize("submits_s", [(0,), (0, 0), (0, 9), (0, 5, 300), (0, 3000), (0, 90_000)])
def test_jobs_init_prints_a_next_command_that_works(
    submits_s: tuple[int, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.csv").write_text("submit_s,run_s,gpus\n" + "".join(f"{submit},60,1\n" for submit in submits_s))
    assert main(["jobs", "import", "mine.csv", "--quiet"]) == 0
    assert main(["jobs", "init", "mine.jobtrace.parquet", "--nodes", "1x2", "--out", "my jobs.yaml"]) == 0
    command = capsys.readouterr().out.rpartition("next: slimsched ")[2]
    assert main([*shlex.split(command), "--quiet", "--set", "bound.passes=0"]) == 0


def test_the_shipped_trace_is_what_its_command_draws(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/jobs.md has the command. Bytes are the same with one version of pyarrow; columns with any."""
    assert main(["jobs", "generate", "--seed", "1", "--out", "drawn.jobtrace.parquet", "--quiet"]) == 0
    mine, shipped = read_trace(here / "drawn.jobtrace.parquet"), read_trace(SHIPPED_TRACE)
    assert len(mine) == 2000
    for name in ("job_id", "submit_s", "run_s", "gpus", "user", "vc", "requested_s"):
        assert getattr(mine, name).tolist() == getattr(shipped, name).tolist(), name
    assert SHIPPED_TRACE.stat().st_size < 200_000
