"""`slimsched devices`: per field what works and how, or why not; in words and as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any, cast

import pynvml
import pytest

from hw.device import DeviceSpec, formats_of, ways_of
from scenarios.cli import main
from scenarios.executors.devices import as_calibrated, candidates, device_spec
from scenarios.files.spec import DeviceSection
from tests import worlds
from tests.hw.fake_nvml import HOPPER, MAXWELL, FakeBoard, FakeNvml


@pytest.fixture
def two_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old GPU, and a new one whose counter is for administrators."""
    denied = {"nvmlDeviceGetTotalEnergyConsumption": pynvml.NVML_ERROR_NO_PERMISSION}
    fake = FakeNvml(FakeBoard(MAXWELL, "GTX 980 Ti"), FakeBoard(HOPPER, "H200", refused=denied))
    monkeypatch.setitem(sys.modules, "pynvml", cast(ModuleType, fake))


def test_devices_says_what_works_and_why_not(two_boards: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A block for each device, a line for each field and fact."""
    assert main(["devices"]) == 0
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


def test_devices_as_json(two_boards: None, capsys: pytest.CaptureFixture[str]) -> None:
    """`telemetry` is a word for each field, `facts` what the board says of itself."""
    assert main(["devices", "--json", "-", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "slimsched.devices/1"
    assert [device["name"] for device in document["devices"][:2]] == ["GTX 980 Ti", "H200"]
    assert document["devices"][1]["telemetry"]["power"] == "polled (NVML, instant)"
    assert document["devices"][1]["facts"]["architecture"] == "Hopper"
    assert document["devices"][2]["facts"] == {}


LAST = DeviceSpec(kind="cuda")
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
def test_what_a_scenario_leaves_open_is_measured(given: dict[str, Any], wanted: list[DeviceSpec]) -> None:
    """The first is what there would be without; where one way is left there is nothing to race. A CPU has no choice."""
    section = DeviceSection(kind="cuda", vram_gb=1, **given)
    spec = replace(device_spec(section), vram_bytes=LAST.vram_bytes)
    assert list(candidates(spec, section)) == wanted
    assert candidates(DeviceSpec()) == ()


@pytest.mark.parametrize(
    "given, wanted",
    [
        ({}, (False, "float32")),
        ({"memory_format": "channels_last"}, (True, "float32")),
        ({"dtype": "measured"}, (False, "bfloat16")),
        ({"memory_format": "channels_last", "dtype": "float16"}, (True, "float16")),
    ],
)
def test_a_gpu_serves_as_it_was_calibrated(given: dict[str, Any], wanted: tuple[bool, str]) -> None:
    """Where the scenario does not say otherwise; a CPU's profile changes nothing."""
    execution = {"memory_format": "contiguous", "dtype": "bfloat16"}
    profile = worlds.profile(execution=execution)
    section = DeviceSection(kind="cuda", vram_gb=1, **given)
    found = as_calibrated(device_spec(section), section, profile)
    assert (found.channels_last, found.dtype) == wanted
    assert as_calibrated(DeviceSpec(), DeviceSection(), profile) == DeviceSpec()


def test_ways_survive_a_profile() -> None:
    """Each by its name."""
    spec = replace(FIRST, graphs=True, packed_weights=True)
    said = spec.execution()
    assert said["ways"] == "graphs, packed weights"
    assert replace(LAST, **ways_of(said), **formats_of(said)) == spec
    assert not any(ways_of({}).values())
    assert formats_of({"dtype": "int8"}) == {}
