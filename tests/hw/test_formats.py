"""Which way of computing is taken: the fastest whose labels are the same, and only where it is worth it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hw.device_settings import DeviceSpec
from hw.networks.network_files import ModelFile
from hw.subprocesses import here
from hw.worker.instances import MAY_LOSE, WORTH, ComputeMode, _Runner, fastest, race, raced
from kit.errors import InputError, WorkError

LAST, FIRST = DeviceSpec(channels_last=True), DeviceSpec(channels_last=False)
HALF = DeviceSpec(channels_last=False, dtype="bfloat16")


@pytest.fixture(autouse=True)
def _opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a device would change this very process: its cores, its niceness."""
    monkeypatch.setattr("hw.worker.instances.open_device", lambda device: torch.device("cpu"))


def _ways(*seconds: float, agreement: float = 1.0, first: float = 1.0) -> list[ComputeMode]:
    return [
        ComputeMode(device, {2: s}, first if device.dtype == "float32" else agreement)
        for device, s in zip((LAST, FIRST, HALF), seconds, strict=False)
    ]


@pytest.mark.parametrize(
    "ways, wanted",
    [
        (_ways(1.0, 0.5, 0.4), HALF),
        (_ways(1.0, 0.5, 0.4, agreement=1.0 - MAY_LOSE - 0.001), FIRST),
        (_ways(1.0, 1.0, 0.4, agreement=0.99, first=0.99), HALF),
        (_ways(1.0, 1.0 * WORTH + 0.001), LAST),
        (_ways(1.0, 2.0, 3.0), LAST),
        (_ways(1.0), LAST),
    ],
)
def test_the_quickest_is_taken_whose_labels_are_the_same(ways: list[ComputeMode], wanted: DeviceSpec) -> None:
    """What is hardly faster is not: the next calibration would say the other."""
    assert fastest(ways).device == wanted


def test_each_way_is_timed_on_the_same_images(path: Path) -> None:
    """Both orders of memory give the same labels; a format is in the words."""
    found = raced(ModelFile(path), (LAST, FIRST), [2, 1])
    assert [way.device for way in found] == [LAST, FIRST]
    assert all(way.pass_s > 0 and way.agreement == 1.0 for way in found)
    assert "channels_last" in str(found[0])
    assert "contiguous" in str(found[1])


def test_format_with_different_labels_is_reported_with_its_agreement(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way is held against the CPU's float32: the first one may be the one that computes something else."""
    as_they_are = _Runner.predictions

    def predictions(self: _Runner, images: torch.Tensor) -> torch.Tensor:
        is_half = self._maker.device.dtype == "bfloat16"
        return as_they_are(self, images) + (is_half & (images[:, 0, 0, 0] > 0.5))

    monkeypatch.setattr(_Runner, "predictions", predictions)
    half, full = raced(ModelFile(path), (HALF, FIRST), [2])
    assert full.agreement == 1.0
    assert half.agreement == pytest.approx(0.69, abs=0.1)


def test_a_race_leaves_nothing_behind_and_tells_what_is_wrong(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in a process of its own; a file that is not a model is the user's mistake, a lost device is not."""
    assert [way.device for way in race(ModelFile(path), (LAST, FIRST), [1])] == [LAST, FIRST]
    monkeypatch.setattr("hw.worker.instances.apart", here)  # each such process opens torch again
    with pytest.raises(InputError):
        race(ModelFile(tmp_path / "none.safetensors"), (LAST, FIRST), [1])

    def lost(device: DeviceSpec) -> torch.device:
        raise WorkError("the device is lost")

    monkeypatch.setattr("hw.worker.instances.open_device", lost)
    with pytest.raises(WorkError, match="cuda:0 can't be timed: the device is lost"):
        race(ModelFile(path), (DeviceSpec(kind="cuda"),), [1])
