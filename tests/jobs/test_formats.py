"""Every format: the jobs that were written are the jobs that are read, whatever the size of blocks."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import numpy as np
import pytest

from jobs.job_traces import JobTrace, read_trace
from jobs.logs import log_text as lines
from jobs.logs.log_formats import FORMATS
from jobs.logs.log_import import import_log
from jobs.logs.log_rows import Options
from tests.jobs.logs import START, TYPES, Jobs, drawn, rltune, share_milli, write_log

JOBS = 300


def imported(path: Path, options: Options | None = None, name: str = "auto") -> JobTrace:
    out = path.with_name("trace.parquet")
    import_log(path, out, name, options)
    return read_trace(out)


def options_of(name: str, folder: Path) -> Options:
    return Options(tasks=folder / "tasks.csv" if name == "alibaba-pai" else None, unit_s=1 if name == "csv" else 60)


@pytest.mark.parametrize("size", [64, 5000, lines.BLOCK_BYTES])
@pytest.mark.parametrize("name", FORMATS)
def test_imported_trace_equals_the_written_jobs_in_every_format(
    name: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines.blocks, "__defaults__", (size,))
    jobs = drawn(JOBS)
    trace = imported(write_log(tmp_path, name, jobs), options_of(name, tmp_path))
    assert trace.provenance["format"] == name  # as its first lines tell
    first_s = int(jobs.submit_s[0])
    order = np.argsort(jobs.submit_s, kind="stable")
    assert (len(trace), trace.submit_s.tolist()) == (JOBS, (jobs.submit_s[order] - first_s).tolist())
    assert (trace.run_s.tolist(), trace.gpus.tolist()) == (jobs.run_s[order].tolist(), jobs.gpus[order].tolist())
    assert trace.recorded_wait_s.tolist() == jobs.wait_s[order].tolist()
    assert trace.recorded_start_s.tolist() == (jobs.start_s[order] - first_s).tolist()
    _check_words(name, trace, jobs)


def _check_words(name: str, trace: JobTrace, jobs: Jobs) -> None:
    """What only some formats hold."""
    bad = {"openb": "failed", "alibaba-pai": "failed"}.get(name, "cancelled")
    said = ["unknown"] * JOBS if name == "rltune" else [bad if failed else "completed" for failed in jobs.has_failed]
    assert trace.status.tolist() == said
    if name in ("sacct", "jobcomp", "swf", "rltune", "csv"):
        assert trace.requested_s.tolist() == (60 * jobs.limit_min).tolist()
    else:
        assert np.isnan(trace.requested_s).all()
    kinds = [TYPES[kind] for kind in jobs.kind]
    types = {"openb": [f"{kind}|A10" for kind in kinds], "alibaba-pai": kinds, "rltune": kinds, "csv": kinds}
    assert trace.gpu_types.tolist() == types.get(name, [""] * JOBS)
    users = {"swf": "", "rltune": "", "csv": "u;"}.get(name, "u")
    if name != "openb":
        assert trace.user.tolist() == [f"{users}{user}" for user in jobs.user]
    groups = {"sacct": "p", "jobcomp": "p", "swf": "", "philly": 'v"{', "helios": "vc"}
    assert trace.vc.tolist() == [f"{groups[name]}{kind}" if name in groups else "" for kind in jobs.kind]
    assert trace.attempts.tolist() == [1 + i % 2 if name == "philly" else 1 for i in range(JOBS)]
    shares = [share_milli(jobs, i) / 1000 if name in ("openb", "csv") else 1.0 for i in range(JOBS)]
    assert trace.gpu_share.tolist() == shares
    assert trace.job_class.tolist() == [f"c{kind}" if name == "csv" else "" for kind in jobs.kind]
    if name in ("sacct", "jobcomp", "swf", "philly", "helios"):
        assert trace.provenance["start"] == f"{np.datetime_as_string(START + jobs.submit_s[0], unit='s')}+00:00"


@pytest.mark.parametrize("name", ["sacct", "philly"])
def test_a_gzip_file_is_the_same(name: str, tmp_path: Path) -> None:
    path = write_log(tmp_path, name, drawn(50))
    plain = imported(path, options_of(name, tmp_path))
    path.write_bytes(gzip.compress(path.read_bytes()))
    packed = imported(path, options_of(name, tmp_path))
    assert [getattr(plain, key).tolist() for key in ("job_id", "run_s")] == [
        getattr(packed, key).tolist() for key in ("job_id", "run_s")
    ]


def test_the_only_file_of_an_archive_is_the_log(tmp_path: Path) -> None:
    path = write_log(tmp_path, "sacct", drawn(50))
    plain = imported(path)
    with tarfile.open(tmp_path / "log.tgz", "w:gz") as archive:
        archive.add(path, "data/jobs.log")
    assert imported(tmp_path / "log.tgz").job_id.tolist() == plain.job_id.tolist()


def test_windows_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    path = write_log(tmp_path, "sacct", drawn(50))
    plain = imported(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert imported(path).job_id.tolist() == plain.job_id.tolist()


@pytest.mark.parametrize("with_think_time", [False, True])
def test_rltune_of_both_widths(with_think_time: bool, tmp_path: Path) -> None:
    """The README has 19 columns; the Philly and Helios files have a twentieth before the last two."""
    jobs = drawn(20)
    path = tmp_path / "formatted.csv"
    path.write_text("\n".join(rltune(jobs, with_think_time)))
    assert imported(path).gpu_types.tolist() == [TYPES[kind] for kind in jobs.kind]


def test_import_drops_invalid_gpu_shares_and_reads_empty_as_whole_gpus(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    shares = ["0.4804", "", "1", "0", "1.5", "0.5"]
    rows = [f"{row},60,{2 if row in (2, 5) else 1},{share}" for row, share in enumerate(shares)]
    path.write_text("\n".join(["submit_s,run_s,gpus,gpu_share", *rows]) + "\n")
    trace = imported(path)
    assert (trace.submit_s.tolist(), trace.gpu_share.tolist()) == ([0, 1, 2], [0.48, 1, 1])


def test_nodes_are_those_that_are_asked_for_and_no_more_than_gpus(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("submit_s,run_s,gpus,nodes\n0,60,4,\n1,60,4,0\n2,60,4,3\n3,60,4,9\n")
    assert imported(path).nodes.tolist() == [1, 1, 3, 4]


def test_own_columns_have_other_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("id,when,len,n,who\na,2024-03-01 10:00:00Z,60,2,x\nb,2024-03-01T11:00:00+01:00,5.5,1,y\n")
    columns = {"job_id": "id", "submit_s": "when", "run_s": "len", "gpus": "n", "user": "who"}
    trace = imported(path, Options(columns=columns))
    assert (trace.submit_s.tolist(), trace.run_s.tolist(), trace.user.tolist()) == ([0, 0], [60, 5.5], ["x", "y"])
    assert trace.provenance["start"] == "2024-03-01T10:00:00+00:00"
