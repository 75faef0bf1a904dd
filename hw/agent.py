"""A server's agent: its scheduler, its lanes, its sensor and its log, in one process. It decides nothing itself.

Blocks come through the port, and what has become of them goes back; batches, loads and unloads never leave the process.
The main thread waits for messages, timers and the sensor. A lane's thread that has ended something takes the
scheduler's next step itself, under one lock: so a batch that follows at once starts without any thread waking up.
"""

from __future__ import annotations

import os
import select
import threading
import time  # noqa: TID251 - the hardware runs on the real clock
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final, Protocol

from hw.clock import NEVER_NS, RunClock
from hw.lanes import BatchBroken, BatchEnded, LaneEvent, Lanes, LoadBroken, LoadEnded, Tell, UnloadEnded
from hw.life_log import LifeLog
from hw.messages import (
    PROTOCOL,
    Close,
    ComeUp,
    Deliver,
    Finish,
    Finished,
    FromAgent,
    Impair,
    Keep,
    Measurement,
    Move,
    MoveBroken,
    Ping,
    Pong,
    Preloaded,
    Prepare,
    Prepared,
    Ready,
    Reason,
    Refused,
    Rejected,
    Release,
    Report,
    Returned,
    Sample,
    Sampled,
    Sense,
    Start,
    Stuck,
    ToAgent,
)
from hw.port import FLUSH_NS, AgentEnd, PortClosedError
from hw.telemetry.port import Sensor
from hw.waiting import Waker
from hw.watch import Watch
from policies.faults import Impairment, Supervision
from policies.greedy import GreedyKnobs, GreedyScheduler
from policies.server_book import BatchTold, ServerBook
from policies.vocabulary import (
    BatchFailed,
    BatchFinished,
    BatchStarted,
    BlockArrived,
    InstanceLoaded,
    InstanceUnloaded,
    LoadFailed,
    LoadInstance,
    RejectRequests,
    ReturnRequests,
    RunBatch,
    ServerEvent,
    ServerUp,
    StragglerEnded,
    StragglerStarted,
    TelemetrySampled,
    TimerFired,
    UnloadInstance,
)

_LOOK_NS: Final = 200_000  # a router that is awake answers within this


@dataclass(frozen=True, slots=True)
class Fitting:
    """What an agent works with.

    Attributes:
        sensor: for these processes, of the device.
        measure: carries out a measurement while nothing else is under way; raises what went wrong.
        explain: a failure in the protocol's words.
        computes_here: whether lanes take the cores that the agent runs on.
        waker: waits until the lanes' next end where they need it to the microsecond; None where any time will do.
    """

    lanes: Lanes
    sensor: Callable[[Sequence[int]], Sensor]
    measure: Callable[[Measurement], FromAgent]
    explain: Callable[[Exception], tuple[Reason, str]]
    context_bytes: int
    execution: Mapping[str, str]
    computes_here: bool = True
    waker: Waker | None = None


class Outfit(Protocol):
    """What an agent's process is started with; it opens the device there."""

    def fit(self, tell: Tell, clock_ns: Callable[[], int]) -> Fitting:
        """Lanes that tell of every end, in times of this clock; raises what went wrong."""
        ...


@dataclass(frozen=True, slots=True)
class Service:
    """What an agent's scheduler is to be; none, where it is there to be measured only.

    `has_core`: whether a core is its own, so that it may look out for messages for a while before it sleeps.
    """

    knobs: GreedyKnobs
    segments: int
    supervision: Supervision
    has_core: bool = False


class Agent:
    """Obeys the router; `loop` returns when it closes the port or is gone.

    Args:
        port: to the router.
        outfit: opens the device.
        service: of the scheduler.
        log: where its steps go.
        clock_ns: this host's monotonic clock.
        leave: ends the process, with this exit code, from any thread.
    """

    def __init__(
        self,
        port: AgentEnd,
        outfit: Outfit,
        service: Service | None,
        log: LifeLog,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._port = port
        self._leave = leave
        self._service = service
        self._log = log
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._main = threading.get_ident()
        self._woken, self._nudge = os.pipe()
        self._sleeps_until_ns = 0
        self._serving: _Serving | None = None
        self._idle_ns = 0
        self._fitting = outfit.fit(self._hear_lane, clock_ns)
        self._looks_on = service is not None and service.has_core and not self._fitting.computes_here

    # ------------------------------------------------------------------------------------------------------- the loop

    def loop(self) -> None:
        """Obey until `Close`, or until the router is gone."""
        fitting = self._fitting
        sensor = fitting.sensor((os.getpid(),)).describe()
        ready = Ready(
            PROTOCOL, version("slim-scheduler"), os.getpid(), fitting.context_bytes, dict(fitting.execution), sensor
        )
        self._port.post(ready)
        try:
            self._port.flush()
            while self._turn():
                pass
        except PortClosedError:
            return

    def _turn(self) -> bool:
        """Everything that is due, then a wait for what comes first; False when it is over."""
        with self._lock:
            if self._serving is not None:
                self._serving.ring(self._clock_ns())
            is_sent = self._send()
            until_ns = self._sleeps_until_ns = self._next_ns(is_sent)
        self._sleep(until_ns)
        self._sleeps_until_ns = 0
        for message in self._port.receive():
            if isinstance(message, Close):
                return False
            self._obey(message)
        if self._fitting.computes_here and self._serving is not None and self._serving.is_busy:
            os.sched_yield()  # a lane that was woken goes before what is left to do here
        return True

    def _next_ns(self, is_sent: bool) -> int:
        next_ns = NEVER_NS if self._serving is None else self._serving.next_ns
        return next_ns if is_sent else min(next_ns, self._clock_ns() + FLUSH_NS)

    def _sleep(self, until_ns: int) -> None:
        if self._looks_on and self._look_on(until_ns):
            return
        waker, deadline_ns = self._fitting.waker, None if until_ns == NEVER_NS else until_ns
        if waker is not None:
            waker.wait(self._select, deadline_ns)
        else:
            self._select(None if deadline_ns is None else max(0.0, (deadline_ns - self._clock_ns()) / 1e9))

    def _select(self, wait_s: float | None) -> bool:
        """Until there is something to do; says whether there is."""
        ready, _, _ = select.select((self._port.fileno(), self._woken), (), (), wait_s)
        if self._woken in ready:
            os.read(self._woken, 4096)
        return bool(ready)

    def _look_on(self, until_ns: int) -> bool:
        """A core that sleeps wakes up later than a message travels: so look for a while where nothing runs here.

        It is no work: neither the device's nor the agent's. Returns whether something has come.
        """
        if self._serving is None or self._serving.is_busy:
            return False
        began_ns = time.thread_time_ns()
        until_ns, has_come = min(until_ns, self._clock_ns() + _LOOK_NS), False
        while not has_come and self._clock_ns() < until_ns:
            has_come = self._select(0.0)
        self._idle_ns += time.thread_time_ns() - began_ns
        return has_come

    def _send(self) -> bool:
        """The log first: it never ends before what the router has heard."""
        self._log.write()
        return self._port.flush()

    # ------------------------------------------------------------------------------------------------------- messages

    def _obey(self, message: ToAgent) -> None:
        """What only touches activations is done without the lock: lanes go on meanwhile."""
        lanes = self._fitting.lanes
        match message:
            case Deliver(block, inputs):
                if inputs:
                    lanes.take(inputs)
                with self._lock:
                    if self._serving is not None:
                        self._serving.deliver(BlockArrived(block))
            case Keep(inputs):
                lanes.take(inputs)
            case Move():
                self._post(self._move(message))
            case Release(requests):
                lanes.forget(requests)
            case Ping(number):
                self._post(Pong(number, self._clock_ns()))
            case Prepare():
                self._prepare(message)
            case Finish(number):
                with self._lock:
                    self._finish(number)
            case ComeUp() | Start() | Sense() | Sampled() | Impair():
                with self._lock:
                    if self._serving is not None:  # else of a run that is over
                        self._serving.obey(message)
            case Close():
                raise AssertionError("handled by the loop")
            case _:
                self._measure(message)

    def _post(self, message: FromAgent) -> None:
        with self._lock:
            self._port.post(message)

    def _move(self, message: Move) -> FromAgent:
        try:
            return self._fitting.lanes.move(message)
        except Exception as error:
            reason, detail = self._fitting.explain(error)
            return MoveBroken(message.transfer, reason, detail)

    def _measure(self, message: Measurement) -> None:
        try:
            answer = self._fitting.measure(message)
        except Exception as error:  # the agent outlives any request
            answer = Refused(*self._fitting.explain(error))
        self._post(answer)

    def _prepare(self, message: Prepare) -> None:
        """What lanes tell from here on is of nobody's interest; they are waited for without the lock."""
        assert self._service is not None, "this agent is there to be measured"
        with self._lock:
            self._serving = None
        forgotten = self._fitting.lanes.reset()
        self._log.clear()
        self._idle_ns = 0 if self._fitting.waker is None else -self._fitting.waker.looked_ns
        log = self._log if message.keep_log else None
        with self._lock:
            self._serving = _Serving(message, self._service, self._fitting, self._port.post, log, self._clock_ns)
            self._port.post(Prepared(message.number, forgotten))

    def _finish(self, number: int) -> None:
        """What goes on here after it is of nobody's interest."""
        assert self._serving is not None, "not prepared"
        looked_ns = 0 if self._fitting.waker is None else self._fitting.waker.looked_ns
        self._serving.finish(number, self._idle_ns + looked_ns)
        self._serving = None

    # ----------------------------------------------------------------------------------------------------------- lanes

    def _hear_lane(self, event: LaneEvent) -> None:
        """The end of something, from a lane's thread, or from within `ring` in the main thread, which has the lock."""
        if threading.get_ident() == self._main:
            if self._serving is not None:
                self._serving.hear_lane(event)
            return
        try:
            with self._lock:
                if self._serving is None:
                    return
                self._serving.hear_lane(event)
                if not self._send() or self._serving.next_ns < self._sleeps_until_ns:
                    os.write(self._nudge, b"!")
        except PortClosedError:  # nobody is left to work for
            self._leave(0)
        except BaseException:  # a step that is half done must not be followed by another
            traceback.print_exc()
            self._leave(1)


class _Serving:
    """One run: the scheduler, and what its driver must remember. Its caller holds the lock."""

    def __init__(
        self,
        run: Prepare,
        service: Service,
        fitting: Fitting,
        post: Callable[[FromAgent], None],
        log: LifeLog | None,
        clock_ns: Callable[[], int],
    ) -> None:
        self._server = run.server
        self._lanes = fitting.lanes
        self._fitting = fitting
        self._segments = service.segments
        self._post = post
        self._log = log
        self._clock_ns = clock_ns
        self._clock = RunClock(clock_ns)
        self._scheduler = GreedyScheduler(service.knobs, run.server)
        self._book = ServerBook()
        self._epoch = 0
        self._steps = 0
        self._preloading: set[int] | None = None  # None: nobody waits for it
        self._loading: dict[int, tuple[int, float]] = {}
        self._loaded_before: set[tuple[int, float]] = set()
        self._instance_bytes: dict[int, int] = {}
        self._impairment = Impairment()
        self._period_ns = 0
        self._sensor: Sensor | None = None
        self._next_tick_ns = NEVER_NS
        self._watch = Watch(service.supervision, clock_ns())
        self._next_look_ns = clock_ns() + self._watch.period_ns
        self._is_stuck = False
        self._cpu_ns = 0
        self._ended: BatchEnded  # the last one

    @property
    def is_busy(self) -> bool:
        """Whether a batch is under way."""
        return bool(self._scheduler.running_requests)

    @property
    def next_ns(self) -> int:
        """When `ring` should be called next, by this host's clock."""
        next_ns = min(self._next_tick_ns, self._next_look_ns)
        if (lanes_ns := self._lanes.next_ns) is not None and lanes_ns < next_ns:
            next_ns = lanes_ns
        wake_ns = self._scheduler.next_wake_ns
        return next_ns if wake_ns is None else min(next_ns, self._clock.back(wake_ns))

    def ring(self, clock_ns: int) -> None:
        """What is due by itself."""
        lanes_ns = self._lanes.next_ns
        if lanes_ns is not None and lanes_ns <= clock_ns:
            self._lanes.ring(clock_ns)
        if clock_ns >= self._next_tick_ns:
            self._tick(clock_ns)
        if clock_ns >= self._next_look_ns:
            self._look(clock_ns)
        wake_ns = self._scheduler.next_wake_ns
        if wake_ns is not None and wake_ns <= self._clock.now_ns():
            self.deliver(TimerFired())

    # ------------------------------------------------------------------------------------------------- from the router

    def obey(self, message: ComeUp | Start | Sense | Sampled | Impair) -> None:
        """What concerns the run as a whole."""
        match message:
            case ComeUp(epoch):
                self._epoch = epoch
                self.deliver(ServerUp(self._server, epoch))
                self._preloading = set(self._loading)
                self._tell_preloaded()
            case Start(origin_ns):
                is_known_better = self._clock.runs
                self._clock.start(origin_ns)
                if not is_known_better:
                    self._cpu_ns = time.process_time_ns()
                    self._begin_sensing()
            case Sense(period_ns, pids):
                self._period_ns = period_ns
                self._sensor = self._fitting.sensor(pids) if period_ns else None
                self._begin_sensing()
            case Sampled(sample):
                self._report(sample, is_read=False)
            case Impair(impairment):
                self._impair(impairment)

    def _begin_sensing(self) -> None:
        """Forget what was before; ticks begin a period from now, but not before the run."""
        self._next_tick_ns = NEVER_NS
        if self._sensor is not None and self._clock.runs:
            self._sensor.sample()
            self._next_tick_ns = self._clock_ns() + self._period_ns

    def _impair(self, impairment: Impairment) -> None:
        before, self._impairment = self._impairment, impairment
        self._lanes.impair(impairment)
        if (factor := impairment.slow_factor) != before.slow_factor:
            slow = StragglerStarted(self._server, factor) if factor != 1.0 else StragglerEnded(self._server)
            self.deliver(slow)

    def finish(self, number: int, idle_ns: int) -> None:
        """The run is over: a last reading, and the counts."""
        if self._sensor is not None:
            self._tick(self._clock_ns())
        cpu_ns = time.process_time_ns() - self._cpu_ns - idle_ns
        peak_bytes = self._scheduler.memory.peak_bytes
        self._post(Finished(number, self._book.counts, peak_bytes, self._steps, cpu_ns))

    # --------------------------------------------------------------------------------------------------- the scheduler

    def deliver(self, event: ServerEvent) -> None:
        """Hand an event to the scheduler and carry out what it answers."""
        now_ns = self._clock.now_ns()
        commands = self._scheduler.handle(event, now_ns)
        told = self._book.observe(event, commands, now_ns)
        self._steps += 1
        if self._log is not None:
            self._log.append(now_ns, event, commands)
        for command in commands:
            match command:
                case RunBatch():
                    self._watch.asked(("batch", command.batch), self._clock_ns())
                    self._lanes.run(command)
                case ReturnRequests():
                    self._give_back(command, told)
                case RejectRequests(epoch, requests, reason):
                    arrivals = self._book.take_arrivals()
                    self._post(Rejected(epoch, requests, reason, arrivals, self._steps))
                case LoadInstance(_, instance, segment, width):
                    self._loading[instance] = (segment, width)
                    self._watch.asked(("instance", instance), self._clock_ns())
                    self._lanes.load(instance, segment, width, (segment, width) not in self._loaded_before)
                case UnloadInstance(_, instance):
                    self._watch.asked(("instance", instance), self._clock_ns())
                    self._lanes.unload(instance)

    def _give_back(self, command: ReturnRequests, told: BatchTold | None) -> None:
        assert told is not None, "only the end of a batch gives requests back"
        ended = self._ended
        self._post(
            Returned(
                command.epoch,
                command.requests,
                command.segment,
                command.width,
                ended.labels if command.segment == self._segments else (),
                told,
                self._steps,
                self._clock.of(ended.referenced_ns) if ended.reference_s else 0,
                ended.reference_s,
            )
        )

    def hear_lane(self, event: LaneEvent) -> None:
        """Something has ended."""
        match event:
            case BatchEnded():
                self._watch.answered(("batch", event.batch))
                self._ended = event
                self.deliver(BatchStarted(self._epoch, event.batch, self._clock.of(event.began_ns)))
                ended_ns = self._clock.of(event.ended_ns)
                failed, reason, late_ns = event.failed, event.reason, event.late_ns
                self.deliver(BatchFinished(self._epoch, event.batch, failed, reason, ended_ns, late_ns))
            case BatchBroken(batch, reason):
                self._watch.answered(("batch", batch))
                self.deliver(BatchFailed(self._epoch, batch, reason))
            case LoadEnded(instance, vram_bytes):
                self._watch.answered(("instance", instance))
                self._loaded_before.add(self._loading.pop(instance))
                self._instance_bytes[instance] = vram_bytes
                self.deliver(InstanceLoaded(self._epoch, instance))
                self._end_preload(instance)
            case LoadBroken(instance, reason):
                self._watch.answered(("instance", instance))
                del self._loading[instance]
                self.deliver(LoadFailed(self._epoch, instance, reason))
                self._end_preload(instance)
            case UnloadEnded(instance):
                self._watch.answered(("instance", instance))
                self._instance_bytes.pop(instance, None)
                self.deliver(InstanceUnloaded(self._epoch, instance))

    def _end_preload(self, instance: int) -> None:
        if self._preloading is not None:
            self._preloading.discard(instance)
            self._tell_preloaded()

    def _tell_preloaded(self) -> None:
        if self._preloading is not None and not self._preloading:
            self._preloading = None
            self._post(Preloaded(self._epoch))

    # ---------------------------------------------------------------------------------------- the sensor, and the watch

    def _tick(self, clock_ns: int) -> None:
        """Read the sensor; ticks that were missed are not made up for."""
        assert self._sensor is not None, "somebody else reads"
        reading = self._sensor.sample()
        now_ns = self._clock.now_ns()
        self._report(Sample(now_ns, reading.power_w, reading.utilization, self._sensor.energy_j()), is_read=True)
        self._next_tick_ns += self._period_ns * (1 + max(0, clock_ns - self._next_tick_ns) // self._period_ns)

    def _report(self, sample: Sample, is_read: bool) -> None:
        """To the scheduler, then to the router. What is absent reads as 0 there."""
        used_bytes = self._fitting.context_bytes + sum(self._instance_bytes.values())
        waiting, now_ns = self._scheduler.requests, self._clock.now_ns()
        utilization, power_w = sample.utilization or 0.0, sample.power_w or 0.0
        sampled_ns = min(sample.sampled_ns, now_ns)
        self.deliver(TelemetrySampled(self._epoch, sampled_ns, now_ns, utilization, power_w, used_bytes, waiting))
        self._post(Report(self._epoch, sample, is_read, waiting, used_bytes, self._book.counts, self._steps))

    def _look(self, clock_ns: int) -> None:
        """Whether some work takes too long; not when this process was away itself."""
        if self._watch.was_away(self._next_look_ns, clock_ns):
            self._watch.excuse(clock_ns)
        self._next_look_ns = clock_ns + self._watch.period_ns
        if self._watch.is_hung(clock_ns) and not self._is_stuck:
            self._is_stuck = True
            self._post(Stuck())
