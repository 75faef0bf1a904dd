"""Solo latency of every key and batch size, from points measured alone.

Two ways: a curve through each key's own points, or one surface over all keys (`calibrate.surface`). The better one by
cross-validation is kept: each batch size between two others of its key is predicted from points that are not it.
A surface is better with few and noisy points, a curve if a device behaves unlike any surface.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError

from calibrate.bench import SoloResult
from calibrate.costs import Key, ModelCosts
from calibrate.errors import Pairs
from calibrate.measure import DISTURBED, Measurement, undisturbed
from calibrate.plan import Solo, scouted_batches
from calibrate.samples import Pooled
from calibrate.slowdown import Speed
from calibrate.surface import MIN_POINTS, Seen, Surface
from hw.transport.messages import Point
from sim.interpolation import ascending, interpolate_latency_s, interpolate_linear
from sim.profile import JITTER_QUANTILES, LatencyCurve, LatencyFit

FOLDS = 5
MIN_LEFT_OUT = 8  # predicted points to choose by
DOUBT = 0.1  # of the logarithm, of a point that was always disturbed; and the share that others took, up to all
SLOW_DOUBT = 0.04  # of a point that never had full speed: a cause that slows it down by half slows others by a fifth
QUARTILES_APART = 1.349  # of a normal distribution, in standard deviations
MEDIAN_S = np.pi / 2  # a median's variance over a mean's


@dataclass(frozen=True, slots=True)
class SoloPoint:
    """All rounds of a solo point; `cpu_share` is of the device's cores, while a pass runs."""

    times: Pooled
    cpu_share: float
    round_medians_s: tuple[float, ...]
    disturbance: float = 0.0

    @property
    def is_doubted(self) -> bool:
        """Whether it was always disturbed."""
        return self.disturbance > DISTURBED

    @property
    def seen(self) -> Seen:
        """The point as input of a surface."""
        low_s, middle_s, high_s = (self.times.quantile(share) for share in (0.25, 0.5, 0.75))
        spread = (high_s - low_s) / QUARTILES_APART / middle_s
        doubt = DOUBT + min(1.0, self.disturbance) if self.is_doubted else 0.0
        return Seen(self.round_medians_s, MEDIAN_S * spread**2 / self.times.count + doubt**2, self.is_doubted)


@dataclass(frozen=True, slots=True)
class SoloFit:
    """Curves, with the way of fitting them.

    Attributes:
        curves: utilization is the CPU share (correct for a CPU, replaced for a GPU), energy is still empty.
        left_out: for each way that was tried, (predicted, measured) of fitted points, each predicted without it.
        others: the curves of the rejected way, if there was a choice.
    """

    by: LatencyFit
    curves: Mapping[Key, LatencyCurve]
    left_out: Mapping[LatencyFit, Pairs]
    others: Mapping[LatencyFit, Mapping[Key, LatencyCurve]]


def solo_points(
    measurements: Iterable[Measurement], cores: int, speed: Speed, *, held_out: bool
) -> dict[Point, SoloPoint]:
    """Return the fitted points, or the held-out ones.

    Args:
        cores: number of cores that CPU time is a share of.
        speed: relation of reference times to passes.
    """
    rounds: dict[Point, list[SoloResult]] = {}
    for step, result in measurements:
        if isinstance(step, Solo) and isinstance(result, SoloResult) and step.held_out == held_out:
            rounds.setdefault(step.point, []).append(result)
    return {point: _solo_point(undisturbed(results), cores, speed) for point, results in rounds.items()}


def _solo_point(results: Sequence[SoloResult], cores: int, speed: Speed) -> SoloPoint:
    """Pool results at full speed; results without it are converted."""
    rounds = [r.samples.scaled(1 / speed.slowdown(r.reference_s)) if r.is_slow else r.samples for r in results]
    medians = tuple(Pooled.of([samples]).quantile(0.5) for samples in rounds)
    share = sum(map(_cpu_share, results)) / len(results) / cores
    disturbance = max(result.disturbed_share + (SLOW_DOUBT if result.is_slow else 0.0) for result in results)
    return SoloPoint(Pooled.of(rounds), min(1.0, max(0.0, share)), medians, disturbance)


def _cpu_share(result: SoloResult) -> float:
    """Return CPU time over the passes' own time; other processes' time in between does not belong to our passes."""
    every = [result.samples] if result.slow is None else [result.samples, result.slow]
    passes_s = sum(samples.count * Pooled.of([samples]).mean for samples in every)
    return result.cpu_s / (passes_s * (1 - min(0.99, result.disturbed_share)))


def fit_solo(
    solo: Mapping[Point, SoloPoint], costs: ModelCosts, bandwidth_bytes_s: float, by: LatencyFit | None = None
) -> SoloFit:
    """Fit the curves of every key, by the better way; see this module.

    Args:
        by: the way to use in any case; None: the better one.

    Raises:
        ValueError: a key of the model was not measured (the profile would not be whole).
    """
    plain = {key: _own_curve(key, solo, costs, bandwidth_bytes_s) for key in costs.keys}
    inner = [Point(*key, batch) for key in sorted(plain) for batch in plain[key].batches[1:-1]]  # between two others
    left_out: dict[LatencyFit, Pairs] = {"each key": [_without(plain[point.key], point.batch) for point in inner]}
    every: dict[LatencyFit, Mapping[Key, LatencyCurve]] = {"each key": plain}
    if by != "each key" and len(solo) >= MIN_POINTS and len(inner) >= MIN_LEFT_OUT:
        try:
            surface, pairs = _surface(solo, inner, costs)
        except LinAlgError:  # points that no surface fits
            pass
        else:
            every["surface"] = _on_surface(surface, plain, costs, bandwidth_bytes_s)
            left_out["surface"] = pairs
    telling = [place for place, point in enumerate(inner) if not solo[point].is_doubted]
    if len(telling) < MIN_LEFT_OUT:
        telling = list(range(len(inner)))
    kept = by if by in every else min(every, key=lambda way: _mean_error([left_out[way][place] for place in telling]))
    assert kept is not None
    return SoloFit(kept, every[kept], left_out, {way: curves for way, curves in every.items() if way != kept})


def _mean_error(pairs: Pairs) -> float:
    return float(np.mean([abs(np.log(predicted / measured)) for predicted, measured in pairs])) if pairs else 0.0


# ---------------------------------------------------------------------------------------------- a curve for each key


def _own_curve(key: Key, solo: Mapping[Point, SoloPoint], costs: ModelCosts, bandwidth_bytes_s: float) -> LatencyCurve:
    points = sorted((point, fit) for point, fit in solo.items() if point.key == key)
    if not points:
        raise ValueError(f"no measurement of {key}: every key must be measured")
    times = [fit.times for _, fit in points]
    shares = tuple(fit.cpu_share for _, fit in points)
    batches, means_s = [point.batch for point, _ in points], [pooled.mean for pooled in times]
    segment, width, previous_width = key
    medians = [pooled.quantile(0.5) for pooled in times]
    return LatencyCurve(
        segment=segment,
        width=width,
        previous_width=previous_width,
        batches=tuple(batches),
        mean_s=tuple(means_s),
        p50_s=tuple(medians),
        p95_s=tuple(pooled.quantile(0.95) for pooled in times),
        p99_s=tuple(pooled.quantile(0.99) for pooled in times),
        samples=tuple(pooled.count for pooled in times),
        utilization=shares,
        energy_j_per_image=(0.0,) * len(points),
        host_share=shares,
        bandwidth_share=_bandwidth_shares(key, batches, means_s, costs, bandwidth_bytes_s),
        jitter=tuple(
            tuple(value / median for value in pooled.slices(JITTER_QUANTILES))
            for pooled, median in zip(times, medians, strict=True)
        ),
    )


def _bandwidth_shares(
    key: Key, batches: Sequence[int], means_s: Sequence[float], costs: ModelCosts, bandwidth_bytes_s: float
) -> tuple[float, ...]:
    moved = (costs.keys[key].batch_bytes(batch) / mean_s for batch, mean_s in zip(batches, means_s, strict=True))
    return tuple(min(1.0, rate / bandwidth_bytes_s) for rate in moved)


def _without(curve: LatencyCurve, batch: int) -> tuple[float, float]:
    """Return (predicted, measured) of a batch size, from the curve's others."""
    left = curve.batches.index(batch)
    batches, medians_s = list(curve.batches), list(curve.p50_s)
    measured_s = medians_s.pop(left)
    batches.pop(left)
    return interpolate_latency_s(batches, medians_s, batch), measured_s


# -------------------------------------------------------------------------------------------------------- one surface


def _surface(
    solo: Mapping[Point, SoloPoint], inner: Sequence[Point], costs: ModelCosts
) -> tuple[Surface, list[tuple[float, float]]]:
    """Return the surface through all points, and (predicted, measured) of inner ones, a fifth left out at a time."""
    seen = {point: fit.seen for point, fit in sorted(solo.items())}
    surface = Surface(seen, costs.keys)
    predicted_s: dict[Point, float] = {}
    for fold in range(FOLDS):
        left = inner[fold::FOLDS]
        rest = Surface({point: each for point, each in seen.items() if point not in set(left)}, costs.keys, surface)
        predicted_s |= zip(left, rest.predict(left)[0].tolist(), strict=True)
    return surface, [(predicted_s[point], solo[point].times.quantile(0.5)) for point in inner]


def _on_surface(
    surface: Surface, plain: Mapping[Key, LatencyCurve], costs: ModelCosts, bandwidth_bytes_s: float
) -> dict[Key, LatencyCurve]:
    """Return the surface's curves, also between measured sizes; repeats' spread is the key's at its nearest size."""
    measured = {batch for curve in plain.values() for batch in curve.batches}
    batches = sorted(measured | set(scouted_batches(max(measured))))
    return {key: _surface_curve(key, curve, batches, surface, costs, bandwidth_bytes_s) for key, curve in plain.items()}


def _surface_curve(
    key: Key,
    measured_curve: LatencyCurve,
    batches: Sequence[int],
    surface: Surface,
    costs: ModelCosts,
    bandwidth_bytes_s: float,
) -> LatencyCurve:
    medians_s = ascending(surface.predict([Point(*key, batch) for batch in batches])[0].tolist()).tolist()
    nearest = [int(np.argmin(np.abs(np.log(np.asarray(measured_curve.batches) / batch)))) for batch in batches]

    def scaled(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(
            median_s * values[place] / measured_curve.p50_s[place]
            for median_s, place in zip(medians_s, nearest, strict=True)
        )

    shares = tuple(interpolate_linear(measured_curve.batches, measured_curve.host_share, batch) for batch in batches)
    repeats = dict(zip(measured_curve.batches, measured_curve.samples, strict=True))
    return measured_curve.model_copy(
        update={
            "batches": tuple(batches),
            "mean_s": scaled(measured_curve.mean_s),
            "p50_s": tuple(medians_s),
            "p95_s": scaled(measured_curve.p95_s),
            "p99_s": scaled(measured_curve.p99_s),
            "samples": tuple(repeats.get(batch, 0) for batch in batches),
            "utilization": shares,
            "energy_j_per_image": (0.0,) * len(batches),
            "host_share": shares,
            "bandwidth_share": _bandwidth_shares(key, batches, scaled(measured_curve.mean_s), costs, bandwidth_bytes_s),
            "jitter": tuple(measured_curve.jitter[place] for place in nearest),
        }
    )
