"""Fronts against brute force; hypervolume by hand, by a grid of exact cells and by its own laws."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.metrics.router_comparison import (
    ParetoPoint,
    contributions,
    hypervolume,
    pareto_front,
    share_covered,
    worst_corner,
)

SOME = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8)  # few values: many ties


def points_of(pairs: list[tuple[int, int]]) -> list[ParetoPoint]:
    return [ParetoPoint(f"r{index}", accuracy / 8, float(cost)) for index, (accuracy, cost) in enumerate(pairs)]


@given(SOME)
def test_the_front_is_what_nobody_beats(pairs: list[tuple[int, int]]) -> None:
    """Against the definition, point by point; from the cheapest on."""
    points = points_of(pairs)
    expected = {
        one.name
        for one in points
        if not any(
            (other.accuracy > one.accuracy and other.cost <= one.cost)
            or (other.accuracy >= one.accuracy and other.cost < one.cost)
            for other in points
        )
    }
    front = pareto_front(points)
    assert {point.name for point in front} == expected
    assert all(a.cost <= b.cost and a.accuracy <= b.accuracy for a, b in pairwise(front))


@given(SOME, st.integers(0, 6), st.integers(0, 6))
def test_hypervolume_counts_covered_cells(pairs: list[tuple[int, int]], accuracy: int, cost: int) -> None:
    """All values lie on a grid, so the area is a number of cells; whatever the reference."""
    points, reference = points_of(pairs), ParetoPoint("reference", accuracy / 8, float(cost))
    cells = sum(
        any(high >= row + 1 and low <= column for high, low in pairs)
        for row in range(accuracy, 8)
        for column in range(cost)
    )
    assert hypervolume(points, reference) == pytest.approx(cells / 8)


@given(SOME)
def test_contributions_are_nobody_elses(pairs: list[tuple[int, int]]) -> None:
    """Never negative, nothing for what is beaten or has a twin, together no more than the whole."""
    points = points_of(pairs)
    reference = worst_corner(points)
    found = contributions(points, reference)
    assert min(found.values()) >= 0
    assert sum(found.values()) <= hypervolume(points, reference) + 1e-12
    front = {point.name for point in pareto_front(points)}
    assert all(found[point.name] == 0 for point in points if point.name not in front)


def test_hypervolume_by_hand_and_by_chance() -> None:
    """Two steps: 0.2 x 3 and 0.1 x 1 above the reference at 0.7 and 5; a drawn point hits that share of the box."""
    points = [
        ParetoPoint("a", 0.8, 1.0),
        ParetoPoint("b", 0.9, 2.0),
        ParetoPoint("beaten", 0.75, 4.0),
        ParetoPoint("c", 0.7, 5.0),
    ]
    corner = worst_corner(points)
    assert (corner.accuracy, corner.cost) == (0.7, 5.0)
    assert hypervolume(points, corner) == pytest.approx(0.2 * 3 + 0.1 * 1)
    share = share_covered(points, corner)
    assert share == pytest.approx(0.7 / 0.8)
    drawn = np.random.default_rng(0).uniform((0.7, 1.0), (0.9, 5.0), (20_000, 2))
    hit = np.any([(drawn[:, 0] <= p.accuracy) & (drawn[:, 1] >= p.cost) for p in points], axis=0)
    assert hit.mean() == pytest.approx(share, abs=0.01)
    assert contributions(points, corner) == pytest.approx({"a": 0.1, "b": 0.3, "beaten": 0.0, "c": 0.0})


def test_what_covers_nothing() -> None:
    """One router alone, or all of one accuracy: an area of 0, and no share of it."""
    alone = [ParetoPoint("a", 0.8, 1.0)]
    assert hypervolume(alone, worst_corner(alone)) == 0
    assert share_covered(alone, worst_corner(alone)) is None
    flat = [ParetoPoint("a", 0.8, 1.0), ParetoPoint("b", 0.8, 2.0)]
    assert share_covered(flat, worst_corner(flat)) is None
