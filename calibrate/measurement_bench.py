"""Calibration's interface to a device, its results as the log stores them, the device's speed and memory bandwidth.

The device's speed (`SlowdownLook`, `Speed`): half of a virtual machine's core may be lent to another tenant. For
milliseconds to seconds everything then takes half as long again, and no counter of the guest shows it. A fixed piece of
work next to each pass, the reference (`hw.worker.torch_outfit`), does: its time, relative to the best one, classifies
the passes. These classes and functions use no profile and measure nothing.

The interface (`Bench`): the real bench is `calibrate.device_opening.WorkerBench`; a test's bench is a few lines of
known physics.

Memory bandwidth (`bandwidth_bytes_s`): bytes read and written a second, measured with large copies.
"""

from __future__ import annotations

import time  # noqa: TID251 - bandwidth is bytes over real time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from hw.device_settings import DeviceSpec
from hw.subprocesses import Tell, apart
from hw.transport.messages import ConcurrentResult, Point
from hw.worker.cuda import finish
from kit.errors import WorkError, in_a_line
from policies.vocabulary import NS_PER_S, Provenance

SLACK = 1.2  # a larger ratio of a reference to the best one means slowed; 90 % of fast ones are below 1.07
BEST_SHARE = 0.02  # quantile of the best reference
EXPONENT = 0.7  # the default: between 0.62 and 0.80 in six long runs on an AMD EPYC virtual machine
SHORTEST_SPELL_S = 0.01  # anything shorter is an interrupt

Floats = npt.NDArray[np.float64]


# --------------------------------------------------------------------------------------------------- the device's speed


@dataclass(frozen=True, slots=True)
class SlowdownLook:
    """Result of observing consecutive passes for a while.

    Attributes:
        best_s: the best reference; 0 if there is none (a GPU).
        full_s: the typical one at full speed (its median there).
        mean_slow_s: mean duration of a slow spell; 0 if there was none.
    """

    best_s: float
    full_s: float
    mean_slow_s: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Relation of reference times to the speed of passes.

    Attributes:
        best_s: the best reference; 0 if there is none.
        full_s: the typical one at full speed.
        exponent: if the reference is x times slower, passes are x to this power slower.
    """

    best_s: float
    full_s: float
    exponent: float = EXPONENT


def look(repeats_s: Sequence[float], references_s: Sequence[float]) -> SlowdownLook:
    """Evaluate consecutive passes, and the reference next to each."""
    if not references_s:
        return SlowdownLook(0.0, 0.0, 0.0)
    best_s = float(np.quantile(references_s, BEST_SHARE))
    times_s = np.asarray(repeats_s)
    smoothed_s = _smoothed(np.asarray(references_s), 1 + 2 * int(SHORTEST_SPELL_S / np.median(times_s)))
    is_slow = smoothed_s > SLACK * best_s
    spells = int(np.count_nonzero(np.diff(is_slow, prepend=False) & is_slow))
    full_s = best_s if is_slow.all() else float(np.median(smoothed_s[~is_slow]))
    return SlowdownLook(best_s, full_s, float(times_s[is_slow].sum()) / max(1, spells))


def at_full_speed(references_s: npt.ArrayLike, best_s: float) -> npt.NDArray[np.bool_]:
    """Return for each pass whether the device was at full speed next to it."""
    return np.asarray(references_s) <= SLACK * best_s


def _smoothed(values: Floats, window: int) -> Floats:
    """Return the median of each value and its neighbours, `window` of them in all (an odd number)."""
    if len(values) < window:
        return values
    padded = np.pad(values, window // 2, mode="edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, window), axis=1))


# ------------------------------------------------------------------------------------------------------------ the bench


@dataclass(frozen=True, slots=True)
class Loop:
    """A point run in a loop: wall and CPU seconds of each repeat (`hw.transport.messages.BenchmarkResult`).

    Attributes:
        waited_s: time in which the process was ready but had no core, because other programs had it.
        references_s: times of a fixed piece of work next to each repeat (`calibrate.measurement_bench`); empty on a
        GPU. clock_mhz: clock of a GPU's multiprocessors right after the last repeat; None if unknown.
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
        """Run a micro-batch through each path, a point a segment: the median seconds of each."""
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


# ----------------------------------------------------------------------------------------------------- memory bandwidth


COPY_BYTES = 64 << 20  # beyond any cache
COPIES = 4
IN_A_ROW = 16  # on a GPU, on which a copy takes 0.1 ms


def bandwidth_bytes_s(spec: DeviceSpec) -> float:
    """Measure a device's memory bandwidth; a GPU's in a separate process, which has ended on return.

    This process must never hold a context on the GPU: it would draw power until this process exits.

    Raises:
        WorkError: the GPU failed.
    """
    if spec.kind == "cpu":
        return cpu_bandwidth_bytes_s(spec.threads)
    try:
        return apart(partial(cuda_bandwidth_bytes_s, spec.index), lambda *_: None)
    except WorkError as error:
        raise WorkError(f"cuda:{spec.index}: no bandwidth could be measured ({in_a_line(str(error))})") from None


def cpu_bandwidth_bytes_s(threads: int) -> float:
    """Return the best of a few large copies by the device's number of threads."""
    sources = [np.ones(COPY_BYTES // threads, dtype=np.uint8) for _ in range(threads)]
    targets = [np.zeros_like(source) for source in sources]
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(COPIES):
            begin_ns = time.monotonic_ns()
            list(pool.map(np.copyto, targets, sources))
            seconds.append((time.monotonic_ns() - begin_ns) / NS_PER_S)
    return 2 * sum(source.nbytes for source in sources) / min(seconds)


def cuda_bandwidth_bytes_s(index: int, _: Tell) -> float:
    """Return the best of a few series of large copies inside the GPU's memory."""
    device = torch.device("cuda", index)
    return row_bandwidth_bytes_s(torch.ones(4 * COPY_BYTES, dtype=torch.uint8, device=device), finish)


def row_bandwidth_bytes_s(source: torch.Tensor, wait: Callable[[torch.device], object]) -> float:
    """Time copies within a device's memory, many in a row: in a single one, launching and waiting would dominate.

    Args:
        wait: waits until the device has completed all work.
    """
    target = torch.zeros_like(source)
    seconds = []
    for _ in range(COPIES + 1):
        wait(source.device)
        begin_ns = time.monotonic_ns()
        for _ in range(IN_A_ROW):
            target.copy_(source)
        wait(source.device)
        seconds.append((time.monotonic_ns() - begin_ns) / NS_PER_S)
    return 2 * IN_A_ROW * source.nbytes / min(seconds)
