"""Arrival processes: when images enter the system. Pure functions of a random stream; the hardware replays the same.

Each returns ascending int64 nanoseconds within [0, horizon).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from policies.vocabulary import NS_PER_S

Arrivals = NDArray[np.int64]


def poisson(rate_img_s: float, horizon_s: float, rng: np.random.Generator) -> Arrivals:
    """Independent arrivals at a constant rate."""
    return gamma(rate_img_s, 1.0, horizon_s, rng)


def gamma(rate_img_s: float, cv: float, horizon_s: float, rng: np.random.Generator) -> Arrivals:
    """A renewal process with gamma gaps; `cv` is their coefficient of variation (1 is Poisson, more is burstier)."""
    shape = 1.0 / cv**2
    scale_s = 1.0 / (rate_img_s * shape)
    times_s = np.empty(0)
    last_s = 0.0
    while last_s < horizon_s:
        count = int((horizon_s - last_s) * rate_img_s * 1.05) + 64
        chunk = last_s + np.cumsum(rng.gamma(shape, scale_s, count))
        times_s = np.concatenate([times_s, chunk])
        last_s = float(chunk[-1])
    return _to_ns(times_s, horizon_s)


def mmpp(
    rate_img_s: float,
    burst_factor: float,
    burst_share: float,
    dwell_s: float,
    horizon_s: float,
    rng: np.random.Generator,
) -> Arrivals:
    """A two-state Markov-modulated Poisson process with mean rate `rate_img_s`.

    It is in the burst state a share `burst_share` of the time, where the rate is `burst_factor` times the mean;
    a burst lasts `dwell_s` on average. The calm rate keeps the mean, so burst_factor * burst_share < 1 must hold.
    """
    calm_rate = rate_img_s * (1 - burst_factor * burst_share) / (1 - burst_share)
    calm_dwell_s = dwell_s * (1 - burst_share) / burst_share
    pieces: list[NDArray[np.float64]] = []
    bursting, start_s = bool(rng.random() < burst_share), 0.0
    while start_s < horizon_s:
        dwell = rng.exponential(dwell_s if bursting else calm_dwell_s)
        rate = rate_img_s * burst_factor if bursting else calm_rate
        length_s = min(dwell, horizon_s - start_s)
        pieces.append(np.sort(start_s + length_s * rng.random(rng.poisson(rate * length_s))))
        bursting, start_s = not bursting, start_s + dwell
    return _to_ns(np.concatenate(pieces), horizon_s)


def diurnal(
    rate_img_s: float, amplitude: float, period_s: float, horizon_s: float, rng: np.random.Generator
) -> Arrivals:
    """Poisson with the rate rate_img_s * (1 + amplitude * sin(2 pi t / period)), by thinning."""
    candidates_s = poisson(rate_img_s * (1 + amplitude), horizon_s, rng) / NS_PER_S
    rate = 1 + amplitude * np.sin(2 * np.pi * candidates_s / period_s)
    kept = rng.random(len(candidates_s)) * (1 + amplitude) < rate
    return _to_ns(candidates_s[kept], horizon_s)


def trace(times_s: Sequence[float], factor: float, horizon_s: float) -> Arrivals:
    """A recorded trace from its first arrival on, `factor` times faster."""
    times = np.sort(np.asarray(times_s, dtype=np.float64))
    return _to_ns((times - times[0]) / factor, horizon_s)


def _to_ns(times_s: NDArray[np.float64], horizon_s: float) -> Arrivals:
    return np.ceil(times_s[times_s < horizon_s] * NS_PER_S).astype(np.int64)
