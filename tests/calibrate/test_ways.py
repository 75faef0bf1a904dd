"""How a GPU computes while it is measured: the quickest way, once, and as its log began."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from calibrate.calibration import CalibrationRequest
from calibrate.log import SCHEMA, logged_stamp
from calibrate.plan import full_grid
from calibrate.ways import settled
from hw.device import DeviceSpec
from hw.devices.formats import Way
from hw.networks.registry import ModelFile

LAST = DeviceSpec(kind="cuda")
FIRST = replace(LAST, channels_last=False)
FILE = ModelFile(Path("model.safetensors"))


def _wanted(
    log_path: Path, device: DeviceSpec = LAST, candidates: tuple[DeviceSpec, ...] = (LAST, FIRST)
) -> CalibrationRequest:
    return CalibrationRequest(FILE, device, 60.0, 12, log_path, peer=device, candidates=candidates)


def _first_wins(file: ModelFile, ways: Sequence[DeviceSpec], batch: int) -> list[Way]:
    assert (file, batch) == (FILE, 12)
    return [Way(LAST, 2.0, 1.0), Way(FIRST, 1.0, 1.0)]


def _never(file: ModelFile, ways: Sequence[DeviceSpec], batch: int) -> list[Way]:
    raise AssertionError("nothing is left open")


def test_the_quickest_way_is_measured_and_told(tmp_path: Path) -> None:
    """And each load is warmed over the grid that serving pads to; the peer on the same device computes alike."""
    found, words = settled(_wanted(tmp_path / "log"), _first_wins)
    assert found.device == found.peer == replace(FIRST, warm_sizes=full_grid(12))
    assert words == "float32 channels_last 2e+03 ms, 100.0 % of labels; float32 contiguous 1e+03 ms, 100.0 % of labels"


@pytest.mark.parametrize("memory_format, wanted", [("contiguous", FIRST), ("channels_last", LAST)])
def test_a_log_that_is_gone_on_with_has_settled_it(tmp_path: Path, memory_format: str, wanted: DeviceSpec) -> None:
    """Timed again the other might win, and the log would be refused."""
    path = tmp_path / "log"
    stamp = {"execution.memory_format": memory_format, "execution.dtype": "float32"}
    path.write_text(json.dumps({"schema": SCHEMA, "stamp": stamp}) + "\n")
    found, words = settled(_wanted(path), _never)
    assert (found.device, words) == (replace(wanted, warm_sizes=full_grid(12)), "")


@pytest.mark.parametrize("text", ["", "no log\n", '{"schema": 1}\n', '{"stamp": {"a": "b"}}\n'])
def test_what_is_no_log_settles_nothing(tmp_path: Path, text: str) -> None:
    """It is refused later, by who opens it."""
    path = tmp_path / "log"
    path.write_text(text)
    assert logged_stamp(path) == {}
    assert settled(_wanted(path), _first_wins)[0].device == replace(FIRST, warm_sizes=full_grid(12))


def test_a_cpu_and_what_is_given_are_left_as_they_are(tmp_path: Path) -> None:
    """Nothing is timed."""
    given = _wanted(tmp_path / "log", FIRST, ())
    assert settled(given, _never)[0].device == replace(FIRST, warm_sizes=full_grid(12))
    cpu = _wanted(tmp_path / "log", DeviceSpec(), ())
    assert settled(cpu, _never) == (cpu, "")
