"""The simulation's agenda: SimPy's event queue with this project's order of simultaneous events.

At one instant: arrivals, then by server the ends of transfers, blocks that reach their scheduler, batch starts, batch
ends, load ends, unload ends, timers, telemetry, messages that reach the router's host, faults, changes of a device's
slowdown (each by its own id), and last the operator's goal, and what the router's host has done: its decision, what it
heard. The next decision's start comes when nothing is left at the instant (`is_instant_over`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, ClassVar, cast

import msgspec
import simpy


class Kind(IntEnum):
    """What happens at a server, in the order in which it happens at one instant."""

    TRANSFER_END = 0
    BLOCK_ARRIVAL = 1
    BATCH_START = 2
    BATCH_END = 3
    LOAD_END = 4
    UNLOAD_END = 5
    TIMER = 6
    TELEMETRY = 7
    MESSAGE = 8
    FAULT = 9
    SLOWDOWN = 10


_KINDS = len(Kind)
_ID_BITS = 32
ARRIVAL = 2  # SimPy keeps 0 and 1 for itself: its zero-delay cascades settle first
HOST = 1 << 62


def rank(server: int, kind: Kind, number: int = 0) -> int:
    """The place of a server's event among those of its instant."""
    return (ARRIVAL + 1 + server * _KINDS + kind) << _ID_BITS | number


class Agenda:
    """When what happens; time is `now_ns`, integer nanoseconds."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._env = simpy.Environment()

    @property
    def next_ns(self) -> float:
        """The time of the next event; infinity when there is none."""
        when_ns: float = self._env.peek()
        return when_ns

    @property
    def is_instant_over(self) -> bool:
        """Whether nothing more happens at the present time."""
        return bool(self._env.peek() > self.now_ns)

    def at(self, when_ns: int, order: int, act: Callable[..., None], *arguments: Any) -> None:
        """Call `act` at a time; `order` is `ARRIVAL`, `HOST` or a `rank`."""
        appointment: Any = _Appointment(self, when_ns, act, arguments)
        self._env.schedule(appointment, cast(Any, order), when_ns - self.now_ns)

    def step(self) -> None:
        """Go to the next event and let it happen."""
        self._env.step()


def _happen(appointment: _Appointment) -> None:
    appointment.agenda.now_ns = appointment.when_ns
    appointment.act(*appointment.arguments)


class _Appointment(msgspec.Struct):
    """What SimPy asks of an event that has already succeeded and has one callback: the cheapest kind there is."""

    agenda: Agenda
    when_ns: int
    act: Callable[..., None]
    arguments: tuple[Any, ...]
    callbacks: Any = (_happen,)  # SimPy takes them away when it calls them

    _ok: ClassVar[bool] = True
