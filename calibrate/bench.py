"""What calibration asks of a device, as a narrow port, and the answers as they are kept.

The real one is `calibrate.agents.AgentBench`; a test's is a few lines of known physics. Nothing here measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, get_args

import msgspec

from calibrate.samples import Samples
from calibrate.slowdown import SlowdownLook
from hw.transport.messages import ConcurrentResult, Point
from policies.vocabulary import Provenance


@dataclass(frozen=True, slots=True)
class Loop:
    """A point run in a loop: wall and CPU seconds of each repeat (`hw.transport.messages.BenchmarkResult`).

    Attributes:
        waited_s: how long the process was ready but had no core, because other programs had it.
        references_s: of a fixed piece of work beside each repeat (`calibrate.slowdown`); empty on a GPU.
        clock_mhz: of a GPU's multiprocessors right after the last repeat; None where nothing tells.
    """

    repeats_s: Sequence[float]
    wall_s: float
    cpu_s: float
    waited_s: float = 0.0
    references_s: Sequence[float] = ()
    clock_mhz: float | None = None

    @property
    def disturbed_share(self) -> float:
        """The share of the repeats' time that others took."""
        return self.waited_s / sum(self.repeats_s)


@dataclass(frozen=True, slots=True)
class SharedLoop:
    """A concurrency set run in a loop; `background_share`: of the device, what other programs took meanwhile."""

    members: Sequence[ConcurrentResult]
    background_share: float = 0.0


@dataclass(frozen=True, slots=True)
class SteadyLoad:
    """A point run in a loop under the device's sensor; `power_w` is above nothing (idle included).

    `utilization`, and `sm_utilization` (the share of a GPU's multiprocessors), are None where the sensor has none, and
    so is `sm_clock_mhz`. `busy_s` is the time in passes.
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
        """Free it: seconds."""
        ...

    def solo(self, point: Point, warmup: int, repeats: int, min_s: float, *, paused: bool = True) -> Loop:
        """Run a point alone: at least so many repeats and so long; `paused` before each, as batches are served."""
        ...

    def points(self, instance: int, points: Sequence[Point], warmup: int, repeats: int) -> tuple[list[Loop], int]:
        """Run points alone in a loaded instance, without pauses: their loops, and how many of their passes a GPU has
        captured."""
        ...

    def paths(self, paths: Sequence[tuple[Point, ...]], repeats: int) -> Sequence[float]:
        """Run a block through each path, a point a segment: the median seconds of each."""
        ...

    def beside_load(self, point: Point, segment: int, width: float) -> tuple[float, float]:
        """Run a point without a pause: seconds of a pass alone (median), and while an instance is loaded (mean)."""
        ...

    def together(self, points: Sequence[Point], duration_s: float, *, across: bool = False) -> SharedLoop:
        """Run points at once, without a pause, each in an instance of its own; `across` two processes, in turn."""
        ...

    def dispatch(self, point: Point, number: int) -> Sequence[float]:
        """Run so many batches: for each the seconds from command to notice of the end, but for its pass."""
        ...

    def transfer(self, size_bytes: int, number: int) -> Sequence[float]:
        """Move so many bytes to another server: seconds, so many times."""
        ...

    def steady(self, point: Point, duration_s: float, duty: float = 1.0) -> SteadyLoad:
        """Run a point under the power sensor, its rise time dropped."""
        ...


# ------------------------------------------------------------------------------------------------- what a log keeps


@dataclass(frozen=True, slots=True)
class SoloResult:
    """A round of a solo point; `samples` in seconds.

    Attributes:
        samples: the repeats at the device's full speed; all of them, where it never had it (`is_slow`).
        slow: the others; None where there are none.
        passes, slow_passes: of all tries, and how many of them were not at full speed.
        reference_s, slow_reference_s: the median reference beside `samples`, and beside `slow`; 0 without references.
        least_reference_s: the least one beside any pass, but for a few per cent that are flukes.
        disturbed_share: of its time, what other programs took.
        tries: how often it was measured, because of them or for want of full speed; the best one is kept.
        clock_mhz: see `Loop`.
    """

    samples: Samples
    wall_s: float
    cpu_s: float
    slow: Samples | None = None
    is_slow: bool = False
    passes: int = 0
    slow_passes: int = 0
    reference_s: float = 0.0
    slow_reference_s: float = 0.0
    least_reference_s: float = 0.0
    disturbed_share: float = 0.0
    tries: int = 1
    clock_mhz: float | None = None

    @property
    def disturbance(self) -> float:
        """0 for a measurement to be trusted."""
        return self.disturbed_share + (1 if self.is_slow else 0)


@dataclass(frozen=True, slots=True)
class TogetherResult:
    """Mean seconds a batch, alone just before and together, for each member; 0.0 together where none was finished.

    Attributes:
        alone_reference, together_reference: how much longer than at full speed a fixed piece of work took meanwhile,
            for each member; 1.0 where the passes were picked at full speed, or nothing tells.
        is_slow: some member never had full speed alone.
        disturbed_share, tries: see `SoloResult`.
    """

    alone_s: tuple[float, ...]
    together_s: tuple[float, ...]
    alone_reference: tuple[float, ...] = ()
    together_reference: tuple[float, ...] = ()
    is_slow: bool = False
    disturbed_share: float = 0.0
    tries: int = 1

    @property
    def disturbance(self) -> float:
        """0 for a measurement to be trusted."""
        return self.disturbed_share + (1 if self.is_slow else 0)


@dataclass(frozen=True, slots=True)
class WatchResult:
    """How the device's own speed came and went."""

    slowdown: SlowdownLook


@dataclass(frozen=True, slots=True)
class LoadCycleResult:
    """Loading and unloading one instance.

    Attributes:
        solos: of points that were timed in it, and `captured`: how many of their passes a GPU replays.
    """

    loads_s: tuple[float, ...]
    unloads_s: tuple[float, ...]
    vram_bytes: int
    solos: tuple[SoloResult, ...] = ()
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
    """Seconds of a dispatch or a transfer."""

    samples: Samples


@dataclass(frozen=True, slots=True)
class SteadyResult:
    """A power point."""

    load: SteadyLoad


OfLoads = LoadCycleResult | PathsResult | BesideLoadResult
Result = SoloResult | TogetherResult | WatchResult | OfLoads | TimesResult | SteadyResult


def to_jsonable(result: Result) -> dict[str, Any]:
    """Plain data that `from_jsonable` reads back."""
    return {"kind": type(result).__name__, **asdict(result)}


def from_jsonable(raw: dict[str, Any]) -> Result:
    """What `to_jsonable` wrote; raises `KeyError` or `ValueError` on anything else."""
    fields = dict(raw)
    kind = _KINDS[fields.pop("kind")]
    return msgspec.convert(fields, kind)


_KINDS: dict[str, type[Result]] = {kind.__name__: kind for kind in get_args(Result)}
