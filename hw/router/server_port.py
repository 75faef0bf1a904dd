"""One server in the router's process: translates its worker's messages to events for the router's core, and back.

It decides nothing and schedules nothing (the worker does). It supervises its worker and starts the next one when that
has died, under a new incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec import structs

from hw.clock import NEVER_NS, RunClock
from hw.router.run_meters import LateLedger, Watcher
from hw.router.worker_handles import WorkerHandle, WorkerSlot
from hw.transport.messages import (
    Captures,
    ComeUp,
    Deliver,
    Done,
    Fence,
    Fenced,
    Finished,
    FromWorker,
    Impair,
    Input,
    MoveBroken,
    Moved,
    Pong,
    Preloaded,
    Prepare,
    Prepared,
    Ready,
    Refused,
    Rejected,
    Report,
    Returned,
    Sample,
    Sampled,
    Sense,
    Start,
    Stuck,
    ToWorker,
    Warm,
)
from hw.transport.peers import FailureDetector
from hw.transport.shared_memory import Inbox, Slab, steps_of
from hw.transport.worker_port import PortBrokenError, PortClosedError
from policies.faults import PLANNED, WORKER_DIED, WORKER_HUNG, Impairment, RestartPlan, Supervision
from policies.greedy_scheduler import GreedyParams
from policies.run_records import CpuWorkCost, Downtime, ServerClock, ServerCounts, ServerTotals, WorkerLog
from policies.vocabulary import (
    NS_PER_S,
    MicroBatch,
    RequestsRejected,
    RequestsReturned,
    RouterEvent,
    ServerDown,
    ServerReport,
    ServerUp,
    StragglerEnded,
    StragglerStarted,
    TelemetrySampled,
)

if TYPE_CHECKING:
    from hw.device_settings import DeviceSpec
    from hw.worker.emulated_lanes import EmulatedDevice


@dataclass(frozen=True, slots=True)
class HardwareServer:
    """A server of the cluster: its device, the parameters of its scheduler, and its device's idle powers for the
    record.

    Attributes:
        sensor_period_s: of the device's sensor's readings.
        machine: that it is on, if that is not the router's.
        host: the machine's name, if the cluster has several; to an operator it means all servers there.
        captured: number of its passes that were captured when its profile was measured, `31 of 64`; empty: all.
    """

    name: str
    device: DeviceSpec | EmulatedDevice
    params: GreedyParams
    bare_idle_w: float
    context_idle_w: float
    sensor_period_s: float = 0.1
    machine: str = ""
    host: str = ""
    captured: str = ""

    @property
    def physical(self) -> tuple[str, str, tuple[int, ...]]:
        """The key that is equal for servers that share a device."""
        return (self.machine, *self.device.physical)


_DOWN = {PLANNED: "taken down", WORKER_DIED: "its worker died", WORKER_HUNG: "its worker hung and was killed"}
START_LIMIT_NS = 300 * NS_PER_S  # for a worker that is started again; the first one has as long

Judge = Callable[[tuple[int, ...], float, tuple[int, ...], bytes], tuple[bool, ...]]
"""See `hw.router.run_requests.Traffic`."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """The part that all servers of a run share.

    Attributes:
        supervision: how workers are watched and restarted.
        judge: which labels are right.
        tell_router: queues an event for the router's core.
        say: takes a line for people when a worker dies, hangs, or is back.
        keep_log: whether workers log every step.
        measures_costs: whether workers measure what they do besides passes.
        keeps_record: whether the run's record is needed; otherwise nothing is kept that grows with it.
        up: the incarnations of those servers that are up.
        deaths: servers whose worker has died, until that is noticed.
    """

    clock: RunClock
    ledger: LateLedger[Watcher]
    supervision: Supervision
    judge: Judge
    segments: int
    tell_router: Callable[[RouterEvent], None]
    say: Callable[[str], None]
    keep_log: bool
    measures_costs: bool
    keeps_record: bool = True
    up: dict[int, int] = field(default_factory=dict)
    deaths: list[int] = field(default_factory=list)


def _in_s(time_ns: int) -> str:
    return f"{time_ns / NS_PER_S:.2f} s"


class RemoteServer:
    """A server during one run.

    Args:
        index: of the server in the cluster.
        spec: of the server.
        slot: of its workers.
        inbox: the ledger of its arena.
        run: the part shared with the others.
    """

    def __init__(self, index: int, spec: HardwareServer, slot: WorkerSlot, inbox: Inbox, run: RunContext) -> None:
        self.index = index
        self.spec = spec
        self.slot = slot
        self.inbox = inbox
        self.channels_last = spec.device.channels_last
        self.incarnation = 0
        self.is_up = False
        self.died = False
        self.has_posted = False  # something waits for `flush`
        self.is_doomed = False  # a planned fault has killed or stopped its worker
        self.is_away = False  # its worker went when it was drained and empty: the next one starts when it is returned
        self.downtimes: list[Downtime] = []
        self.references: list[tuple[int, float]] = []  # (when, seconds)
        # (incarnation, log, reported steps, end)
        self._incarnation_logs: list[tuple[int, Callable[[], bytes], int, str]] = []
        self.samples: list[Sample] = []  # that its worker has read of the device, and that are not yet taken
        self.impairment = Impairment()
        self.in_flight = 0  # requests there: whether a message is due soon
        self.worker_cpu_ns = 0
        self.cpu_work: tuple[CpuWorkCost, ...] = ()
        self._run = run
        self._tell_router = run.tell_router
        self._restarts = RestartPlan(run.supervision)
        self._restart_at_ns: int | None = None  # None: it runs, is starting, or never comes back
        self._up_from_ns = 0
        self._is_starting = False
        self._is_ready_early = False  # a new worker waits for the end of an outage
        self._preloaded = 0  # the last incarnation whose preloads are complete
        self._number = 0
        self._detector = FailureDetector(run.supervision, 0)
        self._heard_steps = 0
        self._counts = ServerCounts()  # of this incarnation
        self._totals = ServerCounts()  # of earlier incarnations
        self._vram_peak_bytes = 0
        self._captures = Captures()
        self._is_finished = False
        self._fences: dict[int, tuple[Slab, ...]] = {}  # slabs that a dead worker may still write to, until fenced off

    # -------------------------------------------------------------------------------------------------- questions

    @property
    def is_preloading(self) -> bool:
        """Whether its preloads are not complete yet."""
        return self.is_up and self._preloaded != self.incarnation

    @property
    def will_return(self) -> bool:
        """Whether it is down, and not for good."""
        is_to_start = self._is_starting or self._restart_at_ns is not None
        return is_to_start and self._up_from_ns < NEVER_NS and not self.is_away

    @property
    def has_worker(self) -> bool:
        """Whether there is a process whose messages should be received."""
        return self.is_up or self._is_starting

    @property
    def is_finished(self) -> bool:
        """Whether its worker has sent its account of the run, or is gone."""
        return self._is_finished or not self.is_up

    @property
    def port_number(self) -> int:
        """The descriptor to select on."""
        return self.slot.worker.port.fileno()

    @property
    def next_ns(self) -> int | None:
        """The time at which something is due here that no message will trigger."""
        if self.is_up or not self.will_return:
            return None
        return self._up_from_ns if self._is_ready_early else self._restart_at_ns

    def totals(self, device: int, busy_s: float) -> ServerTotals:
        """Return this server's row of the record."""
        counts = self._totals + self._counts
        return ServerTotals(
            name=self.spec.name,
            device=device,
            busy_s=busy_s,
            images=counts.images,
            batches=counts.batches,
            loads=counts.loads,
            unloads=counts.unloads,
            vram_peak_bytes=self._vram_peak_bytes,
            captured=self._captures.captured,
            to_capture=self._captures.tried,
        )

    # --------------------------------------------------------------------------------------------- up and down

    def come_up(self) -> None:
        """Serve, empty, in a new incarnation; the worker was prepared."""
        now_ns = self._run.clock.now_ns()
        self.incarnation += 1
        self.is_up = True
        self._is_starting = self._is_ready_early = False
        self._run.up[self.index] = self.incarnation
        self._heard_steps = self.in_flight = 0
        self._detector = FailureDetector(self._run.supervision, now_ns)
        self._restarts.came_up(now_ns)
        self.is_doomed = False
        if (down := self._open_downtime) is not None:
            self.downtimes[-1] = structs.replace(down, up_ns=now_ns)
            self._run.say(f"{self.spec.name}: serves again since {_in_s(now_ns)}, after {_in_s(now_ns - down.down_ns)}")
        self.start_clock()
        if self.impairment != Impairment():
            self.impair(self.impairment)
        self._tell_router(ServerUp(self.index, self.incarnation))
        self.send(ComeUp(self.incarnation, self._run.keeps_record))

    def retire(self) -> None:
        """End its worker's service, for another one is to take over; nothing is in flight here."""
        if self.is_up:
            self.is_up = False
            del self._run.up[self.index]
            self._bury(PLANNED)
            self._tell_router(ServerDown(self.index, self.incarnation, PLANNED))

    def take_over(self, start: Callable[[], WorkerHandle], successor: WorkerHandle) -> None:
        """Serve from now on with this worker, which was prepared; later ones start the same way."""
        self.slot.hand_over(start, successor)
        self.died = self.is_away = False
        self._restart_at_ns = None
        self._detector = FailureDetector(self._run.supervision, self._run.clock.now_ns())
        self._is_starting = self._is_ready_early = True
        self.end_outage_if_due()

    def begin_away(self) -> None:
        """Begin without a worker: it was drained before the run."""
        self.is_away, self._restart_at_ns = True, 0
        self.downtimes.append(Downtime(self.index, 0, None, WORKER_DIED))

    def start_clock(self) -> None:
        """Start the worker's clock with the run, by its own reading of that moment as far as that is known."""
        origin_ns = self._run.clock.origin_ns
        if origin_ns is not None:
            self.send(Start(self.slot.worker.offset.at_worker(origin_ns)))

    def go_down(self, reason: str) -> None:
        """Take it down: the worker is gone (or is ended now), and everything with it; `stay_down` sets until when."""
        now_ns = self._run.clock.now_ns()
        was_up, self.is_up = self.is_up, False
        self._run.up.pop(self.index, None)
        self.died = self._is_starting = self._is_ready_early = False
        self.slot.worker.kill()
        self._restart_at_ns = self._restarts.restart_at_ns(now_ns)
        if not was_up:
            text = f"{_DOWN[reason]} while it started, at {_in_s(now_ns)}"
        else:
            self._bury(reason)
            is_planned = reason == PLANNED or self.is_doomed or self.is_away
            if not self._run.keeps_record:
                self.downtimes.clear()
            self.downtimes.append(Downtime(self.index, now_ns, None, reason, is_planned))
            text = f"{_DOWN[reason]} at {_in_s(now_ns)}{', as planned' if is_planned else ''}"
            self._tell_router(ServerDown(self.index, self.incarnation, reason))
        self._run.say(f"{self.spec.name}: {text}; {self._return_text(now_ns)}")

    def _bury(self, reason: str) -> None:
        """Close an incarnation: keep its log, and the counts of its last report; no message is due."""
        self.in_flight = 0
        self._keep_log(reason)
        for slabs in self._fences.values():  # its next incarnation has another address, unknown to their writers
            self._cancel(slabs)
        self._fences.clear()
        self._totals += self._counts
        self._counts = ServerCounts()

    def _keep_log(self, ended: str) -> None:
        if self._run.keep_log:
            self._incarnation_logs.append((self.incarnation, self.slot.worker.log(), self._heard_steps, ended))

    def worker_logs(self) -> list[WorkerLog]:
        """Return the logs of every incarnation; to be read after the run and before the next, for they are long."""
        return [
            WorkerLog(self.index, incarnation, steps_of(log(), self.index), heard, ended)
            for incarnation, log, heard, ended in self._incarnation_logs
        ]

    def tell_absence(self) -> None:
        """Report at the end of a run whether it is still down."""
        if (down := self._open_downtime) is not None:
            self._run.say(f"{self.spec.name}: did not come back (down since {_in_s(down.down_ns)})")

    @property
    def _open_downtime(self) -> Downtime | None:
        return self.downtimes[-1] if self.downtimes and self.downtimes[-1].up_ns is None else None

    def _return_text(self, now_ns: int) -> str:
        if self.is_away:
            return "it was drained, and a new worker starts when it is returned"
        if not self.will_return:
            return "it does not come back"
        assert self._restart_at_ns is not None, "it is down"
        wait = f"a new worker starts in {_in_s(self._restart_at_ns - now_ns)}"
        return wait if self._up_from_ns <= now_ns else f"{wait} and serves from {_in_s(self._up_from_ns)} on"

    def stay_down(self, until_ns: int) -> None:
        """Keep it down until this time, once it is down; `NEVER_NS`: for ever."""
        self._up_from_ns = max(self._up_from_ns, until_ns)

    def restart_if_due(self) -> None:
        """Start the next worker when its time has come."""
        now_ns = self._run.clock.now_ns()
        if not self.will_return or self._restart_at_ns is None or now_ns < self._restart_at_ns:
            return
        self._restart_at_ns = None
        self._is_starting = True
        rules = self._run.supervision
        self._detector = FailureDetector(replace(rules, stuck_ns=max(START_LIMIT_NS, rules.stuck_ns)), now_ns)
        self._detector.asked("start", now_ns)
        self.slot.start()

    def excuse(self) -> None:
        """Reset its timeouts: the router itself was away, so the worker is not to blame."""
        self._detector.excuse(self._run.clock.now_ns())

    def look_after(self) -> str | None:
        """Ping the worker; return why it must be given up, None while it is well."""
        now_ns = self._run.clock.now_ns()
        if not self.has_worker:
            return None
        if self._detector.is_hung(now_ns):
            return WORKER_HUNG
        if self.is_up and (number := self._detector.ping(now_ns)) is not None:
            self.send(self.slot.worker.ping(number))
        return None

    def _die(self) -> None:
        self.died = True
        self._run.deaths.append(self.index)

    def _wake_up(self, message: Ready | Done | Prepared | Refused) -> None:
        """Process a new worker's first messages: ready, warm, empty; then it serves, after an outage's end."""
        worker = self.slot.worker
        match message:
            case Refused():
                self._die()
            case Ready():
                worker.ready = message
                self._number = worker.next_number()
                self.send(worker.ping(-self._number))  # its clock may be another one
                self.send(Warm(self._number, self.slot.warm_batches))  # also of nothing: the answer comes in any case
            case Done(number) if self._is_starting and number == self._number:
                worker.is_warm = True
                self._number = worker.next_number()
                self.send(self.preparation(self._number))
            case Prepared(number) if self._is_starting and number == self._number:
                self._detector.answered("start")
                self._is_ready_early = True
                self.end_outage_if_due()
            case _:  # of an earlier run
                pass

    def preparation(self, number: int) -> Prepare:
        """Return a worker's settings before it serves."""
        return Prepare(number, self.index, self._run.keep_log, self._run.measures_costs)

    def end_outage_if_due(self) -> None:
        """Bring up a worker that was ready before its outage ended."""
        if self._is_ready_early and self._run.clock.now_ns() >= self._up_from_ns:
            self.come_up()

    # -------------------------------------------------------------------------------------------------- to the worker

    def send(self, message: ToWorker) -> None:
        """Send the worker a message, with the next `flush`."""
        self.has_posted = True
        self.slot.worker.port.post(message)

    def flush(self) -> bool:
        """Send the pending messages; return whether all of them are sent.

        If the worker is gone, `died` records it and the cluster takes the server down.
        """
        self.has_posted = False
        if not self.has_worker or self.died:
            return True
        try:
            self.has_posted = not self.slot.worker.port.flush()
        except PortClosedError:
            self._die()
        return not self.has_posted

    def deliver(self, micro_batch: MicroBatch, inputs: tuple[Input, ...]) -> None:
        """Hand a micro-batch over to the worker."""
        self.in_flight += len(micro_batch.requests)
        self.send(Deliver(micro_batch, inputs))

    def asked(self, transfer: int) -> None:
        """Note that the worker was asked to move something."""
        self._detector.asked(("transfer", transfer), self._run.clock.now_ns())

    @property
    def address(self) -> str:
        """See `hw.router.worker_handles.WorkerHandle`."""
        return self.slot.worker.address

    @property
    def worker_id(self) -> int:
        """See `hw.router.worker_handles.WorkerHandle`."""
        return self.slot.worker.worker_id

    def give_back(self, slabs: Sequence[Slab], worker_id: int) -> None:
        """Cancel these slabs as soon as that incarnation of another worker certainly writes to them no more."""
        if not worker_id or not self.is_up:
            self._cancel(slabs)
            return
        number = self.slot.worker.next_number()
        self._fences[number] = tuple(slabs)
        self.send(Fence(number, worker_id))

    def _cancel(self, slabs: Iterable[Slab]) -> None:
        for slab in slabs:
            self.inbox.cancel(slab)

    def sense(self, period_ns: int, pids: tuple[int, ...]) -> None:
        """Set whether it reads the device's sensor, and for which processes."""
        self.send(Sense(period_ns, pids))

    def straggle(self, factor: float) -> None:
        """Be slow from now on, or (1) as fast as ever; recorded in both cores' logs."""
        self.impair(replace(self.impairment, slow_factor=factor))
        self._tell_router(StragglerStarted(self.index, factor) if factor != 1.0 else StragglerEnded(self.index))

    def impair(self, impairment: Impairment) -> None:
        """Impair the server from now on, for the present worker and for later ones."""
        self.impairment = impairment
        if self.is_up:
            self.send(Impair(impairment))

    # ------------------------------------------------------------------------------------------------ from the worker

    def receive(self) -> Sequence[FromWorker]:
        """Return the worker's messages; `died` records that no more will come."""
        try:
            return self.slot.worker.port.receive()
        except (PortClosedError, PortBrokenError):
            self._die()
            return ()

    def hear(self, message: FromWorker) -> None:
        """Process a message of the worker."""
        match message:
            case Returned():
                self._take_back(message)
            case Rejected(incarnation, requests, reason, arrivals, steps):
                self._heard_steps = steps
                self.in_flight -= len(requests)
                self.inbox.forget(requests)
                if arrivals:
                    self._run.ledger.note_arrivals(arrivals)
                self._tell_router(RequestsRejected(self.index, incarnation, requests, reason))
            case Report():
                self._hear_report(message)
            case Pong(number):
                self._detector.ponged(number)
                if self.slot.worker.note_pong(message) and self.is_up:
                    self.start_clock()
            case Moved(transfer) | MoveBroken(transfer):
                self._detector.answered(("transfer", transfer))
            case Fenced(number):
                self._cancel(self._fences.pop(number, ()))
            case Preloaded(incarnation, captures):
                self._preloaded = incarnation
                self._hear_captures(captures)
            case Stuck():
                self._detector.give_up()
            case Finished():
                self._finish(message)
            case Ready() | Done() | Prepared() | Refused():
                self._wake_up(message)
            case _:
                raise AssertionError(f"not for a server: {message}")

    def _take_back(self, message: Returned) -> None:
        requests = message.requests
        run, counts = self._run, self._counts
        self._heard_steps = message.steps
        self.in_flight -= len(requests)
        if message.reference_s:
            self.references.append((message.referenced_ns, message.reference_s))
        self.inbox.forget(requests)
        for batch in message.batches:
            counts.batches += 1
            counts.images += len(batch.requests) - len(batch.failed)
            run.ledger.note_batch(self.index, batch)
        is_last = message.segment == run.segments
        correct = run.judge(requests, message.width, message.predictions, message.scores) if is_last else ()
        self._tell_router(
            RequestsReturned(
                self.index, message.incarnation, requests, message.segment, message.width, correct, message.residency
            )
        )

    def _hear_report(self, message: Report) -> None:
        """Pass a sample to the router's core at its receipt, and to the record at its reading."""
        sample, now_ns = message.sample, self._run.clock.now_ns()
        self._heard_steps = message.steps
        self._counts = message.counts
        self._vram_peak_bytes = max(self._vram_peak_bytes, message.vram_used_bytes)
        utilization, power_w = sample.utilization or 0.0, sample.power_w or 0.0
        sampled_ns = min(sample.sampled_ns, now_ns)  # its clock is known to within an error
        vram_bytes, queue_length = message.vram_used_bytes + message.activation_bytes, message.queue_length
        reading = TelemetrySampled(
            message.incarnation, sampled_ns, now_ns, utilization, power_w, vram_bytes, queue_length
        )
        self._run.ledger.note_reading(self.index, reading)
        if message.is_read:
            self.samples.append(sample)
        self._tell_router(
            ServerReport(
                self.index,
                message.incarnation,
                sampled_ns,
                now_ns,
                queue_length,
                utilization,
                power_w,
                vram_bytes,
                message.residency,
            )
        )

    def _hear_captures(self, captures: Captures) -> None:
        """Check captures: other passes take longer; their number must be the profile's, or simulations are invalid."""
        self._captures = captures
        profiled = self.spec.captured
        if captures.captured == captures.tried and profiled == "":
            return
        problem = f"{captures}" + (f", the others run eagerly ({captures.refused})" if captures.refused else "")
        of_profile, all_of_profile = map(int, profiled.split(" of ")) if profiled else (1, 1)
        if captures.captured * all_of_profile != of_profile * captures.tried:
            problem += f"; its profile was measured with {profiled or 'all captured'}: calibrate it again"
        self._run.say(f"WARNING: {self.spec.name}: {problem}")

    def relay(self, sample: Sample) -> None:
        """Process another worker's reading of the shared device's sensor."""
        self.send(Sampled(sample))

    def hear_late(self, message: FromWorker) -> None:
        """Process a message after the run's end: later events do not count, except for the last reading."""
        if isinstance(message, Finished):
            self._finish(message)
        elif isinstance(message, Report) and message.is_read:
            self.samples.append(message.sample)
        elif isinstance(message, Ready):  # it was starting: the next run would wait for this message
            self.slot.worker.ready = message

    def _finish(self, message: Finished) -> None:
        self._heard_steps = message.steps
        self._counts.loads, self._counts.unloads = message.counts.loads, message.counts.unloads  # the rest was reported
        self._vram_peak_bytes = max(self._vram_peak_bytes, message.vram_peak_bytes)
        self.worker_cpu_ns, self.cpu_work = message.cpu_ns, message.cpu_work
        self._captures = message.captures
        self._is_finished = True

    @property
    def clock(self) -> ServerClock | None:
        """The clock of the server's worker; None if that is the router's, and if it has no worker."""
        if not self.is_up or (worker := self.slot.worker).shares_clock:
            return None
        return ServerClock(self.index, worker.offset.offset_ns, worker.offset.error_ns, worker.clock_jumps)

    def end_life(self) -> None:
        """Keep, at the run's end, the log of a worker that is still up."""
        if self.is_up:
            self._keep_log("")
