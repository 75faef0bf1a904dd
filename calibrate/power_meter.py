"""Mean power and utilization of a device: from its energy counter if that is trustworthy, otherwise from polling.

Sensors are not trusted blindly: a self-test compares the counter with polled power, idle and under load, and detects
implausible or constant readings. Its result is a `SensorTrust`: the readings that may be used.
"""

from __future__ import annotations

import itertools
import math
import threading
import time  # noqa: TID251 - power is sampled beside a real loop
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import numpy as np

from hw.telemetry import Details, Reading, Sensor
from kit.errors import WorkError
from policies.vocabulary import NS_PER_S, Provenance

LOOK_PERIOD_S = 0.05
COUNTER_LOOK_PERIOD_S = 0.02  # a counter's steps are timed to this
TEST_LOOK_PERIOD_S = 0.01
RISE_S = 1.0  # readings in the first second under load still reflect the state before
APART = 0.03  # tolerance of the counter against polling
TELLING_S = 0.5  # least time between a counter's first and last step
DETAILS_PERIOD_S = 0.1  # they take several calls, and would slow the counter's sampling
FLAT_SHARE_S = 0.01  # of the power, a second: a smaller slope counts as flat
FLAT_LOOK_S = 1.0
MAX_FALL_S = 15.0  # clocks take seconds to fall
FALL_SHARE = 0.03  # of the idle power: a smaller fall is ignored
ENOUGH = 5  # least number of looks for a constant reading
NONSENSE_TIMES = 3.0  # the power limit
TRUSTED = "telemetry_trusted"  # a profile's stamp


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
class SensorTrust:
    """The readings of a sensor that may be used."""

    counter: bool = True
    polling: bool = True
    utilization: bool = True

    @property
    def power(self) -> bool:
        """Whether any reading measures power."""
        return self.counter or self.polling

    def stamps(self) -> dict[str, str]:
        """Return the profile's stamps: which readings may be used."""
        trusted = [reading.name for reading in fields(self) if getattr(self, reading.name)]
        return {TRUSTED: ", ".join(trusted) or "nothing"}

    @classmethod
    def stamped(cls, stamps: Mapping[str, str]) -> SensorTrust:
        """Restore the output of `stamps`; all readings if nothing was tested."""
        if TRUSTED not in stamps:
            return cls()
        trusted = stamps[TRUSTED].split(", ")
        return cls(**{reading.name: reading.name in trusted for reading in fields(cls)})


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
    trust: SensorTrust = SensorTrust()

    def mean(self, watched: Sequence[Watched], rise_s: float) -> MeanPower:
        """See `mean_power`."""
        return mean_power(watched, rise_s, self.trust, self.device, self.limit_w)


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
    """Run `act`, sampling a sensor meanwhile as closely as the self-test needs."""
    with sampled(sensor, TEST_LOOK_PERIOD_S, detailed=False) as take:
        act()
        return take()


# ------------------------------------------------------------------------------------------------------------- means


def past_rise(watched: Sequence[Watched], rise_s: float) -> list[Watched]:
    """Return the looks that no longer reflect the state before the first of them."""
    return [look for look in watched if look.at_s >= watched[0].at_s + rise_s]


def mean_power(
    watched: Sequence[Watched],
    rise_s: float,
    trust: SensorTrust = SensorTrust(),
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
    counted = _counted(looks) if trust.counter else None
    powers = [look.reading.power_w for look in looks if look.reading.power_w is not None] if trust.polling else []
    if counted is None and not powers:
        remedy = "give a larger budget, so that it is looked at for longer; else load its driver anew, or reboot"
        raise WorkError(f"{device}: the power sensor said nothing for a whole measurement; {remedy}")
    power_w = counted.power_w if counted is not None else float(np.mean(powers))
    if problem := _nonsense([power_w] if counted is not None else powers, _utilizations(looks, trust), limit_w):
        raise WorkError(f"{device}: its sensor said {problem}; load its driver anew, or reboot")
    provenance = Provenance.MEASURED
    if counted is None:
        provenance = looks[-1].reading.provenance.get("power_w", Provenance.POLLED)
    details = [look.details for look in looks]
    return MeanPower(
        power_w=power_w,
        utilization=_mean(_utilizations(looks, trust)),
        provenance=provenance,
        sm_utilization=_mean(detail.sm_utilization for detail in details),
        sm_occupancy=_mean(detail.sm_occupancy for detail in details),
        dram_bandwidth=_mean(detail.dram_bandwidth for detail in details),
        sm_clock_mhz=_mean(detail.sm_clock_mhz for detail in details),
        throttling=tuple(sorted({reason for detail in details for reason in detail.throttling or ()})),
    )


@dataclass(frozen=True, slots=True)
class _Counted:
    """Mean power by the counter, between two of its steps."""

    power_w: float
    begin_s: float
    end_s: float


def _counted(looks: Sequence[Watched]) -> _Counted | None:
    """Return power between the first and last observed steps of the counter, which is constant between steps.

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
    return _Counted((end_j - begin_j) / (end_s - begin_s), begin_s, end_s)


def _utilizations(looks: Sequence[Watched], trust: SensorTrust) -> list[float]:
    return [share for look in looks if (share := look.reading.utilization) is not None] if trust.utilization else []


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


# ---------------------------------------------------------------------------------------------------------- self-test


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Result of a self-test.

    Attributes:
        text: of the profile's stamp.
        warnings: warnings for the user, each with the consequence.
    """

    trust: SensorTrust
    text: str
    warnings: tuple[str, ...] = ()


def self_test(meter: Meter, idle: Sequence[Watched], load: Callable[[float], object], look: Watch = watch) -> SelfTest:
    """Compare counter and polling, idle and under load, and check that the sensor follows the load.

    Args:
        idle: looks at the idle device.
        load: keeps the device busy for a number of seconds.
        look: runs an action while sampling the sensor.

    Raises:
        WorkError: the device is lost.
    """
    loaded = look(meter.sensor, lambda: load(meter.rise_s + 3 * TELLING_S))
    if any(sample.reading.lost for sample in (*idle, *loaded)):
        raise WorkError(f"{meter.device} is lost: it answers no more; reset or reboot it")
    return judge(idle, past_rise(loaded, meter.rise_s), meter.limit_w)


def judge(idle: Sequence[Watched], busy: Sequence[Watched], limit_w: float | None) -> SelfTest:
    """Evaluate looks at an idle and at a busy device, each past its rise."""
    looks = [*idle, *busy]
    utilization_fault = _utilization_fault(_utilizations(looks, SensorTrust()))
    polling_fault = _polling_fault(looks, limit_w)
    counter_fault = _counter_fault(busy, limit_w)
    offsets = {} if polling_fault or counter_fault else _apart(idle, busy)
    differences = ", ".join(f"{100 * share:+.1f} % {load}" for load, share in offsets.items())
    if any(abs(share) > APART for share in offsets.values()):
        counter_fault = f"the energy counter is off polled power by {differences}"
    trust = SensorTrust(counter=not counter_fault, polling=not polling_fault, utilization=not utilization_fault)
    faults = [fault for fault in (polling_fault, counter_fault, utilization_fault) if fault]
    warnings = [f"{fault}: {_instead(trust)}" for fault in faults if fault != NO_COUNTER and fault != NO_POWER]
    if utilization_fault:
        warnings[-1] = f"{utilization_fault}: utilization is left out"
    if not faults:
        return SelfTest(trust, f"counter against polling: {differences or 'too short to tell'}")
    return SelfTest(trust, "; ".join([*faults, _instead(trust)]), tuple(warnings))


NO_COUNTER, NO_POWER = "no energy counter", "no polled power"


def _instead(trust: SensorTrust) -> str:
    if trust.counter:
        return "the energy counter is used"
    return "polled power is used" if trust.polling else "power is assumed, not measured"


def _polling_fault(looks: Sequence[Watched], limit_w: float | None) -> str:
    powers = [look.reading.power_w for look in looks if look.reading.power_w is not None]
    if not powers:
        return NO_POWER
    if problem := _nonsense(powers, (), limit_w):
        return f"the power sensor said {problem}"
    if len(powers) >= ENOUGH and len(set(powers)) == 1:
        return f"the power sensor says {powers[0]:g} W whether the device is idle or busy"
    return ""


def _counter_fault(busy: Sequence[Watched], limit_w: float | None) -> str:
    if all(look.energy_j is None for look in busy):
        return NO_COUNTER
    counted = _counted(busy)
    if counted is None:
        return "the energy counter stands still under load"
    problem = _nonsense([counted.power_w], (), limit_w)
    return f"the energy counter said {problem}" if problem else ""


def _utilization_fault(shares: Sequence[float]) -> str:
    if problem := _nonsense((), shares, None):
        return f"the sensor said {problem}"
    if len(shares) >= ENOUGH and len(set(shares)) == 1:
        return f"the sensor says a utilization of {shares[0]:g} whether the device is idle or busy"
    return ""


def _apart(idle: Sequence[Watched], busy: Sequence[Watched]) -> dict[str, float]:
    """Return counter over polling less 1, over the same time; empty if that was too short."""
    shares = {}
    for phase, looks in (("idle", idle), ("under load", busy)):
        counted = _counted(looks)
        if counted is None or counted.end_s - counted.begin_s < TELLING_S:
            continue
        within = [look.reading.power_w for look in looks if counted.begin_s <= look.at_s <= counted.end_s]
        polled_w = _mean(within)
        if polled_w:
            shares[phase] = counted.power_w / polled_w - 1
    return shares
