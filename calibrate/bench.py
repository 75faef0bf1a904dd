"""What calibration asks of a device, as a narrow port, and the answers as they are kept.

The real one is `calibrate.workers.WorkerBench`; a test's is a few lines of known physics. Nothing here measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from calibrate.plan import Point
from calibrate.samples import Samples
from policies.vocabulary import Provenance


@dataclass(frozen=True, slots=True)
class Loop:
    """A point run in a loop: the seconds of each repeat; wall time and the process's CPU time over the whole loop."""

    repeats_s: Sequence[float]
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Shared:
    """One member of a concurrency set: how many batches it finished in how many seconds."""

    completed: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class SteadyLoad:
    """A point run in a loop under the device's sensor; `power_w` is above nothing (idle included).

    `utilization` is None where the sensor has none.
    """

    images: int
    elapsed_s: float
    power_w: float
    utilization: float | None
    provenance: Provenance


class Bench(Protocol):
    """One device with a model on it; every call blocks."""

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> tuple[float, int]:
        """Put a segment at a width into device memory, from the model's file or from host memory: (seconds, bytes)."""
        ...

    def unload(self, instance: int) -> float:
        """Free it: seconds."""
        ...

    def solo(self, point: Point, warmup: int, repeats: int, min_s: float) -> Loop:
        """Run a point alone: at least so many repeats and so long."""
        ...

    def together(self, points: Sequence[Point], duration_s: float) -> Sequence[Shared]:
        """Run points at once, each in a loop in an instance of its own."""
        ...

    def dispatch(self, point: Point, number: int) -> Sequence[float]:
        """Send so many batches: for each the seconds from command to result that were no forward pass."""
        ...

    def transfer(self, size_bytes: int, number: int) -> Sequence[float]:
        """Move so many bytes to another server: seconds, so many times."""
        ...

    def steady(self, point: Point, duration_s: float) -> SteadyLoad:
        """Run a point under the power sensor, its rise time dropped."""
        ...


# ------------------------------------------------------------------------------------------------- what a log keeps


@dataclass(frozen=True, slots=True)
class SoloResult:
    """A round of a solo point; `samples` in seconds."""

    samples: Samples
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class TogetherResult:
    """Mean seconds a batch, alone just before and together, for each member; 0.0 together where none was finished."""

    alone_s: tuple[float, ...]
    together_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HoldResult:
    """Loading and unloading one instance; the first load is from disk, the others from memory."""

    loads_s: tuple[float, ...]
    unloads_s: tuple[float, ...]
    vram_bytes: int


@dataclass(frozen=True, slots=True)
class TimesResult:
    """Seconds of a dispatch or a transfer."""

    samples: Samples


@dataclass(frozen=True, slots=True)
class SteadyResult:
    """A power point."""

    load: SteadyLoad


Result = SoloResult | TogetherResult | HoldResult | TimesResult | SteadyResult


def to_jsonable(result: Result) -> dict[str, Any]:
    """Plain data that `from_jsonable` reads back."""
    return {"kind": type(result).__name__, **asdict(result)}


def from_jsonable(raw: dict[str, Any]) -> Result:
    """What `to_jsonable` wrote; raises `KeyError`, `TypeError` or `ValueError` on anything else."""
    fields = dict(raw)
    kind = _READERS[fields.pop("kind")]
    return kind(fields)


def _samples(raw: dict[str, Any]) -> Samples:
    return Samples(int(raw["count"]), tuple(float(value) for value in raw["values"]))


def _steady(raw: dict[str, Any]) -> SteadyLoad:
    return SteadyLoad(**{**raw, "provenance": Provenance(raw["provenance"])})


_READERS: dict[str, Callable[[dict[str, Any]], Result]] = {
    "SoloResult": lambda raw: SoloResult(_samples(raw["samples"]), raw["wall_s"], raw["cpu_s"]),
    "TogetherResult": lambda raw: TogetherResult(tuple(raw["alone_s"]), tuple(raw["together_s"])),
    "HoldResult": lambda raw: HoldResult(tuple(raw["loads_s"]), tuple(raw["unloads_s"]), raw["vram_bytes"]),
    "TimesResult": lambda raw: TimesResult(_samples(raw["samples"])),
    "SteadyResult": lambda raw: SteadyResult(_steady(raw["load"])),
}
