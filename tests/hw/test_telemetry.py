"""Sensors: what works is said, what does not is None, and nothing is guessed."""

from __future__ import annotations

import gc
import os
import time  # noqa: TID251 - sensors read real clocks
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from hw.telemetry import (
    CpuShare,
    ModelledCpuSensor,
    NvmlSensor,
    RaplCounter,
    RaplSensor,
    Reading,
    available_devices,
    cpu_sensor,
    nvml_device_facts,
    nvml_handle,
    process_cpu_s,
    unusable_devices,
    used_vram_bytes,
)
from hw.telemetry.nvml import TIMINGS, handle_of, other_processes
from kit.errors import InputError
from tests.hw.fake_nvml import AMPERE, HOPPER, MAXWELL, TURING, VOLTA, FakeNvml, FakeNvmlDevice, Handle, Make

pytestmark = pytest.mark.workers


def sensor_of(nvml_device: FakeNvmlDevice, missing: tuple[str, ...] = (), unnamed: tuple[str, ...] = ()) -> NvmlSensor:
    return NvmlSensor(FakeNvml(nvml_device, missing=missing, unnamed=unnamed), Handle(nvml_device), nvml_device.now_ns)


def test_units_and_provenance() -> None:
    """Milliwatts, percent and millijoules become watts, shares and joules, and each shows where it came from."""
    nvml_device = FakeNvmlDevice(idle_w=60.0)
    sensor = sensor_of(nvml_device)
    reading = sensor.sample()
    assert reading.power_w == pytest.approx(60.0)
    assert (reading.utilization, reading.vram_used_bytes) == (0.0, 1 << 30)
    assert set(reading.provenance.values()) == {"polled"}
    before_j = sensor.energy_j()
    nvml_device.advance(2.0)
    after_j = sensor.energy_j()
    assert before_j is not None
    assert after_j is not None
    assert after_j - before_j == pytest.approx(2.0 * 60.0, rel=1e-3)
    assert sensor.describe()["energy"] == "measured (NVML counter)"


@pytest.mark.parametrize(
    "make, power, energy, utilization_of_sms",
    [
        (MAXWELL, "polled (NVML, averaged over 0.1 s)", "absent (Not Supported)", "absent (Not Supported)"),
        (TURING, "polled (NVML, averaged over 0.1 s)", "measured (NVML counter)", "absent (GPM needs"),
        (VOLTA, "polled (NVML, averaged over 0.02 s)", "measured (NVML counter)", "absent (GPM needs"),
        (AMPERE, "polled (NVML, instant)", "measured (NVML counter)", "absent (GPM needs"),
        (HOPPER, "polled (NVML, instant)", "measured (NVML counter)", "polled (NVML GPM)"),
    ],
)
def test_each_architecture_says_what_it_has(make: Make, power: str, energy: str, utilization_of_sms: str) -> None:
    """A GTX 980 Ti has no counter and no instant reading; only Hopper and later tell how full the SMs are."""
    nvml_device = FakeNvmlDevice(make)
    if make == MAXWELL:  # not even the question
        nvml_device.refused["nvmlGpmQueryDeviceSupport"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    sensor = sensor_of(nvml_device)
    told = sensor.describe()
    assert (told["power"], told["energy"]) == (power, energy)
    assert told["sm_utilization"].startswith(utilization_of_sms)
    assert sensor.architecture.upper() == make.architecture
    assert (sensor.energy_j() is None) == (sensor.supports()["energy"].provenance is None)


def test_an_architecture_that_nobody_measured_is_taken_for_the_slowest() -> None:
    sensor = sensor_of(FakeNvmlDevice(replace(TURING, architecture="PASCAL")))
    assert sensor.describe()["power"] == "polled (NVML, averaged over an unknown time)"
    assert sensor.timing.window_s == max(timing.window_s for timing in TIMINGS.values())
    assert sensor.timing.rise_s == max(timing.rise_s for timing in TIMINGS.values())


def test_instant_and_average_power_are_two_readings() -> None:
    """Half a second after a step of the load the instant reading is there, the average is half-way."""
    nvml_device = FakeNvmlDevice(HOPPER, rise_s=0.001)
    sensor = sensor_of(nvml_device)
    nvml_device.load = 1.0
    nvml_device.advance(0.5)
    assert sensor.sample().power_w == pytest.approx(nvml_device.busy_w, rel=0.01)
    assert sensor.details().power_average_w == pytest.approx((nvml_device.busy_w + nvml_device.idle_w) / 2, rel=0.02)


def test_a_sensor_that_goes_leaves_no_buffers() -> None:
    """The library would keep them for as long as the process lives; a lost device is not a trouble then."""
    nvml_device = FakeNvmlDevice(HOPPER)
    nvml = FakeNvml(nvml_device)
    for _ in range(3):
        sensor = NvmlSensor(nvml, Handle(nvml_device), nvml_device.now_ns)
        sensor.details()
        assert len(nvml._buffers) == 2
        del sensor
        gc.collect()
        assert nvml._buffers == {}


def test_gpm_tells_shares_between_looks() -> None:
    """SMs, warps and memory bus over the time since the look before; a look at once repeats the last."""
    nvml_device = FakeNvmlDevice(HOPPER)
    sensor = sensor_of(nvml_device)
    assert sensor.details().sm_utilization is None  # one look says nothing
    nvml_device.load = 1.0
    nvml_device.advance(0.3)
    busy = sensor.details()
    assert [busy.sm_utilization, busy.sm_occupancy, busy.dram_bandwidth] == pytest.approx([0.8, 0.3, 0.1])
    nvml_device.load = 0.0
    nvml_device.advance(0.05)
    assert sensor.details().sm_utilization == busy.sm_utilization
    nvml_device.advance(0.3)
    later = sensor.details().sm_utilization
    assert later is not None
    assert later < 0.01
    assert busy.throttling == ("SwPowerCap",)
    assert (busy.sm_clock_mhz, busy.temperature_c) == (1500, 41)


@pytest.mark.parametrize(
    "field, functions, lost",
    [
        ("power", ("nvmlDeviceGetPowerUsage", "NVML_FI_DEV_POWER_INSTANT"), {"power", "power_average"}),
        ("utilization", ("nvmlDeviceGetUtilizationRates",), {"utilization"}),
        ("vram", ("nvmlDeviceGetMemoryInfo",), {"vram"}),
        ("energy", ("nvmlDeviceGetTotalEnergyConsumption",), {"energy"}),
    ],
)
def test_a_refused_field_is_absent_and_the_others_work(field: str, functions: tuple[str, ...], lost: set[str]) -> None:
    """One refusal (old board, MIG, driver) takes nothing else with it, and its reason is told."""
    refused = {*functions, "NVML_FI_DEV_POWER_AVERAGE"} if field == "power" else functions
    sensor = sensor_of(FakeNvmlDevice(HOPPER, refused=dict.fromkeys(refused, pynvml.NVML_ERROR_NOT_SUPPORTED)))
    told = sensor.describe()
    assert told[field] == "absent (Not Supported)"
    assert {name for name, text in told.items() if text.startswith("absent")} == lost
    reading = sensor.sample()
    given = {"power": reading.power_w, "utilization": reading.utilization, "vram": reading.vram_used_bytes}
    assert {name for name, value in given.items() if value is None} == lost & set(given)
    assert {"power_w", "utilization", "vram_used_bytes"} - set(reading.provenance) == {
        {"power": "power_w", "utilization": "utilization", "vram": "vram_used_bytes"}[name]
        for name in lost & set(given)
    }


@pytest.mark.parametrize(
    "nvml_device, library, field, told",
    [
        (
            {"refused": {"NVML_FI_DEV_POWER_INSTANT": pynvml.NVML_ERROR_NOT_SUPPORTED}},
            {},
            "power",
            "polled (NVML, averaged over 1 s)",
        ),
        (
            {"refused": {"nvmlDeviceGetTotalEnergyConsumption": pynvml.NVML_ERROR_NO_PERMISSION}},
            {},
            "energy",
            "absent (Insufficient Permissions; only administrators may read this here: run as one, or ask for access",
        ),
        (
            {},
            {"missing": ("nvmlDeviceGetTotalEnergyConsumption",)},
            "energy",
            "absent (Function Not Found; the driver is too old",
        ),
        (
            {},
            {"unnamed": ("nvmlGpmQueryDeviceSupport",)},
            "sm_utilization",
            "absent (the installed nvidia-ml-py lacks nvmlGpmQueryDeviceSupport; remedy: pip install",
        ),
    ],
)
def test_sensor_field_missing_in_the_driver_or_library_is_described_with_a_remedy(
    nvml_device: dict[str, Any], library: dict[str, tuple[str, ...]], field: str, told: str
) -> None:
    words = sensor_of(FakeNvmlDevice(**nvml_device), **library).describe()
    assert words[field].startswith(told)
    assert words["power"].startswith("polled")


def test_a_mig_instance_has_no_power_and_no_utilization_of_its_own() -> None:
    """Its share of the multiprocessors comes from the whole GPU's GPM, asked for that instance."""
    nvml_device = FakeNvmlDevice(HOPPER, mig=True)
    sensor = NvmlSensor(nvml := FakeNvml(nvml_device), handle_of(nvml, "MIG-0"), nvml_device.now_ns)
    told = sensor.describe()
    assert told["utilization"] == "absent (Not Supported; NVML does not report it under MIG)"
    assert told["power"].startswith("absent")
    assert told["energy"].startswith("absent")
    assert told["sm_utilization"] == "polled (NVML GPM)"
    nvml_device.load = 1.0
    nvml_device.advance(0.3)
    assert sensor.details().sm_utilization == pytest.approx(0.8)
    assert sensor.sample().utilization is None


def test_a_gpu_under_mig_says_that_its_power_is_of_all_its_instances() -> None:
    told = sensor_of(FakeNvmlDevice(HOPPER, mig=True)).describe()
    assert told["power"] == "polled (NVML, instant, of the whole GPU: MIG is on)"
    assert told["energy"] == "measured (NVML counter, of the whole GPU: MIG is on)"
    assert told["utilization"] == "absent (Not Supported; NVML does not report it under MIG)"
    assert told["vram"] == "polled (NVML)"


def test_a_device_that_is_lost_says_so_and_nothing_else() -> None:
    """No exception in a sampling loop: the reading says that the device is gone, and goes on saying it."""
    nvml_device = FakeNvmlDevice()
    sensor = sensor_of(nvml_device)
    assert not sensor.sample().lost
    nvml_device.lost = True
    assert sensor.sample() == Reading(None, None, None, {}, lost=True)
    assert sensor.energy_j() is None
    assert sensor_of(nvml_device).describe()["power"] == "absent (GPU is lost)"


@pytest.mark.parametrize(
    "visible, shown, beyond",
    [
        (None, "abc", "no such device"),
        ("", "", "shows 0 devices"),
        ("1, 2", "bc", "shows 2 devices"),
        ("GPU-2", "c", "shows 1 devices"),
        ("2,-1,0", "c", "shows 1 devices"),
    ],
)
def test_visible_devices_are_followed(
    visible: str | None, shown: str, beyond: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA's index goes through CUDA_VISIBLE_DEVICES, by number or by UUID; what it hides is not listed."""
    show(monkeypatch, visible)
    nvml = FakeNvml(*(FakeNvmlDevice(name=name) for name in "abc"))
    assert [nvml_handle(nvml, index).nvml_device.name for index in range(len(shown))] == list(shown)
    assert [(gpu.index, gpu.name) for gpu in available_devices(nvml)[:-1]] == list(enumerate(shown))
    with pytest.raises(InputError, match=beyond):
        nvml_handle(nvml, len(shown))


def test_a_uuid_may_be_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml_devices = [
        FakeNvmlDevice(name=name, uuid=uuid) for name, uuid in (("a", "GPU-8932f937-d7"), ("b", "GPU-8900-1"))
    ]
    nvml = FakeNvml(*nvml_devices)
    show(monkeypatch, "GPU-8932")
    assert nvml_handle(nvml, 0).nvml_device.name == "a"
    show(monkeypatch, "GPU-8900-1")
    assert nvml_handle(nvml, 0).nvml_device.name == "b"
    show(monkeypatch, "GPU-89")
    with pytest.raises(InputError, match="NVML has no such device"):
        nvml_handle(nvml, 0)


def test_memory_that_a_device_does_not_tell_is_not_called_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, None)
    gpu, _ = available_devices(FakeNvml(FakeNvmlDevice(name="GB10"), missing=("nvmlDeviceGetMemoryInfo",)))
    assert gpu.state == "GB10, memory unknown"


def show(monkeypatch: pytest.MonkeyPatch, visible: str | None) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.parametrize("visible", [None, "2,1,0"])
def test_a_lost_device_costs_no_other(visible: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do odd bytes for a name; and where NVML can't count, the CPU is left."""
    show(monkeypatch, visible)
    found = available_devices(
        FakeNvml(FakeNvmlDevice(name=b"\xff"), FakeNvmlDevice(lost=True), FakeNvmlDevice(name="c"))
    )
    told = {0: "GPU, 8.6 GB", 1: "can't be used: GPU is lost", 2: "c, 8.6 GB"}
    assert [gpu.state for gpu in found[:-1]] == [told[index] for index in ((2, 1, 0) if visible else (0, 1, 2))]
    assert unusable_devices(found) == ["warning: cuda:1 can't be used: GPU is lost"]
    show(monkeypatch, None)
    gpu, cpu = available_devices(FakeNvml(FakeNvmlDevice(), missing=("nvmlDeviceGetCount",)))
    assert gpu.problem.startswith("NVML can't count the GPUs (Function Not Found")
    assert (cpu.kind, cpu.problem) == ("cpu", "")


def test_a_board_says_what_it_is() -> None:
    """Driver, architecture, clocks, heat, limit and mode; what one board lacks leaves the rest."""
    facts = nvml_device_facts(FakeNvml(nvml_device := FakeNvmlDevice(HOPPER, mig=True)), Handle(nvml_device))
    assert facts == {
        "architecture": "Hopper",
        "driver": "999.10",
        "sm_clock_mhz": "1500",
        "memory_clock_mhz": "2600",
        "temperature_c": "41",
        "power_limit_mw": "500000",
        "compute_mode": "default",
        "mig_mode": "1",
        "mps": "not in use",
        "throttling": "none",
    }
    old = FakeNvmlDevice(MAXWELL)
    assert set(facts) - set(nvml_device_facts(FakeNvml(old), Handle(old))) == {"mig_mode"}


def test_the_limit_is_the_one_that_clips() -> None:
    """Several may hold; an old library knows only the one that was set."""
    nvml_device = FakeNvmlDevice(enforced_w=350.0, compute_mode=3)
    facts = nvml_device_facts(FakeNvml(nvml_device), Handle(nvml_device))
    assert (facts["power_limit_mw"], facts["compute_mode"]) == ("350000", "exclusive process")
    old = FakeNvml(nvml_device, missing=("nvmlDeviceGetEnforcedPowerLimit",))
    assert nvml_device_facts(old, Handle(nvml_device))["power_limit_mw"] == "500000"


def test_processes_of_a_gpu_are_listed_without_those_of_the_run() -> None:
    """The list is None if NVML gives none, for example because its versions do not fit together."""
    nvml_device = FakeNvmlDevice(processes=[11, 12, 13])
    assert other_processes(FakeNvml(nvml_device), Handle(nvml_device), [12]) == [11, 13]
    old = FakeNvml(nvml_device, missing=("nvmlDeviceGetComputeRunningProcesses_v3",))
    assert other_processes(old, Handle(nvml_device), []) is None
    assert used_vram_bytes(FakeNvml(nvml_device), Handle(nvml_device)) == 1 << 30


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


def test_rapl_without_permission_says_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since Linux 5.10 only administrators may read the counter: power is modelled, and the words say what to do."""
    _zone(tmp_path, "intel-rapl:0", 0)

    def denied(_: Path) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(RaplCounter, "_read", staticmethod(denied))
    told = cpu_sensor([os.getpid()], range(os.cpu_count() or 1), 1, 2, lambda: 0, tmp_path).describe()
    assert told["power"].startswith("modelled")
    assert "sudo chmod a+r" in told["energy"]


def test_rapl_leaves_out_what_counts_a_package_twice(tmp_path: Path) -> None:
    """Some laptops show the whole platform as one more zone beside the package that it contains."""
    zones = [_zone(tmp_path, "intel-rapl:0", 0), _zone(tmp_path, "intel-rapl:1", 0)]
    for zone, name in zip(zones, ("package-0", "psys"), strict=True):
        (zone / "name").write_text(f"{name}\n")
    counter = RaplCounter(tmp_path)
    for zone in zones:
        (zone / "energy_uj").write_text("500000")
    assert counter.energy_j() == pytest.approx(0.5)
