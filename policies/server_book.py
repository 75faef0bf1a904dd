"""The records of one server: an observer of its scheduler's steps, which reports every batch that has ended.

It runs in the scheduler's process. Its reports go to the run's ledger (`policies.ledger`), which may be in another
process. It neither decides nor measures anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from policies.vocabulary import (
    BatchFailed,
    BatchFinished,
    BatchStarted,
    BlockArrived,
    InstanceLoaded,
    LoadInstance,
    RunBatch,
    ServerCommand,
    ServerDown,
    ServerEvent,
    UnloadInstance,
)


class BatchTold(msgspec.Struct, frozen=True, array_like=True):
    """A batch that has ended, in the server's times.

    Attributes:
        requests: all of its members; `failed`: the members that broke it.
        commanded_ns: time of the scheduler's command.
        started_ns, forward_ended_ns: of the forward pass.
        late_ns: how much later than its model's time the end of an emulated pass was detected; `forward_ended_ns` is
            the model's. 0 for other passes.
        ended_ns: when the scheduler received its end.
        load_ns: start and end of its instance's load.
        arrivals: (block, when it arrived) of the blocks that were not reported before.
    """

    batch: int
    instance: int
    segment: int
    width: float
    previous_width: float
    requests: tuple[int, ...]
    failed: tuple[int, ...]
    commanded_ns: int
    started_ns: int
    forward_ended_ns: int
    late_ns: int
    ended_ns: int
    load_ns: tuple[int, int]
    arrivals: tuple[tuple[int, int], ...] = ()


class ServerCounts(msgspec.Struct, array_like=True):
    """A server's counts so far."""

    images: int = 0
    batches: int = 0
    loads: int = 0
    unloads: int = 0

    def __add__(self, other: ServerCounts) -> ServerCounts:
        return ServerCounts(
            self.images + other.images,
            self.batches + other.batches,
            self.loads + other.loads,
            self.unloads + other.unloads,
        )


class _Running(msgspec.Struct):
    """A batch in progress; its instance was being loaded from `load_ns[0]` to `load_ns[1]`."""

    command: RunBatch
    commanded_ns: int
    started_ns: int
    load_ns: tuple[int, int]


class ServerBook:
    """The observer of one server.

    Args:
        detail: report batches; without it only `counts` are kept.
    """

    def __init__(self, *, detail: bool = True) -> None:
        self.counts = ServerCounts()
        self._detail = detail
        self._running: dict[tuple[int, int], _Running] = {}  # by (epoch, batch)
        self._loads: dict[tuple[int, int], tuple[int, int]] = {}  # by (epoch, instance)
        self._arrivals: dict[int, int] = {}  # of unreported blocks
        self._of_command: dict[type, Callable[[Any, int], None]] = {
            RunBatch: self._note_command,
            LoadInstance: self._note_load,
            UnloadInstance: self._note_unload,
        }
        self._of_event: dict[type, Callable[[Any, int], BatchTold | None]] = {
            BatchFinished: self._note_end,
            BatchFailed: self._note_failure,
            ServerDown: self._note_death,
        }
        if detail:
            self._of_event |= {
                BlockArrived: self._note_arrival,
                BatchStarted: self._note_start,
                InstanceLoaded: self._note_loaded,
            }

    def observe(self, event: ServerEvent, commands: Sequence[ServerCommand], now_ns: int) -> BatchTold | None:
        """Process one step of the scheduler; returns the batch that has ended with it."""
        note = self._of_event.get(type(event))
        batch = None if note is None else note(event, now_ns)
        for command in commands:
            take = self._of_command.get(type(command))
            if take is not None:
                take(command, now_ns)
        return batch

    def take_arrivals(self) -> tuple[tuple[int, int], ...]:
        """Return (block, when it arrived) of the blocks not reported yet."""
        arrivals = tuple(self._arrivals.items())
        self._arrivals.clear()
        return arrivals

    # ---------------------------------------------------------------------------------------------------- what happens

    def _note_arrival(self, event: BlockArrived, now_ns: int) -> None:
        self._arrivals[event.block.block] = now_ns

    def _note_loaded(self, event: InstanceLoaded, now_ns: int) -> None:
        instance = (event.epoch, event.instance)
        began_ns, _ = self._loads.get(instance, (now_ns, now_ns))
        self._loads[instance] = (began_ns, now_ns)

    def _note_start(self, event: BatchStarted, now_ns: int) -> None:
        running = self._running.get((event.epoch, event.batch))
        if running is not None:
            running.started_ns = event.started_ns

    def _note_failure(self, event: BatchFailed, now_ns: int) -> None:
        """Count a batch none of whose images has passed its segment."""
        self._running.pop((event.epoch, event.batch), None)

    def _note_death(self, event: ServerDown, now_ns: int) -> None:
        self._running.clear()
        self._loads.clear()
        self._arrivals.clear()

    def _note_end(self, event: BatchFinished, now_ns: int) -> BatchTold | None:
        running = self._running.pop((event.epoch, event.batch), None)
        if running is None:
            return None
        command = running.command
        self.counts.batches += 1
        self.counts.images += len(command.requests) - len(event.failed)
        if not self._detail:
            return None
        return BatchTold(
            batch=command.batch,
            instance=command.instance,
            segment=command.segment,
            width=command.served_width,
            previous_width=command.previous_width,
            requests=command.requests,
            failed=event.failed,
            commanded_ns=running.commanded_ns,
            started_ns=running.started_ns,
            forward_ended_ns=now_ns if event.ended_ns is None else event.ended_ns,
            late_ns=event.late_ns,
            ended_ns=now_ns,
            load_ns=running.load_ns,
            arrivals=self.take_arrivals() if self._arrivals else (),
        )

    # --------------------------------------------------------------------------------------------------- its commands

    def _note_command(self, command: RunBatch, now_ns: int) -> None:
        load_ns = self._loads.get((command.epoch, command.instance), (0, 0))
        self._running[command.epoch, command.batch] = _Running(command, now_ns, now_ns, load_ns)

    def _note_load(self, command: LoadInstance, now_ns: int) -> None:
        self.counts.loads += 1
        if self._detail:
            self._loads[command.epoch, command.instance] = (now_ns, now_ns)

    def _note_unload(self, command: UnloadInstance, now_ns: int) -> None:
        self.counts.unloads += 1
        self._loads.pop((command.epoch, command.instance), None)
