"""The virtual machines of one seed: the router's host, its workers, and what happens to them."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from hw.clock import Host, readable
from hw.router.server_port import START_LIMIT_NS
from hw.router.worker_handles import WorkerHandle
from hw.transport.messages import Done, FromWorker, Measurement, Ping, Refused, ToWorker, Warm
from hw.transport.shared_memory import Arena, LinkLostError, StepLog
from hw.transport.worker_port import Mirror, PortBrokenError, PortClosedError, RouterEnd, SentLog, WorkerEnd
from hw.worker.emulated_lanes import EmulatedLanes, EmulatedSensor, Ended, Key
from hw.worker.lanes import Fitting, Tell, WorkerSpec, explain
from hw.worker.worker_process import Worker
from kit.random_streams import stream
from policies.faults import Impairment, Slowness, Squeeze
from policies.vocabulary import NS_PER_S
from tests.swarm.laws import DRAINED_IN_NS, FIRST_PING, Laws
from tests.swarm.mix import ACTIVATION_BYTES, MS, US, Mix
from tests.swarm.wires import FIRST_DESCRIPTOR, EventQueue, Link, VirtualSocket, connection

POLL_NS = 500 * US  # of a router that looks out: coarser than a real one, to play faster
MAIN, MOVER = 1, 2  # a worker's threads


class Killed(BaseException):
    """Raised within a worker's code, at whatever it was doing."""


class ToyDevice:
    """`hw.worker.emulated_lanes.DeviceBehavior`: passes take their time, and do not slow each other down."""

    segments: int
    context_bytes = 0

    def __init__(self, segments: int, vram_bytes: int, pass_ns: int) -> None:
        self.segments, self.vram_bytes, self._pass_ns = segments, vram_bytes, pass_ns
        self.dispatch_ns = 0
        self._impairment = Impairment()
        self._running: list[tuple[int, int, int, bool]] = []

    def reset(self, now_ns: int) -> None:
        self._impairment = Impairment()
        self._running.clear()

    def start(self, batch: int, key: Key, images: int, padded: int, at_ns: int) -> None:
        room = self._impairment.room_images
        parts = 1 if room is None else -(-padded // max(1, room))
        took_ns = self._pass_ns * (4 * parts + padded) // 5 * (1 + batch % 3)
        heappush(self._running, (at_ns + int(took_ns * self._impairment.slow_factor), batch, at_ns, room != 0))

    def impair(self, impairment: Impairment, now_ns: int) -> None:
        """See `DeviceModel`; of passes that begin from now on."""
        self._impairment = impairment

    def advance(self, now_ns: int) -> Sequence[Ended]:
        ended: list[Ended] = []
        while self._running and self._running[0][0] <= now_ns:
            end_ns, batch, began_ns, fitted = heappop(self._running)
            ended.append((batch, began_ns, end_ns, fitted))
        return ended

    @property
    def next_ns(self) -> int | None:
        return self._running[0][0] if self._running else None

    def load_ns(self, segment: int, width: float, from_disk: bool) -> int:
        return self._pass_ns * (10 if from_disk else 3)

    def unload_ns(self, segment: int, width: float) -> int:
        return self._pass_ns

    def instance_bytes(self, segment: int, width: float) -> int:
        return instance_bytes(segment, width)

    def output_bytes(self, segment: int, width: float) -> int:
        return int(ACTIVATION_BYTES * width)

    def sample(self, now_ns: int) -> tuple[float, float]:
        return 100.0, 0.5

    def energy_j(self, now_ns: int) -> float:
        return 100.0 * now_ns / NS_PER_S


def instance_bytes(segment: int, width: float) -> int:
    return int(1000 * width)


class MemoryLog(StepLog):
    """A log that outlives its worker; a kill may cut its last frame."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()

    def _put(self, frame: bytes) -> None:
        self.data += frame

    def clear(self) -> None:
        super().clear()
        self.data.clear()


class Mover(Executor):
    """A thread that moves activations over a network, one after another, in the world's time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._tasks: deque[Callable[[], object]] = deque()
        self._is_over = self._has_stalled = False

    def submit(self, task: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        """It runs once those before it have, and its bytes have travelled."""
        self._tasks.append(lambda: task(*args))
        if len(self._tasks) == 1:
            self._plan()
        return Future()

    def _plan(self) -> None:
        world = self._process.world
        is_slow = world.rng.random() < world.mix.stalls
        self._has_stalled = not is_slow
        slow_ns = int(world.mix.supervision.hang_ns / 3 * world.rng.exponential()) if is_slow else 0
        self._plan_in(2 * world.link_of(self._process.index).delay() + slow_ns)

    def _plan_in(self, travel_ns: int) -> None:
        event_queue = self._process.world.event_queue
        event_queue.at(event_queue.now_ns + travel_ns, self._run)

    def _run(self) -> None:
        if self._is_over or self._process.is_dead:
            return
        if self._process.is_halted and not self._process.moves_on:  # until it is killed
            return
        world, task = self._process.world, self._tasks[0]
        if not self._has_stalled and (self._process.is_halted or world.link_of(self._process.index).is_cut):
            self._has_stalled = True  # a host in trouble is slow: longer than it takes to be given up
            self._plan_in(int(2 * world.mix.supervision.hang_ns * world.rng.exponential()))
            return
        self._process.run_as(MOVER, task)
        if self._tasks and self._tasks[0] is task:
            self._tasks.popleft()
        if self._tasks:
            self._plan()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_over = True
        self._tasks.clear()


class FarArena(Arena):
    """`hw.transport.direct_transfers.FarArena` without its sockets: another host's arena, written to when `commit`
    ends.

    The receiver may have it although the sender hears of a lost link; an incarnation that is fenced off writes nothing.
    """

    waits = True

    def __init__(self, size_bytes: int, process: Process, destination: int) -> None:
        super().__init__(size_bytes)
        self._process = process
        self._destination = destination

    def commit(self, offset: int, size_bytes: int, address: str = "") -> None:
        world = self._process.world
        there = world.landings.get(address)
        lost = world.link_of(self._process.index).is_alone or world.link_of(self._destination).is_alone
        if there is None or there.is_dead or self._process.worker_id in there.fenced or lost:
            raise LinkLostError(f"nobody takes {size_bytes} bytes at {address}")
        world.laws.landed(self._process.worker_id, there.worker_id, self._destination, offset, size_bytes)
        there.own_arena.view(offset, size_bytes)[:] = self.view(offset, size_bytes)
        if world.rng.random() < world.mix.split / 4:  # the answer is lost
            raise LinkLostError(f"no answer from {address}")


class Process:
    """A worker's process, from its start to its end, driven step by step.

    Attributes:
        incarnation: no other's.
        is_halted: it is stopped, or hangs; `moves_on`: its main thread does, and activations still travel.
        fenced: lives that may write to its arena no more.
    """

    def __init__(self, world: World, index: int, spec: WorkerSpec, worker_id: int) -> None:
        self.world, self.index, self.spec, self.worker_id = world, index, spec, worker_id
        self.is_dead = self.is_halted = self.moves_on = self.is_begun = False
        self.fenced: set[int] = set()
        self.mourned: Callable[[], object] = lambda: None  # what its host does when it has ended
        self.worker: Worker | None = None
        self.socket: VirtualSocket | None = None
        self.log: StepLog = MemoryLog()
        self.own_arena: Arena
        self._thread = MAIN
        self._due_ns: int | None = None  # of the step that is planned
        self._dies_in = -1  # looks at the clock until it is killed; below 0: it isn't
        self._opened: list[Arena] = []
        rng = world.rng
        self._offset_ns = int(1e12 * rng.random()) if world.mix.is_far else 0
        self._drift = (rng.random() - 0.5) * 1e-4 if world.mix.is_far else 0.0

    # ---------------------------------------------------------------------------------------------------- its clock

    def clock_ns(self) -> int:
        """Its own host's; each look takes a little, and may be its last."""
        event_queue = self.world.event_queue
        event_queue.now_ns += self.world.mix.tick_ns
        if self._dies_in >= 0:
            self._dies_in -= 1
            if self._dies_in < 0:
                raise Killed
        now_ns = event_queue.now_ns
        return now_ns + self._offset_ns + int(self._drift * now_ns)

    def _world_ns(self, clock_ns: int) -> int:
        return round((clock_ns - self._offset_ns) / (1 + self._drift))

    # -------------------------------------------------------------------------------------------------------- an
    # incarnation

    def begin(self, socket: Any) -> None:
        world = self.world
        self.socket, self.is_begun = socket, True
        if world.mix.is_far:
            self.own_arena = Arena(world.arena_bytes)
            far = [FarArena(world.arena_bytes, self, place) for place in range(world.servers)]
            arenas = (*far[: self.index], self.own_arena, *far[self.index + 1 :])
            self._opened += [*far, self.own_arena]
            port = WorkerEnd(ToWorker, socket, self.own_arena)
            self.log = SentLog(port)
        else:
            arenas, self.own_arena = world.arenas, world.arenas[self.index]
            port = WorkerEnd(ToWorker, socket)
        self._arenas = arenas

        def live() -> None:
            self.worker = Worker(
                port, replace(self.spec, outfit=self), self.log, Host(self.clock_ns, lambda: 0), self._leave,
                self.fenced.add, lambda: self._thread,
            )  # fmt: skip
            self.worker.greet()
            self._plan(self.worker.act())

        self._guarded(live)

    def fit(self, tell: Tell, clock_ns: Callable[[], int]) -> Fitting:
        mix = self.world.mix
        device = ToyDevice(mix.router.segments, mix.vram_bytes, mix.pass_ns)
        lanes = EmulatedLanes(device, self._arenas, self.index, tell, clock_ns, lambda: Mover(self))

        def measure(message: Measurement) -> FromWorker:
            assert isinstance(message, Warm)
            return Done(message.number)

        sensor = EmulatedSensor(lanes, clock_ns)
        return Fitting(lanes, lambda _: sensor, measure, explain, 0, {}, computes_here=False)

    def _leave(self, code: int) -> None:
        assert code == 0, "a step was left half done"
        raise Killed

    def woken(self) -> None:
        self._plan_world(self.world.event_queue.now_ns + self.world.lateness())

    def _plan(self, clock_ns: int) -> None:
        if clock_ns < 1 << 61:
            now_ns = self.world.event_queue.now_ns
            self._plan_world(max(now_ns, self._world_ns(clock_ns)) + self.world.lateness() // 8)

    def _plan_world(self, at_ns: int) -> None:
        if self._due_ns is None or at_ns < self._due_ns:
            self._due_ns = at_ns
            self.world.event_queue.at(at_ns, lambda: self._step(at_ns))

    def _step(self, at_ns: int) -> None:
        if at_ns != self._due_ns or self.is_dead or self.is_halted or self.worker is None:
            return
        self._due_ns = None
        worker = self.worker

        def turn() -> None:
            if not worker.listen():
                raise Killed
            self._plan(worker.act())

        self._guarded(turn)

    def run_as(self, thread: int, task: Callable[[], object]) -> None:
        """A step of one of its threads; its main one is woken by what it says."""
        self._thread = thread
        try:
            self._guarded(task)
        finally:
            self._thread = MAIN
        self.woken()

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except (Killed, PortClosedError):
            self.die()
        except PortBrokenError as error:
            self.world.laws.broken(self.index, str(error))
            self.die()

    # ------------------------------------------------------------------------------------------------- what befalls it

    def strike(self) -> None:
        """It is killed somewhere in its next steps."""
        self._dies_in = int(self.world.rng.random() * 12)

    def die(self) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        self.mourned()
        if isinstance(self.log, MemoryLog) and self.log.data and self.world.rng.random() < 0.3:
            self.log.data.extend(b"\xff\x00\x00\x00 cut")  # the frame that it was writing
        if self.socket is not None:
            self.socket.close()
        for arena in self._opened:
            arena.close()
        if self.worker is not None:
            os.close(self.worker._woken)
            os.close(self.worker._nudge)
        self.worker = None


class NearHandle(WorkerHandle):
    """A worker's process beside the router's, as `hw.router.local_workers.WorkerProcess`."""

    def __init__(self, world: World, process: Process, end: VirtualSocket) -> None:
        super().__init__(process.spec, Tapped(world.laws, process, end), shares_clock=True, host=world.host)
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.worker_id

    def log(self) -> Callable[[], bytes]:
        assert isinstance(self.process.log, MemoryLog)
        return partial(bytes, self.process.log.data)

    def send_signal(self, number: signal.Signals) -> None:
        self.process.world.signal(self.process, number)

    def kill(self) -> None:
        self.process.die()
        self.port.close()

    def close(self) -> None:
        self.kill()

    def _how_it_died(self) -> str:
        return "in a virtual world"


class FarHandle(WorkerHandle):
    """A worker on another host, as `hw.router.ray_workers.RayWorker`: it joins, and what is asked of its host takes its
    time."""

    def __init__(self, world: World, process: Process) -> None:
        self.joining = Tapped(world.laws, process, heard=self._hear_log)
        super().__init__(process.spec, self.joining, shares_clock=False, host=world.host)
        self.process = process
        self.worker_id, self.address = process.worker_id, f"host{process.index}:{process.worker_id}"
        self._log = bytearray()
        self._is_closed = False
        self._pings = count()
        process.mourned = partial(world.ask_host, process, partial(self.joining.end, "its process has ended"))

    def ping_for_order(self) -> None:
        """The router says something, be the worker there or not; the laws ask in which order the answers come."""
        if not self._is_closed:
            self.port.post(Ping(FIRST_PING - next(self._pings)))

    def join(self, end: Any) -> None:
        if not self.joining.join(end):
            end.close()

    def _hear_log(self, steps: bytes) -> None:
        if steps:
            self._log += steps
        else:
            self._log.clear()

    @property
    def pid(self) -> int:
        return self.process.worker_id

    def log(self) -> Callable[[], bytes]:
        return partial(bytes, self._log)

    def send_signal(self, number: signal.Signals) -> None:
        self.process.world.ask_host(self.process, lambda: self.process.world.signal(self.process, number))

    def kill(self) -> None:
        """See `WorkerHandle`: its host is told, and it may live on for a while."""
        self._is_closed = True
        self.process.world.ask_host(self.process, self._end)
        self.port.close()

    def _end(self) -> None:
        self.process.die()
        self.joining.end("it was killed")

    def close(self) -> None:
        self._is_closed = True
        self.process.die()
        self.port.close()

    def _how_it_died(self) -> str:
        return "in a virtual world"


class Tapped(RouterEnd):
    """A router's end whose words are heard by the laws, too."""

    def __init__(self, laws: Laws, process: Process, end: Any = None, heard: Any = None) -> None:
        super().__init__(FromWorker, end, heard=heard)
        self._laws, self._process = laws, process

    def post(self, message: Any) -> None:
        self._laws.posted(self._process.index, self._process.worker_id, message)
        super().post(message)

    def receive(self) -> Sequence[Any]:
        try:
            found: Sequence[Any] = super().receive()
        except PortBrokenError as error:
            self._laws.broken(self._process.index, str(error))
            raise
        for message in found:
            self._laws.heard(self._process.index, self._process.worker_id, message)
        return found


@dataclass
class World:
    """All of it; `hw.router.worker_handles.Carrier` for the cluster that is under test."""

    mix: Mix
    event_queue: EventQueue
    laws: Laws

    def __post_init__(self) -> None:
        mix = self.mix
        self.rng = stream(mix.seed, "swarm:world")
        self.servers = mix.router.servers
        self.arenas: tuple[Arena, ...] = ()
        self.arena_bytes = 0
        self.landings: dict[str, Process] = {}
        self.processes: list[Process] = []
        self._handles: list[WorkerHandle] = []
        self._lives = count(1)
        self._descriptors = count(FIRST_DESCRIPTOR)
        self._ends: dict[int, VirtualSocket] = {}
        self._links = [
            Link(self.rng, 2 * US, mix.link_ns, mix.split, mix.room_bytes, mix.is_far) for _ in range(self.servers)
        ]
        self._current: dict[int, FarHandle] = {}  # by server
        self._stops = deque[int]()
        self.faults_end_ns = 1 << 62  # from here on nothing more goes wrong
        self.laws.may_blame = self._may_blame
        self.host = Host(self._router_clock, lambda: 0, self._wait, (0,) if mix.spins else ())

    def link_of(self, server: int) -> Link:
        return self._links[server]

    # -------------------------------------------------------------------------------------------- the router's process

    def _router_clock(self) -> int:
        event_queue, mix = self.event_queue, self.mix
        event_queue.now_ns += mix.tick_ns
        if mix.pauses and self.rng.random() < mix.pauses and self.is_troubled:
            event_queue.now_ns += int(mix.pause_ns * self.rng.exponential())
        return event_queue.now_ns

    @property
    def is_troubled(self) -> bool:
        return self.event_queue.now_ns < self.faults_end_ns

    def _wait(self, descriptors: Collection[int], wait_s: float | None) -> list[int]:
        """See `hw.clock.readable`: the world goes on meanwhile."""
        event_queue = self.event_queue
        entered_ns = event_queue.now_ns
        if self._stops and self._stops[0] <= entered_ns:
            self._stops.popleft()
            entered_ns += self.mix.stop_ns
        assert wait_s is not None, "the router always has something to wait for"
        until_ns = entered_ns + (round(wait_s * NS_PER_S) or POLL_NS)
        while True:
            next_ns = event_queue.next_ns
            if next_ns is None or next_ns > entered_ns:
                ready = self._ready(descriptors)
                if ready or next_ns is None or next_ns > until_ns:
                    event_queue.now_ns = entered_ns if ready else until_ns
                    self.laws.looked(bool(ready), wait_s)
                    return ready
                entered_ns = next_ns
            event_queue.play_next()

    def _ready(self, descriptors: Collection[int]) -> list[int]:
        ready = []
        for number in descriptors:
            end = self._ends.get(number)
            if end.is_readable if end is not None else _is_nudged(number):
                ready.append(number)
        return ready

    def _may_blame(self, server: int) -> bool:
        """Whether its worker, its host or the plan may be the cause; else the router itself was away."""
        mix = self.mix
        if mix.cuts or any(isinstance(fault, Slowness | Squeeze) for fault in mix.faults):
            return True
        slowest_ns = mix.late_ns + mix.link_ns + (mix.pause_ns if mix.pauses else 0) + 100 * mix.pass_ns
        halted = any(process.is_halted for process in self.processes if process.index == server)
        return halted or mix.supervision.hang_ns < 40 * slowest_ns

    def lateness(self) -> int:
        return int(self.mix.late_ns * self.rng.exponential())

    # -------------------------------------------------------------------------------------------------- see `Carrier`

    def open_arenas(self, size_bytes: int) -> Sequence[Arena]:
        self.arena_bytes = size_bytes
        if self.mix.is_far:
            self.arenas = tuple(
                Mirror(size_bytes, lambda server=server: self._current[server].joining)  # type: ignore[misc]
                for server in range(self.servers)
            )
        else:
            self.arenas = tuple(Arena(size_bytes) for _ in range(self.servers))
        return self.arenas

    def start(self, server: int, spec: WorkerSpec) -> WorkerHandle:
        """See `Carrier`: it runs some time later, or never."""
        process = Process(self, server, spec, next(self._lives))
        self.processes.append(process)
        begin_ns = self.event_queue.now_ns + int(self.mix.start_ns * self.rng.exponential())
        is_stillborn = self.is_troubled and self.rng.random() < self.mix.stillborn
        descriptors = next(self._descriptors), next(self._descriptors)
        handle: NearHandle | FarHandle
        router_end, worker_end = connection(
            self.event_queue, self.link_of(server), descriptors, (lambda: None, process.woken)
        )
        self._ends[descriptors[0]] = router_end
        process.socket = worker_end

        def begin() -> None:
            if process.is_dead:
                return
            if is_stillborn and self.rng.random() < 0.5:
                refuse(process, worker_end)
            elif is_stillborn:
                process.die()
                return
            else:
                process.begin(worker_end)
            if isinstance(handle, FarHandle):
                join = partial(handle.join, router_end)
                self.event_queue.at(self.event_queue.now_ns + self.link_of(server).delay(), join)

        self.event_queue.at(begin_ns, begin)
        if not self.mix.is_far:
            handle = NearHandle(self, process, router_end)
            self._handles.append(handle)
            return handle
        handle = FarHandle(self, process)
        self._handles.append(handle)
        self._current[server] = handle
        self.landings[handle.address] = process
        for _ in range(3):
            at_ns = self.event_queue.now_ns + int(1.5 * self.mix.start_ns * self.rng.exponential())
            self.event_queue.at(at_ns, handle.ping_for_order)
        return handle

    def ask_host(self, process: Process, what: Callable[[], object]) -> None:
        """Something that is asked of a worker's host: it hears of it when its link is there."""
        link = self.link_of(process.index)

        def arrive() -> None:
            if link.is_cut:
                self.event_queue.at(self.event_queue.now_ns + 10 * MS, arrive)
            else:
                what()

        self.event_queue.at(self.event_queue.now_ns + link.delay() + int(20 * MS * self.rng.exponential()), arrive)

    def signal(self, process: Process, number: signal.Signals) -> None:
        if number == signal.SIGSTOP:
            process.is_halted = True
        else:
            process.die()

    def close(self) -> None:
        """End everybody; of whom the router had killed nothing is left."""
        for handle in self._handles:
            handle.close()
        for arena in self.arenas:
            arena.close()

    # -------------------------------------------------------------------------------------------------- what befalls it

    def trouble(self, lasts_ns: int) -> None:
        """Plan all that is not in the run's own plan, for so long from now on."""
        mix, from_ns = self.mix, self.event_queue.now_ns
        until_ns = from_ns + lasts_ns
        self._stops = deque(sorted(from_ns + at_ns for at_ns in mix.stops))
        for mean_ns, strike in (
            (mix.kills, Process.strike),
            (mix.halts, self._halt),
            (mix.severs, self._sever),
            (mix.cuts, self._cut),
        ):
            at_ns = from_ns
            while mean_ns and (at_ns := at_ns + int(mean_ns * self.rng.exponential())) < until_ns:
                self.event_queue.at(at_ns, partial(self._strike, strike))
        self.event_queue.at(until_ns, self._heal)
        self.faults_end_ns = until_ns

    def _strike(self, strike: Callable[[Process], object]) -> None:
        alive = [process for process in self.processes if process.is_begun and not process.is_dead]
        if alive and self.is_troubled:
            strike(alive[int(self.rng.random() * len(alive))])

    def _halt(self, process: Process) -> None:
        process.is_halted, process.moves_on = True, self.rng.random() < 0.5
        self.laws.drained_in_ns = DRAINED_IN_NS + START_LIMIT_NS  # it may be starting

    def _sever(self, process: Process) -> None:
        """A connection is lost with what was under way in both directions."""
        assert process.socket is not None
        process.socket.back.lose()
        process.socket._out.lose()

    def _cut(self, process: Process) -> None:
        """Its host hears from nobody, and nobody from it."""
        link = self.link_of(process.index)
        if not link.is_cut:
            link.is_cut, link.is_alone = True, self.rng.random() < 0.5
            end_ns = self.event_queue.now_ns + int(self.mix.cut_ns * self.rng.exponential())
            self.event_queue.at(end_ns, lambda: self._mend(link))

    def _mend(self, link: Link) -> None:
        link.is_cut = link.is_alone = False
        for end in self._ends.values():
            for wire in (end._out, end.back):
                if wire.link is link:
                    wire.heal()

    def _heal(self) -> None:
        for link in self._links:
            self._mend(link)


def refuse(process: Process, end: Any) -> None:
    """What a worker says that cannot open its device, and leaves."""
    port = WorkerEnd(ToWorker, end)
    port.post(Refused("internal_error", "RuntimeError: drawn"))
    port.flush()
    process.die()


def _is_nudged(descriptor: int) -> bool:
    return bool(readable((descriptor,), 0))
