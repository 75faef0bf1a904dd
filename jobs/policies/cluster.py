"""GPUs by node and pool: what is free, and where a gang of GPUs can go.

A pool holds equal nodes: one GPU type, one VC, one number of GPUs a node. A job runs in one pool. For each number of
free GPUs a pool keeps the set of nodes that have so many, as the bits of one integer: the nodes that fit best are found
without a search, and the lowest number among them is the lowest bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from jobs.policies.vocabulary import Allocation
from kit.errors import InputError

Search = Callable[["Pool", int], Allocation | None]  # where so many GPUs can go, and whether they can


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Some equal nodes of a cluster.

    Attributes:
        vc: the virtual cluster that they belong to; empty for all.

    Raises:
        InputError: for a group without nodes, or nodes without GPUs.
    """

    nodes: int
    gpus: int
    gpu_type: str = "gpu"
    vc: str = ""

    def __post_init__(self) -> None:
        for key, number in (("nodes", self.nodes), ("gpus", self.gpus)):
            if number < 1:
                raise InputError("cluster", key, f"{number} is too few: a group has at least one node with one GPU")


class Pool:
    """Equal nodes of one type and VC.

    Nodes are known by their place here (0, 1, ...); `nodes` has their numbers in the cluster.
    """

    __slots__ = ("_down", "_sets", "free", "free_gpus", "gpu_type", "index", "nodes", "size", "vc")

    def __init__(self, index: int, nodes: Sequence[int], size: int, gpu_type: str, vc: str) -> None:
        self.index, self.nodes, self.size, self.gpu_type, self.vc = index, nodes, size, gpu_type, vc
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

    @property
    def whole_nodes(self) -> int:
        """Nodes that are up and all free."""
        return self._sets[self.size].bit_count()

    def fewest_nodes(self, gpus: int) -> int:
        """On so many nodes such a gang must lie."""
        return -(-gpus // self.size)

    def clone(self) -> Pool:
        """A copy to try things on."""
        other: Pool = Pool.__new__(Pool)
        other.index, other.nodes, other.size = self.index, self.nodes, self.size
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

    def at_most(self, limits: Sequence[int]) -> Pool:
        """A copy in which no node has more free GPUs than its limit."""
        return self.with_free([min(pair) for pair in zip(self.free, limits, strict=True)])

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
        return self.whole_nodes * self.size + part

    def best_fit(self, gpus: int) -> Allocation | None:
        """On the fewest nodes: whole ones, and what is left on the fullest that has room."""
        return self._fewest(gpus, is_fullest=True)

    def worst_fit(self, gpus: int) -> Allocation | None:
        """On the fewest nodes: whole ones, and what is left on the emptiest."""
        return self._fewest(gpus, is_fullest=False)

    def lowest_fit(self, gpus: int) -> Allocation | None:
        """On the fewest nodes: whole ones, and what is left on one that has room; those with the lowest numbers."""
        sets, size = self._sets, self.size
        whole, left = divmod(gpus, size)
        if sets[size].bit_count() < whole:
            return None
        chosen = [(place, size) for place in islice(_bits(sets[size]), whole)]
        if left:
            rooms = 0
            for free in range(left, size + 1):
                rooms |= sets[free]
            for place, _ in chosen:
                rooms ^= 1 << place
            if not rooms:
                return None
            chosen.append(((rooms & -rooms).bit_length() - 1, left))
            chosen.sort()
        return tuple(chosen)

    def consolidated(self, gpus: int) -> Allocation | None:
        """On the fewest nodes if that can be now; else over as few more as can be: the emptiest first."""
        if gpus > self.free_gpus:
            return None
        return self._fewest(gpus, is_fullest=True) or self._spread(gpus)

    def _fewest(self, gpus: int, is_fullest: bool) -> Allocation | None:
        sets, size = self._sets, self.size
        if gpus < size:
            place = _place(sets, gpus, size, is_fullest)
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
            place = _place([*sets[:size], empty], left, size, is_fullest)
            if place < 0:
                return None
            chosen.append((place, left))
            chosen.sort()
        return tuple(chosen)

    def _spread(self, gpus: int) -> Allocation:
        chosen, left = [], gpus
        for free in range(self.size, 0, -1):
            for place in _bits(self._sets[free]):
                chosen.append((place, min(free, left)))
                left -= chosen[-1][1]
                if not left:
                    return tuple(sorted(chosen))
        raise AssertionError("fewer GPUs are free than were counted")


def _place(sets: Sequence[int], gpus: int, size: int, is_fullest: bool) -> int:
    """A node with so many free GPUs: of the fullest or the emptiest the first; -1 for none."""
    for free in range(gpus, size + 1) if is_fullest else range(size, gpus - 1, -1):
        nodes = sets[free]
        if nodes:
            return (nodes & -nodes).bit_length() - 1
    return -1


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
        if not count:
            raise InputError("cluster", "", "has no nodes: give at least one group of nodes")
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
