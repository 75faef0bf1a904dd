"""Shares of a GPU: several jobs on one, each with a fixed part of it (Alibaba's openb: Weng et al., USENIX ATC 2023).

A share lies on one GPU. A pool counts whole GPUs; one that is shared is taken from it as by a job of one GPU, and what
is left of it is kept here, in thousandths. A share goes where least is left beside it (best fit), and a GPU that nobody
shares any more is whole again.

Reservations, rounds and preemption know whole GPUs alone: under them a share holds one (`JobPolicy.packs_shares`). So
it does where GPUs of one type differ (`jobs.policies.variability`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.policies.cluster import Pool, Search
from jobs.policies.vocabulary import Allocation

WHOLE_MILLI: Final = 1000


def is_share(share: NDArray[np.float64], gpus: NDArray[Any]) -> NDArray[np.bool_]:
    """(n,) Whether jobs ask for all of their GPUs (1), or for part of one: a thousandth at least."""
    return np.asarray((share >= 1 / WHOLE_MILLI) & ((share == 1) | ((share < 1) & (gpus == 1))))


@dataclass(slots=True)
class _Shared:
    """A GPU that jobs share: its node's place in the pool, and what is left of it."""

    place: int
    left_milli: int = WHOLE_MILLI


@dataclass(slots=True)
class SharedGpus:
    """The shared GPUs of all pools."""

    _of_pool: dict[int, list[_Shared]] = field(default_factory=dict)
    _of_job: dict[int, tuple[_Shared, int]] = field(default_factory=dict)

    def find(self, pool: Pool, milli: int, search: Search) -> Allocation | None:
        """Where a share can go: beside others, where least is left; else on a whole GPU."""
        best = self._best([each for each in self._of_pool.get(pool.index, ()) if pool.is_up(each.place)], milli)
        return search(pool, 1) if best is None else ((best.place, 1),)

    def take(self, job: int, pool: Pool, allocation: Allocation, milli: int) -> None:
        """A share is used from now on, on the node that was found."""
        ((place, _),) = allocation
        shared = self._of_pool.setdefault(pool.index, [])
        gpu = self._best([each for each in shared if each.place == place], milli)
        if gpu is None:
            pool.move(place, -1)
            gpu = _Shared(place)
            shared.append(gpu)
        gpu.left_milli -= milli
        self._of_job[job] = gpu, milli

    def give(self, job: int, pool: Pool) -> bool:
        """A job's share is free again; whether it had one."""
        if job not in self._of_job:
            return False
        gpu, milli = self._of_job.pop(job)
        gpu.left_milli += milli
        assert gpu.left_milli <= WHOLE_MILLI, "a share was freed twice"
        if gpu.left_milli == WHOLE_MILLI:
            self._of_pool[pool.index] = [each for each in self._of_pool[pool.index] if each is not gpu]
            pool.move(gpu.place, 1)
        return True

    @staticmethod
    def _best(shared: list[_Shared], milli: int) -> _Shared | None:
        """Where least is left: of equal ones that on the first node, and there the one that has been shared longest."""
        fitting = [each for each in shared if each.left_milli >= milli]
        return min(fitting, key=lambda each: (each.left_milli, each.place), default=None)
