"""Another stack is named, stamp by stamp; what nobody knows is said to be unknown; another model is refused."""

from __future__ import annotations

import pytest
import torch

from calibrate.device_identity import differences, require_captured, stamps_here, stamps_of
from hw.device_settings import DeviceSpec
from hw.telemetry import usable_cores
from kit.errors import InputError
from sim.device_profile import Profile
from tests import tiny

GPU = {
    "kind": "cuda",
    "device": "NVIDIA H200",
    "driver": "550.1",
    "cuda": "12.4",
    "cudnn": "90100",
    "torch": "2.4.0",
    "dtype": "float32",
    "memory_format": "channels_last",
    "slicing": "in place",
}


def profile_of(device: DeviceSpec) -> Profile:
    """A toy profile that was stamped on a device of this machine."""
    here = stamps_here(device)
    info = {"kind": "cpu", "name": here["device"], "vram_bytes": 1, "stamps": {"torch": here["torch"], "date": "x"}}
    return tiny.profile(device=info, execution=device.execution())


def test_the_same_stack_differs_in_nothing() -> None:
    """Neither a GPU's stamps compared with themselves, nor a profile of this machine's CPU with the CPU."""
    assert differences(GPU, dict(GPU)) == ()
    device = DeviceSpec(cores=usable_cores()[:1])
    assert differences(stamps_of(profile_of(device)), stamps_here(device)) == ()


@pytest.mark.parametrize("stamp", [name for name in GPU if name not in ("kind", "device")])
def test_each_stamp_that_differs_is_one_line_with_both_values(stamp: str) -> None:
    (found,) = differences(GPU, {**GPU, stamp: "other"})
    assert found.stamp == stamp
    assert f"the profile has {GPU[stamp]}, here it is other; " in str(found)
    assert ("profile check" in str(found)) == (stamp in ("driver", "cuda", "cudnn", "torch"))


@pytest.mark.parametrize("stamp", [name for name in GPU if name not in ("kind", "device")])
def test_unknown_stamp_is_reported_as_a_difference(stamp: str) -> None:
    """A stamp unknown on one side is a difference; a version is one even if it is unknown on both sides."""
    fewer = {name: value for name, value in GPU.items() if name != stamp}
    assert ["the profile does not say" in str(found) for found in differences(fewer, GPU)] == [True]
    assert ["here it is unknown" in str(found) for found in differences(GPU, fewer)] == [True]
    assert len(differences(fewer, fewer)) == (stamp in ("driver", "cuda", "cudnn", "torch"))


def test_another_device_is_the_whole_difference() -> None:
    """On another device everything else differs as well: one line says it."""
    (found,) = differences(GPU, {**GPU, "device": "NVIDIA T4", "driver": "1", "dtype": "float16"})
    assert str(found) == "device: the profile has NVIDIA H200, here it is NVIDIA T4; calibrate this device"
    here = stamps_here(DeviceSpec())
    assert [d.stamp for d in differences({**GPU, "device": here["device"]}, here)] == ["kind"]


def test_a_cpu_is_asked_for_no_driver() -> None:
    """A CPU has no CUDA; its cores, threads and oneDNN count, where another torch is told as well."""
    cores = usable_cores()[:1]
    profile = stamps_of(profile_of(DeviceSpec(cores=cores)))
    changed = stamps_here(DeviceSpec(cores=cores, onednn=False, threads=2))
    assert {found.stamp for found in differences(profile, changed)} == {"threads", "onednn", "wait_policy"}
    assert [found.stamp for found in differences({**profile, "torch": "1.0"}, {**profile})] == ["torch"]
    assert profile["torch"] == str(torch.__version__)


@pytest.mark.parametrize(
    ("recorded", "captured", "warmed", "is_refused"),
    [
        ("312 of 312", 312, 312, False),
        ("312 of 312", 24, 24, False),
        ("312 of 312", 311, 312, True),
        ("156 of 312", 48, 96, False),
        ("156 of 312", 96, 96, True),
        (None, 0, 96, False),
        (None, 96, 96, True),
        ("312 of 312", 0, 0, False),
    ],
)
def test_a_server_that_captures_otherwise_is_refused(
    recorded: str | None, captured: int, warmed: int, is_refused: bool
) -> None:
    """By the share of its passes: it may have loaded fewer instances, or be given smaller batches."""
    found = profile_of(DeviceSpec())
    told = {} if recorded is None else {"captured": recorded}
    profile = found.model_copy(update={"execution": {**found.execution, **told}})
    assert "captured" not in stamps_of(profile)
    if not is_refused:
        require_captured(profile, captured, warmed, "scenario", "cluster.servers.0")
        return
    with pytest.raises(InputError, match=f"{captured} of {warmed} passes are captured here"):
        require_captured(profile, captured, warmed, "scenario", "cluster.servers.0")
