"""The bound is below the best of all schedules of small worlds, near to it, and below every policy."""

from __future__ import annotations

from functools import cache
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.policies.job_cluster import NodeGroup
from jobs.wait_bound import BoundProblem, lower_bound
from tests.jobs.sim.cluster_models import jobs, one_pool, run

Row = tuple[int, int, int]  # release, run, GPUs
ROWS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=6)
GPUS = 3


def problem_of(rows: list[Row]) -> BoundProblem:
    release_s, run_s, gpus = zip(*rows, strict=True)
    return one_pool(release_s, run_s, gpus, of=GPUS)


def best_without_preemption(rows: list[Row], gpus: int) -> int:
    """Over all orders: each job starts as soon as it fits for its whole run beside those before it in the order."""
    horizon = max(row[0] for row in rows) + sum(row[1] for row in rows)
    best = 10**9
    for order in permutations(rows):
        free, total = [gpus] * (horizon + 1), 0
        for release, ran, wanted in order:
            start = release
            while min(free[start : start + ran]) < wanted:
                start += 1
            for time in range(start, start + ran):
                free[time] -= wanted
            total += start + ran - release
        best = min(best, total)
    return best


def best_with_preemption(rows: list[Row], gpus: int) -> int:
    """Over all choices of who runs in each whole second: at least the best of all."""

    @cache
    def cost(now: int, left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        able = [job for job, (release, _, _) in enumerate(rows) if release <= now and left[job]]
        here = len(able)
        best = 10**9
        for mask in range(1 << len(able)):
            chosen = [job for place, job in enumerate(able) if mask >> place & 1]
            if sum(rows[job][2] for job in chosen) <= gpus and (chosen or not able):
                after = tuple(n - (job in chosen) for job, n in enumerate(left))
                best = min(best, here + cost(now + 1, after))
        return best

    return cost(0, tuple(row[1] for row in rows))


@settings(max_examples=30)
@given(rows=ROWS)
def test_the_bound_is_below_the_best_schedule_and_that_below_every_policy(rows: list[Row]) -> None:
    problem = problem_of(rows)
    best = best_without_preemption(rows, GPUS)
    bound = lower_bound(problem, passes=150, cell_s=1.0)
    assert bound.total_s <= best + 1e-6
    assert bound.total_s >= sum(row[1] for row in rows) - 1e-6  # what it is without prices
    for policy in ("fifo", "sjf-oracle", "saf-oracle-strict", "fifo-easy-oracle"):
        assert best <= run(policy, jobs(*rows), groups=(NodeGroup(1, GPUS),)).jct_s.sum() + 1e-6


@settings(max_examples=20)
@given(rows=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=5))
def test_the_preemptive_bound_is_below_the_best_schedule_with_preemption(rows: list[Row]) -> None:
    problem = problem_of(rows)
    best = best_with_preemption(rows, GPUS)
    bound = lower_bound(problem, is_preemptive=True, passes=150, cell_s=1.0)
    assert bound.total_s <= best + 1e-6
    assert best <= best_without_preemption(rows, GPUS)
    assert best <= run("srtf-oracle", jobs(*rows), groups=(NodeGroup(1, GPUS),)).jct_s.sum() + 1e-6


def test_the_bounds_are_near_the_best_schedules() -> None:
    """In the median of drawn worlds, whose jobs are large beside the cluster: what no prices can close."""
    rng = np.random.default_rng(0)
    shares, preemptive = [], []
    for _ in range(60):
        rows = [(int(rng.integers(0, 5)), int(rng.integers(1, 5)), int(rng.integers(1, 4))) for _ in range(5)]
        problem = problem_of(rows)
        best, best_preemptive = best_without_preemption(rows, GPUS), best_with_preemption(rows, GPUS)
        shares.append(lower_bound(problem, passes=200, cell_s=1.0).total_s / best)
        preemptive.append(lower_bound(problem, True, passes=200, cell_s=1.0).total_s / best_preemptive)
    assert np.median(shares) >= 0.9
    assert np.median(preemptive) >= 0.82
    assert max(shares) <= 1 + 1e-9
    assert max(preemptive) <= 1 + 1e-9


@pytest.mark.parametrize("is_preemptive", [False, True])
def test_a_late_burst_has_its_prices(is_preemptive: bool) -> None:
    """A job at 0 h, 100 of 1 h at 100 h, one GPU: best one after another, 49.0 h on average."""
    hours = one_pool([0.0] + [100.0] * 100, np.ones(101), np.ones(101), of=1)
    bound = lower_bound(hours, is_preemptive, cell_s=1.0)
    assert 40 <= bound.total_s / 101 - 1 <= sum(range(100)) / 101
