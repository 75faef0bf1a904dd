"""Arrival processes have the rate and the burstiness that they are asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kit import random_streams
from kit.random_streams import hashed, stream

HORIZON_S = 400.0
RATE = 50.0
PROCESSES = {
    "poisson": lambda rng: random_streams.poisson(RATE, HORIZON_S, rng),
    "gamma": lambda rng: random_streams.gamma(RATE, 3.0, HORIZON_S, rng),
    "mmpp": lambda rng: random_streams.mmpp(RATE, 2.0, 0.25, 1.0, HORIZON_S, rng),
    "diurnal": lambda rng: random_streams.diurnal(RATE, 0.6, 20.0, HORIZON_S, rng),
    "rates": lambda rng: random_streams.rates(np.array([2.0, 0.0, 7.0, 3.0]), RATE, 20.0, HORIZON_S, rng),
    "flash": lambda rng: random_streams.flash(RATE / 1.25, 3.0, 100.0, 10.0, 40.0, 10.0, HORIZON_S, rng),
}
DISPERSION = {
    "poisson": (0.7, 1.4),
    "gamma": (6.0, 12.0),
    "mmpp": (3.0, 40.0),
    "diurnal": (5.0, 40.0),
    "rates": (20.0, 60.0),
    "flash": (10.0, 30.0),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_rate_order_and_burstiness(name: str) -> None:
    """The mean rate is kept, arrivals ascend in [0, horizon), and counts a second disperse as the process should."""
    runs = [PROCESSES[name](stream(seed, "arrivals")) for seed in range(8)]
    for arrivals in runs:
        assert arrivals.dtype == np.int64
        assert (np.diff(arrivals) >= 0).all()
        assert arrivals[0] >= 0
        assert arrivals[-1] <= HORIZON_S * 1e9
    assert np.mean([len(a) for a in runs]) / HORIZON_S == pytest.approx(RATE, rel=0.06)
    counts = np.concatenate([np.histogram(a / 1e9, np.arange(HORIZON_S + 1))[0] for a in runs])
    low, high = DISPERSION[name]
    assert low < counts.var() / counts.mean() < high


LEVELS = np.array([2.0, 0.0, 7.0, 3.0])  # in steps of 5 s, so that their mean of 3 is played every 20 s


def rate_of(name: str, time_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Expected arrivals a second at these times, written down a second time."""
    match name:
        case "rates":
            height = LEVELS[(time_s // 5).astype(int) % 4] / LEVELS.mean()
        case "flash":
            height = np.clip(np.minimum(1 + (time_s - 100) / 5, 1 + (160 - time_s) / 10), 1, 3)
        case _:
            height = 1 + 0.6 * np.sin(2 * np.pi * time_s / 20)
    return RATE * np.asarray(height, dtype=np.float64)


CURVES = {
    "rates": lambda rng, start_s: random_streams.rates(LEVELS, RATE, 20.0, HORIZON_S, rng, start_s=start_s),
    "flash": lambda rng, start_s: random_streams.flash(RATE, 3.0, 100.0 - start_s, 10.0, 30.0, 20.0, HORIZON_S, rng),
    "diurnal": lambda rng, start_s: random_streams.diurnal(RATE, 0.6, 20.0, HORIZON_S, rng, start_s=start_s),
}


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("start_s", [0.0, 113.7])
def test_the_rate_follows_the_curve(name: str, start_s: float) -> None:
    """Counts of each second over many runs are Poisson around the integral of the rate (chi-square at 5 sigma)."""
    runs = 20
    seconds = np.arange(HORIZON_S)
    arrivals = np.concatenate([CURVES[name](stream(seed, "arrivals"), start_s) for seed in range(runs)])
    counts, _ = np.histogram(arrivals / 1e9, np.arange(HORIZON_S + 1))
    fine = (np.arange(1000) + 0.5) / 1000
    expected = runs * rate_of(name, start_s + seconds[:, None] + fine).mean(axis=1)
    assert counts[expected == 0].sum() == 0
    deviation = (counts - expected)[expected > 0] ** 2 / expected[expected > 0]
    assert abs(deviation.sum() - len(deviation)) < 5 * np.sqrt(2 * len(deviation))


def test_more_load_is_the_same_curve_only_denser() -> None:
    """By time change the same draws at twice the rate are the arrivals of a curve with every expected count doubled."""
    one = random_streams.rates(LEVELS, RATE, 20.0, HORIZON_S, stream(0, "arrivals"))
    two = random_streams.rates(LEVELS, 2 * RATE, 20.0, HORIZON_S, stream(0, "arrivals"))
    a_period = 20.0 * RATE

    def expected_until(arrivals: NDArray[np.int64]) -> NDArray[np.float64]:
        steps = np.concatenate([[0.0], np.cumsum(LEVELS)]) / LEVELS.sum() * a_period
        periods, within = np.divmod(arrivals / 1e9, 20.0)
        return np.asarray(periods * a_period + np.interp(within, [0, 5, 10, 15, 20], steps))

    assert expected_until(one) == pytest.approx(2 * expected_until(two[: len(one)]), abs=1e-3)


def test_a_trace_is_scaled_in_time_and_starts_at_zero() -> None:
    """factor 2 halves every gap; what lies beyond the horizon is cut."""
    times_s = np.array([10.0, 12.0, 11.0, 30.0])
    arrivals = random_streams.trace(times_s, 2.0, 5.0, stream(0, "arrivals"))
    assert arrivals.tolist() == [0, 500_000_000, 1_000_000_000]


def test_a_trace_noted_in_steps_is_spread_within_them() -> None:
    """2,000 arrivals of each of 5 seconds: even in each twentieth of a second."""
    noted_s = np.repeat(np.arange(100.0, 105.0), 2000)
    arrivals = random_streams.trace(noted_s, 2.0, 60.0, stream(1, "arrivals"), 1.0)
    counts = np.histogram(arrivals, 50, (0, 2_500_000_000))[0]
    assert len(arrivals) == 10_000
    assert (np.diff(arrivals) >= 0).all()
    assert counts.min() > 200 - 5 * 200**0.5
    assert counts.max() < 200 + 5 * 200**0.5
    assert arrivals.tolist() != random_streams.trace(noted_s, 2.0, 60.0, stream(2, "arrivals"), 1.0).tolist()


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.text(max_size=8), st.text(max_size=8))
def test_streams_have_names(seed: int, one: str, other: str) -> None:
    assert stream(seed, one).integers(2**40) == stream(seed, one).integers(2**40)
    if one != other:
        assert stream(seed, one).integers(2**40) != stream(seed, other).integers(2**40)


def test_hashed_draws_are_uniform_and_uncorrelated() -> None:
    """Over batches and over servers: 33 cells each get their share (chi-square at 5 sigma)."""
    for draws in ([hashed(1, 0, n) % 33 for n in range(20_000)], [hashed(1, n, 0) % 33 for n in range(20_000)]):
        counts = np.bincount(draws, minlength=33)
        chi2 = float(((counts - 20_000 / 33) ** 2 / (20_000 / 33)).sum())
        assert chi2 < 32 + 5 * np.sqrt(64)
