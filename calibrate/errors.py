"""A profile's stated errors: held out, cross-validated, and the difference between repeated measurements."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np

from sim.interpolation import interpolate_latency_s
from sim.profile import LatencyCurve, StatedError

SOLO_ERROR = "solo latency"
CONCURRENCY_ERROR = "slow-down under concurrency"
ACROSS_ERROR = "slow-down across processes"
PATH_ERROR = "latency of a path through all segments"
ENERGY_ERROR = "energy per image"
REPEATABILITY = "repeatability of solo latency between rounds"

ErrorKind = Literal["held out", "cross-validated", "repeatability"]
Pairs = Sequence[tuple[float, float]]  # (predicted, measured)


def stated(metric: str, pairs: Pairs, kind: ErrorKind = "held out") -> Iterator[StatedError]:
    """Yield the error of (predicted, measured) pairs; nothing if there are none."""
    if pairs:
        percent = [100 * abs(predicted / measured - 1) for predicted, measured in pairs]
        yield StatedError(
            metric=metric,
            kind=kind,
            median_abs_pct=float(np.median(percent)),
            mean_abs_pct=float(np.mean(percent)),
            p90_abs_pct=float(np.quantile(percent, 0.9)),
            max_abs_pct=max(percent),
            points=len(pairs),
        )


def predict_solo_s(curve: LatencyCurve, batch: int) -> float:
    """Return the median solo latency that the profile predicts for a batch."""
    return interpolate_latency_s(curve.batches, curve.p50_s, batch)


def left_out(curve: LatencyCurve) -> Iterator[tuple[float, float]]:
    """Yield (predicted, measured) of each batch size between two others, from the curve without it."""
    for place in range(1, len(curve.batches) - 1):
        batches, medians_s = list(curve.batches), list(curve.p50_s)
        batch, measured_s = batches.pop(place), medians_s.pop(place)
        yield interpolate_latency_s(batches, medians_s, batch), measured_s


def repeatability(rounds_s: Iterable[Sequence[float]]) -> Iterator[StatedError]:
    """Yield the difference of any two rounds of a point, over their mean.

    Args:
        rounds_s: for each point, the median of every round.
    """
    pairs = [pair for medians_s in rounds_s for pair in itertools.combinations(medians_s, 2)]
    apart = [((one_s + other_s) / 2 + abs(one_s - other_s), (one_s + other_s) / 2) for one_s, other_s in pairs]
    yield from stated(REPEATABILITY, apart, "repeatability")
