"""The steady state of a device under a stream of equal batches: latency, power and utilization as functions of load.

Batches come as a Poisson stream and share the device, which is `sim.physics.SimulatedDevice` itself: for n running
batches it computes each one's slow-down, the power and the utilization. Service of a shared device depends on n alone,
so the number running is a birth-death chain whatever the distribution of the batches' times (processor sharing with
state-dependent rates is insensitive: Cohen 1979, `The multiple phase service network with generalized processor
sharing`), and the means are exact sums, without random draws. Beyond `at_once` batches the rest wait, and the device
works as it does with that many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from policies.vocabulary import NS_PER_S
from sim.physics import RunningBatch, SimulatedDevice
from sim.tables import BatchKey, DeviceTables

AT_ONCE = 8
LOADS = (*(percent / 100 for percent in (*range(2, 90, 4), *range(90, 99))), 0.985, 0.99)
FLAT = 0.01  # a latency that rises less than this over all loads has no knee

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SteadyPoint:
    """Means over time, or over batches, at one rate.

    Attributes:
        load: the rate as a share of the largest that the device can sustain.
        latency_s: from a batch's arrival at the device to its end.
        energy_j: the paper's E of a batch: mean power x mean latency.
    """

    load: float
    rate_batches_s: float
    utilization: float
    latency_s: float
    power_w: float

    @property
    def energy_j(self) -> float:
        """Mean power x mean latency."""
        return self.power_w * self.latency_s


@dataclass(frozen=True, slots=True)
class SteadyDevice:
    """A device with 0, 1, ... n equal batches running; every array is indexed by their number.

    Attributes:
        rate_batches_s: completed batches per second.
    """

    rate_batches_s: Floats
    utilization: Floats
    power_w: Floats

    @property
    def capacity_batches_s(self) -> float:
        """The sustained rate for any number of waiting batches."""
        return float(self.rate_batches_s[-1])


def shared_device(tables: DeviceTables, key: BatchKey, batch: int, at_once: int = AT_ONCE) -> SteadyDevice:
    """Start equal batches on an idle device, one after the other, and record its state with each number of them."""
    device, table = SimulatedDevice(tables), tables.keys[key]
    rates = [0.0]
    busy = [device.busy_permille]
    power_mw = [device.power_mw]
    for number in range(1, at_once + 1):
        latest = RunningBatch(0, number, table, batch, float(table.latency_ns[batch]))
        device.start(latest, 0)
        rates.append(number * NS_PER_S / (table.latency_ns[batch] * latest.slow_down))
        busy.append(device.busy_permille)
        power_mw.append(device.power_mw)
    return SteadyDevice(np.asarray(rates), np.asarray(busy) / 1000, np.asarray(power_mw) / 1000)


def steady_points(device: SteadyDevice, loads: Sequence[float]) -> list[SteadyPoint]:
    """Return the steady state at each load.

    Raises:
        ValueError: a load is not within (0, 1): there is no steady state.
    """
    if not all(0 < load < 1 for load in loads):
        raise ValueError(f"a steady load lies between 0 and 1: {list(loads)}")
    return [_steady_point(device, load) for load in loads]


def _steady_point(device: SteadyDevice, load: float) -> SteadyPoint:
    """Return the means at a load: state n has weight prod(arrival rate / rate k, k = 1 .. n); beyond the last state the
    weights fall by `load`."""
    arriving_s = load * device.capacity_batches_s
    weights = np.concatenate([[1.0], np.cumprod(arriving_s / device.rate_batches_s[1:])])
    numbers = np.arange(len(weights), dtype=np.float64)
    # The last state includes all beyond it: sums of load^i and of i load^i.
    numbers[-1] += load / (1 - load)
    weights[-1] /= 1 - load
    shares = weights / weights.sum()
    return SteadyPoint(
        load=load,
        rate_batches_s=arriving_s,
        utilization=float(shares @ device.utilization),
        latency_s=float(shares @ numbers) / arriving_s,  # Little's law
        power_w=float(shares @ device.power_w),
    )


def knee(points: Sequence[SteadyPoint]) -> SteadyPoint | None:
    """Return the knee of latency over utilization: farthest below the chord from the first point to the last.

    None if it does not rise. (Satopaa et al. 2011, `Finding a "Kneedle" in a Haystack`; the last point affects it, so
    compare knees of the same loads only.)
    """
    shares = np.asarray([point.utilization for point in points])
    latency_s = np.asarray([point.latency_s for point in points])
    if latency_s[-1] <= latency_s[0] * (1 + FLAT) or shares[-1] <= shares[0]:
        return None
    below = (shares - shares[0]) / np.ptp(shares) - (latency_s - latency_s[0]) / np.ptp(latency_s)
    return points[int(np.argmax(below))]
