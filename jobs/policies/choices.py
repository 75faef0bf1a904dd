"""Whose turn is left to a chooser: a network, a person, chance. Two words for a queueing, with one and without.

    stall     somebody is chosen, whether he fits or not; until he has been started nobody else is (RLTune's way)
    choice    somebody who fits is chosen, or nobody until something happens

The first looks at the `VISIBLE` first of the order, the second at all. Without a chooser the first of the order is
chosen: under `choice`, of those that fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from jobs.policies.book import JobBook
from jobs.policies.cluster import Pool, Search
from jobs.policies.vocabulary import Allocation
from jobs.policies.waiting import Line, WaitingClass
from jobs.policies.ways import SEVERAL, ways
from kit.units import NS_PER_S

VISIBLE: Final = 128
WAIT: Final = -1  # nobody is started until something happens
Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Who may be chosen, in the policy's order, and what is known of his chances. A row for each job.

    A job's field is of all pools between which its like may choose, directly or by way of others (`field_` columns).

    Attributes:
        may: (n,) bool, whether a choice of it is allowed.
        can_wait: whether nobody may be chosen (`WAIT`).
        jobs, gpus, age_s: (n,) number, GPUs, time since submission.
        ways: (n,) on the fewest nodes, `SEVERAL` counting for more; and one more if a node more fragments no more.
        fits: (n,) bool, whether it can start now.
        field: (n,) which field is its own, 0, 1, ...
        field_free, field_gpus, field_nodes, field_partly_used: (fields,) GPUs free and all, nodes all and partly used.
        field_demand: (fields,) GPUs that all visible jobs ask of it.
        largest_node: GPUs of the cluster's largest node.
    """

    now_ns: int
    may: NDArray[np.bool_]
    can_wait: bool
    jobs: Counts
    gpus: Counts
    age_s: Numbers
    ways: Counts
    fits: NDArray[np.bool_]
    field: Counts
    field_free: Numbers
    field_gpus: Numbers
    field_nodes: Numbers
    field_partly_used: Numbers
    field_demand: Numbers
    largest_node: int

    def __len__(self) -> int:
        return len(self.jobs)


class Chooser(Protocol):
    """Whoever decides whose turn it is."""

    def choose(self, view: View) -> int | None:
        """The place in the view of whom to start, or `WAIT`; None for later: the same is asked again."""
        ...


class Mapper(Protocol):
    """Whoever decides where a chosen job lies that fits; without one, the placement's search does."""

    def lay(self, view: View, place: int, pools: Sequence[Sequence[Pool]]) -> tuple[Pool, Allocation]:
        """A pool and places there for the job at a place of a view of all that wait; each one's pools."""
        ...


@dataclass(frozen=True, slots=True)
class Choosing:
    """Who chooses.

    Attributes:
        scores: of each job of a view, the larger the sooner its turn; None: by the policy's order.
    """

    chooser: Chooser
    scores: Callable[[View], NDArray[Any]] | None = None


class Desk(Protocol):
    """What a scheduler does for choices."""

    now_ns: int

    @property
    def search(self) -> Search:
        """How a pool's nodes are searched."""

    def refresh(self, waiting: WaitingClass) -> None:
        """Bring a class's indices up to the present."""

    def start(self, waiting: WaitingClass, place: int, pool: Pool, allocation: Allocation) -> None:
        """Start the one at a place there."""


class Choices:
    """The choices of one scheduler, and whom it has chosen that does not fit yet.

    Attributes:
        is_asked: the chooser owes an answer; ask again.
    """

    def __init__(self, book: JobBook, choosing: Choosing | None = None, mapper: Mapper | None = None) -> None:
        self._book, self._mapper = book, mapper
        self._chooser = choosing.chooser if choosing is not None else None
        self._stalled: tuple[WaitingClass, int] | None = None
        self.is_asked = False
        self._fields: tuple[int, dict[int, int], list[list[Pool]]] = (0, {}, [])  # of so many classes

    # ---------------------------------------------------------------------------------------------------- queueings

    def stall(self, line: Line, desk: Desk) -> None:
        """Choose, wait for room, start; nobody overtakes."""
        while self._stalled is not None or any(waiting.count for waiting in line.classes):
            if self._stalled is None:
                self._stalled = self._chosen(line, desk, must_fit=False)
                if self._stalled is None:
                    return
            waiting, job = self._stalled
            if not self._start(waiting, job, line, desk):
                return
            self._stalled = None

    def choice(self, line: Line, desk: Desk) -> None:
        """Choose among those that fit, until none does or the chooser waits."""
        while any(_fits(waiting, desk.search) for waiting in line.classes if waiting.count):
            chosen = self._chosen(line, desk, must_fit=True)
            if chosen is None:
                return
            is_started = self._start(*chosen, line, desk)
            assert is_started, "a job was chosen that does not fit"

    def _start(self, waiting: WaitingClass, job: int, line: Line, desk: Desk) -> bool:
        found = _room(waiting, desk.search)
        if found is None:
            return False
        if self._mapper is not None:
            classes = _those_waiting(line, desk)
            jobs, number = _in_order(classes, None)
            view = self._view(line, classes, jobs, number, desk)
            place = int((jobs == job).argmax())
            found = self._mapper.lay(view, place, [classes[of].pools for of in number])
        desk.start(waiting, int(np.searchsorted(waiting.jobs, job)), *found)
        return True

    def _chosen(self, line: Line, desk: Desk, must_fit: bool) -> tuple[WaitingClass, int] | None:
        """A class and a job's number; None for nobody now."""
        classes = _those_waiting(line, desk)
        if self._chooser is None:
            may = [waiting for waiting in classes if not must_fit or _fits(waiting, desk.search)]
            first = min(may, key=lambda waiting: waiting.first)
            return first, int(first.jobs[first.head])
        jobs, number = _in_order(classes, None if must_fit else VISIBLE)
        view = self._view(line, classes, jobs, number, desk, must_fit)
        place = self._chooser.choose(view)
        self.is_asked = place is None
        if place is None or place == WAIT:
            assert place is None or view.can_wait, "nobody was chosen where somebody must be"
            return None
        assert view.may[place], "somebody was chosen who may not be"
        return classes[number[place]], int(jobs[place])

    # -------------------------------------------------------------------------------------------------------- views

    def _view(
        self,
        line: Line,
        classes: Sequence[WaitingClass],
        jobs: Counts,
        number: Counts,
        desk: Desk,
        must_fit: bool = False,
    ) -> View:
        of_pool, fields = self._known_fields(line.classes)
        counts = {pool.index: pool.counts for field in fields for pool in field}
        rows = [_chances(waiting, counts, of_pool, desk.search) for waiting in classes]
        by_class = np.array(rows, np.int64)[number]  # GPUs, ways, fits, field
        gpus, fits, field = by_class[:, 0], by_class[:, 2] > 0, by_class[:, 3]
        of_fields = np.array([_state(field, counts) for field in fields], np.float64)
        return View(
            now_ns=desk.now_ns,
            may=fits if must_fit else np.ones(len(jobs), np.bool_),
            can_wait=must_fit,
            jobs=jobs,
            gpus=gpus,
            age_s=(desk.now_ns - self._book.submit_ns[jobs]) / NS_PER_S,
            ways=by_class[:, 1],
            fits=fits,
            field=field,
            field_free=of_fields[:, 0],
            field_gpus=of_fields[:, 1],
            field_nodes=of_fields[:, 2],
            field_partly_used=of_fields[:, 3],
            field_demand=np.bincount(field, gpus, len(fields)).astype(np.float64),
            largest_node=max(pool.size for field in fields for pool in field),
        )

    def _known_fields(self, classes: Sequence[WaitingClass]) -> tuple[dict[int, int], list[list[Pool]]]:
        """Which pools hang together by those who may choose between them: the field of each, and the pools of each."""
        many, of_pool, fields = self._fields
        if many != len(classes):
            of_pool, fields = _joined(classes)
            self._fields = len(classes), of_pool, fields
        return of_pool, fields


def _those_waiting(line: Line, desk: Desk) -> list[WaitingClass]:
    classes = [waiting for waiting in line.classes if waiting.count]
    for waiting in classes:
        desk.refresh(waiting)
    return classes


def _fits(waiting: WaitingClass, search: Search) -> bool:
    return _room(waiting, search) is not None


def _room(waiting: WaitingClass, search: Search) -> tuple[Pool, Allocation] | None:
    """Where one of this class can lie now, in the first of its pools that has room."""
    for pool in waiting.pools:
        if pool.free_gpus >= waiting.gpus:
            allocation = search(pool, waiting.gpus)
            if allocation is not None:
                return pool, allocation
    return None


def _in_order(classes: Sequence[WaitingClass], limit: int | None) -> tuple[Counts, Counts]:
    """The first jobs by index and number, and the number of each one's class."""
    jobs = np.concatenate([waiting.jobs for waiting in classes])
    index = np.concatenate([waiting.index for waiting in classes])
    number = np.repeat(np.arange(len(classes)), [waiting.count for waiting in classes])
    order = np.lexsort((jobs, index))[:limit]
    return jobs[order], number[order]


def _joined(classes: Sequence[WaitingClass]) -> tuple[dict[int, int], list[list[Pool]]]:
    fields: list[dict[int, Pool]] = []
    for waiting in classes:
        own = {pool.index: pool for pool in waiting.pools}
        for met in [field for field in fields if field.keys() & own.keys()]:
            own |= met
            fields.remove(met)
        fields.append(own)
    of_pool = {index: number for number, field in enumerate(fields) for index in field}
    return of_pool, [list(field.values()) for field in fields]


def _chances(
    waiting: WaitingClass, counts: dict[int, tuple[int, ...]], of_pool: dict[int, int], search: Search
) -> tuple[int, int, int, int]:
    """GPUs, ways, whether it fits now, and its field."""
    found = [ways(counts[pool.index], waiting.gpus) for pool in waiting.pools]
    fewest, one_more = min(sum(pair[0] for pair in found), SEVERAL), max(pair[1] for pair in found)
    return waiting.gpus, fewest + one_more, _fits(waiting, search), of_pool[waiting.pools[0].index]


def _state(pools: Sequence[Pool], counts: dict[int, tuple[int, ...]]) -> tuple[int, int, int, int]:
    """Free GPUs, all, nodes, partly used nodes."""
    partly_used = sum(sum(counts[pool.index][1:-1]) for pool in pools)
    return sum(p.free_gpus for p in pools), sum(p.gpus for p in pools), sum(len(p.nodes) for p in pools), partly_used
