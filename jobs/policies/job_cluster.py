"""Events and commands of the training jobs' scheduler, and the cluster's state.

As in `policies.vocabulary`, a core (`jobs.policies.job_scheduler.JobScheduler`) takes events and the time and returns
commands. All of them are frozen and consist of numbers and names. Times are integer nanoseconds.

Conventions
    job       0, 1, ... in the order of submission; a job's number breaks every tie
    node      0..N-1
    work_ns   run time at the reference type, alone on its GPUs
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Allocation = tuple[tuple[int, int], ...]  # (node, GPUs there), ascending by node
Slots = tuple[tuple[int, ...], ...]  # which GPUs, for each node of an allocation


class JobArrived(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A job was submitted; its true run time is unknown and not included.

    Attributes:
        gpus: number of GPUs, allocated all at once or not at all (a gang).
        gpu_types: GPU types that it may run on; empty for any.
        requested_ns: the time limit that its user requested; None if there is none.
        job_class: the row of its speeds by GPU type.
        submit_ns: when it was submitted; not later than now.
        done_ns: work already done, if it ran before the scheduler took it over.
        gpu_milli: the part of its one GPU that it needs, in thousandths; 1000 for a whole GPU and for jobs of several.
        nodes: the least number of nodes over which its GPUs are spread evenly; 1 for no constraint.
    """

    job: int
    gpus: int
    submit_ns: int
    user: str = ""
    vc: str = ""
    gpu_types: tuple[str, ...] = ()
    requested_ns: int | None = None
    job_class: str = ""
    done_ns: int = 0
    gpu_milli: int = 1000
    nodes: int = 1


class JobEnded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A job has finished its work: its GPUs are free."""

    job: int


class Preempted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A job has stopped and waits again, after `PreemptJob` or because a node under it failed.

    Attributes:
        done_ns: work that is kept (up to its last checkpoint).
    """

    job: int
    done_ns: int


class NodeDown(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A node failed; `Preempted` follows for each job that had GPUs there."""

    node: int


class NodeUp(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A node is in service again, with all its GPUs free."""

    node: int


class Wake(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The time requested by `JobScheduler.next_wake_ns` has come, and nothing else happens at this instant."""


class StartJob(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Start a job on these GPUs, all at once; if an earlier command frees them, as soon as they are free.

    Attributes:
        slots: which GPUs of each node, if these are not equally fast; otherwise empty.
    """

    job: int
    allocation: Allocation
    slots: Slots = ()


class PreemptJob(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Stop a job and answer with `Preempted`; a later command of the same list gives its GPUs to another job."""

    job: int


class RefuseJob(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A job can never run here; `reason` is shown to people."""

    job: int
    reason: str


JobEvent = JobArrived | JobEnded | Preempted | NodeDown | NodeUp | Wake
JobCommand = StartJob | PreemptJob | RefuseJob


# -------------------------------------------------------------------------------------------------------------- cluster
# GPUs by node and pool: free GPUs, and the search for a gang's nodes.
#
# A pool holds equal nodes: one GPU type, one VC, one number of GPUs a node. A job runs in one pool. For each number of
# free GPUs a pool stores the set of nodes with that many, as the bits of one integer: finding the best-fitting nodes
# needs no search, and the lowest node number is the lowest bit.


Search = Callable[["Pool", int, int], Allocation | None]  # (pool, GPUs, least nodes) -> an allocation that fits


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """A group of equal nodes of a cluster.

    Attributes:
        vc: the virtual cluster that they belong to; empty if all may use them.
    """

    nodes: int
    gpus: int
    gpu_type: str = "gpu"
    vc: str = ""


Rest = Literal["fullest", "emptiest", "lowest"]  # which node to prefer among those with room


class Pool:
    """Equal nodes of one type and VC.

    Methods identify nodes by their position in the pool (0, 1, ...); `nodes` has their numbers in the cluster.
    """

    __slots__ = ("_down", "_sets", "free", "free_gpus", "gpu_type", "index", "nodes", "size", "vc")

    def __init__(self, index: int, nodes: Sequence[int], size: int, gpu_type: str, vc: str) -> None:
        self.index = index
        self.nodes = nodes
        self.size = size
        self.gpu_type = gpu_type
        self.vc = vc
        self.free = [size] * len(nodes)
        self.free_gpus = size * len(nodes)  # of the nodes that are up
        self._sets = [0] * size + [(1 << len(nodes)) - 1]  # by free GPUs, the nodes that are up
        self._down = 0

    @property
    def gpus(self) -> int:
        """The number of GPUs, free or not, in service or not."""
        return self.size * len(self.nodes)

    @property
    def counts(self) -> tuple[int, ...]:
        """(size + 1,) The number of nodes in service that have 0, 1, ... free GPUs."""
        return tuple([nodes.bit_count() for nodes in self._sets])

    def is_up(self, position: int) -> bool:
        """Return whether a node is in service."""
        return not self._down >> position & 1

    def fewest_nodes(self, gpus: int, nodes: int = 1) -> int:
        """Return the least number of nodes that such a gang must use, given its own minimum."""
        return max(-(-gpus // self.size), nodes)

    def may_hold(self, gpus: int, nodes: int) -> bool:
        """Return whether such a gang fits when all nodes are free and in service."""
        return self.gpus >= gpus and len(self.nodes) >= nodes

    def clone(self) -> Pool:
        """Return a copy for trial placements."""
        other: Pool = Pool.__new__(Pool)
        other.index = self.index
        other.nodes = self.nodes
        other.size = self.size
        other.gpu_type, other.vc = self.gpu_type, self.vc
        other.free, other.free_gpus = self.free.copy(), self.free_gpus
        other._sets, other._down = self._sets.copy(), self._down
        return other

    def with_free(self, free: Sequence[int]) -> Pool:
        """Return a copy whose nodes have these numbers of free GPUs."""
        other = self.clone()
        for position, (mine, target) in enumerate(zip(self.free, free, strict=True)):
            if mine != target:
                other.move(position, target - mine)
        return other

    def move(self, position: int, gpus: int) -> None:
        """Free GPUs of a node (below 0: take them)."""
        before = self.free[position]
        after = self.free[position] = before + gpus
        assert 0 <= after <= self.size, "GPUs taken or freed twice"
        bit = 1 << position
        if not self._down & bit:
            self._sets[before] ^= bit
            self._sets[after] |= bit
            self.free_gpus += gpus

    def take(self, allocation: Allocation) -> None:
        """Mark the GPUs of an allocation as used."""
        for position, gpus in allocation:
            self.move(position, -gpus)

    def give(self, allocation: Allocation) -> None:
        """Mark the GPUs of an allocation as free."""
        for position, gpus in allocation:
            self.move(position, gpus)

    def set_down(self, position: int, is_down: bool) -> None:
        """Take a node out of service, or return it to service."""
        bit = 1 << position
        if bool(self._down & bit) == is_down:
            return
        self._down ^= bit
        self._sets[self.free[position]] ^= bit
        self.free_gpus += -self.free[position] if is_down else self.free[position]

    # ------------------------------------------------------------------------------------------------------ searches

    @property
    def largest_gang(self) -> int:
        """The largest gang that fits on the fewest nodes, as all smaller ones do: whole nodes and the next emptiest."""
        part = self.size - 1
        while part and not self._sets[part]:
            part -= 1
        return self._sets[self.size].bit_count() * self.size + part

    def fewest(self, gpus: int, rest: Rest) -> Allocation | None:
        """Place a gang on the fewest nodes: whole ones, and the remainder on one that has room."""
        sets, size = self._sets, self.size
        if gpus < size:
            position = _place(sets, gpus, size, rest)
            return None if position < 0 else ((position, gpus),)
        whole, left = divmod(gpus, size)
        empty = sets[size]
        if empty.bit_count() < whole:
            return None
        allocation = []
        for position in _bits(empty):
            allocation.append((position, size))
            if len(allocation) == whole:
                break
        if left:
            for position, _ in allocation:
                empty ^= 1 << position
            position = _place([*sets[:size], empty], left, size, rest)
            if position < 0:
                return None
            allocation.append((position, left))
            allocation.sort()
        return tuple(allocation)

    def even(self, gpus: int, nodes: int, rest: Rest) -> Allocation | None:
        """Place a gang on exactly this many nodes, with GPU counts that differ by at most one."""
        sets, allocation = self._sets.copy(), []
        least, more = divmod(gpus, nodes)
        for number in range(nodes):
            part = least + 1 if number < more else least
            position = _place(sets, part, self.size, rest)
            if position < 0:
                return None
            sets[self.free[position]] ^= 1 << position
            allocation.append((position, part))
        return tuple(sorted(allocation))

    def spread(self, gpus: int) -> Allocation | None:
        """Place a gang on as few nodes as possible, the emptiest first."""
        if gpus > self.free_gpus:
            return None
        allocation, left = [], gpus
        for free in range(self.size, 0, -1):
            for position in _bits(self._sets[free]):
                allocation.append((position, min(free, left)))
                left -= allocation[-1][1]
                if not left:
                    return tuple(sorted(allocation))
        raise AssertionError("fewer GPUs are free than were counted")


def _place(sets: Sequence[int], gpus: int, size: int, rest: Rest) -> int:
    """Return the first node with enough free GPUs: of the fullest, the emptiest, or of all; -1 if there is none."""
    nodes = 0
    for free in range(size, gpus - 1, -1) if rest == "emptiest" else range(gpus, size + 1):
        nodes |= sets[free]
        if nodes and rest != "lowest":
            break
    return (nodes & -nodes).bit_length() - 1


def _bits(number: int) -> Iterator[int]:
    """Yield the positions of a number's bits, ascending."""
    while number:
        bit = number & -number
        yield bit.bit_length() - 1
        number ^= bit


class Cluster:
    """All nodes, numbered in the order of the groups, divided into pools."""

    def __init__(self, groups: Iterable[NodeGroup]) -> None:
        members: dict[tuple[str, str, int], list[int]] = {}
        count = 0
        for group in groups:
            numbers = range(count, count + group.nodes)
            members.setdefault((group.gpu_type, group.vc, group.gpus), []).extend(numbers)
            count += group.nodes
        self.pools = [
            Pool(index, nodes, size, gpu_type, vc)
            for index, ((gpu_type, vc, size), nodes) in enumerate(members.items())
        ]
        self.nodes = count
        self._positions = {node: (pool, position) for pool in self.pools for position, node in enumerate(pool.nodes)}

    @property
    def gpus(self) -> int:
        """The number of GPUs, in service or not."""
        return sum(pool.gpus for pool in self.pools)

    def where(self, node: int) -> tuple[Pool, int]:
        """Return a node's pool, and its position there."""
        return self._positions[node]

    def open_to(self, vc: str, gpu_types: Sequence[str]) -> list[Pool]:
        """Return the pools that a job of this VC with these allowed types (empty: any) may use, whatever its size."""
        return [pool for pool in self.pools if pool.vc in ("", vc) and (not gpu_types or pool.gpu_type in gpu_types)]

    def speeds(self, jobs: Iterable[JobArrived], speeds: Speeds) -> NDArray[np.float64]:
        """Return (n, pools) each job's speed in each pool, whatever its size; 0 if it may not use the pool."""
        rows: dict[tuple[str, str, tuple[str, ...]], NDArray[np.float64]] = {}
        for job in jobs:
            key = job.job_class, job.vc, job.gpu_types
            if key not in rows:
                rows[key] = np.zeros(len(self.pools))
                for pool in self.open_to(job.vc, job.gpu_types):
                    rows[key][pool.index] = speeds.of(job.job_class, pool.gpu_type)
        return np.array([rows[job.job_class, job.vc, job.gpu_types] for job in jobs])


# --------------------------------------------------------------------------------------------------------------- speeds
# A job's speed: its class's row of speeds by GPU type, and the slow-down of spreading over more nodes.


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds relative to the reference type, which the trace's run times refer to.

    Attributes:
        by_class: job class -> GPU type -> speed, above 0. The default is 1 for a missing row or entry.
        spread_slowdown: factor of the run time of a job on more nodes than necessary; at least 1.
    """

    by_class: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    spread_slowdown: float = 1.0

    def of(self, job_class: str, gpu_type: str, is_spread: bool = False) -> float:
        """Return the speed of a job of this class on GPUs of this type."""
        speed = self.by_class.get(job_class, {}).get(gpu_type, 1.0)
        return speed / self.spread_slowdown if is_spread else speed


def length_ns(work_ns: int, speed: float) -> int:
    """Return the time that work takes at a speed, rounded up to a whole nanosecond."""
    return work_ns if speed == 1.0 else ceil(work_ns / speed)


# ---------------------------------------------------------------------------------------------------------- variability
# GPUs of one type with unequal speeds, as in PAL (Jain et al., SC'24), and which GPUs of a node each job holds.
#
# How much slower a GPU is depends on the job: compute-bound jobs slow down most, memory-bound ones hardly at all. So a
# GPU has a factor for each class of jobs, at most 1, and a gang runs at that of its slowest GPU. Pools count GPUs by
# node; this section stores which of them a job holds, and only if GPUs differ.


SENSITIVE: Final = 0.05  # a class is, if its slowest GPU is slower than its fastest by this fraction
Factors = tuple[tuple[float, ...], ...]  # by node of the cluster, by GPU


@dataclass(frozen=True, slots=True)
class Variability:
    """Speed factors of single GPUs.

    Attributes:
        by_class: job class -> a factor for each GPU of each node, above 0 and at most 1. Other classes have factor 1.
    """

    by_class: Mapping[str, Factors]

    def is_sensitive(self, job_class: str) -> bool:
        """Return whether the choice of GPUs affects a class."""
        factors = [factor for row in self.by_class.get(job_class, ()) for factor in row]
        return bool(factors) and min(factors) < (1 - SENSITIVE) * max(factors)

    def of(self, job_class: str, allocation: Allocation, slots: Slots) -> float:
        """Return the factor of a gang, by nodes of the cluster."""
        factors = self.by_class.get(job_class)
        if factors is None:
            return 1.0
        return min(factors[node][gpu] for (node, _), gpus in zip(allocation, slots, strict=True) for gpu in gpus)


class GpuSlots:
    """Which GPUs of each node are free.

    Args:
        is_aware: whether the classes' factors are known: a sensitive job takes the fastest GPUs, another the slowest,
            by the mean of all classes. Otherwise jobs take GPUs with the lowest numbers.
    """

    def __init__(self, cluster: Cluster, variability: Variability, is_aware: bool) -> None:
        self.is_aware, self._variability = is_aware, variability
        self._free = {node: set(range(pool.size)) for pool in cluster.pools for node in pool.nodes}
        self._class_of: dict[int, str] = {}
        self._held: dict[int, tuple[Allocation, Slots]] = {}  # by nodes of the cluster
        by_class = variability.by_class if is_aware else {}
        self._slow_first = {  # by the mean of all classes, for insensitive jobs
            node: [sum(factors[node][gpu] for factors in by_class.values()) / max(len(by_class), 1) for gpu in gpus]
            for node, gpus in self._free.items()
        }
        self._fast_first = {name: factors for name, factors in by_class.items() if variability.is_sensitive(name)}

    def arrive(self, job: int, job_class: str) -> None:
        """Register the class of a job that will request GPUs."""
        self._class_of[job] = job_class

    def take(self, job: int, pool: Pool, allocation: Allocation) -> tuple[Slots, float]:
        """Allocate GPUs on these nodes of a pool; returns them and the job's factor, as far as it is known (or 1)."""
        nodes = tuple([(pool.nodes[position], gpus) for position, gpus in allocation])
        slots = tuple(tuple(sorted(self._ranked(job, node)[:gpus])) for node, gpus in nodes)
        for (node, gpus), taken in zip(nodes, slots, strict=True):
            assert len(taken) == gpus, "a GPU is used twice"
            self._free[node].difference_update(taken)
        self._held[job] = nodes, slots
        return slots, self._variability.of(self._class_of[job], nodes, slots) if self.is_aware else 1.0

    def give(self, job: int) -> None:
        """Free a job's GPUs."""
        nodes, slots = self._held.pop(job)
        for (node, _), taken in zip(nodes, slots, strict=True):
            self._free[node].update(taken)

    def search(self, job: int, pool: Pool, gpus: int) -> Allocation | None:
        """Return the nodes whose GPUs a job would prefer given their factors, as few as possible."""
        whole, rest = divmod(gpus, pool.size)
        room = {position: free for position, free in enumerate(pool.free) if free and pool.is_up(position)}
        empty = [position for position, free in room.items() if free == pool.size]
        whole_nodes = self._best(job, pool, empty, pool.size)[:whole]
        if len(whole_nodes) < whole:
            return None
        allocation = [(position, pool.size) for position in whole_nodes]
        if rest:
            last = [position for position, free in room.items() if free >= rest and position not in whole_nodes]
            if not last:
                return None
            allocation.append((self._best(job, pool, last, rest)[0], rest))
        return tuple(sorted(allocation))

    def _best(self, job: int, pool: Pool, positions: list[int], gpus: int) -> list[int]:
        """Return nodes by the last GPU that the job would take; equal ones the fullest first; empty ones after all.

        PAL takes the fastest GPU on any node. Small jobs would then occupy empty nodes for which gangs wait.
        """

        def merit(position: int) -> tuple[bool, float, int, int]:
            node, free = pool.nodes[position], pool.free[position]
            return free == pool.size, self._rank(job, node, self._ranked(job, node)[gpus - 1]), free, position

        return sorted(positions, key=merit)

    def _ranked(self, job: int, node: int) -> list[int]:
        """Return the free GPUs of a node, in the order in which the job would take them."""
        return sorted(self._free[node], key=lambda gpu: (self._rank(job, node, gpu), gpu))

    def _rank(self, job: int, node: int, gpu: int) -> float:
        factors = self._fast_first.get(self._class_of[job])
        return self._slow_first[node][gpu] if factors is None else -factors[node][gpu]


# --------------------------------------------------------------------------------------------------------------- shares
# Shares of a GPU: several jobs on one, each with a fixed part of it (Alibaba's openb: Weng et al., USENIX ATC 2023).
#
# A share is on one GPU. A pool counts whole GPUs; a shared GPU is taken from it as by a job of one GPU, and its
# remainder is stored here, in thousandths. A share goes to the GPU with the least remainder (best fit), and a GPU
# without shares is whole again.
#
# Reservations, rounds and preemption handle only whole GPUs: under them a share holds a whole one
# (`JobPolicy.packs_shares`), as it does if GPUs of one type differ (`jobs.policies.job_cluster`).


WHOLE_MILLI: Final = 1000


def is_share(share: NDArray[np.float64], gpus: NDArray[Any]) -> NDArray[np.bool_]:
    """Return (n,) whether each share is valid: 1, or, for jobs of one GPU, a part of at least a thousandth."""
    return np.asarray((share >= 1 / WHOLE_MILLI) & ((share == 1) | ((share < 1) & (gpus == 1))))


@dataclass(slots=True)
class _Shared:
    """A GPU that jobs share: its node's position in the pool, and its remainder."""

    position: int
    left_milli: int = WHOLE_MILLI


@dataclass(slots=True)
class SharedGpus:
    """The shared GPUs of all pools."""

    _of_pool: dict[int, list[_Shared]] = field(default_factory=dict)
    _of_job: dict[int, tuple[_Shared, int]] = field(default_factory=dict)

    def find(self, pool: Pool, milli: int, search: Search) -> Allocation | None:
        """Find room for a share: next to others, with the least remainder; otherwise on a whole GPU."""
        best = self._best([each for each in self._of_pool.get(pool.index, ()) if pool.is_up(each.position)], milli)
        return search(pool, 1, 1) if best is None else ((best.position, 1),)

    def take(self, job: int, pool: Pool, allocation: Allocation, milli: int) -> None:
        """Allocate a share on the node that was found."""
        ((position, _),) = allocation
        shared = self._of_pool.setdefault(pool.index, [])
        gpu = self._best([each for each in shared if each.position == position], milli)
        if gpu is None:
            pool.move(position, -1)
            gpu = _Shared(position)
            shared.append(gpu)
        gpu.left_milli -= milli
        self._of_job[job] = gpu, milli

    def give(self, job: int, pool: Pool) -> bool:
        """Free a job's share; returns whether it had one."""
        if job not in self._of_job:
            return False
        gpu, milli = self._of_job.pop(job)
        gpu.left_milli += milli
        assert gpu.left_milli <= WHOLE_MILLI, "a share was freed twice"
        if gpu.left_milli == WHOLE_MILLI:
            self._of_pool[pool.index] = [each for each in self._of_pool[pool.index] if each is not gpu]
            pool.move(gpu.position, 1)
        return True

    @staticmethod
    def _best(shared: list[_Shared], milli: int) -> _Shared | None:
        """Return the GPU with the least remainder; among equals on the first node, and there the one shared longest."""
        fitting = [each for each in shared if each.left_milli >= milli]
        return min(fitting, key=lambda each: (each.left_milli, each.position), default=None)


# ----------------------------------------------------------------------------------------------------------- placements
# Placement of jobs on GPUs: one word in a policy file.
#
# A placement searches the job's pools one after another, by fewest nodes or by speed, and within a pool for nodes.


@dataclass(frozen=True, slots=True)
class Placement:
    """How free GPUs are searched.

    Attributes:
        rest: which node within a pool gets the remainder that does not fill one; of several the lowest number.
        may_spread: whether a job may use more nodes than necessary, if it doesn't fit on the fewest now.
        is_speed_aware: whether the pool in which a job runs fastest comes first; otherwise the pool in which it needs
            the fewest nodes.
        is_variability_aware: whether jobs get GPUs by their speed for the job's class, if GPUs of one type differ
            (`jobs.policies.job_cluster`). Under reservations and rounds, and for jobs for which others make room, it
            applies to GPUs of nodes that `search` has found.
        is_by_number: pools are in the order of the cluster's file.
        is_programme: whether RLTune's program places the chosen job that fits by `search`
        (`jobs.policies.chosen_queueing`).
    """

    rest: Rest = "fullest"
    may_spread: bool = False
    is_speed_aware: bool = False
    is_variability_aware: bool = False
    is_by_number: bool = False
    is_programme: bool = False

    def search(self, pool: Pool, gpus: int, nodes: int = 1) -> Allocation | None:
        """Find GPUs for a gang in a pool, evenly if more nodes than 1 are requested; None if it doesn't fit."""
        if nodes > 1:
            return pool.even(gpus, pool.fewest_nodes(gpus, nodes), self.rest)
        return pool.fewest(gpus, self.rest) or (pool.spread(gpus) if self.may_spread else None)

    def largest(self, pool: Pool) -> int:
        """Return the largest gang for which the search would succeed; it does for all smaller ones."""
        return pool.free_gpus if self.may_spread else pool.largest_gang

    def sorted_pools(self, job: JobArrived, pools: Sequence[Pool], speeds: Speeds) -> tuple[Pool, ...]:
        """Return the pools in search order; equal ones in the order of the cluster's file."""

        def merit(pool: Pool) -> tuple[float, int, int]:
            speed = speeds.of(job.job_class, pool.gpu_type) if self.is_speed_aware else 0.0
            return -speed, 0 if self.is_by_number else pool.fewest_nodes(job.gpus, job.nodes), pool.index

        return tuple(sorted(pools, key=merit))


PLACEMENTS: Final[Mapping[str, Placement]] = {
    "best-fit": Placement(),
    "worst-fit": Placement("emptiest"),
    "consolidate": Placement(may_spread=True),
    "speed-aware": Placement(is_speed_aware=True),
    "variability-aware": Placement(is_variability_aware=True),
    "lowest": Placement("lowest", is_by_number=True),
    "program": Placement("lowest", is_by_number=True, is_programme=True),
}
