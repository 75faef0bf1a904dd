"""Rounds: who runs on which GPUs until the next round, so that over time each job has its shares (Gavel, section 5).

At the beginning of a round, jobs and pools are paired by priority, the largest first, until the GPUs are used up:

    priority[m, k] = (rounds that m should have had in k, by its shares) / (rounds that it has had there)

Pools in which a job is equally fast are one to it: the sums are over all of them, and it stays where it is if it can.
Both count from the job's first round on. While shares stay as they are, this is the paper's X[m, k] / (fraction of the
rounds received). Gavel's code begins to count anew whenever it has new shares. Where nothing was received yet, who is
owed most comes first; where priorities are equal, the older job.

Who stays in his pool stays on his nodes, if all that were chosen have room beside him. If not, all are placed anew,
the largest first; if even so not all have room, by priority. Within a round nothing is
decided: a job that comes waits for the next one, and GPUs that become free wait with it, as in Gavel. Shares are worked
out anew when jobs have come or gone, or nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from jobs.policies.book import Features
from jobs.policies.cluster import Pool, Search
from jobs.policies.gavel import Demands, Objective
from jobs.policies.vocabulary import Allocation
from jobs.policies.waiting import Line, WaitingClass

ROUNDS: Final = "rounds"
_NOTHING: Final = 1e-6  # a share below it is none
Numbers = NDArray[np.float64]
Alike = NDArray[np.bool_]  # (jobs, pools, pools) where a job is equally fast


class Table(Protocol):
    """What the scheduler does for rounds, besides what it does for every queueing."""

    now_ns: int

    @property
    def search(self) -> Search:
        """How a pool's nodes are searched."""

    def held_in(self, pool: Pool) -> Mapping[int, Allocation]:
        """Jobs that run in a pool, and where."""

    def class_of(self, job: int) -> WaitingClass:
        """What a job needs."""

    def look_at(self, jobs: NDArray[np.int64]) -> Features:
        """What is known of jobs, whether they run or wait."""

    def start(self, waiting: WaitingClass, place: int, pool: Pool, allocation: Allocation) -> None:
        """Start the one at a place there."""

    def stop(self, job: int) -> None:
        """Stop one that runs."""


class Rounds:
    """A queueing that decides when a round begins; what must be stopped first is started at once after that."""

    def __init__(self, objective: Objective, round_ns: int, pools: int) -> None:
        self._objective, self._round_ns, self._pools = objective, round_ns, pools
        self._owed, self._had = np.zeros((0, pools)), np.zeros((0, pools))  # rounds by job and pool
        self._planned: dict[int, tuple[Pool, Allocation]] = {}  # jobs that are to be started at this instant
        self._planned_ns = 0
        self._begun: dict[int, int] = {}  # by pool, when its last round began
        self._shares: dict[int, tuple[bytes, Numbers, Alike]] = {}  # by pool: for which jobs, and what

    def __call__(self, line: Line, desk: Table) -> None:
        """Begin a round, if it is time; or start who had to be stopped first."""
        pools = [pool for _, pool in sorted({pool.index: pool for each in line.classes for pool in each.pools}.items())]
        if desk.now_ns % self._round_ns == 0 and self._begun.get(pools[0].index) != desk.now_ns:
            self._begun.update((pool.index, desk.now_ns) for pool in pools)
            self._planned = self._planned if self._planned_ns == desk.now_ns else {}
            self._planned_ns = desk.now_ns
            self._begin(line, pools, desk)
        _start(line, self._planned, desk)

    def _begin(self, line: Line, pools: Sequence[Pool], desk: Table) -> None:
        members = [each.jobs for each in line.classes] + [
            np.fromiter(desk.held_in(pool), np.int64, len(desk.held_in(pool))) for pool in pools
        ]
        jobs = np.sort(np.concatenate(members))
        if len(jobs):
            shares, alike = self._shares_of(jobs, pools, desk)
            chosen = self._choose(jobs, shares, alike, pools, desk)
            for pool in pools:
                self._arrange(pool, [job for job, where in chosen.items() if where is pool], desk)

    # ------------------------------------------------------------------------------------------------------ shares

    def _shares_of(self, jobs: NDArray[np.int64], pools: Sequence[Pool], desk: Table) -> tuple[Numbers, Alike]:
        """(jobs, pools) As they were, where neither jobs nor GPUs have changed; and which pools are alike to whom."""
        capacity = np.array([pool.free_gpus + _gpus(desk.held_in(pool)) for pool in pools], np.float64)
        key = jobs.tobytes() + capacity.tobytes()
        known = self._shares.get(pools[0].index)
        if known is None or known[0] != key:
            known = self._shares[pools[0].index] = key, *self._solve(jobs, pools, capacity, desk)
        return known[1:]

    def _solve(
        self, jobs: NDArray[np.int64], pools: Sequence[Pool], capacity: Numbers, desk: Table
    ) -> tuple[Numbers, Alike]:
        classes = [desk.class_of(job) for job in jobs.tolist()]
        if self._objective.is_by_job:
            heads, rows = np.arange(len(jobs)), np.arange(len(jobs))
        else:
            numbers = {id(each): number for number, each in enumerate(dict.fromkeys(classes))}
            rows = np.array([numbers[id(each)] for each in classes])
            heads = np.unique(rows, return_index=True)[1]
        features = desk.look_at(jobs[heads])
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
        alike = (speeds[:, :, None] == speeds[:, None, :]) & (speeds > 0)[:, :, None]
        return np.asarray(shares[rows]), np.asarray(alike[rows])

    # ------------------------------------------------------------------------------------------------- who, and where

    def _choose(
        self, jobs: NDArray[np.int64], shares: Numbers, alike: Alike, pools: Sequence[Pool], desk: Table
    ) -> dict[int, Pool]:
        """Who runs in which pool in this round, by GPUs alone."""
        columns = np.array([pool.index for pool in pools])
        self._make_room(int(jobs[-1]))
        here = np.ix_(jobs, columns)
        self._owed[here] += shares
        shares, owed, had = (
            np.matmul(alike, each[:, :, None])[:, :, 0] for each in (shares, self._owed[here], self._had[here])
        )
        last = np.tile([-float(pool.free_gpus) for pool in pools], (len(jobs), 1))  # of pools that are alike
        for place, pool in enumerate(pools):
            last[np.searchsorted(jobs, list(desk.held_in(pool))), place] = -np.inf
        rows, places = (shares > _NOTHING).nonzero()
        priority = (owed / np.maximum(had, 1e-9))[rows, places]
        order = np.lexsort((places, last[rows, places], rows, -priority))
        left = [pool.free_gpus + _gpus(desk.held_in(pool)) for pool in pools]
        chosen: dict[int, Pool] = {}
        for row, place in zip(rows[order].tolist(), places[order].tolist(), strict=True):
            job = int(jobs[row])
            gpus = desk.class_of(job).gpus
            if left[place] >= gpus and job not in chosen:
                left[place] -= gpus
                chosen[job] = pools[place]
                if not any(left):
                    break
        return chosen

    def _arrange(self, pool: Pool, chosen: Sequence[int], desk: Table) -> None:
        """On which nodes; who runs elsewhere, or is not among them, is stopped."""
        running = dict(desk.held_in(pool))
        gpus = {job: desk.class_of(job).gpus for job in chosen}
        largest_first = sorted(chosen, key=lambda job: -gpus[job])
        places = _places(pool, largest_first, gpus, running, desk.search, keeps=True)
        for order in (largest_first, chosen):
            if len(places) < len(chosen):
                places = _places(pool, order, gpus, running, desk.search, keeps=False)
        for job, allocation in running.items():
            if places.get(job) != allocation:
                desk.stop(job)
        for job, allocation in places.items():
            self._had[job, pool.index] += 1
            if running.get(job) != allocation:
                self._planned[job] = pool, allocation

    def _make_room(self, job: int) -> None:
        missing = job + 1 - len(self._owed)
        if missing > 0:
            more = np.zeros((max(missing, len(self._owed)), self._pools))
            self._owed, self._had = np.concatenate([self._owed, more]), np.concatenate([self._had, more])


def _places(
    pool: Pool,
    jobs: Sequence[int],
    gpus: Mapping[int, int],
    running: Mapping[int, Allocation],
    search: Search,
    keeps: bool,
) -> dict[int, Allocation]:
    """Where each of these jobs goes, one after another; who has no room is left out.

    With `keeps`, who runs stays where he is. Without, he does if that is free when it is his turn.
    """
    trial, places = pool.clone(), dict[int, Allocation]()
    for job, allocation in running.items():
        if keeps and job in gpus:
            places[job] = allocation
        else:
            trial.give(allocation)
    for job in jobs:
        if job in places:
            continue
        stays = running.get(job)
        is_free = stays is not None and all(trial.free[node] >= used for node, used in stays)
        found = stays if is_free else search(trial, gpus[job])
        if found is not None:
            trial.take(found)
            places[job] = found
    return places


def _start(line: Line, planned: dict[int, tuple[Pool, Allocation]], desk: Table) -> None:
    """Those that wait now; who has just been stopped waits a moment later."""
    for waiting in line.classes if planned else ():
        for job in [job for job in waiting.jobs.tolist() if job in planned]:
            pool, allocation = planned.pop(job)
            desk.start(waiting, int(np.searchsorted(waiting.jobs, job)), pool, allocation)


def _speeds(waiting: WaitingClass, pools: Sequence[Pool], capacity: Numbers) -> list[float]:
    """In each pool; 0 where it may not run, or too few nodes are in service."""
    by_pool = {pool.index: speed for pool, speed in zip(waiting.pools, waiting.speeds, strict=True)}
    return [
        by_pool[pool.index] if pool.index in by_pool and room >= waiting.gpus else 0.0
        for pool, room in zip(pools, capacity.tolist(), strict=True)
    ]


def _gpus(running: Mapping[int, Allocation]) -> int:
    return sum(gpus for allocation in running.values() for _, gpus in allocation)
