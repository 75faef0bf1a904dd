"""Measurements in, a profile out, with its errors on points that no fit saw.

It fits by calling the functions that the simulator replays (`sim.device`, `sim.interpolation`): one formula. It
touches no device, and does not know how anything was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from calibrate.bench import HoldResult, SoloResult, SteadyResult, TimesResult, TogetherResult
from calibrate.costs import Key, ModelCosts
from calibrate.errors import (
    ACROSS_ERROR,
    CONCURRENCY_ERROR,
    ENERGY_ERROR,
    REPEATABILITY,
    SOLO_ERROR,
    solo_errors,
    stated,
)
from calibrate.measure import DISTURBED, Measurement, undisturbed
from calibrate.pace import UNSEEN, PaceLook
from calibrate.plan import Dispatch, Hold, Point, Solo, Steady, Together, Transfer
from calibrate.samples import Pooled
from calibrate.sharing import (
    ObservedSet,
    below_cap,
    cross_validated,
    demand_of,
    fit_concurrency,
    fit_power_cap,
    observed_sets,
    predicted_and_seen,
    sharing_from,
)
from policies.vocabulary import Provenance
from sim.interpolation import ascending, interpolate_latency_s, interpolate_linear
from sim.profile import (
    AT_ONCE,
    JITTER_QUANTILES,
    SCHEMA,
    Concurrency,
    DeviceInfo,
    InstanceCost,
    LatencyCurve,
    Link,
    Memory,
    Pace,
    Power,
    Profile,
    Range,
    Sensor,
    StatedError,
)

FEWEST_POWER_POINTS = 3  # to fit joules per image on
MOST_SLOW = 0.95  # of the time: a device that is hardly ever at full pace
SHORTEST_SPELL_S = 0.01

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What is known of a device besides what was measured on it.

    Attributes:
        cores: how many cores its CPU time is a share of (1 for a GPU: the launching thread's).
        bandwidth_bytes_s: of its memory.
        power: idle powers and the cap; its provenance holds where no power was measured.
        context_bytes: device memory of a process that holds no instance.
    """

    info: DeviceInfo
    execution: Mapping[str, str]
    cores: int
    bandwidth_bytes_s: float
    power: Power
    sensor: Sensor
    context_bytes: int


@dataclass(frozen=True, slots=True)
class SoloPoint:
    """All rounds of a solo point; `cpu_share` is of the device's cores, while a pass runs."""

    times: Pooled
    cpu_share: float
    round_medians_s: tuple[float, ...]


def fit(
    measurements: Sequence[Measurement],
    costs: ModelCosts,
    facts: DeviceFacts,
    name: str,
    omitted: Sequence[str] = (),
    seen: PaceLook = UNSEEN,
) -> Profile:
    """The profile of one device running one model.

    Args:
        omitted: what was left out, in words; what that may cost is added.
        seen: how the device's own speed came and went.

    Raises:
        ValueError: a key of the model was not measured (the profile would not be whole).
    """
    pace = _pace_fit(measurements, seen)
    solo = _solo_points(measurements, facts.cores, pace, held_out=False)
    steady = _steady_points(measurements, facts.power, held_out=False)
    curves = _curves(solo, steady, costs, facts)
    hosted = facts.info.kind == "cpu"
    sets = _observed(measurements, pace, held_out=False)
    concurrency = fit_concurrency(below_cap(sets, curves, facts.power, hosted=hosted), curves, hosted=hosted)
    power = fit_power_cap(sets, curves, concurrency, facts.power, hosted=hosted) if steady else facts.power
    instances = tuple(_instance(step, result) for step, result in measurements if isinstance(step, Hold))
    errors = tuple(_errors(measurements, solo, curves, concurrency, costs, facts, pace))
    info = facts.info.model_copy(update={"stamps": {**facts.info.stamps, **_disturbances(measurements)}})
    return Profile(
        schema=SCHEMA,
        name=name,
        provenance=Provenance.MEASURED,
        device=info,
        model=costs.info,
        execution=dict(facts.execution),
        dispatch_s=_dispatch_s(measurements),
        latency=tuple(curves[key] for key in sorted(curves)),
        memory=Memory(context_bytes=facts.context_bytes, instances=instances),
        concurrency=concurrency,
        power=_power(power, measurements),
        sensor=facts.sensor,
        pace=pace.model,
        link=_link(measurements),
        errors=errors,
        ranges=tuple(_ranges(measurements, curves)),
        omitted=tuple(_costs_of_omissions(omitted, errors)),
    )


# --------------------------------------------------------------------------------------------------------------- pace


@dataclass(frozen=True, slots=True)
class PaceFit:
    """How the device's own speed came and went.

    Attributes:
        factor: how much longer passes take in a slow spell.
        reference_exponent: what makes the reference x times slower makes passes x to this power slower.
        model: for the profile; None where there was no reference.
    """

    factor: float
    reference_exponent: float
    model: Pace | None


def _pace_fit(measurements: Iterable[Measurement], seen: PaceLook) -> PaceFit:
    if not seen.best_s:
        return PaceFit(1.0, 1.0, None)
    solos = [r for s, r in measurements if isinstance(s, Solo) and isinstance(r, SoloResult) and not s.held_out]
    both = [(result, result.slow) for result in solos if result.slow is not None]
    ratios = [Pooled.of([slow]).quantile(0.5) / Pooled.of([full.samples]).quantile(0.5) for full, slow in both]
    factor = max(1.0, float(np.median(ratios))) if ratios else seen.slow_reference
    slow_s = sum(slow.count * Pooled.of([slow]).mean for _, slow in both)
    slow_s += sum(result.samples.count * Pooled.of([result.samples]).mean for result in solos if result.is_slow)
    full_s = sum(r.samples.count * Pooled.of([r.samples]).mean for r in solos if not r.is_slow)
    share = min(MOST_SLOW, slow_s / (slow_s + full_s)) if solos else seen.slow_share
    exponent = float(np.log(factor) / np.log(seen.slow_reference)) if seen.slow_reference > 1 else 1.0
    model = Pace(
        slow_factor=factor,
        slow_share=share,
        mean_slow_s=seen.mean_slow_s or SHORTEST_SPELL_S,
        reference_s=seen.best_s,
        reference_exponent=exponent,
        provenance=Provenance.MEASURED,
    )
    return PaceFit(factor, exponent, model)


def _observed(measurements: Iterable[Measurement], pace: PaceFit, *, held_out: bool) -> list[ObservedSet]:
    return observed_sets(measurements, held_out=held_out, reference_exponent=pace.reference_exponent)


def _disturbances(measurements: Sequence[Measurement]) -> dict[str, str]:
    """How often others took the device or a part of its speed, in words; nothing where none did."""
    results = [result for _, result in measurements if isinstance(result, SoloResult | TogetherResult)]
    again = sum(result.tries > 1 for result in results)
    still = sum(result.disturbance > DISTURBED for result in results)
    if not again:
        return {}
    return {"disturbed": f"{again} of {len(results)} steps were measured again, {still} stayed disturbed"}


# ------------------------------------------------------------------------------------------------------------ latency


def _solo_points(
    measurements: Iterable[Measurement], cores: int, pace: PaceFit, *, held_out: bool
) -> dict[Point, SoloPoint]:
    rounds: dict[Point, list[SoloResult]] = {}
    for step, result in measurements:
        if isinstance(step, Solo) and isinstance(result, SoloResult) and step.held_out == held_out:
            rounds.setdefault(step.point, []).append(result)
    return {point: _solo_point(undisturbed(results), cores, pace.factor) for point, results in rounds.items()}


def _solo_point(results: Sequence[SoloResult], cores: int, slow_factor: float) -> SoloPoint:
    """At full pace: what never had it is brought there."""
    rounds = [r.samples.scaled(1 / slow_factor) if r.is_slow else r.samples for r in results]
    medians = tuple(Pooled.of([samples]).quantile(0.5) for samples in rounds)
    share = sum(map(_cpu_share, results)) / len(results) / cores
    return SoloPoint(Pooled.of(rounds), min(1.0, max(0.0, share)), medians)


def _cpu_share(result: SoloResult) -> float:
    """CPU time over the passes' own; what other processes took in between belongs to no pass of ours."""
    every = [result.samples] if result.slow is None else [result.samples, result.slow]
    passes_s = sum(samples.count * Pooled.of([samples]).mean for samples in every)
    return result.cpu_s / (passes_s * (1 - min(0.99, result.disturbed_share)))


def _curves(
    solo: Mapping[Point, SoloPoint],
    steady: Mapping[Point, tuple[float, float | None]],
    costs: ModelCosts,
    facts: DeviceFacts,
) -> dict[Key, LatencyCurve]:
    bare = {key: _bare_curve(key, solo, costs, facts) for key in costs.keys}
    if facts.info.kind == "cuda":
        bare = _with_busy_shares(bare, steady)
    joules = _EnergyModel(steady, bare, costs, facts.power)
    return {
        key: curve.model_copy(
            update={"energy_j_per_image": tuple(joules.per_image(curve, batch) for batch in curve.batches)}
        )
        for key, curve in bare.items()
    }


def _bare_curve(key: Key, solo: Mapping[Point, SoloPoint], costs: ModelCosts, facts: DeviceFacts) -> LatencyCurve:
    """A key's curve; utilization is the CPU share (right for a CPU, replaced for a GPU), energy is still nothing."""
    points = sorted((point, found) for point, found in solo.items() if point.key == key)
    if not points:
        raise ValueError(f"no measurement of {key}: every key must be measured")
    times = [found.times for _, found in points]
    shares = tuple(found.cpu_share for _, found in points)
    moved = [costs.keys[key].batch_bytes(point.batch) / found.times.mean for point, found in points]
    segment, width, previous_width = key
    medians = [pooled.quantile(0.5) for pooled in times]
    return LatencyCurve(
        segment=segment,
        width=width,
        previous_width=previous_width,
        batches=tuple(point.batch for point, _ in points),
        mean_s=tuple(pooled.mean for pooled in times),
        p50_s=tuple(medians),
        p95_s=tuple(pooled.quantile(0.95) for pooled in times),
        p99_s=tuple(pooled.quantile(0.99) for pooled in times),
        samples=tuple(pooled.count for pooled in times),
        utilization=shares,
        energy_j_per_image=(0.0,) * len(points),
        host_share=shares,
        bandwidth_share=tuple(min(1.0, rate / facts.bandwidth_bytes_s) for rate in moved),
        jitter=tuple(
            tuple(value / median for value in pooled.slices(JITTER_QUANTILES))
            for pooled, median in zip(times, medians, strict=True)
        ),
    )


# ---------------------------------------------------------------------------------------------- utilization and energy


def _steady_points(
    measurements: Iterable[Measurement], power: Power, *, held_out: bool
) -> dict[Point, tuple[float, float | None]]:
    """Joules per image above context idle, and the sensor's utilization, of each power point."""
    found: dict[Point, tuple[float, float | None]] = {}
    for step, result in measurements:
        if isinstance(step, Steady) and isinstance(result, SteadyResult) and step.held_out == held_out:
            load = result.load
            dynamic_w = max(0.0, load.power_w - power.context_idle_w)
            found[step.point] = dynamic_w * load.elapsed_s / load.images, load.utilization
    return found


def _with_busy_shares(
    curves: Mapping[Key, LatencyCurve], steady: Mapping[Point, tuple[float, float | None]]
) -> dict[Key, LatencyCurve]:
    """Utilization of a GPU: what its sensor showed, as an ascending function of demand; demand itself without one."""
    shown = sorted(
        (demand_of(curves[point.key], point.batch), utilization)
        for point, (_, utilization) in steady.items()
        if utilization is not None
    )
    nodes = [d for d, _ in shown] or [0.0, 1.0]
    values = ascending([u for _, u in shown] or [0.0, 1.0])

    def along(curve: LatencyCurve) -> tuple[float, ...]:
        return tuple(float(np.interp(demand_of(curve, batch), nodes, values)) for batch in curve.batches)

    return {key: curve.model_copy(update={"utilization": along(curve)}) for key, curve in curves.items()}


class _EnergyModel:
    """Joules per image above context idle: fitted on power points where there are enough, else idle to cap by use."""

    def __init__(
        self,
        steady: Mapping[Point, tuple[float, float | None]],
        curves: Mapping[Key, LatencyCurve],
        costs: ModelCosts,
        power: Power,
    ) -> None:
        self._measured = {point: joules for point, (joules, _) in steady.items()}
        self._costs = costs
        self._range_w = power.cap_w - power.context_idle_w
        points = [point for point, joules in self._measured.items() if joules > 0]
        self._weights: Floats | None = None
        if len(points) >= FEWEST_POWER_POINTS:
            joules = np.asarray([self._measured[point] for point in points])
            features = np.stack([self._features(curves[point.key], point.batch) for point in points])
            self._weights = nnls(features / joules[:, None], np.ones(len(points)))[0]

    def per_image(self, curve: LatencyCurve, batch: int) -> float:
        """k of a batch of the curve's key."""
        known = self._measured.get(Point(curve.segment, curve.width, curve.previous_width, batch))
        if known is not None:
            return known
        features = self._features(curve, batch)
        if self._weights is None:
            return float(self._range_w * features[2])
        return float(features @ self._weights)

    def _features(self, curve: LatencyCurve, batch: int) -> Floats:
        """(MACs, bytes, busy seconds) of one image."""
        cost = self._costs.keys[curve.segment, curve.width, curve.previous_width]
        busy_s = interpolate_linear(curve.batches, curve.utilization, batch) * interpolate_latency_s(
            curve.batches, curve.mean_s, batch
        )
        return np.asarray([float(cost.macs), cost.batch_bytes(batch) / batch, busy_s / batch])


def _power(power: Power, measurements: Iterable[Measurement]) -> Power:
    found = [result.load.provenance for _, result in measurements if isinstance(result, SteadyResult)]
    return power.model_copy(update={"provenance": Provenance.weakest(*found)}) if found else power


# ------------------------------------------------------------------------------------------ memory, dispatch and link


def _instance(step: Hold, result: object) -> InstanceCost:
    assert isinstance(result, HoldResult)
    first, *again = result.loads_s
    return InstanceCost(
        segment=step.segment,
        width=step.width,
        vram_bytes=max(1, result.vram_bytes),
        load_s=first,
        reload_s=float(np.median(again or [first])),
        unload_s=float(np.median(result.unloads_s)),
    )


def _dispatch_s(measurements: Iterable[Measurement]) -> float:
    found = [r.samples for step, r in measurements if isinstance(step, Dispatch) and isinstance(r, TimesResult)]
    return max(0.0, Pooled.of(found).quantile(0.5)) if found else 0.0


def _link(measurements: Iterable[Measurement]) -> Link | None:
    """Latency and bandwidth of the local transport: least squares in the relative error of the medians."""
    medians = {
        step.size_bytes: Pooled.of([result.samples]).quantile(0.5)
        for step, result in measurements
        if isinstance(step, Transfer) and isinstance(result, TimesResult)
    }
    if len(medians) < 2:
        return None
    sizes, times = np.asarray(list(medians), dtype=np.float64), np.asarray(list(medians.values()))
    (latency_s, s_per_byte), _ = nnls(np.stack([1 / times, sizes / times], axis=1), np.ones(len(times)))
    bandwidth_bytes_s = 1 / s_per_byte if s_per_byte > 0 else float(sizes.max() / times.min())
    return Link(latency_s=float(latency_s), bandwidth_bytes_s=float(bandwidth_bytes_s))


# ------------------------------------------------------------------------------------------------- errors and ranges


def _errors(
    measurements: Sequence[Measurement],
    solo: Mapping[Point, SoloPoint],
    curves: Mapping[Key, LatencyCurve],
    concurrency: Concurrency,
    costs: ModelCosts,
    facts: DeviceFacts,
    pace: PaceFit,
) -> Iterator[StatedError]:
    held_out = _solo_points(measurements, facts.cores, pace, held_out=True)
    yield from solo_errors(
        {point: found.times for point, found in held_out.items()},
        curves,
        {point: found.round_medians_s for point, found in solo.items()},
    )
    hosted = facts.info.kind == "cpu"
    sharing, of_all = sharing_from(concurrency, hosted=hosted), _observed(measurements, pace, held_out=False)
    for figure, across in ((CONCURRENCY_ERROR, False), (ACROSS_ERROR, True)):
        sets = [s for s in _observed(measurements, pace, held_out=True) if s.across == across]
        yield from stated(figure, [pair for s in sets for pair in predicted_and_seen(s, curves, sharing)])
    yield from stated(CONCURRENCY_ERROR, cross_validated(of_all, curves, hosted=hosted), "cross-validated")
    fitted = _steady_points(measurements, facts.power, held_out=False)
    seen_j = {p: j for p, (j, _) in _steady_points(measurements, facts.power, held_out=True).items() if j > 0}
    yield from stated(ENERGY_ERROR, [(_energy_at(curves[p.key], p.batch), j) for p, j in seen_j.items()])
    yield from stated(ENERGY_ERROR, _energy_left_out(fitted, curves, costs, facts.power), "cross-validated")


def _energy_at(curve: LatencyCurve, batch: int) -> float:
    return interpolate_linear(curve.batches, curve.energy_j_per_image, batch)


def _energy_left_out(
    steady: Mapping[Point, tuple[float, float | None]],
    curves: Mapping[Key, LatencyCurve],
    costs: ModelCosts,
    power: Power,
) -> list[tuple[float, float]]:
    """Each power point by the others."""
    return [
        (_EnergyModel({p: v for p, v in steady.items() if p != left}, curves, costs, power).per_image(curve, batch), j)
        for left, (j, _) in steady.items()
        for curve, batch in [(curves[left.key], left.batch)]
        if j > 0 and len(steady) > FEWEST_POWER_POINTS
    ]


def _ranges(measurements: Sequence[Measurement], curves: Mapping[Key, LatencyCurve]) -> Iterator[Range]:
    limit = min(curve.batches[-1] for curve in curves.values())
    yield Range(figure=SOLO_ERROR, quantity="batch", low=1, high=limit)
    sizes = [len(step.points) for step, _ in measurements if isinstance(step, Together) and not step.held_out]
    if sizes:
        yield Range(figure=CONCURRENCY_ERROR, quantity=AT_ONCE, low=1, high=max(sizes))
    loads = [result.load for _, result in measurements if isinstance(result, SteadyResult)]
    if loads:
        rates = [load.images / load.elapsed_s for load in loads]
        yield Range(figure=ENERGY_ERROR, quantity="images/s", low=min(rates), high=max(rates))
        powers_w = [load.power_w for load in loads]
        yield Range(figure=ENERGY_ERROR, quantity="W", low=min(powers_w), high=max(powers_w))


def _costs_of_omissions(omitted: Sequence[str], errors: Sequence[StatedError]) -> Iterator[str]:
    """What was left out, and what it may cost: from the errors of what was not."""
    for words in omitted:
        for start, figure, kind, told in _TELLING:
            found = [e for e in errors if (e.figure, e.kind) == (figure, kind)]
            if words.startswith(start) and found:
                words += f" ({told}: {found[0].mean_abs_pct:.1f} % on average)"
        yield words


# How an omission begins, the figure and kind of error that tells its cost, and in which words.
_TELLING: tuple[tuple[str, str, str, str], ...] = (
    ("batch sizes", SOLO_ERROR, "cross-validated", "predicting a batch size from the others is wrong by"),
    ("rounds", REPEATABILITY, "repeatability", "a round is off its point's median by"),
    ("repeats", REPEATABILITY, "repeatability", "a round is off its point's median by"),
    ("concurrency sets", CONCURRENCY_ERROR, "cross-validated", "predicting a set from the others is wrong by"),
    ("power points", ENERGY_ERROR, "cross-validated", "predicting a point from the others is wrong by"),
)
