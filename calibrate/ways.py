"""How a GPU is to compute while it is measured: the quickest of the ways left open, and warm as in serving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from calibrate.calibration import CalibrationRequest
from calibrate.gpu import padded_sizes
from calibrate.log import logged_stamp
from hw.device import DeviceSpec, formats_of
from hw.devices.formats import Way, quickest, race
from hw.networks.registry import ModelFile

Race = Callable[[ModelFile, Sequence[DeviceSpec], int], Sequence[Way]]


def settled(wanted: CalibrationRequest, timed: Race = race) -> tuple[CalibrationRequest, str]:
    """The calibration of the way that is quickest, and what was found, in words (empty where nothing was timed).

    A log that is gone on with has settled it: the rest is measured as its begin was.

    Raises:
        InputError: the model is no model.
        WorkError: the device failed.
    """
    device, words = wanted.device, ""
    if not isinstance(device, DeviceSpec) or device.kind != "cuda":
        return wanted, words
    if wanted.candidates:
        assert wanted.file is not None, "a real device runs a network"
        begun = _begun(wanted)
        if begun is None:
            ways = timed(wanted.file, wanted.candidates, wanted.batch_limit)
            begun, words = quickest(ways).device, "; ".join(map(str, ways))
        device = begun
    device = replace(device, warm_sizes=padded_sizes(wanted.batch_limit))
    return replace(wanted, device=device, peer=device if wanted.peer == wanted.device else wanted.peer), words


def _begun(wanted: CalibrationRequest) -> DeviceSpec | None:
    """The candidate that a log is of; None where there is no log yet, or it is of none of them (and is refused)."""
    stamp = logged_stamp(wanted.log_path)
    execution = {name.removeprefix("execution."): value for name, value in stamp.items()}
    formats = formats_of(execution)
    return next((way for way in wanted.candidates if formats and replace(way, **formats) == way), None)
