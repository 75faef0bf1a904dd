"""Agents as the router sees them, wherever they run: what each is, how it is spoken to, and who starts the next one.

Nothing is decided here. `hw.router.local_agents` has those of this host.
"""

from __future__ import annotations

import contextlib
import signal
import time  # noqa: TID251 - waits for real processes
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self, TypeVar

from hw.agent.outfit import AgentSpec
from hw.host.waiting import Host
from hw.transport.arena import Arena
from hw.transport.clock_offset import ClockOffset, OffsetEstimate
from hw.transport.messages import (
    BenchmarkMove,
    Close,
    Done,
    FromAgent,
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
    ToAgent,
    Warm,
)
from hw.transport.port import FLUSH_NS, PortBrokenError, PortClosedError, RouterEnd
from kit.errors import WorkError, in_a_line
from policies.vocabulary import NS_PER_S

START_TIMEOUT_S: Final = 300.0
ANSWER_TIMEOUT_S: Final = 600.0
_RESET_S: Final = 30.0  # between runs: what runs is finished first
_CLOCK_PINGS: Final = 16

Answer = TypeVar("Answer")


class AgentDiedError(WorkError):
    """An agent's process ended by itself."""


class AgentHandle(ABC):
    """An agent as the router sees it, wherever it runs.

    Whoever drives it either reads `port` itself or uses the synchronous calls, which assume that nothing else is under
    way; not both at once.

    Args:
        spec: what it is.
        port: to it.
        shares_clock: whether its clock is this process's.
        host: this process's.

    Attributes:
        ready: its first words; None before they have come.
        is_warm: whether it has run every work key; `is_warming`: whether it was asked to, and has not answered yet.
        incarnation: what others must fence off when it is killed; 0 where it surely writes nowhere any more.
        address: where the other agents write to it; empty where all map its arena.
    """

    incarnation: int = 0
    address: str = ""

    def __init__(self, spec: AgentSpec, port: RouterEnd, *, shares_clock: bool, host: Host | None = None) -> None:
        self._host = host or Host()
        self.spec = spec
        self.port = port
        self.shares_clock = shares_clock
        self.is_warm = self.is_warming = False
        self._estimate = OffsetEstimate()
        self._pinged_ns: dict[int, int] = {}
        self.ready: Ready | None = None
        self._heard: deque[FromAgent] = deque()
        self._number = 0

    @property
    @abstractmethod
    def pid(self) -> int:
        """Of its process."""

    @abstractmethod
    def log(self) -> Callable[[], bytes]:
        """What reads all that its scheduler has done in the run, as far as it was written; also once it was killed.

        `hw.transport.step_log.steps_of` reads that; of the agent itself nothing is kept.
        """

    @abstractmethod
    def send_signal(self, number: signal.Signals) -> None:
        """What happens to it by a planned fault."""

    @abstractmethod
    def kill(self) -> None:
        """End it by force, whatever it is doing, even nothing at all; see `incarnation`."""

    @abstractmethod
    def close(self) -> None:
        """End it, gently, then by force; nothing is left behind. May be called twice."""

    @abstractmethod
    def _how_it_died(self) -> str:
        """In a few words, for people, once its port is closed."""

    @property
    def context_bytes(self) -> int:
        """Device memory that it uses with nothing loaded; 0 before it is ready."""
        return self.ready.context_bytes if self.ready is not None else 0

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> Ready:
        """What the process said of itself when it was up.

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
        """How far its clock is ahead of this process's: 0 where they are one, else as the pings so far say."""
        if self.shares_clock:
            return ClockOffset()
        assert self._estimate.best is not None, "no ping was answered yet"
        return self._estimate.best

    @property
    def clock_jumps(self) -> int:
        """How often its clock was seen to jump."""
        return self._estimate.jumps

    def ping(self, number: int) -> Ping:
        """A ping, to be sent at once."""
        self._pinged_ns[number] = self._host.clock_ns()
        return Ping(number)

    def note_pong(self, pong: Pong) -> bool:
        """An answer, to be told of as soon as it has come; returns whether `offset` is known better now."""
        pinged_ns = self._pinged_ns.pop(pong.number, None)
        if self.shares_clock or pinged_ns is None:
            return False
        before = self._estimate.best
        self._estimate.heard(pinged_ns, pong.clock_ns, self._host.clock_ns())
        return self._estimate.best is not before

    def find_offset(self) -> None:
        """Before a run, while nothing else is under way: ask its clock several times, where it is another one."""
        for _ in range(0 if self.shares_clock else _CLOCK_PINGS):
            self.send(self.ping(-self.next_number()))
            self.note_pong(self.expect(Pong))

    # -------------------------------------------------------------------------------------------------- synchronous

    def send(self, message: ToAgent, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Ask for something now; raises `AgentDiedError` where nobody is there, `WorkError` where it takes nothing."""
        until_ns = self._host.clock_ns() + round(timeout_s * NS_PER_S)
        self.port.post(message)
        try:
            while not self.port.flush():
                if self._host.clock_ns() >= until_ns:
                    raise WorkError(f"agent {self.spec.name} took nothing within {timeout_s:g} s")
                self._host.wait((), FLUSH_NS / NS_PER_S)
        except PortClosedError:
            raise self._death() from None

    def receive(self, timeout_s: float = ANSWER_TIMEOUT_S) -> FromAgent:
        """The next answer; raises `AgentDiedError` where none will come, `WorkError` where none came in time."""
        until_ns = self._host.clock_ns() + round(timeout_s * NS_PER_S)
        while not self._heard:
            if self.port.fileno() < 0:  # it was closed: nothing will come
                raise self._death()
            left_s = (until_ns - self._host.clock_ns()) / NS_PER_S
            if left_s <= 0 or not self._host.wait((self.port.fileno(),), left_s):
                raise WorkError(f"agent {self.spec.name} did not answer within {timeout_s:g} s")
            try:
                self._heard += self.port.receive()
            except PortClosedError:
                raise self._death() from None
            except PortBrokenError as error:
                raise AgentDiedError(f"agent {self.spec.name}: {error}") from None
        return self._heard.popleft()

    def hear(self) -> Sequence[FromAgent]:
        """What it has said, without waiting; raises `AgentDiedError` where nothing will come any more."""
        if self.port.fileno() >= 0 and not self._host.wait((self.port.fileno(),), 0):
            return ()
        try:
            return self.port.receive()
        except (PortClosedError, PortBrokenError):
            raise self._death() from None

    def _death(self) -> AgentDiedError:
        return AgentDiedError(f"agent {self.spec.name} died ({self._how_it_died()})")

    def expect(self, kind: type[Answer], timeout_s: float = ANSWER_TIMEOUT_S) -> Answer:
        """The next answer, which must be of a kind; raises `WorkError` for any other."""
        answer = self.receive(timeout_s)
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, Refused | MoveBroken):
            raise WorkError(f"agent {self.spec.name}: {answer.reason}: {in_a_line(answer.detail)}")
        raise WorkError(f"agent {self.spec.name} answered {answer!r} where {kind.__name__} was due")

    def ask(self, message: ToAgent, kind: type[Answer]) -> Answer:
        """The answer to a message, which must be of a kind; raises as `send` and `expect` do."""
        self.send(message)
        return self.expect(kind)

    def next_number(self) -> int:
        """For something whose answer must not be taken for that of something earlier."""
        self._number += 1
        return self._number

    def begin_warming(self, batches: Sequence[int]) -> None:
        """Have it run every legal key once at each batch size."""
        self.send(Warm(self.next_number(), tuple(batches)))
        self.is_warming = True

    def end_warming(self) -> None:
        """Wait until it has."""
        self.expect(Done)
        self.is_warm, self.is_warming = True, False

    # ------------------------------------------------------------------------------------------------------ the end

    def prepare(
        self, server: int, keep_log: bool, timeout_s: float = ANSWER_TIMEOUT_S, *, measures_costs: bool = False
    ) -> int:
        """Make it forget earlier runs, and drop what it still says of them; returns how many activations it had kept.

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
                raise WorkError(f"agent {self.spec.name}: {answer.reason}: {in_a_line(answer.detail)}")

    def say_goodbye(self) -> None:
        """Ask it to leave, and let go of the port."""
        with contextlib.suppress(OSError, WorkError):
            self.port.post(Close())
            self.port.flush()
        self.port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def transfer_round(
    source: AgentHandle,
    destination: int,
    payload_bytes: int,
    count: int,
    pause_s: float = 0.0,
    address: str = "",
    receiver: AgentHandle | None = None,
) -> tuple[float, ...]:
    """Seconds from the command until `payload_bytes` stand in another agent's arena, for each of `count` moves.

    Args:
        address: see `hw.transport.messages.Move`.
        receiver: that agent, where it copies what arrives onto a device: then until they stand there.
    """
    request = (0,)
    source.ask(BenchmarkMove(*request, payload_bytes), Done)
    times = []
    for number in range(count):
        time.sleep(pause_s)
        begin_ns = time.monotonic_ns()
        moved = source.ask(Move(number, destination, 0, request, address), Moved)
        moved_s = (time.monotonic_ns() - begin_ns) / 1e9
        times.append(moved_s if receiver is None else moved_s + _keeping_s(receiver, moved))
    source.send(Release(request))
    return tuple(times)


def _keeping_s(receiver: AgentHandle, moved: Moved) -> float:
    """What it takes an agent to keep what stands in its arena, beyond a word there and one back."""
    lasted_s = []
    for inputs in ((), (Input((0,), 0, moved.shape, moved.dtype, moved.channels_last),)):
        begin_ns = time.monotonic_ns()
        receiver.send(Keep(inputs))
        receiver.ask(Ping(0), Pong)
        lasted_s.append((time.monotonic_ns() - begin_ns) / 1e9)
    receiver.send(Release((0,)))
    return max(0.0, lasted_s[1] - lasted_s[0])


class Carrier(Protocol):
    """What carries the messages and activations of a cluster: it starts the agents, on this host or elsewhere."""

    def arenas(self, count: int, size_bytes: int) -> Sequence[Arena]:
        """One for each agent, as the router writes to them; called once, before anything is started."""
        ...

    def arenas_of(self, agent: int) -> tuple[Arena, ...]:
        """The same as this agent has them: its own, and those of the others, to which it writes."""
        ...

    def start(self, agent: int, spec: AgentSpec) -> AgentHandle:
        """Start an agent, or the next one in its place, without waiting for it."""
        ...

    def close(self) -> None:
        """Let go of the arenas; the agents have ended."""
        ...


class AgentSlot:
    """A server's place in a cluster: its agent, and the next one when that has died.

    Args:
        begin: starts an agent, without waiting for it; the same one each time.
        warm_batches: batch sizes that each runs once for every work key before it serves.
    """

    def __init__(self, begin: Callable[[], AgentHandle], warm_batches: tuple[int, ...]) -> None:
        self.warm_batches = warm_batches
        self._begin = begin
        self.agent = begin()

    def start(self) -> None:
        """Start the next agent, without waiting for it; the one before was killed."""
        self.agent = self._begin()

    def hand_over(self, begin: Callable[[], AgentHandle], agent: AgentHandle) -> None:
        """To an agent that such a start has made; the one before is killed."""
        self.agent.kill()
        self._begin, self.agent = begin, agent

    def begin_warming(self) -> None:
        """Have an agent that is new run what it must before it serves: others do so meanwhile."""
        if self.warm_batches and not self.agent.is_warm and not self.agent.is_warming:
            self.agent.wait_until_ready()
            self.agent.begin_warming(self.warm_batches)

    def make_ready(
        self, server: int, keep_log: bool, *, measures_costs: bool = False, may_be_gone: bool = False
    ) -> bool:
        """Wait for an agent that can serve, empty; a dead one is replaced, unless it may be gone.

        Returns:
            Whether it is there.

        Raises:
            WorkError: none can serve.
        """
        try:
            self._prepare(server, keep_log, measures_costs, _RESET_S)
        except WorkError:  # dead, hung, or in no state to go on
            self.agent.kill()
            if may_be_gone:
                return False
            self.start()
            self._prepare(server, keep_log, measures_costs, ANSWER_TIMEOUT_S)
        return True

    def _prepare(self, server: int, keep_log: bool, measures_costs: bool, timeout_s: float) -> None:
        agent = self.agent
        agent.wait_until_ready()
        self.begin_warming()
        if agent.is_warming:
            agent.end_warming()
        agent.prepare(server, keep_log, timeout_s, measures_costs=measures_costs)
        agent.find_offset()

    def close(self) -> None:
        """End it."""
        self.agent.close()


def make_all_ready(
    slots: Sequence[AgentSlot], *, keep_log: bool, measures_costs: bool = False, drained: frozenset[int] = frozenset()
) -> frozenset[int]:
    """Wait until everybody can serve, empty; returns who of those that may be gone is. See `AgentSlot.make_ready`.

    New ones warm up side by side. Clocks drift apart while a slow one is waited for (15 ms in five minutes): all are
    asked for once more at the end.
    """
    for slot in slots:
        with contextlib.suppress(WorkError):  # it is met again below
            slot.begin_warming()
    away = frozenset(
        index
        for index, slot in enumerate(slots)
        if not slot.make_ready(index, keep_log, measures_costs=measures_costs, may_be_gone=index in drained)
    )
    for index, slot in enumerate(slots):
        if index not in away:
            with contextlib.suppress(WorkError):  # it has died since: whoever runs will notice
                slot.agent.find_offset()
    return away
