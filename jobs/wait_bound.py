"""Lower bound of waits under any scheduler: a Lagrangian bound of the time-indexed problem of gangs on pools.

A schedule never uses more GPUs than a pool has. The relaxation gives each GPU second of pool k at time t a price
lambda_k(t) >= 0. For any prices, and so for the best,

    sum_j (C_j - r_j)  >=  sum_j min over k and starts s >= r_j of [s - r_j + p_jk + g_j int_s^(s + p_jk) lambda_k dt]
                           - sum_k M_k int lambda_k dt,

with r release, p run time, g GPUs, M a pool's GPUs. It holds even for clairvoyant schedulers, without preemption. If
jobs may be stopped and resumed (at no cost), C_j is at least the mean time of its service plus p / 2, so the bracket
becomes the least over sets A of length p after r_j of

    (1 / p) int_A t dt + p / 2 - r_j + g_j int_A lambda dt.

Nodes are ignored: only GPUs count. Prices are constant on cells of time and 0 after the last; subgradient steps with
Polyak's length make the bound grow. The prices are the value of a GPU second over time, in seconds of waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kit.jit import entry, kernel

Numbers = NDArray[np.float64]
_HALVINGS: Final = 40


@dataclass(frozen=True, slots=True, eq=False)
class BoundProblem:
    """Jobs and pools of a bound.

    Attributes:
        release_s: (n,) submission times.
        gpus: (n,) GPUs that each needs.
        run_s: (n, pools) run time by pool; infinite if it may not run there, or does not fit. At least one is finite.
        pool_gpus: (pools,) GPUs of each.
    """

    release_s: Numbers
    gpus: Numbers
    run_s: Numbers
    pool_gpus: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class WaitBound:
    """A bound that no scheduler undercuts.

    Attributes:
        total_s: sum of completion times after submission.
        prices: (pools, cells) price of a GPU second, in seconds of completion time.
        cell_s: length of a cell; the first begins at `begins_s`.
    """

    total_s: float
    prices: Numbers
    cell_s: float
    begins_s: float


def lower_bound(
    problem: BoundProblem, is_preemptive: bool = False, passes: int = 600, cell_s: float = 3600.0
) -> WaitBound:
    """Return the best bound of `passes` subgradient steps, each towards slightly more than the best so far."""
    begins_s = float(problem.release_s.min())
    release_s = problem.release_s - begins_s
    shortest_s = problem.run_s.min(axis=1)
    least_s = float(shortest_s.sum())
    cells = max(int(np.ceil(_busy_until_s(problem, release_s, shortest_s) / cell_s)), 1)
    prices = np.zeros((len(problem.pool_gpus), cells))
    best_s = -np.inf
    best_prices = prices
    ahead = 1.0
    stuck = 0
    price_of = problem.pool_gpus[:, None] * cell_s
    for _ in range(passes):
        used = np.zeros_like(prices)
        value_s = _value(release_s, problem.gpus, problem.run_s, prices, cell_s, used, is_preemptive)
        value_s -= float((prices * price_of).sum())
        if value_s > best_s:
            best_s = value_s
            best_prices = prices
            stuck = 0
        else:
            stuck += 1
            if stuck == 10:
                ahead /= 2
                stuck = 0
                prices = best_prices
        slope = used - price_of
        slope[(prices <= 0) & (slope < 0)] = 0.0
        square = float((slope**2).sum())
        if square == 0:
            break
        target_s = best_s + ahead * max(best_s - least_s, 0.05 * least_s)
        prices = np.maximum(prices + (target_s - value_s) / square * slope, 0.0)
    return WaitBound(best_s, best_prices, cell_s, begins_s)


def _busy_until_s(problem: BoundProblem, release_s: Numbers, shortest_s: Numbers) -> float:
    """Return when always busy GPUs would have done all work, plus the longest job after that."""
    order = np.argsort(release_s)
    work_s = (shortest_s * problem.gpus)[order] / problem.pool_gpus.sum()
    still_s = np.cumsum(work_s[::-1])[::-1]  # work of all jobs submitted from each one on
    return float((release_s[order] + still_s).max() + shortest_s.max())


# ----------------------------------------------------------------------------------------------------------- kernels


@entry
def _value(
    release_s: Numbers,
    gpus: Numbers,
    run_s: Numbers,
    prices: Numbers,
    cell_s: float,
    used: Numbers,
    is_preemptive: bool,
) -> float:
    """Sum over jobs the least bracket; `used` (pools, cells) receives the GPU seconds of the minimizers."""
    pools, cells = prices.shape
    paid = np.zeros((pools, cells + 1))  # a GPU's price from the beginning
    for pool in range(pools):
        for cell in range(cells):
            paid[pool, cell + 1] = paid[pool, cell] + prices[pool, cell] * cell_s
    total = 0.0
    for job in range(len(release_s)):
        least = np.inf
        best = 0
        best_at = 0.0
        for pool in range(pools):
            run = run_s[job, pool]
            if run < least:  # a bracket is at least the run time
                if is_preemptive:
                    level, value = _best_level(release_s[job], run, gpus[job], prices[pool], cell_s)
                else:
                    level, value = _best_start(release_s[job], run, gpus[job], prices[pool], paid[pool], cell_s)
                if value < least:
                    least = value
                    best = pool
                    best_at = level
        total += least
        if is_preemptive:
            _use_below(release_s[job], run_s[job, best], gpus[job], prices[best], cell_s, best_at, used[best])
        else:
            _use(best_at, best_at + run_s[job, best], gpus[job], cell_s, used[best])
    return total


@kernel
def _paid_until(at_s: float, prices: Numbers, paid: Numbers, cell_s: float) -> float:
    cells = len(prices)
    cell = int(at_s / cell_s)
    if cell >= cells:
        return float(paid[cells])
    return float(paid[cell] + prices[cell] * (at_s - cell * cell_s))


@kernel
def _best_start(
    release: float, run: float, gpus: float, prices: Numbers, paid: Numbers, cell_s: float
) -> tuple[float, float]:
    """Return the cheapest start and its bracket: at the release, a cell's begin, or so as to end at a cell's end."""
    cells = len(prices)
    price = _paid_until(release + run, prices, paid, cell_s) - _paid_until(release, prices, paid, cell_s)
    best_start, best = release, run + gpus * price
    cell = int(release / cell_s) + 1
    while cell <= cells and cell * cell_s - release + run < best:
        start = cell * cell_s
        price = _paid_until(start + run, prices, paid, cell_s) - paid[cell]
        if start - release + run + gpus * price < best:
            best_start, best = start, start - release + run + gpus * price
        cell += 1
    cell = int((release + run) / cell_s) + 1
    while cell <= cells and cell * cell_s - release < best:
        start = cell * cell_s - run
        price = paid[cell] - _paid_until(start, prices, paid, cell_s)
        if cell * cell_s - release + gpus * price < best:
            best_start, best = start, cell * cell_s - release + gpus * price
        cell += 1
    return best_start, best


@kernel
def _use(start: float, end: float, gpus: float, cell_s: float, used: Numbers) -> None:
    cell = int(start / cell_s)
    while cell < len(used) and cell * cell_s < end:
        used[cell] += gpus * (min(end, (cell + 1) * cell_s) - max(start, cell * cell_s))
        cell += 1


@kernel
def _below(
    release: float, run: float, gpus: float, prices: Numbers, cell_s: float, level: float
) -> tuple[float, float]:
    """Return the total time after the release with t / p + g lambda(t) at most `level`, and its depth below."""
    cells = len(prices)
    cell = int(release / cell_s)
    measure, depth = 0.0, 0.0
    while True:
        begin = max(release, cell * cell_s)
        if begin / run > level:
            return measure, depth
        price = gpus * prices[cell] if cell < cells else 0.0
        end = run * (level - price)
        if cell < cells:
            end = min(end, (cell + 1) * cell_s)
        if end > begin:
            measure += end - begin
            depth += (level - price) * (end - begin) - (end * end - begin * begin) / (2 * run)
        if cell >= cells:
            return measure, depth
        cell += 1


@kernel
def _best_level(release: float, run: float, gpus: float, prices: Numbers, cell_s: float) -> tuple[float, float]:
    """Return the level below which a job's run time is reached, and its bracket.

    For any level the bracket is at least `run * level - depth` (duality): the bisection's error is on the safe side.
    """
    low = (release + run) / run
    high = low
    step = 1.0
    while _below(release, run, gpus, prices, cell_s, high)[0] < run:
        low = high
        high += step
        step *= 2
    for _ in range(_HALVINGS):
        level = 0.5 * (low + high)
        if _below(release, run, gpus, prices, cell_s, level)[0] < run:
            low = level
        else:
            high = level
        if high - low <= 1e-12 * high:
            break
    depth = _below(release, run, gpus, prices, cell_s, high)[1]
    return high, run * high - depth + run / 2 - release


@kernel
def _use_below(
    release: float, run: float, gpus: float, prices: Numbers, cell_s: float, level: float, used: Numbers
) -> None:
    cells = len(prices)
    cell = int(release / cell_s)
    while cell < cells and max(release, cell * cell_s) / run <= level:
        begin = max(release, cell * cell_s)
        end = min((cell + 1) * cell_s, run * (level - gpus * prices[cell]))
        if end > begin:
            used[cell] += gpus * (end - begin)
        cell += 1
