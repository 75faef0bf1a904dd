"""Executes a scheduler's commands in an agent: loads, unloads and batches, and reports the end of each.

A scheduler's instance is a *lane*. Real ones are threads (`hw.agent.torch_lanes`); emulated ones are entries of a
device's model (`hw.agent.emulated`). They decide nothing: the scheduler decides on batches, instances and times. Every
failure becomes a message; none ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, Protocol

import msgspec

from hw.transport.arena import LinkLostError
from hw.transport.messages import Captures, Input, Move, MoveBroken, Moved, Reason
from policies.faults import Impairment
from policies.greedy import Spec
from policies.vocabulary import RunBatch


class BatchEnded(msgspec.Struct, frozen=True):
    """A batch is done. Times are readings of the agent's own clock.

    Attributes:
        labels: after the last segment, one for each request that did not fail, in their order; empty if the device is
            emulated.
        began_ns, ended_ns: of the forward pass; an emulated one ends by its model's time, and is noticed `late_ns`
            later.
        failed: members that could not be run, for `reason`; their inputs are still stored.
        referenced_ns, reference_s, scores: see `hw.transport.messages.Returned`.
    """

    batch: int
    labels: tuple[int, ...]
    began_ns: int
    ended_ns: int
    failed: tuple[int, ...] = ()
    reason: Reason | Literal[""] = ""
    late_ns: int = 0
    referenced_ns: int = 0
    reference_s: float = 0.0
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
    """The lanes of one agent. Its owner is notified of every end, from any thread, or from within `ring`."""

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> None:
        """Make an instance, from the weights in host memory or from the model's file."""
        ...

    def unload(self, instance: int) -> None:
        """Free an idle instance."""
        ...

    def run(self, command: RunBatch) -> None:
        """Run a batch of stored activations; their outputs replace them, or labels come from the last segment."""
        ...

    def take(self, inputs: Sequence[Input]) -> None:
        """Keep the activations in the agent's arena; a batch that needs one that could not be kept fails."""
        ...

    def retain(self, requests: Sequence[int]) -> None:
        """Keep inputs that could not be run and will be asked for again; their places in the arena are reused now."""
        ...

    def forget(self, requests: Iterable[int]) -> None:
        """Forget these activations, as far as they are here: they will not be asked for again."""
        ...

    def move(self, message: Move) -> Moved | None:
        """Write stored activations to another agent; raises its error. None: `MoveEnded` will report it."""
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
        """When `ring` should be called next, by the agent's own clock; None if that is not needed."""
        ...

    def ring(self, now_ns: int) -> None:
        """Report everything that has ended by now."""
        ...
