"""Workers as the router uses them, on any host: their description, their messages, and the start of the next one.

Nothing is decided here. `hw.router.local_workers` has those of this host.
"""

from __future__ import annotations

import contextlib
import signal
import time  # noqa: TID251 - waits for real processes
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self, TypeVar

from hw.clock import Host
from hw.transport.messages import (
    BenchmarkMove,
    Close,
    Done,
    FromWorker,
    Input,
    Keep,
    Move,
    MoveBroken,
    Moved,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Ready,
    Refused,
    Release,
    ToWorker,
    Warm,
)
from hw.transport.peers import ClockOffset, OffsetEstimate
from hw.transport.shared_memory import Arena
from hw.transport.worker_port import FLUSH_NS, PortBrokenError, PortClosedError, RouterEnd
from hw.worker.lanes import WorkerSpec
from kit.errors import WorkError, in_a_line
from policies.vocabulary import NS_PER_S

START_TIMEOUT_S: Final = 300.0
ANSWER_TIMEOUT_S: Final = 600.0
_RESET_S: Final = 30.0  # between runs: work in progress is finished first
_CLOCK_PINGS: Final = 16

Answer = TypeVar("Answer")


class WorkerDiedError(WorkError):
    """A worker's process ended unexpectedly."""


class WorkerHandle(ABC):
    """A worker as the router uses it, on any host.

    The caller either reads `port` itself or uses the synchronous calls, which assume that nothing else is in progress;
    not both at once.

    Args:
        spec: of the worker.
        port: to it.
        shares_clock: whether its clock is this process's.
        host: this process's.

    Attributes:
        ready: its first message; None before it has arrived.
        is_warm: whether it has run every work key; `is_warming`: whether it was asked to, and has not answered yet.
        incarnation: must be fenced off by others when it is killed; 0 if it certainly writes no more.
        address: of its listener, for other workers' writes; empty if all map its arena.
    """

    worker_id: int = 0
    address: str = ""

    def __init__(self, spec: WorkerSpec, port: RouterEnd, *, shares_clock: bool, host: Host | None = None) -> None:
        self._host = host or Host()
        self.spec = spec
        self.port = port
        self.shares_clock = shares_clock
        self.is_warm = self.is_warming = False
        self._estimate = OffsetEstimate()
        self._pinged_ns: dict[int, int] = {}
        self.ready: Ready | None = None
        self._heard: deque[FromWorker] = deque()
        self._number = 0

    @property
    @abstractmethod
    def pid(self) -> int:
        """The id of its process."""

    @abstractmethod
    def log(self) -> Callable[[], bytes]:
        """Return a function that reads its scheduler's log of the run, as far as written; also once it was killed.

        `hw.transport.shared_memory.steps_of` parses that log; the function keeps nothing of the worker itself.
        """

    @abstractmethod
    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal for a planned fault."""

    @abstractmethod
    def kill(self) -> None:
        """End it by force, even if it hangs; see `worker_id`."""

    @abstractmethod
    def close(self) -> None:
        """End it, gently, then by force; nothing is left behind. May be called twice."""

    @abstractmethod
    def _how_it_died(self) -> str:
        """Describe in a few words how it died, for people, once its port is closed."""

    @property
    def context_bytes(self) -> int:
        """Device memory that it uses with nothing loaded; 0 before it is ready."""
        return self.ready.context_bytes if self.ready is not None else 0

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> Ready:
        """Return the process's first message once it is up.

        Raises:
            WorkError: it could not start.
        """
        if self.ready is None:
            try:
                self.ready = self.expect(Ready, timeout_s)
            except BaseException:
                self.close()
                raise
        return self.ready

    # ------------------------------------------------------------------------------------------------------- its clock

    @property
    def offset(self) -> ClockOffset:
        """The offset of its clock from this process's: 0 if they are one, otherwise as estimated from pings so far."""
        if self.shares_clock:
            return ClockOffset()
        assert self._estimate.best is not None, "no ping was answered yet"
        return self._estimate.best

    @property
    def clock_jumps(self) -> int:
        """The number of jumps of its clock that were noticed."""
        return self._estimate.jumps

    def ping(self, number: int) -> Ping:
        """Make a ping, to be sent at once."""
        self._pinged_ns[number] = self._host.clock_ns()
        return Ping(number)

    def note_pong(self, pong: Pong) -> bool:
        """Process an answer, as soon as it has arrived; return whether the estimate of `offset` has improved."""
        pinged_ns = self._pinged_ns.pop(pong.number, None)
        if self.shares_clock or pinged_ns is None:
            return False
        before = self._estimate.best
        self._estimate.heard(pinged_ns, pong.clock_ns, self._host.clock_ns())
        return self._estimate.best is not before

    def find_offset(self) -> None:
        """Query its clock several times, if it is another one; before a run, while nothing else is in progress."""
        for _ in range(0 if self.shares_clock else _CLOCK_PINGS):
            self.send(self.ping(-self.next_number()))
            self.note_pong(self.expect(Pong))

    # -------------------------------------------------------------------------------------------------- synchronous

    def send(self, message: ToWorker, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Send a request now; raises `WorkerDiedError` if the worker is gone, `WorkError` if it accepts nothing."""
        until_ns = self._host.clock_ns() + round(timeout_s * NS_PER_S)
        self.port.post(message)
        try:
            while not self.port.flush():
                if self._host.clock_ns() >= until_ns:
                    raise WorkError(f"worker {self.spec.name} took nothing within {timeout_s:g} s")
                self._host.wait((), FLUSH_NS / NS_PER_S)
        except PortClosedError:
            raise self._death() from None

    def receive(self, timeout_s: float = ANSWER_TIMEOUT_S) -> FromWorker:
        """Return the next answer; raises `WorkerDiedError` if none will come, `WorkError` if none came in time."""
        until_ns = self._host.clock_ns() + round(timeout_s * NS_PER_S)
        while not self._heard:
            if self.port.fileno() < 0:  # it was closed: nothing will come
                raise self._death()
            left_s = (until_ns - self._host.clock_ns()) / NS_PER_S
            if left_s <= 0 or not self._host.wait((self.port.fileno(),), left_s):
                raise WorkError(f"worker {self.spec.name} did not answer within {timeout_s:g} s")
            try:
                self._heard += self.port.receive()
            except PortClosedError:
                raise self._death() from None
            except PortBrokenError as error:
                raise WorkerDiedError(f"worker {self.spec.name}: {error}") from None
        return self._heard.popleft()

    def hear(self) -> Sequence[FromWorker]:
        """Return its new messages, without waiting; raises `WorkerDiedError` if no more will come."""
        if self.port.fileno() >= 0 and not self._host.wait((self.port.fileno(),), 0):
            return ()
        try:
            return self.port.receive()
        except (PortClosedError, PortBrokenError):
            raise self._death() from None

    def _death(self) -> WorkerDiedError:
        return WorkerDiedError(f"worker {self.spec.name} died ({self._how_it_died()})")

    def expect(self, kind: type[Answer], timeout_s: float = ANSWER_TIMEOUT_S) -> Answer:
        """Return the next answer, which must be of a kind; raises `WorkError` for any other."""
        answer = self.receive(timeout_s)
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, Refused | MoveBroken):
            raise WorkError(f"worker {self.spec.name}: {answer.reason}: {in_a_line(answer.detail)}")
        raise WorkError(f"worker {self.spec.name} answered {answer!r} where {kind.__name__} was due")

    def ask(self, message: ToWorker, kind: type[Answer]) -> Answer:
        """Return the answer to a message, which must be of a kind; raises as `send` and `expect` do."""
        self.send(message)
        return self.expect(kind)

    def next_number(self) -> int:
        """Return a number that tags a request, so that an earlier request's answer is not taken for its own."""
        self._number += 1
        return self._number

    def begin_warming(self, batches: Sequence[int]) -> None:
        """Make it run every legal key once at each batch size."""
        self.send(Warm(self.next_number(), tuple(batches)))
        self.is_warming = True

    def end_warming(self) -> None:
        """Wait until it has run them."""
        self.expect(Done)
        self.is_warm, self.is_warming = True, False

    # ------------------------------------------------------------------------------------------------------ the end

    def prepare(
        self, server: int, keep_log: bool, timeout_s: float = ANSWER_TIMEOUT_S, *, measures_costs: bool = False
    ) -> int:
        """Make it forget earlier runs, and drop its messages about them; return the number of activations it had kept.

        Raises:
            WorkError: it does not answer in time, or is gone.
        """
        number = self.next_number()
        self.send(Prepare(number, server, keep_log, measures_costs), timeout_s)
        while True:
            answer = self.receive(timeout_s)
            if isinstance(answer, Prepared) and answer.number == number:
                return answer.forgotten
            if isinstance(answer, Refused):
                raise WorkError(f"worker {self.spec.name}: {answer.reason}: {in_a_line(answer.detail)}")

    def say_goodbye(self) -> None:
        """Ask it to exit, and close the port."""
        with contextlib.suppress(OSError, WorkError):
            self.port.post(Close())
            self.port.flush()
        self.port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def transfer_round(
    source: WorkerHandle,
    destination: int,
    payload_bytes: int,
    count: int,
    pause_s: float = 0.0,
    address: str = "",
    receiver: WorkerHandle | None = None,
) -> tuple[float, ...]:
    """Return the seconds until `payload_bytes` from this worker are in another's arena, for each of `count` moves.

    Args:
        address: see `hw.transport.messages.Move`.
        receiver: that worker, if it copies what arrives onto a device: the time then includes the copy.
    """
    request = (0,)
    source.ask(BenchmarkMove(*request, payload_bytes), Done)
    times_s = []
    for number in range(count):
        time.sleep(pause_s)
        begin_ns = time.monotonic_ns()
        moved = source.ask(Move(number, destination, 0, request, address), Moved)
        moved_s = (time.monotonic_ns() - begin_ns) / 1e9
        times_s.append(moved_s if receiver is None else moved_s + _keeping_s(receiver, moved))
    source.send(Release(request))
    return tuple(times_s)


def _keeping_s(receiver: WorkerHandle, moved: Moved) -> float:
    """Return the time in which a worker stores an input from its arena, beyond a message there and one back."""
    lasted_s = []
    for inputs in ((), (Input((0,), 0, moved.shape, moved.dtype, moved.channels_last),)):
        begin_ns = time.monotonic_ns()
        receiver.send(Keep(inputs))
        receiver.ask(Ping(0), Pong)
        lasted_s.append((time.monotonic_ns() - begin_ns) / 1e9)
    receiver.send(Release((0,)))
    return max(0.0, lasted_s[1] - lasted_s[0])


class Carrier(Protocol):
    """Transports a cluster's messages and activations: starts the workers, on this host or elsewhere."""

    def arenas(self, count: int, size_bytes: int) -> Sequence[Arena]:
        """Return one arena per worker, as the router writes to them; called once, before anything is started."""
        ...

    def arenas_of(self, worker: int) -> tuple[Arena, ...]:
        """Return the same arenas as this worker has them: its own, and those of the others, to which it writes."""
        ...

    def start(self, worker: int, spec: WorkerSpec) -> WorkerHandle:
        """Start a server's worker, or its replacement, without waiting for it."""
        ...

    def close(self) -> None:
        """Close the arenas; the workers have ended."""
        ...


class WorkerSlot:
    """A server's place in a cluster: its worker, and its replacement when that has died.

    Args:
        begin: starts a worker, without waiting for it; the same one each time.
        warm_batches: batch sizes that each worker runs once for every work key before it serves.
    """

    def __init__(self, begin: Callable[[], WorkerHandle], warm_batches: tuple[int, ...]) -> None:
        self.warm_batches = warm_batches
        self._begin = begin
        self.worker = begin()

    def start(self) -> None:
        """Start the next worker, without waiting for it; the previous one was killed."""
        self.worker = self._begin()

    def hand_over(self, begin: Callable[[], WorkerHandle], worker: WorkerHandle) -> None:
        """Switch to a worker that such a start has made; the previous one is killed."""
        self.worker.kill()
        self._begin, self.worker = begin, worker

    def begin_warming(self) -> None:
        """Begin the warm-up of a new worker, in parallel to others'."""
        if self.warm_batches and not self.worker.is_warm and not self.worker.is_warming:
            self.worker.wait_until_ready()
            self.worker.begin_warming(self.warm_batches)

    def make_ready(
        self, server: int, keep_log: bool, *, measures_costs: bool = False, may_be_gone: bool = False
    ) -> bool:
        """Wait for a worker that can serve, empty; a dead one is replaced, unless it may be gone.

        Returns:
            Whether it is there.

        Raises:
            WorkError: none can serve.
        """
        try:
            self._prepare(server, keep_log, measures_costs, _RESET_S)
        except WorkError:  # dead, hung, or in no state to continue
            self.worker.kill()
            if may_be_gone:
                return False
            self.start()
            self._prepare(server, keep_log, measures_costs, ANSWER_TIMEOUT_S)
        return True

    def _prepare(self, server: int, keep_log: bool, measures_costs: bool, timeout_s: float) -> None:
        worker = self.worker
        worker.wait_until_ready()
        self.begin_warming()
        if worker.is_warming:
            worker.end_warming()
        worker.prepare(server, keep_log, timeout_s, measures_costs=measures_costs)
        worker.find_offset()

    def close(self) -> None:
        """End it."""
        self.worker.close()


def make_all_ready(
    slots: Sequence[WorkerSlot], *, keep_log: bool, measures_costs: bool = False, drained: frozenset[int] = frozenset()
) -> frozenset[int]:
    """Wait until all can serve, empty; return those of `drained` without a worker. See `WorkerSlot.make_ready`.

    New workers warm up in parallel. Clocks drift apart during the wait for a slow one (15 ms in five minutes): all are
    queried once more at the end.
    """
    for slot in slots:
        with contextlib.suppress(WorkError):  # handled below
            slot.begin_warming()
    away = frozenset(
        index
        for index, slot in enumerate(slots)
        if not slot.make_ready(index, keep_log, measures_costs=measures_costs, may_be_gone=index in drained)
    )
    for index, slot in enumerate(slots):
        if index not in away:
            with contextlib.suppress(WorkError):  # it has died since: the run will notice
                slot.worker.find_offset()
    return away
