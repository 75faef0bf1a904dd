"""A worker process and the driver's handle on it: it is started, spoken to and always ended here; nothing is decided.

Processes are spawned, never forked (CUDA). A worker ignores Ctrl-C and leaves when the driver's end of its pipe is
gone, so that nothing is left behind however the driver ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import select
import signal
import time  # noqa: TID251 - real commands are timed with a real clock
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import TypeVar

import torch
from torch import Tensor

from hw import ENVIRONMENT
from hw.activations import in_format
from hw.arena import Arena
from hw.device import DeviceSpec
from hw.executor import Executor
from hw.messages import (
    Benchmark,
    BenchmarkPoint,
    BenchmarkResult,
    BenchmarkTogether,
    Broken,
    Close,
    Done,
    Finished,
    FromWorker,
    Load,
    LoadBroken,
    Loaded,
    Move,
    MoveBroken,
    Moved,
    Ready,
    Refused,
    Release,
    Reset,
    Run,
    Take,
    TogetherResult,
    ToWorker,
    Unload,
    Unloaded,
    Warm,
)
from hw.networks import ModelFile
from hw.wire import decode, encode
from policies.errors import WorkError, in_a_line

START_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 600.0
ARENA_BYTES = 1 << 26
_ENDING_S = 5.0
_KILLING_S = 1.0  # a killed process is gone within milliseconds
_RESET_S = 30.0  # between runs: what runs is finished first
_FRAME = 64  # messages that travel together at most, and that wait for an urgent one at most
_PR_SET_PDEATHSIG = 1
_SYNCHRONOUS = -1  # ids of what the synchronous calls ask for; a scheduler's ids count from 0

Answer = TypeVar("Answer")


class WorkerDiedError(WorkError):
    """A worker process ended by itself."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker is: its name, its device and the model it serves."""

    name: str
    device: DeviceSpec
    model: ModelFile


@dataclass(frozen=True, slots=True)
class LoadTiming:
    """One load: how long it took and the device memory it really takes."""

    load_s: float
    vram_bytes: int


def _die_with_parent() -> None:
    """A worker that is stopped does not see the end of its pipe: on Linux the system kills it with the driver."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _main(spec: WorkerSpec, control: Connection, arenas: Sequence[Arena], own: int) -> None:
    """The worker process."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ.update(ENVIRONMENT)
    try:
        executor = Executor(spec.device, spec.model, control, arenas, own)
    except Exception as error:
        refused = Refused("internal_error", f"{type(error).__name__}: {error}")
        control.send_bytes(encode((refused,)))
        return
    executor.loop()
    os._exit(0)  # threads may be in the middle of a pass: nothing of it is wanted


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """What is started meanwhile hears no Ctrl-C until it says so: it is the driver's business, even while it opens."""
    resource_tracker.ensure_running()  # it would start with the first process, and let interrupts through after that
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Worker:
    """A worker process as its driver sees it.

    The driver either speaks asynchronously (`send`, `connection`, `receive`) or uses the synchronous calls, which
    assume that nothing else is under way; not both at once.

    Args:
        spec: what to start.
        arenas: of all workers that may send each other activations, by index; None for one of its own.
        own: its index among them.
        wait: whether to return only when it is ready (else call `wait_until_ready`).

    Raises:
        WorkError: it could not start, and why.
    """

    def __init__(
        self, spec: WorkerSpec, arenas: Sequence[Arena] | None = None, own: int = 0, *, wait: bool = True
    ) -> None:
        self.spec = spec
        self.arenas = tuple(arenas) if arenas is not None else (Arena(ARENA_BYTES),)
        self.own = own
        context = multiprocessing.get_context("spawn")
        self.connection, remote = context.Pipe(duplex=True)
        self._outbox: list[ToWorker] = []
        self._has_urgent = False
        self._number = 0
        self._writable = select.poll()
        self._writable.register(self.connection, select.POLLOUT)
        self._process = context.Process(
            target=_main, args=(spec, remote, self.arenas, own), name=f"slimsched-{spec.name}", daemon=True
        )
        self._ready: Ready | None = None
        self.is_warm = False
        try:
            with _no_interrupts():
                self._process.start()
        finally:
            remote.close()
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> Ready:
        """What the process said of itself when it was up."""
        if self._ready is None:
            try:
                self._ready = self.expect(Ready, timeout_s)
            except BaseException:
                self.close()
                raise
        return self._ready

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.is_alive()

    # ------------------------------------------------------------------------------------------------- asynchronous

    def send(self, message: ToWorker) -> None:
        """Ask for something now; raises `WorkerDiedError` where nobody is there to ask."""
        self.post(message)
        self.flush()

    def post(self, message: ToWorker, urgent: bool = True) -> None:
        """Ask for something with the next `flush`; what is not urgent may travel with a later one."""
        self._outbox.append(message)
        self._has_urgent = self._has_urgent or urgent or len(self._outbox) >= _FRAME

    def flush(self) -> bool:
        """Send what was posted, together, without ever waiting; returns whether nothing urgent is left.

        Raises:
            WorkerDiedError: nobody is there to ask.
        """
        if not self._has_urgent:
            return True
        try:
            while self._outbox:
                # a pipe that says it is writable has most of its buffer free, which a frame never fills
                if not self._writable.poll(0):
                    return False
                self.connection.send_bytes(encode(self._outbox[:_FRAME]))
                del self._outbox[:_FRAME]
        except OSError as error:
            raise WorkerDiedError(f"worker {self.spec.name} is gone ({error})") from None
        self._has_urgent = False
        return True

    def receive(self, timeout_s: float | None = None) -> FromWorker:
        """The next answer; raises `WorkerDiedError` where none will come, `WorkError` where none came in time."""
        try:
            if timeout_s is not None and not self.connection.poll(timeout_s):
                raise WorkError(f"worker {self.spec.name} did not answer within {timeout_s:g} s")
            (message,) = decode(self.connection.recv_bytes())
        except (EOFError, OSError):
            raise WorkerDiedError(f"worker {self.spec.name} died (exit code {self._process.exitcode})") from None
        if isinstance(message, Ready):
            self._ready = message
        found: FromWorker = message
        return found

    # -------------------------------------------------------------------------------------------------- synchronous

    def load(
        self, instance: int, segment: int, width: float, *, from_disk: bool = False, probe_batch: int = 0
    ) -> LoadTiming:
        """Load an instance and wait for it; see `hw.messages.Load`."""
        self.send(Load(instance, segment, width, from_disk, probe_batch))
        answer = self.expect(Loaded)
        return LoadTiming(answer.load_s, answer.vram_bytes)

    def unload(self, instance: int) -> float:
        """Unload an instance; returns the seconds that it took."""
        self.send(Unload(instance))
        return self.expect(Unloaded).unload_s

    def warm(self, batches: Sequence[int]) -> None:
        """Run every legal key once at each batch size."""
        self.send(Warm(self.next_number(), tuple(batches)))
        self.expect(Done)
        self.is_warm = True

    def next_number(self) -> int:
        """For something whose answer must not be taken for that of something earlier."""
        self._number += 1
        return self._number

    def reset(self, timeout_s: float = ANSWER_TIMEOUT_S) -> int:
        """Finish what runs, forget all, drop answers on their way; returns how many activations were still stored."""
        number = self.next_number()
        self.send(Reset(number))
        while True:
            answer = self.receive(timeout_s)
            if isinstance(answer, Done) and answer.number == number:
                return answer.forgotten
            if isinstance(answer, Refused):
                raise WorkError(f"worker {self.spec.name}: {answer.reason}: {in_a_line(answer.detail)}")

    def benchmark(
        self, point: BenchmarkPoint, warmup: int = 20, repeats: int = 50, min_s: float = 0.3, pause_s: float = 0.0
    ) -> BenchmarkResult:
        """Time forward passes of a point alone in the process, through the function that serves batches.

        With a pause before each the thread wakes up for every pass, with the caches that others left it: as it serves.
        """
        self.send(Benchmark(point, warmup, repeats, min_s, pause_s))
        return self.expect(BenchmarkResult)

    def benchmark_together(self, points: Sequence[BenchmarkPoint], duration_s: float) -> TogetherResult:
        """Loop points at the same time, each in its own instance and thread."""
        self.start_together(points, duration_s)
        return self.finish_together()

    def start_together(self, points: Sequence[BenchmarkPoint], duration_s: float) -> None:
        """The first half of `benchmark_together`, so that several workers can run at once."""
        self.send(BenchmarkTogether(tuple(points), duration_s))

    def finish_together(self) -> TogetherResult:
        """The second half."""
        return self.expect(TogetherResult)

    def put(self, requests: tuple[int, ...], tensors: Tensor, channels_last: bool = False) -> None:
        """Give it activations, (n, ...) float32 on the host, at the start of its arena."""
        view = self.arenas[self.own].tensor(0, tuple(tensors.shape), torch.float32, channels_last)
        view.copy_(tensors)
        self.send(Take(requests, 0, tuple(tensors.shape[1:]), "float32", channels_last))

    def dispatch_round_trips(
        self, point: BenchmarkPoint, count: int, warmup: int = 5, pause_s: float = 0.0
    ) -> tuple[float, ...]:
        """For each of `count` real batches: command sent to result received, less the forward pass, in seconds."""
        requests = tuple(range(_SYNCHRONOUS - point.batch, _SYNCHRONOUS))
        self.load(_SYNCHRONOUS, point.segment, point.width)
        model, _ = self.spec.model.load()
        inputs = torch.zeros(point.batch, *model.activation_shape(point.segment - 1, point.previous_width))
        channels_last = self.spec.device.channels_last and inputs.dim() == 4
        inputs = in_format(inputs, self.spec.device.memory_format)
        run = Run(_SYNCHRONOUS, _SYNCHRONOUS, requests, point.segment, point.previous_width, point.width, point.batch)
        found = []
        for _ in range(warmup + count):
            self.put(requests, inputs, channels_last)
            time.sleep(pause_s)
            begin_ns = time.monotonic_ns()
            self.send(run)
            forward_s = self.expect(Finished).forward_s
            found.append((time.monotonic_ns() - begin_ns) / 1e9 - forward_s)
        self.unload(_SYNCHRONOUS)
        self.send(Release(requests))
        return tuple(found[warmup:])

    def expect(self, kind: type[Answer], timeout_s: float = ANSWER_TIMEOUT_S) -> Answer:
        """The next answer, which must be of a kind; raises `WorkError` for any other."""
        answer = self.receive(timeout_s)
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, Refused | LoadBroken | Broken | MoveBroken):
            raise WorkError(f"worker {self.spec.name}: {answer.reason}: {in_a_line(answer.detail)}")
        raise WorkError(f"worker {self.spec.name} answered {answer!r} where {kind.__name__} was due")

    # ------------------------------------------------------------------------------------------------------ the end

    def kill(self) -> None:
        """End the process by force, whatever it is doing, even nothing at all; afterwards it writes nowhere."""
        self._process.kill()
        self.connection.close()
        self._process.join(_KILLING_S)

    def close(self) -> None:
        """End the process, gently, then by force; nothing is left behind. May be called twice."""
        with contextlib.suppress(OSError, WorkError):
            self.send(Close())
        self.connection.close()
        if self._process.pid is None:
            return
        self._process.join(_ENDING_S)
        for end in (self._process.terminate, self._process.kill):
            if self._process.is_alive():
                end()
                self._process.join(_ENDING_S)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def start_workers(specs: Sequence[WorkerSpec], arena_bytes: int = ARENA_BYTES) -> Iterator[list[Worker]]:
    """Start workers side by side, each able to send to every other; all have ended when the context ends."""
    with contextlib.ExitStack() as stack:
        arenas = [stack.enter_context(contextlib.closing(Arena(arena_bytes))) for _ in specs]
        workers = [stack.enter_context(Worker(spec, arenas, index, wait=False)) for index, spec in enumerate(specs)]
        for worker in workers:
            worker.wait_until_ready()
        yield workers


class WorkerSlot:
    """A server's place in a cluster: its worker, and the next one when that has died.

    Args:
        spec, arenas, index: see `Worker`; the same for every worker that sits here.
        warm_batches: batch sizes that each runs once for every work key before it serves.
    """

    def __init__(self, spec: WorkerSpec, arenas: Sequence[Arena], index: int, warm_batches: Sequence[int]) -> None:
        self._spec = spec
        self._arenas = tuple(arenas)
        self._index = index
        self.warm_batches = tuple(warm_batches)
        self.worker: Worker
        self.start()

    def start(self) -> None:
        """Start a (new) worker, without waiting for it."""
        self.worker = Worker(self._spec, self._arenas, self._index, wait=False)

    def make_ready(self) -> None:
        """Wait for a worker that can serve, empty; a dead one is replaced. Raises `WorkError` if none can."""
        try:
            self.worker.wait_until_ready()
            self.worker.reset(_RESET_S)
        except WorkError:  # dead, hung, or in no state to go on
            self.worker.kill()
            self.start()
            self.worker.wait_until_ready()
        if self.warm_batches and not self.worker.is_warm:
            self.worker.warm(self.warm_batches)

    def close(self) -> None:
        """End it."""
        self.worker.close()


def transfer_round(
    source: Worker, destination: Worker, payload_bytes: int, count: int, pause_s: float = 0.0
) -> tuple[float, ...]:
    """Seconds from the command to the arrival of `payload_bytes`, for each of `count` moves between two workers.

    Args:
        payload_bytes: rounded down to whole float32 numbers, at least one.
    """
    request = (_SYNCHRONOUS,)
    source.put(request, torch.zeros(1, max(1, payload_bytes // 4)))
    found = []
    for _ in range(count):
        time.sleep(pause_s)
        begin_ns = time.monotonic_ns()
        source.send(Move(_SYNCHRONOUS, destination.own, 0, request))
        moved = source.expect(Moved)
        destination.send(Take(request, 0, moved.shape, moved.dtype, moved.channels_last))
        found.append((time.monotonic_ns() - begin_ns) / 1e9)
    for worker in (source, destination):
        worker.send(Release(request))
    return tuple(found)
