"""Gavel's programs of shares: against closed forms, and against every corner of the feasible set on small worlds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from jobs.policies.job_orders import Demands, fifo, finish_time, least_jct, max_min

Numbers = NDArray[np.float64]


def demands(
    gpus: list[float],
    speeds: list[list[float]],
    capacity: list[float],
    age_s: list[float] | None = None,
    left_s: list[float] | None = None,
    many: list[float] | None = None,
) -> Demands:
    ones = [1.0] * len(gpus)
    columns = [np.array(each, float) for each in (gpus, speeds, many or ones, capacity, age_s or ones, left_s or ones)]
    return Demands(*columns)


def drawn(seed: int, rows: int = 3) -> Demands:
    rng = np.random.default_rng(seed)
    speeds = rng.uniform(0.2, 3.0, (rows, 2))
    speeds[0, rng.integers(2)] *= rng.integers(2)  # one may use one type alone, now and then
    gpus = rng.choice([1.0, 2.0, 4.0], rows)
    return Demands(
        gpus, speeds, np.ones(rows), rng.choice([4.0, 5.0, 6.0], 2), rng.uniform(0, 50, rows), rng.uniform(1, 99, rows)
    )


def throughput(these: Demands, shares: Numbers) -> Numbers:
    assert (shares >= 0).all()
    assert (shares.sum(1) <= 1 + 1e-6).all()
    assert ((these.many * these.gpus) @ shares <= these.capacity + 1e-6).all()
    assert (shares[these.speeds == 0] == 0).all()
    return np.asarray((these.speeds * shares).sum(1))


def largest(objective: Numbers, matrix: Numbers, limits: Numbers) -> float:
    """Of objective x with matrix x <= limits: the best corner. At a corner as many limits are met as x has numbers."""
    best, unknowns = -np.inf, len(objective)
    for chosen in combinations(range(len(limits)), unknowns):
        part = matrix[list(chosen)]
        if abs(np.linalg.det(part)) > 1e-9:
            corner = np.linalg.solve(part, limits[list(chosen)])
            if (matrix @ corner <= limits + 1e-7).all():
                best = max(best, float(objective @ corner))
    return best


def corners(these: Demands, objective: Numbers, asked: Numbers | None = None) -> float:
    """The best sum of objective x shares; or, with throughputs that are asked, the best level of them."""
    rows, pools = these.speeds.shape
    may = (these.speeds > 0).ravel()
    share = np.kron(np.eye(rows), np.ones(pools))[:, may]
    capacity = np.kron(these.gpus, np.eye(pools))[:, may]
    speeds = (np.kron(np.eye(rows), np.ones(pools)) * these.speeds.ravel())[:, may]
    matrix = np.vstack([share, capacity, -np.eye(may.sum())])
    limits = np.concatenate([np.ones(rows), these.capacity, np.zeros(may.sum())])
    if asked is None:
        return largest(objective.ravel()[may], matrix, limits)
    matrix = np.hstack([matrix, np.zeros((len(matrix), 1))])
    matrix = np.vstack([matrix, np.hstack([-speeds, asked[:, None]])])
    return largest(np.append(np.zeros(may.sum()), 1.0), matrix, np.append(limits, np.zeros(rows)))


def test_jobs_that_are_alike_share_one_type_equally() -> None:
    """Four jobs of one GPU on two: half of the time each. One of two GPUs gets half as long as one of one."""
    assert max_min(demands([1] * 4, [[1.0]] * 4, [2])).ravel() == pytest.approx([0.5] * 4)
    assert max_min(demands([1, 2], [[1.0]] * 2, [2])).ravel() == pytest.approx([1.0, 0.5])
    assert max_min(demands([1, 2, 2], [[1.0]] * 3, [2])).ravel() == pytest.approx([2 / 3, 1 / 3, 1 / 3], rel=1e-5)


def test_jobs_that_are_alike_may_be_one_row() -> None:
    apart = demands([1, 1, 1, 2], [[3, 1], [3, 1], [3, 1], [2, 1]], [2, 2])
    together = demands([1, 2], [[3, 1], [2, 1]], [2, 2], many=[3, 1])
    worse, well = (throughput(each, max_min(each)) / each.equal_speed * each.gpus for each in (apart, together))
    assert worse.min() == pytest.approx(well.min())


def test_finish_times_are_fair_for_jobs_that_are_alike() -> None:
    """Two new jobs on one GPU: half each. One that has waited as long as it takes alone gets more."""
    new = demands([1, 1], [[1.0]] * 2, [1], age_s=[0, 0], left_s=[100, 100])
    assert finish_time(new).ravel() == pytest.approx([0.5, 0.5], rel=1e-3)
    waited = demands([1, 1], [[1.0]] * 2, [1], age_s=[100, 0], left_s=[100, 100])
    first, second = finish_time(waited).ravel().tolist()
    assert (100 + 100 / first) / (100 + 200) == pytest.approx((100 / second) / 200, rel=3e-3)
    assert first + second == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_max_min_is_the_best_of_all_corners(seed: int) -> None:
    these = drawn(seed)
    asked = these.equal_speed / these.gpus
    reached = (throughput(these, max_min(these)) / asked).min()
    assert reached == pytest.approx(corners(these, these.speeds, asked), rel=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_the_other_sums_are_the_best_of_all_corners(seed: int) -> None:
    these = drawn(seed)
    rank = np.argsort(np.argsort(-these.age_s))
    cases: list[tuple[Callable[[Demands], Numbers], Numbers]] = [
        (fifo, (3 - rank) * these.gpus / these.speeds.max(1)),
        (least_jct, 1 / these.left_s),
    ]
    for shares, weight in cases:
        value = (throughput(these, shares(these)) * weight).sum()
        assert value == pytest.approx(corners(these, these.speeds * weight[:, None]), rel=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_no_shares_have_fairer_finish_times(seed: int) -> None:
    """By corners: what a ratio 1 % smaller asks of all can't be had."""
    these = drawn(seed)
    share = np.minimum(these.capacity.sum() / len(these.gpus) / these.gpus, 1.0)
    alone_s = these.age_s + these.left_s / (these.equal_speed * share)
    ratio = ((these.age_s + these.left_s / throughput(these, finish_time(these))) / alone_s).max()
    left_s = 0.99 * ratio * alone_s - these.age_s
    assert (left_s <= 0).any() or corners(these, these.speeds, these.left_s / left_s) < 1
    assert corners(these, these.speeds, these.left_s / (ratio * alone_s - these.age_s)) > 1 - 1e-5
