"""Fitting of a profile to measurements, with its errors on points that no fit used.

It fits by calling the functions that the simulator replays (`sim.device`, `sim.interpolation`): one formula. It touches
no device, and is independent of how measurements were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from calibrate.bench import LoadCycleResult, Result, SoloResult, SteadyResult, TimesResult, TogetherResult
from calibrate.costs import Key, ModelCosts
from calibrate.energy import (
    EnergyModel,
    PowerPoint,
    held_out_energy,
    left_out_energy,
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
    REPEATABILITY,
    SOLO_ERROR,
    other_errors,
    solo_errors,
    stated,
)
from calibrate.gpu import beside_load_factor, captured_passes, path_errors, round_medians_s, with_points
from calibrate.measure import DISTURBED, Measurement
from calibrate.plan import Dispatch, InstancePoints, LoadCycle, Solo, Together, Transfer
from calibrate.samples import Pooled
from calibrate.sharing import (
    ObservedSet,
    below_cap,
    cross_validated,
    fit_concurrency,
    fit_power_cap,
    observed_sets,
    predicted_and_seen,
    sharing_from,
)
from calibrate.slowdown import EXPONENT, SHORTEST_SPELL_S, SLACK, UNSEEN, SlowdownLook, Speed
from calibrate.solo import SoloFit, SoloPoint, fit_solo, solo_points
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
    LatencyFit,
    Link,
    Power,
    Profile,
    Range,
    SensorModel,
    Slowdown,
    StatedError,
)

FULL_CLOCK = 0.95  # of the highest observed; solo points below it were throttled, or had not ramped up
MAX_SLOW = 0.95  # of the time: above it, a device is hardly ever at full speed
MIN_OF_EACH = 3  # fast and slow passes of a point: with fewer, passes at the ends of a spell dominate
MIN_RATIOS = 5  # points with spells, to estimate their effect on passes
EXPONENTS = (0.3, 1.5)  # plausible range of how a pass slows down with the reference


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
    measurements: Sequence[Measurement],
    costs: ModelCosts,
    facts: DeviceFacts,
    name: str,
    omitted: Sequence[str] = (),
    seen: SlowdownLook = UNSEEN,
    by: LatencyFit | None = None,
) -> Profile:
    """Fit the profile of one device running one model.

    Args:
        omitted: descriptions of omissions; their possible cost is added.
        seen: observed variation of the device's own speed.
        by: the way of fitting solo latency; None for the better by cross-validation.

    Raises:
        ValueError: a key of the model was not measured (the profile would not be whole).
    """
    measurements, seen = _hindsight(with_points(measurements), seen)
    slowdown = _slowdown_fit(measurements, seen)
    solo = solo_points(measurements, facts.cores, slowdown.speed, held_out=False)
    steady = power_points(measurements, facts.power, held_out=False)
    fitted = fit_solo(solo, costs, facts.bandwidth_bytes_s, "each key" if facts.padded_sizes else by)
    curves = _with_energy(fitted.curves, steady, costs, facts)
    hosted = facts.info.kind == "cpu"
    sets = _observed(measurements, slowdown, held_out=False)
    concurrency = fit_concurrency(below_cap(sets, curves, facts.power, hosted=hosted), curves, hosted=hosted)
    power = fit_power_cap(sets, curves, concurrency, facts.power, hosted=hosted) if steady else facts.power
    errors = tuple(_errors(measurements, solo, fitted, curves, concurrency, costs, facts, slowdown))
    captured = captured_passes(measurements)
    info = facts.info.model_copy(
        update={"stamps": {**facts.info.stamps, **_disturbances(measurements), **_clocks(measurements)}}
    )
    return Profile(
        schema=SCHEMA,
        name=name,
        provenance=Provenance.MEASURED,
        device=info,
        model=costs.info,
        execution={**facts.execution, **({"captured": captured} if captured else {})},
        padded_sizes=facts.padded_sizes,
        beside_load=beside_load_factor(measurements),
        dispatch_s=_dispatch_s(measurements),
        latency=tuple(curves[key] for key in sorted(curves)),
        latency_fit=fitted.by,
        memory=DeviceMemory(context_bytes=facts.context_bytes, instances=_instances(measurements)),
        concurrency=concurrency,
        power=with_awake(metered(power, measurements), measurements, curves, facts.fall_s),
        sensor=facts.sensor,
        slowdown=slowdown.model,
        link=_link(measurements),
        errors=errors,
        ranges=tuple(_ranges(measurements, curves)),
        omitted=tuple(_costs_of_omissions(omitted, errors)),
    )


# ----------------------------------------------------------------------------------------------------------- slowdown


@dataclass(frozen=True, slots=True)
class SlowdownFit:
    """Variation of the device's own speed.

    Attributes:
        speed: relation of reference times to passes.
        model: model for the profile; None without a reference.
    """

    speed: Speed
    model: Slowdown | None


def _slowdown_fit(measurements: Iterable[Measurement], seen: SlowdownLook) -> SlowdownFit:
    """Fit the observed slow spells; their effect on passes follows from points with passes of both kinds."""
    if not seen.best_s:
        return SlowdownFit(Speed(0.0), None)
    solos = [r for s, r in measurements if isinstance(s, Solo) and isinstance(r, SoloResult) and not s.held_out]
    both = [
        (Pooled.of([r.slow]).quantile(0.5) / Pooled.of([r.samples]).quantile(0.5), r.slow_reference_s / r.reference_s)
        for r in solos
        if r.slow is not None and r.slow_reference_s and min(r.slow.count, r.samples.count) >= MIN_OF_EACH
    ]
    exponent, factor = EXPONENT, seen.slow_reference**EXPONENT
    if len(both) >= MIN_RATIOS:
        factors, references = np.transpose(both)
        exponent = float(np.clip(np.median(np.log(factors) / np.log(references)), *EXPONENTS))
        factor = float(np.median(references)) ** exponent
    slow, every = sum(r.slow_passes for r in solos), sum(r.passes for r in solos)
    slow_s, full_s = factor * slow, float(every - slow)
    model = Slowdown(
        slow_factor=factor,
        slow_share=min(MAX_SLOW, slow_s / (slow_s + full_s)) if every else seen.slow_share,
        mean_slow_s=seen.mean_slow_s or SHORTEST_SPELL_S,
        reference_s=seen.full_s,
        reference_exponent=exponent,
        provenance=Provenance.MEASURED,
    )
    return SlowdownFit(Speed(seen.full_s, exponent), model)


def _hindsight(measurements: Sequence[Measurement], seen: SlowdownLook) -> tuple[list[Measurement], SlowdownLook]:
    """Reclassify by the best reference of all: full speed next to a worse one was a slow spell."""
    least = [r.least_reference_s for _, r in measurements if isinstance(r, SoloResult) and r.least_reference_s]
    if not least or SLACK * min(least) > seen.best_s:
        return list(measurements), seen
    best_s = min(least)

    def corrected(result: Result) -> Result:
        if not isinstance(result, SoloResult) or result.reference_s <= SLACK * best_s:
            return result
        return replace(result, is_slow=True, slow=None, slow_passes=result.passes)

    return [(step, corrected(result)) for step, result in measurements], replace(seen, best_s=best_s, full_s=best_s)


def _observed(measurements: Iterable[Measurement], slowdown: SlowdownFit, *, held_out: bool) -> list[ObservedSet]:
    return observed_sets(measurements, held_out=held_out, reference_exponent=slowdown.speed.exponent)


def _disturbances(measurements: Sequence[Measurement]) -> dict[str, str]:
    """Describe how often other programs took the device, or it ran below full speed; empty if never."""
    results = [result for _, result in measurements if isinstance(result, SoloResult | TogetherResult)]
    again = sum(result.tries > 1 for result in results)
    still = sum(result.disturbance > DISTURBED for result in results)
    if not again:
        return {}
    taken, slow = sum(result.disturbed_share > DISTURBED for result in results), sum(r.is_slow for r in results)
    text = f"{again} of {len(results)} steps were measured again, {still} stayed disturbed"
    return {"disturbed": f"{text}: {taken} by other programs, {slow} below full speed"}


def _clocks(measurements: Sequence[Measurement]) -> dict[str, str]:
    """Describe a GPU's clocks at solo points: latencies of points at lower clocks are for those clocks."""
    clocks = [result.clock_mhz for _, result in measurements if isinstance(result, SoloResult) and result.clock_mhz]
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
    cycles: dict[tuple[int, float], list[LoadCycleResult]] = {}
    for step, result in measurements:
        if isinstance(step, LoadCycle | InstancePoints) and isinstance(result, LoadCycleResult):
            cycles.setdefault((step.segment, step.width), []).append(result)
    return tuple(_instance(*of, results) for of, results in sorted(cycles.items()))


def _instance(segment: int, width: float, results: Sequence[LoadCycleResult]) -> InstanceCost:
    first, *again = (load_s for result in results for load_s in result.loads_s)
    return InstanceCost(
        segment=segment,
        width=width,
        vram_bytes=max(1, *(result.vram_bytes for result in results)),
        load_s=first,
        reload_s=float(np.median(again or [first])),
        unload_s=float(np.median([unload_s for result in results for unload_s in result.unloads_s])),
    )


def _dispatch_s(measurements: Iterable[Measurement]) -> float:
    samples = [r.samples for step, r in measurements if isinstance(step, Dispatch) and isinstance(r, TimesResult)]
    return max(0.0, Pooled.of(samples).quantile(0.5)) if samples else 0.0


def _link(measurements: Iterable[Measurement]) -> Link | None:
    """Return latency and bandwidth of the local transport."""
    medians = {
        step.size_bytes: Pooled.of([result.samples]).quantile(0.5)
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
    solo: Mapping[Point, SoloPoint],
    fitted: SoloFit,
    curves: Mapping[Key, LatencyCurve],
    concurrency: Concurrency,
    costs: ModelCosts,
    facts: DeviceFacts,
    slowdown: SlowdownFit,
) -> Iterator[StatedError]:
    held_out = {
        point: fit.times for point, fit in solo_points(measurements, facts.cores, slowdown.speed, held_out=True).items()
    }
    fitted_rounds = {point: fit.round_medians_s for point, fit in solo.items()}
    rounds: Mapping[Point, Sequence[float]] = round_medians_s(measurements) or fitted_rounds
    left_out_solo = () if facts.padded_sizes else fitted.left_out[fitted.by]  # no batch size is between padded sizes
    yield from solo_errors(held_out, curves, rounds, left_out_solo)
    yield from stated(PATH_ERROR, path_errors(measurements, curves))
    for by, others in fitted.others.items():
        yield from other_errors(by, held_out, others, rounds, fitted.left_out[by])
    hosted = facts.info.kind == "cpu"
    sharing = sharing_from(concurrency, hosted=hosted)
    fitted_sets, held_sets = (
        below_cap(_observed(measurements, slowdown, held_out=held), curves, facts.power, hosted=hosted)
        for held in (False, True)
    )
    left_out = cross_validated(fitted_sets, curves, hosted=hosted)
    for metric, across in ((CONCURRENCY_ERROR, False), (ACROSS_ERROR, True)):
        pairs = [pair for s in held_sets if s.across == across for pair in predicted_and_seen(s, curves, sharing)]
        yield from stated(metric, pairs)
        yield from stated(metric, left_out[across], "cross-validated")
    powered = power_points(measurements, facts.power, held_out=False)
    yield from stated(ENERGY_ERROR, held_out_energy(power_points(measurements, facts.power, held_out=True), curves))
    yield from stated(ENERGY_ERROR, left_out_energy(powered, curves, costs, facts.power), "cross-validated")


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


def _costs_of_omissions(omitted: Sequence[str], errors: Sequence[StatedError]) -> Iterator[str]:
    """Yield omissions with their possible cost, from the errors of what was not omitted."""
    for words in omitted:
        for start, metric, kind, wording in _TELLING:
            chosen = [e for e in errors if (e.metric, e.kind) == (metric, kind)]
            if words.startswith(start) and chosen:
                words += f" ({wording}: {chosen[0].mean_abs_pct:.1f} % on average)"
        yield words


# The start of an omission, the metric and kind of error that determine its cost, and its description.
_TELLING: tuple[tuple[str, str, str, str], ...] = (
    ("batch sizes", SOLO_ERROR, "cross-validated", "predicting a batch size from the others is wrong by"),
    ("rounds", REPEATABILITY, "repeatability", "two rounds of a point lie apart by"),
    ("repeats", REPEATABILITY, "repeatability", "two rounds of a point lie apart by"),
    ("concurrency sets", CONCURRENCY_ERROR, "cross-validated", "predicting a set from the others is wrong by"),
    ("power points", ENERGY_ERROR, "cross-validated", "predicting a point from the others is wrong by"),
)
