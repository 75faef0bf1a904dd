"""Specification of a calibration: its device, model and limits, from the command down to the bench."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hw.device import DeviceSpec
from hw.networks.registry import ModelFile
from kit.errors import InputError


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """A device to measure while it runs a model.

    Attributes:
        file: the slimmable network.
        budget_s: wall time, which decides on the number of rounds over all points.
        batch_limit: the largest batch measured; the simulator refuses larger ones.
        log_path: finished measurements, from which an interrupted calibration resumes.
        seed: seed of the order, and of the paths that are timed.
        peer: a second device of this host: moving activations to it gives `Profile.link`; None leaves it out.
        sensor_period_s: how often serving reads the device's sensor.
        name: the profile's name; derived from the device and the model by default.
        allow_busy: measure although other programs use the device.
        candidates: ways in which a GPU may compute, the device's own first: the fastest is used, and reported in the
            profile; none if all is given.

    Raises:
        InputError: the budget or the limit is invalid.
    """

    file: ModelFile
    device: DeviceSpec
    budget_s: float
    batch_limit: int
    log_path: Path
    seed: int = 0
    peer: DeviceSpec | None = None
    sensor_period_s: float = 0.1
    name: str = ""
    allow_busy: bool = False
    candidates: tuple[DeviceSpec, ...] = ()

    def __post_init__(self) -> None:
        if not self.budget_s > 0:
            problem = f"must be more than 0 s, found {self.budget_s:g}; 45s to 15m is usual"
            raise InputError("calibrate", "budget", problem)
        if self.batch_limit < 1:
            raise InputError("calibrate", "batch_limit", f"must be at least 1, found {self.batch_limit}")
