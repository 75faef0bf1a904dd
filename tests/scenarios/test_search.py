"""The cross-entropy method finds minima, keeps what is switched off, and survives candidates that were given up."""

from __future__ import annotations

import numpy as np
import pytest

from kit.random_streams import stream
from scenarios.learn.tune import CrossEntropy, FloorMultiplier


def searched(spread: np.ndarray, cost, generations: int = 60) -> CrossEntropy:  # type: ignore[no-untyped-def]
    search = CrossEntropy(np.zeros(len(spread)), spread, stream(1, "search"), 32, 8)
    for _ in range(generations):
        candidates = search.ask()
        search.tell(candidates, np.array([cost(x) for x in candidates]))
    return search


def test_finds_the_minimum_of_a_slanted_bowl() -> None:
    goal = np.array([1.0, -2.0, 0.5])
    search = searched(np.ones(3), lambda x: float((x - goal) @ np.diag([1, 10, 100]) @ (x - goal)))
    assert search.best == pytest.approx(goal, abs=0.05)
    assert search.mean == pytest.approx(goal, abs=0.1)


def test_what_has_no_spread_stays() -> None:
    search = searched(np.array([1.0, 0.0]), lambda x: float((x[0] - 1) ** 2 + (x[1] - 1) ** 2))
    assert search.best[1] == 0.0
    assert search.best[0] == pytest.approx(1.0, abs=0.05)


def test_those_given_up_are_not_followed() -> None:
    search = searched(np.ones(1), lambda x: np.inf if x[0] > 0 else float("nan") if x[0] < -2 else (x[0] + 1) ** 2)
    assert search.best[0] == pytest.approx(-1.0, abs=0.05)


def test_the_mean_and_the_best_are_always_tried() -> None:
    search = CrossEntropy(np.zeros(2), np.ones(2), stream(0, "search"))
    first = search.ask()
    assert first[0] == pytest.approx([0, 0])
    costs = np.arange(len(first), dtype=float)[::-1].copy()
    search.tell(first, costs)
    second = search.ask()
    assert second[0] == pytest.approx(search.mean)
    assert second[1] == pytest.approx(first[-1])


def test_the_multiplier_settles_where_the_floor_is_kept() -> None:
    """A plant whose shortfall falls with the price: integral control leaves no lasting error."""
    price, shortfall = FloorMultiplier((0.5, 0.5, 0.1)), 1.0
    for _ in range(200):
        shortfall = 1.0 - 0.4 * price.update(shortfall)
    assert shortfall == pytest.approx(0.0, abs=1e-3)
    for _ in range(200):
        price.update(-1.0)
    assert price.value == 0.0, "far above the floor it costs nothing"


def test_it_has_settled_once_it_looks_no_further_than_a_seventh() -> None:
    assert not searched(np.ones(3), lambda x: float(x @ x), generations=2).settled
    assert searched(np.array([1.0, 0.0]), lambda x: float(x @ x)).settled
