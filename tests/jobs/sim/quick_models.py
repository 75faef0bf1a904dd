"""Quick models of a pool of equal nodes, apart from the simulation. Times are in seconds."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Place = list[tuple[int, int]]  # (node, GPUs there)


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs by submission, as plain numbers."""

    submit_s: list[float]
    run_s: list[float]
    gpus: list[int]

    def area(self, job: int) -> float:
        return self.run_s[job] * self.gpus[job]


class Nodes:
    """Nodes by how many of their GPUs are free."""

    def __init__(self, nodes: int, size: int) -> None:
        self.size, self.free = size, [size] * nodes
        self.by_free = [set[int]() for _ in range(size)] + [set(range(nodes))]

    def place(self, gpus: int) -> Place | None:
        """Whole nodes first, the rest on the fullest node that has room; None where there is none."""
        whole, rest = divmod(gpus, self.size)
        if len(self.by_free[self.size]) < whole:
            return None
        taken = sorted(self.by_free[self.size])[:whole] if whole else []
        place = [(node, self.size) for node in taken]
        for free in range(rest, self.size + 1) if rest else ():
            left = [node for node in sorted(self.by_free[free]) if node not in taken]
            if left:
                return [*place, (left[0], rest)]
        return None if rest else place

    def change(self, place: Place, sign: int) -> None:
        """Take (-1) or give back (1) what a job has."""
        for node, gpus in place:
            self.by_free[self.free[node]].remove(node)
            self.free[node] += sign * gpus
            self.by_free[self.free[node]].add(node)


class ListModel:
    """Jobs in one order, settled as they arrive; all that happens at an instant is taken in, then it is decided.

    Args:
        key: of a job as it arrives; smallest first, equal ones in the order of submission.
        queueing: `strict` or `first-fit`.
    """

    def __init__(
        self, jobs: Jobs, key: Callable[[int], float], queueing: str = "first-fit", nodes: int = 64, size: int = 8
    ) -> None:
        self._jobs, self._key = jobs, key
        self._decide = {"strict": self._strict, "first-fit": self._first_fit}[queueing]
        self._by_size = queueing == "first-fit"
        self._pool = Nodes(nodes, size)
        self._queues: dict[int, list[tuple[float, int]]] = {0: []}  # by GPUs, or one for all
        self._ends: list[tuple[float, int]] = []
        self._places: dict[int, Place] = {}
        self._start_s = np.zeros(len(jobs.gpus))
        self._now_s = 0.0

    def waits_s(self) -> Numbers:
        """(jobs,) Of each."""
        jobs, many, arrived = self._jobs, len(self._jobs.gpus), 0
        while arrived < many or self._ends:
            next_s = jobs.submit_s[arrived] if arrived < many else inf
            self._now_s = min(next_s, self._ends[0][0]) if self._ends else next_s
            while self._ends and self._ends[0][0] <= self._now_s:
                _, job = self._ends.pop(0)
                self._pool.change(self._places.pop(job), 1)
            while arrived < many and jobs.submit_s[arrived] <= self._now_s:
                queue = self._queues.setdefault(jobs.gpus[arrived] if self._by_size else 0, [])
                insort(queue, (self._key(arrived), arrived))
                arrived += 1
            self._decide()
        return np.asarray(self._start_s - jobs.submit_s)

    def _begin(self, job: int) -> bool:
        place = self._pool.place(self._jobs.gpus[job])
        if place is not None:
            self._pool.change(place, -1)
            self._places[job], self._start_s[job] = place, self._now_s
            insort(self._ends, (self._now_s + self._jobs.run_s[job], job))
        return place is not None

    def _strict(self) -> None:
        queue = self._queues[0]
        while queue and self._begin(queue[0][1]):
            del queue[0]

    def _first_fit(self) -> None:
        waiting = [queue for queue in self._queues.values() if queue]
        while waiting:
            queue = min(waiting, key=lambda queue: queue[0])
            has_begun = self._begin(queue[0][1])
            if has_begun:
                del queue[0]
            if not (has_begun and queue):
                waiting.remove(queue)


def ends_on_one_node_s(jobs: Jobs, of: int, index: Callable[[float, int], float]) -> list[float]:
    """When jobs end if whoever comes first has the GPUs: all are put in order at each arrival and end.

    Times are whole seconds, and stops cost nothing.

    Args:
        index: of what is left of a job and its GPUs; smallest first, of equals who runs, then the first submitted.
    """
    left_s, end_s, runs, now_s = list(jobs.run_s), [inf] * len(jobs.gpus), set[int](), 0.0
    while inf in end_s:
        for job in [job for job in runs if not left_s[job]]:
            runs.remove(job)
            end_s[job] = now_s
        free, present = of, [job for job, at_s in enumerate(jobs.submit_s) if at_s <= now_s and left_s[job]]
        present.sort(key=lambda job: (index(left_s[job], jobs.gpus[job]), job not in runs, job))
        runs = set()
        for job in present:
            if jobs.gpus[job] <= free:
                free -= jobs.gpus[job]
                runs.add(job)
        later_s = [at_s for at_s in jobs.submit_s if at_s > now_s]
        next_s = min([*later_s, *(now_s + left_s[job] for job in runs)], default=now_s)
        for job in runs:
            left_s[job] -= next_s - now_s
        now_s = next_s
    return end_s
