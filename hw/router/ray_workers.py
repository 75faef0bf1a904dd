"""Workers on the hosts of a Ray cluster: an actor for each, its process, and its connections.

Process: a worker is a process separate from its actor, like a worker on one host. So Ray's threads take none of the
worker's time, and a pass takes as long as when it was calibrated.

Ray's tasks: Ray finds the host, starts the worker there, transfers the model's bytes, and reports a worker's end. A
run's messages and data use separate connections (`hw.transport.peers`, `hw.transport.direct_transfers`), because a call
of an actor takes milliseconds (docs/cluster.md). Ray has transferred the certificate of these connections.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import multiprocessing
import os
import platform
import signal
import ssl
import threading
import time  # noqa: TID251 - waits for real hosts
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

import psutil

from hw.host_resources import core_count, machine_bytes
from hw.router.local_workers import die_with_parent, live
from hw.router.ray_cluster import HostFacts, Node, RayCluster, require_same_code
from hw.router.worker_handles import WorkerHandle
from hw.telemetry import DeviceDescription, available_devices
from hw.transport.direct_transfers import FarArena, Landing, Routes
from hw.transport.messages import FromWorker, ToWorker
from hw.transport.peers import Encrypted, Hello, Listener, connected, fresh_certificate
from hw.transport.shared_memory import Arena
from hw.transport.worker_port import Mirror, RouterEnd, SentLog, WorkerEnd
from hw.worker.lanes import FarOutfit, WorkerSpec
from kit.errors import WorkError, in_a_line
from kit.files import atomic_path
from kit.plugins import code_here, own_version

CONNECT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class FarStart:
    """The arguments of a worker's process.

    Attributes:
        spec: of the worker; its outfit has no arenas yet.
        own, workers: its index among all of the cluster.
        arena_bytes: of each arena.
        incarnation: see `hw.router.worker_handles.WorkerHandle`.
        log: the file on its host for its output; None: its keeper's.
        model: the path on its host of the network's file; None if it needs none.
        router: the address that the router listens on.
        host: the address at which others reach this host.
        certificate: the cluster's.
    """

    spec: WorkerSpec
    own: int
    workers: int
    arena_bytes: int
    worker_id: int
    router: str
    host: str
    certificate: bytes
    log: Path | None = None
    model: Path | None = None


def begin(start: FarStart) -> SpawnProcess:
    """Start the process, which ends with the calling thread."""
    process = multiprocessing.get_context("spawn").Process(
        target=_main, args=(start,), name=f"slimsched-{start.spec.name}", daemon=True
    )
    process.start()
    return process


def how_it_ended(process: SpawnProcess) -> str:
    """Describe in a few words how it ended, once it has."""
    code = process.exitcode
    return f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


def _main(start: FarStart) -> None:
    die_with_parent()
    with contextlib.suppress(OSError, AttributeError):  # Ray lowers its workers' priority; root may restore it
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    if start.log is not None:
        with start.log.open("ab") as log:
            for standard in (1, 2):
                os.dup2(log.fileno(), standard)
    if not os.environ.get("CUDA_VISIBLE_DEVICES", "all"):
        del os.environ["CUDA_VISIBLE_DEVICES"]  # Ray hides GPUs from workers that request none; a scenario names ours
    arena, routes = Arena(start.arena_bytes), Routes(start.worker_id, start.certificate)
    landing = Landing(start.host, start.certificate, arena)
    end = connected(start.router, start.certificate, Hello(start.worker_id, landing.address), CONNECT_S)
    port = WorkerEnd(ToWorker, Encrypted(end), arena)
    far = [FarArena(start.arena_bytes, routes) for _ in range(start.workers)]
    arenas = (*far[: start.own], arena, *far[start.own + 1 :])
    assert isinstance(start.spec.outfit, FarOutfit), "asked for one that can be taken elsewhere"
    spec = replace(start.spec, outfit=start.spec.outfit.elsewhere(arenas, start.model))
    live([(spec, port, SentLog(port))], landing.fence)


# --------------------------------------------------------------------------------------------------------- on each host


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Supervisor:
    """A Ray actor that keeps a server's workers from start to end, one after another; they end with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: dict[int, SpawnProcess] = {}  # by incarnation
        self._cancelled: set[int] = set()

    def code(self) -> tuple[str, str]:
        """Return the version and the code that run here."""
        return own_version(), code_here()

    def run(self, start: FarStart, model: bytes | None) -> str:
        """Run a worker for its whole life; return how it ended.

        Args:
            model: the file of the network that is served, if the worker needs one.

        Raises:
            WorkError: the file can't be kept here.
        """
        path = None if model is None else kept(model)
        with self._lock:
            if start.worker_id in self._cancelled:
                return "it was given up before it began"
            process = self._processes[start.worker_id] = begin(
                replace(start, model=path, log=fresh_log(start.spec.name))
            )
        process.join()
        with self._lock:
            del self._processes[start.worker_id]
        return how_it_ended(process)

    def signal(self, worker_id: int, number: int) -> None:
        """Send a worker a signal for a planned fault."""
        with self._lock:
            process = self._processes.get(worker_id)
            if process is not None and process.pid is not None and process.is_alive():
                os.kill(process.pid, number)

    def end(self, worker_id: int) -> None:
        """End that worker, even if it has not begun."""
        self._cancelled.add(worker_id)
        self.signal(worker_id, signal.SIGKILL)


LOGS: Final = "logs"
MAX_LOGS: Final = 50  # of workers; older ones go


def fresh_log(name: str) -> Path:
    """Open a file for a worker's output; the oldest files are deleted."""
    folder = cache() / LOGS
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
    for path in files[: max(0, len(files) + 1 - MAX_LOGS)]:
        path.unlink(missing_ok=True)
    began = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return folder / f"{name}-{began}-{os.getpid()}-{len(files)}.log"


def kept_logs() -> dict[str, bytes]:
    """Return the output of this host's workers, and of measurements in progress here, by name."""
    files = [*(cache() / LOGS).glob("*.log"), *(cache() / "calibrations").rglob("*.jsonl")]
    return {path.name: path.read_bytes() for path in files if path.stat().st_size}


def kept(model: bytes) -> Path:
    """Return the file with these bytes on this host; its name is their hash, so an existing file is the right one."""
    name = hashlib.sha256(model).hexdigest()
    path = cache() / "models" / f"{name}.safetensors"
    if not _is_whole(path, name):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as temporary:
                temporary.write_bytes(model)
        except OSError as error:
            problem = f"{len(model)} bytes of the model can't be kept in {path.parent} ({error.strerror})"
            raise WorkError(f"host {platform.node()}: {problem}; make room there, or set XDG_CACHE_HOME") from None
    return path


def _is_whole(path: Path, name: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == name
    except OSError:
        return False


def cache() -> Path:
    """Return this host's folder for files from others."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slimsched"


def machine() -> str:
    """Return a name of this machine, until it is started again: two hosts of one machine have the same one."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()


def _device_text(device: DeviceDescription) -> str:
    name = f"cuda:{device.index}" if device.kind == "cuda" else device.kind
    return f"{name} ({device.state})"


def facts(host: str) -> HostFacts:
    """Return this host's description of itself; it opens no device."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    return HostFacts(
        host=host,
        machine=machine(),
        python=platform.python_version(),
        version=own_version(),
        code=code_here(),
        torch=torch,
        cores=core_count(),
        memory_bytes=machine_bytes(),
        free_bytes=min(machine_bytes(), int(psutil.virtual_memory().available)),
        disk_free_bytes=int(psutil.disk_usage(str(Path.home())).free),
        devices=tuple(_device_text(device) for device in available_devices()),
        niceness=0 if os.geteuid() == 0 else os.getpriority(os.PRIO_PROCESS, 0),
    )


# ---------------------------------------------------------------------------------------------- in the router's process


_LOOK_S: Final = 0.2  # the period of polls for an absent host
_ENDING_S: Final = 5.0
_KILLING_S: Final = 1.0
_AT_ONCE: Final = 8  # calls of an actor: a worker's whole life is one, and one that hangs may have a successor


class RayWorker(WorkerHandle):
    """A worker that a Ray actor keeps.

    Args:
        spec: of the worker.
        incarnation: no other worker's.
        carrier: that has started it.

    Attributes:
        actor: that keeps it; None before it is asked to.
        ended: once its actor is gone, or could not be made.
    """

    def __init__(self, spec: WorkerSpec, worker_id: int, carrier: RayHosts) -> None:
        self.joining = RouterEnd(FromWorker, heard=self._hear_log)
        super().__init__(spec, self.joining, shares_clock=False)
        self.worker_id = worker_id
        self.ended = threading.Event()
        self._carrier = carrier
        self.actor: Any = None
        self._is_given_up = False
        self._log = bytearray()

    @property
    def pid(self) -> int:
        """See `WorkerHandle`: on its own host; 0 before it is ready."""
        return 0 if self.ready is None else self.ready.pid

    def log(self) -> Callable[[], bytes]:
        """See `WorkerHandle`: as far as it has arrived here, which is at least as far as the messages received."""
        return partial(bytes, self._log)

    def _hear_log(self, steps: bytes) -> None:
        if steps:
            self._log += steps
        else:
            self._log.clear()

    def send_signal(self, number: signal.Signals) -> None:
        """See `WorkerHandle`."""
        self._carrier.later(lambda actor: actor.signal.remote(self.worker_id, int(number)), self.actor)

    def kill(self) -> None:
        """See `WorkerHandle`."""
        self.give_up()
        self.port.close()

    def close(self) -> None:
        """See `WorkerHandle`."""
        if self._is_given_up:  # a router that serves others must not wait for a host that is gone
            return
        self.say_goodbye()
        if self.actor is not None:
            self.ended.wait(_ENDING_S)
        self.give_up()
        self.ended.wait(_KILLING_S)

    def give_up(self) -> None:
        """End it, on any host, without waiting for that."""
        self._is_given_up = True
        self._carrier.later(lambda actor: actor.end.remote(self.worker_id), self.actor)

    @property
    def is_given_up(self) -> bool:
        """Whether it has been given up."""
        return self._is_given_up

    def over(self, reason: str) -> None:
        """Note that its actor has ended, or could not be made."""
        self.ended.set()
        self.joining.end(reason)

    def _how_it_died(self) -> str:
        self.ended.wait(_KILLING_S)
        return self.joining.ended or "its connection ended"


@dataclass(frozen=True, slots=True)
class _Keeper:
    node: Node
    actor: Any


class RayHosts:
    """Starts each worker on the host that it is for.

    Args:
        cluster: that this process has joined.
        hosts: the name of each worker's host.
        model: the file of the network that is served, which every host gets; None if no worker needs one.
    """

    def __init__(self, cluster: RayCluster, hosts: Sequence[str], model: Path | None = None) -> None:
        self._cluster = cluster
        self._hosts = tuple(hosts)
        self._certificate = fresh_certificate()
        self._incarnations = itertools.count(1)
        self._workers: dict[int, RayWorker] = {}  # by incarnation: those that have not connected yet
        self._current: dict[int, RayWorker] = {}  # by server
        self._arenas: tuple[Arena, ...] = ()
        self._listener = Listener(cluster.here.address, self._certificate, self._admit)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._model = None if model is None else cluster.ray.put(model.read_bytes())
        self._class = cluster.ray.remote(num_cpus=0, max_concurrency=_AT_ONCE, max_restarts=0)(Supervisor)
        self._keepers: dict[int, _Keeper] = {}  # by server

    # ------------------------------------------------------------------------------------------------- see `Carrier`

    def arenas(self, count: int, size_bytes: int) -> Sequence[Arena]:
        """See `Carrier`: what is written there is sent."""
        self._arenas = tuple(
            Mirror(size_bytes, lambda worker=worker: self._current[worker].joining)  # type: ignore[misc]
            for worker in range(count)
        )
        return self._arenas

    def arenas_of(self, worker: int) -> tuple[Arena, ...]:
        """See `Carrier`: the worker's host makes them."""
        return ()

    def start(self, worker: int, spec: WorkerSpec) -> WorkerHandle:
        """See `Carrier`: a host that is not there is waited for."""
        handle = RayWorker(spec, next(self._incarnations), self)
        self._workers[handle.worker_id] = self._current[worker] = handle
        name = f"ray-{spec.name}-{handle.worker_id}"
        threading.Thread(target=self._keep, args=(worker, handle), name=name, daemon=True).start()
        return handle

    def close(self) -> None:
        """See `Carrier`."""
        self._listener.close()
        self._executor.shutdown()
        for keeper in () if self._cluster.is_gone.is_set() else self._keepers.values():
            with contextlib.suppress(Exception):  # Ray may be gone
                self._cluster.ray.kill(keeper.actor)
        for arena in self._arenas:
            arena.close()

    # --------------------------------------------------------------------------------------------- a worker's life

    def _keep(self, worker: int, handle: RayWorker) -> None:
        """Keep a worker from its placing to its end, in a separate thread."""
        reason = "it was given up before it began"
        try:
            while not handle.is_given_up:
                if (keeper := self._keeper_for(worker, handle)) is not None:
                    reason = self._live(worker, handle, keeper)
                    break
                time.sleep(_LOOK_S)
        except Exception as error:  # Ray's own errors have no common kind
            reason = in_a_line(str(error)) or type(error).__name__
        self._workers.pop(handle.worker_id, None)
        handle.over(reason)

    def _keeper_for(self, worker: int, handle: RayWorker) -> _Keeper | None:
        """Return the actor that is to keep it: the previous worker's, if that lives. None if there is none now: its
        host is not there, or turns out to be a dead one whose name another has.

        Raises:
            WorkError: the host has another version, or other code.
        """
        ray, node = self._cluster.ray, self._cluster.node_of(self._hosts[worker])
        if node is None:
            return None
        keeper = self._keepers.get(worker)
        if keeper is None or keeper.node != node:
            keeper = _Keeper(node, self._class.options(scheduling_strategy=self._cluster.on(node)).remote())
            self._keepers[worker] = keeper
        code = keeper.actor.code.remote()
        while not ray.wait([code], timeout=_LOOK_S)[0]:
            if handle.is_given_up or self._cluster.node_of(node.host) != node:
                return None
        try:
            require_same_code(node.host, *ray.get(code))
        except ray.exceptions.RayError:  # it has died
            del self._keepers[worker]
            return None
        return keeper

    def _live(self, worker: int, handle: RayWorker, keeper: _Keeper) -> str:
        """Run the worker for its whole life; return how it ended."""
        start = FarStart(
            spec=handle.spec,
            own=worker,
            workers=len(self._hosts),
            arena_bytes=self._arenas[worker].size_bytes,
            worker_id=handle.worker_id,
            router=self._listener.address,
            host=keeper.node.address,
            certificate=self._certificate,
        )
        worker_id = keeper.actor.run.remote(start, self._model)
        handle.actor = keeper.actor
        if handle.is_given_up:  # while that was asked
            handle.give_up()
        return str(self._cluster.ray.get(worker_id))

    def _admit(self, hello: Hello, end: ssl.SSLSocket) -> None:
        """Take the connection of a worker; one that has been given up is turned away."""
        handle = self._workers.pop(hello.worker_id, None)
        if handle is not None:
            handle.address = hello.address
        if handle is None or not handle.joining.join(Encrypted(end)):
            end.close()

    # ---------------------------------------------------------------------------------------------------- Ray, later

    def later(self, ask: Any, actor: Any) -> Future[Any] | None:
        """Call Ray from another thread, as the router's thread must not wait for it."""
        if actor is None:
            return None
        with contextlib.suppress(RuntimeError):  # all is over
            return self._executor.submit(ask, actor)
        return None
