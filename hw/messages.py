"""The words between a server's driver and its worker process. Nouns only: nothing here runs, measures or decides.

Requests to a worker are carried out in order of arrival as far as they touch one instance; different instances work
at the same time. Every request but `Release` and `Close` is answered. `reason` in an answer is one of `REASONS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Reason = Literal["out_of_memory", "bad_input", "unknown_instance", "link_down", "internal_error"]
REASONS: Final[tuple[Reason, ...]] = (
    "out_of_memory",
    "bad_input",
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
class Store:
    """Keep these float32 tensors, one for each request, all of one shape, as raw bytes in order."""

    transfer: int
    requests: tuple[int, ...]
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Move:
    """Send stored activations straight to another worker. They stay here until a `Release`."""

    transfer: int
    destination: int
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Forget these activations, as far as they are here.

    With a `transfer`, only what that move has sent: a request may have come back with new ones in the meantime.
    """

    requests: tuple[int, ...]
    transfer: int | None = None


@dataclass(frozen=True, slots=True)
class Warm:
    """Run every legal key once at each of these batch sizes, so that kernels are chosen before anything is timed."""

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
    """Finish what runs, then forget every instance and activation."""


@dataclass(frozen=True, slots=True)
class Close:
    """Leave."""


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
        labels: one for each request after the last segment.
        began_ns: when the forward pass began, on this host's monotonic clock.
        forward_s: how long it took.
    """

    batch: int
    labels: tuple[int, ...]
    began_ns: int
    forward_s: float


@dataclass(frozen=True, slots=True)
class Broken:
    """A batch failed; its inputs are still stored."""

    batch: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """Activations are stored here (the answer of the receiving worker)."""

    transfer: int


@dataclass(frozen=True, slots=True)
class MoveBroken:
    """They could not be sent or stored (the answer of the worker that noticed)."""

    transfer: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Done:
    """`Warm` or `Reset` is finished; `forgotten` counts the activations that a reset found in the store."""

    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """Forward passes timed one by one.

    Attributes:
        samples_s: for each pass, stacking and the wait for the device included.
        wall_s, cpu_s: of the whole loop, and the CPU time the process used meanwhile.
    """

    samples_s: tuple[float, ...]
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class ConcurrentResult:
    """One point among others: passes finished, and the time from the common start to the last one's end."""

    completed: int
    elapsed_s: float


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


ToWorker = Load | Unload | Run | Store | Move | Release | Warm | Benchmark | BenchmarkTogether | Reset | Close
FromWorker = (
    Ready
    | Loaded
    | LoadBroken
    | Unloaded
    | Finished
    | Broken
    | Arrived
    | MoveBroken
    | Done
    | BenchmarkResult
    | TogetherResult
    | Refused
)
