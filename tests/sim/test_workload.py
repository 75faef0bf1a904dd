"""Arrival processes have the rate and the burstiness that they are asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.chance import hashed, stream
from sim import workload

HORIZON_S = 400.0
RATE = 50.0
PROCESSES = {
    "poisson": lambda rng: workload.poisson(RATE, HORIZON_S, rng),
    "gamma": lambda rng: workload.gamma(RATE, 3.0, HORIZON_S, rng),
    "mmpp": lambda rng: workload.mmpp(RATE, 2.0, 0.25, 1.0, HORIZON_S, rng),
    "diurnal": lambda rng: workload.diurnal(RATE, 0.6, 20.0, HORIZON_S, rng),
}
DISPERSION = {"poisson": (0.7, 1.4), "gamma": (6.0, 12.0), "mmpp": (3.0, 40.0), "diurnal": (5.0, 40.0)}


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


def test_a_trace_is_scaled_in_time_and_starts_at_zero() -> None:
    """factor 2 halves every gap; what lies beyond the horizon is cut."""
    arrivals = workload.trace([10.0, 12.0, 11.0, 30.0], 2.0, 5.0)
    assert arrivals.tolist() == [0, 500_000_000, 1_000_000_000]


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.text(max_size=8), st.text(max_size=8))
def test_streams_have_names(seed: int, one: str, other: str) -> None:
    """The same name gives the same draws; another name gives others."""
    assert stream(seed, one).integers(2**40) == stream(seed, one).integers(2**40)
    if one != other:
        assert stream(seed, one).integers(2**40) != stream(seed, other).integers(2**40)


def test_hashed_draws_are_uniform_and_uncorrelated() -> None:
    """Over batches and over servers: 33 cells each get their share (chi-square at 5 sigma)."""
    for draws in ([hashed(1, 0, n) % 33 for n in range(20_000)], [hashed(1, n, 0) % 33 for n in range(20_000)]):
        counts = np.bincount(draws, minlength=33)
        chi2 = float(((counts - 20_000 / 33) ** 2 / (20_000 / 33)).sum())
        assert chi2 < 32 + 5 * np.sqrt(64)
