"""`slimsched list devices`: per field what works and how, or why not; in words and as JSON."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pynvml
import pytest
import torch

from hw.device_settings import DeviceSpec
from hw.router.server_port import HardwareServer
from kit.errors import InputError
from scenarios.executors.device_choice import as_calibrated, candidates, chosen_devices, device_spec, why_unseen
from scenarios.executors.executor_runs import hardware_servers, on_own_cores, warm_batches
from scenarios.executors.preflight import require_device
from scenarios.experiment.scenario_building import load_experiment
from scenarios.files.scenario_keys import DeviceSection
from scenarios.files.scenario_reading import load_scenario
from scenarios.job.job_stages import Run
from slimsched.cli import main
from tests import tiny
from tests.hw.fake_nvml import HOPPER, MAXWELL, FakeNvml, FakeNvmlDevice
from tests.hw.tiny import params
from tests.scenarios.files import SEGMENTS, WIDTHS, write_scenario


@pytest.fixture
def two_nvml_devices(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """An old GPU, and a new one whose counter is for administrators."""
    denied = {"nvmlDeviceGetTotalEnergyConsumption": pynvml.NVML_ERROR_NO_PERMISSION}
    fake = FakeNvml(FakeNvmlDevice(MAXWELL, "GTX 980 Ti"), FakeNvmlDevice(HOPPER, "H200", refused=denied))
    monkeypatch.setitem(sys.modules, "pynvml", cast(ModuleType, fake))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def test_devices_says_what_works_and_why_not(two_nvml_devices: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "devices"]) == 0
    first, second, third = ("\ncuda:0", "\ncuda:1", "\ncpu:")
    old, rest = f"\n{capsys.readouterr().out}".removeprefix(first).split(second)
    new, cpu = rest.split(third)
    assert old.startswith("  GTX 980 Ti, 8.6 GB\n")
    lines = {words[0]: " ".join(words[1:]) for line in new.splitlines()[1:] if (words := line.split())}
    assert lines["power"] == "polled (NVML, instant)"
    assert lines["energy"].startswith("absent (Insufficient Permissions; only administrators may read this here")
    assert lines["sm_utilization"] == "polled (NVML GPM)"
    assert (lines["driver"], lines["mig_mode"], lines["sm_clock_mhz"]) == ("999.10", "0", "1500")
    assert "  energy            absent (Not Supported)" in old
    assert "mig_mode" not in old
    assert "modelled" in cpu or "RAPL" in cpu


def test_a_lost_gpu_is_a_line(
    two_nvml_devices: FakeNvml, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `list devices`, and what torch can't open is none of this machine's devices, and refused where it is named."""
    two_nvml_devices.nvml_devices[1].lost = True
    assert main(["list", "devices"]) == 0
    found = capsys.readouterr().out
    assert "cuda:0  GTX 980 Ti, 8.6 GB\n" in found
    assert "cuda:1  can't be used: GPU is lost\n" in found

    def properties(index: int) -> Any:
        if index == 1:
            raise RuntimeError("CUDA error: unknown error\nCUDA kernel errors might be reported later")
        return SimpleNamespace(total_memory=6 * 10**9)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", properties)
    assert [(name, device.vram_bytes) for name, device in chosen_devices("cuda")] == [("cuda:0", 6 * 10**9)]
    assert device_spec(DeviceSection(kind="cuda", index=1)).vram_bytes == DeviceSpec().vram_bytes
    with pytest.raises(InputError, match=r"s\.yaml: d\.index: cuda:1 can't be opened \(CUDA error: unknown error"):
        require_device(DeviceSection(kind="cuda", index=1), "s.yaml", "d")
    two_nvml_devices.nvml_devices[0].lost = True
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert why_unseen() == "NVIDIA's library reports: GPU is lost"


def test_a_lost_gpu_is_told_before_work(
    two_nvml_devices: FakeNvml, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two_nvml_devices.nvml_devices[0].lost = True
    said: list[str] = []
    job = Run(load_scenario(write_scenario(tmp_path)), tmp_path / "run", say=said.append)
    assert [device["problem"] for device in job.environment["devices"][:2]] == ["GPU is lost", ""]
    assert said == ["warning: cuda:0 can't be used: GPU is lost"]
    command = ["calibrate", "--model", "slimresnet-pairs", "--device", "none", "--out", str(tmp_path / "c")]
    assert main(command) == 2
    assert said[0] in capsys.readouterr().err.splitlines()


LAST = DeviceSpec(kind="cuda", graphs=True)
FIRST = replace(LAST, channels_last=False)


@pytest.mark.parametrize(
    "given, wanted",
    [
        ({}, [LAST, FIRST]),
        ({"memory_format": "contiguous"}, []),
        ({"memory_format": "contiguous", "dtype": "measured"}, [FIRST, replace(FIRST, dtype="bfloat16")]),
        ({"dtype": "float16"}, [replace(LAST, dtype="float16"), replace(FIRST, dtype="float16")]),
    ],
)
def test_device_settings_left_open_become_measured_candidates(given: dict[str, Any], wanted: list[DeviceSpec]) -> None:
    """The first candidate is the default; a single one is not measured. A CPU has no choice."""
    section = DeviceSection(kind="cuda", vram_gb=1, **given)
    spec = replace(device_spec(section), vram_bytes=LAST.vram_bytes)
    assert list(candidates(spec, section)) == wanted
    assert candidates(DeviceSpec()) == ()


@pytest.mark.parametrize(
    "given, wanted",
    [
        ({}, (False, "float32", False)),
        ({"memory_format": "channels_last"}, (True, "float32", False)),
        ({"dtype": "measured"}, (False, "bfloat16", False)),
        ({"memory_format": "channels_last", "dtype": "float16"}, (True, "float16", False)),
        ({"graphs": True}, (False, "float32", True)),
    ],
)
def test_a_gpu_serves_as_it_was_calibrated(given: dict[str, Any], wanted: tuple[bool, str, bool]) -> None:
    execution = {"memory_format": "contiguous", "dtype": "bfloat16"}
    profile = tiny.profile(execution=execution)
    section = DeviceSection(kind="cuda", vram_gb=1, **given)
    found = as_calibrated(device_spec(section), section, profile)
    assert (found.channels_last, found.dtype, found.graphs) == wanted
    assert as_calibrated(DeviceSpec(), DeviceSection(), profile) == DeviceSpec()


def test_sensors_are_what_profiles_say(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    slow = tiny.profile("slow", segments=SEGMENTS, widths=WIDTHS, batches=(1, 4, 16), speed=0.5)
    slow = slow.model_copy(update={"sensor": slow.sensor.model_copy(update={"period_s": 0.5})})
    (tmp_path / "slow.yaml").write_text(slow.to_yaml())
    servers = hardware_servers(load_experiment(path))
    assert [server.name for server in servers] == ["fast", "slow"]
    assert {server.context_idle_w for server in servers} == {slow.power.context_idle_w}
    assert [server.sensor_period_s for server in servers] == [0.05, 0.5]


@pytest.mark.parametrize(
    ("devices", "machine", "cores"),
    [
        (("cuda", "cuda"), 12, [(1, 2, 3, 4, 5), (6, 7, 8, 9, 10)]),
        (("cuda", (1, 2)), 8, [(3, 4, 5, 6, 7), (1, 2)]),  # the router's is the first that nobody names
        (("cuda", (0,), (5, 6)), 9, [(2, 3, 4, 7, 8), (0,), (5, 6)]),
        (("cuda", "cuda"), 10, [(), ()]),
        (("cuda", ()), 16, [(), ()]),  # whoever may run anywhere leaves nobody a core
        (((0,), (1,)), 16, [(0,), (1,)]),
    ],
)
def test_gpus_have_cores_to_themselves_where_there_are_enough(
    devices: tuple[str | tuple[int, ...], ...], machine: int, cores: list[tuple[int, ...]]
) -> None:
    specs = [
        DeviceSpec(kind="cuda") if device == "cuda" else DeviceSpec(cores=tuple(map(int, device))) for device in devices
    ]
    servers = [HardwareServer(f"s{place}", spec, params(), 0.0, 0.0) for place, spec in enumerate(specs)]
    assert [server.device.cores for server in on_own_cores(servers, range(machine))] == cores


def test_every_size_of_few_is_warmed_up_and_of_many_the_powers_of_two() -> None:
    assert warm_batches(5) == (1, 2, 3, 4, 5)
    assert warm_batches(100) == (1, 2, 4, 8, 16, 32, 64, 100)
    assert warm_batches(64) == (1, 2, 4, 8, 16, 32, 64)
