"""One real server's driver: turns a worker's answers into events for its `GreedyScheduler`, and commands into work.

It decides nothing (the scheduler does) and computes nothing (the worker does). It watches over its worker and starts
the next one when that has died, under a new epoch. The clock of a run stands here, too.
"""

from __future__ import annotations

import time  # noqa: TID251 - the hardware runs on the real clock
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from hw.arena import Inbox
from hw.device import DeviceSpec
from hw.late_ledger import LateLedger
from hw.messages import (
    Broken,
    Done,
    Finished,
    FromWorker,
    Load,
    LoadBroken,
    Loaded,
    MoveBroken,
    Moved,
    Ping,
    Pong,
    Ready,
    Refused,
    Run,
    ToWorker,
    Unload,
    Unloaded,
    Warm,
)
from hw.telemetry import Reading
from hw.watch import Watch
from hw.worker import WorkerDiedError, WorkerSlot
from policies.faults import PLANNED, WORKER_DIED, WORKER_HUNG, Impairment, RestartPlan, Supervision
from policies.greedy import GreedyKnobs, GreedyScheduler
from policies.records import Downtime, ServerTotals
from policies.vocabulary import (
    NS_PER_S,
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
    StragglerEnded,
    StragglerStarted,
    TelemetrySampled,
    TimerFired,
    UnloadInstance,
)


@dataclass(frozen=True, slots=True)
class HardwareServer:
    """A server of the cluster: its device, the knobs of its scheduler, and its device's idle powers for the record.

    `trusts_counter`: whether the device's energy counter may be used, where it has one.
    """

    name: str
    device: DeviceSpec
    knobs: GreedyKnobs
    bare_idle_w: float
    context_idle_w: float
    trusts_counter: bool = True


NEVER_NS = 1 << 62
_DOWN = {PLANNED: "taken down", WORKER_DIED: "its worker died", WORKER_HUNG: "its worker hung and was killed"}
START_LIMIT_NS = 300 * NS_PER_S  # a worker that is started again may take as long as the first one


def _s(time_ns: int) -> str:
    return f"{time_ns / NS_PER_S:.2f} s"


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
        spec: of the server.
        slot: where its workers sit.
        inbox: the ledger of its arena.
        labels: (n,) the right label of every request.
        segments: S.
        supervision: how its worker is watched and brought back.
        clock, ledger: of the run.
        tell_router: queues an event for the router's core.
        say: takes a line for people when its worker dies, hangs, or is back.
    """

    def __init__(
        self,
        index: int,
        spec: HardwareServer,
        slot: WorkerSlot,
        inbox: Inbox,
        labels: NDArray[np.int64],
        segments: int,
        supervision: Supervision,
        clock: RunClock,
        ledger: LateLedger,
        tell_router: Callable[[RouterEvent], None],
        say: Callable[[str], None],
    ) -> None:
        self.index = index
        self.spec = spec
        self.slot = slot
        self.inbox = inbox
        self.channels_last = spec.device.channels_last
        self.scheduler = GreedyScheduler(spec.knobs, index)
        self.epoch = 0
        self.is_up = False
        self.died = False
        self.is_doomed = False  # a planned fault has killed or stopped its worker
        self.downtimes: list[Downtime] = []
        self.references: list[tuple[int, float]] = []  # (when, seconds)
        self._labels = labels
        self._segments = segments
        self._supervision = supervision
        self._restarts = RestartPlan(supervision)
        self._restart_at_ns: int | None = None  # None: it runs, is starting, or never comes back
        self._up_from_ns = 0
        self._is_starting = False
        self._warm_number = 0
        self.impairment = self._reported = Impairment()  # what is the matter, and what the worker knows of it
        self._clock = clock
        self._ledger = ledger
        self._tell_router = tell_router
        self._say = say
        self._watch = Watch(supervision, 0)
        self._predicted: dict[int, int] = {}
        self._batches: dict[int, RunBatch] = {}
        self._loading: dict[int, tuple[int, float]] = {}
        self._loaded_before: set[tuple[int, float]] = set()
        self._instance_bytes: dict[int, int] = {}
        self._context_bytes = slot.worker.wait_until_ready().context_bytes

    # -------------------------------------------------------------------------------------------------- questions

    @property
    def is_loading(self) -> bool:
        """Whether a load is under way."""
        return bool(self._loading) and self.is_up

    @property
    def will_return(self) -> bool:
        """Whether it is down, and not for good."""
        return (self._is_starting or self._restart_at_ns is not None) and self._up_from_ns < NEVER_NS

    @property
    def has_worker(self) -> bool:
        """Whether there is a process whose answers should be listened to."""
        return self.is_up or self._is_starting

    @property
    def is_working(self) -> bool:
        """Whether an answer is due soon."""
        return bool(self._batches)

    @property
    def waiting(self) -> int:
        """Requests that wait or run here."""
        return self.scheduler.queue_length + self.scheduler.running_requests

    @property
    def vram_used_bytes(self) -> int:
        """Context and instances, as the worker counts them."""
        return self._context_bytes + sum(self._instance_bytes.values()) if self.is_up else 0

    @property
    def next_ns(self) -> int | None:
        """When something is due here that no answer will bring about."""
        if self.is_up:
            return self.scheduler.next_wake_ns
        if not self.will_return:
            return None
        return self._up_from_ns if self._is_ready_early else self._restart_at_ns

    @property
    def _is_ready_early(self) -> bool:
        """Whether a new worker waits for the end of an outage."""
        return self._is_starting and self.slot.worker.is_warm

    def totals(self, device: int, busy_s: float) -> ServerTotals:
        """This server's row of the record."""
        counts = self._ledger.ledger.counts[self.index]
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

    # --------------------------------------------------------------------------------------------- up and down

    def come_up(self) -> None:
        """Start, empty, in a new epoch."""
        now_ns = self._clock.now_ns()
        self.epoch += 1
        self.is_up, self._is_starting = True, False
        self._watch = Watch(self._supervision, now_ns)
        self._restarts.came_up(now_ns)
        self.is_doomed = False
        if (down := self._open_downtime) is not None:
            self.downtimes[-1] = structs.replace(down, up_ns=now_ns)
            self._say(f"{self.spec.name}: serves again since {_s(now_ns)}, after {_s(now_ns - down.down_ns)}")
        self._tell_worker()
        self._tell_router(ServerUp(self.index, self.epoch))
        self.deliver(ServerUp(self.index, self.epoch))

    def go_down(self, reason: str, until_ns: int | None = 0) -> None:
        """The worker is gone (or is ended now), and everything with it.

        Args:
            until_ns: it does not come back before; None: never.
        """
        now_ns = self._clock.now_ns()
        was_up, self.is_up = self.is_up, False
        self.died = self._is_starting = False
        self.slot.worker.kill()
        self._restart_at_ns = self._restarts.restart_at_ns(now_ns)
        self.stay_down(until_ns)
        for kept in (self._batches, self._loading, self._loaded_before, self._instance_bytes, self._predicted):
            kept.clear()
        if not was_up:
            what = f"{_DOWN[reason]} while it started, at {_s(now_ns)}"
        else:
            is_planned = reason == PLANNED or self.is_doomed
            self.downtimes.append(Downtime(self.index, now_ns, None, reason, is_planned))
            what = f"{_DOWN[reason]} at {_s(now_ns)}{', as planned' if is_planned else ''}"
            self.deliver(ServerDown(self.index, self.epoch, reason))
            self._tell_router(ServerDown(self.index, self.epoch, reason))
        self._say(f"{self.spec.name}: {what}; {self._return_text(now_ns)}")

    def tell_absence(self) -> None:
        """At the end of a run: whether it is still down."""
        if (down := self._open_downtime) is not None:
            self._say(f"{self.spec.name}: did not come back (down since {_s(down.down_ns)})")

    @property
    def _open_downtime(self) -> Downtime | None:
        return self.downtimes[-1] if self.downtimes and self.downtimes[-1].up_ns is None else None

    def _return_text(self, now_ns: int) -> str:
        """What is to come, once it is down."""
        if not self.will_return:
            return "it does not come back"
        assert self._restart_at_ns is not None, "it is down"
        wait = f"a new worker starts in {_s(self._restart_at_ns - now_ns)}"
        return wait if self._up_from_ns <= now_ns else f"{wait} and serves from {_s(self._up_from_ns)} on"

    def stay_down(self, until_ns: int | None) -> None:
        """It is down already, and does not come back before; None: never."""
        if until_ns is not None:
            self._up_from_ns = max(self._up_from_ns, until_ns)
        else:
            self._up_from_ns = NEVER_NS

    def restart_if_due(self) -> bool:
        """Start the next worker when its time has come; returns whether one was started."""
        now_ns = self._clock.now_ns()
        if not self.will_return or self._restart_at_ns is None or now_ns < self._restart_at_ns:
            return False
        self._restart_at_ns = None
        self._is_starting = True
        self._reported = Impairment()
        patient = replace(self._supervision, stuck_ns=max(START_LIMIT_NS, self._supervision.stuck_ns))
        self._watch = Watch(patient, now_ns)
        self._watch.asked("start", now_ns)
        self.slot.start()
        return True

    def excuse(self) -> None:
        """The driver itself was away: the worker is not to blame."""
        self._watch.excuse(self._clock.now_ns())

    def look_after(self) -> str | None:
        """Ping the worker; returns why it must be given up, None while it is well."""
        now_ns = self._clock.now_ns()
        if not self.has_worker:
            return None
        if self._watch.is_hung(now_ns) and not self.slot.worker.connection.poll(0):  # its answer may lie unread
            return WORKER_HUNG
        if self.is_up and (number := self._watch.ping(now_ns)) is not None:
            self.send(Ping(number))
        return None

    def _wake_up(self, message: Ready | Done | Refused) -> None:
        """A new worker's first words: it is there, then warm, then serves (not before an outage has ended)."""
        worker = self.slot.worker
        if isinstance(message, Refused):
            self.died = True
            return
        if isinstance(message, Ready):
            self._context_bytes = message.context_bytes
            self._warm_number = worker.next_number()
            self.send(Warm(self._warm_number, self.slot.warm_batches))  # of nothing, too: the answer comes in any case
            return
        if not self._is_starting or message.number != self._warm_number:
            return  # of an earlier run
        worker.is_warm = True
        self._watch.answered("start")
        if self._clock.now_ns() >= self._up_from_ns:
            self.come_up()

    def end_outage_if_due(self) -> None:
        """A worker that was ready before its outage has ended comes up when it has."""
        if self._is_ready_early and self._clock.now_ns() >= self._up_from_ns:
            self.come_up()

    # --------------------------------------------------------------------------------------------------- events in

    def deliver(self, event: ServerEvent) -> None:
        """Hand an event to the scheduler and carry out what it answers."""
        now_ns = self._clock.now_ns()
        commands = self.scheduler.handle(event, now_ns)
        self._ledger.observe_server(self.index, event, commands, now_ns)
        for command in commands:
            self._carry_out(command)

    def ring(self) -> None:
        """Fire the scheduler's timer if it is due."""
        wake_ns = self.scheduler.next_wake_ns
        if self.is_up and wake_ns is not None and wake_ns <= self._clock.now_ns():
            self.deliver(TimerFired())

    def report(self, reading: Reading) -> None:
        """A sample of the device's sensor: to the scheduler, then to the router. What is absent reads as 0.

        A worker that owes a sign of life reports nothing: on a host of its own it could not.
        """
        if self._watch.is_silent(self._clock.now_ns()):
            return
        now_ns, vram_bytes, queue_length = self._clock.now_ns(), self.vram_used_bytes, self.waiting
        utilization, power_w = reading.utilization or 0.0, reading.power_w or 0.0
        self.deliver(TelemetrySampled(self.epoch, now_ns, now_ns, utilization, power_w, vram_bytes, queue_length))
        self._tell_router(
            ServerReport(self.index, self.epoch, now_ns, now_ns, queue_length, utilization, power_w, vram_bytes)
        )

    def straggle(self, factor: float) -> None:
        """Be slow from now on, or (1) as fast as ever; recorded in both cores' logs."""
        self.impair(replace(self.impairment, slow_factor=factor))
        event = StragglerStarted(self.index, factor) if factor != 1.0 else StragglerEnded(self.index)
        self.deliver(event)
        self._tell_router(event)

    def impair(self, impairment: Impairment) -> None:
        """From now on this is the matter with it; the worker that is there takes it on."""
        self.impairment = impairment
        self._tell_worker()

    def _tell_worker(self) -> None:
        if self.is_up and self.impairment != self._reported:
            self.send(self.impairment)
            self._reported = self.impairment

    def hear(self, message: FromWorker) -> None:
        """An answer of the worker that concerns an instance, a batch or itself."""
        match message:
            case Finished(batch):
                self._watch.answered(("batch", batch))
                self._finish(self._batches.pop(batch), message)
            case Broken(batch, reason):
                self._watch.answered(("batch", batch))
                del self._batches[batch]
                self.deliver(BatchFailed(self.epoch, batch, reason))
            case Loaded(instance, _, vram_bytes):
                self._watch.answered(("instance", instance))
                self._loaded_before.add(self._loading.pop(instance))
                self._instance_bytes[instance] = vram_bytes
                self.deliver(InstanceLoaded(self.epoch, instance))
            case LoadBroken(instance, reason):
                self._watch.answered(("instance", instance))
                del self._loading[instance]
                self.deliver(LoadFailed(self.epoch, instance, reason))
            case Unloaded(instance):
                self._watch.answered(("instance", instance))
                self._instance_bytes.pop(instance, None)
                self.deliver(InstanceUnloaded(self.epoch, instance))
            case Pong(number):
                self._watch.ponged(number)
            case Moved(transfer) | MoveBroken(transfer):
                self._watch.answered(("transfer", transfer))
            case Ready() | Done() | Refused():
                self._wake_up(message)
            case _:
                raise AssertionError(f"not for a server: {message}")

    def _finish(self, batch: RunBatch, message: Finished) -> None:
        if message.reference_s:
            self.references.append((self._clock.of(message.referenced_ns), message.reference_s))
        self.deliver(BatchStarted(self.epoch, batch.batch, self._clock.of(message.began_ns)))
        passed = [request for request in batch.requests if request not in message.failed]
        self.inbox.forget(passed)
        self._predicted.update(zip(passed, message.labels, strict=False))
        ended_ns = self._clock.of(message.began_ns + round(message.forward_s * NS_PER_S))
        self.deliver(BatchFinished(self.epoch, batch.batch, message.failed, message.reason, ended_ns))

    # ------------------------------------------------------------------------------------------------ commands out

    def send(self, message: ToWorker, urgent: bool = True) -> None:
        """Ask the worker with the next `flush`."""
        self.slot.worker.post(message, urgent)

    def flush(self) -> bool:
        """Send what was asked; returns whether all of it could be sent.

        If the worker is gone, `died` says so and the cluster takes the server down.
        """
        try:
            return not self.has_worker or self.slot.worker.flush()
        except WorkerDiedError:
            self.died = True
            return True

    def asked(self, transfer: int) -> None:
        """The worker was asked to move something."""
        self._watch.asked(("transfer", transfer), self._clock.now_ns())

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
                self._watch.asked(("instance", instance), self._clock.now_ns())
                self.send(Load(instance, segment, width, from_disk=first))
            case UnloadInstance(_, instance):
                self._watch.asked(("instance", instance), self._clock.now_ns())
                self.send(Unload(instance))

    def _run(self, command: RunBatch) -> None:
        self._batches[command.batch] = command
        self._watch.asked(("batch", command.batch), self._clock.now_ns())
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
