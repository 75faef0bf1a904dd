"""Curves are of full speed, whatever spells slow a device down, and lose no mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.measurement_bench import Loop, Speed
from calibrate.profile_fit import full_speed_s, has_full_speed, slice_means


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=300), st.integers(1, 40))
def test_slices_ascend_and_keep_the_mean(repeats: list[float], number: int) -> None:
    """The jitter's quantiles average to the mean of all repeats, or throughput would drift."""
    slices = slice_means(np.asarray(repeats), number)
    assert len(slices) == number
    assert slices == sorted(slices)
    assert np.mean(slices) == pytest.approx(np.mean(repeats), rel=1e-9)


def test_passes_at_full_speed_are_kept_and_others_converted() -> None:
    """Of all rounds together; without a reference (a GPU) all passes are as they are."""
    mixed, slow = (
        Loop((1.0, 1.0, 1.0, 2.0), 5.0, 5.0, 0.0, (1.0, 1.1, 1.0, 4.0)),
        Loop((2.0,) * 5, 10.0, 10.0, 0.0, (4.0,) * 5),
    )
    speed = Speed(1.0, 1.0, 0.5)
    assert full_speed_s([mixed], speed).tolist() == full_speed_s([mixed, slow], speed).tolist() == [1.0, 1.0, 1.0]
    assert not has_full_speed([slow], speed)
    assert full_speed_s([slow], speed).tolist() == [1.0] * 5
    assert full_speed_s([Loop((3.0, 2.0), 5.0, 5.0)], Speed(0.0, 0.0)).tolist() == [3.0, 2.0]
