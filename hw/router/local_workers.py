"""Workers on this host: each in a process, joined by a pair of sockets; all map the same arenas.

A process has one worker, or those of one GPU: contexts of several processes would take turns there.

Processes are spawned, never forked (CUDA). A worker ignores Ctrl-C and exits when the router's end of its port is gone,
so that nothing is left behind however the router's process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Final

from hw.router.worker_handles import WorkerHandle
from hw.transport.messages import FromWorker, Refused, ToWorker
from hw.transport.shared_memory import Arena, IncarnationLog, StepLog
from hw.transport.worker_port import PortBrokenError, PortClosedError, RouterEnd, WorkerEnd, socket_pair
from hw.worker.lanes import WorkerSpec
from hw.worker.worker_process import Worker, work

_ENDING_S: Final = 5.0
_KILLING_S: Final = 1.0  # a killed process is gone within milliseconds
_PR_SET_PDEATHSIG: Final = 1
_GATHER_S: Final = 2.0  # a worker that was drained, say, does not start with the others of its process
_SWITCH_S: Final = 5e-4  # a thread that wants to answer must not wait 5 ms (Python's default) for one that computes


def die_with_parent() -> None:
    """Ask Linux to kill this process with its parent: a stopped worker does not notice the end of its port."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Member:
    """A worker of a process: its spec, its end of the port, and its log."""

    spec: WorkerSpec
    end: socket.socket
    log: IncarnationLog


def _main(members: Sequence[Member]) -> None:
    die_with_parent()
    live([(member.spec, WorkerEnd(ToWorker, member.end), member.log) for member in members])


def live(
    members: Sequence[tuple[WorkerSpec, WorkerEnd, StepLog]], fence: Callable[[int], object] = lambda _: None
) -> None:
    """Run workers for their whole life, in a separate process, which ends with it; return if none can begin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    workers: list[Worker] = []
    for spec, port, log in members:
        try:
            workers.append(Worker(port, spec, log, fence=fence))
        except Exception as error:
            port.post(Refused("internal_error", f"{type(error).__name__}: {error}"))
            with contextlib.suppress(PortClosedError):
                port.flush()
    if not workers:
        return
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()  # present objects live as long as the process: no collection has to scan them again
    code = 0
    try:
        work(workers)
    except PortBrokenError as error:
        print(f"worker {'+'.join(spec.name for spec, *_ in members)}: {error}", file=sys.stderr)
        code = 1
    sys.stderr.flush()
    os._exit(code)  # threads may be in the middle of a pass, whose result is not needed


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Make processes started meanwhile ignore Ctrl-C until they enable it: the router handles it, even at the start."""
    resource_tracker.ensure_running()  # otherwise it starts with the first process, and unblocks interrupts after that
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class SharedProcess:
    """A process of this host, for one worker or for several that start together; all end with it.

    Args:
        executor: starts it concurrently with the caller (a spawn takes milliseconds, plus the time in which the child
            reads its arguments); its thread must outlive the process, which dies with it. None: the caller starts it.
        gather_s: how long others of its process may still join; it begins as soon as all have.
    """

    def __init__(self, first: Member, executor: Executor | None = None, gather_s: float = 0.0) -> None:
        self._members = [first]
        self._gather_s = gather_s
        self._lock = threading.Lock()
        self._all_joined = threading.Event()
        self._is_full = False
        self._left = 0
        self._process: BaseProcess | None = None
        self._start = None if executor is None else executor.submit(self._begin)
        if executor is None:
            self._begin()

    def join(self, member: Member) -> bool:
        """Add one more worker, if it is not too late."""
        with self._lock:
            if self._is_full:
                return False
            self._members.append(member)
            if len(self._members) == member.spec.process_workers:
                self._all_joined.set()
            return True

    def _begin(self) -> None:
        """Start the process; if that fails the ports end, as with a worker that dies at once."""
        if self._members[0].spec.process_workers > 1:
            self._all_joined.wait(self._gather_s)
        with contextlib.ExitStack() as stack:
            members = self._closed()
            for member in members:
                stack.enter_context(contextlib.closing(member.end))
            name = f"slimsched-{'+'.join(member.spec.name for member in members)}"
            context = multiprocessing.get_context("spawn")
            process = context.Process(target=_main, args=(members,), name=name, daemon=True)
            with _no_interrupts():
                process.start()
            self._process = process

    def _closed(self) -> list[Member]:
        """Admit no more workers, and return those that joined."""
        with self._lock:
            self._is_full = True
            return self._members

    def process(self) -> BaseProcess | None:
        """Return the process once it is started; None if its start had not begun, which is cancelled."""
        if self._start is not None:
            if self._start.cancel():
                for member in self._closed():
                    member.end.close()
            else:
                self._start.exception()
        return self._process

    @property
    def pid(self) -> int:
        """The process's id; 0 before it has begun."""
        return 0 if self._process is None else self._process.pid or 0

    def leave(self) -> bool:
        """Note that one of its workers is asked to end; return whether it was the last."""
        self._left += 1
        return self._left >= len(self._members)

    def how_it_died(self) -> str:
        """Describe in a few words how it died, for people."""
        process = self.process()
        if process is None:
            error = None if self._start is None or self._start.cancelled() else self._start.exception()
            return f"it could not be started: {error}" if error else "it was ended before it began"
        process.join(_KILLING_S)
        return f"exit code {process.exitcode}"


class WorkerProcess(WorkerHandle):
    """A worker in a process of this host.

    Args:
        spec: of the worker.
        executor: see `SharedProcess`.
        join: finds it a process that is about to start; None: it has a separate one.
        wait: whether to return only when it is ready (otherwise call `wait_until_ready`).

    Raises:
        WorkError: it could not start, and why.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        executor: Executor | None = None,
        join: Callable[[Member], SharedProcess] | None = None,
        *,
        wait: bool = True,
    ) -> None:
        end, remote = socket_pair()
        super().__init__(spec, RouterEnd(FromWorker, end), shares_clock=True)
        self._log = IncarnationLog()
        member = Member(spec, remote, self._log)
        self._shared = SharedProcess(member, executor) if join is None else join(member)
        self._has_left = False
        if wait:
            self.wait_until_ready()

    @property
    def pid(self) -> int:
        """See `WorkerHandle`: 0 before it has begun."""
        return self._shared.pid

    def log(self) -> Callable[[], bytes]:
        """See `WorkerHandle`."""
        return self._log.read

    def send_signal(self, number: signal.Signals) -> None:
        """See `WorkerHandle`."""
        assert self.pid, "not started yet, and 0 would signal the whole group"
        os.kill(self.pid, number)

    def kill(self) -> None:
        """See `WorkerHandle`; the others of its process die, too."""
        if (process := self._shared.process()) is not None:
            process.kill()
            process.join(_KILLING_S)  # from here on it writes to no arena
        self.port.close()

    def close(self) -> None:
        """See `WorkerHandle`; others of its process continue."""
        self.say_goodbye()
        is_last = not self._has_left and self._shared.leave()
        self._has_left = True
        if is_last and (process := self._shared.process()) is not None:
            process.join(_ENDING_S)
            for end in (process.terminate, process.kill):
                if process.is_alive():
                    end()
                    process.join(_ENDING_S)
        self._log.close()

    def _how_it_died(self) -> str:
        return self._shared.how_it_died()


@contextlib.contextmanager
def start_workers(specs: Sequence[WorkerSpec]) -> Iterator[list[WorkerProcess]]:
    """Start workers in parallel; all have ended when the context ends."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess(spec, wait=False)) for spec in specs]
        for worker in workers:
            worker.wait_until_ready()
        yield workers


class OneHost:
    """Workers that are processes of this host: all map the same arenas."""

    def __init__(self) -> None:
        self._arenas: tuple[Arena, ...] = ()
        self._executor: Executor | None = None
        self._shared_processes: dict[str, SharedProcess] = {}  # the latest of each name

    def arenas(self, count: int, size_bytes: int) -> Sequence[Arena]:
        """See `Carrier`."""
        self._arenas = tuple(Arena(size_bytes) for _ in range(count))
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="workers")
        return self._arenas

    def arenas_of(self, worker: int) -> tuple[Arena, ...]:
        """See `Carrier`."""
        return self._arenas

    def start(self, worker: int, spec: WorkerSpec) -> WorkerHandle:
        """See `Carrier`."""
        return WorkerProcess(spec, self._executor, self._join if spec.shared else None, wait=False)

    def _join(self, member: Member) -> SharedProcess:
        name = member.spec.shared
        if (shared := self._shared_processes.get(name)) is None or not shared.join(member):
            shared = self._shared_processes[name] = SharedProcess(member, self._executor, _GATHER_S)
        return shared

    def close(self) -> None:
        """See `Carrier`."""
        if self._executor is not None:
            self._executor.shutdown()
        for arena in self._arenas:
            arena.close()
