"""Fitting of a profile to measurements, with its errors.

It fits by calling the functions that the simulator replays (`sim.device`, `sim.interpolation`): one formula. It touches
no device, and is independent of how measurements were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from calibrate.bench import BesideLoadResult, LoadResult, PathsResult, SteadyResult, TimesResult, TogetherResult
from calibrate.costs import Key, ModelCosts
from calibrate.energy import (
    EnergyModel,
    PowerPoint,
    held_out_energy,
    metered,
    power_points,
    with_awake,
    with_busy_shares,
)
from calibrate.errors import (
    ACROSS_ERROR,
    CONCURRENCY_ERROR,
    ENERGY_ERROR,
    PATH_ERROR,
    SOLO_ERROR,
    Pairs,
    left_out,
    predict_solo_s,
    repeatability,
    stated,
)
from calibrate.measure import DISTURBED, Measurement
from calibrate.plan import Dispatch, InstancePoints, Paths, Together, Transfer
from calibrate.sharing import (
    below_cap,
    fit_concurrency,
    fit_power_cap,
    observed_sets,
    predicted_and_seen,
    sharing_from,
)
from calibrate.slowdown import Speed
from calibrate.solo import Rounds, fit_slowdown, has_full_speed, round_medians_s, rounds_of, solo_curve
from hw.transport.messages import Point
from policies.vocabulary import Provenance
from sim.profile import (
    AT_ONCE,
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
    StatedError,
)

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
    still = sum(map(max, is_taken, is_slow))
    text = f"of {len(is_taken)} points and sets, {still} stayed disturbed"
    causes = f"{sum(is_taken)} by other programs, {sum(is_slow)} below full speed"
    return {"disturbed": f"{text}: {causes}"} if still else {}


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
    seen = [result.beside_s / result.quiet_s for _, result in measurements if isinstance(result, BesideLoadResult)]
    return max(1.0, float(np.median(seen))) if seen else 1.0


def _paths(measurements: Iterable[Measurement], curves: Mapping[Key, LatencyCurve]) -> Pairs:
    """Return (predicted, measured) seconds of each path: the sum of its hops' medians, and its own."""
    return [
        (sum(predict_solo_s(curves[point.key], point.batch) for point in path), median_s)
        for step, result in measurements
        if isinstance(step, Paths) and isinstance(result, PathsResult)
        for path, median_s in zip(step.paths, result.medians_s, strict=True)
    ]


def _dispatch_s(measurements: Iterable[Measurement]) -> float:
    results = [r for step, r in measurements if isinstance(step, Dispatch) and isinstance(r, TimesResult)]
    return float(np.median([s for result in results for s in result.times_s])) if results else 0.0


def _link(measurements: Iterable[Measurement]) -> Link | None:
    """Return latency and bandwidth of the local transport."""
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
        yield from stated(SOLO_ERROR, [pair for c in curves.values() for pair in left_out(c)], "cross-validated")
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
