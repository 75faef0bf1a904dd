"""Two quick models of a pool of equal nodes, apart from the simulation: lists of jobs on nodes, rounds on mere GPUs.

They leave open what the simulation has settled (which of equally full nodes is taken, how far behind the first job
backfilling looks, when it is decided), so that it can be seen what hangs on it. Times are in seconds.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from kit.jit import entry

Numbers = NDArray[np.float64]
Place = list[tuple[int, int]]  # (node, GPUs there)
Preference = Callable[[set[int]], Sequence[int]]  # equally full nodes, those to be taken first in front
lowest: Preference = sorted
as_hashed: Preference = list  # as CPython's sets of small numbers go: an order of no meaning


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs by submission, as plain numbers."""

    submit_s: list[float]
    run_s: list[float]
    gpus: list[int]

    def area(self, job: int) -> float:
        """Run time x GPUs."""
        return self.run_s[job] * self.gpus[job]

    @property
    def columns(self) -> tuple[Numbers, Numbers, NDArray[np.int64]]:
        """The same as arrays."""
        return np.array(self.submit_s), np.array(self.run_s), np.array(self.gpus)


class Nodes:
    """Nodes by how many of their GPUs are free."""

    def __init__(self, nodes: int, size: int, preference: Preference) -> None:
        self.size, self.free, self._preference = size, [size] * nodes, preference
        self.by_free = [set[int]() for _ in range(size)] + [set(range(nodes))]

    def place(self, gpus: int) -> Place | None:
        """Whole nodes first, the rest on the fullest node that has room; None where there is none."""
        whole, rest = divmod(gpus, self.size)
        if len(self.by_free[self.size]) < whole:
            return None
        taken = list(self._preference(self.by_free[self.size]))[:whole] if whole else []
        place = [(node, self.size) for node in taken]
        for free in range(rest, self.size + 1) if rest else ():
            left = [node for node in self._preference(self.by_free[free]) if node not in taken]
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
        queueing: `strict`, `first-fit`, or `in-time`: only who ends before the first that is blocked can start may
            overtake it (EASY lets those by, too, that use what is free beside it).
        window: `in-time` looks at so many that go on waiting.
        ended: is told of each job that ends.
    """

    def __init__(
        self,
        jobs: Jobs,
        key: Callable[[int], float],
        queueing: str = "first-fit",
        nodes: int = 64,
        size: int = 8,
        *,
        preference: Preference = lowest,
        window: float = inf,
        ended: Callable[[int], None] = lambda job: None,
    ) -> None:
        self._jobs, self._key, self._ended, self._window = jobs, key, ended, window
        self._decide = {"strict": self._strict, "first-fit": self._first_fit, "in-time": self._in_time}[queueing]
        self._by_size = queueing == "first-fit"
        self._pool = Nodes(nodes, size, preference)
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
                self._ended(job)
            while arrived < many and jobs.submit_s[arrived] <= self._now_s:
                queue = self._queues.setdefault(jobs.gpus[arrived] if self._by_size else 0, [])
                insort(queue, (self._key(arrived), arrived))
                arrived += 1
            self._decide()
        return np.asarray(self._start_s - jobs.submit_s)

    def _begin(self, job: int) -> bool:
        """Start a job, if there is room."""
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

    def _in_time(self) -> None:
        self._strict()
        queue, jobs = self._queues[0], self._jobs
        if len(queue) < 2 or not any(self._pool.free):
            return
        by_s = self._first_start_s(jobs.gpus[queue[0][1]])
        kept, too_large = [queue[0]], set[int]()
        for place, waiting in enumerate(queue[1:], 1):
            if len(kept) > self._window:
                kept += queue[place:]
                break
            job = waiting[1]
            if jobs.gpus[job] not in too_large and self._now_s + jobs.run_s[job] <= by_s:
                if self._begin(job):
                    continue
                too_large.add(jobs.gpus[job])
            kept.append(waiting)
        queue[:] = kept

    def _first_start_s(self, gpus: int) -> float:
        """When so many GPUs can be had, as those that run end."""
        free, size = self._pool.free.copy(), self._pool.size
        for end_s, job in self._ends:
            for node, used in self._places[job]:
                free[node] += used
            whole = free.count(size)
            if whole >= -(-gpus // size) or (gpus < size and max(free) >= gpus):
                return end_s
        raise AssertionError("it never fits")


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


REMAINING, REMAINING_AREA, ATTAINED_AREA, TWO_QUEUES = range(4)


@entry
def waits_in_rounds_s(
    submit_s: Numbers, run_s: Numbers, gpus: NDArray[np.int64], order: int, of: int, round_s: float, restart_s: float
) -> Numbers:
    """(jobs,) Waits where GPUs are only counted, and it is decided at the begin of each round, and never within one.

    All jobs are put in order, those that run among them, and get GPUs as long as there are enough. A job that goes on
    after a stop has `restart_s` more to do, which counts as service, too. Rounds begin with the first submission.

    Args:
        order: `REMAINING` time, the same x GPUs, attained service x GPUs, or `TWO_QUEUES` of the latter (3,200 GPU-s).
        of: GPUs of the cluster.
    """
    many, count, arrived, now_s = len(run_s), 0, 0, submit_s[0]
    left_s, attained_s, index, end_s = run_s.copy(), np.zeros(many), np.zeros(many), np.zeros(many)
    runs, has_begun = np.zeros(many, np.bool_), np.zeros(many, np.bool_)
    present = np.zeros(many, np.int64)
    while arrived < many or count > 0:
        if count == 0 and submit_s[arrived] > now_s:
            now_s += np.ceil((submit_s[arrived] - now_s) / round_s) * round_s
        while arrived < many and submit_s[arrived] <= now_s:
            present[count] = arrived
            count += 1
            arrived += 1
        for place in range(count):
            job = present[place]
            if order == REMAINING:
                index[place] = left_s[job]
            elif order == REMAINING_AREA:
                index[place] = left_s[job] * gpus[job]
            elif order == ATTAINED_AREA:
                index[place] = attained_s[job] * gpus[job]
            else:
                index[place] = 1.0 if attained_s[job] * gpus[job] >= 3200 else 0.0
        free = of
        for place in np.argsort(index[:count], kind="mergesort"):
            job = present[place]
            if gpus[job] > free:
                runs[job] = False
                continue
            free -= gpus[job]
            if has_begun[job] and not runs[job]:
                left_s[job] += restart_s
            runs[job], has_begun[job] = True, True
            if left_s[job] <= round_s:
                end_s[job] = now_s + left_s[job]
            left_s[job] -= round_s
            attained_s[job] += round_s
        still = 0
        for place in range(count):
            if left_s[present[place]] > 0:
                present[still] = present[place]
                still += 1
        count, now_s = still, now_s + round_s
    return end_s - submit_s - run_s
