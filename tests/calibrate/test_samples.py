"""Summaries of repeats lose no mean and no order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.samples import KEPT, Pooled, Samples

positive = st.floats(1e-6, 1e3)


@given(st.lists(positive, min_size=1, max_size=700))
def test_the_mean_survives(repeats: list[float]) -> None:
    """However many repeats are kept as however few numbers."""
    samples = Samples.of(repeats)
    assert len(samples.values) <= KEPT
    assert samples.count == len(repeats)
    assert Pooled.of([samples]).mean == pytest.approx(np.mean(repeats), rel=1e-9)


@given(st.lists(st.lists(positive, min_size=1, max_size=300), min_size=1, max_size=4), st.integers(1, 40))
def test_slices_ascend_and_keep_the_mean(rounds: list[list[float]], number: int) -> None:
    """The jitter's quantiles average to the mean of all repeats, or throughput would drift."""
    pooled = Pooled.of([Samples.of(repeats) for repeats in rounds])
    slices = pooled.slices(number)
    assert len(slices) == number
    assert list(slices) == sorted(slices)
    assert np.mean(slices) == pytest.approx(np.mean([r for repeats in rounds for r in repeats]), rel=1e-9)


def test_rounds_weigh_by_their_repeats() -> None:
    """A long round counts for more than a short one."""
    pooled = Pooled.of([Samples.of([1.0] * 999), Samples.of([2.0])])
    assert pooled.count == 1000
    assert pooled.quantile(0.5) == pytest.approx(1.0)
    assert pooled.mean == pytest.approx(1.001)


def test_the_median_of_few_is_the_middle_one() -> None:
    """And p99 stays within what was seen."""
    pooled = Pooled.of([Samples.of([3.0, 1.0, 2.0])])
    assert pooled.quantile(0.5) == 2.0
    assert pooled.quantile(0.99) == 3.0
