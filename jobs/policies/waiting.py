"""Waiting jobs by demand: if one with some demand can't start now, none with that demand can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jobs.policies.cluster import Pool


class WaitingClass:
    """Jobs with one demand, by number; with an index each (smallest first, the lower number among equals).

    Attributes:
        gpus: GPUs that each needs.
        milli: the part of each of these GPUs, in thousandths.
        nodes: the least number of nodes over which they are spread evenly; 1 for no constraint.
        pools: pools that they may use, in search order.
        speeds: their speeds there.
    """

    def __init__(
        self, gpus: int, pools: tuple[Pool, ...], speeds: tuple[float, ...], milli: int = 1000, nodes: int = 1
    ) -> None:
        self.gpus = gpus
        self.pools = pools
        self.speeds = speeds
        self.milli = milli
        self.nodes = nodes
        self.demand_milli = gpus * milli  # if this demand fits, any smaller one does, if neither needs nodes
        self.count = 0
        self.version = 0, 0  # of what its indices depend on
        self._jobs = np.empty(16, np.int64)
        self._index = np.empty(16, np.float64)
        self._head: int | None = None
        self._first: tuple[float, int] | None = None

    @property
    def jobs(self) -> NDArray[np.int64]:
        """(count,) The jobs' numbers, ascending."""
        return self._jobs[: self.count]

    @property
    def index(self) -> NDArray[np.float64]:
        """(count,) The jobs' indices."""
        return self._index[: self.count]

    def add(self, job: int, index: float) -> None:
        """Add a waiting job."""
        count = self.count
        if count == len(self._jobs):
            self._jobs = np.concatenate([self._jobs, np.empty(count, np.int64)])
            self._index = np.concatenate([self._index, np.empty(count, np.float64)])
        jobs, indices = self._jobs, self._index
        if count and job < jobs[count - 1]:
            place = int(np.searchsorted(jobs[:count], job))
            jobs[place + 1 : count + 1] = jobs[place:count]
            indices[place + 1 : count + 1] = indices[place:count]
            self._head = self._first = None
        else:
            place = count
            if self._head is not None and index < indices[self._head]:
                self._head, self._first = place, None
        jobs[place], indices[place] = job, index
        self.count = count + 1

    def remove(self, place: int) -> int:
        """Remove the job at a place, and return its number."""
        job, count = int(self._jobs[place]), self.count
        self._jobs[place : count - 1] = self._jobs[place + 1 : count]
        self._index[place : count - 1] = self._index[place + 1 : count]
        self.count = count - 1
        self._head = self._first = None
        return job

    def set_indices(self, indices: NDArray[np.float64]) -> None:
        """Replace the jobs' indices, (count,)."""
        self._index[: self.count] = indices
        self._head = self._first = None

    @property
    def head(self) -> int:
        """The place of the first job in order."""
        if self._head is None:
            self._head = int(self._index[: self.count].argmin())
        return self._head

    @property
    def first(self) -> tuple[float, int]:
        """The key of the first job in order."""
        if self._first is None:
            self._first = self.key_at(self.head)
        return self._first

    def first_of(self, may: NDArray[np.bool_]) -> int | None:
        """Return the place of the first job in order that may start; None if none may."""
        place = int(np.where(may, self.index, np.inf).argmin())
        return place if may[place] else None

    def key_at(self, place: int) -> tuple[float, int]:
        """Return the key that decides between jobs of several classes: the index, then the number."""
        return float(self._index[place]), int(self._jobs[place])


@dataclass(slots=True)
class CompetingClasses:
    """Classes that compete for the same pools: no class outside may use any of them.

    Attributes:
        fresh: classes that a job has joined since the last decision.
        is_open: whether something else has changed since.
    """

    classes: list[WaitingClass] = field(default_factory=list)
    fresh: list[WaitingClass] = field(default_factory=list)
    is_open: bool = False

    @property
    def touched(self) -> Sequence[WaitingClass]:
        """Classes with jobs that may start now although they could not before."""
        return [waiting for waiting in (self.classes if self.is_open else self.fresh) if waiting.count]
