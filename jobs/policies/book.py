"""What a scheduler has written down of every job, as columns by job number; grown as jobs come."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kit.units import NS_PER_S

Jobs = Any  # a job's number, or an array of them: columns are read by either, and give a number or an array
NEVER_NS: Final = 1 << 62
WAITING, RUNNING, STOPPING, GONE = range(4)
_COLUMNS: Final = {
    "gpus": 1,
    "submit_ns": 0,
    "estimate_ns": 0,  # of its whole work at the reference type
    "done_ns": 0,  # work that is kept
    "since_ns": 0,  # it waits, or runs
    "from_ns": NEVER_NS,  # its work goes on (after a restart); never for one that waits
    "begun": 0,  # how often it was started
    "group": 0,  # of jobs with a history in common
    "state": GONE,
}


class JobBook:
    """The columns: whole numbers, but for `speed`, which it runs at. All times in nanoseconds."""

    gpus: NDArray[np.int64]
    submit_ns: NDArray[np.int64]
    estimate_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]
    since_ns: NDArray[np.int64]
    from_ns: NDArray[np.int64]
    begun: NDArray[np.int64]
    group: NDArray[np.int64]
    state: NDArray[np.int64]
    speed: NDArray[np.float64]

    def __init__(self) -> None:
        self._room = 0
        for name in _COLUMNS:
            setattr(self, name, np.empty(0, np.int64))
        self.speed = np.empty(0, np.float64)
        self.share: dict[int, float] = {}  # of its one GPU, of jobs that do not need all of it
        self.make_room(1023)

    def make_room(self, job: int) -> None:
        """For a job of this number."""
        if job < self._room:
            return
        more = max(job + 1, 2 * self._room) - self._room
        for name, value in _COLUMNS.items():
            setattr(self, name, np.concatenate([getattr(self, name), np.full(more, value, np.int64)]))
        self.speed = np.concatenate([self.speed, np.ones(more)])
        self._room += more

    def attained_ns(self, jobs: Jobs, now_ns: int) -> Any:
        """Work done, at the reference type; of those that run with what they have done since they were started."""
        if isinstance(jobs, int):  # the same to the last bit, in a tenth of the time
            return self.done_ns.item(jobs) + max(now_ns - self.from_ns.item(jobs), 0) * self.speed.item(jobs)
        return self.done_ns[jobs] + np.maximum(now_ns - self.from_ns[jobs], 0) * self.speed[jobs]


class Features:
    """What an order may look at, of one job or of many; worked out only where it looks.

    Attributes:
        jobs: the number of a job, or an array of them; every feature has this shape.
        restart_s: what it costs to go on: 0 for those that run.
    """

    __slots__ = ("_book", "is_running", "jobs", "now_ns", "restart_s")

    def __init__(self, book: JobBook, jobs: Jobs, now_ns: int, is_running: bool, restart_s: float = 0.0) -> None:
        self._book, self.jobs, self.now_ns = book, jobs, now_ns
        self.is_running, self.restart_s = is_running, 0.0 if is_running else restart_s

    @property
    def now_s(self) -> float:
        """The present."""
        return self.now_ns / NS_PER_S

    @property
    def gpus(self) -> Any:
        """How many it needs; a part of one, of a job that needs no more."""
        gpus, share = self._book.gpus[self.jobs], self._book.share
        if not share:
            return gpus
        if np.ndim(gpus) == 0:
            return gpus * share.get(int(self.jobs), 1.0)
        return gpus * np.array([share.get(job, 1.0) for job in self.jobs.tolist()])

    @property
    def submit_s(self) -> Any:
        """When it was submitted."""
        return self._book.submit_ns[self.jobs] / NS_PER_S

    @property
    def waiting_since_s(self) -> Any:
        """When it began to wait (last)."""
        return self._book.since_ns[self.jobs] / NS_PER_S

    @property
    def estimate_s(self) -> Any:
        """How long it runs, by the policy's estimate: a second at least."""
        return np.maximum(self._book.estimate_ns[self.jobs] / NS_PER_S, 1.0)

    @property
    def attained_s(self) -> Any:
        """How much of its work is done."""
        return self._book.attained_ns(self.jobs, self.now_ns) / NS_PER_S

    @property
    def remaining_s(self) -> Any:
        """What is left, by the estimate: not below 0."""
        book = self._book
        return np.maximum(book.estimate_ns[self.jobs] - book.attained_ns(self.jobs, self.now_ns), 0) / NS_PER_S

    @property
    def group(self) -> Any:
        """The jobs with whose durations its own may be foretold (`jobs.policies.history`)."""
        return self._book.group[self.jobs]
