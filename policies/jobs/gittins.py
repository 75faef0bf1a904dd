"""The Gittins index from past durations (Gittins 1989; with setup times: Hong and Scully 2023, arXiv 2304.13231).

With D the duration, a the attained service and c what it costs to go on,

    G(a) = sup_{x > 0}  P(D - a <= x | D > a) / (c + E[min(D - a, x) | D > a]).

Jobs are served by G / GPUs, largest first; so the index here is GPUs / G, in GPU seconds, smallest first.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from policies.jobs.history import ENOUGH, Group, History
from policies.vocabulary import NS_PER_S

POINTS_S: Final = np.concatenate([[0.0], np.geomspace(30.0, 58 * 86400.0, 60)])
MOST_SAMPLES: Final = 500
GROWTH: Final = 1.1  # a table is made anew when its group has grown so much
_LOST_S: Final = 1e12  # no past job ran so long: nothing is known, so it comes last
Numbers = NDArray[np.float64]


def inverse_gittins_s(durations_s: Numbers, attained_s: Numbers, restart_s: float) -> Numbers:
    """1 / G(a) in seconds of service for each job that ends, at best.

    From m sorted past durations above a, y_1..y_m: the least of ((m c + sum_{i<=k} (y_i - a) + (m - k)(y_k - a)) / k.

    Args:
        durations_s: (samples,) of past jobs, ascending.
        attained_s: (points,) values of a.
        restart_s: c.
    """
    first = np.searchsorted(durations_s, attained_s, side="right")[:, None]
    above = durations_s - attained_s[:, None]
    sums = np.cumsum(durations_s)
    before = np.where(first > 0, sums[first - 1], 0.0) if len(sums) else np.zeros_like(above)
    many = len(durations_s) - first
    ended = np.arange(1, len(durations_s) + 1) - first
    cost = many * restart_s + (sums - before) - ended * attained_s[:, None] + (many - ended) * above
    ratio = np.where(ended > 0, cost / np.maximum(ended, 1), _LOST_S)
    return np.asarray(np.min(ratio, axis=1, initial=_LOST_S))


class GittinsTables:
    """1 / G at `POINTS_S` for each group of a history; the last entry before a is taken.

    Attributes:
        version: changes whenever a table does.
    """

    def __init__(self, history: History, restart_s: float) -> None:
        self.version = 0
        self._history, self._restart_s = history, restart_s
        self._group_of = np.empty(0, np.int64)  # by chain
        self._made_of: list[int] = []  # by group: of how many durations
        self._going_on = np.full((1, len(POINTS_S)), _LOST_S)  # (groups, points), for those that run
        self._restarted = self._going_on.copy()  # and for those that wait

    def hear_of(self, chain: int) -> None:
        """A job of this chain has arrived."""
        if chain >= len(self._group_of):
            self._look_up()
            self._make_room()

    def learn(self, chain: int) -> None:
        """A job of this chain has ended: tables of groups that have grown by a tenth are made anew."""
        groups = self._history.chains[chain]
        for group in groups:
            self._refresh(group)
        if any(len(group.durations_ns) == ENOUGH for group in groups):
            self._look_up()
            self.version += 1

    def _look_up(self) -> None:
        """Which group each chain rests on now."""
        known = [self._history.narrowest(number).number for number in range(len(self._history.chains))]
        self._group_of = np.array(known, np.int64)

    def inverse_s(self, chain: Any, attained_s: Any, is_running: bool) -> Any:
        """1 / G of jobs, in seconds."""
        point = np.searchsorted(POINTS_S, attained_s, side="right") - 1
        return (self._going_on if is_running else self._restarted)[self._group_of[chain], point]

    def _refresh(self, group: Group) -> None:
        many = len(group.durations_ns)
        if many < self._made_of[group.number] * GROWTH + 1:
            return
        self._made_of[group.number] = many
        sample = _spread_out(group.durations_ns)
        self._going_on[group.number] = inverse_gittins_s(sample, POINTS_S, 0.0)
        self._restarted[group.number] = inverse_gittins_s(sample, POINTS_S, self._restart_s)
        self.version += 1

    def _make_room(self) -> None:
        """For groups that are new; they may have seen jobs already."""
        groups = {group.number: group for chain in self._history.chains for group in chain}
        new = sorted(set(groups) - set(range(len(self._made_of))))
        self._made_of += [0] * len(new)
        missing = len(self._made_of) - len(self._going_on)
        if missing > 0:
            more = np.full((max(missing, len(self._going_on)), len(POINTS_S)), _LOST_S)
            self._going_on = np.concatenate([self._going_on, more])
            self._restarted = np.concatenate([self._restarted, more])
        for number in new:
            self._refresh(groups[number])


def _spread_out(durations_ns: list[int]) -> Numbers:
    """In seconds; of very many, evenly spaced order statistics."""
    many = len(durations_ns)
    if many > MOST_SAMPLES:
        durations_ns = [durations_ns[(2 * place + 1) * many // (2 * MOST_SAMPLES)] for place in range(MOST_SAMPLES)]
    return np.array(durations_ns, np.float64) / NS_PER_S
