"""What an operator promises, and in how much of a run it was kept: window by window, from the run's columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from policies.records import COMPLETED, FAILED, IN_FLIGHT, RequestColumns
from policies.reward import AccuracyPrior
from policies.vocabulary import NS_PER_S, nanoseconds
from scenarios.files.spec import Scenario

WINDOW_S: Final = 10.0
LEAST_WINDOWS: Final = 3
P99: Final = 0.99
ROUNDING: Final = 1e-9  # of a mean of equal accuracies, which would miss a floor that is this accuracy

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Promise:
    """A floor of mean accuracy and a limit of p99 latency; None for what is not promised."""

    floor: float | None = None
    p99_limit_s: float | None = None

    @classmethod
    def of(cls, scenario: Scenario) -> Promise:
        """Its `service`; where that names no floor, the one that its routers are tuned to keep."""
        given = scenario.service
        return cls(scenario.tuning.floor if given.floor is None else given.floor, given.p99_limit_s)


NO_PROMISE: Final = Promise()


class Service(TypedDict):
    """What was promised, and how many windows of which length it was looked at in; the last one may be longer."""

    floor: float | None
    p99_limit_s: float | None
    window_s: float
    windows: int


class Kept(TypedDict):
    """Shares of the windows; null for what was not promised, and where nobody was there in any of them.

    Attributes:
        both: in which all that is promised was kept.
    """

    both: float | None
    floor: float | None
    p99_limit: float | None


def window_edges_ns(begin_ns: int, end_ns: int) -> Counts:
    """Where windows begin and end: every 10 s, and the last takes what is left over; thirds of less than 30 s."""
    count = (end_ns - begin_ns) // nanoseconds(WINDOW_S)
    if count < LEAST_WINDOWS:
        return begin_ns + (end_ns - begin_ns) * np.arange(LEAST_WINDOWS + 1) // LEAST_WINDOWS
    edges_ns = begin_ns + nanoseconds(WINDOW_S) * np.arange(count + 1)
    edges_ns[-1] = end_ns
    return edges_ns


def service_of(promise: Promise, edges_ns: Counts) -> Service:
    """The promise beside its windows."""
    window_s = int(edges_ns[1] - edges_ns[0]) / NS_PER_S
    return Service(floor=promise.floor, p99_limit_s=promise.p99_limit_s, window_s=window_s, windows=len(edges_ns) - 1)


def kept_of(requests: RequestColumns, edges_ns: Counts, promise: Promise, prior: AccuracyPrior | None) -> Kept:
    """In which share of the windows the promise was kept.

    A window begins after its first moment and holds its last one. All images count that complete in it, whenever they
    arrived. The floor is kept where the mean accuracy of their width tuples, by the network's table, is at least the
    floor. The limit is kept where the p99 (nearest rank) of their latencies is no more than the limit; there an image
    that failed in the window counts as over it, and so does one that is still in flight at the window's end, longer
    than the limit. It does so at the end of every window that it passes. Neither is kept in a window in which nobody
    completed, although somebody was in the system. A window without anybody does not count.
    """
    fate = _Fate.of(requests, edges_ns)
    floor = None if promise.floor is None or prior is None else fate.keeps_floor(promise.floor, prior)
    limit = None if promise.p99_limit_s is None else fate.keeps_limit(nanoseconds(promise.p99_limit_s))
    known = [each for each in (floor, limit) if each is not None]
    is_unknown = not known or (promise.floor is not None and floor is None)
    return Kept(
        both=None if is_unknown else fate.share(np.logical_and.reduce(known)),
        floor=None if floor is None else fate.share(floor),
        p99_limit=None if limit is None else fate.share(limit),
    )


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
        """Who ended like this in any of the windows."""
        is_within = (self.window >= 0) & (self.window < len(self.ends_ns))
        return np.asarray((self.requests.status == status) & is_within, np.bool_)

    def count(self, chosen: NDArray[np.bool_]) -> Counts:
        """By window, how many of these ended in it."""
        return np.bincount(self.window[chosen], minlength=len(self.ends_ns))

    def share(self, is_kept: NDArray[np.bool_]) -> float | None:
        """Of the windows that anybody was in."""
        arrived = np.searchsorted(self.ends_ns, self.requests.arrived_ns)
        is_used = self._through(arrived, np.minimum(self.window + 1, len(self.ends_ns))) > 0
        return float(np.mean(is_kept[is_used])) if is_used.any() else None

    def keeps_floor(self, floor: float, prior: AccuracyPrior) -> NDArray[np.bool_]:
        """By window."""
        done = self.ended(COMPLETED)
        if not done.any():
            return np.zeros(len(self.ends_ns), np.bool_)
        priors, place = tuples_run(self.requests, done, prior)
        total = np.bincount(self.window[done], priors[place], len(self.ends_ns))
        completed = self.count(done)
        return np.asarray((completed > 0) & (total >= (floor - ROUNDING) * completed), np.bool_)

    def keeps_limit(self, limit_ns: int) -> NDArray[np.bool_]:
        """By window."""
        arrived_ns, finished_ns = self.requests.arrived_ns, self.requests.finished_ns
        done, waits = self.ended(COMPLETED), self.requests.status == IN_FLIGHT
        in_time = self.count(done & (finished_ns - arrived_ns <= limit_ns))
        left = np.where(waits, len(self.ends_ns), np.searchsorted(self.ends_ns, finished_ns))
        overdue = self._through(np.searchsorted(self.ends_ns, arrived_ns + limit_ns, side="right"), left)
        judged = self.count(done) + self.count(self.ended(FAILED)) + overdue
        return np.asarray((self.count(done) > 0) & (in_time >= np.ceil(P99 * judged)), np.bool_)

    def _through(self, first: Counts, after: Counts) -> Counts:
        """By window, how many images it is one of the windows of, from an image's first to the one before `after`."""
        is_any, size = first < after, len(self.ends_ns) + 1
        steps = np.bincount(first[is_any], minlength=size) - np.bincount(after[is_any], minlength=size)
        return np.cumsum(steps)[:-1]


def tuples_run(
    requests: RequestColumns, chosen: NDArray[np.bool_], prior: AccuracyPrior
) -> tuple[NDArray[np.float64], Counts]:
    """The prior of every width tuple that completed ones among `chosen` ran, and for each of these its place there."""
    width = requests.width[chosen]
    codes = width @ len(requests.widths) ** np.arange(width.shape[1])  # a number for each tuple
    _, first, place = np.unique(codes, return_index=True, return_inverse=True)
    return np.array([prior(tuple(requests.widths[at] for at in width[one])) for one in first]), place
