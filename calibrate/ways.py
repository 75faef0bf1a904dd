"""Choice of how a GPU computes during calibration: the fastest of the open ways, warm as in serving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from calibrate.calibration import CalibrationRequest
from calibrate.log import PADDED_SIZES, logged_stamp
from calibrate.plan import padded_sizes, powers_of_two
from hw.device import DeviceSpec, formats_of
from hw.devices.formats import Way, quickest, race
from hw.networks.registry import ModelFile

Race = Callable[[ModelFile, Sequence[DeviceSpec], Sequence[int]], Sequence[Way]]


def settled(wanted: CalibrationRequest, timed: Race = race) -> tuple[CalibrationRequest, str]:
    """Return the calibration with the fastest way at the padded sizes, and the times in words (empty for one way).

    A resumed log determines both: the rest is measured as its begin was.

    Raises:
        InputError: the file is not a model.
        WorkError: the device failed.
    """
    device, words = wanted.device, ""
    if device.kind != "cuda":
        return wanted, words
    begun, candidates = _begun(wanted), wanted.candidates or (device,)
    if begun is None:
        ways = timed(wanted.file, candidates, powers_of_two(wanted.batch_limit))
        best = quickest(ways)
        begun = replace(best.device, warm_sizes=padded_sizes(wanted.batch_limit, best.block_s))
        words = "; ".join(map(str, ways)) if len(ways) > 1 else ""
    return replace(wanted, device=begun, peer=begun if wanted.peer == wanted.device else wanted.peer), words


def _begun(wanted: CalibrationRequest) -> DeviceSpec | None:
    """Return a log's candidate, with its sizes; None if it matches none (and is refused), or without a log."""
    stamp = logged_stamp(wanted.log_path)
    execution = {name.removeprefix("execution."): value for name, value in stamp.items()}
    formats, candidates = formats_of(execution), wanted.candidates or (wanted.device,)
    sizes = tuple(int(size) for size in stamp.get(PADDED_SIZES, "").split(",") if size.isdigit())
    ways = (replace(way, warm_sizes=sizes) for way in candidates if formats and sizes)
    return next((way for way in ways if replace(way, **formats) == way), None)
