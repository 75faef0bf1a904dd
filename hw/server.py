"""One real server's driver: turns a worker's answers into events for its `GreedyScheduler`, and commands into work.

It decides nothing (the scheduler does) and computes nothing (the worker does). The clock of a run stands here, too.
"""

from __future__ import annotations

import time  # noqa: TID251 - the hardware runs on the real clock
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hw.device import DeviceSpec
from hw.messages import (
    Broken,
    Finished,
    FromWorker,
    Load,
    LoadBroken,
    Loaded,
    Run,
    ToWorker,
    Unload,
    Unloaded,
)
from hw.telemetry import Reading
from hw.worker import Worker, WorkerDiedError
from policies.greedy import GreedyKnobs, GreedyScheduler
from policies.ledger import Ledger
from policies.records import ServerTotals
from policies.vocabulary import (
    BatchFailed,
    BatchFinished,
    BatchStarted,
    InstanceLoaded,
    InstanceUnloaded,
    LoadFailed,
    LoadInstance,
    RejectRequests,
    RequestsRejected,
    RequestsReturned,
    ReturnRequests,
    RouterEvent,
    RunBatch,
    ServerCommand,
    ServerDown,
    ServerEvent,
    ServerReport,
    ServerUp,
    TelemetrySampled,
    TimerFired,
    UnloadInstance,
)

EPOCH = 1  # a worker that dies stays dead: every server has one life in a run


@dataclass(frozen=True, slots=True)
class HardwareServer:
    """A server of the cluster: its device, the knobs of its scheduler, and its device's idle powers for the record."""

    name: str
    device: DeviceSpec
    knobs: GreedyKnobs
    bare_idle_w: float
    context_idle_w: float


class RunClock:
    """Nanoseconds since the start of a run: stands at 0 until `start`, and never goes back."""

    def __init__(self) -> None:
        self._origin_ns: int | None = None
        self._last_ns = 0

    def start(self) -> None:
        """From now on time passes."""
        self._origin_ns = time.monotonic_ns()

    def now_ns(self) -> int:
        """The present."""
        if self._origin_ns is not None:
            self._last_ns = max(self._last_ns, time.monotonic_ns() - self._origin_ns)
        return self._last_ns

    def of(self, monotonic_ns: int) -> int:
        """A reading of this host's monotonic clock, in the run's time."""
        return monotonic_ns - (self._origin_ns or 0)

    def due_ns(self, planned_ns: int) -> int:
        """The time of something that was due before now: its own, unless later events have been handled already.

        So a driver that was busy does not hide the wait of those that came meanwhile.
        """
        self._last_ns = max(self._last_ns, planned_ns)
        return self._last_ns


class RealServer:
    """A scheduler and its worker during one run.

    Args:
        index: of the server in the cluster.
        spec, worker: of the server.
        labels: (n,) the right label of every request.
        segments: S.
        clock, ledger: of the run.
        tell_router: queues an event for the router's core.
    """

    def __init__(
        self,
        index: int,
        spec: HardwareServer,
        worker: Worker,
        labels: NDArray[np.int64],
        segments: int,
        clock: RunClock,
        ledger: Ledger,
        tell_router: Callable[[RouterEvent], None],
    ) -> None:
        self.index = index
        self.spec = spec
        self.worker = worker
        self.scheduler = GreedyScheduler(spec.knobs, index)
        self.is_up = False
        self.died = False
        self._labels = labels
        self._segments = segments
        self._clock = clock
        self._ledger = ledger
        self._tell_router = tell_router
        self._predicted: dict[int, int] = {}
        self._batches: dict[int, RunBatch] = {}
        self._loading: dict[int, tuple[int, float]] = {}
        self._loaded_before: set[tuple[int, float]] = set()
        self._instance_bytes: dict[int, int] = {}
        self._context_bytes = worker.wait_until_ready().context_bytes

    # -------------------------------------------------------------------------------------------------- questions

    @property
    def is_loading(self) -> bool:
        """Whether a load is under way."""
        return bool(self._loading) and self.is_up

    @property
    def waiting(self) -> int:
        """Requests that wait or run here."""
        return self.scheduler.queue_length + self.scheduler.running_requests

    @property
    def vram_used_bytes(self) -> int:
        """Context and instances, as the worker counts them."""
        return self._context_bytes + sum(self._instance_bytes.values())

    def totals(self, device: int, busy_s: float) -> ServerTotals:
        """This server's row of the record."""
        counts = self._ledger.counts[self.index]
        return ServerTotals(
            name=self.spec.name,
            device=device,
            busy_s=busy_s,
            images=counts.images,
            batches=counts.batches,
            loads=counts.loads,
            unloads=counts.unloads,
            vram_peak_bytes=self.scheduler.memory.peak_bytes,
        )

    # --------------------------------------------------------------------------------------------------- events in

    def deliver(self, event: ServerEvent) -> None:
        """Hand an event to the scheduler and carry out what it answers."""
        now_ns = self._clock.now_ns()
        commands = self.scheduler.handle(event, now_ns)
        self._ledger.observe_server(self.index, event, commands, now_ns, self.waiting)
        for command in commands:
            self._carry_out(command)

    def come_up(self) -> None:
        """Start, empty."""
        self.is_up = True
        self._tell_router(ServerUp(self.index, EPOCH))
        self.deliver(ServerUp(self.index, EPOCH))

    def go_down(self) -> None:
        """The worker is gone, and everything with it."""
        self.is_up = False
        self._loading.clear()
        self._instance_bytes.clear()
        self.deliver(ServerDown(self.index, EPOCH, "worker_died"))
        self._tell_router(ServerDown(self.index, EPOCH, "worker_died"))

    def ring(self) -> None:
        """Fire the scheduler's timer if it is due."""
        wake_ns = self.scheduler.next_wake_ns
        if self.is_up and wake_ns is not None and wake_ns <= self._clock.now_ns():
            self.deliver(TimerFired())

    def report(self, reading: Reading) -> None:
        """A sample of the device's sensor: to the scheduler, then to the router. What is absent reads as 0."""
        now_ns, vram_bytes = self._clock.now_ns(), self.vram_used_bytes
        utilization, power_w = reading.utilization or 0.0, reading.power_w or 0.0
        self.deliver(TelemetrySampled(EPOCH, now_ns, now_ns, utilization, power_w, vram_bytes))
        self._tell_router(
            ServerReport(self.index, EPOCH, now_ns, now_ns, self.waiting, utilization, power_w, vram_bytes)
        )

    def hear(self, message: FromWorker) -> None:
        """An answer of the worker that concerns an instance or a batch."""
        match message:
            case Finished(batch, labels, began_ns):
                self.deliver(BatchStarted(EPOCH, batch, self._clock.of(began_ns)))
                self._predicted.update(zip(self._batches.pop(batch).requests, labels, strict=False))
                self.deliver(BatchFinished(EPOCH, batch))
            case Broken(batch, reason):
                del self._batches[batch]
                self.deliver(BatchFailed(EPOCH, batch, reason))
            case Loaded(instance, _, vram_bytes):
                self._loaded_before.add(self._loading.pop(instance))
                self._instance_bytes[instance] = vram_bytes
                self.deliver(InstanceLoaded(EPOCH, instance))
            case LoadBroken(instance, reason):
                del self._loading[instance]
                self.deliver(LoadFailed(EPOCH, instance, reason))
            case Unloaded(instance):
                self._instance_bytes.pop(instance, None)
                self.deliver(InstanceUnloaded(EPOCH, instance))
            case _:
                raise AssertionError(f"not for a server: {message}")

    # ------------------------------------------------------------------------------------------------ commands out

    def send(self, message: ToWorker) -> None:
        """Ask the worker; if it is gone, `died` says so and the cluster takes the server down."""
        try:
            self.worker.send(message)
        except WorkerDiedError:
            self.died = True

    def _carry_out(self, command: ServerCommand) -> None:
        match command:
            case RunBatch():
                self._run(command)
            case ReturnRequests(epoch, requests, segment, width):
                correct = self._correct(requests) if segment == self._segments else ()
                self._tell_router(RequestsReturned(self.index, epoch, requests, segment, width, correct))
            case RejectRequests(epoch, requests, reason):
                self._tell_router(RequestsRejected(self.index, epoch, requests, reason))
            case LoadInstance(_, instance, segment, width):
                first = (segment, width) not in self._loaded_before
                self._loading[instance] = (segment, width)
                self.send(Load(instance, segment, width, from_disk=first))
            case UnloadInstance(_, instance):
                self.send(Unload(instance))

    def _run(self, command: RunBatch) -> None:
        self._batches[command.batch] = command
        self.send(
            Run(
                command.batch,
                command.instance,
                command.requests,
                command.segment,
                command.previous_width,
                command.served_width,
                command.padded,
            )
        )

    def _correct(self, requests: tuple[int, ...]) -> tuple[bool, ...]:
        return tuple(self._predicted.pop(request) == int(self._labels[request]) for request in requests)
