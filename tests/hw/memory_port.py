"""The port within one process, for tests: an agent is a thread, with a clock and arenas of its own as on another host.

Two ends are joined by two queues. What travels is encoded and decoded, and activations are copied, so that the ends
share no object. Like a wire a queue keeps its order: activations go the way that messages go.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time  # noqa: TID251 - a clock of a test is made from the real one
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from hw.agent.lanes import Tell
from hw.agent.outfit import AgentSpec, Fitting, Outfit
from hw.agent.process import Agent
from hw.host.waiting import Host
from hw.router.agents import AgentHandle
from hw.transport.arena import Arena
from hw.transport.life_log import LifeLog
from hw.transport.messages import FromAgent, Refused, ToAgent
from hw.transport.port import Codec, PortClosedError, encode

ROOM_BYTES: Final = 1 << 20
_ENDING_S: Final = 5.0

Placed = tuple[int, bytes]  # from where on in the receiver's arena, and what


class Wire:
    """One direction: what was sent and not taken yet, in its order. Any thread may use it.

    Args:
        room_bytes: of frames that it holds before it takes no more.
    """

    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        self.readable, self._nudge = os.pipe()
        self._room_bytes = room_bytes
        self._lock = threading.Lock()
        self._parcels: deque[bytes | Placed] = deque()
        self._held_bytes = 0
        self._is_sent_to = self._is_read = True

    def send(self, frame: bytes) -> bool:
        """False where there is no room; raises `PortClosedError` where nobody reads."""
        with self._lock:
            if not (self._is_read and self._is_sent_to):
                raise PortClosedError("the other end is gone")
            if self._held_bytes and self._held_bytes + len(frame) > self._room_bytes:
                return False
            self._held_bytes += len(frame)
            self._put(frame)
            return True

    def place(self, offset: int, data: bytes) -> None:
        """Activations for the reader's arena; dropped where nobody reads, as what is written for the dead is."""
        with self._lock:
            if self._is_read and self._is_sent_to:
                self._put((offset, data))

    def _put(self, parcel: bytes | Placed) -> None:
        if not self._parcels:
            os.write(self._nudge, b"!")
        self._parcels.append(parcel)

    def take(self) -> list[bytes | Placed]:
        """All that has come; raises `PortClosedError` where nothing will come any more."""
        with self._lock:
            found = list(self._parcels)
            if found:
                os.read(self.readable, 1)
                self._parcels.clear()
                self._held_bytes = 0
            elif not (self._is_sent_to and self._is_read):
                raise PortClosedError("the other end is gone")
            return found

    def end_sending(self) -> None:
        """Nothing more will be sent: what was sent may still be taken, and then the end is seen."""
        with self._lock:
            if self._is_sent_to:
                self._is_sent_to = False
                os.close(self._nudge)

    def end_reading(self) -> None:
        """Nobody will take anything any more; for the thread that has read."""
        with self._lock:
            if self._is_read:
                self._is_read = False
                self._parcels.clear()
                os.close(self.readable)

    def cut(self) -> None:
        """What was sent is lost, and the reader sees the end; from any thread."""
        self.end_sending()
        with self._lock:
            self._parcels.clear()


class MemoryPort:
    """One end.

    Args:
        out, back: the wires from here and to here.
        kind: what comes.
        arena: what is placed comes there; None where nothing is.
    """

    def __init__(self, out: Wire, back: Wire, kind: object, arena: Arena | None = None) -> None:
        self._out = out
        self._back = back
        self._codec: Codec[Any] = Codec(kind)
        self._arena = arena
        self._outbox: list[Any] = []
        self._unsent: deque[bytes] = deque()
        self._is_closed = False

    def post(self, message: Any) -> None:
        """See `Port`."""
        self._outbox.append(message)

    def flush(self) -> bool:
        """See `Port`."""
        if self._outbox:
            self._unsent.append(encode(self._outbox))
            self._outbox.clear()
        while self._unsent and self._out.send(self._unsent[0]):
            self._unsent.popleft()
        return not self._unsent

    def receive(self) -> Sequence[Any]:
        """See `Port`."""
        found: list[Any] = []
        for parcel in self._back.take():
            if isinstance(parcel, bytes):
                found += self._codec.decode(parcel)
            elif self._arena is not None:
                offset, data = parcel
                self._arena.view(offset, len(data))[:] = data
        return found

    def fileno(self) -> int:
        """See `Port`."""
        return -1 if self._is_closed else self._back.readable

    def close(self) -> None:
        """See `Port`."""
        self._is_closed = True
        self._out.end_sending()
        self._back.end_reading()

    def sever(self) -> None:
        """From any thread: this end's own wakes up and sees the end. What was sent before may still be heard."""
        self._out.end_sending()
        self._back.cut()


class Mirror(Arena):
    """Somebody else's arena: what is written here stands there once it is committed.

    Args:
        wire: the one to its agent, at the time of asking.
    """

    def __init__(self, size_bytes: int, wire: Callable[[], Wire]) -> None:
        super().__init__(size_bytes)
        self._wire = wire

    def commit(self, offset: int, size_bytes: int, address: str = "") -> None:
        """See `Arena`: it overtakes no message, and no message that is sent later overtakes it."""
        self._wire().place(offset, bytes(self.view(offset, size_bytes)))


class _Held:
    """An outfit of which is kept what it was fitted with, so that its lanes can be ended."""

    def __init__(self, outfit: Outfit) -> None:
        self._outfit = outfit
        self.fitting: Fitting | None = None

    def fit(self, tell: Tell, clock_ns: Callable[[], int]) -> Fitting:
        """See `Outfit`."""
        self.fitting = self._outfit.fit(tell, clock_ns)
        return self.fitting


class MemoryAgent(AgentHandle):
    """An agent in a thread of this process.

    Args:
        spec: what to start.
        ends: the router's and its own.
        clock_ns: its clock.
    """

    def __init__(self, spec: AgentSpec, ends: tuple[MemoryPort, MemoryPort], clock_ns: Callable[[], int]) -> None:
        port, self._end = ends
        super().__init__(spec, port, shares_clock=False)
        self._log = LifeLog()
        self._clock_ns = clock_ns
        self._thread = threading.Thread(target=self._main, name=f"agent-{spec.name}", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        held = _Held(self.spec.outfit)
        with contextlib.closing(self._end) as end:
            try:
                agent = Agent(end, held, self.spec.service, self._log, Host(self._clock_ns), lambda _: end.sever())
            except Exception as error:
                end.post(Refused("internal_error", f"{type(error).__name__}: {error}"))
                with contextlib.suppress(PortClosedError):
                    end.flush()
                return
            agent.loop()
        if held.fitting is not None:
            held.fitting.lanes.reset()

    @property
    def pid(self) -> int:
        """See `AgentHandle`: this one."""
        return os.getpid()

    @property
    def alive(self) -> bool:
        """See `AgentHandle`."""
        return self._thread.is_alive()

    def log(self) -> Callable[[], bytes]:
        """See `AgentHandle`."""
        return self._log.read

    def send_signal(self, number: signal.Signals) -> None:
        """See `AgentHandle`: a thread can be ended only."""
        assert number == signal.SIGKILL, f"{number!r} is not for a thread"
        self._end.sever()

    def kill(self) -> None:
        """See `AgentHandle`: whatever it still does, nobody hears of it."""
        self._end.sever()
        self.port.close()

    def close(self) -> None:
        """See `AgentHandle`."""
        self.say_goodbye()
        self._thread.join(_ENDING_S)
        self._log.close()

    def _how_it_died(self) -> str:
        return "a thread"


class Memory:
    """`hw.router.agents.Carrier` within this process: an agent is a thread, and nothing is shared.

    Args:
        clocks: by agent, of those whose clock is not this host's.
    """

    def __init__(self, clocks: Sequence[Callable[[], int]] = ()) -> None:
        self._clocks = tuple(clocks)
        self._wires: dict[int, Wire] = {}  # to each agent
        self._own: list[Arena] = []
        self._made: list[Arena] = []

    def arenas(self, count: int, size_bytes: int) -> Sequence[Arena]:
        """See `Carrier`."""
        self._own = [self._keep(Arena(size_bytes)) for _ in range(count)]
        return [self._mirror(agent) for agent in range(count)]

    def arenas_of(self, agent: int) -> tuple[Arena, ...]:
        """See `Carrier`."""
        return tuple(own if index == agent else self._mirror(index) for index, own in enumerate(self._own))

    def _mirror(self, agent: int) -> Arena:
        return self._keep(Mirror(self._own[agent].size_bytes, lambda: self._wires[agent]))

    def _keep(self, arena: Arena) -> Arena:
        self._made.append(arena)
        return arena

    def start(self, agent: int, spec: AgentSpec) -> AgentHandle:
        """See `Carrier`."""
        clock_ns = self._clocks[agent] if agent < len(self._clocks) else time.monotonic_ns
        return MemoryAgent(spec, self.ends(agent), clock_ns)

    def ends(self, agent: int) -> tuple[MemoryPort, MemoryPort]:
        """The router's and the agent's, of a new pair; activations for the agent go this way from here on."""
        there = self._wires[agent] = Wire()
        back = Wire()
        return MemoryPort(there, back, FromAgent), MemoryPort(back, there, ToAgent, self._own[agent])

    def close(self) -> None:
        """See `Carrier`."""
        for arena in self._made:
            arena.close()
