"""Placement of a chosen job by a mixed-integer program over a few candidates: RLTune's, as its paper intends it.

A job's candidates are the placement that fragments least and that which balances best, on the fewest nodes and on one
more (`jobs.policies.choices`): four at most. The program takes one, and minimizes

    a sum_n f_n + b (F_max - F_min) - g sum y,        (a, b, g) = (1, 0.3, 0.5)

with f_n: node n is partly used; F: free GPUs of a node; y_k: the k-th job in line after it, by the policy's own scores,
is placed jointly with it, on one of its candidates.

With so few candidates all combinations are tried. Of two equally good placements, the first candidate is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.policies.choices import Mapper, View, uses
from jobs.policies.cluster import Allocation, Pool

WEIGHTS: Final = (1.0, 0.3, 0.5)
FOLLOWING: Final = 4  # jobs placed jointly; with the chosen one, RLTune's top five
_TIE: Final = 1e-3  # the extra cost of a later candidate of the chosen job; objectives differ by tenths
Scores = Callable[[View], NDArray[Any]]


class Candidate(NamedTuple):
    """One possible placement of a job: a pool, and places there."""

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
        for place, gpus in candidate.allocation:
            row[self.first[candidate.pool.index] + place] = gpus
        return row


# --------------------------------------------------------------------------------------------------------- candidates


def candidates(pools: Sequence[Pool], gpus: int) -> list[Candidate]:
    """Return four candidates at most: (fewest nodes, one more) x (least fragmentation, best balance), each once."""
    by_place: dict[tuple[int, Allocation], Candidate] = {}
    for more in (0, 1) if gpus > 1 else (0,):
        laid = [(pool, each) for pool in pools for each in _laid(pool, gpus, more)]
        if not laid:
            continue
        keyed = [(*_merits(pool, each), (pool.index, each), pool) for pool, each in laid]
        for best in (min(keyed, key=lambda one: one[:4]), min(keyed, key=lambda one: (one[2], *one[:2], one[3]))):
            by_place.setdefault(best[3], Candidate(best[4], best[3][1]))
    return list(by_place.values())


def _laid(pool: Pool, gpus: int, more: int) -> Iterator[Allocation]:
    """Yield placements on `more` nodes above the fewest; of equally free nodes those with the lowest numbers."""
    of_free: dict[int, list[int]] = {}
    for place, free in enumerate(pool.free):
        if pool.is_up(place):
            of_free.setdefault(free, []).append(place)
    for way in uses(pool.counts, gpus, pool.fewest_nodes(gpus) + more, keeps_whole=bool(more)):
        yield tuple(
            sorted((place, take) for free, parts in way for place, take in zip(of_free[free], parts, strict=False))
        )


def _merits(pool: Pool, allocation: Allocation) -> tuple[int, int, float]:
    """Return by how much partly used nodes, GPUs used on them, and the variance of utilization grow."""
    before = np.array(pool.free)
    after = before.copy()
    for place, gpus in allocation:
        after[place] -= gpus
    partly = []
    used = []
    spread = []
    for free in (before, after):
        is_partly = (free > 0) & (free < pool.size)
        partly.append(int(is_partly.sum()))
        used.append(int((pool.size - free[is_partly]).sum()))
        spread.append(float(np.var(free / pool.size)))
    return partly[1] - partly[0], used[1] - used[0], round(spread[1] - spread[0], 12)


# --------------------------------------------------------------------------------------------------------- programmes


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
        chosen = np.arange(len(self.takes[0]))
        free, cost = self.free[is_touched] - self.takes[0][:, is_touched], _TIE * chosen
        for takes in self.takes[1:]:
            ways = np.vstack([np.zeros_like(takes[:1]), takes])[:, is_touched]  # the first row: not placed
            rows, way = np.nonzero((free[:, None] >= ways).all(axis=2))
            free = free[rows] - ways[way]
            cost = cost[rows] - g * (way > 0)
            chosen = chosen[rows]
        most = np.maximum(free.max(axis=1, initial=0), still.max(initial=0))
        least = np.minimum(free.min(axis=1, initial=largest), still.min(initial=largest))
        cost = cost + b * (most - least) + a * ((free > 0) & (free < size)).sum(axis=1)
        return int(chosen[cost.argmin()])


# ------------------------------------------------------------------------------------------------------------ mappers


def _lay(scores: Scores, view: View, place: int, pools: Sequence[Sequence[Pool]]) -> Candidate:
    """Place a job jointly with those next in line."""
    options = candidates(pools[place], int(view.gpus[place]))
    if len(options) == 1:
        return options[0]
    following = [int(other) for other in np.argsort(-scores(view), kind="stable") if other != place][:FOLLOWING]
    met = {pool.index: pool for job in (place, *following) for pool in pools[job]}
    nodes = Nodes(list(met.values()))
    beside = {pool.index: pool.clone() for pool in met.values()}
    beside[options[0].pool.index].take(options[0].allocation)
    takes = [np.stack([nodes.taken(each) for each in options])]
    for job in following:
        gpus, wanted = int(view.gpus[job]), pools[job]
        after = candidates([beside[pool.index] for pool in wanted], gpus)
        rows = [nodes.taken(each) for each in (*candidates(wanted, gpus), *after)]
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
