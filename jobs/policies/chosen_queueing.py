"""Queueing in which a chooser picks the next job, and gang placements, counted or chosen by a mixed-integer program.

Counts (`ways`): the chooser observes in how many ways a gang can be placed.

Placement of a chosen job (`mapper_of`): the job's candidates are the placement that fragments least and the placement
that balances best, each on the fewest nodes and on one more: four at most. The program (`Programme`) selects one of
them, and minimizes

    a sum_n f_n + b (F_max - F_min) - g sum_k y_k,        (a, b, g) = (1, 0.3, 0.5)

with f_n = 1 if node n is partly used; F: free GPUs of a node; y_k = 1 if the k-th job in line after the chosen one, by
the policy's own scores, is placed jointly with it, on one of its candidates.

The candidates are so few that all combinations are tried. Of two equally good placements, the first candidate is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.policies.job_cluster import Allocation, Pool, Search
from jobs.policies.job_ledger import JobLedger
from jobs.policies.preemption import CompetingClasses, WaitingClass
from kit.units import NS_PER_S

# ----------------------------------------------------------------------------------------------------------------- ways
# The number of ways to place a gang of GPUs on a pool's nodes, as RLTune counts them.
#
# Nodes with equal numbers of free GPUs are interchangeable: two ways differ only in how many nodes of each kind they
# use, and how many GPUs on each. A way uses up all its kinds but the last (Dongare et al., arXiv 2512.10271; the
# authors' code).


SEVERAL: Final = 2  # more are not distinguished
Use = tuple[int, tuple[int, ...]]  # (free GPUs of the nodes, GPUs taken of each, descending)


@lru_cache(1 << 16)
def ways(counts: tuple[int, ...], gpus: int) -> tuple[int, int]:
    """Count ways on the fewest nodes (0, 1, `SEVERAL` or more), and (0 or 1) on one more without more fragments.

    Args:
        counts: (node size + 1,) how many nodes have 0, 1, ... free GPUs.
    """
    fewest = -(-gpus // (len(counts) - 1))
    fewest_ways = len(list(islice(uses(counts, gpus, fewest), SEVERAL)))
    return fewest_ways, len(list(islice(uses(counts, gpus, fewest + 1, keeps_whole=True), 1)))


def uses(
    counts: tuple[int, ...], gpus: int, nodes: int, keeps_whole: bool = False, most: int | None = None
) -> Iterator[tuple[Use, ...]]:
    """Yield all ways on exactly `nodes` nodes.

    Args:
        keeps_whole: leave out ways that use part of a whole node: only these add a partly used node.
        most: use only nodes with at most this many free GPUs.
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
    """Yield the ways to split GPUs over nodes, at least one and at most `most` on each, descending."""
    if nodes == 1:
        if 1 <= gpus <= most:
            yield (gpus,)
        return
    for first in range(min(most, gpus - nodes + 1), -(-gpus // nodes) - 1, -1):
        for rest in _parts(gpus - first, nodes - 1, first):
            yield (first, *rest)


# -------------------------------------------------------------------------------------------------------------- choices
# The queueing `choice` leaves the next job to a chooser (a network, a person, chance): it picks a job that fits, or
# none until the next event. Without a chooser, the first fitting job in the policy's order starts.


WAIT: Final = -1  # start no job until the next event
VERSION: Final = "rltune/2"  # version of the observation
NAMES: Final = ("age", "gpus", "demand over free", "free after all", "partly used nodes", "ways", "fits", "predicted")
_LONGEST_S: Final = 43_200.0
_EPS: Final = 1e-5
_MOST: Final = 1.0 - _EPS
_LARGEST: Final = 8.0  # decimal logarithm of GPU seconds
Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]
Inputs = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Jobs that may be chosen, in the policy's order, with what is known of their chances; a row for each job.

    Attributes:
        may: (n,) bool, whether the job fits, and so may be chosen.
        can_wait: whether `WAIT` may be chosen: while a job runs, another event will follow.
        jobs, gpus, age_s, estimate_s: (n,) number, GPUs, time since submission, run time by the policy's estimate.
        chances: (n, 4) the output of `_chances` for each job's class.
        states: (fields, 4) the output of `_state` for each field.
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
    def inputs(self) -> Inputs:
        """(n, 8) What RLTune's network observes of each job (`NAMES`); computed on demand.

        Seven numbers are RLTune's (Dongare et al., arXiv 2512.10271; the authors' code). Of these, only age, GPUs and
        what follows from the GPUs differ between the jobs of one field at one instant. A job's field is the set of
        pools that are connected by jobs that may use several of them. The eighth is the predicted GPU time's logarithm;
        0 if the policy uses no run time.
        """
        gpus, number_of_ways, fits, field = self.chances.T
        free, capacity, nodes, partly_used = self.states[field].T
        demand = np.bincount(field, gpus, len(self.states))[field]  # GPUs that all visible jobs request of it
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
"""Choice of the next job: its row in the view, or `WAIT`."""

Mapper = Callable[[View, int, Sequence[Sequence[Pool]]], tuple[Pool, Allocation]]
"""Placement of a chosen job that fits: from a view of all waiting jobs, its row in it, and each job's pools."""


@dataclass(frozen=True, slots=True)
class Choosing:
    """A chooser, with its scores of jobs.

    Attributes:
        scores: of each job of a view; a larger score comes first. None: the policy's order.
    """

    chooser: Chooser
    scores: Callable[[View], NDArray[Any]] | None = None


class Choices:
    """The choices of one scheduler."""

    def __init__(self, choosing: Choosing | None = None, mapper: Mapper | None = None) -> None:
        self._mapper = mapper
        self._chooser = choosing.chooser if choosing is not None else None
        self._fields: tuple[int, dict[int, int], list[list[Pool]]] = (0, {}, [])  # for this number of classes

    def choice(self, line: CompetingClasses, ledger: JobLedger) -> None:
        """Start chosen jobs until none fits or the chooser waits."""
        while any(_fits(waiting, ledger.search) for waiting in line.classes if waiting.count):
            choice = self._choose(line, ledger)
            if choice is None:
                return
            self._start(*choice, line, ledger)

    def _start(self, waiting: WaitingClass, job: int, line: CompetingClasses, ledger: JobLedger) -> None:
        placement = _room(waiting, ledger.search)
        assert placement is not None, "a job was chosen that does not fit"
        if self._mapper is not None and waiting.nodes == 1:
            classes = _those_waiting(line, ledger)
            jobs, number = _in_order(classes)
            view = self._view(line, classes, jobs, number, ledger)
            row = int((jobs == job).argmax())
            placement = self._mapper(view, row, [classes[of].pools for of in number])
        ledger.start(waiting, int(np.searchsorted(waiting.jobs, job)), *placement)

    def _choose(self, line: CompetingClasses, ledger: JobLedger) -> tuple[WaitingClass, int] | None:
        """Return the chosen job's class and number; None if no job is chosen now."""
        classes = _those_waiting(line, ledger)
        if self._chooser is None:
            may = [waiting for waiting in classes if _fits(waiting, ledger.search)]
            first = min(may, key=lambda waiting: waiting.first)
            return first, int(first.jobs[first.head])
        jobs, number = _in_order(classes)
        view = self._view(line, classes, jobs, number, ledger)
        row = self._chooser(view)
        if row == WAIT:
            assert view.can_wait, "no job was chosen, and no event will follow"
            return None
        assert view.may[row], "a job was chosen that may not be"
        return classes[number[row]], int(jobs[row])

    # -------------------------------------------------------------------------------------------------------- views

    def _view(
        self, line: CompetingClasses, classes: Sequence[WaitingClass], jobs: Counts, number: Counts, ledger: JobLedger
    ) -> View:
        if self._fields[0] != len(line.classes):
            self._fields = len(line.classes), *_joined(line.classes)
        _, of_pool, fields = self._fields
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


def _those_waiting(line: CompetingClasses, ledger: JobLedger) -> list[WaitingClass]:
    classes = [waiting for waiting in line.classes if waiting.count]
    ledger.refresh(classes)
    return classes


def _fits(waiting: WaitingClass, search: Search) -> bool:
    return _room(waiting, search) is not None


def _room(waiting: WaitingClass, search: Search) -> tuple[Pool, Allocation] | None:
    """Return a free placement for a job of this class, in the first of its pools that has room."""
    for pool in waiting.pools:
        if pool.free_gpus >= waiting.gpus:
            allocation = search(pool, waiting.gpus, waiting.nodes)
            if allocation is not None:
                return pool, allocation
    return None


def _in_order(classes: Sequence[WaitingClass]) -> tuple[Counts, Counts]:
    """Return the jobs by index and number, and the number of each one's class."""
    jobs = np.concatenate([waiting.jobs for waiting in classes])
    index = np.concatenate([waiting.index for waiting in classes])
    number = np.repeat(np.arange(len(classes)), [waiting.count for waiting in classes])
    order = np.lexsort((jobs, index))
    return jobs[order], number[order]


def _joined(classes: Sequence[WaitingClass]) -> tuple[dict[int, int], list[list[Pool]]]:
    """Return each pool's field, and each field's pools: those connected by jobs that may use several of them."""
    fields: list[dict[int, Pool]] = []
    for waiting in classes:
        by_index = {pool.index: pool for pool in waiting.pools}
        for overlapping in [field for field in fields if field.keys() & by_index.keys()]:
            by_index |= overlapping
            fields.remove(overlapping)
        fields.append(by_index)
    of_pool = {index: number for number, field in enumerate(fields) for index in field}
    return of_pool, [list(field.values()) for field in fields]


def _chances(
    waiting: WaitingClass, counts: dict[int, tuple[int, ...]], of_pool: dict[int, int], search: Search
) -> tuple[int, int, int, int]:
    """Return GPUs, ways on the fewest nodes (at most `SEVERAL`) and on one more, whether it fits now, and its field."""
    chances = [ways(counts[pool.index], waiting.gpus) for pool in waiting.pools]
    fewest, one_more = min(sum(pair[0] for pair in chances), SEVERAL), max(pair[1] for pair in chances)
    return waiting.gpus, fewest + one_more, _fits(waiting, search), of_pool[waiting.pools[0].index]


def _state(pools: Sequence[Pool], counts: dict[int, tuple[int, ...]]) -> tuple[int, int, int, int]:
    """Return a field's free GPUs, all GPUs, nodes and partly used nodes."""
    partly_used = sum(sum(counts[pool.index][1:-1]) for pool in pools)
    columns = zip(*((pool.free_gpus, pool.gpus, len(pool.nodes)) for pool in pools), strict=True)
    free, gpus, nodes = map(sum, columns)
    return free, gpus, nodes, partly_used


# ------------------------------------------------------------------------------------------ placement of the chosen job


WEIGHTS: Final = (1.0, 0.3, 0.5)
FOLLOWING: Final = 4  # jobs placed jointly; with the chosen one, RLTune's top five
_TIE: Final = 1e-3  # the extra cost of a later candidate of the chosen job; objectives differ by tenths
Scores = Callable[[View], NDArray[Any]]


class Candidate(NamedTuple):
    """One possible placement of a job: a pool, and nodes there."""

    pool: Pool
    allocation: Allocation


class Nodes:
    """Present state of all nodes of some pools, concatenated.

    Attributes:
        free, size: (N,) GPUs.
        first: where each pool's nodes begin, by its index.
    """

    def __init__(self, pools: Sequence[Pool]) -> None:
        many = [len(pool.nodes) for pool in pools]
        self.free = np.concatenate([np.array(pool.free) for pool in pools])
        self.size = np.repeat([pool.size for pool in pools], many)
        self.first = dict(zip([pool.index for pool in pools], accumulate(many, initial=0), strict=False))

    def taken(self, candidate: Candidate) -> NDArray[np.int64]:
        """Return (N,) GPUs that a candidate takes of each node."""
        row = np.zeros(len(self.free), np.int64)
        for position, gpus in candidate.allocation:
            row[self.first[candidate.pool.index] + position] = gpus
        return row


# --------------------------------------------------------------------------------------------------------- candidates


def candidates(pools: Sequence[Pool], gpus: int) -> list[Candidate]:
    """Return four candidates at most: (fewest nodes, one more) x (least fragmentation, best balance), each once."""
    by_allocation: dict[tuple[int, Allocation], Candidate] = {}
    for more in (0, 1) if gpus > 1 else (0,):
        laid = [(pool, allocation) for pool in pools for allocation in _laid(pool, gpus, more)]
        if not laid:
            continue
        keyed = [(*_merits(pool, allocation), (pool.index, allocation), pool) for pool, allocation in laid]
        for best in (min(keyed, key=lambda one: one[:4]), min(keyed, key=lambda one: (one[2], *one[:2], one[3]))):
            by_allocation.setdefault(best[3], Candidate(best[4], best[3][1]))
    return list(by_allocation.values())


def _laid(pool: Pool, gpus: int, more: int) -> Iterator[Allocation]:
    """Yield placements on `more` nodes above the fewest; of equally free nodes those with the lowest numbers."""
    nodes: dict[int, list[int]] = {}
    for position, free in enumerate(pool.free):
        if pool.is_up(position):
            nodes.setdefault(free, []).append(position)
    for use in uses(pool.counts, gpus, pool.fewest_nodes(gpus) + more, keeps_whole=bool(more)):
        yield tuple(
            sorted((position, used) for free, parts in use for position, used in zip(nodes[free], parts, strict=False))
        )


def _merits(pool: Pool, allocation: Allocation) -> tuple[int, int, float]:
    """Return by how much partly used nodes, GPUs used on them, and the variance of utilization grow."""
    before = np.array(pool.free)
    after = before.copy()
    for position, gpus in allocation:
        after[position] -= gpus
    partly = []
    used = []
    spread = []
    for free in (before, after):
        is_partly = (free > 0) & (free < pool.size)
        partly.append(int(is_partly.sum()))
        used.append(int((pool.size - free[is_partly]).sum()))
        spread.append(float(np.var(free / pool.size)))
    return partly[1] - partly[0], used[1] - used[0], round(spread[1] - spread[0], 12)


# --------------------------------------------------------------------------------------------------------- programs


@dataclass(frozen=True, slots=True, eq=False)
class Programme:
    """Program that takes one candidate of the first job, and at most one of each job that follows.

    Attributes:
        free, size: (N,) of the nodes.
        takes: for each job (W, N), GPUs that each of its candidates takes.
    """

    free: NDArray[np.int64]
    size: NDArray[np.int64]
    takes: Sequence[NDArray[np.int64]]
    weights: tuple[float, float, float] = WEIGHTS

    def solve(self) -> int:
        """Return the first job's candidate, by trying all combinations that fit."""
        a, b, g = self.weights
        is_touched = np.concatenate(self.takes).any(axis=0)
        still = self.free[~is_touched]
        size = self.size[is_touched]
        largest = int(self.size.max())
        candidate = np.arange(len(self.takes[0]))
        free, cost = self.free[is_touched] - self.takes[0][:, is_touched], _TIE * candidate
        for takes in self.takes[1:]:
            options = np.vstack([np.zeros_like(takes[:1]), takes])[:, is_touched]  # the first row: not placed
            rows, option = np.nonzero((free[:, None] >= options).all(axis=2))
            free = free[rows] - options[option]
            cost = cost[rows] - np.where(option > 0, g, 0.0)
            candidate = candidate[rows]
        most = np.maximum(free.max(axis=1, initial=0), still.max(initial=0))
        least = np.minimum(free.min(axis=1, initial=largest), still.min(initial=largest))
        cost = cost + b * (most - least) + a * ((free > 0) & (free < size)).sum(axis=1)
        return int(candidate[cost.argmin()])


# ------------------------------------------------------------------------------------------------------------ mappers


def _lay(scores: Scores, view: View, row: int, pools: Sequence[Sequence[Pool]]) -> Candidate:
    """Place a job jointly with those next in line."""
    options = candidates(pools[row], int(view.gpus[row]))
    if len(options) == 1:
        return options[0]
    following = [int(other) for other in np.argsort(-scores(view), kind="stable") if other != row][:FOLLOWING]
    by_index = {pool.index: pool for job in (row, *following) for pool in pools[job]}
    nodes = Nodes(list(by_index.values()))
    clones = {pool.index: pool.clone() for pool in by_index.values()}
    clones[options[0].pool.index].take(options[0].allocation)
    takes = [np.stack([nodes.taken(candidate) for candidate in options])]
    for job in following:
        gpus, job_pools = int(view.gpus[job]), pools[job]
        after = candidates([clones[pool.index] for pool in job_pools], gpus)
        rows = [nodes.taken(candidate) for candidate in (*candidates(job_pools, gpus), *after)]
        if rows:
            takes.append(np.unique(np.stack(rows), axis=0))
        if after:
            after[0].pool.take(after[0].allocation)
    return options[Programme(nodes.free, nodes.size, takes).solve()]


def mapper_of(scores: Scores | None) -> Mapper:
    """Return the mapper that places a chosen job.

    Args:
        scores: of each job of a view; a larger score comes first. None: the view's order.
    """
    return partial(_lay, scores or (lambda view: -np.arange(len(view))))
