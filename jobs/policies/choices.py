"""Whose turn it is, where that is left to a chooser; and in how many ways a gang can lie, which choosers see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.policies.cluster import Allocation, Pool, Search
from jobs.policies.ledger import JobLedger
from jobs.policies.waiting import CompetingClasses, WaitingClass
from kit.units import NS_PER_S

# ----------------------------------------------------------------------------------------------------------------- ways
# In how many ways a gang of GPUs can lie on a pool's nodes, as RLTune counts them.
#
# Nodes with equally many free GPUs are alike: only how many of each kind are used makes two ways different, and how
# many GPUs on each. All kinds of a way but the last are used up (Dongare et al., arXiv 2512.10271; the authors' code).


SEVERAL: Final = 2  # more are not told apart
Use = tuple[int, tuple[int, ...]]  # of nodes with so many free GPUs: GPUs taken of each, descending


@lru_cache(1 << 16)
def ways(counts: tuple[int, ...], gpus: int) -> tuple[int, int]:
    """Ways on the fewest nodes (0, 1, `SEVERAL` or more), and 1 if there is one on a node more that fragments no more.

    Args:
        counts: (node size + 1,) how many nodes have 0, 1, ... free GPUs.
    """
    fewest = -(-gpus // (len(counts) - 1))
    fewest_ways = len(list(islice(uses(counts, gpus, fewest), SEVERAL)))
    return fewest_ways, len(list(islice(uses(counts, gpus, fewest + 1, keeps_whole=True), 1)))


def uses(
    counts: tuple[int, ...], gpus: int, nodes: int, keeps_whole: bool = False, most: int | None = None
) -> Iterator[tuple[Use, ...]]:
    """All ways on exactly so many nodes.

    Args:
        keeps_whole: leave out those that use a part of a whole node: only they add a partly used one.
        most: on nodes with at most so many free GPUs.
    """
    free = len(counts) - 1 if most is None else most
    if free * nodes < gpus or nodes > gpus:
        return
    for many in range(1, min(counts[free], nodes) + 1):
        left = gpus - many * free
        if left > 0:
            for rest in uses(counts, left, nodes - many, keeps_whole, free - 1):
                yield ((free, (free,) * many), *rest)
        elif many == nodes and not (left < 0 and keeps_whole and free == len(counts) - 1):
            yield from (((free, parts),) for parts in _parts(gpus, many, free))
    yield from uses(counts, gpus, nodes, keeps_whole, free - 1)


def _parts(gpus: int, nodes: int, most: int) -> Iterator[tuple[int, ...]]:
    """So many GPUs over nodes, at least one and at most `most` on each, descending."""
    if nodes == 1:
        if 1 <= gpus <= most:
            yield (gpus,)
        return
    for first in range(min(most, gpus - nodes + 1), -(-gpus // nodes) - 1, -1):
        for rest in _parts(gpus - first, nodes - 1, first):
            yield (first, *rest)


# -------------------------------------------------------------------------------------------------------------- choices
# Whose turn is left to a chooser (a network, a person, chance), by the queueing `choice`: somebody who fits is chosen,
# or nobody until something happens. Without a chooser it is the first of the order, of those that fit.


WAIT: Final = -1  # nobody is started until something happens
VERSION: Final = "rltune/2"  # of what is seen
NAMES: Final = ("age", "gpus", "demand over free", "free after all", "partly used nodes", "ways", "fits", "predicted")
_LONGEST_S: Final = 43_200.0
_EPS: Final = 1e-5
_MOST: Final = 1.0 - _EPS
_LARGEST: Final = 8.0  # decimal logarithm of GPU seconds
Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]
Seen = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Who may be chosen, in the policy's order, and what is known of his chances. A row for each job.

    Attributes:
        may: (n,) bool, whether it fits, and so may be chosen.
        can_wait: whether nobody may be chosen (`WAIT`): while a job runs, something will happen.
        jobs, gpus, age_s, estimate_s: (n,) number, GPUs, time since submission, run time by the policy's estimate.
        chances: (n, 4) as `_chances` has them, of each job's class.
        states: (fields, 4) as `_state` has them.
        largest_node: GPUs of the cluster's largest node.
    """

    now_ns: int
    may: NDArray[np.bool_]
    can_wait: bool
    jobs: Counts
    gpus: Counts
    age_s: Numbers
    estimate_s: Numbers
    chances: Counts
    states: Numbers
    largest_node: int

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def seen(self) -> Seen:
        """(n, 8) What RLTune's network sees of each (`NAMES`); worked out where somebody asks.

        Seven numbers are RLTune's (Dongare et al., arXiv 2512.10271; the authors' code). Of these age and GPUs alone
        differ between the jobs of one field at one instant, and what follows from the GPUs. A job's field is of all
        pools between which its like may choose, directly or by way of others. The eighth is the predicted GPU time's
        logarithm; 0 where the policy asks for no run time.
        """
        gpus, number_of_ways, fits, field = self.chances.T
        free, capacity, nodes, partly_used = self.states[field].T
        demand = np.bincount(field, gpus, len(self.states))[field]  # GPUs that all who are seen ask of it
        after = (free - demand + capacity) / (2 * capacity + _EPS)
        rows = np.empty((len(self), len(NAMES)), np.float32)
        rows[:, 0] = np.minimum(self.age_s / _LONGEST_S, _MOST)
        rows[:, 1] = np.minimum(gpus / self.largest_node, _MOST)
        rows[:, 2] = np.minimum(gpus / np.maximum(free, _EPS) / capacity, _MOST)
        rows[:, 3] = np.clip(after, 0.0, _MOST)
        rows[:, 4] = partly_used / nodes
        rows[:, 5] = np.clip(number_of_ways / 3, _EPS, _MOST)
        rows[:, 6] = np.where(fits > 0, np.where(number_of_ways >= 2, 1.5 * _MOST, _MOST), _EPS)
        rows[:, 7] = np.log10(np.maximum(self.gpus * self.estimate_s, 1.0)) / _LARGEST
        return rows


Chooser = Callable[[View], int]
"""Whose turn it is: the place in the view of whom to start, or `WAIT`."""

Mapper = Callable[[View, int, Sequence[Sequence[Pool]]], tuple[Pool, Allocation]]
"""Where a chosen job lies that fits: of a view of all that wait, its place there, and each one's pools."""


@dataclass(frozen=True, slots=True)
class Choosing:
    """Who chooses.

    Attributes:
        scores: of each job of a view, the larger the sooner its turn; None: by the policy's order.
    """

    chooser: Chooser
    scores: Callable[[View], NDArray[Any]] | None = None


class Choices:
    """The choices of one scheduler."""

    def __init__(self, choosing: Choosing | None = None, mapper: Mapper | None = None) -> None:
        self._mapper = mapper
        self._chooser = choosing.chooser if choosing is not None else None
        self._fields: tuple[int, dict[int, int], list[list[Pool]]] = (0, {}, [])  # of so many classes

    def choice(self, line: CompetingClasses, ledger: JobLedger) -> None:
        """Choose among those that fit, until none does or the chooser waits."""
        while any(_fits(waiting, ledger.search) for waiting in line.classes if waiting.count):
            chosen = self._chosen(line, ledger)
            if chosen is None:
                return
            self._start(*chosen, line, ledger)

    def _start(self, waiting: WaitingClass, job: int, line: CompetingClasses, ledger: JobLedger) -> None:
        placement = _room(waiting, ledger.search)
        assert placement is not None, "a job was chosen that does not fit"
        if self._mapper is not None and waiting.nodes == 1:
            classes = _those_waiting(line, ledger)
            jobs, number = _in_order(classes)
            view = self._view(line, classes, jobs, number, ledger)
            place = int((jobs == job).argmax())
            placement = self._mapper(view, place, [classes[of].pools for of in number])
        ledger.start(waiting, int(np.searchsorted(waiting.jobs, job)), *placement)

    def _chosen(self, line: CompetingClasses, ledger: JobLedger) -> tuple[WaitingClass, int] | None:
        """A class and a job's number; None for nobody now."""
        classes = _those_waiting(line, ledger)
        if self._chooser is None:
            may = [waiting for waiting in classes if _fits(waiting, ledger.search)]
            first = min(may, key=lambda waiting: waiting.first)
            return first, int(first.jobs[first.head])
        jobs, number = _in_order(classes)
        view = self._view(line, classes, jobs, number, ledger)
        place = self._chooser(view)
        if place == WAIT:
            assert view.can_wait, "nobody was chosen where nothing will happen"
            return None
        assert view.may[place], "somebody was chosen who may not be"
        return classes[number[place]], int(jobs[place])

    # -------------------------------------------------------------------------------------------------------- views

    def _view(
        self,
        line: CompetingClasses,
        classes: Sequence[WaitingClass],
        jobs: Counts,
        number: Counts,
        ledger: JobLedger,
    ) -> View:
        of_pool, fields = self._known_fields(line.classes)
        counts = {pool.index: pool.counts for field in fields for pool in field}
        chances = np.array([_chances(waiting, counts, of_pool, ledger.search) for waiting in classes], np.int64)[number]
        return View(
            now_ns=ledger.now_ns,
            may=chances[:, 2] > 0,
            can_wait=any(running.held for running in ledger.running),
            jobs=jobs,
            gpus=chances[:, 0],
            age_s=(ledger.now_ns - ledger.book.submit_ns[jobs]) / NS_PER_S,
            estimate_s=ledger.book.estimate_ns[jobs] / NS_PER_S,
            chances=chances,
            states=np.array([_state(field, counts) for field in fields], np.float64),
            largest_node=max(pool.size for field in fields for pool in field),
        )

    def _known_fields(self, classes: Sequence[WaitingClass]) -> tuple[dict[int, int], list[list[Pool]]]:
        """Which pools hang together by those who may choose between them: the field of each, and the pools of each."""
        many, of_pool, fields = self._fields
        if many != len(classes):
            of_pool, fields = _joined(classes)
            self._fields = len(classes), of_pool, fields
        return of_pool, fields


def _those_waiting(line: CompetingClasses, ledger: JobLedger) -> list[WaitingClass]:
    classes = [waiting for waiting in line.classes if waiting.count]
    ledger.refresh(classes)
    return classes


def _fits(waiting: WaitingClass, search: Search) -> bool:
    return _room(waiting, search) is not None


def _room(waiting: WaitingClass, search: Search) -> tuple[Pool, Allocation] | None:
    """Where one of this class can lie now, in the first of its pools that has room."""
    for pool in waiting.pools:
        if pool.free_gpus >= waiting.gpus:
            allocation = search(pool, waiting.gpus, waiting.nodes)
            if allocation is not None:
                return pool, allocation
    return None


def _in_order(classes: Sequence[WaitingClass]) -> tuple[Counts, Counts]:
    """The jobs by index and number, and the number of each one's class."""
    jobs = np.concatenate([waiting.jobs for waiting in classes])
    index = np.concatenate([waiting.index for waiting in classes])
    number = np.repeat(np.arange(len(classes)), [waiting.count for waiting in classes])
    order = np.lexsort((jobs, index))
    return jobs[order], number[order]


def _joined(classes: Sequence[WaitingClass]) -> tuple[dict[int, int], list[list[Pool]]]:
    fields: list[dict[int, Pool]] = []
    for waiting in classes:
        by_index = {pool.index: pool for pool in waiting.pools}
        for met in [each for each in fields if each.keys() & by_index.keys()]:
            by_index |= met
            fields.remove(met)
        fields.append(by_index)
    of_pool = {index: number for number, field in enumerate(fields) for index in field}
    return of_pool, [list(field.values()) for field in fields]


def _chances(
    waiting: WaitingClass, counts: dict[int, tuple[int, ...]], of_pool: dict[int, int], search: Search
) -> tuple[int, int, int, int]:
    """GPUs; ways, on the fewest nodes (`SEVERAL` for more) and one on a node more; whether it fits now; its field."""
    chances = [ways(counts[pool.index], waiting.gpus) for pool in waiting.pools]
    fewest, one_more = min(sum(pair[0] for pair in chances), SEVERAL), max(pair[1] for pair in chances)
    return waiting.gpus, fewest + one_more, _fits(waiting, search), of_pool[waiting.pools[0].index]


def _state(pools: Sequence[Pool], counts: dict[int, tuple[int, ...]]) -> tuple[int, int, int, int]:
    """Of a field: free GPUs, all, nodes, partly used nodes."""
    partly_used = sum(sum(counts[pool.index][1:-1]) for pool in pools)
    return sum(p.free_gpus for p in pools), sum(p.gpus for p in pools), sum(len(p.nodes) for p in pools), partly_used
