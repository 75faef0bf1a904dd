"""Calibration's narrow port to a device, and its results as they are stored.

The real bench is `calibrate.agents.AgentBench`; a test's is a few lines of known physics. Nothing here measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, get_args

import msgspec

from calibrate.slowdown import SlowdownLook
from hw.transport.messages import ConcurrentResult, Point
from policies.vocabulary import Provenance


@dataclass(frozen=True, slots=True)
class Loop:
    """A point run in a loop: wall and CPU seconds of each repeat (`hw.transport.messages.BenchmarkResult`).

    Attributes:
        waited_s: time in which the process was ready but had no core, because other programs had it.
        references_s: times of a fixed piece of work next to each repeat (`calibrate.slowdown`); empty on a GPU.
        clock_mhz: clock of a GPU's multiprocessors right after the last repeat; None if unknown.
    """

    repeats_s: tuple[float, ...]
    wall_s: float
    cpu_s: float
    waited_s: float = 0.0
    references_s: tuple[float, ...] = ()
    clock_mhz: float | None = None

    @property
    def disturbed_share(self) -> float:
        """The share of the repeats' time that other programs took."""
        return self.waited_s / sum(self.repeats_s)


@dataclass(frozen=True, slots=True)
class SharedLoop:
    """A concurrency set run in a loop; `background_share`: the device's share that other programs took."""

    members: Sequence[ConcurrentResult]
    background_share: float = 0.0


@dataclass(frozen=True, slots=True)
class SteadyLoad:
    """A point run in a loop under the device's sensor; `power_w` is above nothing (idle included).

    `utilization`, and `sm_utilization` (the share of a GPU's multiprocessors), are None if the sensor has none, and so
    is `sm_clock_mhz`. `busy_s` is the time in passes.
    """

    images: int
    elapsed_s: float
    power_w: float
    utilization: float | None
    provenance: Provenance
    busy_s: float
    sm_utilization: float | None = None
    sm_clock_mhz: float | None = None


class Bench(Protocol):
    """One device with a model on it; every call blocks."""

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> tuple[float, int]:
        """Put a segment at a width into device memory, from the model's file or from host memory: (seconds, bytes)."""
        ...

    def unload(self, instance: int) -> float:
        """Free an instance: seconds."""
        ...

    def solo(self, point: Point, warmup: int, repeats: int, min_s: float, *, paused: bool = True) -> Loop:
        """Run a point alone for at least `repeats` and `min_s`; `paused` before each repeat, as in serving."""
        ...

    def points(
        self, instance: int, points: Sequence[Point], warmup: int, repeats: int, min_s: float
    ) -> tuple[list[Loop], int]:
        """Run points alone in a loaded instance: their loops, and how many of their passes a GPU has captured."""
        ...

    def paths(self, paths: Sequence[tuple[Point, ...]], repeats: int) -> Sequence[float]:
        """Run a block through each path, a point a segment: the median seconds of each."""
        ...

    def beside_load(self, point: Point, segment: int, width: float) -> tuple[float, float]:
        """Run a point without pauses: seconds of a pass alone (median), and while an instance is loaded (mean)."""
        ...

    def together(self, points: Sequence[Point], duration_s: float, *, across: bool = False) -> SharedLoop:
        """Run points at once, without pauses, each in a separate instance; `across` two processes, in turn."""
        ...

    def dispatch(self, point: Point, number: int) -> Sequence[float]:
        """Run `number` batches: for each the seconds from the command to the notice of its end, without its pass."""
        ...

    def transfer(self, size_bytes: int, number: int) -> Sequence[float]:
        """Move this size to another server `number` times: seconds of each."""
        ...

    def steady(self, point: Point, duration_s: float, duty: float = 1.0) -> SteadyLoad:
        """Run a point under the power sensor, its rise time dropped."""
        ...


# ------------------------------------------------------------------------------------------------- what a log keeps


@dataclass(frozen=True, slots=True)
class TogetherResult:
    """Mean seconds a batch, alone just before and together, of each member; 0.0 together if none was finished.

    Attributes:
        alone_reference_s, together_reference_s: mean times of a fixed piece of work meanwhile, for each member; 0 on a
            GPU.
        disturbed_share: share of its time that other programs took.
    """

    alone_s: tuple[float, ...]
    together_s: tuple[float, ...]
    alone_reference_s: tuple[float, ...]
    together_reference_s: tuple[float, ...]
    disturbed_share: float = 0.0


@dataclass(frozen=True, slots=True)
class WatchResult:
    """Variation of the device's own speed."""

    slowdown: SlowdownLook


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Seconds of loading and unloading one instance.

    Attributes:
        loops: of points timed in it; `captured`: number of their passes that a GPU replays.
    """

    load_s: float
    unload_s: float
    vram_bytes: int
    loops: tuple[Loop, ...] = ()
    captured: int = 0


@dataclass(frozen=True, slots=True)
class PathsResult:
    """Median seconds of each path."""

    medians_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BesideLoadResult:
    """Seconds of a pass alone, and while an instance is loaded."""

    quiet_s: float
    beside_s: float


@dataclass(frozen=True, slots=True)
class TimesResult:
    """Seconds of dispatches or transfers."""

    times_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SteadyResult:
    """A power point."""

    load: SteadyLoad


Result = LoadResult | TogetherResult | WatchResult | PathsResult | BesideLoadResult | TimesResult | SteadyResult


def to_jsonable(result: Result) -> dict[str, Any]:
    """Return plain data that `from_jsonable` reads back."""
    return {"kind": type(result).__name__, **asdict(result)}


def from_jsonable(raw: dict[str, Any]) -> Result:
    """Restore the output of `to_jsonable`; raises `KeyError` or `ValueError` for anything else."""
    fields = dict(raw)
    kind = _KINDS[fields.pop("kind")]
    return msgspec.convert(fields, kind)


_KINDS: dict[str, type[Result]] = {kind.__name__: kind for kind in get_args(Result)}
