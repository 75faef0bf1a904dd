"""The real cluster on this machine: one loop that drives the router's core and every server's scheduler with torch.

The loop is single-threaded, as the cores are: it waits for the workers' answers, the next arrival, the next timer and
the next telemetry tick, turns each into an event at the real time, and carries out the commands. It decides nothing.
Arrivals are open-loop: they come when they are due, however busy the cluster is.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import selectors
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hw.messages import Arrived, FromWorker, Move, MoveBroken, Release, Store
from hw.networks import ModelFile
from hw.server import HardwareServer, RealServer, RunClock
from hw.telemetry import AbsentSensor, NvmlSensor, Reading, Sensor, cpu_sensor, load_nvml, nvml_handle
from hw.worker import Worker, WorkerDiedError, WorkerSpec, start_workers
from policies.errors import InputError, WorkError
from policies.ledger import Ledger
from policies.records import DeviceTotals, RunRecord
from policies.reward import AccuracyPrior, RewardWeights
from policies.router import RouterCore
from policies.routing import RouterConfig, RoutingPolicy
from policies.vocabulary import (
    NS_PER_S,
    ROUTER,
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
    TransferFailed,
    TransferFinished,
    TransferStarted,
)

PRELOAD_TIMEOUT_S = 120.0
_PROGRESS_NS = NS_PER_S // 5


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
    """

    arrivals_ns: NDArray[np.int64]
    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    horizon_ns: int
    end: Literal["drain", "cut"] = "drain"
    deadline_ns: int | None = None
    drain_limit_ns: int = 60 * NS_PER_S
    keep_log: bool = False

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
        warm_batches: batch sizes that every worker runs once for every work key before the first run.

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
    ) -> None:
        model, _ = file.load()
        self.spec = model.spec
        self.file = file
        self.servers = tuple(servers)
        self.sensor_period_ns = round(sensor_period_s * NS_PER_S)
        self._warm_batches = tuple(warm_batches)
        self._stack = contextlib.ExitStack()
        self._transfer_ids = itertools.count()  # over all runs: late answers of an earlier one are known as such
        self._workers: list[Worker] = []
        self._devices: list[_Device] = []
        for server in self.servers:
            if server.knobs.widths != self.spec.widths:
                found, known = list(server.knobs.widths), list(self.spec.widths)
                raise InputError(str(file.path), "widths", f"server {server.name} has {found}, the model {known}")

    def __enter__(self) -> HardwareCluster:
        specs = [WorkerSpec(server.name, server.device, self.file) for server in self.servers]
        with contextlib.ExitStack() as stack:
            self._workers = stack.enter_context(start_workers(specs))
            for worker in self._workers:
                if self._warm_batches:
                    worker.warm(self._warm_batches)
            self._devices = _devices(self.servers, self._workers)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._workers, self._devices = [], []

    def telemetry(self) -> dict[str, dict[str, str]]:
        """For each device by name: where each of its sensor's fields comes from."""
        return {device.name: device.sensor.describe() for device in self._devices}

    def run(
        self,
        run: HardwareRun,
        router_config: RouterConfig,
        weights: RewardWeights,
        prior: AccuracyPrior,
        policy: RoutingPolicy,
        rng: np.random.Generator,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> RunRecord:
        """One run, in real time; workers are emptied before it.

        Raises:
            WorkError: a worker was dead before the run began, or a preload did not come to an end.
        """
        assert self._workers, "enter the cluster first"
        self._require_fit(run, router_config)
        for worker in self._workers:
            worker.reset()
        ledger = Ledger(len(self.servers), self.spec.segments, weights, prior, keep_log=run.keep_log)
        return _Run(self, run, router_config, ledger, policy, rng, on_progress).carry_out()

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


# -------------------------------------------------------------------------------------------------------------- devices


@dataclass
class _Device:
    """A device, its sensor, and the integrals of what it said."""

    name: str
    sensor: Sensor
    servers: tuple[int, ...]
    bare_idle_w: float
    context_idle_w: float
    busy_s: float = 0.0
    energy_j: float = 0.0
    _counter_j: float | None = None
    _at_ns: int = 0
    _vram: dict[int, Callable[[], int]] = field(default_factory=dict)

    def start(self) -> None:
        """Forget what was before the run."""
        self.sensor.sample()
        self._counter_j = self.sensor.energy_j()
        self.busy_s = self.energy_j = 0.0
        self._at_ns = 0

    def read(self, now_ns: int) -> Reading:
        """Sample, and go on with the integrals; the energy counter is preferred where there is one."""
        reading = self.sensor.sample()
        elapsed_s, self._at_ns = (now_ns - self._at_ns) / NS_PER_S, now_ns
        self.busy_s += (reading.utilization or 0.0) * elapsed_s
        before_j, self._counter_j = self._counter_j, self.sensor.energy_j()
        if self._counter_j is not None and before_j is not None:
            self.energy_j += self._counter_j - before_j
        else:
            self.energy_j += (reading.power_w or 0.0) * elapsed_s
        return reading

    def watch(self, servers: Sequence[RealServer]) -> None:
        """Count the device memory of these servers."""
        self._vram = {index: lambda s=servers[index]: s.vram_used_bytes for index in self.servers}  # type: ignore[misc]

    def vram_used_bytes(self) -> int:
        """Of all servers on the device."""
        return sum(used() for used in self._vram.values())


def _devices(servers: Sequence[HardwareServer], workers: Sequence[Worker]) -> list[_Device]:
    """One for each physical device, in order of its first server."""
    members: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for index, server in enumerate(servers):
        members.setdefault(server.device.physical, []).append(index)
    nvml = load_nvml() if any(kind == "cuda" for kind, _ in members) else None
    found = []
    for indexes in members.values():
        first = servers[indexes[0]]
        name = "+".join(servers[index].name for index in indexes)
        device = _Device(name, AbsentSensor(), tuple(indexes), first.bare_idle_w, first.context_idle_w)
        device.sensor = _sensor(first, [workers[index].pid for index in indexes], nvml, device.vram_used_bytes)
        found.append(device)
    return found


def _sensor(server: HardwareServer, pids: Sequence[int], nvml: object | None, vram: Callable[[], int]) -> Sensor:
    spec = server.device
    if spec.kind == "cpu":
        return cpu_sensor(pids, spec.physical[1], spec.modelled_idle_w, spec.modelled_tdp_w, vram)
    return AbsentSensor() if nvml is None else NvmlSensor(nvml, nvml_handle(nvml, spec.index))


# ------------------------------------------------------------------------------------------------------------ one run


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


@dataclass(slots=True)
class _Delivery:
    """A block on its way, and the transfers of it that still move: (source, requests) by transfer."""

    block: Block
    moving: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)


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
    ) -> None:
        self._spec = run
        self._router = RouterCore(router_config)
        self._ledger = ledger
        self._policy = policy
        self._rng = rng
        self._on_progress = on_progress
        self._devices = cluster._devices
        self._transfer_ids = cluster._transfer_ids
        self._period_ns = cluster.sensor_period_ns
        self._clock = RunClock()
        self._events: deque[RouterEvent] = deque()
        self._deliveries: dict[int, _Delivery] = {}
        self._transfers: dict[int, _Delivery] = {}
        self._arrived = 0
        self._next_tick_ns = self._period_ns
        self._next_progress_ns = 0
        labels = run.labels[np.arange(len(run.arrivals_ns)) % len(run.labels)]
        segments = cluster.spec.segments
        self._servers = [
            RealServer(index, spec, worker, labels, segments, self._clock, ledger, self._events.append)
            for index, (spec, worker) in enumerate(zip(cluster.servers, cluster._workers, strict=True))
        ]

    def carry_out(self) -> RunRecord:
        """From the preloads to the record."""
        # select's time-outs are finer than poll's and epoll's millisecond
        with _no_collections(), selectors.SelectSelector() as selector:
            for server in self._servers:
                selector.register(server.worker.connection, selectors.EVENT_READ, server)
            self._preload(selector)
            for device in self._devices:
                device.watch(self._servers)
                device.start()
            self._clock.start()
            while not self._is_over():
                self._turn(selector)
        ended_ns = self._clock.now_ns()
        for device in self._devices:
            device.read(ended_ns)
        return self._record(ended_ns)

    # -------------------------------------------------------------------------------------------------------- the loop

    def _preload(self, selector: selectors.BaseSelector) -> None:
        """Bring the servers up and wait for their preloads; the run's clock stands at 0 meanwhile."""
        for server in self._servers:
            server.come_up()
        self._settle(selector)
        while any(server.is_loading for server in self._servers):
            if not self._listen(selector, PRELOAD_TIMEOUT_S):
                raise WorkError(f"a preload took more than {PRELOAD_TIMEOUT_S:g} s")

    def _turn(self, selector: selectors.BaseSelector) -> None:
        """Everything that is due now, then a wait for whatever comes first."""
        now_ns = self._clock.now_ns()
        self._arrive(now_ns)
        for server in self._servers:
            server.ring()
        if self._router.next_wake_ns is not None and self._router.next_wake_ns <= now_ns:
            self._events.append(RouterTimer())
        if now_ns >= self._next_tick_ns:
            self._tick(now_ns)
        self._settle(selector)
        if not self._is_over():
            self._listen(selector, self._wait_s())

    def _wait_s(self) -> float:
        """Until the next thing that comes by itself."""
        times = [self._next_tick_ns, self._limit_ns()]
        if self._arrived < len(self._spec.arrivals_ns):
            times.append(int(self._spec.arrivals_ns[self._arrived]))
        wakes_ns = [self._router.next_wake_ns, *(s.scheduler.next_wake_ns for s in self._servers if s.is_up)]
        times += [wake_ns for wake_ns in wakes_ns if wake_ns is not None]
        return max(0.0, (min(times) - self._clock.now_ns()) / NS_PER_S)

    def _limit_ns(self) -> int:
        """The time at which the run ends, if nothing ends it before; the horizon first, then the drain's limit."""
        if self._spec.end == "cut" or self._clock.now_ns() < self._spec.horizon_ns:
            return self._spec.horizon_ns
        return self._spec.horizon_ns + self._spec.drain_limit_ns

    def _is_over(self) -> bool:
        now_ns = self._clock.now_ns()
        if not any(server.is_up for server in self._servers):
            return True
        if now_ns < self._spec.horizon_ns:
            return False
        drained = self._arrived == len(self._spec.arrivals_ns) and not self._router.in_flight
        return self._spec.end == "cut" or drained or now_ns >= self._limit_ns()

    def _listen(self, selector: selectors.BaseSelector, wait_s: float) -> bool:
        """Wait for answers and take one of each worker that has some; False when none came in time."""
        ready = selector.select(wait_s)
        for key, _ in ready:
            server: RealServer = key.data
            if server.died:
                continue
            try:
                self._hear(server, server.worker.receive())
            except WorkerDiedError:
                server.died = True
            self._settle(selector)
        return bool(ready)

    def _hear(self, server: RealServer, message: FromWorker) -> None:
        if isinstance(message, Arrived):
            self._end_transfer(message.transfer)
        elif isinstance(message, MoveBroken):
            self._break_transfer(message.transfer, message.reason)
        else:
            server.hear(message)

    def _settle(self, selector: selectors.BaseSelector) -> None:
        """Until no event waits for the router and no death is unnoticed."""
        while True:
            for server in self._servers:
                if server.died and server.is_up:
                    selector.unregister(server.worker.connection)
                    server.go_down()
                    self._bury(server.index)
            if not self._events:
                return
            self._tell_router(self._events.popleft(), self._clock.now_ns())

    # ------------------------------------------------------------------------------------------------------ the router

    def _arrive(self, now_ns: int) -> None:
        """Requests that were due until now, each at its own time."""
        arrivals_ns, relative_ns = self._spec.arrivals_ns, self._spec.deadline_ns
        while self._arrived < len(arrivals_ns) and arrivals_ns[self._arrived] <= now_ns:
            planned_ns = int(arrivals_ns[self._arrived])
            deadline_ns = None if relative_ns is None else planned_ns + relative_ns
            event = RequestArrived(self._arrived, deadline_ns)
            self._arrived += 1
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
                self._send(command)
            case ReleaseActivations(server, requests):
                self._servers[server].send(Release(requests))
            case _:  # the ledger has seen what ended
                pass

    # --------------------------------------------------------------------------------------------------- the transfers

    def _send(self, command: SendBlock) -> None:
        """Start the block's transfers; it arrives with the last of them."""
        block = command.block
        for source, _ in command.moves:
            if source != ROUTER and not self._servers[source].is_up:  # it died while this was being decided
                self._events.append(TransferFailed(block.block, source, block.server, block.requests, "server_down"))
                return
        delivery = self._deliveries[command.block.block] = _Delivery(command.block)
        for source, requests in command.moves:
            transfer = next(self._transfer_ids)
            delivery.moving[transfer] = (source, requests)
            self._transfers[transfer] = delivery
        for transfer, (source, requests) in list(delivery.moving.items()):
            self._events.append(TransferStarted(command.block.block, source, command.block.server, requests))
            self._start_transfer(transfer, source, command.block.server, requests)
        if not command.moves:
            self._hand_over(delivery)

    def _start_transfer(self, transfer: int, source: int, destination: int, requests: tuple[int, ...]) -> None:
        if source == ROUTER:
            images = self._spec.images[np.asarray(requests) % len(self._spec.images)]
            data = np.ascontiguousarray(images, np.float32).tobytes()
            self._servers[destination].send(Store(transfer, requests, images.shape[1:], data))
        else:
            self._servers[source].send(Move(transfer, destination, requests))

    def _end_transfer(self, transfer: int) -> None:
        delivery = self._transfers.pop(transfer, None)
        if delivery is None:
            return  # it failed meanwhile, or belongs to an earlier run
        source, requests = delivery.moving.pop(transfer)
        block = delivery.block
        self._events.append(TransferFinished(block.block, source, block.server, requests))
        if source != ROUTER:
            self._servers[source].send(Release(requests, transfer))
        if not delivery.moving:
            self._hand_over(delivery)

    def _hand_over(self, delivery: _Delivery) -> None:
        del self._deliveries[delivery.block.block]
        server = self._servers[delivery.block.server]
        if server.is_up:
            server.deliver(BlockArrived(delivery.block))

    def _break_transfer(self, transfer: int, reason: str) -> None:
        """One of a block's transfers failed: the block is given back whole."""
        delivery = self._transfers.get(transfer)
        if delivery is None or not self._servers[delivery.block.server].is_up:
            return
        source, _ = delivery.moving[transfer]
        self._drop(delivery)
        if source != ROUTER:
            self._servers[source].send(Release((), transfer))
        block = delivery.block
        self._events.append(TransferFailed(block.block, source, block.server, block.requests, reason))

    def _drop(self, delivery: _Delivery) -> None:
        del self._deliveries[delivery.block.block]
        for transfer in delivery.moving:
            del self._transfers[transfer]

    def _bury(self, server: int) -> None:
        """A server died: what was on its way to it is dropped (the router takes it back), what came from it is lost."""
        for delivery in list(self._deliveries.values()):
            block = delivery.block
            if block.server == server:
                self._drop(delivery)
            elif any(source == server for source, _ in delivery.moving.values()):
                self._drop(delivery)
                self._events.append(TransferFailed(block.block, server, block.server, block.requests, "server_down"))

    # ------------------------------------------------------------------------------------------- telemetry and record

    def _tick(self, now_ns: int) -> None:
        """Read every sensor; ticks that were missed are not made up for."""
        for device in self._devices:
            self._report(device, now_ns)
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
        ledger = self._ledger
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
        )
