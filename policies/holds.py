"""Which lines of the router's FIFO are held back, and until when. It has no clock, and knows no FIFO.

A held line is passed over when a decision is asked for; its requests stay where they are. What begins and ends a hold
stands in `docs/theory-of-operation.md`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from policies.vocabulary import HoldRule

RATE_ARRIVALS: Final = 24  # over which the time between two is averaged: independent of a cluster's speed
MAX_HOLDS: Final = 3  # by decisions, of one request before a block takes it: each costs a decision, and has a credit

Line = TypeVar("Line", bound=Hashable)


class Holdable(Protocol):
    """A request's entry in the router's ledger, as far as holds go: `held_ns` is for how long it was held so far."""

    deadline_ns: int | None
    entered_ns: int
    held_ns: int


class Arrivals(Protocol):
    """How many arrive a nanosecond, and when the last one did."""

    rate: float
    arrived_ns: int


def note_arrival(arrivals: Arrivals, now_ns: int) -> None:
    """One more; both engines compute this, so it is a plain function."""
    if arrivals.arrived_ns > 0:  # otherwise it is the first
        passed_ns = float(now_ns - arrivals.arrived_ns)
        gap_ns = 1.0 / arrivals.rate if arrivals.rate > 0.0 else passed_ns
        arrivals.rate = 1.0 / max(1.0, gap_ns + (passed_ns - gap_ns) / RATE_ARRIVALS)
    arrivals.arrived_ns = now_ns


class _Hold(msgspec.Struct):
    """One line's hold: until so many wait, or until a time."""

    since_ns: int
    until_ns: int
    requests: int


class HoldsState(msgspec.Struct, Generic[Line], frozen=True, array_like=True):
    """All that a router's holds remember."""

    is_on: bool
    rule: HoldRule | None
    rate: float
    arrived_ns: int
    held: tuple[tuple[Line, _Hold], ...]


class Holds(Generic[Line]):
    """The holds of one router.

    Args:
        limit_ns: for how long a request may be held in all; 0 holds nobody.
        most: the largest group: nobody waits for more.
    """

    def __init__(self, limit_ns: int, most: int) -> None:
        self.is_on = limit_ns > 0
        self._limit_ns, self._most = limit_ns, most
        self._rule: HoldRule | None = None
        self.rate, self.arrived_ns = 0.0, 0
        self._held: dict[Line, _Hold] = {}

    def __contains__(self, line: Line) -> bool:
        return line in self._held

    @property
    def lines(self) -> tuple[Line, ...]:
        """Those that are held."""
        return tuple(self._held)

    @property
    def next_ns(self) -> int | None:
        """When the next hold ends by itself."""
        return min(hold.until_ns for hold in self._held.values()) if self._held else None  # asked at each arrival

    def state(self) -> HoldsState[Line]:
        """What they remember now."""
        return HoldsState(self.is_on, self._rule, self.rate, self.arrived_ns, tuple(self._held.items()))

    def resume(self, state: HoldsState[Line]) -> None:
        """Go on from there."""
        self.is_on = state.is_on
        self._rule = state.rule
        self.rate = state.rate
        self.arrived_ns = state.arrived_ns
        self._held = dict(state.held)

    def set_rule(self, rule: HoldRule) -> None:
        """By this, lines that begin from now on are held."""
        self._rule = rule

    def left_ns(self, members: Iterable[Holdable], now_ns: int) -> int:
        """For how long these may be held from now on: what is left to the first of them, its deadline at most."""
        return max(0, min(self._last_ns(entry, now_ns) for entry in members) - now_ns) if self.is_on else 0

    def _last_ns(self, entry: Holdable, since_ns: int) -> int:
        last_ns = since_ns + self._limit_ns - entry.held_ns
        return last_ns if entry.deadline_ns is None else min(last_ns, entry.deadline_ns)

    def begin(self, line: Line, members: Iterable[Holdable], requests: int, wait_ns: int, now_ns: int) -> int:
        """Hold a line that is not held; returns until when at most."""
        until_ns = now_ns + min(wait_ns, self.left_ns(members, now_ns))
        self._held[line] = _Hold(now_ns, until_ns, min(requests, self._most))
        return until_ns

    def join(self, line: Line, entry: Holdable, segment: int, waiting: int, now_ns: int) -> bool:
        """A request has entered a line, in which so many wait now; returns whether that ends the line's hold.

        The rule holds a line that begins with it (`begin_by_rule`).
        """
        hold = self._held.get(line)
        if hold is not None:
            hold.until_ns = min(hold.until_ns, self._last_ns(entry, now_ns))
            return waiting >= hold.requests
        if waiting == 1:
            self.begin_by_rule(line, (entry,), segment, now_ns)
        return False

    def begin_by_rule(self, line: Line, members: Sequence[Holdable], segment: int, now_ns: int) -> None:
        """Hold a line that begins with these, who are all in it, as the rule says."""
        if self._rule is None:
            return
        requests, wait_ns = self._rule.requests[segment - 1], self._rule.wait_ns[segment - 1]
        if self._rule.arrivals_ns:
            requests = max(requests, int(min(self.rate * self._rule.arrivals_ns[segment - 1], self._most)))
        requests = min(requests, self._most)
        if len(members) < requests and wait_ns > 0:
            self.begin(line, members, requests, wait_ns, now_ns)

    def end(self, line: Line, members: Iterable[Holdable], now_ns: int) -> None:
        """A line's hold is over: its members have been held from its start, or their entry, until now or its end."""
        hold = self._held.pop(line)
        ended_ns = min(now_ns, hold.until_ns)
        for entry in members:
            entry.held_ns += max(0, ended_ns - max(hold.since_ns, entry.entered_ns))

    def due(self, now_ns: int) -> tuple[Line, ...]:
        """The lines whose time is over."""
        return tuple(line for line, hold in self._held.items() if hold.until_ns <= now_ns)
