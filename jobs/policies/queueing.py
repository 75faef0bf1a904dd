"""When a gang of GPUs will be free, if the jobs that run end as estimated."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import groupby
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jobs.policies.choices import ChoiceContext, CompetingClasses, WaitingClass
from jobs.policies.cluster import Allocation, Pool, Search

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


class FreeGpuProfile:
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


# ------------------------------------------------------------------------------------------------------------- queueing
# Who may overtake whom: a word in a policy file.
#
#     strict        nobody: who is first and does not fit keeps its pools closed for all behind it
#     first-fit     anybody who fits
#     easy          anybody who fits and does not delay the first that does not (Lifka, JSSPP'95): that one has a
#                   reservation, at the earliest time at which it fits if running jobs end as estimated
#     conservative  anybody who fits and delays nobody before him: all have reservations (Mu'alem and Feitelson 2001)
#     stall, choice as is chosen (`jobs.policies.choices`)
#
# A reservation is of nodes. It is worked out anew at each decision, of the jobs in their present order. A pool has one
# under `easy`: jobs that share no pool do not wait for each other. A job that
# is over its estimate counts as one that ends in a second.


_FIRST: Final = attrgetter("first")
_Heads = list[tuple[tuple[float, int], int]]  # a heap of (key, number of the class)


def _heads(classes: Sequence[WaitingClass], context: ChoiceContext) -> _Heads:
    for waiting in classes:
        context.refresh(waiting)
    heads = [(waiting.first, number) for number, waiting in enumerate(classes)]
    heapify(heads)
    return heads


def _first_fit(line: CompetingClasses, context: ChoiceContext) -> None:
    classes = line.touched
    if not context.is_preemptive:  # who does not fit now won't after others have started
        classes = context.fitting(classes)
        if not classes:
            return
    heads, stopped = _heads(classes, context), context.stopped
    blocked: dict[tuple[Pool, ...], int] = {}  # by pools: nobody of this demand or more can start there any more
    while heads and context.stopped == stopped:  # what a stop leaves over is the first's of all that wait: decide anew
        _, number = heappop(heads)
        waiting = classes[number]
        if waiting.demand_milli >= blocked.get(waiting.pools, waiting.demand_milli + 1):
            continue
        if not context.try_head(waiting):
            blocked[waiting.pools] = waiting.demand_milli
        elif waiting.count:
            heappush(heads, (waiting.first, number))


def _strict(line: CompetingClasses, context: ChoiceContext) -> None:
    classes = [waiting for waiting in line.classes if waiting.count]
    if not context.is_preemptive and not context.fitting(classes):
        return
    for waiting in classes:
        context.refresh(waiting)
    closed: list[Pool] = []
    while classes:
        waiting = min(classes, key=_FIRST)
        if not context.try_head(waiting, closed):
            closed += waiting.pools
            classes = [waiting for waiting in classes if any(pool not in closed for pool in waiting.pools)]
        elif not waiting.count:
            classes.remove(waiting)


# ------------------------------------------------------------------------------------------------------------ easy


def _easy(line: CompetingClasses, context: ChoiceContext) -> None:
    classes = [waiting for waiting in line.classes if waiting.count]
    if not context.fitting(classes):
        return
    heads, kept = _heads(classes, context), dict[int, Reservation]()
    while heads:
        key, number = heappop(heads)
        waiting = classes[number]
        place = _first_allowed(waiting, kept, context)
        if place is None:
            if any(pool.index in kept for pool in waiting.pools):
                continue
            if not context.fitting(classes[other] for _, other in heads):
                return
            _keep_for(waiting, kept, context)
        elif waiting.key_at(place) != key:
            heappush(heads, (waiting.key_at(place), number))
        else:
            _start_allowed(waiting, place, kept, context)
            if waiting.count:
                heappush(heads, (waiting.first, number))


def _first_allowed(waiting: WaitingClass, kept: Mapping[int, Reservation], context: ChoiceContext) -> int | None:
    """The place of the first of a class who may start now and delays no reservation."""
    may: NDArray[np.bool_] | None = None
    for pool in waiting.pools:
        if context.search(pool, waiting.gpus) is None:
            continue
        reservation = kept.get(pool.index)
        if reservation is None or context.search(reservation.spare, waiting.gpus) is not None:
            return waiting.head
        in_time = context.lengths_ns(waiting, pool) <= reservation.at_ns - context.now_ns
        may = in_time if may is None else may | in_time
    return None if may is None else waiting.first_of(may)


def _start_allowed(waiting: WaitingClass, place: int, kept: Mapping[int, Reservation], context: ChoiceContext) -> None:
    for pool in waiting.pools:
        reservation = kept.get(pool.index)
        if reservation is None:
            allocation, is_long = context.search(pool, waiting.gpus), False
        else:
            is_long = bool(context.lengths_ns(waiting, pool)[place] > reservation.at_ns - context.now_ns)
            allocation = context.search(reservation.spare if is_long else pool, waiting.gpus)
        if allocation is not None:
            context.start(waiting, place, pool, allocation)
            if reservation is not None:
                reservation.start_beside(pool, allocation, is_long)
            return
    raise AssertionError("a job that may start fits nowhere")


def _keep_for(waiting: WaitingClass, kept: dict[int, Reservation], context: ChoiceContext) -> None:
    """Reserve for the first of a class, in the pool where it can start first; nothing where it can't in any."""
    found = [reserve(pool, waiting.gpus, context.search, context.ends(pool)) for pool in waiting.pools]
    times = [(one.at_ns, number) for number, one in enumerate(found) if one is not None]
    if times:
        _, number = min(times)
        reservation = found[number]
        assert reservation is not None
        kept[waiting.pools[number].index] = reservation


# ---------------------------------------------------------------------------------------------------- conservative


def _conservative(line: CompetingClasses, context: ChoiceContext) -> None:
    classes = [waiting for waiting in line.classes if waiting.count]
    if not context.fitting(classes):
        return  # reservations are made anew each time, so they matter only where somebody can start
    for waiting in classes:
        context.refresh(waiting)
    queue = sorted((waiting.key_at(place), waiting) for waiting in classes for place in range(waiting.count))
    profiles = dict[int, FreeGpuProfile]()
    for (_, job), waiting in queue:
        place = int(np.searchsorted(waiting.jobs, job))
        _reserve_all(waiting, place, profiles, context)


def _reserve_all(
    waiting: WaitingClass, place: int, profiles: dict[int, FreeGpuProfile], context: ChoiceContext
) -> None:
    """Give a job the earliest time that those before it leave; start it if that is now."""
    found = []
    for order, pool in enumerate(waiting.pools):
        profile = profiles.get(pool.index)
        if profile is None:
            profile = profiles[pool.index] = FreeGpuProfile(pool, context.now_ns, context.ends(pool))
        length_ns = int(context.lengths_ns(waiting, pool)[place])
        slot = profile.earliest(waiting.gpus, length_ns, context.search)
        if slot is not None:
            found.append((slot[0], order, slot[1], length_ns))
    if found:
        at_ns, order, allocation, length_ns = min(found)
        pool = waiting.pools[order]
        profiles[pool.index].take(allocation, at_ns, at_ns + length_ns)
        if at_ns == context.now_ns:
            context.start(waiting, place, pool, allocation)


Queueing = Callable[[CompetingClasses, ChoiceContext], None]
QUEUEINGS: Final[Mapping[str, Queueing]] = {
    "strict": _strict,
    "first-fit": _first_fit,
    "easy": _easy,
    "conservative": _conservative,
    "stall": lambda line, context: context.choices.stall(line, context),
    "choice": lambda line, context: context.choices.choice(line, context),
}
RESERVING: Final = ("easy", "conservative")
CHOOSING: Final = ("stall", "choice")  # all jobs stand in one line
