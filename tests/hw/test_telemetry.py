"""Sensors: what works is said, what does not is None, and nothing is guessed."""

from __future__ import annotations

import os
import time  # noqa: TID251 - sensors read real clocks
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hw.telemetry import (
    AbsentSensor,
    CpuShare,
    ModelledCpuSensor,
    NvmlSensor,
    RaplCounter,
    RaplSensor,
    available_devices,
    cpu_sensor,
    nvml_handle,
    process_cpu_s,
)


class FakeNvml:
    """NVML as documented: milliwatts, percent, bytes, millijoules; refuses what a board does not have."""

    class NVMLError(Exception):
        pass

    def __init__(self, refused: tuple[str, ...] = ()) -> None:
        self.refused = refused

    def _ask(self, name: str, value: Any) -> Any:
        if name in self.refused:
            raise self.NVMLError(f"{name}: Not Supported")
        return value

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"index {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return f"uuid {uuid}"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "Board"

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[Any]:
        refused = "instant" in self.refused
        return [SimpleNamespace(nvmlReturn=3 if refused else 0, value=SimpleNamespace(uiVal=123_000)) for _ in fields]

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return int(self._ask("power", 100_000))

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return self._ask("utilization", SimpleNamespace(gpu=40, memory=5))

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return self._ask("vram", SimpleNamespace(total=8 << 30, used=1 << 30, free=7 << 30))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return int(self._ask("energy", 5_500))


def test_nvml_units_and_fields() -> None:
    """Milliwatts, percent and millijoules become watts, shares and joules; the instant power is preferred."""
    sensor = NvmlSensor(FakeNvml(), "handle")
    reading = sensor.sample()
    assert (reading.power_w, reading.utilization, reading.vram_used_bytes) == (123.0, 0.4, 1 << 30)
    assert set(reading.provenance.values()) == {"polled"}
    assert sensor.energy_j() == 5.5
    assert sensor.describe()["energy"].startswith("measured")


@pytest.mark.parametrize("refused", ["power", "utilization", "vram", "energy"])
def test_a_refused_field_is_absent_and_the_others_work(refused: str) -> None:
    """One refusal (old board, MIG, driver) takes nothing else with it, and its reason is told."""
    sensor = NvmlSensor(FakeNvml((refused, "instant")), "handle")
    told = sensor.describe()
    assert told.pop(refused) == f"absent ({refused}: Not Supported)"
    assert not any(text.startswith("absent") for text in told.values())
    reading = sensor.sample()
    field = {"power": "power_w", "utilization": "utilization", "vram": "vram_used_bytes"}.get(refused)
    if field is None:
        assert sensor.energy_j() is None
    else:
        assert getattr(reading, field) is None
        assert field not in reading.provenance


def test_visible_devices_are_followed() -> None:
    """Torch's index goes through CUDA_VISIBLE_DEVICES, by number or by UUID."""
    nvml = FakeNvml()
    assert nvml_handle(nvml, 1, "") == "index 1"
    assert nvml_handle(nvml, 1, "3,2") == "index 2"
    assert nvml_handle(nvml, 0, "GPU-abc") == "uuid GPU-abc"


def test_cpu_power_is_modelled_between_idle_and_tdp() -> None:
    """P = idle + (TDP - idle) u, where u is the share of the cores that this process really used."""
    sensor = ModelledCpuSensor(CpuShare([os.getpid()], 1), 10.0, 110.0, lambda: 7)
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    busy = sensor.sample()
    assert busy.utilization is not None
    assert busy.power_w == pytest.approx(10 + 100 * busy.utilization)
    assert busy.provenance["power_w"] == "modelled"
    assert busy.vram_used_bytes == 7
    time.sleep(0.05)
    idle = sensor.sample()
    assert idle.utilization is not None
    assert idle.utilization < busy.utilization
    assert sensor.energy_j() is None


def test_a_process_clock_counts_its_own_cpu_time() -> None:
    """The clock behind a pid equals what that process reads of itself, and a dead one reads 0."""
    before, mine = process_cpu_s(os.getpid()), time.process_time()
    assert before == pytest.approx(mine, abs=0.02)
    assert process_cpu_s(2**22 + 12345) == 0.0


def _zone(root: Path, name: str, energy_uj: int) -> Path:
    zone = root / name
    zone.mkdir(parents=True, exist_ok=True)
    (zone / "energy_uj").write_text(str(energy_uj))
    (zone / "max_energy_range_uj").write_text("1000000")
    return zone


def test_rapl_adds_packages_and_survives_a_wrap(tmp_path: Path) -> None:
    """Packages add up, their parts do not count twice, and a wrapped counter goes on."""
    zones = [_zone(tmp_path, "intel-rapl:0", 900_000), _zone(tmp_path, "intel-rapl:1", 0)]
    part = _zone(tmp_path, "intel-rapl:0:0", 0)
    counter = RaplCounter(tmp_path)
    (part / "energy_uj").write_text("50000")
    (zones[0] / "energy_uj").write_text("100000")
    (zones[1] / "energy_uj").write_text("300000")
    assert counter.energy_j() == pytest.approx(0.2 + 0.3)
    assert counter.energy_j() == pytest.approx(0.5)
    with pytest.raises(OSError, match="no RAPL"):
        RaplCounter(tmp_path / "nowhere")


def test_rapl_serves_only_a_device_that_is_the_whole_machine(tmp_path: Path) -> None:
    """A package's counter cannot tell cores apart, so a part of the cores is modelled."""
    _zone(tmp_path, "intel-rapl:0", 0)
    every = range(os.cpu_count() or 1)
    assert isinstance(cpu_sensor([os.getpid()], every, 1, 2, lambda: 0, tmp_path), RaplSensor)
    assert isinstance(cpu_sensor([os.getpid()], [*every, 99], 1, 2, lambda: 0, tmp_path), ModelledCpuSensor)
    assert isinstance(cpu_sensor([os.getpid()], every, 1, 2, lambda: 0, tmp_path / "none"), ModelledCpuSensor)


def test_absent_says_so() -> None:
    """No sensor, no numbers."""
    reading = AbsentSensor().sample()
    assert (reading.power_w, reading.utilization, reading.vram_used_bytes) == (None, None, None)
    assert set(AbsentSensor().describe().values()) == {"absent"}


def test_devices_are_listed_with_their_telemetry() -> None:
    """Every GPU that NVML knows, then the CPU; each says what works."""
    *gpus, cpu = available_devices(FakeNvml(("energy",)))
    assert [(gpu.kind, gpu.index, gpu.name, gpu.vram_bytes) for gpu in gpus] == [
        ("cuda", 0, "Board", 8 << 30),
        ("cuda", 1, "Board", 8 << 30),
    ]
    assert gpus[0].telemetry["energy"].startswith("absent")
    assert cpu.kind == "cpu"
    assert cpu.cores
    assert "power" in cpu.telemetry
