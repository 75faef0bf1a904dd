"""`slimsched devices`: per field what works and how, or why not; in words and as JSON."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import cast

import pynvml
import pytest

from scenarios.cli import main
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
