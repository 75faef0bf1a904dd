"""Waiting jobs by demand, and which running jobs are preempted for one that comes before them.

Waiting jobs (`WaitingClass`): if one job with some demand can't start now, none with that demand can.

Preemption (`PoolRanking.make_room`): a trial stops running jobs with a larger index than the waiting job's, the last by
(index, number) first, until its gang fits; jobs with an equal index continue. Each decision runs this trial for some
jobs, mostly without success, so the trial is the only compiled part of the scheduler; no other version of it exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jobs.policies.job_cluster import Allocation, Placement, Pool
from jobs.policies.job_orders import RUNNING, JobBook
from kit.jit import entry, kernel

# --------------------------------------------------------------------------------------------------------- waiting jobs


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
            position = int(np.searchsorted(jobs[:count], job))
            jobs[position + 1 : count + 1] = jobs[position:count]
            indices[position + 1 : count + 1] = indices[position:count]
            self._head = self._first = None
        else:
            position = count
            if self._head is not None and index < indices[self._head]:
                self._head, self._first = position, None
        jobs[position], indices[position] = job, index
        self.count = count + 1

    def remove(self, position: int) -> int:
        """Remove the job at a position, and return its number."""
        job, count = int(self._jobs[position]), self.count
        self._jobs[position : count - 1] = self._jobs[position + 1 : count]
        self._index[position : count - 1] = self._index[position + 1 : count]
        self.count = count - 1
        self._head = self._first = None
        return job

    def set_indices(self, indices: NDArray[np.float64]) -> None:
        """Replace the jobs' indices, (count,)."""
        self._index[: self.count] = indices
        self._head = self._first = None

    @property
    def head(self) -> int:
        """The position of the first job in order."""
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
        """Return the position of the first job in order that may start; None if none may."""
        position = int(np.where(may, self.index, np.inf).argmin())
        return position if may[position] else None

    def key_at(self, position: int) -> tuple[float, int]:
        """Return the key that decides between jobs of several classes: the index, then the number."""
        return float(self._index[position]), int(self._jobs[position])


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


# --------------------------------------------------------------------------------------------------------- running jobs


_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]


class Running:
    """Running jobs of a pool.

    Args:
        has_columns: whether to store GPUs by job and node as columns, too: a row for each job and node, in any order.

    Attributes:
        held: each job's allocation, by positions in the pool.
        ends: (end by estimate, job), ascending, if it is used.
        free: (nodes,) GPUs that no job in the columns holds.
        is_up: (nodes,) whether a node is in service.
    """

    def __init__(self, pool: Pool, has_columns: bool) -> None:
        self.pool, self._has_columns = pool, has_columns
        self.held: dict[int, Allocation] = {}
        self.ends: list[tuple[int, int]] = []
        self.free = np.full(len(pool.nodes), pool.size)
        self.is_up = np.ones(len(pool.nodes), np.bool_)
        self._jobs, self._nodes, self._gpus = np.zeros((3, 64), np.int64)
        self._row_of: dict[tuple[int, int], int] = {}  # of job and node

    @property
    def gpus(self) -> int:
        """GPUs that its jobs hold."""
        return sum(gpus for allocation in self.held.values() for _, gpus in allocation)

    def add(self, job: int, allocation: Allocation) -> None:
        """Record that a job holds these GPUs from now on."""
        self.held[job] = allocation
        for node, gpus in allocation if self._has_columns else ():
            row = len(self._row_of)
            if row == len(self._jobs):
                columns = np.stack([self._jobs, self._nodes, self._gpus])
                self._jobs, self._nodes, self._gpus = np.concatenate([columns, columns], axis=1)
            self._jobs[row] = job
            self._nodes[row] = node
            self._gpus[row] = gpus
            self._row_of[job, node] = row
            self.free[node] -= gpus

    def remove(self, job: int) -> Allocation:
        """Remove a job and return its GPUs; in the columns, the last row replaces its row."""
        allocation = self.held.pop(job)
        jobs = self._jobs
        nodes = self._nodes
        gpus = self._gpus
        for node, used in allocation if self._has_columns else ():
            self.free[node] += used
            row, last = self._row_of.pop((job, node)), len(self._row_of)
            if row != last:
                jobs[row] = jobs[last]
                nodes[row] = nodes[last]
                gpus[row] = gpus[last]
                self._row_of[int(jobs[last]), int(nodes[last])] = row
        return allocation

    def columns(self) -> tuple[_Ints, _Ints, _Ints]:
        """Return (rows,) each: jobs, nodes, GPUs; as they are now."""
        many = len(self._row_of)
        return self._jobs[:many].copy(), self._nodes[:many].copy(), self._gpus[:many].copy()


@dataclass(frozen=True, slots=True, eq=False)
class PoolRanking:
    """The running jobs of a pool at an instant, with their indices at it: the last is preempted first.

    Attributes:
        index, jobs, nodes, gpus: (rows,) columns.
        latest_ns: jobs started later may not be preempted, nor jobs that have stopped or ended since.
    """

    index: NDArray[np.float64]
    jobs: _Ints
    nodes: _Ints
    gpus: _Ints
    latest_ns: int
    running: Running

    def make_room(
        self, waiting: WaitingClass, placement: Placement, book: JobBook
    ) -> tuple[Allocation, list[int]] | None:
        """Return the placement of a class's first job if some of a larger index stop, and these; None if it never fits.

        They stop one after another until it fits. Jobs whose stop turns out to be unnecessary continue, the first in
        order before the others.
        """
        running = self.running
        stopped = np.empty(len(self.jobs), np.int64)
        index, _ = waiting.first
        nodes = running.pool.fewest_nodes(waiting.gpus, waiting.nodes) if waiting.nodes > 1 else 0
        many = _stops(
            self.index, self.jobs, self.nodes, self.gpus, index, book.state, book.since_ns, self.latest_ns,
            running.free, running.is_up, running.pool.size, waiting.gpus, nodes, placement.may_spread, stopped,
        )  # fmt: skip
        return _room(running, waiting, placement, stopped[:many].tolist()) if many else None


# ------------------------------------------------------------------------------------------------------------ the trial


@kernel
def _fits(free: _Ints, is_up: _Flags, size: int, gpus: int, nodes: int, may_spread: bool) -> bool:
    """Return whether a gang fits: evenly on `nodes` nodes, unless 0; on the fewest, or anywhere."""
    if nodes:
        part = gpus // nodes + 1
        many = gpus % nodes
        least = gpus // nodes
        all_of_them = nodes
    else:
        part = size
        many = gpus // size
        least = gpus % size
        all_of_them = -(-gpus // size)
    total = parts = others = 0
    for node in range(len(free)):
        if is_up[node]:
            total += free[node]
            if free[node] >= part:
                parts += 1
            if free[node] >= least:
                others += 1
    return total >= gpus if may_spread and not nodes else parts >= many and others >= all_of_them


@kernel
def _last(index: NDArray[np.float64], jobs: _Ints, rows: _Ints) -> int:
    """Return the job that comes last of these rows."""
    last = rows[0]
    for row in rows[1:]:
        if index[row] > index[last] or (index[row] == index[last] and jobs[row] > jobs[last]):
            last = row
    return int(jobs[last])


@entry
def _stops(
    index: NDArray[np.float64],
    jobs: _Ints,
    nodes: _Ints,
    gpus: _Ints,
    least: float,
    state: _Ints,
    since_ns: _Ints,
    latest_ns: int,
    free_now: _Ints,
    is_up: _Flags,
    size: int,
    needed: int,
    on_nodes: int,
    may_spread: bool,
    stopped: _Ints,
) -> int:
    """Stop jobs of an index above the least until a gang fits; returns how many are in its way, 0 if it never fits.

    Args:
        stopped: (rows,) receives their numbers, the last first.
    """
    rows, free = np.empty(len(jobs), np.int64), free_now.copy()
    behind = 0
    for row in range(len(jobs)):
        job = jobs[row]
        if index[row] > least and state[job] == RUNNING and since_ns[job] <= latest_ns:
            rows[behind] = row
            behind += 1
            free[nodes[row]] += gpus[row]
    if not _fits(free, is_up, size, needed, on_nodes, may_spread):
        return 0
    free[:] = free_now
    going_on = behind  # these rows come first, rows of stopped jobs follow, the last to stop first
    while not _fits(free, is_up, size, needed, on_nodes, may_spread):
        last = _last(index, jobs, rows[:going_on])
        for position in range(going_on - 1, -1, -1):
            row = rows[position]
            if jobs[row] == last:
                going_on -= 1
                rows[position], rows[going_on] = rows[going_on], row
                free[nodes[row]] += gpus[row]
    enough = needed // on_nodes if on_nodes else 1 if may_spread else needed % size or size
    many = 0
    for row in rows[going_on:behind][::-1]:
        is_new = many == 0 or stopped[many - 1] != jobs[row]
        if is_new and free[nodes[row]] >= enough:  # other nodes can't be chosen
            stopped[many] = jobs[row]
            many += 1
    return many


def _room(
    running: Running, waiting: WaitingClass, placement: Placement, stopped: Sequence[int]
) -> tuple[Allocation, list[int]]:
    """Return the gang's allocation if these jobs stop, and which of them must."""
    trial, held = running.pool.clone(), running.held
    for job in stopped:
        trial.give(held[job])
    allocation = placement.search(trial, waiting.gpus, waiting.nodes)
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
