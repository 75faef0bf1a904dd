"""The scheduler's state of jobs and GPUs, with what queueings may do: test for room, start, stop, preempt."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from jobs.policies.job_cluster import (
    PLACEMENTS,
    WHOLE_MILLI,
    Allocation,
    Cluster,
    GpuSlots,
    JobCommand,
    NodeGroup,
    Pool,
    PreemptJob,
    SharedGpus,
    Slots,
    Speeds,
    StartJob,
    Variability,
    length_ns,
)
from jobs.policies.job_orders import NEVER_NS, RUNNING, STOPPING, WAITING, Accounts, Features, JobBook, order_of
from jobs.policies.named_policies import RESERVING, JobPolicy
from jobs.policies.preemption import CompetingClasses, PoolRanking, Running, WaitingClass
from jobs.policies.run_times import DurationHistory, GittinsTables
from kit.units import NS_PER_S


class JobLedger:
    """State of waiting and running jobs, the GPUs that they hold, and the resulting commands.

    Attributes:
        search: how a pool's nodes are searched.
        is_preemptive: whether running jobs may be preempted.
        waiting, stopped: number of waiting jobs, and of all stops so far.
        class_of: the demand of each job that is not gone.
        running: running jobs by pool.
    """

    def __init__(
        self,
        policy: JobPolicy,
        groups: Iterable[NodeGroup],
        speeds: Speeds | None = None,
        variability: Variability | None = None,
    ) -> None:
        self.policy = policy
        self.cluster = Cluster(groups)
        self.now_ns = 0
        self.next_wake_ns: int | None = None
        self.waiting = self.stopped = 0
        self.book = JobBook()
        self.history = DurationHistory()
        self.commands = list[JobCommand]()
        self.placement = PLACEMENTS[policy.placement]
        self.search, self.is_preemptive = self.placement.search, policy.is_preemptive
        self.class_of: dict[int, WaitingClass] = {}
        self.running = [Running(pool, has_columns=policy.is_preemptive) for pool in self.cluster.pools]
        order = order_of(
            policy.order,
            lambda: GittinsTables(self.history, policy.params.restart_ns / NS_PER_S),
            lambda: Accounts(policy.multifactor, self.cluster.gpus, self.cluster.nodes),
        )
        self.order = order.guarded(policy.age_guard_ns) if policy.age_guard_ns else order
        self.speeds = speeds or Speeds()
        is_aware = self.placement.is_variability_aware
        self.slots = None if variability is None else GpuSlots(self.cluster, variability, is_aware)
        self._shared = SharedGpus()
        self._restart_s = policy.params.restart_ns / NS_PER_S if policy.is_preemptive else 0.0
        self._indices_move = self.order.wait_moves or (self.order.tables, self.order.accounts) != (None, None)
        self._keeps_ends = policy.queueing in RESERVING
        self._lines: dict[int, CompetingClasses] = {}  # by pool; pools that a job may choose between share one
        self._touched: dict[int, CompetingClasses] = {}  # lines to decide on, by `id`
        self._pool_of: dict[int, Pool] = {}  # of running jobs
        self._rankings: dict[int, PoolRanking] = {}  # by pool, for an instant and the tables of an order
        self._rankings_of = -1, 0

    # ----------------------------------------------------------------------------------------------- waiting jobs

    def _touch(self, line: CompetingClasses) -> None:
        """Schedule a decision on this line for the end of this instant."""
        self._touched[id(line)] = line
        self.next_wake_ns = self.now_ns

    def _open(self, pool: Pool) -> None:
        """Mark a change in a pool."""
        self.next_wake_ns = self.now_ns
        line = self._lines.get(pool.index)
        if line is not None:
            line.is_open = True
            self._touch(line)

    def _wait(self, job: int, waiting: WaitingClass) -> None:
        book = self.book
        book.state[job] = WAITING
        book.since_ns[job] = self.now_ns
        book.from_ns[job] = NEVER_NS
        index = self.order.index(Features(book, job, self.now_ns, is_running=False, restart_s=self._restart_s))
        waiting.add(job, float(index))
        if self._indices_move and waiting.count == 1:
            waiting.version = self._version
        self.waiting += 1
        line = self._lines[waiting.pools[0].index]
        line.fresh.append(waiting)
        self._touch(line)

    # ------------------------------------------------------------------------------------- what a queueing requests

    def fitting(self, classes: Iterable[WaitingClass]) -> list[WaitingClass]:
        """Return classes of which a job can start now on free GPUs."""
        largest: dict[int, int] = {}  # by pool, the largest gang that fits
        fits = []
        for waiting in classes:
            if waiting.milli < WHOLE_MILLI:  # there may be room next to others' shares
                fits.append(waiting)
                continue
            for pool in waiting.pools:
                if pool.index not in largest:
                    largest[pool.index] = self.placement.largest(pool)
                if (
                    waiting.gpus <= largest[pool.index]
                    if waiting.nodes == 1
                    else self.search(pool, waiting.gpus, waiting.nodes) is not None
                ):
                    fits.append(waiting)
                    break
        return fits

    def refresh(self, classes: Iterable[WaitingClass]) -> None:
        """Update the indices of classes whose indices have changed."""
        for waiting in classes if self._indices_move else ():
            if waiting.version != self._version:
                waiting.version = self._version
                features = Features(self.book, waiting.jobs, self.now_ns, is_running=False, restart_s=self._restart_s)
                waiting.set_indices(self.order.index(features))

    @property
    def _version(self) -> tuple[int, int]:
        """What waiting jobs' indices depend on: time, if they change with it; the version of tables or accounts."""
        order, moved_ns = self.order, self.now_ns if self.order.wait_moves else 0
        if order.accounts is not None:
            return moved_ns, order.accounts.advance(self.now_ns)
        return moved_ns, 0 if order.tables is None else order.tables.version

    def lengths_ns(self, waiting: WaitingClass, pool: Pool) -> NDArray[np.int64]:
        """Return (count,) the estimated run time of each job of a class in a pool."""
        book, jobs = self.book, waiting.jobs
        left_ns = np.maximum(book.estimate_ns[jobs] - book.done_ns[jobs], 1)
        speed = waiting.speeds[waiting.pools.index(pool)]
        at_speed_ns = left_ns if speed == 1.0 else np.ceil(left_ns / speed).astype(np.int64)
        return np.asarray(at_speed_ns + np.where(book.begun[jobs] > 0, self.policy.params.restart_ns, 0))

    def ends(self, pool: Pool) -> list[tuple[int, Allocation]]:
        """Return the estimated ends of jobs that run in a pool, and the GPUs then freed; ascending by time."""
        ends, held = self.running[pool.index].ends, self.running[pool.index].held
        late = bisect_left(ends, (self.now_ns + 1,))
        if late:
            soon_ns = self.now_ns + NS_PER_S
            ends = sorted([*((soon_ns, job) for _, job in ends[:late]), *ends[late:]])
        return [(at_ns, held[job]) for at_ns, job in ends]

    def try_head(self, waiting: WaitingClass, closed: Sequence[Pool] = ()) -> bool:
        """Start the first job of a class, preempting jobs that come after it if allowed; not in closed pools."""
        for pool in waiting.pools:
            has_room = pool.free_gpus >= waiting.gpus or waiting.milli < WHOLE_MILLI
            if has_room and pool not in closed:
                allocation = self._find(waiting, pool)
                if allocation is not None:
                    self.start(waiting, waiting.head, pool, allocation)
                    return True
        return self.is_preemptive and self._start_by_preemption(waiting, closed)

    def _find(self, waiting: WaitingClass, pool: Pool) -> Allocation | None:
        """Find an allocation in a pool for the first job of a class."""
        if self.slots is not None and self.slots.is_aware and waiting.nodes == 1:
            return self.slots.search(int(waiting.jobs[waiting.head]), pool, waiting.gpus)
        if waiting.milli < WHOLE_MILLI:
            return self._shared.find(pool, waiting.milli, self.search)
        return self.search(pool, waiting.gpus, waiting.nodes)

    def start(self, waiting: WaitingClass, position: int, pool: Pool, allocation: Allocation) -> None:
        """Start the job at a position of a class on free GPUs."""
        job = waiting.remove(position)
        book = self.book
        now_ns = self.now_ns
        if waiting.milli < WHOLE_MILLI:
            self._shared.take(job, pool, allocation, waiting.milli)
        else:
            pool.take(allocation)
        speed = waiting.speeds[waiting.pools.index(pool)]
        if len(allocation) > pool.fewest_nodes(waiting.gpus, waiting.nodes):
            speed /= self.speeds.spread_slowdown
        slots: Slots = ()
        if self.slots is not None:
            slots, factor = self.slots.take(job, pool, allocation)
            speed *= factor
        begins_ns = now_ns + (self.policy.params.restart_ns if book.begun[job] else 0)
        book.state[job] = RUNNING
        book.since_ns[job] = now_ns
        book.from_ns[job] = begins_ns
        book.speed[job] = speed
        book.begun[job] += 1
        self._pool_of[job] = pool
        self.running[pool.index].add(job, allocation)
        if self.order.accounts is not None:
            self.order.accounts.hold(job, waiting.gpus * waiting.milli / WHOLE_MILLI, now_ns)
        self.waiting -= 1
        if self._keeps_ends:
            insort(self.running[pool.index].ends, self._end_of(job))
        nodes = pool.nodes
        self.commands.append(StartJob(job, tuple([(nodes[position], gpus) for position, gpus in allocation]), slots))

    def _release(self, job: int) -> None:
        pool = self._pool_of.pop(job)
        allocation = self.running[pool.index].remove(job)
        if self.order.accounts is not None:
            gpus = self.book.gpus[job] * self.class_of[job].milli / WHOLE_MILLI
            self.order.accounts.hold(job, -float(gpus), self.now_ns)
        if self.slots is not None:
            self.slots.give(job)
        if not self._shared.give(job, pool):
            pool.give(allocation)
        if self._keeps_ends:
            self.running[pool.index].ends.remove(self._end_of(job))
        self._open(pool)

    def _end_of(self, job: int) -> tuple[int, int]:
        """Return when a running job ends, by estimate."""
        book = self.book
        left_ns = max(int(book.estimate_ns[job] - book.done_ns[job]), 1)
        return int(book.from_ns[job]) + length_ns(left_ns, float(book.speed[job])), job

    # ------------------------------------------------------------------------------------------------- preemption

    def _start_by_preemption(self, waiting: WaitingClass, closed: Sequence[Pool]) -> bool:
        for pool in waiting.pools:
            if pool in closed:
                continue
            room = self._ranking(pool).make_room(waiting, self.placement, self.book)
            if room is not None:
                allocation, victims = room
                for job in victims:
                    self.stop(job)
                self.start(waiting, waiting.head, pool, allocation)
                return True
        return False

    def stop(self, job: int) -> None:
        """Stop a running job: its GPUs may be given to another at once."""
        self._release(job)
        self.stopped += 1
        self.book.state[job] = STOPPING
        self.commands.append(PreemptJob(job))

    def _ranking(self, pool: Pool) -> PoolRanking:
        """Return the ranking of preemptible jobs in a pool at this instant: none that was started at it."""
        key = self.now_ns, 0 if self.order.tables is None else self.order.tables.version
        if self._rankings_of != key:
            self._rankings, self._rankings_of = {}, key
        ranking = self._rankings.get(pool.index)
        if ranking is None:
            params, running = self.policy.params, self.running[pool.index]
            jobs, nodes, gpus = running.columns()
            index = self.order.index(Features(self.book, jobs, self.now_ns, is_running=True))
            if params.hysteresis != 1.0:  # running jobs have an advantage
                index = np.where(index > 0, index / params.hysteresis, index * params.hysteresis)
            latest_ns = self.now_ns - max(params.min_run_ns, 1)
            ranking = PoolRanking(index, jobs, nodes, gpus, latest_ns, running)
            self._rankings[pool.index] = ranking
        return ranking
