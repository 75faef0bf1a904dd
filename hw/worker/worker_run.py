"""One run in a worker: drives its scheduler, meters its work besides passes, and reports results to the router."""

from __future__ import annotations

import threading
import time  # noqa: TID251 - CPU time is what is measured
from collections.abc import Callable
from dataclasses import dataclass

from hw.clock import NEVER_NS, RunClock
from hw.host_resources import SpeedMeter
from hw.telemetry.sensors import Sensor
from hw.transport.messages import (
    Captures,
    ComeUp,
    Finished,
    FromWorker,
    Impair,
    OfRun,
    Preloaded,
    Prepare,
    Rejected,
    Report,
    Returned,
    Sample,
    Sampled,
    Sense,
    Start,
    Stuck,
)
from hw.transport.peers import FailureDetector
from hw.transport.shared_memory import StepLog
from hw.worker.lanes import (
    BatchBroken,
    BatchEnded,
    Fitting,
    LaneEvent,
    LoadBroken,
    LoadEnded,
    SchedulerSpec,
    UnloadEnded,
    explain,
)
from policies.faults import Impairment
from policies.greedy_scheduler import GreedyScheduler
from policies.run_records import BatchTold, CpuWorkCost, CpuWorkKind, ServerBook, ServerCounts
from policies.vocabulary import (
    BatchFailed,
    BatchFinished,
    BatchStarted,
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


@dataclass(slots=True)
class _Turn:
    """A thread's activities since its last turn."""

    began_ns: int
    came_ns: int = 0
    micro_batches: int = 0
    images: int = 0
    copies: int = 0
    copied_images: int = 0
    copies_ns: int = 0


class CpuWorkMeter:
    """Takes samples in a worker's threads; each reads its own CPU time only.

    A thread's CPU time in a turn that took blocks in is charged to these, except for copying; in a turn that only
    copied, to the copies. A turn of the main thread in which lanes' threads had taken everything is a wake-up in vain.
    Its other CPU time (its sensor, signs of life) is not charged.

    Args:
        now_ns: of the run.
    """

    def __init__(self, server: int, now_ns: Callable[[], int]) -> None:
        self.costs: list[CpuWorkCost] = []
        self._server = server
        self._now_ns = now_ns
        self._main = threading.get_ident()
        self._main_turn = _Turn(time.thread_time_ns())
        self._lane = threading.local()
        self._taken_by_lanes = 0

    def took(self, images: int) -> None:
        """Note that a micro-batch of this number of requests came in this turn."""
        turn = self._turn()
        if not turn.micro_batches:
            turn.came_ns = self._now_ns()
        turn.micro_batches += 1
        turn.images += images

    def copied(self, images: int, cpu_ns: int) -> None:
        """Note that activations of this number of requests were copied to another server."""
        turn = self._turn()
        turn.copies += 1
        turn.copied_images += images
        turn.copies_ns += cpu_ns

    def _turn(self) -> _Turn:
        if threading.get_ident() == self._main:
            return self._main_turn
        if not hasattr(self._lane, "turn"):
            self._lane.turn = _Turn(time.thread_time_ns())
        turn: _Turn = self._lane.turn
        return turn

    def end_turn(self) -> None:
        """Note that the main thread has nothing more to do."""
        turn, self._main_turn = self._main_turn, _Turn(time.thread_time_ns())
        taken_by_lanes, self._taken_by_lanes = self._taken_by_lanes, 0
        if taken_by_lanes and not turn.micro_batches and not turn.copies:
            self.costs.append(self._cost("woken", taken_by_lanes, 0, self._main_turn.began_ns - turn.began_ns))
        self._charge(turn, self._main_turn.began_ns)

    def end_lane_turn(self) -> None:
        """Note that a lane's thread has taken new messages, after it reported the end of a batch."""
        cpu_ns, turn = time.thread_time_ns(), self._turn()
        self._taken_by_lanes += turn.micro_batches + turn.copies
        self._charge(turn, cpu_ns)
        self._lane.turn = _Turn(cpu_ns)

    def _charge(self, turn: _Turn, ended_ns: int) -> None:
        spent_ns = ended_ns - turn.began_ns
        if turn.micro_batches:
            taken_ns = spent_ns - turn.copies_ns
            self.costs.append(
                CpuWorkCost(self._server, "taken", turn.came_ns, turn.micro_batches, turn.images, taken_ns)
            )
        if turn.copies:
            copies_ns = turn.copies_ns if turn.micro_batches else spent_ns
            self.costs.append(self._cost("moved", turn.copies, turn.copied_images, copies_ns))

    def begin_end(self) -> None:
        """Note that a lane's thread begins to report the end of a batch."""
        self._lane.began_ns = time.thread_time_ns()

    def ended(self, images: int, pass_ns: int) -> None:
        """Note the end of that report, and the duration of the pass."""
        cpu_ns, lane = time.thread_time_ns(), self._lane
        turn = getattr(lane, "turn", None)
        if turn is not None:
            self.costs.append(self._cost("begun", 1, images, lane.began_ns - turn.began_ns - pass_ns))
        self.costs.append(self._cost("ended", 1, images, cpu_ns - lane.began_ns))
        lane.turn = _Turn(cpu_ns)

    def _cost(self, kind: CpuWorkKind, count: int, images: int, cpu_ns: int) -> CpuWorkCost:
        return CpuWorkCost(self._server, kind, self._now_ns(), count, images, cpu_ns)


class Serving:
    """The scheduler of a run, and its driver's state. The caller holds the worker's lock."""

    def __init__(
        self,
        run: Prepare,
        service: SchedulerSpec,
        fitting: Fitting,
        post: Callable[[FromWorker], None],
        log: StepLog | None,
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
        self.meter = CpuWorkMeter(run.server, self._clock.now_ns) if run.measures_costs else None
        self.speed_meter: SpeedMeter | None = None
        self._scheduler = GreedyScheduler(service.params, run.server)
        self._book = ServerBook()
        self._incarnation = 0
        self._steps = 0
        self._preloading: set[int] | None = None  # None: no preload is awaited
        self._loading: dict[int, tuple[int, float]] = {}
        self._loaded_before: set[tuple[int, float]] = set()
        self._instance_bytes: dict[int, int] = {}
        self._undone: set[int] = set()  # loads that exceed the cap, until they are gone
        self._cap_bytes = service.params.vram_cap_bytes if fitting.has_own_memory else None
        self._captures = Captures()
        self._impairment = Impairment()
        self._period_ns = 0
        self._sensor: Sensor | None = None
        self._next_tick_ns = NEVER_NS
        self._detector = FailureDetector(service.supervision, clock_ns())
        self._next_look_ns = clock_ns() + self._detector.period_ns
        self._is_stuck = False
        self._cpu_ns = 0
        self._batches: list[BatchTold] = []  # ended, and not yet reported
        self._ended: BatchEnded  # the last one
        self.passed = 0  # requests that have passed a segment in it

    @property
    def is_busy(self) -> bool:
        """Whether a batch is in progress."""
        return bool(self._scheduler.running_requests)

    @property
    def exact_ns(self) -> int:
        """When lanes end something or the scheduler wakes up: lateness there delays requests."""
        lanes_ns, wake_ns = self._lanes.next_ns, self._scheduler.next_wake_ns
        exact_ns = NEVER_NS if lanes_ns is None else lanes_ns
        return exact_ns if wake_ns is None else min(exact_ns, self._clock.back(wake_ns))

    @property
    def next_ns(self) -> int:
        """When `ring` should be called next, by this host's clock."""
        return min(self.exact_ns, self._next_tick_ns, self._next_look_ns)

    def take_tick(self, clock_ns: int) -> Sensor | None:
        """Return the sensor to be read now, if any; ticks that were missed are not made up for."""
        if self._sensor is None or clock_ns < self._next_tick_ns:
            return None
        self._next_tick_ns += self._period_ns * (1 + (clock_ns - self._next_tick_ns) // self._period_ns)
        return self._sensor

    def read(self, sensor: Sensor) -> Sample:
        """Read the sensor, without the lock, unlike all the others: lanes continue while a sensor takes its time."""
        reading = sensor.sample()
        return Sample(self._clock.now_ns(), reading.power_w, reading.utilization, sensor.energy_j())

    def ring(self, clock_ns: int, sample: Sample | None = None) -> None:
        """Process due timers, and the samples read."""
        lanes_ns = self._lanes.next_ns
        if lanes_ns is not None and lanes_ns <= clock_ns:
            self._lanes.ring(clock_ns)
        if sample is not None:
            self.report(sample)
        if clock_ns >= self._next_look_ns:
            self._look(clock_ns)
        wake_ns = self._scheduler.next_wake_ns
        if wake_ns is not None and wake_ns <= self._clock.now_ns():
            self.deliver(TimerFired())

    # ------------------------------------------------------------------------------------------------- from the router

    def obey(self, message: OfRun) -> None:
        """Process a message about the run as a whole."""
        match message:
            case ComeUp(incarnation, reads_speed):
                self._incarnation = incarnation
                if reads_speed and self._fitting.computes_here:
                    self.speed_meter = SpeedMeter(self._clock_ns)
                self.deliver(ServerUp(self._server, incarnation))
                self._preloading = set(self._loading)
                self._tell_preloaded()
            case Start(origin_ns):
                is_first = not self._clock.runs  # later messages have a better estimate of the clocks' offset
                self._clock.start(origin_ns)
                if is_first:
                    self._cpu_ns = time.process_time_ns()
                    self._begin_sensing()
            case Sense(period_ns, pids):
                self._period_ns = period_ns
                self._sensor = self._fitting.sensor(pids) if period_ns else None
                self._begin_sensing()
            case Sampled(sample):
                self.report(sample, is_read=False)
            case Impair(impairment):
                before, self._impairment = self._impairment, impairment
                self._lanes.impair(impairment)
                if (factor := impairment.slow_factor) != before.slow_factor:
                    slow = StragglerStarted(self._server, factor) if factor != 1.0 else StragglerEnded(self._server)
                    self.deliver(slow)

    def _begin_sensing(self) -> None:
        """Forget earlier readings; ticks begin a period from now, but not before the run."""
        self._next_tick_ns = NEVER_NS
        if self._sensor is not None and self._clock.runs:
            self._sensor.sample()
            self._next_tick_ns = self._clock_ns() + self._period_ns

    def finish(self, number: int, idle_ns: int, shared_by: int = 1) -> None:
        """End the run: take a last reading, and return the counts.

        Args:
            idle_ns: CPU time of this process that does not count as work.
            shared_by: workers that this process has: an even part of its work counts for each.
        """
        if self._sensor is not None:
            self.report(self.read(self._sensor))
        cpu_ns = (time.process_time_ns() - self._cpu_ns - idle_ns) // shared_by
        cpu_work = tuple(self.meter.costs) if self.meter is not None else ()
        peak_bytes = self._scheduler.memory.peak_bytes
        self._post(Finished(number, self._book.counts, peak_bytes, self._steps, cpu_ns, cpu_work, self._captures))

    # --------------------------------------------------------------------------------------------------- the scheduler

    def deliver(self, event: ServerEvent) -> None:
        """Hand an event to the scheduler and execute its commands."""
        now_ns = self._clock.now_ns()
        commands = self._scheduler.handle(event, now_ns)
        note = self._book.observe(event, commands, now_ns)
        if note is not None:
            self._batches.append(note)
            self.passed = len(note.requests) - len(note.failed)
        self._steps += 1
        if self._log is not None:
            self._log.append(now_ns, event, commands)
        for command in commands:
            match command:
                case RunBatch():
                    self._detector.asked(("batch", command.batch), self._clock_ns())
                    self._lanes.run(command)
                case ReturnRequests():
                    self._give_back(command)
                case RejectRequests(incarnation, requests, reason):
                    self._lanes.retain(requests)
                    arrivals = self._book.take_arrivals()
                    self._post(Rejected(incarnation, requests, reason, arrivals, self._steps))
                case LoadInstance(_, instance, segment, width):
                    self._loading[instance] = (segment, width)
                    self._detector.asked(("instance", instance), self._clock_ns())
                    is_first = (segment, width) not in self._loaded_before
                    self._lanes.load(instance, segment, width, is_first and self._clock.runs)  # no preload is timed
                case UnloadInstance(_, instance):
                    self._detector.asked(("instance", instance), self._clock_ns())
                    self._lanes.unload(instance)

    def _give_back(self, command: ReturnRequests) -> None:
        ended, batches = self._ended, tuple(self._batches)
        self._batches.clear()
        read_ns, read_s = (0, 0.0) if self.speed_meter is None else self.speed_meter.take()
        self._post(
            Returned(
                command.incarnation,
                command.requests,
                command.segment,
                command.width,
                ended.predictions if command.segment == self._segments else (),
                batches,
                command.residency,
                self._steps,
                self._clock.of(read_ns) if read_s else 0,
                read_s,
                ended.scores,
            )
        )

    def hear_lane(self, event: LaneEvent) -> None:
        """Process the end of something."""
        match event:
            case BatchEnded():
                self._detector.answered(("batch", event.batch))
                self._ended = event
                self.deliver(BatchStarted(self._incarnation, event.batch, self._clock.of(event.began_ns)))
                ended_ns = self._clock.of(event.ended_ns)
                failed, reason = event.failed, event.reason
                self.deliver(BatchFinished(self._incarnation, event.batch, failed, reason, ended_ns, event.late_ns))
            case BatchBroken(batch, reason):
                self._detector.answered(("batch", batch))
                self.deliver(BatchFailed(self._incarnation, batch, reason))
            case LoadEnded():
                self._detector.answered(("instance", event.instance))
                self._take_load(event)
            case LoadBroken(instance, reason):
                self._detector.answered(("instance", instance))
                del self._loading[instance]
                self.deliver(LoadFailed(self._incarnation, instance, reason))
                self._end_preload(instance)
            case UnloadEnded(instance) if instance in self._undone:
                self._undone.remove(instance)
                self.hear_lane(LoadBroken(instance, *explain(MemoryError("it exceeds the cap"))))
            case UnloadEnded(instance):
                self._detector.answered(("instance", instance))
                self._instance_bytes.pop(instance, None)
                self.deliver(InstanceUnloaded(self._incarnation, instance))

    def _take_load(self, event: LoadEnded) -> None:
        """Note a finished load; if the server then exceeds its cap, unload it again."""
        instance, vram_bytes = event.instance, event.vram_bytes
        if self._cap_bytes is not None and self._used_bytes + vram_bytes > self._cap_bytes:
            self._undone.add(instance)
            self._detector.asked(("instance", instance), self._clock_ns())
            self._lanes.unload(instance)
            return
        self._loaded_before.add(self._loading.pop(instance))
        self._instance_bytes[instance] = vram_bytes
        self._captures += event.captures
        self.deliver(InstanceLoaded(self._incarnation, instance, 0 if self._cap_bytes is None else vram_bytes))
        self._end_preload(instance)

    @property
    def _used_bytes(self) -> int:
        return self._fitting.context_bytes + sum(self._instance_bytes.values())

    def _end_preload(self, instance: int) -> None:
        if self._preloading is not None:
            self._preloading.discard(instance)
            self._tell_preloaded()

    def _tell_preloaded(self) -> None:
        if self._preloading is not None and not self._preloading:
            self._preloading = None
            self._post(Preloaded(self._incarnation, self._captures))

    # ---------------------------------------------------------------------------------------- the sensor, and the watch

    def report(self, sample: Sample, is_read: bool = True) -> None:
        """Report a sample to the scheduler, then to the router. Absent values read as 0 there."""
        used_bytes, waiting_bytes = self._used_bytes, self._fitting.activation_bytes()
        waiting, now_ns = self._scheduler.requests, self._clock.now_ns()
        utilization, power_w = sample.utilization or 0.0, sample.power_w or 0.0
        sampled_ns = min(sample.sampled_ns, now_ns)
        vram_bytes, counts = used_bytes + waiting_bytes, self._reported_counts()
        self.deliver(TelemetrySampled(self._incarnation, sampled_ns, now_ns, utilization, power_w, vram_bytes, waiting))
        residency = self._scheduler.residency
        self._post(
            Report(
                self._incarnation, sample, is_read, waiting, used_bytes, counts, self._steps, waiting_bytes, residency
            )
        )

    def _reported_counts(self) -> ServerCounts:
        """Return the counts without the batches that a later message reports."""
        counts, rest = self._book.counts, self._batches
        images = sum(len(batch.requests) - len(batch.failed) for batch in rest)
        return ServerCounts(counts.images - images, counts.batches - len(rest), counts.loads, counts.unloads)

    def _look(self, clock_ns: int) -> None:
        """Check whether some work takes too long; not when this process was away itself."""
        if self._detector.was_away(self._next_look_ns, clock_ns):
            self._detector.excuse(clock_ns)
        self._next_look_ns = clock_ns + self._detector.period_ns
        if self._detector.is_hung(clock_ns) and not self._is_stuck:
            self._is_stuck = True
            self._post(Stuck())
