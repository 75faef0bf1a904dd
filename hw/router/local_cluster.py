"""The real cluster on this machine: its workers, its arenas, and one run after another.

`hw.router.router_loop` implements a run in the router's process.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hw.clock import NEVER_NS, Host, RunClock
from hw.host_resources import allow_descriptors
from hw.networks.network_files import ModelFile
from hw.router.interventions import DrainRequest, Operator, nobody
from hw.router.local_workers import OneHost
from hw.router.router_loop import Parts, RouterLoop, Routing, RunProgress, no_collections, on_cores, own_cores
from hw.router.run_meters import Watcher
from hw.router.run_requests import HardwareRun, ServedNetwork, Traffic, devices_of
from hw.router.server_port import HardwareServer
from hw.router.worker_handles import Carrier, WorkerHandle, WorkerSlot, make_all_ready
from hw.telemetry import (
    BackgroundWatch,
    CoreWatch,
    GpuWatch,
    Used,
    ended_children,
    load_nvml,
    nvml_handle,
    process_cpu_s,
)
from hw.transport.shared_memory import ALIGNMENT, Arena
from hw.worker.emulated_lanes import EmulatedDevice, EmulatedOutfit
from hw.worker.lanes import Outfit, SchedulerSpec, WorkerSpec
from hw.worker.torch_outfit import TorchOutfit
from kit.errors import InputError
from policies.faults import Supervision
from policies.interfaces import MICRO_BATCH_SIZES, RouterConfig
from policies.router_core import RouterCore
from policies.run_ledger import Ledger
from policies.run_records import RunRecord
from policies.vocabulary import NS_PER_S, GoalSet

_DESCRIPTORS = 16  # of a worker: its port, log, arena and process, with some to spare
DRAIN_LIMIT_NS = 30 * NS_PER_S  # of a server: then requests that are still inside fail, as the router has ended
ROOMS = 8  # blocks whose inputs fit in a server's arena: two outstanding ones, and some that were given back


class HardwareCluster:
    """Real servers on this machine; a context manager that starts their workers once, for any number of runs.

    Args:
        network: of all servers: its file, or (if no worker needs one) its description.
        servers: several may share a device.
        warm_batches: batch sizes that every worker runs once for every work key before it serves; useless on a GPU:
            libraries choose kernels for each thread, so each instance warms up in its thread.
        supervision: how workers are watched and restarted.
        largest_micro_batch: requests a micro-batch may have; rooms for `ROOMS` of the largest activations are kept at
            each server.
        carrier: starts the workers and transports data between them and the router; processes of this host, unless
            another one is given.
        waits: whether entering it waits until all are ready, as the first run does in any case.

    Attributes:
        slots, arenas: of each server, while the workers are up.
        transfer_ids: over all runs: late answers of an earlier run are recognized as such.

    Raises:
        InputError: the model cannot be read, or a server's parameters do not fit it.
        WorkError: a worker could not start.
    """

    def __init__(
        self,
        network: ModelFile | ServedNetwork,
        servers: Sequence[HardwareServer],
        warm_batches: Sequence[int] = (),
        *,
        supervision: Supervision | None = None,
        largest_micro_batch: int = MICRO_BATCH_SIZES[-1],
        carrier: Carrier | None = None,
        waits: bool = True,
    ) -> None:
        self.file = network if isinstance(network, ModelFile) else None
        self.served = ServedNetwork.of(network) if isinstance(network, ModelFile) else network
        self.servers = tuple(servers)
        self.supervision = supervision or Supervision()
        self.largest_micro_batch = largest_micro_batch
        self._warm_batches = tuple(warm_batches)
        self._waits = waits
        self._stack = contextlib.ExitStack()
        self.transfer_ids = itertools.count()
        self._carrier = carrier or OneHost()
        self.arenas: Sequence[Arena] = ()
        self.slots: list[WorkerSlot] = []
        for server in self.servers:
            if server.params.widths != self.served.widths:
                own_widths, model_widths = list(server.params.widths), list(self.served.widths)
                source = str(self.file.path) if self.file else "the network"
                raise InputError(source, "widths", f"server {server.name} has {own_widths}, the model {model_widths}")

    def __enter__(self) -> HardwareCluster:
        allow_descriptors(_DESCRIPTORS * (len(self.servers) + 8))
        with contextlib.ExitStack() as stack:
            size_bytes = ROOMS * self.largest_micro_batch * max(ALIGNMENT, self.served.largest_input_bytes)
            self.arenas = self._carrier.arenas(len(self.servers), size_bytes)
            stack.callback(self._carrier.close)
            for index, server in enumerate(self.servers):
                spec = self._worker(index, self.file)
                warm = () if server.device.physical[0] == "cuda" else self._warm_batches
                slot = WorkerSlot(partial(self._carrier.start, index, spec), warm)
                stack.callback(slot.close)
                self.slots.append(slot)
            if self._waits:
                self.make_ready(keep_log=False)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.arenas, self.slots = (), []

    def _service(self, index: int) -> SchedulerSpec:
        """Return the limits by which a worker is stuck; they are scaled for a device that is slowed down on purpose."""
        server, rules = self.servers[index], self.supervision
        if isinstance(server.device, EmulatedDevice):
            rules = replace(rules, stuck_ns=round(rules.stuck_ns * server.device.slowdown))
        return SchedulerSpec(server.params, self.served.segments, rules, self._has_core(index))

    def _has_core(self, index: int) -> bool:
        """Return whether no other process of this cluster uses this worker's cores."""
        cores = self.servers[index].device.cores
        process = self._process_name(index)
        neighbours = [
            server
            for other, server in enumerate(self.servers)
            if other != index
            and server.machine == self.servers[index].machine
            and (not process or self._process_name(other) != process)
        ]
        shared = {core for server in neighbours for core in server.device.cores}.intersection(cores)
        return bool(cores) and not shared and bool(own_cores(self.servers))

    def starts_of(self, file: ModelFile) -> tuple[Callable[[], WorkerHandle], ...]:
        """Return functions that start each server's worker with other weights of the same network."""
        return tuple(
            partial(self._carrier.start, index, self._worker(index, file)) for index in range(len(self.servers))
        )

    def _worker(self, index: int, file: ModelFile | None) -> WorkerSpec:
        process = self._process_name(index)
        workers = sum(self._process_name(other) == process for other in range(len(self.servers))) if process else 1
        return WorkerSpec(self.servers[index].name, self._outfit(index, file), self._service(index), process, workers)

    def _process_name(self, index: int) -> str:
        """Return the process's name: servers of one GPU share one (see `WorkerSpec`), unless MPS gives them a share."""
        device = self.servers[index].device
        if isinstance(device, EmulatedDevice) or device.kind != "cuda" or device.sm_percent is not None:
            return ""
        return f"cuda:{device.index}"

    def _outfit(self, index: int, file: ModelFile | None) -> Outfit:
        device = self.servers[index].device
        if isinstance(device, EmulatedDevice):
            return EmulatedOutfit(device, self._carrier.arenas_of(index), index)
        if file is None:
            raise InputError("model", "", f"server {self.servers[index].name} serves a network, so its file is needed")
        return TorchOutfit(device, file, self._carrier.arenas_of(index), index)

    def make_ready(
        self, *, keep_log: bool, measures_costs: bool = False, drained: frozenset[int] = frozenset()
    ) -> frozenset[int]:
        """Wait until every server has a worker that can serve, empty; raises `WorkError` if one has none.

        Args:
            drained: servers that may have none, because it has been taken away.

        Returns:
            Those of them that have none.
        """
        return make_all_ready(self.slots, keep_log=keep_log, measures_costs=measures_costs, drained=drained)

    def telemetry(self) -> dict[str, dict[str, str]]:
        """Return the source of each sensor field, for each device by name."""
        return {
            device.name: dict(self.slots[device.servers[0]].worker.wait_until_ready().sensor)
            for device in devices_of(self.servers)
        }

    def run(
        self,
        run: HardwareRun,
        router: RouterConfig,
        routing: Routing,
        on_progress: Callable[[RunProgress], None] | None = None,
        say: Callable[[str], None] = lambda _: None,
        drained: DrainRequest = nobody,
    ) -> RunRecord:
        """Execute one run, in real time; workers are emptied before it.

        Args:
            say: takes a line for people whenever a server goes down or is back.
            drained: returns the servers that the operator wants drained; called now and then during the run.

        Raises:
            WorkError: a worker could not be made ready before the run, or a preload did not come to an end.
        """
        assert self.slots, "enter the cluster first"
        self._require_fit(run, router)
        away = self.make_ready(keep_log=run.keep_log, measures_costs=run.measures_costs, drained=drained())
        ledger = Ledger(len(self.servers), self.served.segments, routing.weights, routing.prior, keep_log=run.keep_log)
        background = background_watch(self.servers, self.slots)
        parts = self._parts(Operator(drained), away, Host(cores=own_cores(self.servers)), background, say)
        with no_collections(), on_cores(parts.host.cores):
            return RouterLoop(parts, run, router, routing, ledger, on_progress).carry_out()

    def serve(
        self,
        traffic: Callable[[HardwareRun, RouterCore, RunClock], Traffic],
        router: RouterConfig,
        routing: Routing,
        goals: Sequence[GoalSet],
        ledger: Watcher,
        on_progress: Callable[[RunProgress], None],
        say: Callable[[str], None],
        operator: Operator,
    ) -> RunProgress:
        """Serve until the traffic ends: the same loop as in a run, without a record of it.

        It sleeps while nothing is in flight: it keeps no core busy, as a run may.

        Args:
            goals: the operator's targets, of each class.
            on_progress: called several times a second.
            say: see `run`.

        Returns:
            The progress at the end; requests in flight were not served within `DRAIN_LIMIT_NS`.

        Raises:
            WorkError: a worker could not be made ready, or the source of the traffic is gone.
        """
        assert self.slots, "enter the cluster first"
        no_arrivals, label = np.zeros(0, np.int64), np.zeros(1, np.int64)
        image, targets = np.zeros((1, *self.served.input_shape), np.float32), tuple((0, goal) for goal in goals)
        run = HardwareRun(no_arrivals, image, label, NEVER_NS, drain_limit_ns=DRAIN_LIMIT_NS, goals=targets)
        self._require_fit(run, router)
        away = self.make_ready(keep_log=False, drained=operator.drained())
        parts = self._parts(operator, away, Host(), BackgroundWatch(None, ()), say)
        with on_cores(own_cores(self.servers)):
            loop = RouterLoop(parts, run, router, routing, ledger, on_progress, traffic)
            gc.collect()
            gc.freeze()  # present objects stay: collections that scan the rest alone take microseconds
            try:
                return loop.progress(loop.drive()[0])
            finally:
                gc.unfreeze()

    def _parts(
        self,
        operator: Operator,
        away: frozenset[int],
        host: Host,
        background: BackgroundWatch,
        say: Callable[[str], None],
    ) -> Parts:
        return Parts(
            self.servers, self.slots, self.arenas, self.served, self.supervision, self.transfer_ids,
            operator, away, host, background, say,
        )  # fmt: skip

    def _require_fit(self, run: HardwareRun, router: RouterConfig) -> None:
        image = self.served.input_shape
        if run.images.shape[1:] != image:
            raise InputError("images", "", f"have the shape {run.images.shape[1:]}, the model takes {image}")
        shape = (len(self.servers), self.served.segments, self.served.widths)
        if (router.servers, router.segments, router.widths) != shape:
            raise InputError("router", "", "its servers, segments or widths are not those of the cluster and its model")
        if router.micro_batch_sizes[-1] > self.largest_micro_batch:
            most = self.largest_micro_batch
            problem = f"{router.micro_batch_sizes[-1]} is more than the {most} that the cluster has room for"
            raise InputError(
                "router", "micro_batch_sizes", f"{problem}; start it with `largest_micro_batch` of that size"
            )


def _pids(slots: Sequence[WorkerSlot]) -> list[int]:
    return [slot.worker.pid for slot in slots]


def background_watch(servers: Sequence[HardwareServer], slots: Sequence[WorkerSlot]) -> BackgroundWatch:
    """Return a watch of other processes' use of these servers' devices, not of the workers' or this one's.

    Devices of other machines are not watched.
    """
    router_cores = frozenset(own_cores(servers)) or None
    local = [pair for pair in zip(servers, slots, strict=True) if not pair[0].machine]
    servers, slots = [server for server, _ in local], [slot for _, slot in local]

    def own() -> dict[int | str, Used]:
        used: dict[int | str, Used] = {"ended": ended_children()}
        used[os.getpid()] = Used(process_cpu_s(os.getpid()), router_cores)
        for server, pid in zip(servers, _pids(slots), strict=True):
            used.setdefault(pid, Used(process_cpu_s(pid), frozenset(server.device.cores) or None))  # its first's cores
        return used

    physical = dict.fromkeys(server.device.physical for server in servers)
    cores = [cores for kind, cores in physical if kind == "cpu"]
    gpus = [index for kind, (index, *_) in physical if kind == "cuda"]
    nvml = load_nvml() if gpus else None
    handles = [nvml_handle(nvml, index) for index in gpus if nvml is not None]
    watches = [GpuWatch(nvml, handle, partial(_pids, slots)) for handle in handles]
    return BackgroundWatch(CoreWatch(cores, own) if cores else None, watches)
