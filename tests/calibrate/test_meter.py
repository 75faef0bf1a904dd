"""Mean power past the rise: the counter before polling, nonsense and lost devices, on simulated boards."""

from __future__ import annotations

import math
import time  # noqa: TID251 - a thread looks in real time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest

from calibrate.device_identity import rise_s
from calibrate.power_meter import (
    DETAILS_PERIOD_S,
    FLAT_LOOK_S,
    MAX_FALL_S,
    Meter,
    Watched,
    fall_s,
    mean_power,
    sampled,
    wait_until_flat,
)
from hw.telemetry import NvmlSensor, Reading, Sensor
from kit.errors import WorkError
from policies.vocabulary import Provenance
from tests.hw.fake_nvml import AMPERE, HOPPER, MAXWELL, TURING, VOLTA, FakeNvml, FakeNvmlDevice, Handle, Make, seen_over

POLLED: Mapping[str, Provenance] = {"power_w": Provenance.POLLED}


def looks(powers_w: list[float | None], energies_j: list[float | None]) -> list[Watched]:
    """One look a second."""
    pairs = enumerate(zip(powers_w, energies_j, strict=True))
    return [Watched(float(at), Reading(power, 0.5, None, POLLED), energy) for at, (power, energy) in pairs]


def test_the_counter_is_preferred_to_polling() -> None:
    seen = looks([0.0, 1.0, 1.0, 1.0], [0.0, 500.0, 600.0, 700.0])
    power = mean_power(seen, 1.0)
    assert (power.power_w, power.provenance, power.utilization) == (100.0, Provenance.MEASURED, 0.5)


def test_polling_drops_the_rise() -> None:
    power = mean_power(looks([5.0, 90.0, 110.0], [None] * 3), 1.0)
    assert (power.power_w, power.provenance) == (100.0, Provenance.POLLED)


def test_a_silent_sensor_is_an_error() -> None:
    with pytest.raises(WorkError, match=r"reported nothing .*; give a larger budget.* or reboot"):
        mean_power(looks([None, None, None], [None] * 3), 1.0)
    with pytest.raises(WorkError, match="reported nothing"):
        mean_power([], 1.0)
    with sampled(Sensor(), period_s=0.001) as take:
        while len(take()) < 2:
            pass
        assert all(look.reading.power_w is None for look in take())


@pytest.mark.parametrize("nonsense_w", [math.nan, math.inf, -1.0, 1501.0])
def test_nonsense_ends_a_measurement(nonsense_w: float) -> None:
    """Not a number, negative, or above three times the limit: the message names device, value and remedy."""
    seen = looks([100.0, 100.0, nonsense_w, 100.0], [None] * 4)
    with pytest.raises(WorkError, match=r"cuda:0: its sensor reported .*W at a limit of 500 W.*; load its driver"):
        mean_power(seen, 1.0, "cuda:0", 500.0)
    assert mean_power(looks([100.0, 100.0, 1499.0], [None] * 3), 1.0, limit_w=500.0).power_w == 799.5


def test_a_utilization_above_one_ends_a_measurement() -> None:
    seen = [replace(look, reading=replace(look.reading, utilization=1.5)) for look in looks([9.0] * 3, [None] * 3)]
    with pytest.raises(WorkError, match=r"utilization of 1\.5"):
        mean_power(seen, 1.0)


# ------------------------------------------------------------------------------------------------- simulated boards


@dataclass
class Rig:
    """A board with a meter on it, on the board's own clock."""

    nvml_device: FakeNvmlDevice
    meter: Meter

    @classmethod
    def of(cls, nvml_device: FakeNvmlDevice) -> Rig:
        sensor = NvmlSensor(FakeNvml(nvml_device), Handle(nvml_device), nvml_device.now_ns)
        return cls(nvml_device, Meter("cuda:0", sensor, nvml_device.limit_w, rise_s(sensor)))

    def seen(self, seconds: float = 3.0) -> list[Watched]:
        """Closely spaced looks under the board's present load."""
        return seen_over(self.nvml_device, self.meter.sensor, seconds, 0.01)


def test_a_counter_that_stands_still_gives_way_to_polled_power() -> None:
    rig = Rig.of(FakeNvmlDevice(TURING, counts=False))
    power = rig.meter.mean(rig.seen(), rig.meter.rise_s)
    assert power.provenance == Provenance.POLLED
    assert power.power_w == pytest.approx(rig.nvml_device.idle_w, rel=0.01)


def test_nonsense_of_polled_power_matters_without_a_counter_only() -> None:
    """An unsigned -1: the counter is used if there is one; otherwise the measurement ends."""
    rig = Rig.of(FakeNvmlDevice(HOPPER, power_mw=lambda _: 4294967295))
    power = rig.meter.mean(rig.seen(), rig.meter.rise_s)
    assert power.provenance == Provenance.MEASURED
    assert power.power_w == pytest.approx(rig.nvml_device.idle_w, rel=0.01)
    rig = Rig.of(FakeNvmlDevice(MAXWELL, power_mw=lambda _: 4294967295))
    with pytest.raises(WorkError, match=r"reported 4\.29497e\+06 W at a limit of 500 W, which is nonsense"):
        rig.meter.mean(rig.seen(), rig.meter.rise_s)


def test_a_device_that_is_lost_is_named() -> None:
    rig = Rig.of(FakeNvmlDevice())
    seen = seen_over(rig.nvml_device, rig.meter.sensor, 1.0)
    rig.nvml_device.lost = True
    lost = seen_over(rig.nvml_device, rig.meter.sensor, 1.0)
    with pytest.raises(WorkError, match="cuda:0 is lost"):
        rig.meter.mean([*seen, *lost], 0.5)


@pytest.mark.parametrize("make", [MAXWELL, VOLTA, TURING, AMPERE, HOPPER])
def test_a_power_point_is_past_its_rise_on_every_architecture(make: Make) -> None:
    """Steady load from the first look on: the mean is the true power within 1 %, slow sensor or not."""
    nvml_device = FakeNvmlDevice(make, rise_s=0.1)
    rig = Rig.of(nvml_device)
    nvml_device.load = 1.0
    power = rig.meter.mean(seen_over(nvml_device, rig.meter.sensor, 3.0), rig.meter.rise_s)
    assert power.power_w == pytest.approx(nvml_device.busy_w, rel=0.01)
    assert power.provenance == (Provenance.POLLED if make == MAXWELL else Provenance.MEASURED)


def test_a_power_point_keeps_what_else_the_board_tells() -> None:
    """How full the multiprocessors were, and whether the clocks were held down."""
    nvml_device = FakeNvmlDevice(HOPPER)
    rig = Rig.of(nvml_device)
    nvml_device.load = 1.0
    seen = [
        replace(look, details=rig.meter.sensor.details())
        for _ in range(5)
        for look in seen_over(nvml_device, rig.meter.sensor, 0.2, 0.2)
    ]
    power = rig.meter.mean(seen, 0.5)
    assert [power.sm_utilization, power.sm_occupancy, power.dram_bandwidth] == pytest.approx([0.8, 0.3, 0.1])
    assert power.throttling == ("SwPowerCap",)


@pytest.mark.parametrize("counter_period_s", [0.02, 0.1, 0.5])
def test_the_counters_period_does_not_bias_the_mean(counter_period_s: float) -> None:
    """From its first to its last step; arbitrary instants would be wrong by up to a period at each end."""
    nvml_device = FakeNvmlDevice(replace(HOPPER, counter_period_s=counter_period_s), rise_s=0.001)
    rig = Rig.of(nvml_device)
    nvml_device.load = 1.0
    nvml_device.advance(1.0)
    counted = rig.meter.mean(seen_over(nvml_device, rig.meter.sensor, 2.23), 0.0)
    assert counted.power_w == pytest.approx(nvml_device.busy_w, rel=0.005)


# ------------------------------------------------------------------------------------------------- clocks that fall


def _after_a_load(make: Make, fall_s: float, awake_w: float | None = 110.0) -> Rig:
    rig = Rig.of(FakeNvmlDevice(make, rise_s=0.05, fall_s=fall_s, awake_w=awake_w))
    rig.nvml_device.load = 0.8
    rig.nvml_device.advance(3.0)
    rig.nvml_device.load = 0.0
    return rig


@pytest.mark.parametrize("make", [VOLTA, TURING, AMPERE, HOPPER])
@pytest.mark.parametrize("seconds", [2.0, 5.0])
def test_how_long_clocks_stay_up_is_seen(make: Make, seconds: float) -> None:
    """From the end of the load, whatever the reading's lag, to half a second."""
    rig = _after_a_load(make, seconds)
    seen = seen_over(rig.nvml_device, rig.meter.sensor, 10.0)
    assert fall_s(seen, rig.meter.rise_s) == pytest.approx(seconds, abs=0.6)


def test_fall_time_is_zero_if_power_does_not_fall_or_is_unknown() -> None:
    rig = _after_a_load(HOPPER, 0.0, None)
    assert fall_s(seen_over(rig.nvml_device, rig.meter.sensor, 6.0), rig.meter.rise_s) == 0.0
    assert fall_s(looks([None] * 8, [None] * 8), 0.0) == 0.0


def test_idle_is_looked_at_when_it_is_flat() -> None:
    """While clocks are up power is flat, too: so it is waited for only while it falls."""
    rig = _after_a_load(HOPPER, 0.0, None)
    rig.nvml_device.rise_s = 3.0  # it falls slowly

    def look(sensor: Sensor, act: Callable[[], object]) -> list[Watched]:
        seconds = act()
        assert isinstance(seconds, float)
        return seen_over(rig.nvml_device, sensor, seconds, 0.01)

    waited_s = wait_until_flat(rig.meter.sensor, lambda seconds: seconds, look)
    assert 5.0 <= waited_s <= MAX_FALL_S
    assert rig.meter.sensor.sample().power_w == pytest.approx(rig.nvml_device.idle_w, rel=0.08)
    assert wait_until_flat(Sensor(), lambda seconds: seconds, lambda *_: []) == FLAT_LOOK_S


def test_a_counter_that_begins_anew_is_not_used_over_that_time() -> None:
    """A driver was loaded: what lies before is gone."""
    rig = Rig.of(FakeNvmlDevice(TURING))
    seen = seen_over(rig.nvml_device, rig.meter.sensor, 2.0)
    rig.nvml_device.load_driver_again()
    seen += seen_over(rig.nvml_device, rig.meter.sensor, 2.0)
    power = rig.meter.mean(seen, 0.5)
    assert power.provenance == Provenance.POLLED
    assert power.power_w == pytest.approx(rig.nvml_device.idle_w, rel=0.02)


def test_slow_calls_of_a_sensor_do_not_bend_its_counter() -> None:
    """Each takes 10 ms, and a look takes several: the counter is read first, at the time that it is given."""
    rig = Rig.of(FakeNvmlDevice(HOPPER, call_s=0.01))
    rig.nvml_device.load = 0.8
    rig.nvml_device.advance(1.0)
    true_w = rig.nvml_device.idle_w + 0.8 * (rig.nvml_device.busy_w - rig.nvml_device.idle_w)
    assert rig.meter.mean(seen_over(rig.nvml_device, rig.meter.sensor, 4.0), 1.0).power_w == pytest.approx(
        true_w, rel=0.02
    )


def test_details_have_a_pace_of_their_own() -> None:
    """They take several calls; between two of them the counter alone is looked at."""
    with sampled(Rig.of(FakeNvmlDevice(HOPPER)).meter.sensor, 0.005) as take:
        time.sleep(0.4)
        looks = take()
    detailed_s = -math.inf
    for look in looks:
        is_detailed = look.details.sm_clock_mhz is not None
        assert is_detailed == (look.at_s >= detailed_s + DETAILS_PERIOD_S)
        detailed_s = look.at_s if is_detailed else detailed_s
    assert looks[0].at_s < detailed_s
