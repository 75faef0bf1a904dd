"""A server's worker: its scheduler, its lanes, its sensor and its log, in one process. It decides nothing itself.

Micro-batches come through the port, and their results go back; batches, loads and unloads never leave the process. The
main thread waits for messages, timers and the sensor; a slow sensor is read in a separate thread. On a CPU a lane's
thread that has ended something takes the scheduler's next step itself, under one lock: so a batch that follows at once
starts without any thread waking up. On a GPU the main thread launches batches and polls them itself.
"""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from hw.clock import NEVER_NS, Host
from hw.telemetry.sensors import Sensor
from hw.transport.messages import (
    Close,
    ComeUp,
    Deliver,
    Fence,
    Fenced,
    Finish,
    FromWorker,
    Impair,
    Keep,
    Measurement,
    Move,
    MoveBroken,
    OfMicroBatches,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Ready,
    Refused,
    Release,
    Sample,
    Sampled,
    Sense,
    Start,
    ToWorker,
)
from hw.transport.shared_memory import StepLog
from hw.transport.worker_port import FLUSH_NS, PortClosedError, WorkerEnd
from hw.worker.lanes import BatchEnded, LaneEvent, MoveEnded, WorkerSpec
from hw.worker.worker_run import Serving
from policies.vocabulary import MicroBatchArrived

_LOOK_NS: Final = 200_000  # a router that is awake answers within this


class Worker:
    """Executes the router's requests; `loop` returns when the router closes the port or is gone.

    Args:
        port: to the router.
        spec: of the worker; its outfit opens the device.
        log: of the scheduler's steps.
        host: this host's clock and waits.
        thread: returns an identifier of the calling thread.
        leave: ends the process, with this exit code, from any thread.
        fence: stops writes of that incarnation of another worker to this one's arena.
    """

    def __init__(
        self,
        port: WorkerEnd,
        spec: WorkerSpec,
        log: StepLog,
        host: Host | None = None,
        leave: Callable[[int], object] = os._exit,
        fence: Callable[[int], object] = lambda _: None,
        thread: Callable[[], int] = threading.get_ident,
    ) -> None:
        self._host = host or Host()
        self._clock_ns = self._host.clock_ns
        self._thread = thread
        self._port = port
        self._leave = leave
        self._fence = fence
        self._service = spec.service
        self._log = log
        self._lock = threading.Lock()
        self._main = thread()
        self._receiving = threading.Lock()  # messages taken are processed before others take the next ones
        self._unprocessed: deque[ToWorker] = deque()
        self._reading = threading.Thread()  # of the sensor, if it is read in a separate thread
        self._samples: deque[tuple[Serving, Sample]] = deque()  # read there, and not reported yet
        self._woken, self._nudge = os.pipe()
        self._sleeps_until_ns = 0
        self._serving: Serving | None = None
        self._idle_ns = 0
        self.shared_by = 1  # workers that this process has
        self._fitting = spec.outfit.fit(self._hear_lane, self._clock_ns)
        self._looks_on = spec.service is not None and spec.service.has_core and not self._fitting.computes_here

    # ------------------------------------------------------------------------------------------------------- the loop

    def loop(self) -> None:
        """Execute requests until `Close`, or until the router is gone."""
        work([self])

    def greet(self) -> None:
        """Send its first message."""
        fitting = self._fitting
        sensor = fitting.sensor((os.getpid(),)).describe()
        execution = dict(fitting.execution)
        self._port.post(Ready(os.getpid(), fitting.context_bytes, execution, sensor))
        self._port.flush()

    def act(self) -> int:
        """Do everything that is due; return the time until which nothing else is, by this host's clock."""
        sample = None if self._serving is None else self._sense(self._serving)
        with self._lock:
            if self._serving is not None:
                self._serving.ring(self._clock_ns(), sample)
                self._report_samples()
            else:  # a move ends, too, while nothing is served: of a worker that is measured, or after a run
                self._fitting.lanes.ring(self._clock_ns())
            is_sent = self._send()
            lanes_ns = self._fitting.lanes.next_ns
            idle_ns = NEVER_NS if lanes_ns is None else lanes_ns
            until_ns = idle_ns if self._serving is None else self._serving.next_ns
            if not is_sent:
                until_ns = min(until_ns, self._clock_ns() + FLUSH_NS)
            self._sleeps_until_ns = until_ns
            if self._serving is not None and self._serving.meter is not None:
                self._serving.meter.end_turn()
        return until_ns

    def _sense(self, serving: Serving) -> Sample | None:
        """Read the device if it is due, unless a thread reads it, and reports it itself."""
        if (sensor := serving.take_tick(self._clock_ns())) is None:
            return None
        if not self._fitting.reads_apart:
            return serving.read(sensor)
        if not self._reading.is_alive():
            self._reading = threading.Thread(target=self._read_apart, args=(serving, sensor), daemon=True)
            self._reading.start()
        return None

    def _read_apart(self, serving: Serving, sensor: Sensor) -> None:
        with self._exiting_on_failure():
            self._samples.append((serving, serving.read(sensor)))
            os.write(self._nudge, b"!")

    def _report_samples(self) -> None:
        """Report samples of the reading thread; their processing belongs to this thread."""
        while self._samples:
            serving, sample = self._samples.popleft()
            if serving is self._serving:
                serving.report(sample)

    def listen(self) -> bool:
        """Process new messages; return False when the worker is to end."""
        self._sleeps_until_ns = 0
        with self._receiving:
            while self._unprocessed:
                if not self._obey_in_turn(self._unprocessed.popleft()):
                    return False
            for message in self._port.receive():
                if not self._obey_in_turn(message):
                    return False
        if self._fitting.computes_here and self._serving is not None and self._serving.is_busy:
            os.sched_yield()  # a lane that was woken goes before the rest of the work here
        return True

    def sleep(self, until_ns: int, beside: Sequence[Worker] = ()) -> None:
        """Sleep until then, or until there is something to do, here or for those that share this thread."""
        workers = (self, *beside)
        select = partial(self._select, workers=workers)
        if all(worker._looks_on for worker in workers) and self._look_on(until_ns, workers):
            return
        waker, exact_ns = self._fitting.waker, [worker._serving.exact_ns for worker in workers if worker._serving]
        if waker is not None and exact_ns and min(exact_ns) < until_ns + waker.overrun_ns:
            waker.wait(select, until_ns)
        else:  # sensors and watches need no exact times
            select(None if until_ns == NEVER_NS else max(0.0, (until_ns - self._clock_ns()) / 1e9))

    def _select(self, wait_s: float | None, workers: Sequence[Worker]) -> bool:
        """Wait until there is something to do; return whether there is."""
        ready = self._host.wait([end for worker in workers for end in (worker._port.fileno(), worker._woken)], wait_s)
        for worker in workers:
            if worker._woken in ready:
                os.read(worker._woken, 4096)
        return bool(ready)

    def _look_on(self, until_ns: int, workers: Sequence[Worker]) -> bool:
        """Poll for a while if nothing runs here: a core that sleeps wakes up later than a message travels.

        The time counts neither as the device's nor as the worker's work. Returns whether something has come.
        """
        if any(worker._serving is None or worker._serving.is_busy for worker in workers):
            return False
        began_ns = self._host.cpu_ns()
        until_ns, has_come = min(until_ns, self._clock_ns() + _LOOK_NS), False
        while not has_come and self._clock_ns() < until_ns:
            has_come = self._select(0.0, workers)
        for worker in workers:
            worker._idle_ns += self._host.cpu_ns() - began_ns
        return has_come

    def _send(self) -> bool:
        """Write the log, then send: the log never ends before what the router has received."""
        self._log.write()
        return self._port.flush()

    def _send_from_lane(self) -> None:
        """Send from a lane's thread; wake the main thread for the unsent rest, and for a timer nearer than its own."""
        if not self._send() or (self._serving is not None and self._serving.next_ns < self._sleeps_until_ns):
            os.write(self._nudge, b"!")

    # ------------------------------------------------------------------------------------------------------- messages

    def _obey(self, message: ToWorker) -> None:
        """Process a message; activations are accessed without the lock: lanes continue meanwhile."""
        lanes = self._fitting.lanes
        match message:
            case Deliver(micro_batch, inputs):
                if inputs:
                    lanes.take(inputs)
                with self._lock:
                    if self._serving is not None:
                        if self._serving.meter is not None:
                            self._serving.meter.took(len(micro_batch.requests))
                        self._serving.deliver(MicroBatchArrived(micro_batch))
            case Keep(inputs):
                lanes.take(inputs)
            case Move():
                began_ns = self._host.cpu_ns()
                if (answer := self._move(message)) is not None:
                    self._post(answer)
                if (serving := self._serving) is not None and serving.meter is not None:
                    serving.meter.copied(len(message.requests), self._host.cpu_ns() - began_ns)
            case Release(requests):
                lanes.forget(requests)
            case Fence(number, worker_id):
                self._fence(worker_id)
                self._post(Fenced(number))
            case Ping(number):
                self._post(Pong(number, self._clock_ns()))
            case Prepare():
                self._prepare(message)
            case Finish(number):
                if self._reading.ident:
                    self._reading.join()
                with self._lock:
                    self._report_samples()
                    self._finish(number)
            case ComeUp() | Start() | Sense() | Sampled() | Impair():
                with self._lock:
                    if self._serving is not None:  # otherwise of a run that is over
                        self._serving.obey(message)
            case Close():
                raise AssertionError("handled by the loop")
            case _:
                self._measure(message)

    def _obey_in_turn(self, message: ToWorker) -> bool:
        """Process a message; return False when the worker is to end."""
        if isinstance(message, Close):
            return False
        self._obey(message)
        return True

    def _take_what_came(self) -> None:
        """Process messages about blocks, in a lane's thread. The rest, and later ones, are left to the main thread.

        Between passes that follow each other the main thread hardly gets core and interpreter: new messages would wait
        for one or two more passes than necessary.
        """
        if self._unprocessed or not self._receiving.acquire(blocking=False):
            return
        try:
            meter = None if self._serving is None else self._serving.meter
            for message in self._port.receive():
                if self._unprocessed or not isinstance(message, OfMicroBatches):
                    self._unprocessed.append(message)
                else:
                    self._obey(message)
            if meter is not None:
                meter.end_lane_turn()
        finally:
            self._receiving.release()
        if self._unprocessed:
            os.write(self._nudge, b"!")

    def _post(self, message: FromWorker) -> None:
        with self._lock:
            self._port.post(message)

    def _move(self, message: Move) -> FromWorker | None:
        try:
            return self._fitting.lanes.move(message)
        except Exception as error:
            reason, detail = self._fitting.explain(error)
            return MoveBroken(message.transfer, reason, detail)

    def _measure(self, message: Measurement) -> None:
        try:
            answer = self._fitting.measure(message)
        except Exception as error:  # the worker outlives any request
            answer = Refused(*self._fitting.explain(error))
        self._post(answer)

    def _prepare(self, message: Prepare) -> None:
        """Prepare for a run: later reports of lanes are ignored, and lanes are waited for without the lock."""
        assert self._service is not None, "this worker is there to be measured"
        with self._lock:
            self._serving = None
        forgotten = self._fitting.lanes.reset(self._service.params.preload)
        self._log.clear()
        self._idle_ns = 0 if self._fitting.waker is None else -self._fitting.waker.looked_ns
        log = self._log if message.keep_log else None
        with self._lock:
            self._serving = Serving(message, self._service, self._fitting, self._port.post, log, self._clock_ns)
            self._port.post(Prepared(message.number, forgotten))

    def _finish(self, number: int) -> None:
        """Finish a run; later events here are ignored."""
        assert self._serving is not None, "not prepared"
        looked_ns = 0 if self._fitting.waker is None else self._fitting.waker.looked_ns
        self._serving.finish(number, self._idle_ns + looked_ns, self.shared_by)
        self._serving = None

    # ----------------------------------------------------------------------------------------------------------- lanes

    def _hear_lane(self, event: LaneEvent) -> None:
        """Process an end, from a lane's thread, or from within `ring` in the main thread, which has the lock."""
        if self._thread() == self._main:
            if isinstance(event, MoveEnded):
                self._port.post(event.answer)
            elif self._serving is not None:
                self._serving.hear_lane(event)
            return
        with self._exiting_on_failure():
            if isinstance(event, MoveEnded):  # of a run that is over, too: its place is kept until then
                with self._lock:
                    self._port.post(event.answer)
                    self._send_from_lane()
                return
            with self._lock:
                if self._serving is None:
                    return
                meter = self._serving.meter if isinstance(event, BatchEnded) else None
                if meter is not None:
                    meter.begin_end()
                self._serving.hear_lane(event)
                self._send_from_lane()
                if meter is not None and isinstance(event, BatchEnded):
                    meter.ended(self._serving.passed, event.ended_ns - event.began_ns)
                speed_meter = self._serving.speed_meter if isinstance(event, BatchEnded) else None
            if self._fitting.computes_here:
                self._take_what_came()
                with self._lock:
                    self._send_from_lane()
            if speed_meter is not None:
                speed_meter.look()

    @contextlib.contextmanager
    def _exiting_on_failure(self) -> Iterator[None]:
        """Report the failure of a thread other than the main one, which ends the process."""
        try:
            yield
        except PortClosedError:  # no router is left
            self._leave(0)
        except BaseException:  # a step that is half done must not be followed by another
            traceback.print_exc()
            self._leave(1)


def work(workers: Sequence[Worker]) -> None:
    """Drive workers in one thread, each until `Close` or until its router is gone."""
    due_ns: dict[Worker, int] = {}
    for worker in workers:
        worker.shared_by = len(workers)
        with contextlib.suppress(PortClosedError):
            worker.greet()
            due_ns[worker] = worker.act()
    while due_ns:
        first, *others = due_ns
        first.sleep(min(due_ns.values()), others)
        for worker in (first, *others):
            try:
                is_over = not worker.listen()
                due_ns[worker] = worker.act()
            except PortClosedError:
                is_over = True
            if is_over:
                del due_ns[worker]
