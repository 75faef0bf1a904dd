"""The real cluster on this machine: one loop that drives the router's core and every server's scheduler with torch.

The loop is single-threaded, as the cores are: it waits for the workers' answers, the next arrival, the next timer and
the next telemetry tick, turns each into an event at the real time, and carries out the commands. It decides nothing.
Arrivals are open-loop: they come when they are due, however busy the cluster is.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import selectors
import time  # noqa: TID251 - the driver's own CPU time is a figure
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hw.arena import ALIGNMENT, Arena, Inbox
from hw.faults import FaultPlan
from hw.late_ledger import LateLedger
from hw.link import LinkModel
from hw.messages import FromWorker, MoveBroken, Moved, Release
from hw.networks import ModelFile
from hw.server import HardwareServer, RealServer, RunClock
from hw.telemetry import (
    AbsentSensor,
    CoreWatch,
    ForeignWatch,
    GpuWatch,
    NvmlSensor,
    Pids,
    Reading,
    Sensor,
    Used,
    cpu_sensor,
    ended_children,
    load_nvml,
    nvml_handle,
    process_cpu_s,
    usable_cores,
)
from hw.transfers import ELEMENT_BYTES, Transfers
from hw.watch import Watch
from hw.worker import WorkerDiedError, WorkerSlot, WorkerSpec
from policies.errors import InputError, WorkError
from policies.faults import WORKER_DIED, Fault, Poison, Supervision
from policies.interfaces import GROUPS, RouterConfig, RoutingPolicy
from policies.ledger import Ledger
from policies.records import DeviceTotals, RunRecord
from policies.reward import AccuracyPrior, RewardWeights
from policies.router import RouterCore
from policies.vocabulary import (
    NS_PER_S,
    Block,
    BlockArrived,
    Decide,
    Decided,
    ReleaseActivations,
    RequestArrived,
    RouterCommand,
    RouterEvent,
    RouterTimer,
    SendBlock,
)

PRELOAD_TIMEOUT_S = 120.0
_PROGRESS_NS = NS_PER_S // 5
_FLUSH_NS = 500_000
SPIN_S = 5e-3
AWAY_PERIODS = 3  # a look that comes later than this tells of the looker
ROOMS = 8  # blocks whose inputs a server's arena takes: two outstanding ones, and some that were given back


@dataclass(frozen=True)
class HardwareRun:
    """What happens to the cluster.

    Attributes:
        arrivals_ns: (n,) ascending; request i arrives at arrivals_ns[i].
        images: (m, C, H, W) float32, and labels (m,); request i is image i modulo m.
        horizon_ns: arrivals end here; so does the run under `end: cut`.
        end: `drain` goes on until nothing is in flight, `drain_limit_ns` at most.
        deadline_ns: after its arrival, for every request; None for no deadlines.
        keep_log: keep every event and command for replay.
        faults: what is done to the workers, and when.
        links: an emulated network between the servers; None for what this machine has. Of this run alone.
    """

    arrivals_ns: NDArray[np.int64]
    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    horizon_ns: int
    end: Literal["drain", "cut"] = "drain"
    deadline_ns: int | None = None
    drain_limit_ns: int = 60 * NS_PER_S
    keep_log: bool = False
    faults: tuple[Fault, ...] = ()
    links: LinkModel | None = None

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.images) or not len(self.images):
            raise ValueError(f"{len(self.images)} images with {len(self.labels)} labels")
        if np.any(np.diff(self.arrivals_ns) < 0):
            raise ValueError("arrivals must ascend")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    now_ns: int
    horizon_ns: int
    arrived: int
    completed: int
    in_flight: int


class HardwareCluster:
    """Real servers on this machine; a context manager that starts the workers once, for any number of runs.

    Args:
        file: the model that all serve.
        servers: several may share a device.
        sensor_period_s: how often each device's sensor is read.
        warm_batches: batch sizes that every worker runs once for every work key before it serves.
        supervision: how workers are watched and brought back.
        largest_block: requests a block may have; rooms for `ROOMS` of the largest activations are kept at each server.

    Attributes:
        slots, arenas: of each server, while the workers are up; `devices`: the physical ones.
        transfer_ids: over all runs: late answers of an earlier one are known as such.

    Raises:
        InputError: the model cannot be read, or a server's knobs do not fit it.
        WorkError: a worker could not start.
    """

    def __init__(
        self,
        file: ModelFile,
        servers: Sequence[HardwareServer],
        sensor_period_s: float = 0.1,
        warm_batches: Sequence[int] = (),
        *,
        supervision: Supervision | None = None,
        largest_block: int = GROUPS[-1],
    ) -> None:
        model, _ = file.load()
        self.model = model
        self.spec = model.spec
        self.file = file
        self.servers = tuple(servers)
        self.sensor_period_ns = round(sensor_period_s * NS_PER_S)
        self.supervision = supervision or Supervision()
        self.largest_block = largest_block
        self._warm_batches = tuple(warm_batches)
        self._stack = contextlib.ExitStack()
        self.transfer_ids = itertools.count()
        self.arenas: list[Arena] = []
        self.slots: list[WorkerSlot] = []
        self.devices: list[_Device] = []
        for server in self.servers:
            if server.knobs.widths != self.spec.widths:
                found, known = list(server.knobs.widths), list(self.spec.widths)
                raise InputError(str(file.path), "widths", f"server {server.name} has {found}, the model {known}")

    def __enter__(self) -> HardwareCluster:
        with contextlib.ExitStack() as stack:
            size_bytes = ROOMS * self.largest_block * self._largest_input_bytes()
            self.arenas = [stack.enter_context(contextlib.closing(Arena(size_bytes))) for _ in self.servers]
            for index, server in enumerate(self.servers):
                spec = WorkerSpec(server.name, server.device, self.file)
                slot = WorkerSlot(spec, self.arenas, index, self._warm_batches)
                stack.callback(slot.close)
                self.slots.append(slot)
            for slot in self.slots:
                slot.make_ready()
            self.devices = devices_of(self.servers, self.slots)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.arenas, self.slots, self.devices = [], [], []

    def _largest_input_bytes(self) -> int:
        shapes = [self.spec.input_shape]
        shapes += [self.model.activation_shape(segment, 1.0) for segment in range(1, self.spec.segments)]
        return max(ALIGNMENT, ELEMENT_BYTES * max(prod(shape) for shape in shapes))

    def telemetry(self) -> dict[str, dict[str, str]]:
        """For each device by name: where each of its sensor's fields comes from."""
        return {device.name: device.describe() for device in self.devices}

    def run(
        self,
        run: HardwareRun,
        router_config: RouterConfig,
        weights: RewardWeights,
        prior: AccuracyPrior,
        policy: RoutingPolicy,
        rng: np.random.Generator,
        on_progress: Callable[[Progress], None] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> RunRecord:
        """One run, in real time; workers are emptied before it.

        Args:
            say: takes a line for people whenever a server goes down or is back.

        Raises:
            WorkError: a worker could not be made ready before the run, or a preload did not come to an end.
        """
        assert self.slots, "enter the cluster first"
        self._require_fit(run, router_config)
        for slot in self.slots:
            slot.make_ready()
        ledger = Ledger(len(self.servers), self.spec.segments, weights, prior, keep_log=run.keep_log)
        return _Run(self, run, router_config, ledger, policy, rng, on_progress, say).carry_out()

    def _require_fit(self, run: HardwareRun, router: RouterConfig) -> None:
        image = self.spec.input_shape
        if run.images.shape[1:] != image:
            raise InputError("images", "", f"have the shape {run.images.shape[1:]}, the model takes {image}")
        if (router.servers, router.segments, router.widths) != (
            len(self.servers),
            self.spec.segments,
            self.spec.widths,
        ):
            raise InputError("router", "", "its servers, segments or widths are not those of the cluster and its model")
        if router.groups[-1] > self.largest_block:
            problem = f"{router.groups[-1]} is more than the {self.largest_block} that the cluster has room for"
            raise InputError("router", "groups", f"{problem}; start it with `largest_block` of that size")


# -------------------------------------------------------------------------------------------------------------- devices


@dataclass
class _Device:
    """A device, its sensor, and the integrals of what it said."""

    name: str
    sensor: Sensor
    servers: tuple[int, ...]
    bare_idle_w: float
    context_idle_w: float
    trusts_counter: bool = True
    busy_s: float = 0.0
    energy_j: float = 0.0
    _counter_j: float | None = None
    _at_ns: int = 0
    _vram: dict[int, Callable[[], int]] = field(default_factory=dict)

    def start(self) -> None:
        """Forget what was before the run."""
        self.sensor.sample()
        self._counter_j = self._counted_j()
        self.busy_s = self.energy_j = 0.0
        self._at_ns = 0

    def read(self, now_ns: int) -> Reading:
        """Sample, and go on with the integrals; the energy counter is preferred where it is trusted."""
        reading = self.sensor.sample()
        elapsed_s, self._at_ns = (now_ns - self._at_ns) / NS_PER_S, now_ns
        self.busy_s += (reading.utilization or 0.0) * elapsed_s
        before_j, self._counter_j = self._counter_j, self._counted_j()
        if self._counter_j is not None and before_j is not None:
            self.energy_j += self._counter_j - before_j
        else:
            self.energy_j += (reading.power_w or 0.0) * elapsed_s
        return reading

    def _counted_j(self) -> float | None:
        return self.sensor.energy_j() if self.trusts_counter else None

    def describe(self) -> dict[str, str]:
        """Where each field comes from, in words."""
        reported = self.sensor.describe()
        if not self.trusts_counter:
            reported["energy"] += ", not trusted: power is integrated"
        return reported

    def watch(self, servers: Sequence[RealServer]) -> None:
        """Count the device memory of these servers."""
        self._vram = {index: lambda s=servers[index]: s.vram_used_bytes for index in self.servers}  # type: ignore[misc]

    def vram_used_bytes(self) -> int:
        """Of all servers on the device."""
        return sum(used() for used in self._vram.values())


def devices_of(servers: Sequence[HardwareServer], slots: Sequence[WorkerSlot]) -> list[_Device]:
    """One for each physical device, in order of its first server."""
    members: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for index, server in enumerate(servers):
        members.setdefault(server.device.physical, []).append(index)
    nvml = load_nvml() if any(kind == "cuda" for kind, _ in members) else None
    found = []
    for indexes in members.values():
        first = servers[indexes[0]]
        name = "+".join(servers[index].name for index in indexes)
        trusts_counter = all(servers[index].trusts_counter for index in indexes)
        device = _Device(name, AbsentSensor(), tuple(indexes), first.bare_idle_w, first.context_idle_w, trusts_counter)
        own = tuple(slots[index] for index in indexes)
        device.sensor = _sensor(first, partial(_pids, own), nvml, device.vram_used_bytes)
        found.append(device)
    return found


def _pids(slots: Sequence[WorkerSlot]) -> list[int]:
    """Of the workers that sit there now."""
    return [slot.worker.pid for slot in slots]


def _sensor(server: HardwareServer, pids: Pids, nvml: object | None, vram: Callable[[], int]) -> Sensor:
    spec = server.device
    if spec.kind == "cpu":
        return cpu_sensor(pids, spec.physical[1], spec.modelled_idle_w, spec.modelled_tdp_w, vram)
    return AbsentSensor() if nvml is None else NvmlSensor(nvml, nvml_handle(nvml, spec.index))


def foreign_watch(servers: Sequence[HardwareServer], slots: Sequence[WorkerSlot]) -> ForeignWatch:
    """What others take of these servers' devices; workers and this process, which drives them, are no others."""
    driver_cores = frozenset(own_cores(servers)) or None

    def own() -> dict[int | str, Used]:
        found: dict[int | str, Used] = {"ended": ended_children()}
        found[os.getpid()] = Used(process_cpu_s(os.getpid()), driver_cores)
        for server, pid in zip(servers, _pids(slots), strict=True):
            found[pid] = Used(process_cpu_s(pid), frozenset(server.device.cores) or None)
        return found

    physical = dict.fromkeys(server.device.physical for server in servers)
    cores = [cores for kind, cores in physical if kind == "cpu"]
    nvml = load_nvml() if len(cores) < len(physical) else None
    handles = [nvml_handle(nvml, index) for kind, (index, *_) in physical if kind == "cuda" and nvml is not None]
    gpus = [GpuWatch(nvml, handle, partial(_pids, slots)) for handle in handles]
    return ForeignWatch(CoreWatch(cores, own) if cores else None, gpus)


# ------------------------------------------------------------------------------------------------------------ one run


def own_cores(servers: Sequence[HardwareServer]) -> tuple[int, ...]:
    """The cores that no worker is pinned to: the driver's; none where some worker may run anywhere."""
    taken = {core for server in servers for core in server.device.cores}
    if any(not server.device.cores for server in servers):
        return ()
    return tuple(core for core in usable_cores() if core not in taken)


@contextlib.contextmanager
def _on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Keep this thread there meanwhile (where there are any, and the system can); a worker pins itself elsewhere."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """No cyclic garbage collection meanwhile: over a heap with torch in it one stops the router for up to 0.25 s."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Run:
    """The loop, and what it must remember."""

    def __init__(
        self,
        cluster: HardwareCluster,
        run: HardwareRun,
        router_config: RouterConfig,
        ledger: Ledger,
        policy: RoutingPolicy,
        rng: np.random.Generator,
        on_progress: Callable[[Progress], None] | None,
        say: Callable[[str], None],
    ) -> None:
        self._spec = run
        self._router = RouterCore(router_config)
        self._ledger = LateLedger(ledger)
        self._policy = policy
        self._rng = rng
        self._on_progress = on_progress
        self._devices = cluster.devices
        self._period_ns = cluster.sensor_period_ns
        self._clock = RunClock()
        self._events: deque[RouterEvent] = deque()
        self._selector: selectors.BaseSelector
        self._arrived = 0
        self._own_cores = own_cores(cluster.servers)
        self._foreign = foreign_watch(cluster.servers, cluster.slots)
        self._busy_ns = self._idle_ns = 0
        self._arrival_lags_ns: list[int] = []
        self._next_tick_ns = self._period_ns
        self._next_look_ns = 0
        self._next_progress_ns = 0
        self._look_period_ns = Watch(cluster.supervision, 0).period_ns
        labels = run.labels[np.arange(len(run.arrivals_ns)) % len(run.labels)]
        self._servers = [
            RealServer(
                index, spec, slot, Inbox(arena), labels, cluster.spec.segments, cluster.supervision,
                self._clock, self._ledger, self._events.append, say,
            )
            for index, (spec, slot, arena) in enumerate(
                zip(cluster.servers, cluster.slots, cluster.arenas, strict=True)
            )
        ]  # fmt: skip
        self._transfers = Transfers(
            self._servers, self._images(run), cluster.model.activation_shape, run.links, self._clock.now_ns,
            self._events.append, self._hand_over, cluster.supervision.stuck_ns, cluster.transfer_ids,
        )  # fmt: skip
        self._faults = FaultPlan(run.faults, self._servers, self._take_down)

    @staticmethod
    def _images(run: HardwareRun) -> Callable[[tuple[int, ...]], NDArray[np.float32]]:
        """The requests' images; those of poisoned ones hold no number."""
        poisoned = frozenset[int]().union(*(fault.requests for fault in run.faults if isinstance(fault, Poison)))

        def image_of(requests: tuple[int, ...]) -> NDArray[np.float32]:
            images: NDArray[np.float32] = run.images[np.asarray(requests) % len(run.images)]
            for position, request in enumerate(requests):
                if request in poisoned:
                    images[position] = np.nan
            return images

        return image_of

    def carry_out(self) -> RunRecord:
        """From the preloads to the record."""
        # select's time-outs are finer than poll's and epoll's millisecond
        with _no_collections(), _on_cores(self._own_cores), selectors.SelectSelector() as self._selector:
            for server in self._servers:
                self._selector.register(server.slot.worker.connection, selectors.EVENT_READ, server)
            self._preload()
            for device in self._devices:
                device.watch(self._servers)
                device.start()
            self._foreign.start()
            self._clock.start()
            busy_ns = time.thread_time_ns()
            while not self._is_over():
                self._turn()
            self._busy_ns = time.thread_time_ns() - busy_ns - self._idle_ns
            self._ledger.catch_up()
            foreign = self._foreign.take()
        ended_ns = self._clock.now_ns()
        for server in self._servers:
            server.tell_absence()
        for device in self._devices:
            device.read(ended_ns)
        return replace(self._record(ended_ns), foreign_load=foreign)

    # -------------------------------------------------------------------------------------------------------- the loop

    def _preload(self) -> None:
        """Bring the servers up and wait for their preloads; the run's clock stands at 0 meanwhile."""
        for server in self._servers:
            server.come_up()
        self._settle()
        self._flush()
        while any(server.is_loading for server in self._servers):
            if not self._listen(PRELOAD_TIMEOUT_S):
                raise WorkError(f"a preload took more than {PRELOAD_TIMEOUT_S:g} s")

    def _turn(self) -> None:
        """Everything that is due now, then a wait for whatever comes first."""
        now_ns = self._clock.now_ns()
        self._arrive(now_ns)
        self._faults.ring(now_ns)
        self._transfers.ring(now_ns)
        for server in self._servers:
            if server.is_up:
                server.ring()
            else:
                self._revive(server)
        if now_ns >= self._next_tick_ns:
            self._tick(now_ns)
        if now_ns >= self._next_look_ns:
            self._look_after(now_ns)
        if self._router.next_wake_ns is not None and self._router.next_wake_ns <= now_ns:
            self._events.append(RouterTimer())
        self._settle()
        self._flush()
        self._ledger.catch_up()
        if not self._is_over():
            self._listen(self._wait_s())

    def _wait_s(self) -> float:
        """Until the next thing that comes by itself."""
        times = [self._next_tick_ns, self._next_look_ns, self._limit_ns()]
        if self._arrived < len(self._spec.arrivals_ns):
            times.append(int(self._spec.arrivals_ns[self._arrived]))
        wakes_ns = [self._router.next_wake_ns, self._transfers.next_ns, self._faults.next_ns]
        wakes_ns += [server.next_ns for server in self._servers]
        times += [wake_ns for wake_ns in wakes_ns if wake_ns is not None]
        if not self._flush():
            times.append(self._clock.now_ns() + _FLUSH_NS)
        return max(0.0, (min(times) - self._clock.now_ns()) / NS_PER_S)

    def _limit_ns(self) -> int:
        """The time at which the run ends, if nothing ends it before; the horizon first, then the drain's limit."""
        if self._spec.end == "cut" or self._clock.now_ns() < self._spec.horizon_ns:
            return self._spec.horizon_ns
        return self._spec.horizon_ns + self._spec.drain_limit_ns

    def _is_over(self) -> bool:
        now_ns = self._clock.now_ns()
        if now_ns < self._spec.horizon_ns:
            return False  # arrivals go on, whoever is there to serve them
        if not any(server.is_up or server.will_return for server in self._servers):
            return True
        drained = self._arrived == len(self._spec.arrivals_ns) and not self._router.in_flight
        return self._spec.end == "cut" or drained or now_ns >= self._limit_ns()

    def _listen(self, wait_s: float) -> bool:
        """Wait for answers and take one of each worker that has some; False when none came in time."""
        ready = self._await(wait_s)
        for key, _ in ready:
            server: RealServer = key.data
            if server.died or not server.has_worker:
                continue
            try:
                self._hear(server, server.slot.worker.receive())
            except WorkerDiedError:
                server.died = True
            self._settle()
            self._flush()
        return bool(ready)

    def _await(self, wait_s: float) -> list[tuple[selectors.SelectorKey, int]]:
        """The workers that have something to say.

        A core that sleeps takes longer to wake up than a message to travel. So where the driver has one to itself, it
        looks on for a while when a batch is under way; that time is no work.
        """
        if not self._own_cores or not any(server.is_working for server in self._servers):
            return self._selector.select(wait_s)
        began_ns, until_ns = time.thread_time_ns(), self._clock.now_ns() + round(min(wait_s, SPIN_S) * NS_PER_S)
        while not (ready := self._selector.select(0)) and self._clock.now_ns() < until_ns:
            pass
        self._idle_ns += time.thread_time_ns() - began_ns
        return ready or self._selector.select(max(0.0, wait_s - SPIN_S))

    def _flush(self) -> bool:
        """Send what the workers were asked; returns whether all of it could be sent."""
        return all([server.flush() for server in self._servers])  # noqa: C419 - each of them

    def _hear(self, server: RealServer, message: FromWorker) -> None:
        server.hear(message)
        if isinstance(message, Moved):
            self._transfers.moved(message)
        elif isinstance(message, MoveBroken):
            self._transfers.broken(message.transfer, message.reason)
        else:
            self._transfers.freed(server.index)

    def _settle(self) -> None:
        """Until no event waits for the router and no death is unnoticed."""
        while True:
            for server in self._servers:
                if server.died:
                    self._take_down(server, WORKER_DIED, 0)
            if not self._events:
                return
            self._tell_router(self._events.popleft(), self._clock.now_ns())

    # ---------------------------------------------------------------------------------------------- up and down

    def _look_after(self, now_ns: int) -> None:
        """Ping, and notice who hangs; not when this process was away itself."""
        was_away = now_ns - self._next_look_ns > AWAY_PERIODS * self._look_period_ns
        self._next_look_ns = now_ns + self._look_period_ns
        for server in self._servers:
            if was_away:
                server.excuse()
            reason = server.look_after()
            if reason is not None:
                self._take_down(server, reason, 0)

    def _revive(self, server: RealServer) -> None:
        """Bring a server back when its time has come."""
        server.end_outage_if_due()
        if server.restart_if_due():
            self._selector.register(server.slot.worker.connection, selectors.EVENT_READ, server)

    def _take_down(self, server: RealServer, reason: str, until_ns: int | None) -> None:
        """A server dies, or is found dead: its worker is ended, and what was on its way to or from it is lost."""
        self._selector.unregister(server.slot.worker.connection)
        server.go_down(reason, until_ns)
        self._transfers.bury(server.index)

    # ------------------------------------------------------------------------------------------------------ the router

    def _arrive(self, now_ns: int) -> None:
        """Requests that were due until now, each at its own time."""
        arrivals_ns, relative_ns = self._spec.arrivals_ns, self._spec.deadline_ns
        while self._arrived < len(arrivals_ns) and arrivals_ns[self._arrived] <= now_ns:
            planned_ns = int(arrivals_ns[self._arrived])
            deadline_ns = None if relative_ns is None else planned_ns + relative_ns
            event = RequestArrived(self._arrived, deadline_ns)
            self._arrived += 1
            self._arrival_lags_ns.append(self._clock.now_ns() - planned_ns)
            self._tell_router(event, self._clock.due_ns(planned_ns))

    def _tell_router(self, event: RouterEvent, now_ns: int) -> None:
        commands = self._router.handle(event, now_ns)
        self._ledger.observe_router(event, commands, now_ns)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: RouterCommand) -> None:
        match command:
            case Decide(decision, view):
                self._events.append(Decided(decision, self._policy.choose(view, self._rng)))
            case SendBlock():
                self._transfers.send(command)
            case ReleaseActivations(server, requests) if self._servers[server].is_up:
                self._servers[server].send(Release(requests), urgent=False)
                self._servers[server].inbox.forget(requests)
                self._transfers.freed(server)
            case _:  # the ledger has seen what ended
                pass

    def _hand_over(self, block: Block) -> None:
        server = self._servers[block.server]
        if server.is_up:
            server.deliver(BlockArrived(block))

    # ------------------------------------------------------------------------------------------- telemetry and record

    def _tick(self, now_ns: int) -> None:
        """Read every sensor; ticks that were missed are not made up for."""
        for device in self._devices:
            self._report(device, now_ns)
        self._foreign.look(now_ns)
        self._next_tick_ns += self._period_ns * (1 + (now_ns - self._next_tick_ns) // self._period_ns)
        if self._on_progress is not None and now_ns >= self._next_progress_ns:
            self._next_progress_ns = now_ns + _PROGRESS_NS
            done, left = self._router.completed, self._router.in_flight
            self._on_progress(Progress(now_ns, self._spec.horizon_ns, self._arrived, done, left))

    def _report(self, device: _Device, now_ns: int) -> None:
        reading = device.read(now_ns)
        for index in device.servers:
            if self._servers[index].is_up:
                self._servers[index].report(reading)

    def _record(self, ended_ns: int) -> RunRecord:
        ledger = self._ledger.ledger
        ledger.close(ended_ns)
        owners = {index: number for number, device in enumerate(self._devices) for index in device.servers}
        return RunRecord(
            ended_ns=ended_ns,
            requests=tuple(ledger.requests),
            blocks=tuple(ledger.blocks),
            batches=tuple(ledger.batches),
            telemetry=tuple(ledger.telemetry),
            servers=tuple(s.totals(owners[s.index], self._devices[owners[s.index]].busy_s) for s in self._servers),
            devices=tuple(DeviceTotals(d.name, d.energy_j, d.bare_idle_w, d.context_idle_w) for d in self._devices),
            gpu_var=tuple(ledger.gpu_var),
            decisions=ledger.decisions,
            log=tuple(ledger.log),
            arrival_lags_ns=tuple(self._arrival_lags_ns),
            driver_busy_ns=self._busy_ns,
            downtimes=tuple(sorted((d for s in self._servers for d in s.downtimes), key=lambda down: down.down_ns)),
            references=tuple((s.index, *reading) for s in self._servers for reading in s.references),
        )
