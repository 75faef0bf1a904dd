"""Between measured batch sizes: exact where measured, monotone everywhere, refused beyond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import PchipInterpolator

from sim.device_model import affine_s, ascending, fit_affine, interpolate_latency_s, interpolate_linear, latency_table_s


@st.composite
def curves(draw: st.DrawFn, monotone: bool = True) -> tuple[list[int], list[float]]:
    batches = sorted(draw(st.sets(st.integers(1, 64), min_size=1, max_size=8)))
    values = draw(st.lists(st.floats(1e-6, 10.0), min_size=len(batches), max_size=len(batches)))
    return batches, sorted(values) if monotone else values


@given(curves())
def test_exact_at_the_measured_batches(curve: tuple[list[int], list[float]]) -> None:
    batches, latency_s = curve
    table = latency_table_s(batches, latency_s, batches[-1])
    assert [table[b] for b in batches] == pytest.approx(latency_s, rel=1e-12)


@given(curves(monotone=False).filter(lambda curve: len(curve[0]) > 1))
def test_the_curve_is_scipys_to_the_last_bit(curve: tuple[list[int], list[float]]) -> None:
    """Results must not depend on who computes it; flat pieces and two points are among those that are drawn."""
    (first, *_, last), latency_s = curve
    table = latency_table_s(curve[0], latency_s, last)
    theirs = PchipInterpolator(curve[0], ascending(latency_s))(np.arange(first, last + 1.0))
    assert table.tobytes() == np.maximum.accumulate(np.concatenate([table[:first], theirs])).tobytes()


@given(curves(monotone=False))
def test_monotone_whatever_was_measured(curve: tuple[list[int], list[float]]) -> None:
    """A larger batch is never predicted to be faster, and every latency is positive."""
    batches, latency_s = curve
    table = latency_table_s(batches, latency_s, batches[-1])
    assert table[0] == 0.0
    assert (np.diff(table) >= 0).all()
    assert (table[1:] > 0).all()


@given(curves())
def test_interpolated_latency_of_one_batch_agrees_with_the_table(curve: tuple[list[int], list[float]]) -> None:
    batches, latency_s = curve
    table = latency_table_s(batches, latency_s, batches[-1])
    for batch in range(1, batches[-1] + 1):
        assert interpolate_latency_s(batches, latency_s, batch) == table[batch]


def test_beyond_the_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond the largest measured one \\(8\\)"):
        interpolate_latency_s([1, 8], [1.0, 2.0], 9)
    with pytest.raises(ValueError, match="beyond"):
        interpolate_linear([1, 8], [1.0, 2.0], 9)
    with pytest.raises(ValueError, match="at least one image"):
        interpolate_latency_s([1, 8], [1.0, 2.0], 0)


def test_below_the_grid_follows_the_affine_model() -> None:
    """Below the first measured batch the curve keeps the shape of max(t0, c0 + c1 b)."""
    batches = [4, 8, 16, 32]
    latency_s = [2.0 + b for b in batches]
    assert interpolate_latency_s(batches, latency_s, 1) == pytest.approx(3.0)


@given(t0=st.floats(1e-4, 1.0), knee=st.integers(2, 30), slope=st.floats(0.05, 1.0))
def test_four_points_suffice_for_the_affine_model(t0: float, knee: int, slope: float) -> None:
    c1 = slope * t0
    truth = (t0, t0 - c1 * knee, c1)
    batches = [1, knee, knee + 10, knee + 40]
    fitted = fit_affine(batches, [float(affine_s(truth, b)) for b in batches])
    sizes = np.arange(1.0, knee + 41)
    assert affine_s(fitted, sizes) == pytest.approx(affine_s(truth, sizes), rel=1e-6)


@given(curves(monotone=False))
def test_the_affine_model_is_positive(curve: tuple[list[int], list[float]]) -> None:
    """No measurement, however odd, makes it predict a latency of nothing."""
    fitted = fit_affine(*curve)
    assert (affine_s(fitted, np.arange(1.0, 65.0)) > 0).all()
    assert fitted[2] >= 0


def test_violators_are_pooled() -> None:
    assert list(ascending([1.0, 3.0, 2.0, 4.0])) == [1.0, 2.5, 2.5, 4.0]
    assert list(latency_table_s([1, 2, 3], [1.0, 3.0, 2.0], 3)) == pytest.approx([0.0, 1.0, 2.5, 2.5])


def test_linear_is_flat_below_and_straight_between() -> None:
    assert interpolate_linear([2, 4], [0.5, 1.0], 3) == 0.75
    assert interpolate_linear([2, 4], [0.5, 1.0], 1) == 0.5
