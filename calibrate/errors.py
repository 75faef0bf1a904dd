"""A profile's stated errors: held out, cross-validated, and the difference between repeated measurements."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from calibrate.costs import Key
from calibrate.plan import MIN_BATCHES
from calibrate.samples import Pooled
from hw.transport.messages import Point
from sim.interpolation import affine_s, fit_affine, interpolate_latency_s
from sim.profile import LatencyCurve, LatencyFit, StatedError

SOLO_ERROR = "solo latency"
FOUR_POINT_ERROR = "solo latency from four batch sizes"
AFFINE_ERROR = f"{FOUR_POINT_ERROR}, max(t0, c0 + c1 b)"
CONCURRENCY_ERROR = "slow-down under concurrency"
ACROSS_ERROR = "slow-down across processes"
PATH_ERROR = "latency of a path through all segments"
ENERGY_ERROR = "energy per image"
REPEATABILITY = "repeatability of solo latency between rounds"

NOT_KEPT: Mapping[LatencyFit, str] = {
    "each key": "solo latency by a curve for each key, not kept",
    "surface": "solo latency by one surface, not kept",
}

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


def solo_errors(
    held_out: Mapping[Point, Pooled],
    curves: Mapping[Key, LatencyCurve],
    rounds: Mapping[Point, Sequence[float]],
    left_out: Pairs,
) -> Iterator[StatedError]:
    """Yield errors of solo latency: held-out batch sizes by the whole curve and by four of its points; inner batch
    sizes by the others; differences of any two rounds of a point.

    A held-out point that was fitted, too, is one more round of it: its error is not informative of batch sizes
    that were not measured.

    Args:
        rounds: the medians of every round of each fitted point.
        left_out: (predicted, measured) of fitted points, each predicted without it.
    """
    medians_s = {point: times.quantile(0.5) for point, times in held_out.items()}
    seen = {p: median_s for p, median_s in medians_s.items() if p not in rounds}
    yield from stated(SOLO_ERROR, [(predict_solo_s(curves[p.key], p.batch), s) for p, s in seen.items()])
    four = {point: _four_of(curves[point.key]) for point in seen}
    yield from stated(FOUR_POINT_ERROR, [(interpolate_latency_s(*four[p], p.batch), s) for p, s in seen.items()])
    yield from stated(AFFINE_ERROR, [(float(affine_s(fit_affine(*four[p]), p.batch)), s) for p, s in seen.items()])
    yield from stated(SOLO_ERROR, left_out, "cross-validated")
    again = {point: [median_s] for point, median_s in medians_s.items() if point not in seen}
    apart = [pair for point, found_s in rounds.items() for pair in _pairs_apart([*found_s, *again.get(point, [])])]
    yield from stated(REPEATABILITY, apart, "repeatability")


def other_errors(
    by: LatencyFit,
    held_out: Mapping[Point, Pooled],
    curves: Mapping[Key, LatencyCurve],
    fitted: Container[Point],
    left_out: Pairs,
) -> Iterator[StatedError]:
    """Yield errors of solo latency by the rejected way of fitting."""
    seen = [(predict_solo_s(curves[p.key], p.batch), t.quantile(0.5)) for p, t in held_out.items() if p not in fitted]
    yield from stated(NOT_KEPT[by], seen)
    yield from stated(NOT_KEPT[by], left_out, "cross-validated")


def _pairs_apart(medians_s: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yield |a - b| over the mean of both, of any two; as a pair with that error."""
    for one_s, other_s in itertools.combinations(medians_s, 2):
        mean_s = (one_s + other_s) / 2
        yield mean_s + abs(one_s - other_s), mean_s


def _four_of(curve: LatencyCurve) -> tuple[list[int], list[float]]:
    """Return four of the curve's batch sizes, evenly spread in their logarithm, with their latencies."""
    batches = np.asarray(curve.batches, dtype=np.float64)
    targets = np.geomspace(batches[0], batches[-1], MIN_BATCHES)
    places = sorted({int(np.argmin(np.abs(np.log(batches / target)))) for target in targets})
    return [curve.batches[place] for place in places], [curve.p50_s[place] for place in places]
