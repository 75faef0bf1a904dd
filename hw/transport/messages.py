"""The messages between the router's process and a server's worker: types only; nothing runs, measures or decides.

Micro-batches travel, not batches: a worker's scheduler batches, loads and unloads on its own. Tensors never travel in a
message: they are in arenas, and the router decides which process may write where (`hw.transport.shared_memory`). Times
are nanoseconds of the run, as the worker counts them from `Start`; only `Pong` has a bare reading of its clock. A
message is an array with its name first, so that it can be decoded without an expected type, and nothing in it can
execute code.

Messages of one direction arrive in order. A message that is answered has a `number`, which the answer repeats.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from policies.faults import Impairment
from policies.run_records import BatchTold, CpuWorkCost, ServerCounts
from policies.vocabulary import NOTHING_RESIDENT, MicroBatch, Residency

Reason = Literal["out_of_memory", "bad_input", "no_prediction", "unknown_instance", "link_lost", "internal_error"]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message of either direction."""


class Point(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A batch of one work key; if it is timed, it runs on an instance of exactly its width."""

    segment: int
    width: float
    previous_width: float
    batch: int

    @property
    def key(self) -> tuple[int, float, float]:
        """The work key: (segment, width, previous width)."""
        return self.segment, self.width, self.previous_width

    def __str__(self) -> str:
        return f"{self.segment}/{self.width:g}/{self.previous_width:g}/{self.batch}"


class Input(msgspec.Struct, frozen=True, array_like=True):
    """Activations in the receiver's arena from `offset` on: a tensor of `shape` for each request, in order.

    Attributes:
        channels_last: the memory layout of feature maps.
    """

    requests: tuple[int, ...]
    offset: int
    shape: tuple[int, ...]
    dtype: str
    channels_last: bool


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One reading of a device's sensor; absent fields are None.

    Attributes:
        energy_j: a counter of joules from any origin of the reader's.
    """

    sampled_ns: int
    power_w: float | None
    utilization: float | None
    energy_j: float | None


# ------------------------------------------------------------------------------------------------- to a worker: a run


class Prepare(Message, frozen=True):
    """Forget everything of earlier runs; the clock is 0 from here to `Start`. Answered by `Prepared`.

    Attributes:
        server: its index in the cluster.
        keep_log: whether to log every step of the scheduler.
        measures_costs: whether to measure what the worker does besides passes.
    """

    number: int
    server: int
    keep_log: bool
    measures_costs: bool = False


class ComeUp(Message, frozen=True):
    """Serve, in this incarnation; answered by `Preloaded` when everything due at the start is loaded.

    `reads_speed`: measure the cores' speed between passes, if the lanes compute on them.
    """

    incarnation: int
    reads_speed: bool = False


class Start(Message, frozen=True):
    """The run began at this reading of the worker's own clock: its times count from there. Sent again when the clocks'
    offset is estimated more accurately."""

    origin_ns: int


class Deliver(Message, frozen=True):
    """A micro-batch, and the places of those inputs that other processes wrote."""

    micro_batch: MicroBatch
    inputs: tuple[Input, ...] = ()


class Keep(Message, frozen=True):
    """Inputs whose block will not come; another one may ask for them."""

    inputs: tuple[Input, ...]


class Move(Message, frozen=True):
    """Write stored activations into another worker's arena; answered by `Moved`. They stay here until a `Release`.

    Attributes:
        address: of the other worker's listener; empty if both map its arena.
    """

    transfer: int
    destination: int
    offset: int
    requests: tuple[int, ...]
    address: str = ""


class Fence(Message, frozen=True):
    """Stop all later writes of that incarnation of another worker, whatever it still tries; answered by `Fenced`."""

    number: int
    worker_id: int


class Release(Message, frozen=True):
    """Forget those of these activations that are here."""

    requests: tuple[int, ...]


class Sense(Message, frozen=True):
    """Read the device's sensor at this interval from now (or `Start`) on; 0: another worker reads it (`Sampled`).

    Attributes:
        pids: of all workers on the device, whose CPU time is its utilization.
    """

    period_ns: int
    pids: tuple[int, ...]


class Sampled(Message, frozen=True):
    """A sample from the worker that reads a shared device's sensor."""

    sample: Sample


class Impair(Message, frozen=True):
    """All impairments of the device from now on."""

    impairment: Impairment


class Ping(Message, frozen=True):
    """Ask whether the worker is alive."""

    number: int


class Finish(Message, frozen=True):
    """End the run and report it; answered by `Finished`."""

    number: int


class Warm(Message, frozen=True):
    """Run every legal key once at each of these batch sizes, so that kernels are chosen before anything is timed."""

    number: int
    batches: tuple[int, ...]


class Close(Message, frozen=True):
    """Exit. Not answered."""


# ------------------------------------------------------------------------------------------ to a worker: measurements


class BenchmarkLoad(Message, frozen=True):
    """Load an instance as serving does, from the weights in host memory or (`from_disk`) from the model's file; it
    stays."""

    instance: int
    segment: int
    width: float
    from_disk: bool = False


class BenchmarkUnload(Message, frozen=True):
    """Free that instance."""

    instance: int


class Benchmark(Message, frozen=True):
    """Time forward passes of a point: at least `repeats` and at least `min_s` seconds, after at least `warmup` passes.

    `pause_s` before each lets the thread sleep, as it does between the batches that it serves; pauses are not timed.
    """

    point: Point
    warmup: int
    repeats: int
    min_s: float
    pause_s: float = 0.0


class BenchmarkInstance(Message, frozen=True):
    """Time forward passes of points in an instance that is loaded, each as `Benchmark` does. Answered by
    `InstanceResult`."""

    instance: int
    points: tuple[Point, ...]
    warmup: int
    repeats: int
    min_s: float = 0.0
    pause_s: float = 0.0


class BenchmarkPaths(Message, frozen=True):
    """Time blocks through all segments: each path has one point per segment, of one batch size. Answered by `Timed`."""

    paths: tuple[tuple[Point, ...], ...]
    repeats: int


class BenchmarkBesideLoad(Message, frozen=True):
    """Time forward passes of a point for `quiet_s`, and then while an instance is loaded. Answered by
    `BesideLoadResult`."""

    point: Point
    segment: int
    width: float
    quiet_s: float


class BenchmarkTogether(Message, frozen=True):
    """Run points at the same time, each in a separate instance, over and over for `duration_s`.

    `begin_ns`: not before this reading of the host's monotonic clock, so that several workers begin together.
    """

    points: tuple[Point, ...]
    duration_s: float
    begin_ns: int = 0


class BenchmarkDispatch(Message, frozen=True):
    """Time an instance's own dispatch: its batch is commanded, runs, and its end is noticed."""

    point: Point
    repeats: int
    pause_s: float


class BenchmarkMove(Message, frozen=True):
    """Keep this number of bytes as the activation of `request`, to be moved."""

    request: int
    size_bytes: int


# ------------------------------------------------------------------------------------------------ from a worker: a run


class Ready(Message, frozen=True):
    """The process is up; `context_bytes` is the device memory it uses with nothing loaded.

    Attributes:
        sensor: the source of each field of its sensor.
    """

    pid: int
    context_bytes: int
    execution: dict[str, str]
    sensor: dict[str, str]


class Prepared(Message, frozen=True):
    """The worker is empty; `forgotten` counts the activations that it found and dropped."""

    number: int
    forgotten: int


class Captures(msgspec.Struct, frozen=True, array_like=True):
    """Of the passes of loaded instances that should be captured, the number that are; and the first refusal's reason.

    All zeros if the device captures none.
    """

    captured: int = 0
    tried: int = 0
    refused: str = ""

    def __add__(self, other: Captures) -> Captures:
        return Captures(self.captured + other.captured, self.tried + other.tried, self.refused or other.refused)

    def __str__(self) -> str:
        return f"{self.captured} of {self.tried} captured"


class Preloaded(Message, frozen=True):
    """Everything due at the start is loaded, or could not be."""

    incarnation: int
    captures: Captures = Captures()


class Returned(Message, frozen=True):
    """Requests have passed a segment here, and those of their path before it.

    Attributes:
        predictions: after the last segment, one for each; empty if the device is emulated.
        batches: those that have ended since the last such message.
        steps: of the scheduler so far: its log holds at least this number.
        residency: of the scheduler, as it gave them back.
        referenced_ns, reference_s: now and then, when a fixed piece of work was done on this core since the last batch,
            and its duration (`hw.host_resources`); 0 otherwise.
        scores: with the predictions, the logits of each request: float32, (requests, classes).
    """

    incarnation: int
    requests: tuple[int, ...]
    segment: int
    width: float
    predictions: tuple[int, ...]
    batches: tuple[BatchTold, ...]
    residency: Residency
    steps: int
    referenced_ns: int = 0
    reference_s: float = 0.0
    scores: bytes = b""

    @property
    def own_batch(self) -> BatchTold | None:
        """The batch at whose end they were given back; None if a batch broke, and they left their path."""
        last = self.batches[-1] if self.batches else None
        is_theirs = last is not None and last.segment == self.segment and self.requests[0] in last.requests
        return last if is_theirs else None


class Rejected(Message, frozen=True):
    """Requests could not be run; their inputs are still here, but not in the arena. `arrivals` as in `BatchTold`."""

    incarnation: int
    requests: tuple[int, ...]
    reason: str
    arrivals: tuple[tuple[int, int], ...]
    steps: int


class Report(Message, frozen=True):
    """The scheduler has processed a sample, which is passed on.

    Attributes:
        is_read: whether the sample was read here, and not by another server's worker.
        vram_used_bytes: of context and instances.
        counts: of everything done in the run so far.
        residency: of the scheduler, after the sample.
        activation_bytes: GPU memory held by activations that wait between two segments.
    """

    incarnation: int
    sample: Sample
    is_read: bool
    queue_length: int
    vram_used_bytes: int
    counts: ServerCounts
    steps: int
    activation_bytes: int = 0
    residency: Residency = NOTHING_RESIDENT


class Moved(Message, frozen=True):
    """Activations are in the other worker's arena, as an `Input` there must describe them."""

    transfer: int
    shape: tuple[int, ...]
    dtype: str
    channels_last: bool


class MoveBroken(Message, frozen=True):
    """Activations could not be written there; they are still here."""

    transfer: int
    reason: Reason
    detail: str


class Fenced(Message, frozen=True):
    """The `Fence` of this number is in effect."""

    number: int


class Pong(Message, frozen=True):
    """The answer to a `Ping`: a bare reading of the worker's clock."""

    number: int
    clock_ns: int


class Stuck(Message, frozen=True):
    """Some work has exceeded its time limit; the worker cannot end it."""


class Finished(Message, frozen=True):
    """The worker's account of the run.

    Attributes:
        cpu_ns: of the whole process since `Start`, without polling for messages.
        CPU work: if they were to be measured.
        captures: of all loads.
    """

    number: int
    counts: ServerCounts
    vram_peak_bytes: int
    steps: int
    cpu_ns: int
    cpu_work: tuple[CpuWorkCost, ...] = ()
    captures: Captures = Captures()


class Done(Message, frozen=True):
    """The `Warm` of this number is finished."""

    number: int


class Refused(Message, frozen=True):
    """A request failed that has no failure message of its type."""

    reason: Reason
    detail: str


# ---------------------------------------------------------------------------------------- from a worker: measurements


class Timed(Message, frozen=True):
    """The duration of a load, an unload, each dispatch or each path (its median); `vram_bytes`: a loaded instance's
    actual memory.

    A dispatch lasts from a batch's command to the notice of its end, less its forward pass.
    """

    samples_s: tuple[float, ...]
    vram_bytes: int = 0


class BenchmarkResult(Message, frozen=True):
    """Forward passes timed one by one.

    Attributes:
        samples_s: for each pass, stacking and the wait for the device included.
        wall_s, cpu_s: of the whole loop, and the CPU time the process used meanwhile; on a GPU that of launching the
            passes, for a wait for the device spins.
        waited_s: time for which the process's threads were ready to run but had no core, on a GPU while passes ran; 0
            if the system does not report it.
        references_s: for each pass the CPU time of a fixed piece of work before and after it (the longer of the two),
            which measures the core's speed; empty on a GPU.
    """

    samples_s: tuple[float, ...]
    wall_s: float
    cpu_s: float
    waited_s: float = 0.0
    references_s: tuple[float, ...] = ()


class InstanceResult(Message, frozen=True):
    """The results of `BenchmarkInstance`, in order of its points; `captured`: how many passes are replayed."""

    loops: tuple[BenchmarkResult, ...]
    captured: int


class BesideLoadResult(Message, frozen=True):
    """Seconds of a pass: the median while nothing else ran, and the mean while an instance was loaded for `load_s`."""

    quiet_s: float
    beside_s: float
    load_s: float


class ConcurrentResult(msgspec.Struct, frozen=True, array_like=True):
    """One of several concurrent points: passes finished, and the time from the common start to the last one's end.

    `reference_s`: the mean CPU time of a fixed piece of work meanwhile (see `BenchmarkResult`); 0 on a GPU.
    `median_s`: of a pass on a GPU; 0 on cores, which members use in turns: there the mean shows each one's speed.
    """

    completed: int
    elapsed_s: float
    reference_s: float = 0.0
    median_s: float = 0.0


class TogetherResult(Message, frozen=True):
    """The results of `BenchmarkTogether`, in order of its points.

    Attributes:
        cpu_s: the process's CPU time meanwhile.
        began_ns, ended_ns: by the host's monotonic clock.
    """

    results: tuple[ConcurrentResult, ...]
    cpu_s: float
    began_ns: int = 0
    ended_ns: int = 0


# ------------------------------------------------------------------------------------------- unions, by direction

OfInstances = BenchmarkLoad | BenchmarkUnload | BenchmarkInstance | BenchmarkBesideLoad | BenchmarkPaths
Measurement = Warm | OfInstances | Benchmark | BenchmarkTogether | BenchmarkDispatch | BenchmarkMove
OfMicroBatches = Deliver | Keep | Move | Release
OfRun = ComeUp | Start | Sense | Sampled | Impair
ToWorker = Prepare | OfRun | OfMicroBatches | Fence | Ping | Finish | Close | Measurement

Measured = Done | Timed | BenchmarkResult | InstanceResult | BesideLoadResult | TogetherResult
OfTransfers = Moved | MoveBroken | Fenced
OfWorker = Ready | Prepared | Preloaded | Returned | Rejected | Report | Pong | Stuck | Finished | Refused
FromWorker = OfWorker | OfTransfers | Measured
