"""Run times of ended jobs, and of no others: by user and size, by VC and size ...

A job belongs to a chain of groups, from the narrowest to that of all jobs. Its prediction comes from the narrowest
group with enough ended jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.policies.job_cluster import JobArrived
from kit.errors import InputError
from kit.units import NS_PER_S

ENOUGH: Final = 30
LONGEST_CHAIN: Final = 5  # of groups
_UNKNOWN_NS: Final = 3600 * NS_PER_S  # before anything has ended


def chain_of(job: JobArrived) -> tuple[Hashable, ...]:
    """Return a job's groups, narrowest first; those by user or request only if the job has one."""
    groups: list[Hashable] = []
    if job.user:
        if job.requested_ns is not None:
            groups.append(("user, size, request", job.user, job.gpus, job.requested_ns))
        groups.append(("user, size", job.user, job.gpus))
    return (*groups, ("vc, size", job.vc, job.gpus), ("size", job.gpus), ("all",))


class DurationGroup:
    """Durations of ended jobs, with their number and sum; `number` is its index among the groups."""

    __slots__ = ("_durations_ns", "many", "number", "total_ns")

    def __init__(self, number: int) -> None:
        self.number = number
        self._durations_ns: list[int] = []
        self.many = self.total_ns = 0

    def add(self, duration_ns: int) -> None:
        """Add the duration of an ended job."""
        self._durations_ns.append(duration_ns)
        self.many += 1
        self.total_ns += duration_ns

    @property
    def durations_ns(self) -> list[int]:
        """Ascending durations, sorted on demand, which is fast if few are new."""
        self._durations_ns.sort()
        return self._durations_ns


class DurationHistory:
    """Groups of jobs, and chains of them by number.

    Attributes:
        chains: from the narrowest group to that of all jobs, which all chains share.
    """

    def __init__(self) -> None:
        self.chains: list[tuple[DurationGroup, ...]] = []
        self._numbers: dict[tuple[Hashable, ...], int] = {}
        self._groups: dict[Hashable, DurationGroup] = {}

    def number(self, job: JobArrived) -> int:
        """Return the number of a job's chain of groups."""
        chain = chain_of(job)
        number = self._numbers.get(chain)
        if number is None:
            number = self._numbers[chain] = len(self.chains)
            self.chains.append(tuple(self._groups.setdefault(key, DurationGroup(len(self._groups))) for key in chain))
        return number

    def add(self, number: int, duration_ns: int) -> None:
        """Record that a job of this chain has ended after this much work."""
        for group in self.chains[number]:
            group.add(duration_ns)

    def narrowest(self, number: int) -> DurationGroup:
        """Return the narrowest group of a chain with at least `ENOUGH` ended jobs, or that of all jobs."""
        chain = self.chains[number]
        for group in chain:
            if group.many >= ENOUGH:
                return group
        return chain[-1]

    def mean_ns(self, number: int) -> int:
        """Return the mean duration of that group; an hour before any job has ended."""
        group = self.narrowest(number)
        return group.total_ns // group.many if group.many else _UNKNOWN_NS


# ------------------------------------------------------------------------------------------------------------ estimates
# A policy's estimate of a job's run time: one word in a policy file.
#
# Only `oracle` uses the true run time, which no scheduler has: it is passed separately (`oracle_work_ns`), to nothing
# else.


ORACLE: Final = "oracle"
REQUESTED: Final = "requested"
HISTORY: Final = "history"
ESTIMATES: Final = (ORACLE, "none", REQUESTED, HISTORY)


RuntimeEstimate = Callable[[JobArrived, int], int]
"""A job's work at the reference type in nanoseconds, from its arrival and the number of its chain."""


def _requested_ns(job: JobArrived, _: int) -> int:
    if job.requested_ns is None:
        problem = f"job {job.job} has none: take the estimate `history`, or a trace with requested times"
        raise InputError("trace", "requested_s", problem)
    return job.requested_ns


def estimate_of(name: str, history: DurationHistory, oracle_work_ns: NDArray[np.int64] | None) -> RuntimeEstimate:
    """Return the estimate that a word names: none, the requested time, the mean of the job's group, or the truth."""
    if name == REQUESTED:
        return _requested_ns
    if name == HISTORY:
        return lambda _, group: history.mean_ns(group)
    if name == ORACLE:
        assert oracle_work_ns is not None, "an oracle without the truth"
        return lambda job, _: int(oracle_work_ns[job.job])
    return lambda _, __: 0


# -------------------------------------------------------------------------------------------------------------- gittins
# The Gittins index from past durations (Gittins 1989; with setup times: Hong and Scully 2023, arXiv 2304.13231).
#
# With D the duration, a the attained service and c the cost of resuming,
#
#     G(a) = sup_{x > 0}  P(D - a <= x | D > a) / (c + E[min(D - a, x) | D > a]).
#
# Jobs are served by G / GPUs, largest first; so the index here is GPUs / G, in GPU seconds, smallest first.


POINTS: Final = 60
GROWTH: Final = 1.1  # a table is recomputed when its group has grown by this factor
FEW: Final = 10  # past jobs: if fewer ran this long, a wider group is used; fewer that end soon are not significant
_TAIL, _BODY = 100, 400  # of a larger group, keep each of the longest, and this many samples of the others
_UNKNOWN: Final = 1e12  # of a group without ended jobs
Numbers = NDArray[np.float64]


def inverse_gittins_s(
    durations_s: Numbers, weights: Numbers, attained_s: Numbers, restart_s: float, least: int = 1
) -> Numbers:
    """Return 1 / G(a) in seconds of service for each job that ends, at best.

    From m sorted past durations above a, y_1..y_m: the least of ((m c + sum_{i<=k} (y_i - a) + (m - k)(y_k - a)) / k.
    If none is above a, the remaining time equals the attained time, as in many heavy tails.

    Args:
        durations_s: (samples,) of past jobs, ascending.
        weights: (samples,) number of jobs that each represents.
        attained_s: (points,) values of a.
        restart_s: c.
        least: at least this many samples end by x, or all: the shortest of many gaps is short by chance.
    """
    first = np.searchsorted(durations_s, attained_s, side="right")[:, None]
    counts = np.concatenate([[0.0], np.cumsum(weights)])
    sums = np.concatenate([[0.0], np.cumsum(weights * durations_s)])
    many = counts[-1] - counts[first]
    ended = counts[1:] - counts[first]
    taken = np.arange(1, 1 + len(durations_s)) - first
    above = durations_s - attained_s[:, None]
    cost = many * restart_s + sums[1:] - sums[first] - ended * attained_s[:, None] + (many - ended) * above
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((taken > 0) & (taken >= np.minimum(least, taken[:, -1:])), cost / ended, np.inf)
    best = np.min(ratio, axis=1, initial=np.inf)
    return np.where(np.isfinite(best), best, attained_s + restart_s)


class GittinsTables:
    """Tables of 1 / G at some points for each group of a history, with interpolation between them.

    The points adapt to the group, whether its jobs run for seconds or days: 0, and `POINTS` in geometric progression,
    from the duration that all but a twentieth of its jobs exceed to beyond the longest.

    Attributes:
        version: changes whenever a table does.
    """

    def __init__(self, history: DurationHistory, restart_s: float) -> None:
        self.version = 0
        self._history, self._restart_s = history, restart_s
        self._made_of: list[int] = []  # by group: the number of durations used
        # (3, groups): the first point above 0; the ratio's logarithm; the service above which a wider group is used
        self._scales = np.empty((3, 0))
        self._tables = np.empty((2, 0, 1 + POINTS))  # (2, groups, points), for waiting jobs, and running ones
        self._groups_of = np.empty((0, LONGEST_CHAIN), np.int64)  # (chains, groups) narrowest first

    def hear_of(self, chain: int) -> None:
        """Register a chain when a job of it arrives."""
        for groups in self._history.chains[len(self._groups_of) : chain + 1]:
            for group in groups:
                self._make_room(group.number)
                self._refresh(group)
            numbers = [group.number for group in groups]
            numbers += numbers[-1:] * (LONGEST_CHAIN - len(numbers))
            self._groups_of = np.concatenate([self._groups_of, [numbers]])

    def learn(self, chain: int) -> None:
        """Update after a job of this chain has ended: recompute tables of groups that have grown by a tenth."""
        for group in self._history.chains[chain]:
            if self._refresh(group):
                self.version += 1

    def inverse_s(self, chain: Any, attained_s: Any, is_running: bool) -> Any:
        """Return 1 / G of jobs, in seconds, by the narrowest group with enough jobs, a few of which ran longer."""
        attained_s, groups = np.asarray(attained_s), self._groups_of[chain]
        may = attained_s[..., None] < self._scales[2, groups]
        may[..., -1] = True
        group = np.take_along_axis(groups, may.argmax(-1)[..., None], -1)[..., 0]
        first_s, step = self._scales[:2, group]
        at = attained_s / first_s  # in points
        at = np.where(at < 1, at, 1 + np.log(np.maximum(at, 1)) / step)
        table, point = self._tables[int(is_running)], np.minimum(at.astype(np.int64), POINTS - 1)
        value = table[group, point]
        between = value + np.minimum(at - point, 1.0) * (table[group, point + 1] - value)
        return between + np.maximum(attained_s - first_s * np.exp(step * (POINTS - 1)), 0.0)  # no job ran this long

    def _refresh(self, group: DurationGroup) -> bool:
        """Recompute a group's table if the group has grown; returns whether it was."""
        number, many = group.number, group.many
        was = self._made_of[number]
        if many < max(was * GROWTH, was + 1) and not was < ENOUGH <= many:
            return False
        self._made_of[number] = many
        sample, weights = _sample(group.durations_ns)
        first_s = sample[len(sample) // 20]
        step = np.log(sample[-1] / first_s) / (POINTS - 2) or 1.0
        points_s = np.append(0.0, first_s * np.exp(step * np.arange(POINTS)))
        before_s = points_s * (1 - 1e-9)  # a job that ends at this point has not ended yet
        until_s = group.durations_ns[-FEW] / NS_PER_S if many >= ENOUGH else 0.0
        self._scales[:, number] = first_s, step, until_s
        for which, restart_s in enumerate((self._restart_s, 0.0)):
            self._tables[which, number] = inverse_gittins_s(sample, weights, before_s, restart_s, FEW)
        return True

    def _make_room(self, group: int) -> None:
        for _ in range(len(self._made_of), group + 1):
            self._made_of.append(0)
            self._scales = np.concatenate([self._scales, [[1.0], [1.0], [0.0]]], axis=1)
            self._tables = np.concatenate([self._tables, np.full((2, 1, 1 + POINTS), _UNKNOWN)], axis=1)


def _sample(durations_ns: list[int]) -> tuple[Numbers, Numbers]:
    """Return durations in seconds and their weights; of very many, evenly spaced ones and all of the longest."""
    rest = len(durations_ns) - _TAIL
    if rest <= _BODY:
        return np.array(durations_ns, np.float64) / NS_PER_S, np.ones(len(durations_ns))
    body = [durations_ns[(2 * index + 1) * rest // (2 * _BODY)] for index in range(_BODY)]
    weights = np.concatenate([np.full(_BODY, rest / _BODY), np.ones(_TAIL)])
    return np.array(body + durations_ns[rest:], np.float64) / NS_PER_S, weights
