"""Comparison of stamps: whether a profile is used on the stack that it was measured on, and descriptions of
differences.

A stamp is something that measurements depend on and that may have changed since: the device, the driver, a library, the
execution path. A stamp that a profile lacks is unknown, never assumed to be the same. It measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from calibrate.probe import device_name, gpu_stamps
from hw.device import DeviceSpec
from kit.errors import InputError
from sim.profile import Profile

KIND, DEVICE = "kind", "device"
VERSIONS = ("driver", "cuda", "cudnn", "torch")
OF_A_GPU = ("driver", "cuda", "cudnn")  # a CPU has none
PLACES = ("torch", "device")  # of an execution path: listed among the versions, or only a place
CAPTURED = "captured"  # number of a GPU's passes that are replayed: known once a server's instances are loaded
_TITLES = {
    KIND: "kind of device",
    "driver": "NVIDIA driver",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "memory_format": "memory format",
    "slicing": "slicing of weights",
    "cores": "CPU cores",
    "onednn": "oneDNN",
    "wait_policy": "OMP_WAIT_POLICY",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """A stamp that differs, or is unknown on one side; None: unknown."""

    stamp: str
    profile: str | None
    here: str | None

    def __str__(self) -> str:
        profile = "the profile does not say" if self.profile is None else f"the profile has {self.profile}"
        here = "here it is unknown" if self.here is None else f"here it is {self.here}"
        return f"{self.title}: {profile}, {here}; {self._remedy}"

    @property
    def title(self) -> str:
        """The stamp's name for display."""
        return _TITLES.get(self.stamp, self.stamp)

    @property
    def _remedy(self) -> str:
        if self.stamp in (KIND, DEVICE):
            return "calibrate this device"
        if self.stamp in VERSIONS:
            return "`slimsched profile check` says whether the profile still holds"
        return "run the device as it was calibrated, or calibrate it again"


def stamps_of(profile: Profile) -> dict[str, str]:
    """Return a profile's stamps of the stack on which it was measured."""
    recorded = profile.device.stamps
    versions = {name: recorded[name] for name in VERSIONS if name in recorded}
    if "torch" in profile.execution:
        versions["torch"] = profile.execution["torch"]
    return {KIND: profile.device.kind, DEVICE: profile.device.name, **versions, **_path(profile.execution)}


def stamps_here(device: DeviceSpec) -> dict[str, str]:
    """Return the same stamps of a device of this machine as it would be used now, without unavailable ones."""
    versions = {"torch": str(torch.__version__)}
    if device.kind == "cuda":
        versions |= {name: value for name, value in gpu_stamps(device).items() if name in OF_A_GPU}
    return {KIND: device.kind, DEVICE: device_name(device), **versions, **_path(device.execution())}


def differences(profile: Mapping[str, str], here: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return every stamp that differs between the two; for another device or kind, only that one."""
    for stamp in (KIND, DEVICE):
        if profile.get(stamp) != here.get(stamp):
            return (Difference(stamp, profile.get(stamp), here.get(stamp)),)
    expected = [name for name in VERSIONS if here.get(KIND) == "cuda" or name not in OF_A_GPU]
    names = dict.fromkeys([*expected, *here, *profile])
    return tuple(Difference(n, profile.get(n), here.get(n)) for n in names if _differs(profile.get(n), here.get(n)))


def require_model(profile: Profile, model_hash: str, source: str, key: str) -> None:
    """Check that a profile is of this network's weights.

    Raises:
        InputError: it is of another model.
    """
    if profile.model.hash != model_hash:
        problem = f"the profile is of model {profile.model.name} ({profile.model.hash[:12]}), this is {model_hash[:12]}"
        remedy = "calibrate this model, or name the one that the profile is of"
        raise InputError(source, key, f"{problem}; {remedy}")


def require_captured(profile: Profile, captured: int, warmed: int, source: str, key: str) -> None:
    """Check that a server replays the same share of its passes as during its calibration.

    Args:
        captured, warmed: passes of the server's loaded instances that are replayed, and all warmed ones.

    Raises:
        InputError: the share differs: passes run eagerly in one of the two, which takes up to twice as long.
    """
    recorded = profile.execution.get(CAPTURED, "1 of 1" if "graphs" in profile.execution else "0 of 1")
    of_profile, all_of_profile = map(int, recorded.split(" of "))
    if warmed and captured * all_of_profile != of_profile * warmed:
        problem = f"{captured} of {warmed} passes are captured here, {recorded} when {profile.name} was calibrated"
        remedy = "calibrate again with this torch and driver, or run the network that the profile is of"
        raise InputError(source, key, f"{problem}; {remedy}")


def _differs(profile: str | None, here: str | None) -> bool:
    return profile is None or here is None or profile != here


def _path(execution: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in execution.items() if name not in (*PLACES, CAPTURED)}
