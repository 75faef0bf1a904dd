"""The simulation's event queue: a SimPy environment with this project's order of simultaneous events.

At one instant: arrivals, then by server the ends of transfers, micro-batches that reach their scheduler, batch starts,
batch ends, load ends, unload ends, timers, telemetry, messages that reach the router's host, faults, changes of a
device's slowdown (each by its id), and last the operator's goal, and the work of the router's host: its decision, its
received messages. The next decision starts when nothing is left at the instant (`is_instant_over`).

Recurring activities are SimPy processes that wait by `until`: arrivals, sensors, deliveries, faults, slow spells.
Single events (the end of a transfer, a load, a pass) are calls by `at`: a process begins with an extra event, after
what the same call does next, and a run with a process for each transfer was 9 % slower. A medium and the router's host
are not resources of SimPy: they book when they are free, so that the order is declared.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import IntEnum
from typing import Any, ClassVar, cast

import msgspec
import simpy


class Kind(IntEnum):
    """The kinds of events at a server, in their order at one instant."""

    TRANSFER_END = 0
    MICRO_BATCH_ARRIVAL = 1
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
ARRIVAL = 2  # SimPy uses 0 and 1 itself: its zero-delay cascades settle first
HOST = 1 << 62


def rank(server: int, kind: Kind, number: int = 0) -> int:
    """Return the rank of a server's event among those of its instant."""
    return (ARRIVAL + 1 + server * _KINDS + kind) << _ID_BITS | number


Process = Generator[simpy.Event, None, None]  # in SimPy's form: the events that it waits for, one after the other


class Moment(simpy.Event):
    """An event like SimPy's timeout, but at an absolute time, and with a rank among the events of that instant."""

    def __init__(self, event_queue: EventQueue, when_ns: int, order: int) -> None:
        self.env = event_queue
        self.callbacks = []
        self._value = None
        self._ok = True
        event_queue.schedule(self, cast(Any, order), when_ns - event_queue.now_ns)


class EventQueue(simpy.Environment):
    """The queue of events, in integer nanoseconds."""

    @property
    def now_ns(self) -> int:
        """The present time."""
        return cast(int, self._now)

    @property
    def next_ns(self) -> float:
        """The time of the next event; infinity if there is none."""
        return self.peek()

    @property
    def is_instant_over(self) -> bool:
        """Whether nothing more happens at the present time."""
        return self.peek() > self._now

    def until(self, when_ns: int, order: int) -> Moment:
        """Return an event for a process to wait for; `order` is `ARRIVAL`, `HOST` or a `rank`."""
        return Moment(self, when_ns, order)

    def at(self, when_ns: int, order: int, act: Callable[..., None], *arguments: Any) -> None:
        """Call `act` at a time, without a process."""
        self.schedule(cast(Any, _Call(act, arguments)), cast(Any, order), when_ns - cast(int, self._now))


class _Call(msgspec.Struct):
    """The cheapest object that SimPy accepts as an event that has happened and has one callback."""

    act: Callable[..., None]
    arguments: tuple[Any, ...]
    callbacks: Any = (lambda call: call.act(*call.arguments),)  # SimPy removes them when it calls them

    _ok: ClassVar[bool] = True
