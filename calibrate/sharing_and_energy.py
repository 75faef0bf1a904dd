"""Slow-down of batches that run together, and utilization and joules of every key and batch size.

Sharing (`fit_concurrency`): alpha (bandwidth), beta (crowding) and across_beta (crowding between processes) are
identifiable from sets that mix keys, sizes and processes. A parameter whose 95 % interval contains its neutral value is
set to that value.

Utilization and energy: power points are few. Utilization grows with demand, so it is interpolated along demand; joules
are fitted on a batch's work. Without a power sensor, joules follow from idle power, the power cap and busy time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import OptimizeResult, least_squares, nnls

from calibrate.measurement_bench import SteadyResult, TogetherResult
from calibrate.measurement_plan import Key, ModelCosts, Steady, Together
from calibrate.plan_execution import Measurement, undisturbed
from hw.transport.messages import Point
from policies.vocabulary import Provenance
from sim.device_model import (
    BatchLoad,
    Sharing,
    ascending,
    clock_ratio,
    interpolate_latency_s,
    interpolate_linear,
    latency_table_s,
    slow_downs,
)
from sim.device_profile import Concurrency, LatencyCurve, Power
from sim.device_tables import demands

MIN_CAPPED = 3  # sets above the power cap, to fit the fall of clocks
CONFIDENT = 1.96  # standard errors

Floats = npt.NDArray[np.float64]
Curves = Mapping[Key, LatencyCurve]


# -------------------------------------------------------------------------------------------------------------- sharing


@dataclass(frozen=True, slots=True)
class ObservedSet:
    """A concurrency set, and each member's slow-down against running alone (None if it finished nothing)."""

    points: tuple[Point, ...]
    slow_downs: tuple[float | None, ...]
    across: bool = False

    @property
    def finished(self) -> list[float]:
        """The known slow-downs."""
        return [slow_down for slow_down in self.slow_downs if slow_down is not None]


def observed_sets(
    measurements: Iterable[Measurement], *, held_out: bool, reference_exponent: float = 1.0
) -> list[ObservedSet]:
    """Return the sets, with the median of their rounds for each member.

    Args:
        reference_exponent: if the reference is x times slower, passes are x to this power slower.
    """
    rounds: dict[Together, list[TogetherResult]] = {}
    for step, result in measurements:
        if isinstance(step, Together) and isinstance(result, TogetherResult) and step.held_out == held_out:
            rounds.setdefault(step, []).append(result)
    return [
        ObservedSet(step.points, _medians([_ratios(r, reference_exponent) for r in undisturbed(results)]), step.across)
        for step, results in rounds.items()
    ]


def _ratios(result: TogetherResult, exponent: float) -> list[float | None]:
    """Return each member's slow-down at one speed of the device, if references show that."""
    members = zip(result.alone_s, result.together_s, result.alone_reference_s, result.together_reference_s, strict=True)
    return [
        together_s / alone_s / ((together_ref_s / alone_ref_s) ** exponent if together_ref_s and alone_ref_s else 1.0)
        if together_s
        else None
        for alone_s, together_s, alone_ref_s, together_ref_s in members
    ]


def _medians(rounds: Sequence[Sequence[float | None]]) -> tuple[float | None, ...]:
    members = ([value for value in values if value is not None] for values in zip(*rounds, strict=True))
    return tuple(float(np.median(values)) if values else None for values in members)


def demand_of(curve: LatencyCurve, batch: int) -> float:
    """Return d of a batch, as `sim.device_tables` compiles it."""
    return demands(latency_table_s(curve.batches, curve.mean_s, curve.batches[-1]).tolist())[batch]


def loads_of(points: Sequence[Point], curves: Curves, across: bool) -> list[BatchLoad]:
    """Return each member's load on the device; across two processes they take turns."""
    return [_load(curves[point.key], point.batch, index % 2 if across else 0) for index, point in enumerate(points)]


def _load(curve: LatencyCurve, batch: int, process: int) -> BatchLoad:
    host, busy, bandwidth = (
        interpolate_linear(curve.batches, values, batch)
        for values in (curve.host_share, curve.utilization, curve.bandwidth_share)
    )
    return BatchLoad(demand_of(curve, batch), host, busy, bandwidth, process)


def predict_slow_downs(
    points: Sequence[Point], curves: Curves, sharing: Sharing, *, across: bool = False
) -> list[float]:
    """Return the simulator's prediction for a running set, below the power cap."""
    return slow_downs(loads_of(points, curves, across), sharing)


@dataclass(frozen=True, slots=True)
class Fitted:
    """alpha, beta and across_beta, and the half-widths of their 95 % intervals (inf if undetermined)."""

    values: tuple[float, float, float]
    half_widths: tuple[float, float, float]


def fit_concurrency(sets: Sequence[ObservedSet], curves: Curves, *, hosted: bool) -> Concurrency:
    """Fit alpha, beta, across_beta >= 0 by least squares in the slow-down's logarithm; fair sharing without data."""
    if not any(observed.finished for observed in sets):
        return Concurrency(alpha=0.0, beta=1.0, provenance=Provenance.MODELLED)
    has_across = any(observed.across and observed.finished for observed in sets)
    fitted = _fit(sets, curves, hosted, free=(True, True, has_across))
    alpha, beta, across_beta = fitted.values
    if alpha <= fitted.half_widths[0]:  # not significantly different from 0
        fitted = _fit(sets, curves, hosted, free=(False, True, has_across))
        alpha = 0.0
        _, beta, across_beta = fitted.values
    return Concurrency(
        alpha=alpha,
        beta=beta,
        across_beta=across_beta if has_across else None,
        beta_ci95=_finite(fitted.half_widths[1]),
        across_beta_ci95=_finite(fitted.half_widths[2]) if has_across else None,
        alpha_ci95=_finite(fitted.half_widths[0]) if alpha else None,
        provenance=Provenance.MEASURED,
    )


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _fit(sets: Sequence[ObservedSet], curves: Curves, hosted: bool, free: tuple[bool, bool, bool]) -> Fitted:
    loads = [loads_of(observed.points, curves, observed.across) for observed in sets]
    positions = [index for index, is_free in enumerate(free) if is_free]

    def whole(parameters: Floats) -> tuple[float, float, float]:
        values = [0.0, 1.0, 1.0]
        for position, value in zip(positions, parameters, strict=True):
            values[position] = float(value)
        alpha, beta, across_beta = values
        return alpha, beta, across_beta if free[2] else beta

    def residuals(parameters: Floats) -> Floats:
        alpha, beta, across_beta = whole(parameters)
        sharing = Sharing(alpha, beta, across_beta, hosted)
        logarithms = [
            np.log(predicted / slow_down)
            for load, observed in zip(loads, sets, strict=True)
            for predicted, slow_down in zip(slow_downs(load, sharing), observed.slow_downs, strict=True)
            if slow_down is not None
        ]
        return np.asarray(logarithms)

    start = np.asarray([0.1, 1.0, 1.0])[positions]
    # Rare coincidences of batches are outliers of a short run; soft_l1 keeps them from dominating the fit.
    fit = least_squares(residuals, start, bounds=(0.0, np.inf), loss="soft_l1", f_scale=0.1)
    half_widths = [np.inf] * 3
    for position, half_width in zip(positions, _half_widths(fit), strict=True):
        half_widths[position] = half_width
    return Fitted(whole(fit.x), (half_widths[0], half_widths[1], half_widths[2]))


def _half_widths(fit: OptimizeResult) -> list[float]:
    """Return the half-widths of the parameters' 95 % intervals, from the curvature at the optimum."""
    freedom = len(fit.fun) - len(fit.x)
    information = fit.jac.T @ fit.jac
    if freedom < 1 or np.linalg.matrix_rank(information) < len(fit.x):
        return [np.inf] * len(fit.x)
    variances = np.diag(np.linalg.inv(information)) * float(fit.fun @ fit.fun) / freedom
    return [CONFIDENT * float(np.sqrt(variance)) for variance in variances]


def predicted_and_seen(observed: ObservedSet, curves: Curves, sharing: Sharing) -> list[tuple[float, float]]:
    """Return (predicted, observed) of the members that finished something."""
    predicted = predict_slow_downs(observed.points, curves, sharing, across=observed.across)
    pairs = zip(predicted, observed.slow_downs, strict=True)
    return [(factor, slow_down) for factor, slow_down in pairs if slow_down is not None]


def sharing_from(concurrency: Concurrency, *, hosted: bool) -> Sharing:
    """Return the simulator's form of the parameters."""
    across_beta = concurrency.beta if concurrency.across_beta is None else concurrency.across_beta
    return Sharing(concurrency.alpha, concurrency.beta, across_beta, hosted)


# -------------------------------------------------------------------------------------------------------- power cap


def uncapped_w(observed: ObservedSet, curves: Curves, sharing: Sharing, context_idle_w: float) -> float:
    """Return P_u of a set."""
    solos_w = (_solo_w(curves[point.key], point.batch) for point in observed.points)
    factors = predict_slow_downs(observed.points, curves, sharing, across=observed.across)
    return context_idle_w + sum(solo_w / factor for solo_w, factor in zip(solos_w, factors, strict=True))


def _solo_w(curve: LatencyCurve, batch: int) -> float:
    joules = interpolate_linear(curve.batches, curve.energy_j_per_image, batch)
    return joules * batch / interpolate_linear(curve.batches, curve.mean_s, batch)


def fit_power_cap(
    sets: Sequence[ObservedSet], curves: Curves, concurrency: Concurrency, power: Power, *, hosted: bool
) -> Power:
    """Fit the fall of clocks above the cap, from sets that would draw more: phi = S0 / S, as a share of that below.

    It is unchanged if too few sets would draw more, or it is not significantly different from 0: a set just above the
    cap slows down by less than its measurement error.
    """
    sharing = sharing_from(concurrency, hosted=hosted)
    excess: list[float] = []  # of the sets that would draw more than the cap
    ratios: list[float] = []  # of the same
    below: list[float] = []  # of the others
    for observed in sets:
        over = uncapped_w(observed, curves, sharing, power.context_idle_w) / power.cap_w - 1
        if observed.finished:
            pairs = predicted_and_seen(observed, curves, sharing)
            ratio = float(np.median([predicted / measured for predicted, measured in pairs]))
            if over > 0:
                excess.append(over)
                ratios.append(ratio)
            else:
                below.append(ratio)
    if len(excess) < MIN_CAPPED:
        return power
    clocks = np.asarray(ratios) / (np.median(below) if below else 1.0)
    phi_min = min(1.0, float(clocks.min()))

    def residuals(throttle: Floats) -> Floats:
        capped = [clock_ratio(1 + over, 1.0, float(throttle[0]), phi_min) for over in excess]
        return np.subtract(capped, clocks)

    throttle = least_squares(residuals, [0.5], bounds=(0.0, np.inf), x_scale=1.0).x
    unexplained, without = float(np.sum(residuals(throttle) ** 2)), float(np.sum((1.0 - clocks) ** 2))
    if without - unexplained <= 2 * CONFIDENT**2 * unexplained / max(1, len(excess) - 2):
        return power
    return power.model_copy(update={"throttle": float(throttle[0]), "phi_min": phi_min})


def below_cap(sets: Sequence[ObservedSet], curves: Curves, power: Power, *, hosted: bool) -> list[ObservedSet]:
    """Return the sets that draw less than the cap even without slow-downs beyond fair sharing."""
    fair = Sharing(0.0, 1.0, 1.0, hosted)
    return [observed for observed in sets if uncapped_w(observed, curves, fair, power.context_idle_w) <= power.cap_w]


# --------------------------------------------------------------------------------------------------------- power points


MIN_POWER_POINTS = 3  # to fit joules per image on


@dataclass(frozen=True, slots=True)
class PowerPoint:
    """Sensor readings while a point ran in a loop.

    Attributes:
        energy_j_per_image: energy above context idle.
        utilization, sm_utilization: shares in [0, 1]; None if unknown.
    """

    energy_j_per_image: float
    utilization: float | None = None
    sm_utilization: float | None = None


def power_points(measurements: Iterable[Measurement], power: Power, *, held_out: bool) -> dict[Point, PowerPoint]:
    """Return the fitted power points, or the held-out ones."""
    points: dict[Point, PowerPoint] = {}
    for step, result in measurements:
        if not (isinstance(step, Steady) and isinstance(result, SteadyResult)) or step.duty < 1.0:
            continue
        if step.held_out == held_out:
            load = result.load
            dynamic_w = max(0.0, load.power_w - power.context_idle_w)
            joules = dynamic_w * load.elapsed_s / load.images
            points[step.point] = PowerPoint(joules, load.utilization, _share(load.sm_utilization))
    return points


def _share(value: float | None) -> float | None:
    """Clip a performance counter's share, which may slightly exceed 1; None if it did not count."""
    return None if value is None or not math.isfinite(value) else min(1.0, max(0.0, value))


def metered(power: Power, measurements: Iterable[Measurement]) -> Power:
    """Return power with the provenance of the power points, if there are any."""
    provenances = [result.load.provenance for _, result in measurements if isinstance(result, SteadyResult)]
    return power.model_copy(update={"provenance": Provenance.weakest(*provenances)}) if provenances else power


def with_awake(
    power: Power, measurements: Iterable[Measurement], curves: Mapping[Key, LatencyCurve], fall_s: float
) -> Power:
    """Add the power while nothing runs and clocks are still up, from points at small duties.

    In addition to context idle and the joules of the images, a point that is busy for a share u of the time draws (1 -
    u) of it: least squares over the duties.

    Args:
        fall_s: time that clocks stay up after a load; 0 if that was not observed, so the state is omitted.
    """
    loads = [
        (step.point, result.load)
        for step, result in measurements
        if isinstance(step, Steady) and isinstance(result, SteadyResult) and step.duty < 1.0
    ]
    shares, surplus_w = list[float](), list[float]()
    for point, load in loads:
        curve = curves[point.key]
        joules = interpolate_linear(curve.batches, curve.energy_j_per_image, point.batch) * load.images
        shares.append(max(0.0, 1.0 - load.busy_s / load.elapsed_s))
        surplus_w.append(load.power_w - power.context_idle_w - joules / load.elapsed_s)
    weight = sum(share * share for share in shares)
    if fall_s <= 0 or weight <= 0:
        return power
    fitted_w = sum(share * watts for share, watts in zip(shares, surplus_w, strict=True)) / weight
    awake_w = power.context_idle_w + min(max(0.0, fitted_w), power.cap_w - power.context_idle_w)
    return power.model_copy(update={"awake_w": awake_w, "awake_s": fall_s})


# -------------------------------------------------------------------------------------------------------- utilization


def with_busy_shares(curves: Mapping[Key, LatencyCurve], points: Mapping[Point, PowerPoint]) -> dict[Key, LatencyCurve]:
    """Set a GPU's utilization: the sensor's, along demand; demand itself without a sensor.

    The share of its multiprocessors likewise, if it was measured.
    """
    shown = {point: power.utilization for point, power in points.items() if power.utilization is not None}
    of_sms = {point: power.sm_utilization for point, power in points.items() if power.sm_utilization is not None}
    busy = _along_demand(curves, shown) if shown else {key: _demands(curve) for key, curve in curves.items()}
    sms = _along_demand(curves, of_sms) if of_sms else dict.fromkeys(curves, ())
    return {
        key: curve.model_copy(update={"utilization": busy[key], "sm_utilization": sms[key]})
        for key, curve in curves.items()
    }


def _demands(curve: LatencyCurve) -> tuple[float, ...]:
    return tuple(min(1.0, demand_of(curve, batch)) for batch in curve.batches)


def _along_demand(curves: Mapping[Key, LatencyCurve], shown: Mapping[Point, float]) -> dict[Key, tuple[float, ...]]:
    """Fit an ascending function of demand to the measured shares; returns it at every batch size of every curve."""
    pairs = sorted((demand_of(curves[point.key], point.batch), share) for point, share in shown.items())
    nodes, values = [demand for demand, _ in pairs], ascending([share for _, share in pairs])
    return {
        key: tuple(float(np.interp(demand, nodes, values)) for demand in _demands(curve))
        for key, curve in curves.items()
    }


# ------------------------------------------------------------------------------------------------------------- energy


class EnergyModel:
    """Joules per image above context idle: fitted on enough power points, otherwise from idle to cap by utilization."""

    def __init__(
        self,
        points: Mapping[Point, PowerPoint],
        curves: Mapping[Key, LatencyCurve],
        costs: ModelCosts,
        power: Power,
    ) -> None:
        self._measured = {point: power_point.energy_j_per_image for point, power_point in points.items()}
        self._costs = costs
        self._range_w = power.cap_w - power.context_idle_w
        positive = [point for point, joules in self._measured.items() if joules > 0]
        self._weights: Floats | None = None
        if len(positive) >= MIN_POWER_POINTS:
            joules = np.asarray([self._measured[point] for point in positive])
            features = np.stack([self._features(curves[point.key], point.batch) for point in positive])
            self._weights = nnls(features / joules[:, None], np.ones(len(positive)))[0]

    def per_image(self, curve: LatencyCurve, batch: int) -> float:
        """Return k of a batch of the curve's key."""
        measured_j = self._measured.get(Point(curve.segment, curve.width, curve.previous_width, batch))
        if measured_j is not None:
            return measured_j
        features = self._features(curve, batch)
        if self._weights is None:
            return float(self._range_w * features[2])
        return float(features @ self._weights)

    def _features(self, curve: LatencyCurve, batch: int) -> Floats:
        """Return (MACs, bytes, busy seconds) of one image."""
        cost = self._costs.keys[curve.segment, curve.width, curve.previous_width]
        busy_s = interpolate_linear(curve.batches, curve.utilization, batch) * interpolate_latency_s(
            curve.batches, curve.mean_s, batch
        )
        return np.asarray([float(cost.macs), cost.batch_bytes(batch) / batch, busy_s / batch])


def held_out_energy(
    points: Mapping[Point, PowerPoint], curves: Mapping[Key, LatencyCurve]
) -> list[tuple[float, float]]:
    """Return (predicted, measured) joules of power points that no fit used."""
    return [
        (interpolate_linear(curve.batches, curve.energy_j_per_image, point.batch), measured.energy_j_per_image)
        for point, measured in points.items()
        for curve in [curves[point.key]]
        if measured.energy_j_per_image > 0
    ]
