"""GPUs of one type that are not equally fast, as PAL has them (Jain et al., SC'24), and which GPUs of a node jobs hold.

How much slower a GPU is depends on the job: what computes suffers most, what waits for memory hardly at all. So a GPU
has a factor for each class of jobs, at most 1, and a gang runs at that of its slowest GPU. Pools count GPUs by node;
which of them a job holds is kept here, and only where GPUs differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from jobs.policies.cluster import Cluster, NodeGroup, Pool
from jobs.policies.vocabulary import Allocation, Slots
from kit.errors import InputError

SENSITIVE: Final = 0.05  # a class is, where its slowest GPU is so much slower than its fastest
Factors = tuple[tuple[float, ...], ...]  # by node of the cluster, by GPU


@dataclass(frozen=True, slots=True)
class Variability:
    """Factors of speed.

    Attributes:
        by_class: job class -> a factor for each GPU of each node, above 0 and at most 1. Other classes run at 1.

    Raises:
        InputError: for a factor out of range.
    """

    by_class: Mapping[str, Factors]

    def __post_init__(self) -> None:
        for job_class, factors in self.by_class.items():
            for node, row in enumerate(factors):
                for factor in row:
                    if not 0 < factor <= 1:
                        problem = f"{factor} on node {node}: allowed is above 0, up to 1 for the fastest GPU"
                        raise InputError("variability", job_class, problem)

    def require_cluster(self, groups: Iterable[NodeGroup]) -> None:
        """Check that there is a factor for each GPU.

        Raises:
            InputError: where there are more, or fewer.
        """
        sizes = [group.gpus for group in groups for _ in range(group.nodes)]
        for job_class, factors in self.by_class.items():
            if [len(row) for row in factors] != sizes:
                problem = f"has factors for nodes of {[len(row) for row in factors]} GPUs; the cluster's have {sizes}"
                raise InputError("variability", job_class, problem)

    def is_sensitive(self, job_class: str) -> bool:
        """Whether it matters to a class which GPU it gets."""
        factors = [factor for row in self.by_class.get(job_class, ()) for factor in row]
        return bool(factors) and min(factors) < (1 - SENSITIVE) * max(factors)

    def of(self, job_class: str, allocation: Allocation, slots: Slots) -> float:
        """The factor of a gang, by nodes of the cluster."""
        factors = self.by_class.get(job_class)
        if factors is None:
            return 1.0
        return min(factors[node][gpu] for (node, _), gpus in zip(allocation, slots, strict=True) for gpu in gpus)


class GpuSlots:
    """Which GPUs of each node are free.

    Args:
        is_aware: whether the classes' factors are known: a sensitive job takes the fastest GPUs, another the slowest,
            by the mean of all classes. Else jobs take those with the lowest numbers.
    """

    def __init__(self, cluster: Cluster, variability: Variability, is_aware: bool) -> None:
        self.is_aware, self._variability = is_aware, variability
        self._free = {node: set(range(pool.size)) for pool in cluster.pools for node in pool.nodes}
        self._class_of: dict[int, str] = {}
        self._held: dict[int, tuple[Allocation, Slots]] = {}  # by nodes of the cluster
        classes = variability.by_class.values()
        self._mean = {
            node: [sum(factors[node][gpu] for factors in classes) / max(len(classes), 1) for gpu in gpus]
            for node, gpus in self._free.items()
        }
        self._is_sensitive = {job_class: variability.is_sensitive(job_class) for job_class in variability.by_class}

    def arrive(self, job: int, job_class: str) -> None:
        """A job will ask for GPUs."""
        self._class_of[job] = job_class

    def take(self, job: int, pool: Pool, allocation: Allocation) -> tuple[Slots, float]:
        """The GPUs that a job gets on these nodes of a pool; and its factor, as far as it is known (else 1)."""
        nodes = tuple([(pool.nodes[place], gpus) for place, gpus in allocation])
        slots = tuple(tuple(sorted(self._ranked(job, node)[:gpus])) for node, gpus in nodes)
        for (node, gpus), taken in zip(nodes, slots, strict=True):
            assert len(taken) == gpus, "a GPU is used twice"
            self._free[node].difference_update(taken)
        self._held[job] = nodes, slots
        return slots, self._variability.of(self._class_of[job], nodes, slots) if self.is_aware else 1.0

    def give(self, job: int) -> None:
        """They are free again."""
        nodes, slots = self._held.pop(job)
        for (node, _), taken in zip(nodes, slots, strict=True):
            self._free[node].update(taken)

    def search(self, job: int, pool: Pool, gpus: int) -> Allocation | None:
        """The nodes whose GPUs a job that knows them would rather have: as few as can be."""
        whole, rest = divmod(gpus, pool.size)
        room = {place: free for place, free in enumerate(pool.free) if free and pool.is_up(place)}
        chosen = self._best(job, pool, [place for place, free in room.items() if free == pool.size], pool.size)[:whole]
        if len(chosen) < whole:
            return None
        allocation = [(place, pool.size) for place in chosen]
        if rest:
            last = [place for place, free in room.items() if free >= rest and place not in chosen]
            if not last:
                return None
            allocation.append((self._best(job, pool, last, rest)[0], rest))
        return tuple(sorted(allocation))

    def _best(self, job: int, pool: Pool, places: list[int], gpus: int) -> list[int]:
        """Nodes by the last GPU that the job would take there; of equal ones the fullest first, empty ones last of all.

        PAL takes the fastest GPU wherever it is. Small jobs would then begin nodes for which gangs wait.
        """

        def merit(place: int) -> tuple[bool, float, int, int]:
            node, free = pool.nodes[place], pool.free[place]
            return free == pool.size, self._rank(job, node, self._ranked(job, node)[gpus - 1]), free, place

        return sorted(places, key=merit)

    def _ranked(self, job: int, node: int) -> list[int]:
        """Free GPUs of a node, in the order in which the job would take them."""
        return sorted(self._free[node], key=lambda gpu: (self._rank(job, node, gpu), gpu))

    def _rank(self, job: int, node: int, gpu: int) -> float:
        job_class = self._class_of[job]
        if not self.is_aware:
            return 0.0
        if self._is_sensitive.get(job_class):
            return -self._variability.by_class[job_class][node][gpu]
        return self._mean[node][gpu]
