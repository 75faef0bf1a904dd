"""The Gittins index from past durations (Gittins 1989; with setup times: Hong and Scully 2023, arXiv 2304.13231).

With D the duration, a the attained service and c what it costs to go on,

    G(a) = sup_{x > 0}  P(D - a <= x | D > a) / (c + E[min(D - a, x) | D > a]).

Jobs are served by G / GPUs, largest first; so the index here is GPUs / G, in GPU seconds, smallest first.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from policies.jobs.history import ENOUGH, Group, History
from policies.vocabulary import NS_PER_S

POINTS_S: Final = np.concatenate([[0.0], np.geomspace(30.0, 58 * 86400.0, 60)])
GROWTH: Final = 1.1  # a table is made anew when its group has grown so much
FEW: Final = 10  # where fewer past jobs of a group ran so long, a wider group is asked
_TAIL, _BODY = 100, 400  # of a group with more, the longest are kept each, and so many of the others stand for all
_UNKNOWN: Final = 1e12  # of a group that has seen nothing
Numbers = NDArray[np.float64]


def inverse_gittins_s(durations_s: Numbers, weights: Numbers, attained_s: Numbers, restart_s: float) -> Numbers:
    """1 / G(a) in seconds of service for each job that ends, at best.

    From m sorted past durations above a, y_1..y_m: the least of ((m c + sum_{i<=k} (y_i - a) + (m - k)(y_k - a)) / k.
    Where none is above a, as many heavy tails have it: what is left is as long as what is over.

    Args:
        durations_s: (samples,) of past jobs, ascending.
        weights: (samples,) how many jobs each stands for.
        attained_s: (points,) values of a.
        restart_s: c.
    """
    first = np.searchsorted(durations_s, attained_s, side="right")[:, None]
    counts = np.concatenate([[0.0], np.cumsum(weights)])
    sums = np.concatenate([[0.0], np.cumsum(weights * durations_s)])
    many = counts[-1] - counts[first]
    ended = counts[1:] - counts[first]
    above = durations_s - attained_s[:, None]
    cost = many * restart_s + sums[1:] - sums[first] - ended * attained_s[:, None] + (many - ended) * above
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(ended > 0, cost / ended, np.inf)
    least = np.min(ratio, axis=1, initial=np.inf)
    return np.where(np.isfinite(least), least, attained_s + restart_s)


class GittinsTables:
    """1 / G at `POINTS_S` for each group of a history; the last entry before a is taken.

    Attributes:
        version: changes whenever a table does.
    """

    def __init__(self, history: History, restart_s: float) -> None:
        self.version = 0
        self._history, self._restart_s = history, restart_s
        self._made_of: list[int] = []  # by group: of how many durations
        self._going_on = np.empty((0, len(POINTS_S)))  # (groups, points), for those that run
        self._restarted = self._going_on.copy()  # and for those that wait
        self._above = np.empty((0, len(POINTS_S)), np.int64)  # (groups, points) past jobs that ran longer
        self._source = np.empty((0, len(POINTS_S)), np.int64)  # (chains, points) the group that is asked
        self._chains_of: list[list[int]] = []  # by group

    def hear_of(self, chain: int) -> None:
        """A job of this chain has arrived."""
        for number in range(len(self._source), chain + 1):
            for group in self._history.chains[number]:
                self._make_room(group.number)
                self._chains_of[group.number].append(number)
                self._refresh(group)
            self._source = _with_row(self._source, number)
            self._choose(number)

    def learn(self, chain: int) -> None:
        """A job of this chain has ended: tables of groups that have grown by a tenth are made anew."""
        for group in self._history.chains[chain]:
            if self._refresh(group):
                self.version += 1
                for number in self._chains_of[group.number]:
                    if number < len(self._source):
                        self._choose(number)

    def inverse_s(self, chain: Any, attained_s: Any, is_running: bool) -> Any:
        """1 / G of jobs, in seconds."""
        point = POINTS_S.searchsorted(attained_s, side="right") - 1
        return (self._going_on if is_running else self._restarted)[self._source[chain, point], point]

    def _choose(self, chain: int) -> None:
        """At each point the narrowest group that has seen enough jobs, and a few of them run longer."""
        groups = [group.number for group in self._history.chains[chain]]
        row = np.full(len(POINTS_S), groups[-1])
        for number in reversed(groups[:-1]):
            if self._made_of[number] >= ENOUGH:
                row[self._above[number] >= FEW] = number
        self._source[chain] = row

    def _refresh(self, group: Group) -> bool:
        """Make a group's table anew where it has grown: whether it was."""
        number, many = group.number, group.many
        was = self._made_of[number]
        if many < max(was * GROWTH, was + 1) and not was < ENOUGH <= many:
            return False
        self._made_of[number] = many
        durations_ns = group.durations_ns
        sample, weights = _sample(durations_ns)
        self._going_on[number] = inverse_gittins_s(sample, weights, POINTS_S, 0.0)
        self._restarted[number] = inverse_gittins_s(sample, weights, POINTS_S, self._restart_s)
        self._above[number] = [many - bisect_right(durations_ns, round(point * NS_PER_S)) for point in POINTS_S]
        return True

    def _make_room(self, group: int) -> None:
        while len(self._made_of) <= group:
            self._made_of.append(0)
            self._chains_of.append([])
        self._going_on = _with_row(self._going_on, group, _UNKNOWN)
        self._restarted = _with_row(self._restarted, group, _UNKNOWN)
        self._above = _with_row(self._above, group)


def _with_row(table: NDArray[Any], row: int, value: float = 0.0) -> NDArray[Any]:
    missing = row + 1 - len(table)
    if missing <= 0:
        return table
    return np.concatenate([table, np.full((missing, len(POINTS_S)), value, table.dtype)])


def _sample(durations_ns: list[int]) -> tuple[Numbers, Numbers]:
    """Durations in seconds, and how many each stands for; of very many, evenly spaced ones and all of the longest."""
    rest = len(durations_ns) - _TAIL
    if rest <= _BODY:
        return np.array(durations_ns, np.float64) / NS_PER_S, np.ones(len(durations_ns))
    body = [durations_ns[(2 * place + 1) * rest // (2 * _BODY)] for place in range(_BODY)]
    weights = np.concatenate([np.full(_BODY, rest / _BODY), np.ones(_TAIL)])
    return np.array(body + durations_ns[rest:], np.float64) / NS_PER_S, weights
