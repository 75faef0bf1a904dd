"""One server's `GreedyScheduler` in simulated time: commands become delays, and their ends become events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kit.random_streams import derived_seed
from policies.faults import NO_PREDICTION, OUT_OF_MEMORY
from policies.greedy_scheduler import GreedyParams, GreedyScheduler
from policies.run_ledger import Ledger
from policies.vocabulary import (
    BatchFailed,
    BatchFinished,
    BatchStarted,
    InstanceLoaded,
    InstanceUnloaded,
    LoadInstance,
    MicroBatch,
    MicroBatchArrived,
    RejectRequests,
    RequestsRejected,
    RequestsReturned,
    ReturnRequests,
    RouterEvent,
    RunBatch,
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
from sim.event_queue import EventQueue, Kind, Process, rank
from sim.host_and_network import Attachment
from sim.simulated_device import (
    RunningBatch,
    SimulatedDevice,
    WindowedSensor,
    parts_that_fit,
    sampled_spells,
    solo_ns,
)


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server: `device` is the index of its device, which it may share."""

    name: str
    device: int
    params: GreedyParams
    attachment: Attachment


class SharedDevice:
    """A device on the event queue: the end of the batch that ends first is an event, replanned at each change."""

    def __init__(self, device_model: SimulatedDevice, event_queue: EventQueue) -> None:
        self.device_model = device_model
        self._event_queue = event_queue
        self._plan = 0
        self._servers: dict[int, SimulatedServer] = {}

    def attach(self, server: SimulatedServer) -> None:
        """Register a server on the device."""
        self._servers[server.index] = server

    @property
    def is_busy(self) -> bool:
        """Whether some pass is in progress."""
        return bool(self.device_model.running)

    def do_cpu_work(self, cost: tuple[int, int], images: int, slice_ns: int = 0) -> None:
        """Do CPU work of a server's process; see `SimulatedDevice.do_cpu_work`. It waits for a free core for at most a
        slice."""
        (micro_batch_ns, image_ns), now_ns = cost, self._event_queue.now_ns
        from_ns = self.device_model.free_ns(now_ns, now_ns + slice_ns, sum(self.device_model.waiting_ns.values()))
        self.device_model.do_cpu_work(micro_batch_ns + image_ns * images, now_ns, from_ns)
        self.replan()

    def free_ns(self) -> int:
        """Return when a process of another kind would get a core (`sim.host_and_network.Core`)."""
        device_model, now_ns = self.device_model, self._event_queue.now_ns
        cpu_work = device_model.tables.cpu_work
        slice_ns = 0 if cpu_work is None else cpu_work.slice_ns
        free_ns = device_model.free_ns(now_ns, now_ns + slice_ns, sum(device_model.waiting_ns.values()))
        return max(device_model.cpu_work_until_ns, free_ns)

    def occupy(self, work_ns: int, *, waits: bool) -> tuple[int, int]:
        """Occupy a core for such a process, as CPU work; returns start and end (`sim.host_and_network.Core`)."""
        now_ns = self._event_queue.now_ns
        self.device_model.do_cpu_work(work_ns, now_ns, self.free_ns() if waits else now_ns)
        self.replan()
        return self.device_model.cpu_work_from_ns, self.device_model.cpu_work_until_ns

    def begin_load(self, server: int, instance: int) -> None:
        """Begin a load (`SimulatedDevice.begin_load`); do nothing if loads have no effect on passes."""
        if self.device_model.tables.beside_load > 1.0:
            self.device_model.begin_load(server, instance, self._event_queue.now_ns)
            self.replan()

    def end_load(self, server: int, instance: int) -> None:
        """End a load; also do nothing for a load that took no time."""
        if (server, instance) in self.device_model.loading:
            self.device_model.end_load(server, instance, self._event_queue.now_ns)
            self.replan()

    def replan(self) -> None:
        """Plan the next end after a change of the running set."""
        self._plan += 1
        batch = self.device_model.next_end()
        if batch is not None:
            order = rank(batch.server, Kind.BATCH_END, batch.batch)
            self._event_queue.at(batch.end_ns, order, self._end, self._plan, batch)

    def sampled_slowdown(self, salt: int) -> Process:
        """Start the random variation of the device's speed if its profile has one; `salt` is of the hash that draws."""
        slowdown = self.device_model.tables.slowdown
        if slowdown is not None:
            spells = sampled_spells(slowdown, salt)
            _, factor = next(spells)
            self._slow_down(factor)
            yield from self._spells(spells)

    def followed_slowdown(self, changes: Sequence[tuple[int, float]]) -> Process:
        """Start the recorded variation of the device's speed."""
        mean = self.device_model.tables.mean_slowdown
        return self._spells((when_ns, factor / mean) for when_ns, factor in changes)

    def _spells(self, changes: Iterable[tuple[int, float]]) -> Process:
        order = rank(min(self._servers, default=0), Kind.SLOWDOWN)
        for when_ns, factor in changes:
            yield self._event_queue.until(when_ns, order)
            self._slow_down(factor)

    def _slow_down(self, factor: float) -> None:
        self.device_model.set_slowdown(factor, self._event_queue.now_ns)
        self.replan()

    def _end(self, plan: int, batch: RunningBatch) -> None:
        if plan != self._plan:
            return
        self.device_model.finish(batch.server, batch.batch, self._event_queue.now_ns)
        self.replan()
        self._servers[batch.server].finish(batch.batch)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The advance draws of a run for its batches, micro-batches and messages.

    Attributes:
        is_correct: (requests, width) -> for each whether its prediction is right, called at the last segment.
        seed: seed of the hashes that draw jitter.
        poisoned: requests whose images get no prediction from the last segment.
    """

    is_correct: Callable[[tuple[int, ...], float], tuple[bool, ...]]
    seed: int
    poisoned: frozenset[int] = frozenset()


RouterMessage = RequestsReturned | RequestsRejected


@dataclass(frozen=True, slots=True)
class RouterPort:
    """A server's way to the router: `core` gets events at once, `host` messages that return requests on arrival,
    numbered by server."""

    core: Callable[[RouterEvent], None]
    host: Callable[[RouterMessage, int], None]


# Names of random streams.
JITTER = "jitter"


class SimulatedServer:
    """One server in simulated time."""

    def __init__(
        self,
        index: int,
        spec: ServerSpec,
        device: SharedDevice,
        event_queue: EventQueue,
        ledger: Ledger,
        outcomes: Outcomes,
        router: RouterPort,
    ) -> None:
        self.index = index
        self.spec = spec
        self.incarnation = 0
        self.is_up = False
        self.is_hung = False
        self.scheduler = GreedyScheduler(spec.params, index)
        self._tables = device.device_model.tables
        self._segments = self._tables.profile.model.segments
        self._device = device
        self._event_queue = event_queue
        self._ledger = ledger
        self._is_correct = outcomes.is_correct
        self._to_router = router.core
        self._to_host = router.host
        self._jitter_salt = derived_seed(outcomes.seed, JITTER)
        self._poisoned = outcomes.poisoned
        self._sensor = WindowedSensor(device.device_model)
        self._in_host_memory: set[tuple[int, float]] = set()
        self._instances: dict[int, tuple[int, float]] = {}
        self._is_prepared = False  # whether loads ordered now were done before the run's clock started
        self._armed_ns: int | None = None
        self._messages = 0
        self._arriving: deque[tuple[int, MicroBatch]] = deque()  # in transfer, and when each would arrive alone
        self._last_back_ns = 0  # when the last message in transfer arrives
        self._running: dict[int, RunBatch] = {}
        self._factor = 1.0
        self._room_images: int | None = None  # images that fit at once; None for no limit
        self._do: dict[type, Callable[[Any], None]] = {
            RunBatch: self._dispatch,
            ReturnRequests: self._return,
            RejectRequests: self._reject,
            LoadInstance: self._load,
            UnloadInstance: self._unload,
        }
        device.attach(self)

    # ------------------------------------------------------------------------------------------------ events in

    def deliver(self, event: ServerEvent) -> None:
        """Give an event to the scheduler and execute its commands."""
        now_ns = self._event_queue.now_ns
        commands = self.scheduler.handle(event, now_ns)
        self._ledger.observe_server(self.index, event, commands, now_ns)
        for command in commands:
            self._do[type(command)](command)
        self._arm_timer()

    def hand_over(self, micro_batch: MicroBatch) -> None:
        """Hand a micro-batch with all its inputs to the scheduler, which is in another process than the router.

        It overtakes no micro-batch handed over before. If the handover costs nothing, it is there at once.
        """
        tables = self._tables
        if not tables.there_ns:
            self._take_in(micro_batch)
            return
        handover_ns = self._stretched_ns(tables.busy_there_ns if self._device.is_busy else tables.there_ns)
        self._arriving.append((self._event_queue.now_ns + handover_ns, micro_batch))
        if len(self._arriving) == 1:
            self._event_queue.process(self._deliveries(self.incarnation))

    def _stretched_ns(self, takes_ns: int) -> int:
        """Return the duration of a way or a dispatch: a device whose cores do it may be slow now."""
        return takes_ns if self._tables.cpu_work is None else self._device.device_model.stretched_ns(takes_ns)

    def copy(self, images: int) -> int:
        """Copy activations for another server, as CPU work of the process; returns when it has finished."""
        cpu_work, now_ns = self._tables.cpu_work, self._event_queue.now_ns
        if cpu_work is None or not self.is_up or self.is_hung:
            return now_ns
        self._device.do_cpu_work(cpu_work.moved, images, cpu_work.slice_ns)
        return self._device.device_model.cpu_work_until_ns

    def _deliveries(self, incarnation: int) -> Process:
        """Deliver the micro-batches in transfer, one after the other, until none is left or the server fails."""
        order = rank(self.index, Kind.MICRO_BATCH_ARRIVAL)
        device_model = self._device.device_model
        cpu_work = self._tables.cpu_work
        while self._arriving and self.is_up and incarnation == self.incarnation:
            arrives_ns, micro_batch = self._arriving[0]
            yield self._event_queue.until(max(self._event_queue.now_ns, arrives_ns), order)
            # the server's process receives it
            if cpu_work is not None and self.is_up and incarnation == self.incarnation:
                if not self.is_hung:
                    cost = cpu_work.taken[device_model.pause(self._event_queue.now_ns)]
                    self._device.do_cpu_work(cost, len(micro_batch.requests), cpu_work.slice_ns)
                yield self._event_queue.until(max(self._event_queue.now_ns, device_model.cpu_work_until_ns), order)
            if self.is_up and incarnation == self.incarnation:
                self._arriving.popleft()
                self._take_in(micro_batch)

    def _take_in(self, micro_batch: MicroBatch) -> None:
        """Give a micro-batch to the scheduler; a hung process reads nothing; after a failure it is lost (the router
        requeued it)."""
        if self._is_working(micro_batch.incarnation):
            self.deliver(MicroBatchArrived(micro_batch))

    def come_up(self) -> None:
        """(Re)start, in a new incarnation; nothing happens if it is up. At the start of a run preloads are already in
        place."""
        if self.is_up:
            return
        self.incarnation += 1
        self.is_up = True
        self._is_prepared = self.incarnation == 1
        self.deliver(ServerUp(self.index, self.incarnation))
        self._is_prepared = False
        self._to_router(ServerUp(self.index, self.incarnation))

    def go_down(self, reason: str) -> None:
        """Fail: batches, instances, queue and activations are lost; nothing happens if it is down."""
        if not self.is_up:
            return
        self.is_up = self.is_hung = False
        self._arriving.clear()
        self._device.device_model.kill(self.index, self._event_queue.now_ns)
        self._device.replan()
        self._in_host_memory.clear()
        self._instances.clear()
        self._running.clear()
        self._sensor.restart()
        self.deliver(ServerDown(self.index, self.incarnation, reason))
        self._to_router(ServerDown(self.index, self.incarnation, reason))

    def straggle(self, factor: float) -> None:
        """Run `factor` times slower from now on; 1 is the server's normal speed."""
        self._factor = factor
        self._device.device_model.straggle(self.index, factor, self._event_queue.now_ns)
        self._device.replan()
        event = StragglerStarted(self.index, factor) if factor != 1.0 else StragglerEnded(self.index)
        if not self.is_hung:
            self.deliver(event)
        self._to_router(event)

    def hang(self) -> bool:
        """Hang: no events come from here until the process is killed; returns False if it is down.

        Its scheduler is in the hung process and receives nothing. Micro-batches sent to it are lost with it.
        """
        if not self.is_up:
            return False
        self.is_hung = True
        self._device.device_model.freeze(self.index, self._event_queue.now_ns)
        self._device.replan()
        return True

    def squeeze(self, images: int | None) -> None:
        """Run later batches in parts of at most `images` images; None for no limit."""
        self._room_images = images

    def finish(self, batch: int) -> None:
        """End a batch. The last segment finds no prediction for poisoned images; if none has one the batch failed."""
        command = self._running.pop(batch)
        if self._tables.cpu_work is not None:
            self._device.do_cpu_work(self._tables.cpu_work.ended, len(command.requests))
        failed: tuple[int, ...] = ()
        if self._poisoned and command.segment == self._segments:
            failed = tuple(request for request in command.requests if request in self._poisoned)
        if failed == command.requests:
            self.deliver(BatchFailed(self.incarnation, batch, NO_PREDICTION))
        else:
            self.deliver(BatchFinished(self.incarnation, batch, failed, NO_PREDICTION if failed else ""))

    def _is_working(self, incarnation: int) -> bool:
        """Return whether that incarnation still runs and makes progress."""
        return self.is_up and not self.is_hung and incarnation == self.incarnation

    # --------------------------------------------------------------------------------------------- commands out

    def _return(self, command: ReturnRequests) -> None:
        requests = command.requests
        segment = command.segment
        width = command.width
        correct = self._is_correct(requests, width) if segment == self._segments else ()
        self._send_back(
            RequestsReturned(self.index, command.incarnation, requests, segment, width, correct, command.residency)
        )

    def _reject(self, command: RejectRequests) -> None:
        self._send_back(RequestsRejected(self.index, command.incarnation, command.requests, command.reason))

    def _send_back(self, message: RouterMessage) -> None:
        """Send a message; messages arrive in the order of sending, whatever happens to the server meanwhile."""
        tables = self._tables
        number = self._messages
        self._messages += 1
        if not tables.back_ns:
            self._to_host(message, number)
            return
        back_ns = self._stretched_ns(tables.busy_back_ns if self._device.is_busy else tables.back_ns)
        sent_ns = max(self._event_queue.now_ns, self._device.device_model.cpu_work_from_ns)
        self._last_back_ns = max(self._last_back_ns, sent_ns + back_ns)
        self._event_queue.at(self._last_back_ns, rank(self.index, Kind.MESSAGE), self._to_host, message, number)

    def _load(self, command: LoadInstance) -> None:
        """Load an instance: first from disk, later from host memory (Alg. 1 l. 25)."""
        spec = (command.segment, command.width)
        cost = self._tables.instances[spec]
        load_ns = cost.reload_ns if spec in self._in_host_memory else cost.load_ns
        if self._is_prepared:
            load_ns = 0
        self._instances[command.instance] = spec
        if load_ns > 0:
            self._device.begin_load(self.index, command.instance)
        self._later(load_ns, Kind.LOAD_END, InstanceLoaded(command.incarnation, command.instance))

    def _unload(self, command: UnloadInstance) -> None:
        unload_ns = self._tables.instances[self._instances.pop(command.instance)].unload_ns
        self._later(unload_ns, Kind.UNLOAD_END, InstanceUnloaded(command.incarnation, command.instance))

    def _later(self, delay_ns: int, kind: Kind, event: InstanceLoaded | InstanceUnloaded) -> None:
        order = rank(self.index, kind, event.instance)
        self._event_queue.at(self._event_queue.now_ns + delay_ns, order, self._deliver_alive, event)

    def _deliver_alive(self, event: InstanceLoaded | InstanceUnloaded) -> None:
        if isinstance(event, InstanceLoaded) and self.is_up and event.incarnation == self.incarnation:
            self._device.end_load(self.index, event.instance)
        if self._is_working(event.incarnation):
            if isinstance(event, InstanceLoaded):
                self._in_host_memory.add(self._instances[event.instance])
            self.deliver(event)

    def _dispatch(self, command: RunBatch) -> None:
        tables = self._tables
        now_ns = self._event_queue.now_ns
        dispatch_ns = tables.busy_dispatch_ns if self._device.is_busy else tables.dispatch_ns
        start_ns = now_ns + self._stretched_ns(dispatch_ns)
        if tables.cpu_work is not None:
            self._device.do_cpu_work(tables.cpu_work.begun, len(command.requests))
            start_ns = max(start_ns, self._device.device_model.cpu_work_until_ns)
        limit_ns = start_ns + (0 if tables.cpu_work is None else tables.cpu_work.slice_ns)
        if start_ns == now_ns:
            self._begin(command, limit_ns)
            return
        self._event_queue.at(
            start_ns, rank(self.index, Kind.BATCH_START, command.batch), self._begin, command, limit_ns
        )

    def _begin(self, command: RunBatch, limit_ns: int) -> None:
        """Begin the pass when it has a core: it waits for passes until the limit, and for CPU work to their end."""
        now_ns = self._event_queue.now_ns
        device_model = self._device.device_model
        key = (self.index, command.batch)
        device_model.waiting_ns.pop(key, None)
        if not self._is_working(command.incarnation):
            return
        free_ns = max(device_model.free_ns(now_ns, limit_ns), device_model.cpu_work_end_ns(now_ns))
        if free_ns > now_ns:
            table = self._tables.keys[command.segment, command.served_width, command.previous_width]
            device_model.waiting_ns[key] = table.latency_ns[command.padded]
            self._event_queue.at(
                free_ns, rank(self.index, Kind.BATCH_START, command.batch), self._begin, command, limit_ns
            )
            return
        if self._ledger.keeps_starts:
            self.deliver(BatchStarted(command.incarnation, command.batch, now_ns))
        sizes = self._sizes(command)
        if not sizes:
            failed = BatchFailed(command.incarnation, command.batch, OUT_OF_MEMORY)
            self._event_queue.at(now_ns, rank(self.index, Kind.BATCH_END, command.batch), self.deliver, failed)
            return
        table = self._tables.keys[command.segment, command.served_width, command.previous_width]
        work_ns = 0
        for size in sizes:
            work_ns += solo_ns(table, size, self._jitter_salt, self.index, command.batch)
        work_ns += self._tables.extra_ns[self._device.device_model.pause(now_ns)]
        self._running[command.batch] = command
        batch = RunningBatch(self.index, command.batch, table, sizes[0], work_ns, self._factor)
        self._device.device_model.start(batch, now_ns)
        self._device.replan()

    def _sizes(self, command: RunBatch) -> tuple[int, ...]:
        """Return the batch sizes on the device, one after the other: one, unless its memory is squeezed."""
        if self._room_images is None or len(command.requests) <= self._room_images:
            return (command.padded,)
        return parts_that_fit(len(command.requests), self._room_images)  # unpadded: only whole batches are padded

    # ------------------------------------------------------------------------------------------ timer and sensor

    def _arm_timer(self) -> None:
        """Plan one timer at a time; a timer that is too early checks again."""
        wake_ns = self.scheduler.next_wake_ns
        if wake_ns is not None and (self._armed_ns is None or wake_ns < self._armed_ns):
            self._armed_ns = wake_ns
            self._event_queue.at(wake_ns, rank(self.index, Kind.TIMER), self._ring, wake_ns)

    def _ring(self, armed_ns: int) -> None:
        if armed_ns != self._armed_ns:
            return
        self._armed_ns = None
        if self.is_hung:
            return
        wake_ns = self.scheduler.next_wake_ns
        if wake_ns is not None and wake_ns <= self._event_queue.now_ns:
            self.deliver(TimerFired())
        else:
            self._arm_timer()

    def sample(self) -> None:
        """Read the sensor; the reading arrives after its lag, here and at the router."""
        if not self._is_working(self.incarnation):
            return
        now_ns = self._event_queue.now_ns
        power_w, utilization = self._sensor.read(now_ns)
        used_bytes, requests = self.scheduler.vram_used_bytes, self.scheduler.requests
        received_ns = now_ns + self._tables.lag_ns
        event = TelemetrySampled(self.incarnation, now_ns, received_ns, utilization, power_w, used_bytes, requests)
        if received_ns == now_ns:
            self._report(event)
        else:
            self._event_queue.at(received_ns, rank(self.index, Kind.TELEMETRY), self._report, event)

    def _report(self, event: TelemetrySampled) -> None:
        if not self._is_working(event.incarnation):
            return
        self.deliver(event)
        self._to_router(
            ServerReport(
                self.index,
                event.incarnation,
                event.sampled_ns,
                event.received_ns,
                event.queue_length,
                event.utilization,
                event.power_w,
                event.vram_used_bytes,
                self.scheduler.residency,
            )
        )
