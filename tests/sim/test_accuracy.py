"""Labels that are replayed or drawn: how often they are right, and that they stay the same."""

from __future__ import annotations

import numpy as np
import pytest

from policies.interfaces import AccuracyPrior
from sim.simulated_cluster import BernoulliCorrectness, MatrixCorrectness

TABLE: dict[tuple[float, ...], float] = {(0.5, 0.5): 0.2, (0.5, 1.0): 0.7, (1.0, 1.0): 0.9}


def test_drawn_labels_are_right_as_often_as_the_table_says() -> None:
    """Over 40,000 requests within four standard errors (each at most 0.0025), and the same when asked again."""
    drawn = BernoulliCorrectness(AccuracyPrior(TABLE), 3)
    for widths, accuracies in TABLE.items():
        right = [drawn.is_correct(request, widths) for request in range(40_000)]
        assert np.mean(right) == pytest.approx(accuracies, abs=0.01)
        assert right[:100] == [drawn.is_correct(request, widths) for request in range(100)]


def test_a_more_accurate_tuple_is_right_wherever_a_less_accurate_one_is() -> None:
    drawn, other = (BernoulliCorrectness(AccuracyPrior(TABLE), salt) for salt in (3, 4))
    rows = np.array([[drawn.is_correct(request, widths) for widths in TABLE] for request in range(1000)])
    assert (rows[:, :-1] <= rows[:, 1:]).all()
    assert [other.is_correct(request, (0.5, 1.0)) for request in range(1000)] != rows[:, 1].tolist()


def test_replayed_labels_are_the_images() -> None:
    """Request -> image -> row; tuple -> column."""
    correct = np.array([[True, False, True], [False, True, True]])
    replayed = MatrixCorrectness(list(TABLE), correct, np.array([1, 0, 1]))
    found = [[replayed.is_correct(request, widths) for widths in TABLE] for request in range(3)]
    assert found == correct[[1, 0, 1]].tolist()
