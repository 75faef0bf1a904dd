"""Fits a profile to measurements: solo latency, sharing, costs, and the stated error of each.

The fit touches no device and does not depend on how the measurements were made. It calls the functions with which the
simulator replays a profile (`sim.device_model`), so both use one formula.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
import numpy.typing as npt

from calibrate.measurement_bench import (
    BEST_SHARE,
    EXPONENT,
    SHORTEST_SPELL_S,
    BesideLoadResult,
    LoadResult,
    Loop,
    PathsResult,
    Speed,
    SteadyResult,
    TimesResult,
    TogetherResult,
    WatchResult,
    at_full_speed,
)
from calibrate.measurement_plan import Dispatch, InstancePoints, Key, ModelCosts, Paths, Together, Transfer
from calibrate.plan_execution import DISTURBED, Measurement, undisturbed
from calibrate.sharing_and_energy import (
    EnergyModel,
    PowerPoint,
    below_cap,
    fit_concurrency,
    fit_power_cap,
    held_out_energy,
    metered,
    observed_sets,
    power_points,
    predicted_and_seen,
    sharing_from,
    with_awake,
    with_busy_shares,
)
from hw.transport.messages import Point
from policies.vocabulary import Provenance
from sim.device_model import interpolate_latency_s
from sim.device_profile import (
    AT_ONCE,
    JITTER_QUANTILES,
    PROCESSES,
    SCHEMA,
    Concurrency,
    DeviceInfo,
    DeviceMemory,
    InstanceCost,
    LatencyCurve,
    Link,
    Power,
    Profile,
    Range,
    SensorModel,
    Slowdown,
    StatedError,
)

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
    ratios = [
        (np.median(passes_s[~full]) / np.median(passes_s[full]), np.median(beside_s[~full]) / np.median(beside_s[full]))
        for passes_s, beside_s in points
        for full in [at_full_speed(beside_s, best_s)]
        if min(np.count_nonzero(full), np.count_nonzero(~full)) >= MIN_OF_EACH
    ]
    exponent, slow_reference = EXPONENT, float(np.median(references_s[~is_full]) / full_s) if slow else 1.0
    if len(ratios) >= MIN_RATIOS:
        factors, references = np.transpose(ratios)
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
    by_batch = {point.batch: undisturbed(rounds[point]) for point in sorted(rounds) if point.key == key}
    if not by_batch:
        raise ValueError(f"no measurement of {key}: every key must be measured")
    passes_s = [full_speed_s(loops, speed) for loops in by_batch.values()]
    means_s = [float(np.mean(passes)) for passes in passes_s]
    quantiles = (np.quantile(passes, (0.5, 0.95, 0.99), method="hazen").tolist() for passes in passes_s)
    p50_s, p95_s, p99_s = (tuple(column) for column in zip(*quantiles, strict=True))
    shares = tuple(min(1.0, float(np.mean(list(map(_cpu_share, loops)))) / cores) for loops in by_batch.values())
    moved_bytes = [costs.keys[key].batch_bytes(batch) for batch in by_batch]
    segment, width, previous_width = key
    return LatencyCurve(
        segment=segment,
        width=width,
        previous_width=previous_width,
        batches=tuple(by_batch),
        mean_s=tuple(means_s),
        p50_s=p50_s,
        p95_s=p95_s,
        p99_s=p99_s,
        samples=tuple(map(len, passes_s)),
        utilization=shares,
        energy_j_per_image=(0.0,) * len(by_batch),
        host_share=shares,
        bandwidth_share=tuple(np.minimum(1.0, np.divide(moved_bytes, means_s) / bandwidth_bytes_s).tolist()),
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


# -------------------------------------------------------------------------------------------------------- stated errors


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
    for index in range(1, len(curve.batches) - 1):
        batches, medians_s = list(curve.batches), list(curve.p50_s)
        batch, measured_s = batches.pop(index), medians_s.pop(index)
        yield interpolate_latency_s(batches, medians_s, batch), measured_s


def repeatability(rounds_s: Iterable[Sequence[float]]) -> Iterator[StatedError]:
    """Yield the difference of any two rounds of a point, over their mean.

    Args:
        rounds_s: for each point, the median of every round.
    """
    pairs = [pair for medians_s in rounds_s for pair in itertools.combinations(medians_s, 2)]
    apart = [((one_s + other_s) / 2 + abs(one_s - other_s), (one_s + other_s) / 2) for one_s, other_s in pairs]
    yield from stated(REPEATABILITY, apart, "repeatability")


# ---------------------------------------------------------------------------------------------------------- the profile


FULL_CLOCK = 0.95  # of the highest observed; solo points below it were throttled, or had not ramped up


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Facts about a device from outside the measurements.

    Attributes:
        cores: number of cores that its CPU time is a share of (1 for a GPU: the launching thread's).
        bandwidth_bytes_s: bandwidth of its memory.
        power: idle powers and the cap; its provenance applies if no power was measured.
        context_bytes: device memory of a process that holds no instance.
        fall_s: time that a GPU's clocks stay up after a load; 0 if that was not observed.
        padded_sizes: the only batch sizes that the device receives; empty for any size.
    """

    info: DeviceInfo
    execution: Mapping[str, str]
    cores: int
    bandwidth_bytes_s: float
    power: Power
    sensor: SensorModel
    context_bytes: int
    fall_s: float = 0.0
    padded_sizes: tuple[int, ...] = ()


def fit(
    measurements: Sequence[Measurement], costs: ModelCosts, facts: DeviceFacts, name: str, omitted: Sequence[str] = ()
) -> Profile:
    """Fit the profile of one device running one model.

    Args:
        omitted: descriptions of omissions.

    Raises:
        ValueError: a key of the model was not measured (the profile would not be whole).
    """
    hosted, is_gpu = facts.info.kind == "cpu", facts.info.kind == "cuda"
    rounds = rounds_of(measurements)
    slowdown = fit_slowdown(rounds, measurements)
    speed = slowdown.speed
    bare = {key: solo_curve(key, rounds, costs, facts.cores, facts.bandwidth_bytes_s, speed) for key in costs.keys}
    steady = power_points(measurements, facts.power, held_out=False)
    curves = _with_energy(bare, steady, costs, facts)
    sets = observed_sets(measurements, held_out=False, reference_exponent=speed.exponent)
    concurrency = fit_concurrency(below_cap(sets, curves, facts.power, hosted=hosted), curves, hosted=hosted)
    power = fit_power_cap(sets, curves, concurrency, facts.power, hosted=hosted) if steady else facts.power
    stamps = {**facts.info.stamps, **_disturbances(rounds, measurements, speed), **_clocks(rounds)}
    return Profile(
        schema=SCHEMA,
        name=name,
        provenance=Provenance.MEASURED,
        device=facts.info.model_copy(update={"stamps": stamps}),
        model=costs.info,
        execution={**facts.execution, **(_captured(measurements) if is_gpu else {})},
        padded_sizes=facts.padded_sizes,
        beside_load=_beside_load_factor(measurements),
        dispatch_s=_dispatch_s(measurements),
        latency=tuple(curves[key] for key in sorted(curves)),
        memory=DeviceMemory(context_bytes=facts.context_bytes, instances=_instances(measurements)),
        concurrency=concurrency,
        power=with_awake(metered(power, measurements), measurements, curves, facts.fall_s),
        sensor=facts.sensor,
        slowdown=slowdown.model,
        link=_link(measurements),
        errors=tuple(_errors(measurements, curves, concurrency, facts, speed)),
        ranges=tuple(_ranges(measurements, curves)),
        omitted=tuple(omitted),
    )


def _disturbances(rounds: Rounds, measurements: Iterable[Measurement], speed: Speed) -> dict[str, str]:
    """Describe how many points and sets other programs always took from, or never had full speed; empty if none."""
    sets: dict[Together, list[float]] = {}
    for step, result in measurements:
        if isinstance(step, Together) and isinstance(result, TogetherResult):
            sets.setdefault(step, []).append(result.disturbed_share)
    of_points = {point: min(loop.disturbed_share for loop in loops) for point, loops in rounds.items()}
    is_taken = [share > DISTURBED for share in (*of_points.values(), *map(min, sets.values()))]
    is_slow = [not has_full_speed(loops, speed) for loops in rounds.values()] + [False] * len(sets)
    disturbed = sum(map(max, is_taken, is_slow))
    text = f"of {len(is_taken)} points and sets, {disturbed} stayed disturbed"
    causes = f"{sum(is_taken)} by other programs, {sum(is_slow)} below full speed"
    return {"disturbed": f"{text}: {causes}"} if disturbed else {}


def _clocks(rounds: Rounds) -> dict[str, str]:
    """Describe a GPU's clocks at solo points: latencies of points at lower clocks are for those clocks."""
    clocks = [loop.clock_mhz for loops in rounds.values() for loop in loops if loop.clock_mhz]
    if not clocks:
        return {}
    low = sum(clock < FULL_CLOCK * max(clocks) for clock in clocks)
    return {
        "sm_clocks": f"{min(clocks):g} to {max(clocks):g} MHz at solo points; {low} of {len(clocks)} below 95 % of that"
    }


# ------------------------------------------------------------------------------------------------------------ latency


def _with_energy(
    bare: Mapping[Key, LatencyCurve], steady: Mapping[Point, PowerPoint], costs: ModelCosts, facts: DeviceFacts
) -> dict[Key, LatencyCurve]:
    if facts.info.kind == "cuda":
        bare = with_busy_shares(bare, steady)
    joules = EnergyModel(steady, bare, costs, facts.power)
    return {
        key: curve.model_copy(
            update={"energy_j_per_image": tuple(joules.per_image(curve, batch) for batch in curve.batches)}
        )
        for key, curve in bare.items()
    }


# ------------------------------------------------------------------------------------------ memory, dispatch and link


def _instances(measurements: Iterable[Measurement]) -> tuple[InstanceCost, ...]:
    """Return of each instance the first load, which is from disk, and the median of the others."""
    loads: dict[tuple[int, float], list[LoadResult]] = {}
    for step, result in measurements:
        if isinstance(step, InstancePoints) and isinstance(result, LoadResult):
            loads.setdefault((step.segment, step.width), []).append(result)
    return tuple(
        InstanceCost(
            segment=segment,
            width=width,
            vram_bytes=max(1, *(result.vram_bytes for result in results)),
            load_s=results[0].load_s,
            reload_s=float(np.median([result.load_s for result in results[1:] or results])),
            unload_s=float(np.median([result.unload_s for result in results])),
        )
        for (segment, width), results in sorted(loads.items())
    )


def _captured(measurements: Iterable[Measurement]) -> dict[str, str]:
    """Return `n of m`: the number of passes of all instances that a GPU replays; empty if all are."""
    counts = {
        (step.segment, step.width): (result.captured, len(step.points))
        for step, result in measurements
        if isinstance(step, InstancePoints) and isinstance(result, LoadResult)
    }
    captured, warmed = map(sum, zip(*counts.values(), strict=True))
    return {} if captured == warmed else {"captured": f"{captured} of {warmed}"}


def _beside_load_factor(measurements: Iterable[Measurement]) -> float:
    """Return the slow-down of passes while an instance is loaded; 1 if that was not measured."""
    ratios = [result.beside_s / result.quiet_s for _, result in measurements if isinstance(result, BesideLoadResult)]
    return max(1.0, float(np.median(ratios))) if ratios else 1.0


def _paths(measurements: Iterable[Measurement], curves: Mapping[Key, LatencyCurve]) -> Pairs:
    """Return (predicted, measured) seconds of each path: the sum of its hops' medians, and its own."""
    return [
        (sum(predict_solo_s(curves[point.key], point.batch) for point in path), median_s)
        for step, result in measurements
        if isinstance(step, Paths) and isinstance(result, PathsResult)
        for path, median_s in zip(step.paths, result.medians_s, strict=True)
    ]


def _dispatch_s(measurements: Iterable[Measurement]) -> float:
    results = [each for step, each in measurements if isinstance(step, Dispatch) and isinstance(each, TimesResult)]
    return float(np.median([time_s for result in results for time_s in result.times_s])) if results else 0.0


def _link(measurements: Iterable[Measurement]) -> Link | None:
    medians = {
        step.size_bytes: float(np.median(result.times_s))
        for step, result in measurements
        if isinstance(step, Transfer) and isinstance(result, TimesResult)
    }
    return link_of(medians) if len(medians) > 1 else None


def link_of(medians: Mapping[int, float]) -> Link:
    """Fit a link to median seconds by size in bytes, at least two sizes: the least sum of relative errors.

    Not of their squares: one size off the line (its few packets go at once, if a shaper lets them) would bend all of
    it. The best line goes through two of the points, or through one and the origin, or level through one.
    """
    sizes, times = np.asarray(list(medians), dtype=np.float64), np.asarray(list(medians.values()))
    slopes = [(t - u) / (s - r) for (s, t), (r, u) in combinations(zip(sizes, times, strict=True), 2)]
    slopes += [0.0, *(times / sizes)]
    lines = [(t - slope * s, slope) for s, t in zip(sizes, times, strict=True) for slope in slopes]
    allowed = [(max(0.0, latency_s), slope) for latency_s, slope in lines if slope >= 0]
    latency_s, s_per_byte = min(
        allowed, key=lambda line: float((np.abs(line[0] + line[1] * sizes - times) / times).sum())
    )
    bandwidth_bytes_s = 1 / s_per_byte if s_per_byte > 0 else sizes.max() / times.min()
    return Link(latency_s=float(latency_s), bandwidth_bytes_s=float(bandwidth_bytes_s))


# ------------------------------------------------------------------------------------------------- errors and ranges


def _errors(
    measurements: Sequence[Measurement],
    curves: Mapping[Key, LatencyCurve],
    concurrency: Concurrency,
    facts: DeviceFacts,
    speed: Speed,
) -> Iterator[StatedError]:
    yield from repeatability(round_medians_s(rounds_of(measurements), speed).values())
    if not facts.padded_sizes:  # otherwise no batch size is between the measured ones
        pairs = [pair for curve in curves.values() for pair in left_out(curve)]
        yield from stated(SOLO_ERROR, pairs, "cross-validated")
    yield from stated(PATH_ERROR, _paths(measurements, curves))
    hosted = facts.info.kind == "cpu"
    sharing = sharing_from(concurrency, hosted=hosted)
    sets = observed_sets(measurements, held_out=True, reference_exponent=speed.exponent)
    sets = below_cap(sets, curves, facts.power, hosted=hosted)
    for metric, across in ((CONCURRENCY_ERROR, False), (ACROSS_ERROR, True)):
        pairs = [pair for each in sets if each.across == across for pair in predicted_and_seen(each, curves, sharing)]
        yield from stated(metric, pairs)
    yield from stated(ENERGY_ERROR, held_out_energy(power_points(measurements, facts.power, held_out=True), curves))


def _ranges(measurements: Sequence[Measurement], curves: Mapping[Key, LatencyCurve]) -> Iterator[Range]:
    limit = min(curve.batches[-1] for curve in curves.values())
    yield Range(metric=SOLO_ERROR, quantity="batch", low=1, high=limit)
    sets = [step for step, _ in measurements if isinstance(step, Together) and not step.held_out]
    sizes, across = [len(step.points) for step in sets], any(step.across for step in sets)
    if sizes:
        yield Range(metric=CONCURRENCY_ERROR, quantity=AT_ONCE, low=1, high=max(sizes))
        yield Range(metric=ACROSS_ERROR, quantity=PROCESSES, low=1, high=2 if across else 1)
    loads = [result.load for _, result in measurements if isinstance(result, SteadyResult)]
    if loads:
        rates = [load.images / load.elapsed_s for load in loads]
        yield Range(metric=ENERGY_ERROR, quantity="images/s", low=min(rates), high=max(rates))
        powers_w = [load.power_w for load in loads]
        yield Range(metric=ENERGY_ERROR, quantity="W", low=min(powers_w), high=max(powers_w))
