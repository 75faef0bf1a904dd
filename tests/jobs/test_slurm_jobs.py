"""Which rows of a Slurm log are one job, and when it could begin; right values are by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.job_traces import JobTrace, read_trace
from jobs.logs.log_import import ATTEMPTS, OTHERS, PARTS, Imported, import_log
from jobs.logs.log_rows import HELD, Options
from jobs.logs.sacct import FILLED


def attempt(
    job: str, submit: str, start: str, end: str, elapsed_s: object, state: str = "COMPLETED", **words: str
) -> dict[str, str]:
    """One row: times of 1 March 2024, or other texts."""
    times = {"Submit": submit, "Start": start, "End": end, "Eligible": words.pop("Eligible", submit)}
    dated = {
        name: f"2024-03-01T{text}" if text[:1].isdigit() and len(text) < 10 else text for name, text in times.items()
    }
    common = {"JobIDRaw": job, "JobID": job, "Cluster": "alpha", "User": "ann", "Account": "lab", "Partition": "gpu"}
    gpus = {"NNodes": "1", "ReqTRES": "cpu=8,gres/gpu=2", "AllocTRES": "cpu=8,gres/gpu=2"}
    return {**common, **gpus, **dated, "ElapsedRaw": str(elapsed_s), "State": state, **words}


FIRST = attempt("7", "10:00:00", "10:05:00", "10:15:00", 600, "REQUEUED")
SECOND = attempt("7", "10:15:00", "11:00:00", "11:30:00", 1800)


def imported(folder: Path, *rows: dict[str, str], options: Options | None = None) -> tuple[Imported, JobTrace]:
    path = folder / "sacct.log"
    names = list(dict.fromkeys(name for row in rows for name in row))
    path.write_text("\n".join(["|".join(names), *("|".join(row[name] for name in names) for row in rows)]) + "\n")
    found = import_log(path, folder / "t.parquet", "auto", options)
    return found, read_trace(folder / "t.parquet")


def test_a_wait_begins_when_the_job_may_begin(tmp_path: Path) -> None:
    chained = attempt("8", "10:00:01", "12:00:07", "13:00:07", 3600, Eligible="12:00:02")
    found, trace = imported(tmp_path, attempt("7", "10:00:00", "10:00:05", "12:00:01", 7196), chained)
    assert (trace.submit_s.tolist(), trace.recorded_wait_s.tolist()) == ([0, 7202], [5, 5])
    assert trace.recorded_start_s.tolist() == [5, 7207]
    assert (found.stats.noted[HELD].rows, found.stats.noted[HELD].first_line) == (1, 3)
    never = attempt("9", "10:00:03", "10:00:05", "12:00:01", 7196, Eligible="Unknown")
    assert imported(tmp_path, never)[1].recorded_wait_s.tolist() == [2]


PENDING = attempt("7", "10:15:00", "Unknown", "Unknown", 0, "PENDING", Partition="gpu,long", AllocTRES="")
RUNNING = attempt("7", "10:15:00", "11:00:00", "Unknown", 60, "RUNNING")
OTHER = attempt("8", "10:00:00", "10:05:00", "10:15:00", 600)


@pytest.mark.parametrize("later", [[PENDING], [RUNNING], []], ids=["in the queue", "running", "not shown"])
def test_a_job_that_went_back_to_the_queue_has_not_ended(later: list[dict[str, str]], tmp_path: Path) -> None:
    found, trace = imported(tmp_path, FIRST, OTHER, *later)
    assert trace.job_id.tolist() == ["8"]
    assert {reason: count.rows for reason, count in found.stats.left_out.items()} == {"not yet ended": 1 + len(later)}


@pytest.mark.parametrize("former", [PENDING, RUNNING], ids=["in the queue", "running"])
def test_job_open_in_an_earlier_export_takes_its_end_from_a_later_one(former: dict[str, str], tmp_path: Path) -> None:
    found, trace = imported(tmp_path, FIRST, former, FIRST, SECOND)
    assert (trace.run_s.tolist(), trace.attempts.tolist()) == ([2400], [2])
    assert {reason: count.rows for reason, count in found.stats.left_out.items()} == {
        "not yet ended": 1,
        "an attempt that an earlier row has": 1,
    }


def test_a_job_that_was_cancelled_on_its_way_back_has_ended(tmp_path: Path) -> None:
    cancelled = attempt("7", "10:15:00", "None", "10:20:00", 0, "CANCELLED by 0", AllocTRES="")
    found, trace = imported(tmp_path, FIRST, cancelled)
    assert (trace.run_s.tolist(), list(found.stats.left_out)) == ([600], ["never started"])


@pytest.mark.parametrize(
    "changes",
    [
        {"User": "bob"},
        {"Account": "bio"},
        {"Cluster": "beta"},
        {"Submit": "2024-03-01T10:14:59", "Eligible": "2024-03-01T10:14:59"},
        {"Submit": "2024-04-02T10:00:00", "Eligible": "2024-04-02T10:00:00", "Start": "2024-04-02T10:00:00",
         "End": "2024-04-02T10:30:00"},
    ],
    ids=["user", "account", "cluster", "came before the end", "came a month later"],
)  # fmt: skip
def test_another_job_of_the_same_id_stays_another(changes: dict[str, str], tmp_path: Path) -> None:
    found, trace = imported(tmp_path, {**FIRST, "State": "COMPLETED"}, {**SECOND, **changes})
    assert sorted(trace.job_id.tolist()) == ["7", "7#2"]
    assert (sorted(trace.run_s.tolist()), trace.attempts.tolist()) == ([600, 1800], [1, 1])
    assert (found.stats.noted[OTHERS].rows, ATTEMPTS in found.stats.noted) == (1, False)


def _part(number: int, gpus: str, **words: str) -> dict[str, str]:
    return {**words, "JobIDRaw": str(20 + number), "JobID": f"20+{number}", "ReqTRES": gpus, "AllocTRES": gpus}


def test_parts_of_a_heterogeneous_job_are_one_job(tmp_path: Path) -> None:
    sizes = ("gres/gpu:a100=4", "gres/gpu:v100=8", "cpu=4")
    rows = [_part(number, gpus, **words) for words in (FIRST, SECOND) for number, gpus in enumerate(sizes)]
    found, trace = imported(tmp_path, *rows, OTHER)
    assert dict(zip(trace.job_id, trace.gpus.tolist(), strict=True)) == {"20": 12, "8": 2}
    job = trace.job_id.tolist().index("20")
    assert (trace.run_s[job], trace.attempts[job], trace.gpu_types[job]) == (2400, 2, "a100|v100")
    assert {what: found.stats.noted[what].rows for what in (PARTS, ATTEMPTS)} == {PARTS: 2, ATTEMPTS: 1}


@pytest.mark.parametrize(
    "limit, requested_s",
    [("1-00:00:00", 86400), ("02:30:00", 9000), ("90", 5400), ("525599", 31535940),
     ("UNLIMITED", None), ("Partition_Limit", None), ("", None), ("525600", None), ("365-00:00:00", None)],
)  # fmt: skip
@pytest.mark.parametrize("name", ["Timelimit", "TimelimitRaw"])
def test_limits_are_read_as_slurm_writes_them(name: str, limit: str, requested_s: float | None, tmp_path: Path) -> None:
    """Without a limit Slurm notes one of a year. The other row makes a column of one form, or of two."""
    for other in (limit, "00:10:00"):
        _, trace = imported(tmp_path, {**OTHER, name: limit}, {**OTHER, name: other, "JobIDRaw": "9"})
        found = dict(zip(trace.job_id, trace.requested_s.tolist(), strict=True))["8"]
        assert (None if found != found else found) == requested_s


def test_elapsed_counts_where_its_raw_form_is_not_there(tmp_path: Path) -> None:
    """The night in which Berlin's clocks are set back: 20 minutes from 2:50 to 2:10."""
    night = attempt("7", "2024-10-27T02:40:00", "2024-10-27T02:50:00", "2024-10-27T02:10:00", "00:20:00")
    night["Elapsed"] = night.pop("ElapsedRaw")
    _, trace = imported(tmp_path, night)
    assert trace.run_s.tolist() == [1200]


CPUS = {**OTHER, "JobIDRaw": "9", "NNodes": "3", "ReqTRES": "cpu=8,gres/gpumem=0", "AllocTRES": "cpu=8,gres/shard=2"}


def test_gpus_per_node_is_for_logs_that_name_no_gpu(tmp_path: Path) -> None:
    options = Options(gpus_per_node=4)
    found, trace = imported(tmp_path, CPUS, {**CPUS, "JobIDRaw": "10"}, options=options)
    assert (trace.gpus.tolist(), found.stats.noted[FILLED].rows) == ([12, 12], 2)
    found, trace = imported(tmp_path, CPUS, OTHER, options=options)
    assert trace.job_id.tolist() == ["8"]
    assert "--gpus-per-node was not used" in found.stats.messages[0]


@pytest.mark.parametrize("gres, gpus", [("gpu:2", 2), ("gpu:a100:2,gpu:v100:1", 3), ("nvme:1,gpu:2(S:0-1)", 2)])
def test_gpus_of_older_versions_stand_in_gres(gres: str, gpus: int, tmp_path: Path) -> None:
    old = {
        **{name: text for name, text in OTHER.items() if "TRES" not in name},
        "NNodes": "2",
        "ReqGRES": "",
        "AllocGRES": gres,
    }
    for options in (Options(), Options(gpus_per_node=8)):
        assert imported(tmp_path, old, options=options)[1].gpus.tolist() == [gpus]


def test_jobcomp_says_the_same(tmp_path: Path) -> None:
    """An attempt after which its job went back is PENDING there, with an end; parts are told behind Eligible."""

    def line(job: str, state: str, submit: str, start: str, end: str, more: str = "") -> str:
        times = f"StartTime=2024-03-01T{start} EndTime=2024-03-01T{end}"
        eligible = f"SubmitTime=2024-03-01T{submit} EligibleTime=2024-03-01T{submit}{more}"
        who = f"JobId={job} UserId=ann(1) JobState={state} TimeLimit=525600"
        return f"{who} {times} Tres=gres/gpu=2 Cluster=a {eligible} ExitCode=0:0"

    path = tmp_path / "jobcomp.log"
    path.write_text("\n".join([
        line("7", "PENDING", "10:00:00", "10:05:00", "10:15:00"),
        line("7", "COMPLETED", "10:15:00", "11:00:00", "11:30:00"),
        line("8", "PENDING", "10:00:00", "10:05:00", "10:15:00"),
        line("20", "COMPLETED", "10:16:00", "10:17:00", "10:18:00", " HetJobId=20 HetJobOffset=0"),
        line("21", "COMPLETED", "10:16:00", "10:17:00", "10:18:00", " HetJobId=20 HetJobOffset=1"),
        line("31", "COMPLETED", "10:17:00", "10:18:00", "10:18:01", " ArrayJobId=30 ArrayTaskId=1"),
        "",
    ]))  # fmt: skip
    found = import_log(path, tmp_path / "t.parquet")
    trace = read_trace(tmp_path / "t.parquet")
    assert trace.job_id.tolist() == ["7", "20", "31"]
    assert (trace.run_s.tolist(), trace.gpus.tolist()) == ([2400, 60, 1], [2, 4, 2])
    assert {reason: count.first_line for reason, count in found.stats.left_out.items()} == {"not yet ended": 3}
