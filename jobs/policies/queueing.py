"""Queueing disciplines: reservations, backfilling and rounds, if running jobs end as estimated."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import groupby
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jobs.policies.job_cluster import Allocation, Pool, Search
from jobs.policies.job_ledger import JobLedger
from jobs.policies.job_orders import Demands, Features, Objective
from jobs.policies.preemption import CompetingClasses, WaitingClass

Ends = Sequence[tuple[int, Allocation]]  # (time, GPUs then freed), ascending by time


@dataclass(slots=True)
class Reservation:
    """GPUs reserved for one job from a time on.

    Attributes:
        at_ns: the job's start.
        extra: by node, GPUs free then in addition to the job's.
        spare: the pool for jobs that will still run then: GPUs free both now and then.
    """

    at_ns: int
    extra: list[int]
    spare: Pool

    def start_beside(self, pool: Pool, allocation: Allocation, is_long: bool) -> None:
        """Record that a job has started in the pool; a long one will still run at `at_ns`."""
        for position, gpus in allocation:
            if is_long:
                self.extra[position] -= gpus
            spare = min(pool.free[position], self.extra[position])
            self.spare.move(position, spare - self.spare.free[position])


def reserve(pool: Pool, waiting: WaitingClass, search: Search, ends: Ends) -> Reservation | None:
    """Reserve for a job that does not fit now; None if it won't, because nodes are down."""
    then = pool.clone()
    for at_ns, freed in groupby(ends, key=lambda end: end[0]):
        for _, allocation in freed:
            then.give(allocation)
        if then.free_gpus < waiting.gpus:
            continue
        placement = search(then, waiting.gpus, waiting.nodes)
        if placement is not None:
            then.take(placement)
            return Reservation(at_ns, then.free, pool.with_free(list(map(min, pool.free, then.free))))
    return None


class FreeGpuProfile:
    """The free GPUs of a pool's nodes over time, in steps; the last step has no end."""

    def __init__(self, pool: Pool, now_ns: int, ends: Ends) -> None:
        self._pool = pool
        self._times, self._free = [now_ns], [pool.free.copy()]
        for at_ns, allocation in ends:
            if at_ns > self._times[-1]:
                self._times.append(at_ns)
                self._free.append(self._free[-1].copy())
            for position, gpus in allocation:
                self._free[-1][position] += gpus

    def earliest(self, waiting: WaitingClass, length_ns: int, search: Search) -> tuple[int, Allocation] | None:
        """Return the earliest time and place for a job of this length; None if there is none (nodes are down)."""
        for step, at_ns in enumerate(self._times):
            after = bisect_left(self._times, at_ns + length_ns, lo=step + 1)
            least = [min(frees) for frees in zip(*self._free[step:after], strict=True)]
            if sum(least) < waiting.gpus:
                continue
            allocation = search(self._pool.with_free(least), waiting.gpus, waiting.nodes)
            if allocation is not None:
                return at_ns, allocation
        return None

    def take(self, allocation: Allocation, from_ns: int, to_ns: int) -> None:
        """Take these GPUs for an interval."""
        first, after = self._cut(from_ns), self._cut(to_ns)
        for free in self._free[first:after]:
            for position, gpus in allocation:
                free[position] -= gpus

    def _cut(self, at_ns: int) -> int:
        """Return the step that begins at a time; creates it if there is none."""
        step = bisect_left(self._times, at_ns)
        if step == len(self._times) or self._times[step] != at_ns:
            self._times.insert(step, at_ns)
            self._free.insert(step, self._free[step - 1].copy())
        return step


# ------------------------------------------------------------------------------------------------------------- queueing
# Which jobs may overtake which: one word in a policy file.
#
#     strict        none: a first job that does not fit closes its pools to all behind it
#     first-fit     any job that fits
#     easy          any job that fits and does not delay the first that does not (Lifka, JSSPP'95): it has a
#                   reservation, at the earliest time at which it fits if running jobs end as estimated
#     conservative  any job that fits and delays none before it: all have reservations (Mu'alem and Feitelson 2001)
#     choice        the chosen job (`jobs.policies.chosen_queueing`)
#
# A reservation is of nodes. Each decision recomputes reservations, from the jobs in their present order. Under `easy` a
# pool has one: jobs that share no pool do not wait for each other. A job beyond its estimate is assumed to end in a
# second.


_Heads = list[tuple[tuple[float, int], int]]  # a heap of (key, number of the class)


def _heads(classes: Sequence[WaitingClass], ledger: JobLedger) -> _Heads:
    ledger.refresh(classes)
    heads = [(waiting.first, number) for number, waiting in enumerate(classes)]
    heapify(heads)
    return heads


def _first_fit(line: CompetingClasses, ledger: JobLedger) -> None:
    classes = line.touched
    if not ledger.is_preemptive:  # a job that does not fit now won't after others have started
        classes = ledger.fitting(classes)
        if not classes:
            return
    heads, stopped = _heads(classes, ledger), ledger.stopped
    blocked: dict[Hashable, int] = {}  # by pools: no job of this demand or more can start there any more
    while heads and ledger.stopped == stopped:  # after a stop decide again: the rest is the first's in line
        _, number = heappop(heads)
        waiting = classes[number]
        # node counts are not comparable: 14 GPUs on two nodes of 8 may not fit although 18, evenly on three, do
        key = waiting.pools, waiting.nodes > 1 and (waiting.nodes, waiting.gpus)
        if waiting.demand_milli >= blocked.get(key, waiting.demand_milli + 1):
            continue
        if not ledger.try_head(waiting):
            blocked[key] = waiting.demand_milli
        elif waiting.count:
            heappush(heads, (waiting.first, number))


def _strict(line: CompetingClasses, ledger: JobLedger) -> None:
    classes = [waiting for waiting in line.classes if waiting.count]
    if not ledger.is_preemptive and not ledger.fitting(classes):
        return
    ledger.refresh(classes)
    closed: list[Pool] = []
    while classes:
        waiting = min(classes, key=attrgetter("first"))
        if not ledger.try_head(waiting, closed):
            closed += waiting.pools
            classes = [waiting for waiting in classes if any(pool not in closed for pool in waiting.pools)]
        elif not waiting.count:
            classes.remove(waiting)


# ------------------------------------------------------------------------------------------------------------ easy


def _easy(line: CompetingClasses, ledger: JobLedger) -> None:
    classes = [waiting for waiting in line.classes if waiting.count]
    if not ledger.fitting(classes):
        return
    heads, reserved = _heads(classes, ledger), dict[int, Reservation]()
    while heads:
        key, number = heappop(heads)
        waiting = classes[number]
        position = _first_allowed(waiting, reserved, ledger)
        if position is None:
            if any(pool.index in reserved for pool in waiting.pools):
                continue
            if not ledger.fitting(classes[other] for _, other in heads):
                return
            _keep_for(waiting, reserved, ledger)
        elif waiting.key_at(position) != key:
            heappush(heads, (waiting.key_at(position), number))
        else:
            _start_allowed(waiting, position, reserved, ledger)
            if waiting.count:
                heappush(heads, (waiting.first, number))


def _first_allowed(waiting: WaitingClass, reserved: Mapping[int, Reservation], ledger: JobLedger) -> int | None:
    """Return the position of the first job of a class that may start now and delays no reservation."""
    may: NDArray[np.bool_] | None = None
    for pool in waiting.pools:
        if ledger.search(pool, waiting.gpus, waiting.nodes) is None:
            continue
        reservation = reserved.get(pool.index)
        if reservation is None or ledger.search(reservation.spare, waiting.gpus, waiting.nodes) is not None:
            return waiting.head
        in_time = ledger.lengths_ns(waiting, pool) <= reservation.at_ns - ledger.now_ns
        may = in_time if may is None else may | in_time
    return None if may is None else waiting.first_of(may)


def _start_allowed(
    waiting: WaitingClass, position: int, reserved: Mapping[int, Reservation], ledger: JobLedger
) -> None:
    for pool in waiting.pools:
        reservation = reserved.get(pool.index)
        if reservation is None:
            allocation, is_long = ledger.search(pool, waiting.gpus, waiting.nodes), False
        else:
            is_long = bool(ledger.lengths_ns(waiting, pool)[position] > reservation.at_ns - ledger.now_ns)
            allocation = ledger.search(reservation.spare if is_long else pool, waiting.gpus, waiting.nodes)
        if allocation is not None:
            ledger.start(waiting, position, pool, allocation)
            if reservation is not None:
                reservation.start_beside(pool, allocation, is_long)
            return
    raise AssertionError("a job that may start fits nowhere")


def _keep_for(waiting: WaitingClass, reserved: dict[int, Reservation], ledger: JobLedger) -> None:
    """Reserve for the first job of a class, in the pool in which it can start first, if there is one."""
    reservations = [reserve(pool, waiting, ledger.search, ledger.ends(pool)) for pool in waiting.pools]
    times = [(one.at_ns, number) for number, one in enumerate(reservations) if one is not None]
    if times:
        _, number = min(times)
        reservation = reservations[number]
        assert reservation is not None
        reserved[waiting.pools[number].index] = reservation


# ---------------------------------------------------------------------------------------------------- conservative


def _conservative(line: CompetingClasses, ledger: JobLedger) -> None:
    classes = [waiting for waiting in line.classes if waiting.count]
    if not ledger.fitting(classes):
        return  # reservations are recomputed each time, so they matter only if a job can start
    ledger.refresh(classes)
    queue = sorted((waiting.key_at(position), waiting) for waiting in classes for position in range(waiting.count))
    profiles = dict[int, FreeGpuProfile]()
    for (_, job), waiting in queue:
        position = int(np.searchsorted(waiting.jobs, job))
        _reserve_all(waiting, position, profiles, ledger)


def _reserve_all(waiting: WaitingClass, position: int, profiles: dict[int, FreeGpuProfile], ledger: JobLedger) -> None:
    """Give a job the earliest time that the jobs before it leave; start it if that is now."""
    reservations = []
    for order, pool in enumerate(waiting.pools):
        profile = profiles.get(pool.index)
        if profile is None:
            profile = profiles[pool.index] = FreeGpuProfile(pool, ledger.now_ns, ledger.ends(pool))
        length_ns = int(ledger.lengths_ns(waiting, pool)[position])
        slot = profile.earliest(waiting, length_ns, ledger.search)
        if slot is not None:
            reservations.append((slot[0], order, slot[1], length_ns))
    if reservations:
        at_ns, order, allocation, length_ns = min(reservations)
        pool = waiting.pools[order]
        profiles[pool.index].take(allocation, at_ns, at_ns + length_ns)
        if at_ns == ledger.now_ns:
            ledger.start(waiting, position, pool, allocation)


Queueing = Callable[[CompetingClasses, JobLedger], None]
QUEUEINGS: Final[Mapping[str, Queueing]] = {
    "strict": _strict,
    "first-fit": _first_fit,
    "easy": _easy,
    "conservative": _conservative,
}


# --------------------------------------------------------------------------------------------------------------- rounds
# Rounds: jobs run on fixed GPUs until the next round, so that over time each job gets its shares (Gavel, section 5).
#
# At the beginning of a round, jobs and pools are paired by priority, the largest first, until the GPUs are used up:
#
#     priority[m, k] = (rounds that m should have had in k, by its shares) / (rounds that it has had there)
#
# Pools in which a job is equally fast count as one: the sums are over all of them, and the job stays in its pool if it
# can. Both count from the job's first round on. While shares don't change, this is the paper's X[m, k] / (fraction of
# the rounds received). Gavel's code restarts the count whenever it has new shares. Among jobs that have received
# nothing yet, that which is owed most comes first; among equal priorities, the older job.
#
# A job that stays in its pool stays on its nodes, if all other chosen jobs have room next to it. If not, all are placed
# again, the largest first; if even then not all have room, by priority. Within a round nothing is decided: a new job
# waits for the next round, and freed GPUs stay idle until then, as in Gavel. Shares are recomputed when jobs or nodes
# have come or gone.


_NOTHING: Final = 1e-6  # a smaller share counts as 0
Numbers = NDArray[np.float64]
Pairs = NDArray[np.bool_]  # (jobs, pools, pools) whether a job is equally fast in both


class Rounds:
    """A queueing that decides when a round begins; jobs that need stopped jobs' GPUs start right after the stops."""

    def __init__(self, objective: Objective, round_ns: int, pools: int) -> None:
        self._objective = objective
        self._round_ns = round_ns
        self._pools = pools
        self._owed, self._had = np.zeros((0, pools)), np.zeros((0, pools))  # rounds by job and pool
        self._planned: dict[int, tuple[Pool, Allocation]] = {}  # jobs to start at this instant
        self._planned_ns = 0
        self._begun: dict[int, int] = {}  # by pool, when its last round began
        self._shares: dict[int, tuple[bytes, Numbers, Pairs]] = {}  # by pool: problem solved, and result

    def __call__(self, line: CompetingClasses, ledger: JobLedger) -> None:
        """Begin a round, if it is due; or start jobs that waited for stops."""
        pools = [pool for _, pool in sorted({pool.index: pool for each in line.classes for pool in each.pools}.items())]
        if ledger.now_ns % self._round_ns == 0 and self._begun.get(pools[0].index) != ledger.now_ns:
            self._begun.update((pool.index, ledger.now_ns) for pool in pools)
            self._planned = self._planned if self._planned_ns == ledger.now_ns else {}
            self._planned_ns = ledger.now_ns
            self._begin(line, pools, ledger)
        _start(line, self._planned, ledger)

    def _begin(self, line: CompetingClasses, pools: Sequence[Pool], ledger: JobLedger) -> None:
        members = [each.jobs for each in line.classes] + [
            np.array(list(ledger.running[pool.index].held), np.int64) for pool in pools
        ]
        jobs = np.sort(np.concatenate(members))
        if len(jobs):
            shares, is_equal = self._shares_of(jobs, pools, ledger)
            pool_of = self._choose(jobs, shares, is_equal, pools, ledger)
            for pool in pools:
                self._arrange(pool, [job for job, where in pool_of.items() if where is pool], ledger)

    # ------------------------------------------------------------------------------------------------------ shares

    def _shares_of(self, jobs: NDArray[np.int64], pools: Sequence[Pool], ledger: JobLedger) -> tuple[Numbers, Pairs]:
        """Return (jobs, pools) shares, cached while jobs and GPUs don't change; and each job's equally fast pools."""
        capacity = np.array([pool.free_gpus + ledger.running[pool.index].gpus for pool in pools], np.float64)
        key = jobs.tobytes() + capacity.tobytes()
        cached = self._shares.get(pools[0].index)
        if cached is None or cached[0] != key:
            cached = self._shares[pools[0].index] = key, *self._solve(jobs, pools, capacity, ledger)
        return cached[1:]

    def _solve(
        self, jobs: NDArray[np.int64], pools: Sequence[Pool], capacity: Numbers, ledger: JobLedger
    ) -> tuple[Numbers, Pairs]:
        classes = [ledger.class_of[job] for job in jobs.tolist()]
        if self._objective.is_by_job:
            heads, rows = np.arange(len(jobs)), np.arange(len(jobs))
        else:
            numbers = {id(waiting): number for number, waiting in enumerate(dict.fromkeys(classes))}
            rows = np.array([numbers[id(waiting)] for waiting in classes])
            heads = np.unique(rows, return_index=True)[1]
        features = Features(ledger.book, jobs[heads], ledger.now_ns, is_running=False)
        speeds = np.array([_speeds(classes[head], pools, capacity) for head in heads])
        demands = Demands(
            gpus=np.array([classes[head].gpus for head in heads], np.float64),
            speeds=np.where(speeds > 0, 1.0, 0.0) if self._objective.is_blind else speeds,
            many=np.bincount(rows).astype(np.float64),
            capacity=capacity,
            age_s=features.now_s - features.submit_s,
            left_s=features.remaining_s,
        )
        shares = np.zeros((len(heads), len(pools)))
        can_run = np.asarray((demands.speeds > 0).any(axis=1))
        if can_run.any():
            shares[can_run] = self._objective.shares(demands.rows(can_run))
        is_equal = (speeds[:, :, None] == speeds[:, None, :]) & (speeds > 0)[:, :, None]
        return np.asarray(shares[rows]), np.asarray(is_equal[rows])

    # ------------------------------------------------------------------------------------------------- who, and where

    def _choose(
        self, jobs: NDArray[np.int64], shares: Numbers, is_equal: Pairs, pools: Sequence[Pool], ledger: JobLedger
    ) -> dict[int, Pool]:
        """Choose which jobs run in which pool in this round, by GPU counts only."""
        indices = np.array([pool.index for pool in pools])
        self._make_room(int(jobs[-1]))
        cells = np.ix_(jobs, indices)
        self._owed[cells] += shares
        shares, owed, had = (
            np.matmul(is_equal, each[:, :, None])[:, :, 0] for each in (shares, self._owed[cells], self._had[cells])
        )
        last = np.tile([-float(pool.free_gpus) for pool in pools], (len(jobs), 1))  # among equally fast pools
        for position, pool in enumerate(pools):
            last[np.searchsorted(jobs, list(ledger.running[pool.index].held)), position] = -np.inf
        rows, positions = (shares > _NOTHING).nonzero()
        priority = (owed / np.maximum(had, 1e-9))[rows, positions]
        order = np.lexsort((positions, last[rows, positions], rows, -priority))
        left = [pool.free_gpus + ledger.running[pool.index].gpus for pool in pools]
        pool_of: dict[int, Pool] = {}
        for row, position in zip(rows[order].tolist(), positions[order].tolist(), strict=True):
            job = int(jobs[row])
            gpus = ledger.class_of[job].gpus
            if left[position] >= gpus and job not in pool_of:
                left[position] -= gpus
                pool_of[job] = pools[position]
                if not any(left):
                    break
        return pool_of

    def _arrange(self, pool: Pool, jobs: Sequence[int], ledger: JobLedger) -> None:
        """Place a pool's chosen jobs on nodes; stop jobs that move or are not among them."""
        running = dict(ledger.running[pool.index].held)
        classes = {job: ledger.class_of[job] for job in jobs}
        largest_first = sorted(jobs, key=lambda job: -classes[job].gpus)
        allocations = _allocations(pool, largest_first, classes, running, ledger.search, keeps=True)
        for order in (largest_first, jobs):
            if len(allocations) < len(jobs):
                allocations = _allocations(pool, order, classes, running, ledger.search, keeps=False)
        for job, allocation in running.items():
            if allocations.get(job) != allocation:
                ledger.stop(job)
        for job, allocation in allocations.items():
            self._had[job, pool.index] += 1
            if running.get(job) != allocation:
                self._planned[job] = pool, allocation

    def _make_room(self, job: int) -> None:
        missing = job + 1 - len(self._owed)
        if missing > 0:
            more = np.zeros((max(missing, len(self._owed)), self._pools))
            self._owed, self._had = np.concatenate([self._owed, more]), np.concatenate([self._had, more])


def _allocations(
    pool: Pool,
    jobs: Sequence[int],
    classes: Mapping[int, WaitingClass],
    running: Mapping[int, Allocation],
    search: Search,
    keeps: bool,
) -> dict[int, Allocation]:
    """Return the allocations of these jobs, one after another; jobs without room are left out.

    With `keeps`, running jobs keep their nodes. Without, they do if these are free when it is their turn.
    """
    trial, allocations = pool.clone(), dict[int, Allocation]()
    for job, allocation in running.items():
        if keeps and job in classes:
            allocations[job] = allocation
        else:
            trial.give(allocation)
    for job in jobs:
        if job in allocations:
            continue
        stays = running.get(job)
        is_free = stays is not None and all(trial.free[node] >= used for node, used in stays)
        placement = stays if is_free else search(trial, classes[job].gpus, classes[job].nodes)
        if placement is not None:
            trial.take(placement)
            allocations[job] = placement
    return allocations


def _start(line: CompetingClasses, planned: dict[int, tuple[Pool, Allocation]], ledger: JobLedger) -> None:
    """Start planned jobs that wait now; a job that has just been stopped waits a moment later."""
    for waiting in line.classes if planned else ():
        for job in [job for job in waiting.jobs.tolist() if job in planned]:
            pool, allocation = planned.pop(job)
            ledger.start(waiting, int(np.searchsorted(waiting.jobs, job)), pool, allocation)


def _speeds(waiting: WaitingClass, pools: Sequence[Pool], capacity: Numbers) -> list[float]:
    """Return the speed in each pool; 0 if it may not run there, or too few nodes are in service."""
    by_pool = {pool.index: speed for pool, speed in zip(waiting.pools, waiting.speeds, strict=True)}
    return [
        by_pool[pool.index]
        if pool.index in by_pool and room >= pool.fewest_nodes(waiting.gpus, waiting.nodes) * pool.size
        else 0.0
        for pool, room in zip(pools, capacity.tolist(), strict=True)
    ]
