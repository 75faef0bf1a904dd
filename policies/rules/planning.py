"""The width tuple of each server, and its share of the demand: accuracy scaling after Proteus (ASPLOS 2024).

Ahmad et al. maximise the mean accuracy of served requests, subject to every server's throughput with its variant, as a
mixed integer linear program; so does `plan`. It is a pure function of numbers, and caches its solutions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log
from typing import Final

import numpy as np
from numpy.typing import NDArray

GRID: Final = 1.02  # demands are rounded up to its powers, so that few plans are needed
GAP: Final = 1e-4  # the largest relative distance of a plan from the best mean accuracy

Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Placement:
    """The assignment of tuples and shares to servers.

    Attributes:
        choice: for each server, the index of its tuple.
        shares: for each server, its share of the demand; they add up to 1.
        accuracy: the mean over the demand.
        serves_all: whether the servers can take the whole demand; if not, each has its fastest tuple.
    """

    choice: tuple[int, ...]
    shares: tuple[float, ...]
    accuracy: float
    serves_all: bool


def rounded_up(demand_img_s: float) -> float:
    """Return the next demand on the grid; from 1 image/s."""
    return GRID ** ceil(log(max(demand_img_s, 1.0)) / log(GRID))


@lru_cache(maxsize=4096)
def plan(demand_img_s: float, capacity_img_s: tuple[tuple[float, ...], ...], accuracy: tuple[float, ...]) -> Placement:
    """Return the assignment of tuples to servers with the highest mean accuracy that serves the whole demand.

    Args:
        demand_img_s: images that arrive a second, above 0.
        capacity_img_s: (servers, tuples) the capacity of a server with a tuple; all 0 if it is down.
        accuracy: (tuples,) in [0, 1], descending.

    Beyond capacity every server has its fastest tuple, and a share in proportion to its speed.
    """
    capacity, worth = np.array(capacity_img_s), np.array(accuracy)
    fastest = capacity.argmax(axis=1)
    limits = capacity.max(axis=1)
    if limits.sum() < demand_img_s:
        shares = limits / limits.sum() if limits.any() else np.full(len(limits), 1 / len(limits))
        return _plan(fastest, shares, worth, serves_all=False)
    choice = _assign(demand_img_s, capacity, worth)
    shares = _fill(choice, demand_img_s, capacity)
    if (shares == 0).any():  # a server that is not needed may be accurate; then it may be needed
        choice = np.where(shares == 0, 0, choice)
        shares = _fill(choice, demand_img_s, capacity)
    return _plan(choice, shares, worth, serves_all=True)


def _plan(choice: NDArray[np.int64], shares: Reals, worth: Reals, *, serves_all: bool) -> Placement:
    return Placement(tuple(choice.tolist()), tuple(shares.tolist()), float(shares @ worth[choice]), serves_all)


def _fill(choice: NDArray[np.int64], demand_img_s: float, capacity: Reals) -> Reals:
    """Return the best shares for given tuples: the most accurate servers are filled first, equally accurate ones
    evenly."""
    shares: Reals = np.zeros(len(choice))
    left = demand_img_s
    for index in np.unique(choice):
        servers = choice == index
        limits = capacity[servers, index]
        taken = min(left, limits.sum())
        if taken > 0:
            shares[servers] = taken * limits / limits.sum()
        left -= taken
    shares /= shares.sum()
    return shares


def _assign(demand_img_s: float, capacity: Reals, worth: Reals) -> NDArray[np.int64]:
    """Solve for x, the number of servers of a kind that run a tuple (integers), and y, their share of the demand.

    Maximise the sum of accuracy x y, subject to each tuple's share being within its servers' capacity, the number of
    servers of each kind, and the sum of shares 1. Servers of equal capacities are one kind: they could be swapped in
    any plan.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import, and seldom needed

    kinds, kind_of, counts = np.unique(capacity, axis=0, return_inverse=True, return_counts=True)
    size, tuples = kinds.size, len(worth)
    within = np.hstack([-np.diag(kinds.ravel() / demand_img_s), np.eye(size)])
    all_there = np.hstack([np.kron(np.eye(len(kinds)), np.ones(tuples)), np.zeros((len(kinds), size))])
    everything = np.concatenate([np.zeros(size), np.ones(size)])
    solution = milp(
        np.concatenate([np.zeros(size), -np.tile(worth, len(kinds))]),
        integrality=np.concatenate([np.ones(size), np.zeros(size)]),
        bounds=Bounds(0, np.concatenate([np.repeat(counts, tuples), np.ones(size)])),
        constraints=[
            LinearConstraint(within, ub=0),
            LinearConstraint(all_there, counts, counts),
            LinearConstraint(everything[None, :], 1, 1),
        ],
        options={"mip_rel_gap": GAP},
    )
    assert solution.x is not None, f"a plan exists, but the solver says: {solution.message}"
    many = np.rint(solution.x[:size]).astype(int).reshape(len(kinds), tuples)
    choice = np.zeros(len(capacity), dtype=np.int64)
    for kind, row in enumerate(many):
        choice[kind_of.ravel() == kind] = np.repeat(np.arange(tuples), row)
    return choice
