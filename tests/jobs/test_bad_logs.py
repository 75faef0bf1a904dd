"""Bad logs: each is refused in one message, or its bad rows are left out and counted with their first line."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.job_traces import JobTrace, read_trace
from jobs.logs import log_text as lines
from jobs.logs.log_formats import FORMATS
from jobs.logs.log_import import Imported, import_log
from jobs.logs.log_rows import Options
from jobs.logs.log_text import CUT
from jobs.logs.sacct import CLOCK_CHANGED
from kit.errors import InputError
from tests.jobs.logs import SACCT, WRITERS, drawn, write_log

GOOD = {
    "JobIDRaw": "7",
    "User": "ann",
    "Account": "lab",
    "Partition": "gpu",
    "QOS": "high",
    "Submit": "2024-03-01T10:00:00",
    "Eligible": "2024-03-01T10:00:00",
    "Start": "2024-03-01T10:01:00",
    "End": "2024-03-01T11:01:00",
    "ElapsedRaw": "3600",
    "TimelimitRaw": "120",
    "State": "COMPLETED",
    "NNodes": "2",
    "ReqTRES": "billing=1,cpu=8",
    "AllocTRES": "billing=1,cpu=8,gres/gpu=4",
}


def row(**changes: str) -> str:
    assert set(changes) <= set(GOOD)
    return "|".join({**GOOD, **changes}.values())


def imported(
    tmp_path: Path, *rows: str, options: Options | None = None, sums: bool = True
) -> tuple[Imported, JobTrace]:
    path, out = tmp_path / "sacct.log", tmp_path / "trace.parquet"
    path.write_text("\n".join([SACCT, *rows]) + "\n", encoding="utf-8")
    found = import_log(path, out, "auto", options, sums=sums)
    return found, read_trace(out)


def counts(found: Imported) -> dict[str, tuple[int, int]]:
    return {reason: (count.rows, count.first_line) for reason, count in found.stats.left_out.items()}


UNREAD = "unread {}, such as '{}'; write 2024-01-31T12:00:00, also with a zone (+01:00), or seconds"
LEFT_OUT = {
    "another width": (row(User="a|b"), "more than 15 fields"),
    "a short row": ("9|ann|lab", "fewer than 15 fields"),
    "an empty line": ("", "empty lines"),
    "a header again": (SACCT, "a header again"),
    "a step": (row(JobIDRaw="7.batch"), "steps of jobs (`sacct -X` leaves them out)"),
    "still running": (row(JobIDRaw="8", End="Unknown", State="RUNNING"), "not yet ended"),
    "no end": (row(JobIDRaw="8", End="Unknown"), "not yet ended"),
    "cancelled in the queue": (row(JobIDRaw="8", Start="None", ElapsedRaw="0"), "never started"),
    "a start of 0": (row(JobIDRaw="8", Start="0"), "never started"),
    "an unknown submit": (row(JobIDRaw="8", Submit="Unknown"), "no submit time"),
    "no date": (row(JobIDRaw="8", Submit="2024-02-30T10:00:00"), UNREAD.format("submit time", "2024-02-30T10:00:00")),
    "the day or the month first": (
        row(JobIDRaw="8", Start="01/02/2024 10:01"),
        UNREAD.format("start", "01/02/2024 10:01"),
    ),
    "a month's name": (row(JobIDRaw="8", End="Mar  1 11:01:00"), UNREAD.format("end", "Mar  1 11:01:00")),
    "no date of eligibility": (row(JobIDRaw="8", Eligible="soon"), UNREAD.format("eligible time", "soon")),
    "an end before the start": (
        row(JobIDRaw="8", End="2024-03-01T10:00:59", ElapsedRaw="x"),
        "ended before it started",
    ),
    "an end before the start, whatever Slurm counted": (
        row(JobIDRaw="8", End="2024-03-01T09:30:00"),
        "ended before it started",
    ),
    "a negative duration": (row(JobIDRaw="8", ElapsedRaw="-5"), "ended before it started"),
    "no duration at all": (row(JobIDRaw="8", Start="2024-03-01T10:01:{}", ElapsedRaw="0"), "ran for 0 s"),
    "an absurd duration": (row(JobIDRaw="8", ElapsedRaw="1e12"), "ran for more than ten years"),
    "1970": (row(JobIDRaw="8", Submit="1970-01-01T00:00:00"), "submitted before 1990 or after 2100"),
    "no GPU": (row(JobIDRaw="8", AllocTRES="billing=1,cpu=8"), "ask for no GPU"),
    "absurdly many": (row(JobIDRaw="8", AllocTRES="gres/gpu=99999999"), "ask for more than 1,000,000 GPUs"),
}


@pytest.mark.parametrize("bad, reason", LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_bad_row_is_left_out_and_counted(bad: str, reason: str, tmp_path: Path) -> None:
    found, trace = imported(tmp_path, row(), bad.format("00"), row(JobIDRaw="9"), bad.format("30"))
    assert (counts(found), trace.job_id.tolist(), found.stats.rows) == ({reason: (2, 3)}, ["7", "9"], 4)


def test_quotes_are_letters_of_slurm(tmp_path: Path) -> None:
    _, trace = imported(tmp_path, row(User='a"b'), row(JobIDRaw="8", User='"'))
    assert trace.user.tolist() == ['a"b', '"']


HALF = "line 3, the last, has no line end: if a copy broke off there, copy it again"
CSV = "submit_s,run_s,gpus\n0,60,1\n"


@pytest.mark.parametrize(
    "text, name, reason, jobs",
    [
        (f"{SACCT}\n{row()}\n{row(JobIDRaw='8', AllocTRES='gres/gpu=16')[:-1]}", "sacct", CUT, 1),
        (f"{SACCT}\n{row()}\n{row(JobIDRaw='8')[:40]}", "sacct", "fewer than 15 fields", 1),
        ("\n".join(WRITERS["jobcomp"](drawn(3)))[:-2], "jobcomp", CUT, 2),
        (f"{CSV}5,36", "csv", "fewer than 3 fields", 1),
        (f"{CSV}5,3600,1", "csv", None, 2),  # many a table is written so
    ],
    ids=["sacct, in a number", "sacct, in a field", "jobcomp", "csv, in a field", "csv, whole"],
)
def test_a_last_row_that_broke_off_is_told(text: str, name: str, reason: str | None, jobs: int, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(text)
    found = import_log(tmp_path / "log", tmp_path / "t.parquet", name)
    assert (found.jobs, counts(found)) == (jobs, {reason: (1, 3)} if reason else {})
    assert found.stats.messages[-1 if name == "jobcomp" else 0] == HALF
    (tmp_path / "log").write_text(f"{CSV}5,3600,1\n")
    assert HALF not in import_log(tmp_path / "log", tmp_path / "t.parquet", "csv").stats.messages


def test_bytes_of_another_encoding_stay_two_names(tmp_path: Path) -> None:
    path = tmp_path / "sacct.log"
    rows = [row(User="M?ller"), row(User="M!ller", JobIDRaw="8"), row(JobIDRaw="9")]
    text = "\n".join([SACCT, *rows, ""]).encode()
    path.write_bytes(text.replace(b"?", b"\xfc").replace(b"!", b"\xf6"))
    found = import_log(path, tmp_path / "t.parquet")
    assert read_trace(tmp_path / "t.parquet").user.tolist() == ["M\\xfcller", "M\\xf6ller", "ann"]
    (noted,) = found.stats.noted.values()
    assert (noted.rows, noted.first_line) == (2, 2)


def test_gpus_of_several_types_are_summed_and_bind_the_job(tmp_path: Path) -> None:
    asked, given = "gres/gpu:a100=4,gres/gpu:v100=2", "cpu=1,gres/gpu:a100=4,gres/gpu:v100=2"
    _, trace = imported(
        tmp_path, row(ReqTRES=asked, AllocTRES=given), row(JobIDRaw="8", AllocTRES=f"{given},gres/gpu=6")
    )
    assert trace.gpus.tolist() == [6, 6]
    assert trace.gpu_types.tolist() == ["a100|v100", ""]  # who asks for none by name takes any


def test_lives_of_a_requeued_job_are_one_job(tmp_path: Path) -> None:
    first = row(State="NODE_FAIL", ElapsedRaw="600")
    twin = first
    again = row(Submit="2024-03-01T10:11:00", Start="2024-03-01T12:00:00", End="2024-03-01T13:00:00", State="COMPLETED")
    found, trace = imported(tmp_path, again, first, twin, row(JobIDRaw="9"))
    assert (trace.job_id.tolist(), trace.attempts.tolist()) == (["7", "9"], [2, 1])
    assert (trace.run_s[0], trace.recorded_wait_s[0], trace.status[0]) == (4200, 60, "completed")
    assert counts(found) == {"an attempt that an earlier row has": (1, 4)}
    assert found.stats.messages == [
        "1 GPU-hours of attempts before the last are counted in (--attempts last leaves them out)"
    ]
    _, last = imported(tmp_path, again, first, row(JobIDRaw="9"), sums=False)
    assert last.run_s[0] == 3600


def test_an_id_twice_is_kept_once_where_ids_are_jobs(tmp_path: Path) -> None:
    path, out = tmp_path / "x.csv", tmp_path / "t.parquet"
    path.write_text("job_id,submit_s,run_s,gpus\na,5,1,1\nb,6,1,1\na,1,2,2\n")
    found = import_log(path, out)
    assert (counts(found), read_trace(out).run_s.tolist()) == ({"an id that an earlier row has": (1, 4)}, [1, 1])


def test_a_clock_change_is_told_and_slurms_own_count_taken(tmp_path: Path) -> None:
    """The night of 31 March 2024 in Berlin: from 1:30 to 3:30 is an hour."""
    changed = row(Submit="2024-03-31T01:00:00", Start="2024-03-31T01:30:00", End="2024-03-31T03:30:00")
    found, trace = imported(tmp_path, changed)
    assert (trace.run_s.tolist(), found.stats.noted[CLOCK_CHANGED].first_line) == ([3600], 2)
    right, _ = imported(tmp_path, changed, options=Options(timezone="Europe/Berlin"))
    assert CLOCK_CHANGED not in right.stats.noted
    assert right.start == "2024-03-31T00:00:00+00:00"


def test_rows_and_years_out_of_order_are_told(tmp_path: Path) -> None:
    submit, start, end = (f"2034-03-01T{time}" for time in ("10:00:00", "10:00:30", "11:00:30"))
    late = row(JobIDRaw="8", Submit=submit, Start=start, End=end)
    found, trace = imported(tmp_path, late, row())
    assert trace.job_id.tolist() == ["7", "8"]
    assert "1 rows were submitted before the row above" in found.stats.messages[0]
    assert "3,652 days before line 2" in found.stats.messages[1]


def test_a_start_before_the_submit_is_not_known(tmp_path: Path) -> None:
    found, trace = imported(tmp_path, row(Submit="2024-03-01T10:30:00"), row(JobIDRaw="8"))
    by_id = dict(zip(trace.job_id, trace.recorded_wait_s.tolist(), strict=True))
    assert by_id["8"] == 60
    assert by_id["7"] != by_id["7"]
    assert [count.first_line for count in found.stats.noted.values()] == [2]


def test_gpus_that_no_row_names_are_supplied(tmp_path: Path) -> None:
    bare = row(AllocTRES="cpu=8,node=2")
    with pytest.raises(InputError, match=r"1 ask for no GPU \(first: line 2\).*--gpus-per-node N supplies"):
        imported(tmp_path, bare)
    assert imported(tmp_path, bare, options=Options(gpus_per_node=8))[1].gpus.tolist() == [16]


def _sacct_text(*rows: str) -> bytes:
    return "\n".join([SACCT, *rows, ""]).encode()


def _archive(**files: bytes) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz") as archive:
        for name, content in files.items():
            (member := tarfile.TarInfo(name)).size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return found.getvalue()


REFUSED: dict[str, tuple[bytes, str, str]] = {
    "an empty file": (b"", "auto", "is empty"),
    "a header alone": (SACCT.encode(), "auto", "no rows, only a header"),
    "UTF-16": (_sacct_text(row()).decode().encode("utf-16"), "auto", "UTF-8.*iconv"),
    "a zip archive": (b"PK\x03\x04" + bytes(30), "auto", "zip archive.*unpack"),
    "half a gzip file": (gzip.compress(_sacct_text(*[row()] * 2000))[:-20], "sacct", "damaged or cut off"),
    "no header": (row().encode(), "sacct", "line 1: no column 'JobIDRaw'"),
    "a column less": (_sacct_text(row()).replace(b"|State", b"|Stat"), "sacct", "'State'; did you mean 'Stat'"),
    "a column twice": (_sacct_text(row()).replace(b"|QOS", b"|State"), "sacct", "2 columns 'State'"),
    "no TRES": (_sacct_text(row()).replace(b"TRES", b"X"), "sacct", "neither ReqTRES nor AllocTRES.*--gpus-per-node"),
    "an empty first line": (b"\n" + _sacct_text(row()), "sacct", "line 1: is empty"),
    "one long line": (b"x" * 3_000_000, "sacct", "line 1: is longer than 1 MiB"),
    "a long line later": (_sacct_text(row()) + b"x" * 3_000_000 + b"\ny\n", "sacct", "line 3: is longer"),
    "another format": (b"JobId=1 Name=x\n", "jobcomp", "line 1: no JobState="),
    "dates beside seconds": (
        b"submit_s,run_s,gpus\n2024-01-01,1,1\n5,1,1\n", "csv",
        r"mixes seconds \(line 3\) and dates without a zone \(line 2\)"),
    "dates with a zone beside dates without": (
        _sacct_text(row(), row(JobIDRaw="8", Start="2024-03-01T10:01:00Z")), "auto",
        r"without a zone \(line 2\) and dates with a zone \(line 3\)"),
    "milliseconds": (b"submit_s,run_s,gpus\n1709287200123,7200000,1\n", "csv", "line 2: 1709287200123 .*--unit ms"),
    "a date of digits": (b"submit_s,run_s,gpus\n20240301100000,60,1\n", "csv", "line 2: 20240301100000 .*write 2024-"),
    "a decimal comma": (b'submit_s,run_s,gpus\n5,"7,5",1\n', "csv", "line 2: run_s: '7,5': is this comma"),
    "any comma in a table of semicolons": (b"submit_s;run_s;gpus\n5;7,200;1\n", "csv", "line 2: run_s: '7,200'"),
    "any comma in a table of tabs": (b"submit_s\trun_s\tgpus\n5\t7,200\t1\n", "csv", "line 2: run_s: '7,200'"),
    "blanks for bars": (b"JobID  State  Submit\n-----  -----  -----\n", "auto", "sacct.*--parsable2.*JobIDRaw,"),
    "commas for bars": (_sacct_text(row()).replace(b"|", b","), "auto", "sacct.*--parsable2.*--columns"),
    "rows without a header": (row().encode(), "auto", "sacct.*--parsable2"),
    "JSON of sacct": (b'{\n "meta": {"Slurm": {"version": 1}},\n "jobs": []}', "auto", "sacct.*--parsable2"),
    "an archive of two files": (_archive(a=b"1", b=b"2"), "auto", r"holds 2 files \(a, b\); unpack it \(tar -xf\)"),
    "half an archive": (_archive(a=_sacct_text(*[row()] * 2000))[:-20], "sacct", "damaged or cut off"),
    "tasks of another table": (b"a,b,c\n", "alibaba-pai", "3 fields; expected the 10"),
    "RLTune of another width": (b"1,2,3\n", "rltune", "3 fields; expected 19"),
    "no list": (b'{"jobid": "x"}\n', "philly", "begins with \\["),
    "half a list": (b'[{"jobid": "x"},\n{"jobid": "y"', "philly", "the list does not end"),
    "a list of other things": (b'[\n{"jobid": "x"},\n{"jobid": 3}\n]', "philly", "line 3: this job can't be read"),
    "no job in it": (b'[\n{"jobid": "x", "attempts": []}\n]', "philly", "1 rows makes a job: 1 no submit time|never"),
}  # fmt: skip


@pytest.mark.parametrize("content, name, problem", REFUSED.values(), ids=REFUSED)
def test_a_file_is_refused_in_one_message(content: bytes, name: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(InputError, match=problem) as caught:
        import_log(path, tmp_path / "t.parquet", name, Options(tasks=path))
    assert caught.value.source == str(path)
    assert len(str(caught.value)) < 600
    assert list(tmp_path.iterdir()) == [path]  # nothing is left behind


def test_unclosed_quotes_are_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('user,submit_s,run_s,gpus\n"a,1,1,1\nb,2,1,1\n"c",3,1,1\n')
    assert counts(import_log(path, tmp_path / "t.parquet")) == {"quotes that don't close": (1, 2)}
    assert read_trace(tmp_path / "t.parquet").user.tolist() == ["b", "c"]


def test_philly_jobs_without_attempts_or_times(tmp_path: Path) -> None:
    gpu = [{"ip": "m", "gpus": ["gpu0"]}]
    whole = {"start_time": "2017-10-01 00:01:00", "end_time": "2017-10-01 00:02:00", "detail": gpu}
    jobs: list[dict[str, Any]] = [
        {"attempts": []},
        {"attempts": [whole, {"start_time": "2017-10-01 01:00:00", "end_time": None, "detail": gpu}]},
        {"attempts": [{"start_time": None, "end_time": None, "detail": gpu}, whole]},
        {"attempts": [{**whole, "end_time": "2017-10-01 00:00:59"}]},
    ]
    common = {"submitted_time": "2017-10-01 00:00:00", "status": "Pass", "vc": None, "user": None}
    path = tmp_path / "cluster_job_log"
    path.write_text(
        "[\n" + ",\n".join(json.dumps({"jobid": f"j{i}", **common, **job}) for i, job in enumerate(jobs)) + "\n]"
    )
    found = import_log(path, tmp_path / "t.parquet")
    assert counts(found) == {
        "never started": (1, 2),
        "not yet ended": (1, 3),
        "an attempt that ended before it started": (1, 5),
    }
    trace = read_trace(tmp_path / "t.parquet")
    assert (trace.job_id.tolist(), trace.run_s.tolist(), trace.attempts.tolist()) == (["j2"], [60], [2])


def test_pai_shares_are_rounded_up_and_jobs_without_tasks_told(tmp_path: Path) -> None:
    jobs, tasks = tmp_path / "jobs.csv", tmp_path / "tasks.csv"
    jobs.write_text("a,1,u,Terminated,10.0,100.0\nb,2,u,Terminated,20.0,\nc,3,u,Failed,30.0,90.0\n")
    tasks.write_text("a,w,3.0,Terminated,15.0,90.0,1,1,50.0,T4\nb,w,1,Running,25.0,,1,1,100.0,T4\n")
    found = import_log(jobs, tmp_path / "t.parquet", "auto", Options(tasks=tasks))
    assert counts(found) == {"no tasks in the table of tasks": (1, 3), "not yet ended": (1, 2)}
    trace = read_trace(tmp_path / "t.parquet")
    assert (trace.gpus.tolist(), trace.recorded_wait_s.tolist(), trace.run_s.tolist()) == ([2], [5], [85])


def test_swf_parts_and_what_is_not_known(tmp_path: Path) -> None:
    def line(job: int, run: int, status: int, requested: int = 4) -> str:
        return f"{job} 5 -1 {run} -1 -1 -1 {requested} -1 -1 {status} -1 1 -1 -1 -1 -1 -1"

    path = tmp_path / "x.swf"
    path.write_text("\n".join(["; a remark", line(1, 10, 1), line(1, 5, 2), line(2, -1, 5), ";", line(3, 7, 0)]))
    found = import_log(path, tmp_path / "t.parquet")
    assert found.stats.rows == 4
    assert counts(found) == {
        "parts of a job that has a separate line for the whole (status 2 to 4)": (1, 3),
        "no run time": (1, 4),
    }
    trace = read_trace(tmp_path / "t.parquet")
    assert (trace.gpus.tolist(), trace.status.tolist(), trace.user.tolist()) == (
        [4, 4],
        ["completed", "failed"],
        ["", ""],
    )


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25)
@given(data=st.data())
def test_any_damage_is_a_trace_or_one_message(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A span of a good log is replaced by other bytes: what is still read is checked whole, and no row is lost."""
    folder = tmp_path_factory.mktemp("damage")
    path = write_log(folder, name, drawn(6))
    content = path.read_bytes()
    begin = data.draw(st.integers(0, len(content)))
    junk = data.draw(
        st.binary(max_size=12) | st.sampled_from([b"\n", b'"', b"|", b",", b"-1", b"nan", b"1e300", b"{", b"}"])
    )
    path.write_bytes(content[:begin] + junk + content[begin + data.draw(st.integers(0, 30)) :])
    try:
        found = import_log(path, folder / "t.parquet", name, Options(tasks=folder / "tasks.csv"))
    except InputError:
        return
    trace = read_trace(folder / "t.parquet")
    attempts = int(trace.attempts.sum()) if name in ("sacct", "jobcomp") else len(trace)
    assert attempts + sum(count.rows for count in found.stats.left_out.values()) == found.stats.rows


def test_a_line_that_never_ends_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """The file is cut off at its end, which nobody comes to: memory does not grow with the line."""
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"x" * 16 * lines.BLOCK_BYTES, 1)[:-100])
    with pytest.raises(InputError, match="line 1: is longer than 1 MiB"):
        import_log(path, tmp_path / "t.parquet", "sacct")


def test_ids_are_texts(tmp_path: Path) -> None:
    """007 is not 7, though both are whole numbers; both are there twice."""
    again = {"Submit": "2024-03-01T11:01:00", "Start": "2024-03-01T11:02:00", "End": "2024-03-01T12:02:00"}
    rows = [row(JobIDRaw=name, **attempt) for attempt in ({}, again) for name in ("7", "007")]
    _, trace = imported(tmp_path, *rows)
    assert dict(zip(trace.job_id, trace.attempts.tolist(), strict=True)) == {"7": 2, "007": 2}


def test_jobcomp_names_hold_what_they_like_and_keys_keep_their_order(tmp_path: Path) -> None:
    whole = next(iter(WRITERS["jobcomp"](drawn(1))))
    texts = [
        whole,
        whole.replace("JobId=0", "JobId=1").replace("Name=", "Name=Partition of UserIdX=3 "),
        whole.replace("JobId=0", "JobId=2").replace("Name=", "Name=x Partition=y "),  # none can tell
        whole.replace("JobId=0", "JobId=3")
        .replace("QOS=", "Q=")
        .replace("Account=", "QOS=")
        .replace("Q=", "Account=", 1),
    ]
    path = tmp_path / "jobcomp.log"
    path.write_text("\n".join([*texts, ""]))
    found = import_log(path, tmp_path / "t.parquet")
    assert read_trace(tmp_path / "t.parquet").job_id.tolist() == ["0", "1"]
    assert counts(found) == {"more than 23 fields": (1, 3), "keys in another order than on the first line": (1, 4)}


def test_jobcomp_of_older_versions(tmp_path: Path) -> None:
    (text,) = WRITERS["jobcomp"](drawn(1))
    text = re.sub(r",gres/gpu=\d", " Gres=gpu:2", re.sub(r"TimeLimit=\d+", "TimeLimit=1-02:03:04", text))
    path = tmp_path / "jobcomp.log"
    path.write_text(f"{text}\n")
    with pytest.raises(InputError, match=r"1 ask for no GPU.*--gpus-per-node"):
        import_log(path, tmp_path / "t.parquet")
    import_log(path, tmp_path / "t.parquet", "auto", Options(gpus_per_node=4))
    trace = read_trace(tmp_path / "t.parquet")
    assert (trace.gpus[0], trace.requested_s[0]) == (4, 86400 + 2 * 3600 + 3 * 60 + 4)


def test_a_philly_job_has_the_most_that_an_attempt_had(tmp_path: Path) -> None:
    times = [(f"2017-10-01 00:0{i}:00", f"2017-10-01 00:0{i + 1}:00") for i in range(2)]
    attempts = [
        {"start_time": start, "end_time": end, "detail": [{"ip": "m", "gpus": ["g"] * (2 - i)}] * 2}
        for i, (start, end) in enumerate(times)
    ]
    path = tmp_path / "log"
    path.write_text(json.dumps([{"jobid": "j", "submitted_time": times[0][0], "status": "Pass", "attempts": attempts}]))
    import_log(path, tmp_path / "t.parquet")
    assert read_trace(tmp_path / "t.parquet").gpus.tolist() == [4]
