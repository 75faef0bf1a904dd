"""Arrival processes, and the named random streams from which they are drawn: a new consumer shifts no other's draws.

Arrival processes (`poisson`, `gamma` ...): each function returns ascending int64 nanoseconds within [0, horizon). A
process whose rate follows a fixed curve can begin at a later point of the curve (`start_s`): arrival times then count
from that point.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from kit.units import NS_PER_S

Arrivals = NDArray[np.int64]


def poisson(rate_img_s: float, horizon_s: float, rng: np.random.Generator) -> Arrivals:
    """Return independent arrivals at a constant rate."""
    return gamma(rate_img_s, 1.0, horizon_s, rng)


def gamma(rate_img_s: float, cv: float, horizon_s: float, rng: np.random.Generator) -> Arrivals:
    """Return a renewal process with gamma gaps; `cv` is their coefficient of variation (1: Poisson, above 1:
    burstier)."""
    return _to_ns(_renewal_s(rate_img_s, cv, horizon_s, rng), horizon_s)


def mmpp(
    rate_img_s: float,
    burst_factor: float,
    burst_share: float,
    dwell_s: float,
    horizon_s: float,
    rng: np.random.Generator,
) -> Arrivals:
    """Return a two-state Markov-modulated Poisson process with mean rate `rate_img_s`.

    It is in the burst state for a share `burst_share` of the time, at a rate of `burst_factor` times the mean; a burst
    lasts `dwell_s` on average. The calm rate keeps the mean, so burst_factor * burst_share < 1 must hold.
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
    rate_img_s: float,
    amplitude: float,
    period_s: float,
    horizon_s: float,
    rng: np.random.Generator,
    *,
    start_s: float = 0.0,
) -> Arrivals:
    """Return a Poisson process with the rate rate_img_s * (1 + amplitude * sin(2 pi t / period)), by thinning."""
    candidates_s = poisson(rate_img_s * (1 + amplitude), horizon_s, rng) / NS_PER_S
    rate = 1 + amplitude * np.sin(2 * np.pi * (candidates_s + start_s) / period_s)
    is_kept = rng.random(len(candidates_s)) * (1 + amplitude) < rate
    return _to_ns(candidates_s[is_kept], horizon_s)


def rates(
    levels: NDArray[np.float64],
    rate_img_s: float,
    period_s: float,
    horizon_s: float,
    rng: np.random.Generator,
    *,
    start_s: float = 0.0,
) -> Arrivals:
    """Return a Poisson process with a piecewise constant rate: `levels`, played once in `period_s` and then repeated.

    By time change: arrivals of rate 1 are mapped through the inverse of the cumulative rate, so at a higher rate the
    same draws give the same arrivals, only denser.

    Args:
        levels: (K,) of any unit, non-negative, at least one positive; scaled so that their mean is `rate_img_s`. Each
            lasts period_s / K.
    """
    edges_s = np.linspace(0.0, period_s, len(levels) + 1)
    expected = np.concatenate([[0.0], np.cumsum(levels)]) * (rate_img_s * period_s / np.sum(levels))
    a_period = expected[-1]

    def expected_until(time_s: float) -> float:
        return float(time_s // period_s * a_period + np.interp(time_s % period_s, edges_s, expected))

    offset = expected_until(start_s)
    counted = offset + _renewal_s(1.0, 1.0, expected_until(start_s + horizon_s) - offset, rng)
    periods, within = np.divmod(counted, a_period)
    return _to_ns(periods * period_s + np.interp(within, expected, edges_s) - start_s, horizon_s)


def flash(
    rate_img_s: float,
    factor: float,
    at_s: float,
    rise_s: float,
    hold_s: float,
    fall_s: float,
    horizon_s: float,
    rng: np.random.Generator,
) -> Arrivals:
    """Return a Poisson process with a flash crowd, by thinning: `rate_img_s` outside it, `factor` times that at its
    peak.

    The rate rises linearly from `at_s` on (which may be negative: the crowd has then already begun) for `rise_s`, stays
    for `hold_s` and falls linearly for `fall_s`.
    """
    candidates_s = poisson(rate_img_s * factor, horizon_s, rng) / NS_PER_S
    bends_s = at_s + np.cumsum([0.0, rise_s, hold_s, fall_s])
    rate = np.interp(candidates_s, bends_s, [1.0, factor, factor, 1.0])
    is_kept = rng.random(len(candidates_s)) * factor < rate
    return _to_ns(candidates_s[is_kept], horizon_s)


def trace(
    times_s: NDArray[np.float64], factor: float, horizon_s: float, rng: np.random.Generator, resolution_s: float = 0.0
) -> Arrivals:
    """Return a recorded trace (n,) from its first arrival on, `factor` times faster, each at a random point of a
    `resolution_s` step."""
    times = np.sort(times_s - times_s.min() + resolution_s * rng.random(len(times_s)))
    return _to_ns((times - times[0]) / factor, horizon_s)


def _renewal_s(rate_img_s: float, cv: float, horizon_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return ascending times with gamma gaps; the last ones are beyond the horizon."""
    shape = 1.0 / cv**2
    scale_s = 1.0 / (rate_img_s * shape)
    times_s = np.empty(0)
    last_s = 0.0
    while last_s < horizon_s:
        count = int((horizon_s - last_s) * rate_img_s * 1.05) + 64
        chunk = last_s + np.cumsum(rng.gamma(shape, scale_s, count))
        times_s = np.concatenate([times_s, chunk])
        last_s = float(chunk[-1])
    return times_s


def _to_ns(times_s: NDArray[np.float64], horizon_s: float) -> Arrivals:
    return np.ceil(times_s[times_s < horizon_s] * NS_PER_S).astype(np.int64)


_MASK = (1 << 64) - 1


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the generator of one consumer (`arrivals`, `router:jsq` ...), determined by seed and name alone."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, crc32(name.encode())])))


def derived_seed(seed: int, name: str) -> int:
    """Return a seed for a consumer that takes an integer."""
    return int(np.random.SeedSequence([seed, crc32(name.encode())]).generate_state(1)[0])


def hashed(salt: int, first: int, second: int) -> int:
    """Return 64 well-mixed bits of three numbers: stateless random draws that both engines share.

    SplitMix64's finalizer (Steele, Lea and Flood 2014), applied once for each number.
    """
    mixed = salt & _MASK
    for number in (first, second):
        mixed = (mixed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        mixed ^= mixed >> 31
    return mixed


def hashed_share(salt: int, first: int, second: int) -> float:
    """Return `hashed` as a number in [0, 1)."""
    return (hashed(salt, first, second) >> 11) * 2.0**-53
