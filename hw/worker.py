"""A worker process and the driver's handle on it: it is started, spoken to and always ended here; nothing is decided.

Processes are spawned, never forked (CUDA). A worker ignores Ctrl-C and leaves when the driver's end of its pipe is
gone, so that nothing is left behind however the driver ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time  # noqa: TID251 - real commands are timed with a real clock
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from multiprocessing.connection import Connection
from typing import TypeVar

from hw import ENVIRONMENT
from hw.device import DeviceSpec
from hw.executor import Executor
from hw.messages import (
    Arrived,
    Benchmark,
    BenchmarkPoint,
    BenchmarkResult,
    BenchmarkTogether,
    Broken,
    Close,
    ConcurrentResult,
    Done,
    Finished,
    FromWorker,
    Load,
    LoadBroken,
    Loaded,
    Move,
    MoveBroken,
    Ready,
    Refused,
    Release,
    Reset,
    Run,
    Store,
    TogetherResult,
    ToWorker,
    Unload,
    Unloaded,
    Warm,
)
from hw.networks import ModelFile
from policies.errors import WorkError

START_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 600.0
_ENDING_S = 5.0
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


@dataclass
class Links:
    """The ends of the one-way links that belong to one worker: to each other one by its index, and from them."""

    outgoing: dict[int, Connection] = field(default_factory=dict)
    incoming: list[Connection] = field(default_factory=list)

    def close(self) -> None:
        """Close this process's copies (the worker has its own)."""
        for link in (*self.outgoing.values(), *self.incoming):
            link.close()


def full_mesh(workers: int) -> list[Links]:
    """A link for each ordered pair of workers."""
    links = [Links() for _ in range(workers)]
    for source in range(workers):
        for destination in range(workers):
            if source != destination:
                receiving, sending = multiprocessing.Pipe(duplex=False)
                links[source].outgoing[destination] = sending
                links[destination].incoming.append(receiving)
    return links


def _main(spec: WorkerSpec, control: Connection, links: Links) -> None:
    """The worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(ENVIRONMENT)
    try:
        executor = Executor(spec.device, spec.model, control, links.outgoing, links.incoming)
    except Exception as error:
        control.send(Refused("internal_error", f"{type(error).__name__}: {error}"))
        return
    executor.loop()
    os._exit(0)  # threads may be in the middle of a pass: nothing of it is wanted


class Worker:
    """A worker process as its driver sees it.

    The driver either speaks asynchronously (`send`, `connection`, `receive`) or uses the synchronous calls, which
    assume that nothing else is under way; not both at once.

    Args:
        spec: what to start.
        links: its ends of the links to other workers; closed here once it has started.
        wait: whether to return only when it is ready (else call `wait_until_ready`).

    Raises:
        WorkError: it could not start, and why.
    """

    def __init__(self, spec: WorkerSpec, links: Links | None = None, *, wait: bool = True) -> None:
        self.spec = spec
        links = links or Links()
        context = multiprocessing.get_context("spawn")
        self.connection, remote = context.Pipe(duplex=True)
        self._process = context.Process(
            target=_main, args=(spec, remote, links), name=f"slimsched-{spec.name}", daemon=True
        )
        self._ready: Ready | None = None
        try:
            self._process.start()
        finally:
            remote.close()
            links.close()
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> Ready:
        """What the process said of itself when it was up."""
        if self._ready is None:
            try:
                self._ready = self._expect(Ready, timeout_s)
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
        """Ask for something; raises `WorkerDiedError` if nobody is there to ask."""
        try:
            self.connection.send(message)
        except OSError as error:
            raise WorkerDiedError(f"worker {self.spec.name} is gone ({error})") from None

    def receive(self, timeout_s: float | None = None) -> FromWorker:
        """The next answer; raises `WorkerDiedError` where none will come, `WorkError` where none came in time."""
        try:
            if timeout_s is not None and not self.connection.poll(timeout_s):
                raise WorkError(f"worker {self.spec.name} did not answer within {timeout_s:g} s")
            message: FromWorker = self.connection.recv()
        except (EOFError, OSError):
            raise WorkerDiedError(f"worker {self.spec.name} died (exit code {self._process.exitcode})") from None
        return message

    # -------------------------------------------------------------------------------------------------- synchronous

    def load(
        self, instance: int, segment: int, width: float, *, from_disk: bool = False, probe_batch: int = 0
    ) -> LoadTiming:
        """Load an instance and wait for it; see `hw.messages.Load`."""
        self.send(Load(instance, segment, width, from_disk, probe_batch))
        answer = self._expect(Loaded)
        return LoadTiming(answer.load_s, answer.vram_bytes)

    def unload(self, instance: int) -> float:
        """Unload an instance; returns the seconds that it took."""
        self.send(Unload(instance))
        return self._expect(Unloaded).unload_s

    def warm(self, batches: Sequence[int]) -> None:
        """Run every legal key once at each batch size."""
        self.send(Warm(tuple(batches)))
        self._expect(Done)

    def reset(self) -> int:
        """Finish what runs, forget all, drop answers on their way; returns how many activations were still stored."""
        self.send(Reset())
        while not isinstance(answer := self.receive(ANSWER_TIMEOUT_S), Done):
            pass
        return answer.forgotten

    def benchmark(
        self, point: BenchmarkPoint, warmup: int = 20, repeats: int = 50, min_s: float = 0.3, pause_s: float = 0.0
    ) -> BenchmarkResult:
        """Time forward passes of a point alone in the process, through the function that serves batches.

        With a pause before each the thread wakes up for every pass, with the caches that others left it: as it serves.
        """
        self.send(Benchmark(point, warmup, repeats, min_s, pause_s))
        return self._expect(BenchmarkResult)

    def benchmark_together(self, points: Sequence[BenchmarkPoint], duration_s: float) -> tuple[ConcurrentResult, ...]:
        """Loop points at the same time, each in its own instance and thread."""
        self.start_together(points, duration_s)
        return self.finish_together().results

    def start_together(self, points: Sequence[BenchmarkPoint], duration_s: float) -> None:
        """The first half of `benchmark_together`, so that several workers can run at once."""
        self.send(BenchmarkTogether(tuple(points), duration_s))

    def finish_together(self) -> TogetherResult:
        """The second half."""
        return self._expect(TogetherResult)

    def dispatch_round_trips(
        self, point: BenchmarkPoint, count: int, warmup: int = 5, pause_s: float = 0.0
    ) -> tuple[float, ...]:
        """For each of `count` real batches: command sent to result received, less the forward pass, in seconds."""
        requests = tuple(range(_SYNCHRONOUS - point.batch, _SYNCHRONOUS))
        self.load(_SYNCHRONOUS, point.segment, point.width)
        model, _ = self.spec.model.load()
        shape = model.activation_shape(point.segment - 1, point.previous_width)
        found = []
        for _ in range(warmup + count):
            self._store_zeros(requests, shape)
            time.sleep(pause_s)
            begin_ns = time.monotonic_ns()
            self.send(
                Run(
                    _SYNCHRONOUS,
                    _SYNCHRONOUS,
                    requests,
                    point.segment,
                    point.previous_width,
                    point.width,
                    point.batch,
                )
            )
            forward_s = self._expect(Finished).forward_s
            found.append((time.monotonic_ns() - begin_ns) / 1e9 - forward_s)
        self.unload(_SYNCHRONOUS)
        self.send(Release(requests))
        return tuple(found[warmup:])

    def _store_zeros(self, requests: tuple[int, ...], shape: tuple[int, ...]) -> None:
        self.send(Store(_SYNCHRONOUS, requests, shape, bytes(prod((len(requests), *shape)) * 4)))
        self._expect(Arrived)

    def _expect(self, kind: type[Answer], timeout_s: float = ANSWER_TIMEOUT_S) -> Answer:
        answer = self.receive(timeout_s)
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, Refused | LoadBroken | Broken | MoveBroken):
            raise WorkError(f"worker {self.spec.name}: {answer.reason}: {answer.detail}")
        raise WorkError(f"worker {self.spec.name} answered {answer!r} where {kind.__name__} was due")

    # ------------------------------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """End the process, gently, then by force; nothing is left behind. May be called twice."""
        with contextlib.suppress(OSError):
            self.connection.send(Close())
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
def start_workers(specs: Sequence[WorkerSpec]) -> Iterator[list[Worker]]:
    """Start workers side by side, linked with each other; all have ended when the context ends, however it ends."""
    with contextlib.ExitStack() as stack:
        mesh = full_mesh(len(specs))
        for links in mesh:
            stack.callback(links.close)
        workers = [
            stack.enter_context(Worker(spec, links, wait=False)) for spec, links in zip(specs, mesh, strict=True)
        ]
        for worker in workers:
            worker.wait_until_ready()
        yield workers


def transfer_round(
    source: Worker, destination: Worker, index: int, payload_bytes: int, count: int, pause_s: float = 0.0
) -> tuple[float, ...]:
    """Seconds from the command to the arrival of `payload_bytes`, for each of `count` moves between linked workers.

    Args:
        index: of the destination among the linked workers.
        payload_bytes: rounded down to whole float32 numbers, at least one.
    """
    numbers = max(1, payload_bytes // 4)
    source.send(Store(_SYNCHRONOUS, (_SYNCHRONOUS,), (numbers,), bytes(numbers * 4)))
    source._expect(Arrived)
    found = []
    for _ in range(count):
        time.sleep(pause_s)
        begin_ns = time.monotonic_ns()
        source.send(Move(_SYNCHRONOUS, index, (_SYNCHRONOUS,)))
        destination._expect(Arrived)
        found.append((time.monotonic_ns() - begin_ns) / 1e9)
    for worker in (source, destination):
        worker.send(Release((_SYNCHRONOUS,)))
    return tuple(found)
