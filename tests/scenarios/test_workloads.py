"""Workloads as scenarios name them: curves from files, flash crowds, and slices for training and tuning."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kit.errors import InputError
from policies.faults import Crash, Outage
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import load_experiment
from scenarios.experiment.workloads import TraceSlice, arrivals_ns
from scenarios.files.scenario_keys import FlashWorkload, RatesWorkload, Workload, WorkloadSection
from scenarios.files.scenario_reading import load_scenario, relative_paths
from scenarios.files.series_files import read_trace
from slimsched.cli import main
from tests.scenarios.files import write_scenario

POISSON = "{kind: poisson, rate_img_s: 200}"
CURVE = "{kind: rates, rate_img_s: 2000, file: report.csv, tuning_file: tuning.csv, period_s: 1}"
FLASH = "{kind: flash, rate_img_s: 1000, factor: 5, at_s: 0.4, rise_s: 0.1, peak_s: 0.2, fall_s: 0.1}"
FAULTS = """
faults:
- {kind: server_down, server: fast, start_s: 0.2, end_s: 0.5}
- {kind: worker_killed, server: slow, at_s: 0.6}
"""


def write(folder: Path, workload: str, more: str = "") -> Path:
    """The tiny scenario with another workload; `report.csv` ends high, `tuning.csv` begins high."""
    (folder / "report.csv").write_text("minute,count\n0,1\n1,9\n")
    (folder / "tuning.csv").write_text("minute,count\n0,9\n1,1\n")
    path = write_scenario(folder, POISSON, workload)
    path.write_text(path.read_text() + more)
    return path


def counts(experiment: Experiment, halves: int, *, tuning: bool = False) -> list[float]:
    runs = [
        experiment.arrivals_ns(seed, halves / 2, trace_slice=TraceSlice() if tuning else None) / 1e9
        for seed in range(10)
    ]
    return list(np.histogram(np.concatenate(runs), np.arange(halves + 1) / 2)[0] / 10)


def test_tuning_plays_another_curve(tmp_path: Path) -> None:
    """The report's curve ends high, the one for tuning begins high; either is played again after its period."""
    experiment = load_experiment(write(tmp_path, CURVE))
    assert counts(experiment, 4) == pytest.approx([200, 1800, 200, 1800], rel=0.1)
    assert counts(experiment, 2, tuning=True) == pytest.approx([1800, 200], rel=0.1)
    own = load_experiment(write(tmp_path, CURVE.replace("tuning_file: tuning.csv, ", "")))
    assert counts(own, 2, tuning=True) == counts(own, 2)


def test_paths_of_curves_stay_relative_to_the_file(tmp_path: Path) -> None:
    scenario = load_scenario(write(tmp_path, CURVE))
    assert isinstance(scenario.workload, RatesWorkload)
    assert Path(scenario.workload.tuning_file or "") == tmp_path / "tuning.csv"
    elsewhere = relative_paths(scenario, tmp_path / "runs" / "x").workload
    assert isinstance(elsewhere, RatesWorkload)
    assert (elsewhere.file, elsewhere.tuning_file) == ("../../report.csv", "../../tuning.csv")


def test_the_mean_rate_of_a_flash_crowd_is_that_of_its_arrivals(tmp_path: Path) -> None:
    """`rate_img_s` is the rate outside the crowd; the mean over the run is what arrives, cut crowds included."""
    experiment = load_experiment(write(tmp_path, FLASH))
    assert experiment.rate_img_s == 1000
    assert experiment.mean_rate_img_s == pytest.approx(1000 * (1 + 4 * 0.3))
    assert counts(experiment, 2) == pytest.approx([500 + 4 * 50, 500 + 4 * 250], rel=0.05)
    crowd = FlashWorkload(kind="flash", rate_img_s=1, factor=3, at_s=2, rise_s=4, peak_s=5, fall_s=10)
    means = [crowd.mean_factor(duration_s) for duration_s in (1, 2, 4, 6, 11, 21, 42)]
    assert means == pytest.approx([1, 1, 1 + 2 * 0.5 / 4, 1 + 2 * 2 / 6, 1 + 2 * 7 / 11, 1 + 2 * 12 / 21, 1 + 24 / 42])
    sudden = FlashWorkload(kind="flash", rate_img_s=1, factor=3, at_s=2, rise_s=0, peak_s=5, fall_s=0)
    assert sudden.mean_factor(10) == pytest.approx(2)


def test_an_excerpt_meets_what_comes_late_in_the_scenario(tmp_path: Path) -> None:
    """Short runs for tuning begin anywhere: some see the crowd and the fault, at their time less the slice's."""
    experiment = load_experiment(write(tmp_path, FLASH, FAULTS))
    plain = [experiment.run_spec(seed, duration_s=0.1) for seed in range(30)]
    runs = [experiment.run_spec(seed, duration_s=0.1, trace_slice=TraceSlice()) for seed in range(30)]
    assert max(len(run.arrivals_ns) for run in plain) < 160 < 350 < max(len(run.arrivals_ns) for run in runs)
    assert all(run.faults == (Outage(0, 200_000_000, 500_000_000), Crash(1, 600_000_000)) for run in plain)
    met = {len(run.faults) for run in runs}
    assert met == {0, 1, 2}
    for run in runs:
        crashes = [fault.at_ns for fault in run.faults if isinstance(fault, Crash)]
        outages = [(fault.start_ns, fault.end_ns) for fault in run.faults if isinstance(fault, Outage)]
        assert all(start_ns >= 0 and end_ns is not None and end_ns > start_ns for start_ns, end_ns in outages)
        begins_ns = {600_000_000 - at_ns for at_ns in crashes}
        begins_ns |= {500_000_000 - (end_ns or 0) for _, end_ns in outages}
        assert len(begins_ns) <= 1 or max(begins_ns) - min(begins_ns) <= 1
    whole = experiment.run_spec(3, trace_slice=TraceSlice())
    assert whole.faults == experiment.run_spec(3).faults
    assert (whole.arrivals_ns == experiment.run_spec(3).arrivals_ns).all()


def test_every_kind_of_workload_is_played() -> None:
    """By a function that is registered for it: its section and that function are all of a new one."""
    union, _ = get_args(Workload)
    unknown = arrivals_ns.dispatch(WorkloadSection)
    assert [kind.__name__ for kind in get_args(union) if arrivals_ns.dispatch(kind) is unknown] == []


EPOCH = 1732000000
GAPS_S = np.arange(1000) * 0.06


@pytest.mark.parametrize(
    "times, keys, told",
    [
        (EPOCH + GAPS_S, "", []),
        ((EPOCH + GAPS_S) * 1e3, "", ["look like milliseconds since 1970 (1732000000000)", "factor: 1000"]),
        ((EPOCH + GAPS_S) * 1e6, "", ["look like microseconds", "workload.factor: 1e+06"]),
        ((EPOCH + GAPS_S) * 1e9, "factor: 2", ["look like nanoseconds", "workload.factor: 2e+09"]),
        ((EPOCH + GAPS_S) * 1e3, "factor: 1000", []),
        ((EPOCH + GAPS_S) * 1e3, "factor: 500", ["500 of 1,000 arrivals are beyond", "duration_s: 120 holds"]),
        (20241026230000 + np.arange(60), "", ["look like dates, YYYYMMDDhhmmss (20241026230000)", "in ISO 8601"]),
        (GAPS_S * 2, "from_s: 70", []),
        (GAPS_S * 1e3, "", ["999 of 1,000 arrivals are beyond the run's 60 s", "milliseconds, workload.factor: 1000"]),
        (GAPS_S * 1.5, "", ["333 of 1,000 arrivals are beyond", "duration_s: 90 holds all"]),
        (GAPS_S / 30, "", ["last arrival is after 1.998 s of the run's 60 s", "shorten duration_s"]),
        (EPOCH + GAPS_S // 1, "", ["whole seconds, and 940 of 1,000 come at once", "resolution_s: 1 lets"]),
        ((EPOCH + GAPS_S // 1) * 1e3, "factor: 1000", ["whole seconds", "resolution_s: 1000 lets"]),
        (GAPS_S // 1 * 1e3, "factor: 1000", []),
        (GAPS_S / 30, "factor: 0.01", ["700 of 1,000 arrivals are beyond", "duration_s: 200 holds"]),
        (EPOCH + GAPS_S // 1, "resolution_s: 1", []),
        (EPOCH // 60 * 60 + GAPS_S // 60 * 60, "", ["last arrival is after 0 s", "whole minutes", "resolution_s: 60"]),
    ],
)  # fmt: skip
def test_an_odd_trace_is_told(
    times: NDArray[np.float64], keys: str, told: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Units by their size, what the run leaves out, and stamps that make bursts; each with what to write."""
    (tmp_path / "t.csv").write_text("time_s\n" + "".join(f"{time:.3f}\n" for time in times))
    path = write(tmp_path, f"{{kind: trace, file: t.csv{', ' if keys else ''}{keys}}}")
    path.write_text(path.read_text().replace("duration_s: 1\n", "duration_s: 60\n"))
    assert main(["simulate", str(path), "--router", "jsq"]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "t.csv" in line]
    assert bool(warnings) == bool(told)
    assert [text for text in told if not any(text in line for line in warnings)] == []


def test_a_trace_may_begin_later(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time_s\n" + "".join(f"{1000 + time}\n" for time in (0, 700, 2000, 2500, 9000)))
    text = "{kind: trace, file: t.csv, factor: 1000, from_s: FROM}"
    experiment = load_experiment(write(tmp_path, text.replace("FROM", "1000")))
    assert experiment.arrivals_ns(1, 3.0).tolist() == [0, 500_000_000]
    with pytest.raises(InputError, match=r"workload\.from_s: is 9001, and the last arrival comes 9000 after the first"):
        load_experiment(write(tmp_path, text.replace("FROM", "9001")))


def test_whole_seconds_are_spread_on_request(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time_s\n" + "7\n8\n8\n9\n" * 100)
    experiment = load_experiment(write(tmp_path, "{kind: trace, file: t.csv, resolution_s: 1, factor: 3}"))
    assert counts(experiment, 2) == pytest.approx(
        [200, 200], rel=0.1
    )  # three seconds in one: halves of 100 + 100, 100 + 100
    assert len(set(experiment.arrivals_ns(1, 1.0).tolist())) == 400
    assert not np.array_equal(experiment.arrivals_ns(1, 1.0), experiment.arrivals_ns(2, 1.0))


def _file(folder: Path, text: str) -> Path:
    path = folder / "x.csv"
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize(
    "text, times_s",
    [
        ("time_s\n0\n0.5\n1e0\n", [0, 0.5, 1]),
        ("\ufeffid,time_s\r\n1,0\r\n2,0.5\r\n\r\n\r\n", [0, 0.5]),
        ('id, time_s\n"a, b",0\n"say ""x""",0.5', [0, 0.5]),
        ("time_s\n2\n1\n", [2, 1]),  # the workload sorts them
        ("time_s\n2024-01-01\n2024-01-01T00:00:01.5", [1704067200, 1704067201.5]),
        ("time_s\n2024-01-01T00:00:00Z\n2024-01-01T02:00:00+01:00", [1704067200, 1704070800]),
        ("time_s\n0001-01-01\n9999-12-31", [-62135596800, 253402214400]),
        ("#id,time_s\n1,2\n", [2]),
        ("time_s,text\n1,a\x0bb\u2028c\n2,d\n", [1, 2]),  # only line ends end a line
    ],
)
def test_times(text: str, times_s: list[float], tmp_path: Path) -> None:
    assert read_trace(_file(tmp_path, text), "time_s").tolist() == times_s


def test_a_date_is_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time  # noqa: TID251 - the zone of this process

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        first, second = read_trace(_file(tmp_path, "time_s\n2024-03-31T00:00\n2024-03-31T06:00"), "time_s")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert second - first == 6 * 3600


@given(st.text(alphabet='0123456789.,"\n\r -:TZ\0a', max_size=80))
def test_any_text_is_times_or_one_message(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """As many times as lines, or `InputError`."""
    path = _file(tmp_path_factory.mktemp("series"), f"time_s\n{text}")
    try:
        found = read_trace(path, "time_s")
    except InputError:
        return
    assert len(found) == len(text.rstrip().replace("\r\n", "\n").replace("\r", "\n").split("\n"))
