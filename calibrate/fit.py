"""Measurements in, a profile out, with its errors on points that no fit saw.

It fits by calling the functions that the simulator replays (`sim.device`, `sim.interpolation`): one formula. It
touches no device, and does not know how anything was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares, nnls

from calibrate.bench import HoldResult, SoloResult, SteadyResult, TimesResult, TogetherResult
from calibrate.costs import Key, ModelCosts
from calibrate.measure import Measurement
from calibrate.plan import Dispatch, Hold, Point, Solo, Steady, Together, Transfer
from calibrate.samples import Pooled
from policies.vocabulary import Provenance
from sim.device import demand, slow_downs
from sim.interpolation import ascending, interpolate_latency_s, interpolate_linear, latency_table_s
from sim.profile import (
    JITTER_QUANTILES,
    SCHEMA,
    Concurrency,
    DeviceInfo,
    InstanceCost,
    LatencyCurve,
    Link,
    Memory,
    Power,
    Profile,
    Sensor,
    StatedError,
)

SOLO_ERROR = "solo latency"
CONCURRENCY_ERROR = "slow-down under concurrency"
ENERGY_ERROR = "energy per image"
REPEATABILITY = "repeatability of solo latency between rounds"

Floats = npt.NDArray[np.float64]
ErrorKind = Literal["held out", "cross-validated", "repeatability"]


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
) -> Profile:
    """The profile of one device running one model.

    Raises:
        ValueError: a key of the model was not measured (the profile would not be whole).
    """
    solo = _solo_points(measurements, facts.cores, held_out=False)
    steady = _steady_points(measurements, facts.power, held_out=False)
    curves = _curves(solo, steady, costs, facts)
    concurrency = fit_concurrency(_sets(measurements, held_out=False), curves)
    instances = tuple(_instance(step, result) for step, result in measurements if isinstance(step, Hold))
    return Profile(
        schema=SCHEMA,
        name=name,
        provenance=Provenance.MEASURED,
        device=facts.info,
        model=costs.info,
        execution=dict(facts.execution),
        dispatch_s=_dispatch_s(measurements),
        latency=tuple(curves[key] for key in sorted(curves)),
        memory=Memory(context_bytes=facts.context_bytes, instances=instances),
        concurrency=concurrency,
        power=_power(facts.power, measurements),
        sensor=facts.sensor,
        link=_link(measurements),
        errors=tuple(_errors(measurements, solo, curves, concurrency, costs, facts)),
        omitted=tuple(omitted),
    )


# ------------------------------------------------------------------------------------------------------------ latency


def _solo_points(measurements: Iterable[Measurement], cores: int, *, held_out: bool) -> dict[Point, SoloPoint]:
    rounds: dict[Point, list[SoloResult]] = {}
    for step, result in measurements:
        if isinstance(step, Solo) and isinstance(result, SoloResult) and step.held_out == held_out:
            rounds.setdefault(step.point, []).append(result)
    return {point: _solo_point(results, cores) for point, results in rounds.items()}


def _solo_point(results: Sequence[SoloResult], cores: int) -> SoloPoint:
    """CPU time a pass over the median pass: what other processes took in between belongs to no pass of ours."""
    times = Pooled.of(result.samples for result in results)
    cpu_s = sum(result.cpu_s for result in results) / times.count
    medians = tuple(Pooled.of([result.samples]).quantile(0.5) for result in results)
    return SoloPoint(times, min(1.0, max(0.0, cpu_s / (cores * times.quantile(0.5)))), medians)


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
        if len(points) >= 3:
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
        busy_s = interpolate_linear(curve.batches, curve.utilization, batch) * _mean_s(curve, batch)
        return np.asarray([float(cost.macs), cost.batch_bytes(batch) / batch, busy_s / batch])


def _power(power: Power, measurements: Iterable[Measurement]) -> Power:
    found = [result.load.provenance for _, result in measurements if isinstance(result, SteadyResult)]
    return power.model_copy(update={"provenance": Provenance.weakest(*found)}) if found else power


# -------------------------------------------------------------------------------------------------------- concurrency


@dataclass(frozen=True, slots=True)
class ObservedSet:
    """A concurrency set, and how much slower than alone each member was (None where it finished nothing)."""

    points: tuple[Point, ...]
    slow_downs: tuple[float | None, ...]


def _sets(measurements: Iterable[Measurement], *, held_out: bool) -> list[ObservedSet]:
    found = []
    for step, result in measurements:
        if isinstance(step, Together) and isinstance(result, TogetherResult) and step.held_out == held_out:
            pairs = zip(result.alone_s, result.together_s, strict=True)
            found.append(ObservedSet(step.points, tuple(both / alone if both else None for alone, both in pairs)))
    return found


def _mean_s(curve: LatencyCurve, batch: int) -> float:
    return interpolate_latency_s(curve.batches, curve.mean_s, batch)


def demand_of(curve: LatencyCurve, batch: int) -> float:
    """d of a batch, as `sim.tables` compiles it."""
    table = latency_table_s(curve.batches, curve.mean_s, curve.batches[-1])
    peak_rate_img_s = float(np.max(np.arange(1, len(table)) / table[1:]))
    return demand(batch, float(table[batch]), peak_rate_img_s)


def predict_slow_downs(
    points: Sequence[Point], curves: Mapping[Key, LatencyCurve], alpha: float, beta: float
) -> list[float]:
    """What the simulator makes of a running set."""
    return slow_downs(*_loads(points, curves), alpha, beta)


def _loads(points: Sequence[Point], curves: Mapping[Key, LatencyCurve]) -> tuple[list[float], list[float], list[float]]:
    """Demands, host shares and bandwidth shares of a running set."""
    of = [(curves[point.key], point.batch) for point in points]
    return (
        [demand_of(curve, batch) for curve, batch in of],
        [interpolate_linear(curve.batches, curve.host_share, batch) for curve, batch in of],
        [interpolate_linear(curve.batches, curve.bandwidth_share, batch) for curve, batch in of],
    )


def fit_concurrency(sets: Sequence[ObservedSet], curves: Mapping[Key, LatencyCurve]) -> Concurrency:
    """alpha and beta >= 0 by least squares in the logarithm of the slow-down; fair sharing where nothing was seen."""
    loads = [_loads(observed.points, curves) for observed in sets]

    def residuals(parameters: Floats) -> Floats:
        alpha, beta = parameters
        differences = []
        for observed, (demands, hosts, bandwidths) in zip(sets, loads, strict=True):
            predicted = slow_downs(demands, hosts, bandwidths, alpha, beta)
            differences += [np.log(p / s) for p, s in zip(predicted, observed.slow_downs, strict=True) if s is not None]
        return np.asarray(differences)

    start = np.asarray([0.1, 1.0])
    if not len(residuals(start)):
        return Concurrency(alpha=0.0, beta=1.0, provenance=Provenance.MODELLED)
    # A batch that some finish together seldom is an outlier of a short run; soft_l1 keeps it from ruling the fit.
    found = least_squares(residuals, start, bounds=([0.0, 0.0], [np.inf, np.inf]), loss="soft_l1", f_scale=0.1)
    return Concurrency(alpha=float(found.x[0]), beta=float(found.x[1]), provenance=Provenance.MEASURED)


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


# ------------------------------------------------------------------------------------------------------------- errors


def _errors(
    measurements: Sequence[Measurement],
    solo: Mapping[Point, SoloPoint],
    curves: Mapping[Key, LatencyCurve],
    concurrency: Concurrency,
    costs: ModelCosts,
    facts: DeviceFacts,
) -> Iterable[StatedError]:
    held_out = _solo_points(measurements, facts.cores, held_out=True)
    yield from _error(
        SOLO_ERROR,
        [(predict_solo_s(curves[p.key], p.batch), found.times.quantile(0.5)) for p, found in held_out.items()],
    )
    yield from _error(
        CONCURRENCY_ERROR,
        [
            (predicted, seen)
            for observed in _sets(measurements, held_out=True)
            for predicted, seen in zip(
                predict_slow_downs(observed.points, curves, concurrency.alpha, concurrency.beta),
                observed.slow_downs,
                strict=True,
            )
            if seen is not None
        ],
    )
    seen_j = _steady_points(measurements, facts.power, held_out=True)
    yield from _error(
        ENERGY_ERROR,
        [
            (interpolate_linear(curves[p.key].batches, curves[p.key].energy_j_per_image, p.batch), joules)
            for p, (joules, _) in seen_j.items()
            if joules > 0
        ],
    )
    yield from _error(
        REPEATABILITY,
        [(m, f.times.quantile(0.5)) for f in solo.values() if len(f.round_medians_s) > 1 for m in f.round_medians_s],
        "repeatability",
    )


def predict_solo_s(curve: LatencyCurve, batch: int) -> float:
    """The median solo latency that the profile gives a batch."""
    return interpolate_latency_s(curve.batches, curve.p50_s, batch)


def _error(figure: str, pairs: Sequence[tuple[float, float]], kind: ErrorKind = "held out") -> Iterable[StatedError]:
    """Of (predicted, measured) pairs; nothing where there are none."""
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
