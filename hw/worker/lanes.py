"""The lanes of a worker, which execute a scheduler's commands, and its other parts: sensor, measurements, settings.

A *lane* is an instance of a scheduler. Real lanes are threads (`hw.worker.torch_lanes`); emulated lanes are entries of
a device's model (`hw.worker.emulated_lanes`). Lanes decide nothing: the scheduler decides on batches, instances and
times. Every failure becomes a message; none ends the process.

`Fitting` has the parts of a worker, which its `Outfit` makes in the worker's process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

from hw.clock import Waker
from hw.telemetry.sensors import Sensor
from hw.transport.messages import Captures, FromWorker, Input, Measurement, Move, MoveBroken, Moved, Reason
from hw.transport.shared_memory import Arena, LinkLostError
from policies.faults import Impairment, Supervision
from policies.greedy_scheduler import GreedyParams, Spec
from policies.vocabulary import RunBatch


class BatchEnded(msgspec.Struct, frozen=True):
    """A batch is done. Times are readings of the worker's own clock.

    Attributes:
        predictions: after the last segment, one for each request that did not fail, in their order; empty if the device
            is emulated.
        began_ns, ended_ns: of the forward pass; an emulated one ends by its model's time, and is noticed `late_ns`
            later.
        failed: members that could not be run, for `reason`; their inputs are still stored.
        scores: see `hw.transport.messages.Returned`.
    """

    batch: int
    predictions: tuple[int, ...]
    began_ns: int
    ended_ns: int
    failed: tuple[int, ...] = ()
    reason: Reason | Literal[""] = ""
    late_ns: int = 0
    scores: bytes = b""


class BatchBroken(msgspec.Struct, frozen=True):
    """A whole batch failed; its inputs are still stored."""

    batch: int
    reason: Reason
    detail: str


class LoadEnded(msgspec.Struct, frozen=True):
    """An instance is ready to serve.

    Attributes:
        vram_bytes: its actual memory.
        captures: of its passes.
    """

    instance: int
    vram_bytes: int
    captures: Captures = Captures()


class LoadBroken(msgspec.Struct, frozen=True):
    """An instance could not be made; nothing of it is left."""

    instance: int
    reason: Reason
    detail: str


class UnloadEnded(msgspec.Struct, frozen=True):
    """An instance is gone and its memory is free."""

    instance: int


class MoveEnded(msgspec.Struct, frozen=True):
    """An asynchronous move has written the data, or failed."""

    answer: Moved | MoveBroken


def explain(error: Exception) -> tuple[Reason, str]:
    """Return a failure in the protocol's terms."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError):
        return "out_of_memory", text
    if isinstance(error, LinkLostError):
        return "link_lost", text
    return ("bad_input" if isinstance(error, LookupError | ValueError | TypeError) else "internal_error"), text


LaneEvent = BatchEnded | BatchBroken | LoadEnded | LoadBroken | UnloadEnded | MoveEnded
Tell = Callable[[LaneEvent], None]


class Lanes(Protocol):
    """The lanes of one worker. Its owner is notified of every end, from any thread, or from within `ring`."""

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> None:
        """Make an instance, from the weights in host memory or from the model's file."""
        ...

    def unload(self, instance: int) -> None:
        """Free an idle instance."""
        ...

    def run(self, command: RunBatch) -> None:
        """Run a batch of stored activations; their outputs replace them, or predictions come from the last segment."""
        ...

    def take(self, inputs: Sequence[Input]) -> None:
        """Keep the activations in the worker's arena; a batch that needs one that could not be kept fails."""
        ...

    def retain(self, requests: Sequence[int]) -> None:
        """Keep inputs that could not be run and will be asked for again; their places in the arena are reused now."""
        ...

    def forget(self, requests: Iterable[int]) -> None:
        """Forget these activations, as far as they are here: they will not be asked for again."""
        ...

    def move(self, message: Move) -> Moved | None:
        """Write stored activations to another worker; raises its error. None: `MoveEnded` will report it."""
        ...

    def impair(self, impairment: Impairment) -> None:
        """Impair the lanes from now on."""
        ...

    def reset(self, keeps: Collection[Spec] = ()) -> int:
        """Finish passes in progress, forget everything, and return how many activations that were. Waits for threads.

        Args:
            keeps: (segment, width) to be loaded first: of each one instance may stay, whose load ends at once.
        """
        ...

    @property
    def next_ns(self) -> int | None:
        """When `ring` should be called next, by the worker's own clock; None if that is not needed."""
        ...

    def ring(self, now_ns: int) -> None:
        """Report everything that has ended by now."""
        ...


@dataclass(frozen=True, slots=True)
class Fitting:
    """The parts of a worker.

    Attributes:
        sensor: of the device, for these processes.
        measure: runs a measurement while nothing else is in progress; raises its error.
        explain: returns a failure in the protocol's terms.
        computes_here: whether lanes take the cores that the worker runs on.
        activation_bytes: device memory that activations hold at the moment, beyond `context_bytes`.
        has_own_memory: whether instances are in separate device memory, so that a load takes just its `vram_bytes`: the
            scheduler books them, and its cap applies to them.
        reads_apart: whether the sensor takes so long that micro-batches must not wait for it.
        waker: waits until the lanes' next end if they need it to the microsecond; None if any time will do.
    """

    lanes: Lanes
    sensor: Callable[[Sequence[int]], Sensor]
    measure: Callable[[Measurement], FromWorker]
    explain: Callable[[Exception], tuple[Reason, str]]
    context_bytes: int
    execution: Mapping[str, str]
    computes_here: bool = True
    activation_bytes: Callable[[], int] = lambda: 0
    has_own_memory: bool = False
    reads_apart: bool = False
    waker: Waker | None = None


class Outfit(Protocol):
    """The argument with which a worker's process starts; it opens the device there."""

    def fit(self, tell: Tell, clock_ns: Callable[[], int]) -> Fitting:
        """Return lanes that report every end to `tell`, in times of this clock; raises its error."""
        ...


@runtime_checkable
class FarOutfit(Outfit, Protocol):
    """An outfit that can be moved to another host."""

    def elsewhere(self, arenas: tuple[Arena, ...], model: Path | None) -> FarOutfit:
        """Return the same for another host: with its arenas of all workers, and its path of the model's file (None: as
        before)."""
        ...


@dataclass(frozen=True, slots=True)
class SchedulerSpec:
    """The settings of a worker's scheduler; none, if the worker is only measured.

    `has_core`: whether the worker has a core to itself, so that it may poll for messages for a while before it sleeps.
    """

    params: GreedyParams
    segments: int
    supervision: Supervision
    has_core: bool = False


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The description of a worker: its name, outfit and scheduler's settings (none if it is only measured).

    `shared`: workers of one host that name the same one, and start together, share a process and its thread; there are
    `process_workers` of that name.
    """

    name: str
    outfit: Outfit
    service: SchedulerSpec | None = None
    shared: str = ""
    process_workers: int = 1
