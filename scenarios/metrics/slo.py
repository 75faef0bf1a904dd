"""The service-level objective (SLO), and in how much of a run it was met: window by window, from the run's columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from policies.interfaces import AccuracyPrior
from policies.router_queue import REFUSED
from policies.run_records import COMPLETED, FAILED, IN_FLIGHT, RequestColumns
from policies.vocabulary import NS_PER_S, nanoseconds
from scenarios.files.scenario_keys import Goals, Scenario

WINDOW_S: Final = 10.0
MIN_WINDOWS: Final = 3
P99: Final = 0.99
ABOUT: Final = 0.1 / 100  # of accuracy: a floor is kept to a tenth of a point
ROUNDING: Final = 1e-9  # of a mean of equal accuracies, which would miss a floor that is this accuracy

Counts = NDArray[np.int64]


def has_floor(accuracy: float | None, floor: float | None) -> bool:
    """Return whether a mean accuracy has a floor, to a tenth of a point; None for no accuracy, and for no floor."""
    return floor is None or (accuracy is not None and accuracy >= floor - ABOUT - ROUNDING)


@dataclass(frozen=True, slots=True)
class Slo:
    """A floor of mean accuracy and a limit of p99 latency; None for what is never promised.

    Attributes:
        later: what takes their place in mid-run: (from when, floor, limit), ascending, 0 for none of that kind.
        objective: what is minimised if these are kept: the p99 latency, or energy an image.
        classes: what each class of requests is promised, in the scenario's order.
    """

    floor: float | None = None
    p99_limit_s: float | None = None
    later: tuple[tuple[float, float, float], ...] = ()
    objective: Literal["latency", "energy"] = "latency"
    classes: tuple[Slo, ...] = ()

    @classmethod
    def of(cls, scenario: Scenario) -> Slo:
        """Return a scenario's `slo`; if that names no floor, the one that its routers are tuned to keep."""
        goals = scenario.slo.goals(scenario.tuning.floor)
        first = [goal for goal in goals if goal.at_s <= 0.0][-1]
        later = [goal for goal in goals if goal.at_s > 0.0]
        changes = [each for before, each in pairwise((first, *later)) if _promised(each) != _promised(before)]
        has_floor, has_limit = (any(each[kind] for each in (first, *changes)) for kind in (1, 2))
        return cls(
            first.floor if has_floor else None,
            first.p99_limit_s if has_limit else None,
            tuple((change.at_s, change.floor, change.p99_limit_s) for change in changes),
            scenario.tuning.objective,
            tuple(cls(each.floor, each.p99_limit_s) for each in scenario.classes),
        )


NO_SLO: Final = Slo()


def _promised(goals: Goals) -> tuple[float, float]:
    return goals.floor, goals.p99_limit_s


class ClassPromise(TypedDict):
    """The promises to a class of requests; null for none of that kind."""

    floor: float | None
    p99_limit_s: float | None


class SloDocument(TypedDict):
    """What was promised, and in how many windows of which length it was judged; the last one may be longer.

    `floor` and `p99_limit_s` are what is promised when the windows begin, 0 for nothing then. `changes`, if there are
    any: how often `slo.schedule` changes that while they last. `objective`: if it is not latency. `classes`: what is
    promised to each class of requests, if there are some; nothing is promised to all of them then.
    """

    floor: float | None
    p99_limit_s: float | None
    window_s: float
    windows: int
    changes: NotRequired[int]
    objective: NotRequired[Literal["energy"]]
    classes: NotRequired[dict[str, ClassPromise]]


class SloAttainment(TypedDict):
    """Shares of the windows; null for what was not promised, and if no request was in the system in any of them.

    Attributes:
        both: in which all that is promised was kept.
    """

    both: float | None
    floor: float | None
    p99_limit: float | None


def window_edges_ns(begin_ns: int, end_ns: int) -> Counts:
    """Return window edges: every 10 s, and the last takes what is left over; thirds of less than 30 s."""
    count = (end_ns - begin_ns) // nanoseconds(WINDOW_S)
    if count < MIN_WINDOWS:
        return begin_ns + (end_ns - begin_ns) * np.arange(MIN_WINDOWS + 1) // MIN_WINDOWS
    edges_ns = begin_ns + nanoseconds(WINDOW_S) * np.arange(count + 1)
    edges_ns[-1] = end_ns
    return edges_ns


def slo_document(slo: Slo, edges_ns: Counts) -> SloDocument:
    """Return what is promised when the windows begin, and how often that changes while they last."""
    begin_ns, end_ns = int(edges_ns[0]), int(edges_ns[-1])
    floor, limit_s = slo.floor, slo.p99_limit_s
    changes = 0
    for at_s, later_floor, later_limit_s in slo.later:
        if nanoseconds(at_s) <= begin_ns:
            floor = None if floor is None else later_floor
            limit_s = None if limit_s is None else later_limit_s
        elif nanoseconds(at_s) < end_ns:
            changes += 1
    window_s = int(edges_ns[1] - edges_ns[0]) / NS_PER_S
    document = SloDocument(floor=floor, p99_limit_s=limit_s, window_s=window_s, windows=len(edges_ns) - 1)
    if changes:
        document["changes"] = changes
    if slo.objective == "energy":
        document["objective"] = slo.objective
    return document


def slo_attainment(requests: RequestColumns, edges_ns: Counts, slo: Slo, prior: AccuracyPrior | None) -> SloAttainment:
    """Return in which share of the windows the objective was met.

    A window begins after its first moment and holds its last one. All images count that complete in it, whenever they
    arrived. The floor is kept if the mean accuracy of their width tuples, by the network's table, is at least the
    floor. The limit is kept if the p99 (nearest rank) of their latencies is no more than the limit; there an image that
    failed in the window counts as over it, and so does one that is still in flight at the window's end, longer than the
    limit. It does so at the end of every window that it passes. Neither is kept in a window in which no request
    completed, although one was in the system. A window without requests does not count.

    If a schedule changes the objective, an image is judged by what was in force when it ended, and one that is still in
    flight by what is at the window's end. A window in which no floor, or no limit, was in force does not count for it.
    """
    return attainment_of([judge(requests, edges_ns, slo, prior)])


@dataclass(frozen=True, slots=True)
class Judged:
    """Whether each window kept something, and whether it counts."""

    is_kept: NDArray[np.bool_]
    counts: NDArray[np.bool_]

    @classmethod
    def all_of(cls, parts: Sequence[Judged]) -> Judged | None:
        """Return what keeps every part that counts."""
        if not parts:
            return None
        is_kept = np.logical_and.reduce([part.is_kept | ~part.counts for part in parts])
        return cls(is_kept, np.logical_or.reduce([part.counts for part in parts]))

    @property
    def share(self) -> float | None:
        """The share of the windows that count; None if there are none."""
        return float(np.mean(self.is_kept[self.counts])) if self.counts.any() else None


WindowsJudged = tuple[Judged | None, Judged | None, Judged | None]
"""By all that is promised, by the floor, and by the limit; None for what is not promised."""


def attainment_of(classes: Sequence[WindowsJudged]) -> SloAttainment:
    """Return in which share of the windows every class kept what it is promised."""
    kinds = [Judged.all_of([each for each in kind if each is not None]) for kind in zip(*classes, strict=True)]
    overall, floor, limit = (None if kind is None else kind.share for kind in kinds)
    return SloAttainment(both=overall, floor=floor, p99_limit=limit)


def judge(requests: RequestColumns, edges_ns: Counts, slo: Slo, prior: AccuracyPrior | None) -> WindowsJudged:
    """Judge window by window; see `slo_attainment`."""
    fate = _Fate.of(requests, edges_ns)
    floors, limits = _InForce.floors(slo), _InForce.limits(slo)
    is_used = fate.is_used()
    floor: Judged | None = None
    limit: Judged | None = None
    if floors is not None and prior is not None:
        floor = Judged(fate.keeps_floor(floors, prior), is_used & floors.is_any(edges_ns))
    if limits is not None:
        limit = Judged(fate.keeps_limit(limits), is_used & limits.is_any(edges_ns))
    is_known = floors is None or floor is not None
    overall = Judged.all_of([each for each in (floor, limit) if each is not None]) if is_known else None
    return overall, floor, limit


@dataclass(frozen=True, slots=True)
class _InForce:
    """One of the goals over time: from after each of these times on it is that; 0 for none."""

    after_ns: Counts
    value: NDArray[np.float64]

    @classmethod
    def floors(cls, slo: Slo) -> _InForce | None:
        """Return the floors of accuracy; None if there is never one."""
        if slo.floor is None:
            return None
        return cls.of([(0.0, slo.floor), *((at_s, floor) for at_s, floor, _ in slo.later)])

    @classmethod
    def limits(cls, slo: Slo) -> _InForce | None:
        """Return the limits of the p99, in nanoseconds; None if there is never one."""
        if slo.p99_limit_s is None:
            return None
        later = ((at_s, float(nanoseconds(limit_s))) for at_s, _, limit_s in slo.later)
        return cls.of([(0.0, float(nanoseconds(slo.p99_limit_s))), *later])

    @classmethod
    def of(cls, steps: Sequence[tuple[float, float]]) -> _InForce:
        return cls(np.array([nanoseconds(at_s) for at_s, _ in steps]), np.array([value for _, value in steps]))

    def at(self, times_ns: Counts) -> NDArray[np.float64]:
        """Return what is in force at these times."""
        return self.value[np.maximum(0, np.searchsorted(self.after_ns, times_ns) - 1)]

    def is_any(self, edges_ns: Counts) -> NDArray[np.bool_]:
        """Return whether anything was in force in any part of each window."""
        first = np.searchsorted(self.after_ns, edges_ns[:-1], side="right") - 1
        after = np.maximum(first + 1, np.searchsorted(self.after_ns, edges_ns[1:]))
        goals_until = np.concatenate([[0], np.cumsum(self.value > 0)])
        return np.asarray(goals_until[after] > goals_until[first], np.bool_)


@dataclass(frozen=True, slots=True)
class _Fate:
    """Which window each image ended in, or the run did before it: `len(ends_ns)` for later, -1 for before the first."""

    requests: RequestColumns
    ends_ns: Counts
    window: Counts

    @classmethod
    def of(cls, requests: RequestColumns, edges_ns: Counts) -> _Fate:
        return cls(requests, edges_ns[1:], np.searchsorted(edges_ns, requests.finished_ns) - 1)

    def ended(self, status: int) -> NDArray[np.bool_]:
        """Return which requests ended with this status in any of the windows."""
        is_within = (self.window >= 0) & (self.window < len(self.ends_ns))
        return np.asarray((self.requests.status == status) & is_within, np.bool_)

    def count(self, selected: NDArray[np.bool_]) -> Counts:
        """Count how many of these ended in each window."""
        return np.bincount(self.window[selected], minlength=len(self.ends_ns))

    def is_used(self) -> NDArray[np.bool_]:
        """Return whether a request was in each window."""
        arrived = np.searchsorted(self.ends_ns, self.requests.arrived_ns)
        return self._through(arrived, np.minimum(self.window + 1, len(self.ends_ns))) > 0

    def keeps_floor(self, floors: _InForce, prior: AccuracyPrior) -> NDArray[np.bool_]:
        """Return whether each window kept its floor."""
        completed = self.ended(COMPLETED)
        if not completed.any():
            return np.zeros(len(self.ends_ns), np.bool_)
        priors, index = tuples_run(self.requests, completed, prior)
        window, size = self.window[completed], len(self.ends_ns)
        total = np.bincount(window, priors[index], size)
        completions = self.count(completed)
        required = np.bincount(window, floors.at(self.requests.finished_ns[completed]), size)
        return np.asarray((completions > 0) & (total >= required - ROUNDING * completions), np.bool_)

    def keeps_limit(self, limits: _InForce) -> NDArray[np.bool_]:
        """Return whether each window kept its limit of the p99."""
        arrived_ns, finished_ns = self.requests.arrived_ns, self.requests.finished_ns
        completed, waits = self.ended(COMPLETED), self.requests.status == IN_FLIGHT
        limit_ns = limits.at(finished_ns)
        in_time = self.count(completed & ((limit_ns == 0) | (finished_ns - arrived_ns <= limit_ns)))
        exits = np.where(waits, len(self.ends_ns), np.searchsorted(self.ends_ns, finished_ns))
        at_end_ns, overdue = limits.at(self.ends_ns), np.zeros(len(self.ends_ns), np.int64)
        for each_ns in np.unique(at_end_ns[at_end_ns > 0]):
            since = np.searchsorted(self.ends_ns, arrived_ns + int(each_ns), side="right")
            overdue = np.where(at_end_ns == each_ns, self._through(since, exits), overdue)
        accepted = np.array([reason != REFUSED for reason in self.requests.reasons], np.bool_)[self.requests.reason]
        judged = self.count(completed) + self.count(self.ended(FAILED) & accepted) + overdue
        return np.asarray((self.count(completed) > 0) & (in_time >= np.ceil(P99 * judged)), np.bool_)

    def _through(self, first: Counts, after: Counts) -> Counts:
        """Count, by window, the images whose windows, from an image's first to the one before `after`, include it."""
        is_any, size = first < after, len(self.ends_ns) + 1
        steps = np.bincount(first[is_any], minlength=size) - np.bincount(after[is_any], minlength=size)
        return np.cumsum(steps)[:-1]


def tuples_run(
    requests: RequestColumns, selected: NDArray[np.bool_], prior: AccuracyPrior
) -> tuple[NDArray[np.float64], Counts]:
    """Return the priors of the width tuples that the `chosen` requests ran, and each request's index among these."""
    width = requests.width[selected]
    codes = width @ len(requests.widths) ** np.arange(width.shape[1])  # a number for each tuple
    _, first, index = np.unique(codes, return_index=True, return_inverse=True)
    return np.array([prior(tuple(requests.widths[at] for at in width[row])) for row in first]), index
