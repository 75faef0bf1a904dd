"""Times and durations of logs: in whatever form, beside whatever else, they are the same trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from unittest.mock import patch
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.job_traces import JobTrace, read_trace
from jobs.logs import log_text as lines
from jobs.logs.log_import import import_log
from jobs.logs.log_rows import Options, status_of
from slimsched.cli import main

ZONE = "Asia/Tokyo"
Written = Callable[[datetime], str]


def _at(zone: str, form: str) -> Written:
    return lambda time: time.astimezone(ZoneInfo(zone)).strftime(form)


def _seconds(form: str) -> Written:
    return lambda time: form.format(time.timestamp())


# Forms that may stand in parallel in one file; instants are of whole minutes, for some forms have no seconds.
FORMS: Mapping[str, tuple[Written, ...]] = {
    "without a zone": tuple(
        _at(ZONE, form)
        for form in (
            "%Y-%m-%dT%H:%M:%S",
            "%Y-%m-%d %H:%M",
            "%Y/%m/%d %H:%M:%S",
            "%Y-%m-%dT%H:%M:%S.000",
            " %Y-%m-%d %H:%M",
        )
    ),
    "with a zone": (
        *(_at("UTC", form) for form in ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S UTC", "%Y-%m-%dT%H:%M+0000")),
        *(_at("Europe/Berlin", form) for form in ("%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M:%S %z")),
        lambda time: time.astimezone(timezone(timedelta(hours=-7))).isoformat(),
    ),
    "seconds": tuple(_seconds(form) for form in ("{:.0f}", "{:.1f}", " {:.0f}", "{:.9e}")),
}
NOTHING = ("", "None", "Unknown", "NaT", "null", "-", " ")


def imported(folder: Path, text: str, **options: object) -> JobTrace:
    path = folder / "log.csv"
    path.write_text(text)
    import_log(path, folder / "t.parquet", "csv", Options(**options))  # type: ignore[arg-type]
    return read_trace(folder / "t.parquet")


@settings(max_examples=60)
@given(data=st.data(), kind=st.sampled_from(sorted(FORMS)), size=st.sampled_from([64, 200, lines.BLOCK_BYTES]))
def test_an_instant_is_the_same_in_every_form_beside_whatever(
    data: st.DataObject, kind: str, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = datetime(2024, 3, 29, tzinfo=UTC)  # clocks change in Berlin two days later
    minutes = sorted(data.draw(st.sets(st.integers(0, 5000), min_size=1, max_size=8)))
    form = st.sampled_from(FORMS[kind])
    rows, waits = [], []
    for minute in minutes:
        submit = first + timedelta(minutes=minute)
        wait = data.draw(st.none() | st.integers(0, 300))
        start = (
            data.draw(st.sampled_from(NOTHING)) if wait is None else data.draw(form)(submit + timedelta(minutes=wait))
        )
        rows.append(f"{data.draw(form)(submit)},{start},60,1\n")
        waits.append(None if wait is None else 60.0 * wait)
    with patch.object(lines.blocks, "__defaults__", (size,)):
        head = "submit_s,recorded_start_s,run_s,gpus\n"
        trace = imported(tmp_path_factory.mktemp("times"), head + "".join(rows), timezone=ZONE)
    assert trace.submit_s.tolist() == [60.0 * (minute - minutes[0]) for minute in minutes]
    assert [None if wait != wait else wait for wait in trace.recorded_wait_s.tolist()] == waits
    begin = first + timedelta(minutes=minutes[0])
    assert trace.provenance["start"] == begin.isoformat()


@pytest.mark.parametrize(
    "text, unit_s, run_s",
    [
        ("7200", 1.0, 7200),
        ("7200000", 1e-3, 7200),
        ("120", 60.0, 7200),
        ('"7,200"', 1.0, 7200),
        ('"1,234,567.5"', 1.0, 1234567.5),
        ("02:00:00", 1.0, 7200),
        ("2:00:00.5", 1.0, 7200.5),
        ("1-02:00:00", 60.0, 93600),
        ("1 day 02:00:00", 1.0, 93600),
        ("0 days 00:00:07.25", 1.0, 7.25),
        ("3600s", 1e-3, 3600),
        ("90m", 1.0, 5400),
        ("1.5 h", 1.0, 5400),
        ("2h5m10s", 60.0, 7510),
        ("2d3h", 1.0, 183600),
        ("5m0.5s", 1.0, 300.5),
        ("36e2", 1.0, 3600),
    ],
)
def test_a_run_time_in_every_form(text: str, unit_s: float, run_s: float, tmp_path: Path) -> None:
    for other in ("", "9,00:01:00,1\n"):
        trace = imported(tmp_path, f"submit_s,run_s,gpus\n5,{text},1\n{other}", unit_s=unit_s)
        assert trace.run_s[0] == pytest.approx(run_s, rel=1e-12)


@pytest.mark.parametrize("text", ["2:00", "7_200", "2 hours ago", "-", "inf", "1:2:3:4"])
def test_import_drops_unreadable_run_times_and_shows_an_example(text: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"submit_s,run_s,gpus\n5,60,1\n6,{text},1\n7,60,1\n")
    found = import_log(path, tmp_path / "t.parquet")
    ((reason, count),) = found.stats.left_out.items()
    shown = f"unread run time, such as '{text}'; write seconds, 02:00:00, 1-02:00:00, 90m, 2h or 2h5m10s"
    assert (reason, count.rows, count.first_line) == ("no run time" if text == "-" else shown, 1, 3)


def test_each_column_may_have_a_unit_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Times in ms, as `--unit` says, beside a limit in seconds and a wait in minutes."""
    rows = [f"{1709287200000 + 1000 * n},{1709287200000 + 1000 * n + 3600_000},7200,5,1" for n in range(40)]
    (tmp_path / "log.csv").write_text("made,ended,limit,waited,gpus\n" + "".join(f"{row}\n" for row in rows))
    columns = "submit_s=made,recorded_start_s=made,recorded_end_s=ended,requested_s=limit:s,recorded_wait_s=waited:min"
    out = str(tmp_path / "t.jobtrace.parquet")
    asked = ["jobs", "import", str(tmp_path / "log.csv"), "--unit", "ms", "--columns"]
    assert main([*asked, columns, "--out", out]) == 0
    assert "ran longer" not in capsys.readouterr().out
    trace = read_trace(Path(out))
    assert set(trace.requested_s) == {7200.0}
    assert set(trace.run_s) == {3600.0}
    assert main([*asked, columns.replace("limit:s", "limit"), "--out", out]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "40 of 40 jobs with a time limit ran longer than that: is it in another unit?" in told


@pytest.mark.parametrize(
    ("word", "status"),
    [("Complete", "completed"), ("EXIT", "failed"), ("OOMKilled", "failed"), ("Evicted", "cancelled"),
     ("DeadlineExceeded", "timeout"), ("STOPPED", "cancelled"), ("F", "unknown")],
)  # fmt: skip
def test_statuses_of_other_schedulers(word: str, status: str) -> None:
    assert status_of(word) == status


def test_a_run_time_is_from_start_to_end_where_no_column_has_it(tmp_path: Path) -> None:
    head = "submit_s,recorded_start_s,recorded_end_s,gpus\n"
    rows = ["10:00:00Z,2024-03-01T10:01:00Z,2024-03-01T11:01:30Z", "10:00:05Z,2024-03-01T10:01:00Z,", "10:00:06Z,,"]
    rows.append("10:00:07Z,2024-03-01T10:01:00Z,2024-03-01T10:00:59Z")
    path = tmp_path / "log.csv"
    path.write_text(head + "".join(f"2024-03-01T{row},2\n" for row in rows))
    found = import_log(path, tmp_path / "t.parquet")
    trace = read_trace(tmp_path / "t.parquet")
    assert (trace.run_s.tolist(), trace.recorded_wait_s.tolist()) == ([3630], [60])
    reasons = {reason: count.first_line for reason, count in found.stats.left_out.items()}
    assert reasons == {"not yet ended": 3, "never started": 4, "ended before it started": 5}


@pytest.mark.parametrize(
    "submit_s, run_s, told",
    [(5, 7_200_000, "median run time is 7.2e+06 s"), (5, 3, "median run time is 3 s"), (7e8, 60, "spans 22 years")],
)
def test_import_of_implausible_seconds_suggests_the_unit_flag(
    submit_s: float, run_s: float, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"submit_s,run_s,gpus\n0,{run_s},1\n{submit_s},{run_s},1\n")
    found = import_log(path, tmp_path / "t.parquet")
    assert any(told in text and "(otherwise give --unit)" in text for text in found.stats.messages)
