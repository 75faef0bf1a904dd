"""Before the first measurement: idle is looked at past the rise, and the sensor that is tested is the bench's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from calibrate.calibration_log import CalibrationRequest
from calibrate.device_identity import Probe, rise_s
from calibrate.device_opening import idle_looks, sensor_test
from calibrate.power_meter import Meter, SensorTrust, Watched
from calibrate.session import log_stamp
from hw.device_settings import DeviceSpec
from hw.networks.network_files import ModelFile
from hw.telemetry import NvmlSensor, Reading, Sensor
from hw.transport.messages import Point
from policies.vocabulary import Provenance
from sim.device_profile import DeviceInfo
from tests.calibrate.fake import facts, model_costs
from tests.hw.fake_nvml import AMPERE, HOPPER, MAXWELL, TURING, VOLTA, FakeNvml, FakeNvmlDevice, Handle, Make, seen_over

POINT = Point(1, 1.0, 0.0, 1)


@pytest.mark.parametrize("make", [MAXWELL, VOLTA, TURING, AMPERE, HOPPER])
def test_idle_after_a_load_is_idle(make: Make) -> None:
    """A device that has just worked: once the rise is past, a short look at it shows idle power alone."""
    nvml_device = FakeNvmlDevice(make, rise_s=0.1)
    sensor = NvmlSensor(FakeNvml(nvml_device), Handle(nvml_device), nvml_device.now_ns)
    meter = Meter("cuda:0", sensor, nvml_device.limit_w, rise_s(sensor))
    nvml_device.load = 1.0
    nvml_device.advance(3.0)
    nvml_device.load = 0.0

    def look(sensor: Sensor, act: Callable[[], object]) -> list[Watched]:
        seconds = act()
        assert isinstance(seconds, float)
        return seen_over(nvml_device, sensor, seconds, 0.01)

    looks = idle_looks(meter, 0.5, meter.rise_s, pause=lambda seconds: seconds, look=look)
    assert looks[-1].at_s - looks[0].at_s == pytest.approx(0.5, abs=0.05)
    assert meter.mean(looks, 0.0).power_w == pytest.approx(nvml_device.idle_w, rel=0.02)


@dataclass
class Package:
    """A processor whose power is measured: its sensor tells the share of the processes that it was given, no others."""

    own: bool
    now_s: float = 0.0
    busy: bool = False

    def looks(self, seconds: float) -> list[Watched]:
        """Ten a second; the counter and the power follow the load, utilization the processes."""
        found = []
        for _ in range(round(10 * seconds)):
            self.now_s += 0.1
            power_w = (90.0 if self.busy else 30.0) + 0.01 * self.now_s
            share = 0.9 + 0.001 * self.now_s if self.own and self.busy else 0.0
            provenance = dict.fromkeys(("power_w", "utilization"), Provenance.MEASURED)
            found.append(Watched(self.now_s, Reading(power_w, share, None, provenance), None))
        return found


@pytest.mark.parametrize("own", [True, False])
def test_the_benchs_own_sensor_is_tested(own: bool) -> None:
    """A sensor that knows the processes passes; one that was given none says 0 for ever and is left out."""

    def look(sensor: Sensor, act: Callable[[], object]) -> list[Watched]:
        assert isinstance(sensor, Package)
        seconds = act()
        assert isinstance(seconds, float)
        return sensor.looks(seconds)

    def load(seconds: float) -> float:
        package.busy = True
        return seconds

    package = Package(own)
    meter = Meter("cpu", package)  # type: ignore[arg-type]  # looked at by `look` alone
    tested = sensor_test(meter, Probe(facts().info, metered=True), package.looks(1.0), load, look)
    assert tested.trust == SensorTrust(counter=False, utilization=own)
    assert bool(tested.warnings) != own


def wanted(seed: int) -> CalibrationRequest:
    return CalibrationRequest(ModelFile(Path("model")), DeviceSpec(), 10.0, 8, Path("log"), seed=seed)


def test_an_update_between_two_sittings_makes_another_stamp() -> None:
    """Driver, CUDA and cuDNN of a GPU; a device that says none of them has none in its stamp."""
    info = DeviceInfo(
        kind="cuda", name="x", vram_bytes=1, stamps={"driver": "1", "cuda": "12.8", "cudnn": "9", "date": "d"}
    )
    before = log_stamp(Probe(info, True), model_costs(), wanted(0))
    for name in ("driver", "cuda", "cudnn"):
        updated = info.model_copy(update={"stamps": {**info.stamps, name: "new"}})
        after = log_stamp(Probe(updated, True), model_costs(), wanted(0))
        assert {key for key in after if after[key] != before[key]} == {name}
    tomorrow = info.model_copy(update={"stamps": {**info.stamps, "date": "e"}})
    assert log_stamp(Probe(tomorrow, True), model_costs(), wanted(0)) == before
    bare = log_stamp(replace(Probe(info, True), info=info.model_copy(update={"stamps": {}})), model_costs(), wanted(0))
    assert not {"driver", "cuda", "cudnn"} & set(bare)


def test_another_seed_makes_another_stamp() -> None:
    """It holds out other points, so its log is another calibration's."""
    found = Probe(DeviceInfo(kind="cpu", name="x", vram_bytes=1, stamps={}), False)
    before, after = (log_stamp(found, model_costs(), wanted(seed)) for seed in (0, 1))
    assert {key for key in after if after[key] != before[key]} == {"seed"}
