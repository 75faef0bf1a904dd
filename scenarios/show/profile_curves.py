"""What a profile's charts are drawn from: its curves as the simulator replays them, and how far they may be wrong.

It draws nothing and reads no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from calibrate.errors import SOLO_ERROR
from sim.profile import AT_ONCE as MEASURED_AT_ONCE
from sim.profile import JITTER_QUANTILES, LatencyCurve, Profile
from sim.steady import AT_ONCE, LOADS, SteadyPoint, shared_device, steady_points
from sim.tables import BatchKey, compile_tables

LOADED_BATCH = 16  # of the stream of batches that loads the device, or the profile's limit if that is lower
SPREAD = (0.05, 0.95)
SLICE_CENTRES = (np.arange(JITTER_QUANTILES) + 0.5) / JITTER_QUANTILES  # a row of jitter: the means of equal slices


def uniform_curves(profile: Profile) -> Iterator[LatencyCurve]:
    """Yield the curves that are shown: segment 1, and those whose previous width is their own."""
    return (c for c in profile.latency if c.segment == 1 or c.width == c.previous_width)


def loaded_batch(profile: Profile) -> int:
    """Return how large the batches are that load the device in Figures 2 and 3."""
    return min(LOADED_BATCH, profile.batch_limit)


def loaded_at_once(profile: Profile) -> int:
    """Return how many of them run together at most: no more than calibration ever ran at once."""
    measured = [stated.high for stated in profile.ranges if stated.quantity == MEASURED_AT_ONCE]
    return int(min([AT_ONCE, *measured]))


def under_load(
    profile: Profile, loads: Sequence[float] = LOADS, at_once: int | None = None
) -> Mapping[BatchKey, Sequence[SteadyPoint]]:
    """Return the device's steady state along the load, for every curve that is shown; batches are of one process."""
    tables = compile_tables(profile, profile.batch_limit, jitter=False)
    keys = [(curve.segment, curve.width, curve.previous_width) for curve in uniform_curves(profile)]
    batch = loaded_batch(profile)
    limit = loaded_at_once(profile) if at_once is None else at_once
    return {key: steady_points(shared_device(tables, key, batch, limit), loads) for key in keys}


def band_of_repeats_s(curve: LatencyCurve) -> tuple[Sequence[float], Sequence[float]]:
    """Return the 5th and 95th percentile of repeats along the batches, from the jitter; the median without repeats."""
    if not curve.jitter:
        return curve.p50_s, curve.p95_s or curve.p50_s
    low, high = np.asarray([np.interp(SPREAD, SLICE_CENTRES, row) for row in curve.jitter]).T
    return (low * curve.p50_s).tolist(), (high * curve.p50_s).tolist()


def stated_solo_error(profile: Profile) -> float | None:
    """Return the stated mean error of solo latency, as a share: the held-out one, or the cross-validated one."""
    for kind in ("held out", "cross-validated"):
        errors_pct = [e.mean_abs_pct for e in profile.errors if e.metric == SOLO_ERROR and e.kind == kind]
        if errors_pct:
            return max(errors_pct) / 100
    return None
