"""Time of a linear program of Gavel's, for jobs that all differ, on three types; run with `make bench`."""

from __future__ import annotations

import time  # noqa: TID251 - a benchmark measures CPU time
from typing import Any

import numpy as np
import pytest

from benchmarks.speed.conftest import Figures
from jobs.policies.job_orders import Demands, fifo, finish_time, least_jct, max_min

TITLE = "Gavel's shares: milliseconds a program (best of three)"
HEAD = ("objective", "jobs", "ms", "CPU ms")


def demands(many: int) -> Demands:
    rng = np.random.default_rng(0)
    speeds = np.stack([np.ones(many), rng.uniform(0.3, 1, many), rng.uniform(0.1, 0.5, many)], 1)
    gpus, capacity = rng.choice([1.0, 1.0, 1.0, 2.0, 4.0, 8.0], many), np.full(3, many / 8)
    return Demands(gpus, speeds, np.ones(many), capacity, rng.uniform(0, 1e5, many), rng.exponential(1e4, many))


@pytest.mark.parametrize("many", [100, 300, 1000, 2000])
@pytest.mark.parametrize("objective", [max_min, fifo, least_jct, finish_time])
def test_shares(benchmark: Any, figures: Figures, objective: Any, many: int) -> None:
    these = demands(many)
    seconds: list[tuple[float, float]] = []

    def once() -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        objective(these)
        seconds.append((time.perf_counter() - wall, time.process_time() - cpu))

    benchmark.pedantic(once, rounds=3, iterations=1, warmup_rounds=1)
    wall_s, cpu_s = (min(each) for each in zip(*seconds, strict=True))
    figures.append((objective.__name__, many, f"{1e3 * wall_s:.0f}", f"{1e3 * cpu_s:.0f}"))
