"""Before the first measurement: idle is looked at past the rise; what a log must match to be continued."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from calibrate.calibration_log import CalibrationRequest
from calibrate.device_identity import Probe, rise_s
from calibrate.device_opening import idle_looks
from calibrate.power_meter import Meter, Watched
from calibrate.session import log_stamp
from hw.device_settings import DeviceSpec
from hw.networks.network_files import ModelFile
from hw.telemetry import NvmlSensor, Sensor
from hw.transport.messages import Point
from sim.device_profile import DeviceInfo
from tests.calibrate.fake import model_costs
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
