"""Which running jobs make room for one that comes before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.jobs.cluster import Pool
from policies.jobs.placements import Placement
from policies.jobs.vocabulary import Allocation


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Jobs of a pool that may be preempted now: who comes last by (index, number) gives way first.

    Attributes:
        index, jobs: (n,) each, in any order.
    """

    index: NDArray[np.float64]
    jobs: NDArray[np.int64]

    @staticmethod
    def of(index: NDArray[np.float64], jobs: NDArray[np.int64], hysteresis: float) -> Ranking:
        """Running jobs have an advantage: their index counts as `hysteresis` times smaller."""
        if hysteresis != 1.0:
            index = np.where(index > 0, index / hysteresis, index * hysteresis)
        return Ranking(index, jobs)

    def behind(self, key: tuple[float, int]) -> list[int]:
        """Who comes after a key, the last first."""
        index, jobs = self.index, self.jobs
        places = ((index > key[0]) | ((index == key[0]) & (jobs > key[1]))).nonzero()[0]
        if not len(places):
            return []
        index, jobs = index[places], jobs[places]
        behind: list[int] = jobs[np.lexsort((jobs, index))].tolist()
        behind.reverse()
        return behind


@dataclass(frozen=True, slots=True)
class Room:
    """GPUs for a gang, if jobs stop.

    Attributes:
        allocation: where it can go.
        victims: who stops for it.
    """

    allocation: Allocation
    victims: list[int]


def make_room(
    pool: Pool, gpus: int, placement: Placement, candidates: Sequence[int], held: Mapping[int, Allocation]
) -> Room | None:
    """Where a gang of GPUs can go if some of the candidates stop; None if not even all of them make room.

    They stop one after another until it fits. Those that turn out not to be needed go on, the one that comes first
    before the others.
    """
    free, total, enough = pool.free.copy(), pool.free_gpus, min(pool.size, gpus)
    missing = 0 if placement.may_spread else max(gpus // pool.size, 1) - pool.whole_nodes * (gpus >= pool.size)
    for many, job in enumerate(candidates, 1):
        for node, used in held[job]:
            free[node] += used
            total += used
            if free[node] >= enough:
                missing -= 1
        if missing <= 0 and total >= gpus:  # a search costs fifty times a count
            room = _search(pool, gpus, placement, candidates[:many], held)
            if room is not None:
                return room
    return None


def _search(
    pool: Pool, gpus: int, placement: Placement, stopped: Sequence[int], held: Mapping[int, Allocation]
) -> Room | None:
    trial = pool.clone()
    for job in stopped:
        trial.give(held[job])
    allocation = placement.search(trial, gpus)
    if allocation is None:
        return None
    trial.take(allocation)
    victims = []
    for job in reversed(stopped):
        if all(trial.free[node] >= used for node, used in held[job]):
            trial.take(held[job])
        else:
            victims.append(job)
    return Room(allocation, victims)
