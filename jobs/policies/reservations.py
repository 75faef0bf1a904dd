"""When a gang of GPUs will be free, if the jobs that run end as estimated."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from jobs.policies.cluster import Pool, Search
from jobs.policies.vocabulary import Allocation

Ends = Sequence[tuple[int, Allocation]]  # when what becomes free, ascending by time


@dataclass(slots=True)
class Reservation:
    """GPUs that are kept for one job from a time on.

    Attributes:
        at_ns: when it starts.
        extra: by node, what is free then beside it.
        spare: the pool as a job sees it that will still run then: what is free now and then.
    """

    at_ns: int
    extra: list[int]
    spare: Pool

    def start_beside(self, pool: Pool, allocation: Allocation, is_long: bool) -> None:
        """A job has started in the pool; a long one will still run at `at_ns`."""
        for place, gpus in allocation:
            if is_long:
                self.extra[place] -= gpus
            spare = min(pool.free[place], self.extra[place])
            self.spare.move(place, spare - self.spare.free[place])


def reserve(pool: Pool, gpus: int, search: Search, ends: Ends) -> Reservation | None:
    """For a job that does not fit now; None where it won't, because nodes are down."""
    then = pool.clone()
    for at_ns, freed in groupby(ends, key=lambda end: end[0]):
        for _, allocation in freed:
            then.give(allocation)
        if then.free_gpus < gpus:
            continue
        place = search(then, gpus)
        if place is not None:
            then.take(place)
            return Reservation(at_ns, then.free, pool.at_most(then.free))
    return None


class Profile:
    """The free GPUs of a pool's nodes over time, in steps; the last one lasts for ever."""

    def __init__(self, pool: Pool, now_ns: int, ends: Ends) -> None:
        self._pool = pool
        self._times, self._free = [now_ns], [pool.free.copy()]
        for at_ns, allocation in ends:
            if at_ns > self._times[-1]:
                self._times.append(at_ns)
                self._free.append(self._free[-1].copy())
            for place, gpus in allocation:
                self._free[-1][place] += gpus

    def earliest(self, gpus: int, length_ns: int, search: Search) -> tuple[int, Allocation] | None:
        """When and where a job of this length can start first; None for never (nodes are down)."""
        for step, at_ns in enumerate(self._times):
            after = bisect_left(self._times, at_ns + length_ns, lo=step + 1)
            least = [min(frees) for frees in zip(*self._free[step:after], strict=True)]
            if sum(least) < gpus:
                continue
            allocation = search(self._pool.with_free(least), gpus)
            if allocation is not None:
                return at_ns, allocation
        return None

    def take(self, allocation: Allocation, from_ns: int, to_ns: int) -> None:
        """A job uses these GPUs for a while."""
        first, after = self._cut(from_ns), self._cut(to_ns)
        for free in self._free[first:after]:
            for place, gpus in allocation:
                free[place] -= gpus

    def _cut(self, at_ns: int) -> int:
        """The step that begins at a time; made where there is none."""
        step = bisect_left(self._times, at_ns)
        if step == len(self._times) or self._times[step] != at_ns:
            self._times.insert(step, at_ns)
            self._free.insert(step, self._free[step - 1].copy())
        return step
