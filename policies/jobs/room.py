"""Which running jobs make room for one that comes before them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.jobs.cluster import Pool, Search
from policies.jobs.vocabulary import Allocation


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Jobs of a pool that may be preempted now, by (index, number) ascending: who comes last gives way first.

    Attributes:
        index, jobs: (n,) each.
    """

    index: NDArray[np.float64]
    jobs: NDArray[np.int64]

    @staticmethod
    def of(index: NDArray[np.float64], jobs: NDArray[np.int64], hysteresis: float) -> Ranking:
        """Running jobs have an advantage: their index counts as `hysteresis` times smaller."""
        if hysteresis != 1.0:
            index = np.where(index > 0, index / hysteresis, index * hysteresis)
        order = np.lexsort((jobs, index))
        return Ranking(index[order], jobs[order])

    def behind(self, key: tuple[float, int]) -> NDArray[np.int64]:
        """Who comes after a key, the last first."""
        first, after = np.searchsorted(self.index, key[0], "left"), np.searchsorted(self.index, key[0], "right")
        first += np.searchsorted(self.jobs[first:after], key[1], "right")
        return self.jobs[first:][::-1]


def make_room(
    pool: Pool, gpus: int, search: Search, candidates: Iterable[int], held: Mapping[int, Allocation]
) -> tuple[Allocation, list[int]] | None:
    """Where a gang of GPUs can go if some of the candidates stop, and which; None if not even all of them make room.

    They stop one after another until it fits. Those that turn out not to be needed go on, the one that comes first
    before the others.
    """
    trial, stopped = pool.clone(), list[int]()
    place = None
    for job in candidates:
        trial.give(held[job])
        stopped.append(job)
        if trial.free_gpus >= gpus and (place := search(trial, gpus)) is not None:
            break
    if place is None:
        return None
    trial.take(place)
    victims = []
    for job in reversed(stopped):
        if all(trial.free[node] >= used for node, used in held[job]):
            trial.take(held[job])
        else:
            victims.append(job)
    return place, victims
