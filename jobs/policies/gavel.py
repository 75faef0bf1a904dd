"""Gavel's linear programmes: which share of the time each job gets on each type (Narayanan et al., OSDI'20, section 4).

With X[m, k] the share of job m in pool k, s its speed there, z its GPUs, and throughput(m) = sum_k s[m, k] X[m, k]:

    X >= 0;   sum_k X[m, k] <= 1;   sum_m z[m] X[m, k] <= GPUs of k

    gavel-max-min      largest min_m  z throughput(m) / (speed of m on an equal share of all types)
    gavel-blind        the same with all speeds taken to be 1
    gavel-finish-time  least max_m  (age + left / throughput(m)) / (age + left / throughput of m on 1/M of all GPUs)
    gavel-fifo         largest sum_m (M - m)  z throughput(m) / speed on the fastest type, m in the order of submission
    gavel-least-jct    largest sum_m throughput(m) / left: the sum of what is done of each job's rest a second

The last is ours. In the others, z is where Gavel's code has it and its paper leaves it out. Where the least or the
largest of many is found, most shares are still open: of those that reach it, that with the largest sum of normalised
throughputs is taken. A pool is a type of GPU in one VC; a job that may not use a pool has no share there, and its
equal share is one of those that it may use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Demands:
    """Jobs that compete for pools. Those that are alike in all that an objective asks may be one row.

    Attributes:
        gpus: (rows,) of each job.
        speeds: (rows, pools) 0 where it may not run.
        many: (rows,) how many jobs a row stands for.
        capacity: (pools,) GPUs.
        age_s, left_s: (rows,) since submission; work that is left, at the reference type. Used where it is asked.
    """

    gpus: Numbers
    speeds: Numbers
    many: Numbers
    capacity: Numbers
    age_s: Numbers
    left_s: Numbers

    def rows(self, which: NDArray[np.bool_]) -> Demands:
        """Some of them."""
        gpus, speeds, many = self.gpus[which], self.speeds[which], self.many[which]
        return Demands(gpus, speeds, many, self.capacity, self.age_s[which], self.left_s[which])

    @property
    def equal_speed(self) -> Numbers:
        """(rows,) Speed on an equal share of all the GPUs that it may use."""
        may = self.speeds > 0
        return np.asarray((self.speeds * self.capacity).sum(1) / np.maximum((may * self.capacity).sum(1), 1e-300))


class _Programme:
    """The constraints that all objectives share; the variables are X where a job may run, and one more (`level`)."""

    def __init__(self, demands: Demands) -> None:
        from scipy import sparse

        self.demands = demands
        self.rows, self.pools = (demands.speeds > 0).nonzero()
        self.speeds = demands.speeds[self.rows, self.pools]
        self.variables = len(self.rows)
        many, numbers = len(demands.gpus), np.arange(self.variables)
        shape = (many, self.variables + 1)
        used = demands.many[self.rows] * demands.gpus[self.rows]
        self.share = sparse.csr_array((np.ones(self.variables), (self.rows, numbers)), shape=shape)
        pools = (len(demands.capacity), self.variables + 1)
        self.capacity = sparse.csr_array((used, (self.pools, numbers)), shape=pools)
        self.throughput = sparse.csr_array((self.speeds, (self.rows, numbers)), shape=shape)

    def level(self, per_level: Numbers) -> tuple[float, Numbers]:
        """The largest level with throughput(m) >= level x per_level(m) for all, and the throughputs there."""
        objective = np.zeros(self.variables + 1)
        objective[-1] = -1.0
        values = self._solve(objective, per_level, None)
        return float(values[-1]), np.asarray(self.throughput @ values)

    def best(self, normal: Numbers, per_level: Numbers | None = None, level: float = 0.0) -> Numbers:
        """(rows, pools) The shares with the largest sum of throughput(m) / normal(m) that keep a level."""
        weights = (self.demands.many / normal)[self.rows] * self.speeds
        objective = np.append(-weights / float(weights.max()), 0.0)
        values = self._solve(objective, per_level, level * (1 - 1e-7))
        shares = np.zeros(self.demands.speeds.shape)
        shares[self.rows, self.pools] = np.clip(values[:-1], 0.0, 1.0)
        return shares

    def _solve(self, objective: Numbers, per_level: Numbers | None, level: float | None) -> Numbers:
        from scipy import sparse
        from scipy.optimize import linprog

        demands = self.demands
        blocks, limits = [self.share, self.capacity], [np.ones(len(demands.gpus)), demands.capacity]
        if per_level is not None:
            places = np.arange(len(per_level)), np.full(len(per_level), self.variables)
            blocks.append(sparse.csr_array((per_level, places), shape=self.throughput.shape) - self.throughput)
            limits.append(np.zeros(len(per_level)))
        last = (0.0, None) if level is None else (level, level)
        bounds = [(0.0, None)] * self.variables + [last]
        found = linprog(objective, sparse.vstack(blocks), np.concatenate(limits), bounds=bounds, method="highs")
        assert found.x is not None, f"a programme of shares has a solution: {found.message}"
        return np.asarray(found.x)


def max_min(demands: Demands) -> Numbers:
    """(rows, pools) Shares by max-min fairness."""
    programme, per_level = _Programme(demands), demands.equal_speed / demands.gpus
    return programme.best(demands.equal_speed, per_level, programme.level(per_level)[0])


def finish_time(demands: Demands, exactness: float = 1e-3) -> Numbers:
    """(rows, pools) Shares by finish-time fairness: the least of the largest ratios, to so much of it.

    A ratio asks a throughput of each job, so that it is found by bisection.
    """
    programme, share = _Programme(demands), np.minimum(demands.capacity.sum() / demands.many.sum() / demands.gpus, 1.0)
    age_s, left_s = demands.age_s, np.maximum(demands.left_s, 1.0)
    alone_s = age_s + left_s / (demands.equal_speed * share)

    def reached(throughput: Numbers) -> float:
        return float(((age_s + left_s / throughput) / alone_s).max())

    low = float((age_s / alone_s).max())  # below it, a job would have ended before now
    high = reached(programme.level(left_s / alone_s)[1])
    while high - low > exactness * high:
        middle = (low + high) / 2
        level, throughput = programme.level(left_s / (middle * alone_s - age_s))
        low, high = (middle, high) if level < 1 else (low, min(middle, reached(throughput)))
    return programme.best(demands.equal_speed, left_s / (high * alone_s - age_s), 1.0)


def fifo(demands: Demands) -> Numbers:
    """(rows, pools) Shares in the order of submission: the oldest first, each where it runs fastest."""
    place = np.argsort(np.argsort(-demands.age_s, kind="stable"))
    weight = (len(place) - place) * demands.gpus / demands.speeds.max(1)
    return _Programme(demands).best(1 / weight)


def least_jct(demands: Demands) -> Numbers:
    """(rows, pools) Shares by what is done of each job's rest a second."""
    return _Programme(demands).best(np.maximum(demands.left_s, 1.0))


@dataclass(frozen=True, slots=True)
class Objective:
    """One way to share.

    Attributes:
        shares: of a table of demands.
        is_by_job: whether it asks more of a job than its GPUs and speeds; else jobs that are alike are one row.
        is_blind: whether all speeds are taken to be 1.
        needs_estimate: whether it asks how long jobs run.
    """

    shares: Callable[[Demands], Numbers]
    is_by_job: bool = False
    is_blind: bool = False
    needs_estimate: bool = False


OBJECTIVES: Final[Mapping[str, Objective]] = {
    "gavel-max-min": Objective(max_min),
    "gavel-blind": Objective(max_min, is_blind=True),
    "gavel-finish-time": Objective(finish_time, is_by_job=True, needs_estimate=True),
    "gavel-fifo": Objective(fifo, is_by_job=True),
    "gavel-least-jct": Objective(least_jct, is_by_job=True, needs_estimate=True),
}
