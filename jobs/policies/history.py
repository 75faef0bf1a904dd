"""How long jobs ran that have ended: by user and size, by VC and size ..., and nothing of those that have not.

A job belongs to a chain of groups, from the narrowest to that of all jobs. What is foretold of it comes from the
narrowest that has seen enough.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.policies.cluster import JobArrived
from kit.errors import InputError
from kit.units import NS_PER_S

ENOUGH: Final = 30
LONGEST_CHAIN: Final = 5  # of groups
_UNKNOWN_NS: Final = 3600 * NS_PER_S  # before anything has ended


def chain_of(job: JobArrived) -> tuple[Hashable, ...]:
    """Its groups, narrowest first; the user's only where there is a user, the request's where there is a request."""
    named: list[Hashable] = []
    if job.user:
        if job.requested_ns is not None:
            named.append(("user, size, request", job.user, job.gpus, job.requested_ns))
        named.append(("user, size", job.user, job.gpus))
    return (*named, ("vc, size", job.vc, job.gpus), ("size", job.gpus), ("all",))


class DurationGroup:
    """Durations of ended jobs, with their number and sum; `number` is its place among the groups."""

    __slots__ = ("_durations_ns", "many", "number", "total_ns")

    def __init__(self, number: int) -> None:
        self.number = number
        self._durations_ns: list[int] = []
        self.many = self.total_ns = 0

    def add(self, duration_ns: int) -> None:
        """One job more has ended."""
        self._durations_ns.append(duration_ns)
        self.many += 1
        self.total_ns += duration_ns

    @property
    def durations_ns(self) -> list[int]:
        """Ascending. They are put in order when they are asked for, which takes little where few are new."""
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
        """The number of a job's chain of groups."""
        chain = chain_of(job)
        number = self._numbers.get(chain)
        if number is None:
            number = self._numbers[chain] = len(self.chains)
            self.chains.append(tuple(self._groups.setdefault(key, DurationGroup(len(self._groups))) for key in chain))
        return number

    def add(self, number: int, duration_ns: int) -> None:
        """A job of this chain has ended, after so much work."""
        for group in self.chains[number]:
            group.add(duration_ns)

    def narrowest(self, number: int) -> DurationGroup:
        """The narrowest group of a chain that has seen `ENOUGH`; that of all jobs, where none has."""
        chain = self.chains[number]
        for group in chain:
            if group.many >= ENOUGH:
                return group
        return chain[-1]

    def mean_ns(self, number: int) -> int:
        """The mean duration there; an hour before anything has ended."""
        group = self.narrowest(number)
        return group.total_ns // group.many if group.many else _UNKNOWN_NS


# ------------------------------------------------------------------------------------------------------------ estimates
# How long a job will run, as a policy may know it: a word in a policy file.
#
# `oracle` alone knows the truth, which no scheduler has: it is given apart (`oracle_work_ns`), and to nobody else.


ORACLE: Final = "oracle"
REQUESTED: Final = "requested"
HISTORY: Final = "history"
ESTIMATES: Final = (ORACLE, "none", REQUESTED, HISTORY)


RuntimeEstimate = Callable[[JobArrived, int], int]
"""How much work a job has at the reference type, in nanoseconds: of its arrival, and the number of its chain."""


def _requested_ns(job: JobArrived, _: int) -> int:
    if job.requested_ns is None:
        problem = f"job {job.job} has none: take the estimate `history`, or a trace with requested times"
        raise InputError("trace", "requested_s", problem)
    return job.requested_ns


def estimate_of(word: str, history: DurationHistory, oracle_work_ns: NDArray[np.int64] | None) -> RuntimeEstimate:
    """What a word names: nothing, the time that the user asked for, the mean of the job's group, or the truth."""
    if word == REQUESTED:
        return _requested_ns
    if word == HISTORY:
        return lambda _, group: history.mean_ns(group)
    if word == ORACLE:
        assert oracle_work_ns is not None, "an oracle without the truth"
        return lambda job, _: int(oracle_work_ns[job.job])
    return lambda _, __: 0


# -------------------------------------------------------------------------------------------------------------- gittins
# The Gittins index from past durations (Gittins 1989; with setup times: Hong and Scully 2023, arXiv 2304.13231).
#
# With D the duration, a the attained service and c what it costs to go on,
#
#     G(a) = sup_{x > 0}  P(D - a <= x | D > a) / (c + E[min(D - a, x) | D > a]).
#
# Jobs are served by G / GPUs, largest first; so the index here is GPUs / G, in GPU seconds, smallest first.


POINTS: Final = 60
GROWTH: Final = 1.1  # a table is made anew when its group has grown so much
FEW: Final = 10  # of past jobs: where fewer ran so long, a wider group is asked; fewer that end soon are chance
_TAIL, _BODY = 100, 400  # of a group with more, the longest are kept each, and so many of the others stand for all
_UNKNOWN: Final = 1e12  # of a group that has seen nothing
Numbers = NDArray[np.float64]


def inverse_gittins_s(
    durations_s: Numbers, weights: Numbers, attained_s: Numbers, restart_s: float, least: int = 1
) -> Numbers:
    """1 / G(a) in seconds of service for each job that ends, at best.

    From m sorted past durations above a, y_1..y_m: the least of ((m c + sum_{i<=k} (y_i - a) + (m - k)(y_k - a)) / k.
    Where none is above a, as many heavy tails have it: what is left is as long as what is over.

    Args:
        durations_s: (samples,) of past jobs, ascending.
        weights: (samples,) how many jobs each stands for.
        attained_s: (points,) values of a.
        restart_s: c.
        least: so many samples end by x, or all: the shortest of many gaps is short by chance.
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
    """1 / G at some points for each group of a history, and between them by interpolation.

    The points are a group's own, whether its jobs run for seconds or days: 0, and `POINTS` in one ratio, from what all
    but a twentieth of its jobs ran for to beyond the longest.

    Attributes:
        version: changes whenever a table does.
    """

    def __init__(self, history: DurationHistory, restart_s: float) -> None:
        self.version = 0
        self._history, self._restart_s = history, restart_s
        self._made_of: list[int] = []  # by group: of how many durations
        # (3, groups): the first point above 0; the logarithm of the ratio; who has attained more asks a wider group
        self._scales = np.empty((3, 0))
        self._tables = np.empty((2, 0, 1 + POINTS))  # (2, groups, points), for those that wait, and that run
        self._groups_of = np.empty((0, LONGEST_CHAIN), np.int64)  # (chains, groups) narrowest first

    def hear_of(self, chain: int) -> None:
        """A job of this chain has arrived."""
        for groups in self._history.chains[len(self._groups_of) : chain + 1]:
            for group in groups:
                self._make_room(group.number)
                self._refresh(group)
            numbers = [group.number for group in groups]
            numbers += numbers[-1:] * (LONGEST_CHAIN - len(numbers))
            self._groups_of = np.concatenate([self._groups_of, [numbers]])

    def learn(self, chain: int) -> None:
        """A job of this chain has ended: tables of groups that have grown by a tenth are made anew."""
        for group in self._history.chains[chain]:
            if self._refresh(group):
                self.version += 1

    def inverse_s(self, chain: Any, attained_s: Any, is_running: bool) -> Any:
        """1 / G of jobs, in seconds: by the narrowest group that has seen enough jobs, and a few of them run longer."""
        attained_s, groups = np.asarray(attained_s), self._groups_of[chain]
        may = attained_s[..., None] < self._scales[2, groups]
        may[..., -1] = True
        group = np.take_along_axis(groups, may.argmax(-1)[..., None], -1)[..., 0]
        first_s, step = self._scales[:2, group]
        at = attained_s / first_s  # in points
        at = np.where(at < 1, at, 1 + np.log(np.maximum(at, 1)) / step)
        table, point = self._tables[int(is_running)], np.minimum(at.astype(np.int64), POINTS - 1)
        here = table[group, point]
        between = here + np.minimum(at - point, 1.0) * (table[group, point + 1] - here)
        return between + np.maximum(attained_s - first_s * np.exp(step * (POINTS - 1)), 0.0)  # nobody ran so long

    def _refresh(self, group: DurationGroup) -> bool:
        """Make a group's table anew where it has grown: whether it was."""
        number, many = group.number, group.many
        was = self._made_of[number]
        if many < max(was * GROWTH, was + 1) and not was < ENOUGH <= many:
            return False
        self._made_of[number] = many
        sample, weights = _sample(group.durations_ns)
        first_s = sample[len(sample) // 20]
        step = np.log(sample[-1] / first_s) / (POINTS - 2) or 1.0
        points_s = np.append(0.0, first_s * np.exp(step * np.arange(POINTS)))
        before_s = points_s * (1 - 1e-9)  # who ends there is about to
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
    """Durations in seconds, and how many each stands for; of very many, evenly spaced ones and all of the longest."""
    rest = len(durations_ns) - _TAIL
    if rest <= _BODY:
        return np.array(durations_ns, np.float64) / NS_PER_S, np.ones(len(durations_ns))
    body = [durations_ns[(2 * place + 1) * rest // (2 * _BODY)] for place in range(_BODY)]
    weights = np.concatenate([np.full(_BODY, rest / _BODY), np.ones(_TAIL)])
    return np.array(body + durations_ns[rest:], np.float64) / NS_PER_S, weights
