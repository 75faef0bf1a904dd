"""Import speed of a cluster's log as a trace: rows a second, on one core, from file to file; run with `make bench`."""

from __future__ import annotations

import time  # noqa: TID251 - a benchmark measures CPU time
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from benchmarks.speed.conftest import Figures
from jobs.job_traces import predictions, read_trace
from jobs.logs.log_formats import FORMATS
from jobs.logs.log_import import import_log
from jobs.logs.log_rows import Options
from tests.jobs.logs import drawn, write_log

TITLE = "a log of training jobs as a trace: rows a second (best of three)"
HEAD = ("format", "rows", "MB", "rows/s", "rows/CPU-s", "MB/s")
JOBS = 300_000


@pytest.fixture(scope="module", autouse=True)
def one_core() -> Any:
    """Disable Arrow's threads, which would use further cores."""
    before = pyarrow.cpu_count()
    pyarrow.set_cpu_count(1)
    yield
    pyarrow.set_cpu_count(before)


@pytest.mark.parametrize("name", FORMATS)
def test_import(benchmark: Any, figures: Figures, tmp_path: Path, name: str) -> None:
    jobs = drawn(JOBS)
    path, out = write_log(tmp_path, name, jobs), tmp_path / "trace.parquet"
    options = Options(tasks=tmp_path / "tasks.csv") if name == "alibaba-pai" else Options()
    seconds: list[tuple[float, float]] = []

    def once() -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        import_log(path, out, name, options)
        seconds.append((time.perf_counter() - wall, time.process_time() - cpu))

    benchmark.pedantic(once, rounds=3, iterations=1)
    assert len(read_trace(out)) == JOBS
    wall_s, cpu_s = (min(each) for each in zip(*seconds, strict=True))
    megabytes = path.stat().st_size / 1e6
    figures.append(
        (name, JOBS, f"{megabytes:.0f}", round(JOBS / wall_s), round(JOBS / cpu_s), f"{megabytes / wall_s:.0f}")
    )


def test_predict(benchmark: Any, tmp_path: Path) -> None:
    """Measure jobs a second that are predicted from jobs that had ended."""
    out = tmp_path / "trace.parquet"
    import_log(write_log(tmp_path, "sacct", drawn(50_000)), out)
    trace = read_trace(out)
    benchmark.pedantic(lambda: predictions(trace), rounds=3, iterations=1)
    benchmark.extra_info["jobs_per_s"] = round(len(trace) / benchmark.stats.stats.min)
