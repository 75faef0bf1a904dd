"""Mean power and utilization of a device: from its energy counter if it has one, otherwise from polling."""

from __future__ import annotations

import itertools
import math
import threading
import time  # noqa: TID251 - power is sampled during a real loop
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from hw.telemetry import Details, Reading, Sensor
from kit.errors import WorkError
from policies.vocabulary import NS_PER_S, Provenance

LOOK_PERIOD_S = 0.05
COUNTER_LOOK_PERIOD_S = 0.02  # a counter's steps are timed to this
CLOSE_LOOK_PERIOD_S = 0.01
RISE_S = 1.0  # readings in the first second under load still reflect the state before
DETAILS_PERIOD_S = 0.1  # they take several calls, and would slow the counter's sampling
FLAT_SHARE_S = 0.01  # of the power, a second: a smaller slope counts as flat
FLAT_LOOK_S = 1.0
MAX_FALL_S = 15.0  # clocks take seconds to fall
FALL_SHARE = 0.03  # of the idle power: a smaller fall is ignored
ENOUGH = 5  # least number of looks for a fall
NONSENSE_TIMES = 3.0  # the power limit


@dataclass(frozen=True, slots=True)
class Watched:
    """One look at a sensor; `energy_j` is a counter from any origin, None if there is none."""

    at_s: float
    reading: Reading
    energy_j: float | None
    details: Details = field(default_factory=Details)


@dataclass(frozen=True, slots=True)
class MeanPower:
    """Mean sensor readings over an interval; shares in [0, 1], None if unknown.

    Attributes:
        sm_utilization, sm_occupancy, dram_bandwidth: see `hw.telemetry.Details`.
        sm_clock_mhz: mean clock of the multiprocessors.
        throttling: all reasons observed for reduced clocks.
    """

    power_w: float
    utilization: float | None
    provenance: Provenance
    sm_utilization: float | None = None
    sm_occupancy: float | None = None
    dram_bandwidth: float | None = None
    sm_clock_mhz: float | None = None
    throttling: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Meter:
    """A device's sensor for calibration.

    Attributes:
        device: the device's name in messages.
        limit_w: the power limit, if it is known.
        rise_s: time after a step of the load in which readings still reflect the state before.
    """

    device: str
    sensor: Sensor
    limit_w: float | None = None
    rise_s: float = RISE_S

    def mean(self, watched: Sequence[Watched], rise_s: float) -> MeanPower:
        """See `mean_power`."""
        return mean_power(watched, rise_s, self.device, self.limit_w)


# ------------------------------------------------------------------------------------------------------------ looking


@contextmanager
def sampled(
    sensor: Sensor, period_s: float | None = None, *, detailed: bool = True
) -> Iterator[Callable[[], list[Watched]]]:
    """Sample a sensor every period, in a thread; the returned function gives the looks so far.

    Args:
        period_s: by default short if there is a counter, whose steps are timed.
        detailed: sample `Sensor.details` too, at a separate period.
    """
    has_counter = sensor.supports()["energy"].provenance is not None
    pause_s = period_s if period_s is not None else COUNTER_LOOK_PERIOD_S if has_counter else LOOK_PERIOD_S
    looks: list[Watched] = []
    end = threading.Event()

    def look() -> None:
        detailed_s = -math.inf
        while not end.wait(pause_s):
            energy_j, at_s = sensor.energy_j(), time.monotonic_ns() / NS_PER_S
            is_detailed = detailed and at_s >= detailed_s + DETAILS_PERIOD_S
            looks.append(Watched(at_s, sensor.sample(), energy_j, sensor.details() if is_detailed else Details()))
            detailed_s = at_s if is_detailed else detailed_s

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: list(looks)
    finally:
        end.set()
        thread.join()


Watch = Callable[[Sensor, Callable[[], object]], list[Watched]]


def watch(sensor: Sensor, act: Callable[[], object]) -> list[Watched]:
    """Run `act`, sampling a sensor closely meanwhile."""
    with sampled(sensor, CLOSE_LOOK_PERIOD_S, detailed=False) as take:
        act()
        return take()


# ------------------------------------------------------------------------------------------------------------- means


def past_rise(watched: Sequence[Watched], rise_s: float) -> list[Watched]:
    """Return the looks that no longer reflect the state before the first of them."""
    return [look for look in watched if look.at_s >= watched[0].at_s + rise_s]


def mean_power(
    watched: Sequence[Watched],
    rise_s: float,
    device: str = "the device",
    limit_w: float | None = None,
) -> MeanPower:
    """Return the mean after the first `rise_s` seconds: from the energy counter if available, otherwise of samples.

    Raises:
        WorkError: the device is lost, or its sensor gave no or implausible readings in that time.
    """
    if any(look.reading.lost for look in watched):
        raise WorkError(f"{device} is lost: it answers no more; reset or reboot it")
    looks = past_rise(watched, rise_s)
    counted_w, utilizations = _counted_w(looks), _utilizations(looks)
    powers = [look.reading.power_w for look in looks if look.reading.power_w is not None]
    if counted_w is None and not powers:
        remedy = "give a larger budget, so that it is polled for longer; if that fails, reload its driver, or reboot"
        raise WorkError(f"{device}: the power sensor reported nothing for a whole measurement; {remedy}")
    power_w = counted_w if counted_w is not None else float(np.mean(powers))
    if problem := _nonsense([power_w] if counted_w is not None else powers, utilizations, limit_w):
        raise WorkError(f"{device}: its sensor reported {problem}; load its driver again, or reboot")
    provenance = Provenance.MEASURED
    if counted_w is None:
        provenance = looks[-1].reading.provenance.get("power_w", Provenance.POLLED)
    details = [look.details for look in looks]
    return MeanPower(
        power_w=power_w,
        utilization=_mean(utilizations),
        provenance=provenance,
        sm_utilization=_mean(detail.sm_utilization for detail in details),
        sm_occupancy=_mean(detail.sm_occupancy for detail in details),
        dram_bandwidth=_mean(detail.dram_bandwidth for detail in details),
        sm_clock_mhz=_mean(detail.sm_clock_mhz for detail in details),
        throttling=tuple(sorted({reason for detail in details for reason in detail.throttling or ()})),
    )


def _counted_w(looks: Sequence[Watched]) -> float | None:
    """Return mean power between the first and last observed steps of the counter, which is constant between steps.

    None if there were not two, or it restarted meanwhile (a driver was loaded).
    """
    if any((after.energy_j or 0.0) < (before.energy_j or 0.0) for before, after in itertools.pairwise(looks)):
        return None
    steps = [
        (look.at_s, look.energy_j)
        for before, look in itertools.pairwise(looks)
        if look.energy_j is not None and before.energy_j is not None and look.energy_j != before.energy_j
    ]
    if len(steps) < 2:
        return None
    (begin_s, begin_j), (end_s, end_j) = steps[0], steps[-1]
    return (end_j - begin_j) / (end_s - begin_s)


def _utilizations(looks: Sequence[Watched]) -> list[float]:
    return [share for look in looks if (share := look.reading.utilization) is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else None


def _nonsense(powers_w: Iterable[float], utilizations: Iterable[float], limit_w: float | None) -> str | None:
    """Describe readings that no device can have; None if there are none."""
    most_w = math.inf if limit_w is None else NONSENSE_TIMES * limit_w
    for power_w in powers_w:
        if not (math.isfinite(power_w) and 0 <= power_w <= most_w):
            limit = "" if limit_w is None else f" at a limit of {limit_w:g} W"
            return f"{power_w:g} W{limit}, which is nonsense"
    for share in utilizations:
        if not 0 <= share <= 1:
            return f"a utilization of {share:g}, which is nonsense"
    return None


# --------------------------------------------------------------------------------------------------------------- falls


def is_flat(looks: Sequence[Watched]) -> bool:
    """Return whether power neither fell nor rose over these looks; True if it is unknown."""
    powers = [(look.at_s, look.reading.power_w) for look in looks if look.reading.power_w is not None]
    if len(powers) < 2 or powers[-1][0] <= powers[0][0]:
        return True
    middle = len(powers) // 2
    before, after = (float(np.mean([power for _, power in part])) for part in (powers[:middle], powers[middle:]))
    between_s = (powers[-1][0] - powers[0][0]) / 2
    return abs(after - before) <= FLAT_SHARE_S * between_s * max(before, after)


def wait_until_flat(sensor: Sensor, pause: Callable[[float], object] = time.sleep, look: Watch = watch) -> float:
    """Wait until the power of an idle device falls no more, at most `MAX_FALL_S`; returns the time that this took."""
    waited_s = 0.0
    while waited_s < MAX_FALL_S:
        looks = look(sensor, lambda: pause(FLAT_LOOK_S))
        waited_s += FLAT_LOOK_S
        if is_flat(looks):
            break
    return waited_s


def fall_s(looks: Sequence[Watched], settled_s: float) -> float:
    """Return how long clocks stayed up after a load: until power passed the midpoint of its fall.

    Args:
        looks: from the load's end on.
        settled_s: time in which readings may still reflect the load itself.

    Returns:
        0 if power did not fall, or is unknown.
    """
    powers = [
        (look.at_s, look.reading.power_w) for look in past_rise(looks, settled_s) if look.reading.power_w is not None
    ]
    if len(powers) < ENOUGH:
        return 0.0
    watts = [power for _, power in powers]
    tenth, quarter = max(1, len(watts) // 10), max(1, len(watts) // 4)
    high_w, low_w = float(np.mean(watts[:tenth])), float(np.mean(watts[-quarter:]))
    if high_w - low_w < FALL_SHARE * low_w:
        return 0.0
    return max(at_s for at_s, power in powers if power > (high_w + low_w) / 2) - looks[0].at_s
