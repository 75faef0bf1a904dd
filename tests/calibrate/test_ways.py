"""How a GPU computes while it is measured: the fastest way, once, and as its log began."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from calibrate.calibration_log import SCHEMA, CalibrationRequest, logged_stamp
from calibrate.device_opening import settled
from calibrate.measurement_plan import padded_sizes, powers_of_two
from hw.device_settings import DeviceSpec
from hw.networks.network_files import ModelFile
from hw.worker.instances import ComputeMode

LAST = DeviceSpec(kind="cuda")
FIRST = replace(LAST, channels_last=False)
FILE = ModelFile(Path("model.safetensors"))


def _wanted(
    log_path: Path, device: DeviceSpec = LAST, candidates: tuple[DeviceSpec, ...] = (LAST, FIRST)
) -> CalibrationRequest:
    return CalibrationRequest(FILE, device, 60.0, 32, log_path, peer=device, candidates=candidates)


def _first_wins(file: ModelFile, ways: Sequence[DeviceSpec], batches: Sequence[int]) -> list[ComputeMode]:
    """Its fixed part of a pass is small: 12 images padded to 16 would cost more than a pass saves."""
    assert (file, tuple(batches)) == (FILE, (1, 2, 4, 8, 16, 32))
    return [ComputeMode(way, {batch: (1 + (way == LAST)) * batch for batch in batches}, 1.0) for way in ways]


def _never(file: ModelFile, ways: Sequence[DeviceSpec], batches: Sequence[int]) -> list[ComputeMode]:
    raise AssertionError("nothing is left open")


SIZES = (1, 2, 4, 8, 12, 16, 24, 32)


@pytest.mark.parametrize(
    "fixed_s, image_s, halfway",
    [(1.0, 0.05, ()), (1.0, 0.2, (24,)), (1.0, 0.5, (12, 24)), (0.0, 1.0, (12, 24)), (1.0, 0.0, ())],
)
def test_a_size_half_way_is_given_if_padding_costs_more_than_a_pass_saves(
    fixed_s: float, image_s: float, halfway: tuple[int, ...]
) -> None:
    """Four images more than 12, or eight more than 24, against the pass of one image."""
    micro_batch_s = {batch: fixed_s + image_s * batch for batch in powers_of_two(32)}
    assert set(padded_sizes(32, micro_batch_s)) - set(powers_of_two(32)) == set(halfway)


def test_a_limit_within_the_powers_has_no_size_beyond_it() -> None:
    assert padded_sizes(12, {batch: float(batch) for batch in (1, 2, 4, 8, 12)}) == (1, 2, 4, 8, 12)


def test_the_quickest_way_is_measured_and_told(tmp_path: Path) -> None:
    """And each load is warmed over the grid that serving pads to; the peer on the same device computes alike."""
    found, words = settled(_wanted(tmp_path / "log"), _first_wins)
    assert found.device == found.peer == replace(FIRST, warm_sizes=SIZES)
    assert words == "; ".join(map(str, _first_wins(FILE, (LAST, FIRST), (1, 2, 4, 8, 16, 32))))


@pytest.mark.parametrize("memory_format, wanted", [("contiguous", FIRST), ("channels_last", LAST)])
def test_a_log_that_is_gone_on_with_has_settled_it(tmp_path: Path, memory_format: str, wanted: DeviceSpec) -> None:
    """Timed again the other might win, and the log would be refused."""
    path = tmp_path / "log"
    stamp = {"execution.memory_format": memory_format, "execution.dtype": "float32", "padded_sizes": "1,2,32"}
    path.write_text(json.dumps({"schema": SCHEMA, "stamp": stamp}) + "\n")
    found, words = settled(_wanted(path), _never)
    assert (found.device, words) == (replace(wanted, warm_sizes=(1, 2, 32)), "")


@pytest.mark.parametrize("text", ["", "no log\n", '{"schema": 1}\n', '{"stamp": {"a": "b"}}\n'])
def test_file_that_is_not_a_log_does_not_settle_the_way_of_computing(tmp_path: Path, text: str) -> None:
    """The file is refused later, when the log is opened."""
    path = tmp_path / "log"
    path.write_text(text)
    assert logged_stamp(path) == {}
    assert settled(_wanted(path), _first_wins)[0].device == replace(FIRST, warm_sizes=SIZES)


def test_a_cpu_and_what_is_given_are_left_as_they_are(tmp_path: Path) -> None:
    given = _wanted(tmp_path / "log", FIRST, ())
    found, words = settled(given, _first_wins)
    assert (found.device, words) == (replace(FIRST, warm_sizes=SIZES), "")
    cpu = _wanted(tmp_path / "log", DeviceSpec(), ())
    assert settled(cpu, _never) == (cpu, "")
