"""Utilization and joules of every key and batch size, from points that ran under the device's sensor.

Power points are few. Utilization grows with demand, so it is interpolated along demand; joules are fitted on a batch's
work. Without a power sensor, joules follow from idle power, the cap and busy time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from calibrate.bench import SteadyResult
from calibrate.costs import Key, ModelCosts
from calibrate.measure import Measurement
from calibrate.plan import Steady
from calibrate.sharing import demand_of
from hw.transport.messages import Point
from policies.vocabulary import Provenance
from sim.interpolation import ascending, interpolate_latency_s, interpolate_linear
from sim.profile import LatencyCurve, Power

MIN_POWER_POINTS = 3  # to fit joules per image on

Floats = npt.NDArray[np.float64]


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
    found_w = sum(share * watts for share, watts in zip(shares, surplus_w, strict=True)) / weight
    awake_w = power.context_idle_w + min(max(0.0, found_w), power.cap_w - power.context_idle_w)
    return power.model_copy(update={"awake_w": awake_w, "awake_s": fall_s})


# -------------------------------------------------------------------------------------------------------- utilization


def with_busy_shares(curves: Mapping[Key, LatencyCurve], points: Mapping[Point, PowerPoint]) -> dict[Key, LatencyCurve]:
    """Set a GPU's utilization: the sensor's, along demand; demand itself without a sensor.

    The share of its multiprocessors likewise, if it was measured.
    """
    shown = {point: seen.utilization for point, seen in points.items() if seen.utilization is not None}
    of_sms = {point: seen.sm_utilization for point, seen in points.items() if seen.sm_utilization is not None}
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
        self._measured = {point: seen.energy_j_per_image for point, seen in points.items()}
        self._costs = costs
        self._range_w = power.cap_w - power.context_idle_w
        telling = [point for point, joules in self._measured.items() if joules > 0]
        self._weights: Floats | None = None
        if len(telling) >= MIN_POWER_POINTS:
            joules = np.asarray([self._measured[point] for point in telling])
            features = np.stack([self._features(curves[point.key], point.batch) for point in telling])
            self._weights = nnls(features / joules[:, None], np.ones(len(telling)))[0]

    def per_image(self, curve: LatencyCurve, batch: int) -> float:
        """Return k of a batch of the curve's key."""
        known = self._measured.get(Point(curve.segment, curve.width, curve.previous_width, batch))
        if known is not None:
            return known
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
        (interpolate_linear(curve.batches, curve.energy_j_per_image, point.batch), seen.energy_j_per_image)
        for point, seen in points.items()
        for curve in [curves[point.key]]
        if seen.energy_j_per_image > 0
    ]
