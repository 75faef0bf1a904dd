"""What a profile says of its own errors: held out, cross-validated, and how far measurements of one thing lie apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from calibrate.costs import Key
from calibrate.plan import FEWEST_BATCHES, Point
from calibrate.samples import Pooled
from sim.interpolation import affine_s, fit_affine, interpolate_latency_s
from sim.profile import LatencyCurve, StatedError

SOLO_ERROR = "solo latency"
FOUR_POINT_ERROR = "solo latency from four batch sizes"
CONCURRENCY_ERROR = "slow-down under concurrency"
ACROSS_ERROR = "slow-down across processes"
ENERGY_ERROR = "energy per image"
REPEATABILITY = "repeatability of solo latency between rounds"

ErrorKind = Literal["held out", "cross-validated", "repeatability"]
Pairs = Sequence[tuple[float, float]]  # (predicted, measured)


def stated(figure: str, pairs: Pairs, kind: ErrorKind = "held out") -> Iterator[StatedError]:
    """The error of (predicted, measured) pairs; nothing where there are none."""
    if pairs:
        percent = [100 * abs(predicted / measured - 1) for predicted, measured in pairs]
        yield StatedError(
            figure=figure,
            kind=kind,
            median_abs_pct=float(np.median(percent)),
            mean_abs_pct=float(np.mean(percent)),
            max_abs_pct=max(percent),
            points=len(pairs),
        )


def predict_solo_s(curve: LatencyCurve, batch: int) -> float:
    """The median solo latency that the profile gives a batch."""
    return interpolate_latency_s(curve.batches, curve.p50_s, batch)


def solo_errors(
    held_out: Mapping[Point, Pooled], curves: Mapping[Key, LatencyCurve], rounds: Mapping[Point, Sequence[float]]
) -> Iterator[StatedError]:
    """Of solo latency: at held-out batch sizes by the whole curve and by four of its points; each inner batch size by
    the others; and each round of a point beside all of them.

    Args:
        rounds: the medians of every round of each fitted point.
    """
    seen = {point: times.quantile(0.5) for point, times in held_out.items()}
    yield from stated(SOLO_ERROR, [(predict_solo_s(curves[p.key], p.batch), s) for p, s in seen.items()])
    yield from stated(FOUR_POINT_ERROR, [(_from_four_s(curves[p.key], p.batch), s) for p, s in seen.items()])
    left_out = [pair for curve in curves.values() for pair in _each_left_out(curve)]
    yield from stated(SOLO_ERROR, left_out, "cross-validated")
    apart = [
        (median_s, float(np.median(medians_s)))
        for medians_s in rounds.values()
        if len(medians_s) > 1
        for median_s in medians_s
    ]
    yield from stated(REPEATABILITY, apart, "repeatability")


def _from_four_s(curve: LatencyCurve, batch: int) -> float:
    """L(b) = max(t0, c0 + c1 b), fitted on four of the curve's batch sizes, evenly spread in their logarithm."""
    batches = np.asarray(curve.batches, dtype=np.float64)
    targets = np.geomspace(batches[0], batches[-1], FEWEST_BATCHES)
    places = sorted({int(np.argmin(np.abs(np.log(batches / target)))) for target in targets})
    chosen = [curve.batches[place] for place in places]
    return float(affine_s(fit_affine(chosen, [curve.p50_s[place] for place in places]), batch))


def _each_left_out(curve: LatencyCurve) -> Iterable[tuple[float, float]]:
    for left in range(1, len(curve.batches) - 1):
        batches = [b for place, b in enumerate(curve.batches) if place != left]
        values = [v for place, v in enumerate(curve.p50_s) if place != left]
        yield interpolate_latency_s(batches, values, curve.batches[left]), curve.p50_s[left]
