"""Which running jobs make room for one that comes before them.

Those of a larger index stop in thought, the last by (index, number) first, until its gang fits; equals go on. That is
asked for some jobs at each decision, mostly in vain.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jobs.policies.cluster import Allocation, Placement, Pool
from jobs.policies.orders import RUNNING, JobBook

_Ints = NDArray[np.int64]
_FAR: Final = 1 << 32  # GPUs that a node out of service is away from having one free


class Running:
    """Who runs in a pool.

    Args:
        has_columns: whether who holds how many GPUs of which node is kept as columns, too: a row for each job and node,
            in any order.

    Attributes:
        held: where each job runs; places in the pool.
        ends: (end by estimate, job), ascending, where anybody asks.
        free: (nodes,) GPUs that nobody in the columns holds.
        is_up: (nodes,) whether a node is in service.
    """

    def __init__(self, pool: Pool, has_columns: bool) -> None:
        self.pool, self._has_columns = pool, has_columns
        self.held: dict[int, Allocation] = {}
        self.ends: list[tuple[int, int]] = []
        self.free = np.full(len(pool.nodes), pool.size)
        self.is_up = np.ones(len(pool.nodes), np.bool_)
        self._jobs, self._nodes, self._gpus = np.zeros((3, 64), np.int64)
        self._places: dict[tuple[int, int], int] = {}  # of job and node

    @property
    def gpus(self) -> int:
        """All that its jobs hold."""
        return sum(gpus for allocation in self.held.values() for _, gpus in allocation)

    def add(self, job: int, allocation: Allocation) -> None:
        """A job holds these GPUs from now on."""
        self.held[job] = allocation
        for node, gpus in allocation if self._has_columns else ():
            place = len(self._places)
            if place == len(self._jobs):
                columns = np.stack([self._jobs, self._nodes, self._gpus])
                self._jobs, self._nodes, self._gpus = np.concatenate([columns, columns], axis=1)
            self._jobs[place], self._nodes[place], self._gpus[place] = job, node, gpus
            self._places[job, node] = place
            self.free[node] -= gpus

    def remove(self, job: int) -> Allocation:
        """It holds its GPUs no more; in the columns, the last row takes the place of its own."""
        allocation = self.held.pop(job)
        jobs, nodes, gpus = self._jobs, self._nodes, self._gpus
        for node, used in allocation if self._has_columns else ():
            self.free[node] += used
            place, last = self._places.pop((job, node)), len(self._places)
            if place != last:
                jobs[place], nodes[place], gpus[place] = jobs[last], nodes[last], gpus[last]
                self._places[int(jobs[last]), int(nodes[last])] = place
        return allocation

    def columns(self) -> tuple[_Ints, _Ints, _Ints]:
        """(rows,) each: jobs, nodes, GPUs; as they are now."""
        many = len(self._places)
        return self._jobs[:many].copy(), self._nodes[:many].copy(), self._gpus[:many].copy()


@dataclass(frozen=True, slots=True, eq=False)
class PoolRanking:
    """Who runs in a pool at an instant, with their indices at it: who comes last gives way first.

    Attributes:
        rank: (rows,) the index of each, negated, ascending: who comes last is the first.
        jobs, nodes, gpus: (rows,) each.
        latest_ns: jobs that were started later may not be preempted, nor those that have stopped or ended since.
    """

    rank: NDArray[np.float64]
    jobs: _Ints
    nodes: _Ints
    gpus: _Ints
    latest_ns: int
    running: Running

    def make_room(
        self, gpus: int, index: float, placement: Placement, book: JobBook
    ) -> tuple[Allocation, list[int]] | None:
        """Where a gang of GPUs can go if some of a larger index stop, and who; None if not even all make room.

        They stop one after another until it fits. Those that turn out not to be needed go on, the one that comes first
        before the others.
        """
        running, behind = self.running, int(np.searchsorted(self.rank, -index))
        jobs, nodes = self.jobs[:behind], self.nodes[:behind]
        may = (book.state[jobs] == RUNNING) & (book.since_ns[jobs] <= self.latest_ns)
        held, now = self.gpus[:behind] * may, np.where(running.is_up, running.free, -_FAR)

        def free(rows: int) -> NDArray[np.float64]:
            """(nodes,) When those of so many rows have stopped."""
            return now + np.bincount(nodes[:rows], held[:rows], len(now))

        def has_room(rows: int) -> bool:
            return _fits(free(rows), running.pool.size, gpus, placement.may_spread)

        if not has_room(behind):
            return None
        ends = np.append((jobs[1:] != jobs[:-1]).nonzero()[0] + 1, behind).tolist()  # of each one's rows
        rows = ends[bisect_left(ends, True, key=has_room)]
        enough = 1 if placement.may_spread else gpus % running.pool.size or running.pool.size
        is_near = may[:rows] & (free(rows)[nodes[:rows]] >= enough)  # other nodes can't be chosen
        return _room(running, gpus, placement, list(dict.fromkeys(jobs[:rows][is_near].tolist())))


def _fits(free: NDArray[np.float64], size: int, gpus: int, may_spread: bool) -> bool:
    """Whether a gang does on nodes with so many free GPUs: on the fewest of them, or wherever."""
    if may_spread:
        return bool(free[free > 0].sum() >= gpus)
    if gpus <= size:
        return bool(free.max() >= gpus)
    whole, left = divmod(gpus, size)
    return bool((free == size).sum() >= whole and (not left or (free >= left).sum() > whole))


def _room(running: Running, gpus: int, placement: Placement, stopped: Sequence[int]) -> tuple[Allocation, list[int]]:
    """Where the gang goes if these stop, and who of them must."""
    trial, held = running.pool.clone(), running.held
    for job in stopped:
        trial.give(held[job])
    allocation = placement.search(trial, gpus)
    assert allocation is not None, "GPUs were counted as free that are not"
    left = {node: trial.free[node] - used for node, used in allocation}
    victims = []
    for job in reversed(stopped):
        mine = [(node, used) for node, used in held[job] if node in left]
        if all(left[node] >= used for node, used in mine):
            for node, used in mine:
                left[node] -= used
        else:
            victims.append(job)
    return allocation, victims
