"""The words between a server's driver and its worker process. Nouns only: nothing here runs, measures or decides.

Requests to a worker are carried out in order of arrival as far as they touch one instance; different instances work
at the same time. Every request is answered unless it says that it is not. `reason` in an answer is one of `REASONS`.
Tensors never travel in a message: they stand in a shared arena, and the driver says who may write where (`hw.arena`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from policies.faults import Impairment  # a message, too: all of it at once, each time something changes; not answered

Reason = Literal["out_of_memory", "bad_input", "no_label", "unknown_instance", "link_down", "internal_error"]
REASONS: Final[tuple[Reason, ...]] = (
    "out_of_memory",
    "bad_input",
    "no_label",
    "unknown_instance",
    "link_down",
    "internal_error",
)


@dataclass(frozen=True, slots=True)
class BenchmarkPoint:
    """What to run over and over: a batch of one work key, on an instance of exactly its width."""

    segment: int
    width: float
    previous_width: float
    batch: int


# ---------------------------------------------------------------------------------------------------------- to a worker


@dataclass(frozen=True, slots=True)
class Load:
    """Make an instance, from the weights in host memory or (`from_disk`) from the model's file.

    `probe_batch` also runs one batch of that size and adds the workspace it took to the instance's bytes (GPU only).
    """

    instance: int
    segment: int
    width: float
    from_disk: bool = False
    probe_batch: int = 0


@dataclass(frozen=True, slots=True)
class Unload:
    """Free an instance, after what was asked of it before."""

    instance: int


@dataclass(frozen=True, slots=True)
class Run:
    """Run a batch of stored activations; their outputs replace them, or labels come back from the last segment."""

    batch: int
    instance: int
    requests: tuple[int, ...]
    segment: int
    previous_width: float
    width: float
    padded: int


@dataclass(frozen=True, slots=True)
class Take:
    """Keep what stands in your arena from `offset` on: a tensor of `shape` for each request, in order.

    `channels_last` says how feature maps lie in memory. Not answered: a batch that needs what could not be kept fails.
    """

    requests: tuple[int, ...]
    offset: int
    shape: tuple[int, ...]
    dtype: str
    channels_last: bool


@dataclass(frozen=True, slots=True)
class Move:
    """Write stored activations into another worker's arena. They stay here until a `Release`."""

    transfer: int
    destination: int
    offset: int
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Forget these activations, as far as they are here. Not answered."""

    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ping:
    """Say that you are alive."""

    number: int


@dataclass(frozen=True, slots=True)
class Warm:
    """Run every legal key once at each of these batch sizes, so that kernels are chosen before anything is timed."""

    number: int
    batches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Time forward passes of a point: at least `repeats` and at least `min_s` seconds, after `warmup` passes.

    `pause_s` before each lets the thread sleep, as it does between the batches that it serves; none is timed.
    """

    point: BenchmarkPoint
    warmup: int
    repeats: int
    min_s: float
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BenchmarkTogether:
    """Run points at the same time, each in an instance of its own, over and over for `duration_s`."""

    points: tuple[BenchmarkPoint, ...]
    duration_s: float


@dataclass(frozen=True, slots=True)
class Reset:
    """Finish what runs, then forget every instance, activation and fault that was brought about."""

    number: int


@dataclass(frozen=True, slots=True)
class Close:
    """Leave. Not answered."""


# -------------------------------------------------------------------------------------------------------- from a worker


@dataclass(frozen=True, slots=True)
class Ready:
    """The process is up; `context_bytes` is the device memory it uses with nothing loaded."""

    pid: int
    context_bytes: int
    execution: dict[str, str]


@dataclass(frozen=True, slots=True)
class Loaded:
    """An instance is ready to serve; `vram_bytes` is what it really takes."""

    instance: int
    load_s: float
    vram_bytes: int


@dataclass(frozen=True, slots=True)
class LoadBroken:
    """An instance could not be made; nothing of it is left."""

    instance: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Unloaded:
    """An instance is gone and its memory is free."""

    instance: int
    unload_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A batch is done; its start is told with its end, for a message more would wake the router's host in between.

    Attributes:
        labels: after the last segment, one for each request that did not fail, in their order.
        began_ns: when the forward pass began, on this host's monotonic clock.
        forward_s: how long it took, all passes together.
        passes: more than one where memory or a broken member made the batch run in parts.
        failed: members that could not be run, for `reason`; their inputs are still stored.
        referenced_ns, reference_s: now and then, when a fixed piece of work was done on this core since the last batch,
            and how long it took (`hw.core_speed`); else 0.
    """

    batch: int
    labels: tuple[int, ...]
    began_ns: int
    forward_s: float
    passes: int = 1
    failed: tuple[int, ...] = ()
    reason: Reason | Literal[""] = ""
    detail: str = ""
    referenced_ns: int = 0
    reference_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Broken:
    """A whole batch failed; its inputs are still stored."""

    batch: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Moved:
    """Activations stand in the other worker's arena, as its `Take` must describe them."""

    transfer: int
    shape: tuple[int, ...]
    dtype: str
    channels_last: bool


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a `Ping`."""

    number: int


@dataclass(frozen=True, slots=True)
class MoveBroken:
    """They could not be written there; they are still here."""

    transfer: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Done:
    """The `Warm` or `Reset` of this number is finished; `forgotten` counts the activations that a reset found."""

    number: int
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """Forward passes timed one by one.

    Attributes:
        samples_s: for each pass, stacking and the wait for the device included.
        wall_s, cpu_s: of the whole loop, and the CPU time the process used meanwhile.
        waited_s: how long the process's threads were ready to run but had no core; 0 where the system does not tell.
        references_s: for each pass the CPU time of a fixed piece of work beside it (the longer of those before and
            after), which tells how fast the core ran; empty on a GPU.
    """

    samples_s: tuple[float, ...]
    wall_s: float
    cpu_s: float
    waited_s: float = 0.0
    references_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ConcurrentResult:
    """One point among others: passes finished, and the time from the common start to the last one's end.

    `reference_s`: the mean CPU time of a fixed piece of work meanwhile (see `BenchmarkResult`); 0 on a GPU.
    """

    completed: int
    elapsed_s: float
    reference_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TogetherResult:
    """The results of `BenchmarkTogether`, in order of its points; `cpu_s` is the process's CPU time meanwhile."""

    results: tuple[ConcurrentResult, ...]
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that is neither a load nor a batch nor a move could not be carried out."""

    reason: Reason
    detail: str


ToWorker = (
    Load
    | Unload
    | Run
    | Take
    | Move
    | Release
    | Ping
    | Impairment
    | Warm
    | Benchmark
    | BenchmarkTogether
    | Reset
    | Close
)
FromWorker = (
    Ready
    | Loaded
    | LoadBroken
    | Unloaded
    | Finished
    | Broken
    | Moved
    | Pong
    | MoveBroken
    | Done
    | BenchmarkResult
    | TogetherResult
    | Refused
)
