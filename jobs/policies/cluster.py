"""The words of the training jobs' scheduler: what happens to jobs and nodes, and what is to be done about it.

As in `policies.vocabulary`: events and the time go into a core (`jobs.policies.scheduler.JobScheduler`), commands come
out. Everything is frozen and made of numbers and names. Times are integer nanoseconds.

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
    """A job was submitted. How long it will run is not known, and is not here.

    Attributes:
        gpus: as many at once, all or none.
        gpu_types: those that it may run on; empty for any.
        requested_ns: the time limit that its user asked for; None where there is none.
        job_class: the row of its speeds by GPU type.
        submit_ns: when it was submitted; not later than now.
        done_ns: work that it has behind it, where it ran before the scheduler knew it.
        gpu_milli: how much of its one GPU it needs, in thousandths; 1000 for all of it, as jobs of several have.
        nodes: over so many at least its GPUs lie, evenly; 1 for any.
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
    """A job has done its work: its GPUs are free."""

    job: int


class Preempted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A job stands still and waits again: it was asked to (`PreemptJob`), or a node under it died.

    Attributes:
        done_ns: the work that is kept (its last checkpoint).
    """

    job: int
    done_ns: int


class NodeDown(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A node died. `Preempted` follows for each job that had GPUs there."""

    node: int


class NodeUp(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A node is in service again, with all its GPUs free."""

    node: int


class Wake(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The time that `JobScheduler.next_wake_ns` asked for has come, and nothing else happens at this instant."""


class StartJob(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Start a job on these GPUs, all at once; as soon as they are free, where an earlier command frees them.

    Attributes:
        slots: which GPUs of each node, where they are not equally fast; else empty.
    """

    job: int
    allocation: Allocation
    slots: Slots = ()


class PreemptJob(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Stop a job and answer with `Preempted`; its GPUs go to a job that a later command of the same list starts."""

    job: int


class RefuseJob(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A job can never run here, for a reason in words."""

    job: int
    reason: str


JobEvent = JobArrived | JobEnded | Preempted | NodeDown | NodeUp | Wake
JobCommand = StartJob | PreemptJob | RefuseJob


# -------------------------------------------------------------------------------------------------------------- cluster
# GPUs by node and pool: what is free, and where a gang of GPUs can go.
#
# A pool holds equal nodes: one GPU type, one VC, one number of GPUs a node. A job runs in one pool. For each number of
# free GPUs a pool keeps the set of nodes that have so many, as the bits of one integer: the nodes that fit best are
# found without a search, and the lowest number among them is the lowest bit.


Search = Callable[["Pool", int, int], Allocation | None]  # where so many GPUs can go, over so many nodes at least


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Some equal nodes of a cluster.

    Attributes:
        vc: the virtual cluster that they belong to; empty for all.
    """

    nodes: int
    gpus: int
    gpu_type: str = "gpu"
    vc: str = ""


Rest = Literal["fullest", "emptiest", "lowest"]  # of the nodes that have room


class Pool:
    """Equal nodes of one type and VC.

    Nodes are known by their place here (0, 1, ...); `nodes` has their numbers in the cluster.
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
        """All, whether they are free or not, in service or not."""
        return self.size * len(self.nodes)

    @property
    def counts(self) -> tuple[int, ...]:
        """(size + 1,) How many nodes that are up have 0, 1, ... free GPUs."""
        return tuple([nodes.bit_count() for nodes in self._sets])

    def is_up(self, place: int) -> bool:
        """Whether a node is in service."""
        return not self._down >> place & 1

    def fewest_nodes(self, gpus: int, nodes: int = 1) -> int:
        """On so many nodes such a gang must lie, that asks for so many."""
        return max(-(-gpus // self.size), nodes)

    def may_hold(self, gpus: int, nodes: int) -> bool:
        """Whether such a gang fits when all is free and in service."""
        return self.gpus >= gpus and len(self.nodes) >= nodes

    def clone(self) -> Pool:
        """A copy to try things on."""
        other: Pool = Pool.__new__(Pool)
        other.index = self.index
        other.nodes = self.nodes
        other.size = self.size
        other.gpu_type, other.vc = self.gpu_type, self.vc
        other.free, other.free_gpus = self.free.copy(), self.free_gpus
        other._sets, other._down = self._sets.copy(), self._down
        return other

    def with_free(self, free: Sequence[int]) -> Pool:
        """A copy in which the nodes have so many free GPUs."""
        other = self.clone()
        for place, (mine, wanted) in enumerate(zip(self.free, free, strict=True)):
            if mine != wanted:
                other.move(place, wanted - mine)
        return other

    def move(self, place: int, gpus: int) -> None:
        """So many GPUs of a node become free (below 0: are taken)."""
        before = self.free[place]
        after = self.free[place] = before + gpus
        assert 0 <= after <= self.size, "GPUs taken or freed twice"
        bit = 1 << place
        if not self._down & bit:
            self._sets[before] ^= bit
            self._sets[after] |= bit
            self.free_gpus += gpus

    def take(self, allocation: Allocation) -> None:
        """These GPUs are used from now on."""
        for place, gpus in allocation:
            self.move(place, -gpus)

    def give(self, allocation: Allocation) -> None:
        """These GPUs are free again."""
        for place, gpus in allocation:
            self.move(place, gpus)

    def set_down(self, place: int, is_down: bool) -> None:
        """A node goes out of service, or comes back."""
        bit = 1 << place
        if bool(self._down & bit) == is_down:
            return
        self._down ^= bit
        self._sets[self.free[place]] ^= bit
        self.free_gpus += -self.free[place] if is_down else self.free[place]

    # ------------------------------------------------------------------------------------------------------ searches

    @property
    def largest_gang(self) -> int:
        """That fits on the fewest nodes, and so does any smaller one: the whole nodes, and the next emptiest."""
        part = self.size - 1
        while part and not self._sets[part]:
            part -= 1
        return self._sets[self.size].bit_count() * self.size + part

    def fewest(self, gpus: int, rest: Rest) -> Allocation | None:
        """On the fewest nodes: whole ones, and what is left on one that has room."""
        sets, size = self._sets, self.size
        if gpus < size:
            place = _place(sets, gpus, size, rest)
            return None if place < 0 else ((place, gpus),)
        whole, left = divmod(gpus, size)
        empty = sets[size]
        if empty.bit_count() < whole:
            return None
        chosen = []
        for place in _bits(empty):
            chosen.append((place, size))
            if len(chosen) == whole:
                break
        if left:
            for place, _ in chosen:
                empty ^= 1 << place
            place = _place([*sets[:size], empty], left, size, rest)
            if place < 0:
                return None
            chosen.append((place, left))
            chosen.sort()
        return tuple(chosen)

    def even(self, gpus: int, nodes: int, rest: Rest) -> Allocation | None:
        """On exactly so many nodes, on each as many as on any other, or one more."""
        sets, chosen = self._sets.copy(), []
        least, more = divmod(gpus, nodes)
        for number in range(nodes):
            part = least + 1 if number < more else least
            place = _place(sets, part, self.size, rest)
            if place < 0:
                return None
            sets[self.free[place]] ^= 1 << place
            chosen.append((place, part))
        return tuple(sorted(chosen))

    def spread(self, gpus: int) -> Allocation | None:
        """Over as few nodes as can be, the emptiest first."""
        if gpus > self.free_gpus:
            return None
        chosen, left = [], gpus
        for free in range(self.size, 0, -1):
            for place in _bits(self._sets[free]):
                chosen.append((place, min(free, left)))
                left -= chosen[-1][1]
                if not left:
                    return tuple(sorted(chosen))
        raise AssertionError("fewer GPUs are free than were counted")


def _place(sets: Sequence[int], gpus: int, size: int, rest: Rest) -> int:
    """A node with so many free GPUs, of several the first: of the fullest, the emptiest, or of all; -1 for none."""
    rooms = 0
    for free in range(size, gpus - 1, -1) if rest == "emptiest" else range(gpus, size + 1):
        rooms |= sets[free]
        if rooms and rest != "lowest":
            break
    return (rooms & -rooms).bit_length() - 1


def _bits(number: int) -> Iterator[int]:
    """The places of its bits, ascending."""
    while number:
        bit = number & -number
        yield bit.bit_length() - 1
        number ^= bit


class Cluster:
    """All nodes, numbered in the order of the groups, as pools."""

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
        self._places = {node: (pool, place) for pool in self.pools for place, node in enumerate(pool.nodes)}

    @property
    def gpus(self) -> int:
        """All of them, in service or not."""
        return sum(pool.gpus for pool in self.pools)

    def where(self, node: int) -> tuple[Pool, int]:
        """A node's pool, and its place there."""
        return self._places[node]

    def open_to(self, vc: str, gpu_types: Sequence[str]) -> list[Pool]:
        """The pools that a job of this VC and with these allowed types (empty: any) may use, however large it is."""
        return [pool for pool in self.pools if pool.vc in ("", vc) and (not gpu_types or pool.gpu_type in gpu_types)]

    def speeds(self, jobs: Iterable[JobArrived], speeds: Speeds) -> NDArray[np.float64]:
        """(n, pools) How fast each job runs in each pool, however large it is; 0 where it may not."""
        rows: dict[tuple[str, str, tuple[str, ...]], NDArray[np.float64]] = {}
        for job in jobs:
            key = job.job_class, job.vc, job.gpu_types
            if key not in rows:
                rows[key] = np.zeros(len(self.pools))
                for pool in self.open_to(job.vc, job.gpu_types):
                    rows[key][pool.index] = speeds.of(job.job_class, pool.gpu_type)
        return np.array([rows[job.job_class, job.vc, job.gpu_types] for job in jobs])


# --------------------------------------------------------------------------------------------------------------- speeds
# How fast a job runs where: its class's row of speeds by GPU type, and what spreading over more nodes costs.


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds relative to the reference type, on which the trace's run times count.

    Attributes:
        by_class: job class -> GPU type -> speed, above 0. What has no row, or no entry in it, runs at speed 1.
        spread_slowdown: so many times as long takes a job that lies on more nodes than it must; at least 1.
    """

    by_class: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    spread_slowdown: float = 1.0

    def of(self, job_class: str, gpu_type: str, is_spread: bool = False) -> float:
        """The speed of a job of this class on GPUs of this type."""
        speed = self.by_class.get(job_class, {}).get(gpu_type, 1.0)
        return speed / self.spread_slowdown if is_spread else speed


def length_ns(work_ns: int, speed: float) -> int:
    """How long work takes at a speed, rounded up to a whole nanosecond."""
    return work_ns if speed == 1.0 else ceil(work_ns / speed)


# ---------------------------------------------------------------------------------------------------------- variability
# GPUs of one type that are not equally fast, as PAL has them (Jain et al., SC'24), and which GPUs of a node jobs hold.
#
# How much slower a GPU is depends on the job: what computes suffers most, what waits for memory hardly at all. So a GPU
# has a factor for each class of jobs, at most 1, and a gang runs at that of its slowest GPU. Pools count GPUs by node;
# which of them a job holds is kept here, and only where GPUs differ.


SENSITIVE: Final = 0.05  # a class is, where its slowest GPU is so much slower than its fastest
Factors = tuple[tuple[float, ...], ...]  # by node of the cluster, by GPU


@dataclass(frozen=True, slots=True)
class Variability:
    """Factors of speed.

    Attributes:
        by_class: job class -> a factor for each GPU of each node, above 0 and at most 1. Other classes run at 1.
    """

    by_class: Mapping[str, Factors]

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
        known = variability.by_class if is_aware else {}
        self._slow_first = {  # by the mean of all classes, for those that are not sensitive
            node: [sum(factors[node][gpu] for factors in known.values()) / max(len(known), 1) for gpu in gpus]
            for node, gpus in self._free.items()
        }
        self._fast_first = {name: factors for name, factors in known.items() if variability.is_sensitive(name)}

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
        factors = self._fast_first.get(self._class_of[job])
        return self._slow_first[node][gpu] if factors is None else -factors[node][gpu]


# --------------------------------------------------------------------------------------------------------------- shares
# Shares of a GPU: several jobs on one, each with a fixed part of it (Alibaba's openb: Weng et al., USENIX ATC 2023).
#
# A share lies on one GPU. A pool counts whole GPUs; one that is shared is taken from it as by a job of one GPU, and
# what is left of it is kept here, in thousandths. A share goes where least is left beside it (best fit), and a GPU that
# nobody shares any more is whole again.
#
# Reservations, rounds and preemption know whole GPUs alone: under them a share holds one (`JobPolicy.packs_shares`). So
# it does where GPUs of one type differ (`jobs.policies.cluster`).


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
        return search(pool, 1, 1) if best is None else ((best.place, 1),)

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


# ----------------------------------------------------------------------------------------------------------- placements
# Which GPUs a job gets: a word in a policy file.
#
# A placement searches the job's pools one after another, by fewest nodes or by speed, and within a pool for nodes.


@dataclass(frozen=True, slots=True)
class Placement:
    """How GPUs are searched.

    Attributes:
        rest: which node within a pool gets what does not fill one; of several the one with the lowest number.
        may_spread: whether a job may lie on more nodes than it must, where it can't lie on the fewest now.
        is_speed_aware: whether the pool where a job runs fastest comes first; else that where it lies on the fewest
            nodes does.
        is_variability_aware: whether jobs get GPUs by how fast these are for their class, where GPUs of one type differ
            (`jobs.policies.cluster`). Under reservations and rounds, and for those for whom others make room, it is
            the GPUs of nodes that `search` has found.
        is_by_number: pools come as the cluster's file names them.
        is_programme: whether RLTune's lays whoever is chosen and fits by `search` (`jobs.policies.mapping`).
    """

    rest: Rest = "fullest"
    may_spread: bool = False
    is_speed_aware: bool = False
    is_variability_aware: bool = False
    is_by_number: bool = False
    is_programme: bool = False

    def search(self, pool: Pool, gpus: int, nodes: int = 1) -> Allocation | None:
        """Where so many GPUs of a pool can go, and whether they can; evenly, where more nodes than 1 are asked for."""
        if nodes > 1:
            return pool.even(gpus, pool.fewest_nodes(gpus, nodes), self.rest)
        return pool.fewest(gpus, self.rest) or (pool.spread(gpus) if self.may_spread else None)

    def largest(self, pool: Pool) -> int:
        """The largest gang for which the search would find something; it does for all that are smaller."""
        return pool.free_gpus if self.may_spread else pool.largest_gang

    def sorted_pools(self, job: JobArrived, pools: Sequence[Pool], speeds: Speeds) -> tuple[Pool, ...]:
        """In the order in which they are searched; equal ones as the cluster's file names them."""

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
    "programme": Placement("lowest", is_by_number=True, is_programme=True),
}
