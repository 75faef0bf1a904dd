"""Solo latency of every key, and the variation of the device's own speed, from the rounds of points timed alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrate.bench import LoadResult, Loop, WatchResult
from calibrate.costs import Key, ModelCosts
from calibrate.measure import Measurement, undisturbed
from calibrate.plan import InstancePoints
from calibrate.slowdown import BEST_SHARE, EXPONENT, SHORTEST_SPELL_S, Speed, at_full_speed
from hw.transport.messages import Point
from policies.vocabulary import Provenance
from sim.profile import JITTER_QUANTILES, LatencyCurve, Slowdown

MAX_SLOW = 0.95  # of the time: above it, a device is hardly ever at full speed
MIN_AT_FULL_SPEED = 2  # passes of a point
MIN_OF_EACH = 3  # fast and slow passes of a point: with fewer, passes at the ends of a spell dominate
MIN_RATIOS = 5  # points with spells, to estimate their effect on passes
EXPONENTS = (0.3, 1.5)  # plausible range of how a pass slows down with the reference

Floats = npt.NDArray[np.float64]
Rounds = Mapping[Point, Sequence[Loop]]


def rounds_of(measurements: Iterable[Measurement]) -> Rounds:
    """Return the loops of every point, a round each."""
    rounds: dict[Point, list[Loop]] = {}
    for step, result in measurements:
        if isinstance(step, InstancePoints) and isinstance(result, LoadResult):
            for point, loop in zip(step.points, result.loops, strict=True):
                rounds.setdefault(point, []).append(loop)
    return rounds


# ------------------------------------------------------------------------------------------------- the device's speed


@dataclass(frozen=True, slots=True)
class SlowdownFit:
    """Variation of the device's own speed.

    Attributes:
        speed: relation of reference times to passes.
        model: model for the profile; None without a reference.
    """

    speed: Speed
    model: Slowdown | None


def fit_slowdown(rounds: Rounds, measurements: Iterable[Measurement]) -> SlowdownFit:
    """Fit the slow spells; their effect on passes follows from points with passes of both kinds."""
    points = [_joined(loops) for loops in rounds.values()]
    references_s = np.concatenate([beside_s for _, beside_s in points])
    if not len(references_s):
        return SlowdownFit(Speed(0.0, 0.0), None)
    best_s = float(np.quantile(references_s, BEST_SHARE))
    is_full = at_full_speed(references_s, best_s)
    full_s, slow = float(np.median(references_s[is_full])), int(np.count_nonzero(~is_full))
    both = [
        (np.median(passes_s[~full]) / np.median(passes_s[full]), np.median(beside_s[~full]) / np.median(beside_s[full]))
        for passes_s, beside_s in points
        for full in [at_full_speed(beside_s, best_s)]
        if min(np.count_nonzero(full), np.count_nonzero(~full)) >= MIN_OF_EACH
    ]
    exponent, slow_reference = EXPONENT, float(np.median(references_s[~is_full]) / full_s) if slow else 1.0
    if len(both) >= MIN_RATIOS:
        factors, references = np.transpose(both)
        exponent = float(np.clip(np.median(np.log(factors) / np.log(references)), *EXPONENTS))
        slow_reference = float(np.median(references))
    factor = slow_reference**exponent
    spells_s = [result.slowdown.mean_slow_s for _, result in measurements if isinstance(result, WatchResult)]
    model = Slowdown(
        slow_factor=factor,
        slow_share=min(MAX_SLOW, factor * slow / (factor * slow + len(references_s) - slow)),
        mean_slow_s=max([*spells_s, SHORTEST_SPELL_S]),
        reference_s=full_s,
        reference_exponent=exponent,
        provenance=Provenance.MEASURED,
    )
    return SlowdownFit(Speed(best_s, full_s, exponent), model)


def _joined(loops: Sequence[Loop]) -> tuple[Floats, Floats]:
    """Return all passes, and the reference next to each, if there are any."""
    passes_s = np.concatenate([np.asarray(loop.repeats_s, np.float64) for loop in loops])
    return passes_s, np.concatenate([np.asarray(loop.references_s, np.float64) for loop in loops])


def has_full_speed(loops: Sequence[Loop], speed: Speed) -> bool:
    """Return whether enough passes had the device's full speed; True if that is unknown."""
    _, references_s = _joined(loops)
    return not speed.best_s or int(np.count_nonzero(at_full_speed(references_s, speed.best_s))) >= MIN_AT_FULL_SPEED


def full_speed_s(loops: Sequence[Loop], speed: Speed) -> Floats:
    """Return the passes at full speed; if there are hardly any, all of them, converted."""
    passes_s, references_s = _joined(loops)
    if not speed.best_s:
        return passes_s
    if has_full_speed(loops, speed):
        return passes_s[at_full_speed(references_s, speed.best_s)]
    return passes_s / np.maximum(1.0, references_s / speed.full_s) ** speed.exponent


# ------------------------------------------------------------------------------------------------------------- latency


def round_medians_s(rounds: Rounds, speed: Speed) -> dict[Point, list[float]]:
    """Return the median of each round of every point, including disturbed ones: that is to be expected."""
    return {point: [float(np.median(full_speed_s([loop], speed))) for loop in loops] for point, loops in rounds.items()}


def solo_curve(
    key: Key, rounds: Rounds, costs: ModelCosts, cores: int, bandwidth_bytes_s: float, speed: Speed
) -> LatencyCurve:
    """Return a key's curve through its points; energy is still empty.

    Utilization is the CPU share: correct for a CPU, replaced for a GPU.

    Args:
        cores: number of cores that CPU time is a share of.

    Raises:
        ValueError: the key was not measured (the profile would not be whole).
    """
    kept = {point.batch: undisturbed(rounds[point]) for point in sorted(rounds) if point.key == key}
    if not kept:
        raise ValueError(f"no measurement of {key}: every key must be measured")
    passes_s = [full_speed_s(loops, speed) for loops in kept.values()]
    means_s = [float(np.mean(passes)) for passes in passes_s]
    quantiles = (np.quantile(passes, (0.5, 0.95, 0.99), method="hazen").tolist() for passes in passes_s)
    p50_s, p95_s, p99_s = (tuple(column) for column in zip(*quantiles, strict=True))
    shares = tuple(min(1.0, float(np.mean(list(map(_cpu_share, loops)))) / cores) for loops in kept.values())
    moved_bytes = [costs.keys[key].batch_bytes(batch) for batch in kept]
    segment, width, previous_width = key
    return LatencyCurve(
        segment=segment,
        width=width,
        previous_width=previous_width,
        batches=tuple(kept),
        mean_s=tuple(means_s),
        p50_s=p50_s,
        p95_s=p95_s,
        p99_s=p99_s,
        samples=tuple(map(len, passes_s)),
        utilization=shares,
        energy_j_per_image=(0.0,) * len(kept),
        host_share=shares,
        bandwidth_share=tuple(min(1.0, m / s / bandwidth_bytes_s) for m, s in zip(moved_bytes, means_s, strict=True)),
        jitter=tuple(
            tuple(value / median_s for value in slice_means(passes, JITTER_QUANTILES))
            for passes, median_s in zip(passes_s, p50_s, strict=True)
        ),
    )


def _cpu_share(loop: Loop) -> float:
    """Return CPU time over the passes' own time; other processes' time in between does not belong to our passes."""
    return loop.cpu_s / (sum(loop.repeats_s) * (1 - min(0.99, loop.disturbed_share)))


def slice_means(values: Floats, number: int) -> list[float]:
    """Return the means of `number` equal slices of the sorted values: quantiles whose mean is the mean of all."""
    summed = np.concatenate([[0.0], np.cumsum(np.sort(values))])
    edges = np.linspace(0.0, len(values), number + 1)
    means = np.diff(np.interp(edges, np.arange(len(summed)), summed)) / (len(values) / number)
    return [float(mean) for mean in np.maximum.accumulate(means)]  # ascending, except for rounding
