"""Holds of lines in the router's FIFO, with their ends. This module has no clock and no FIFO.

A decision skips a held line; its requests stay in the FIFO. `docs/theory-of-operation.md` describes what begins and
ends a hold.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from policies.vocabulary import HoldRule

RATE_ARRIVALS: Final = 24  # arrivals that the mean gap is averaged over: independent of a cluster's speed
MAX_HOLDS: Final = 3  # by decisions, of one request before a block takes it: each costs a decision, and has a credit

Line = TypeVar("Line", bound=Hashable)


class Holdable(Protocol):
    """A request's entry in the router's ledger, as far as holds go: `held_ns` is its total time held so far."""

    deadline_ns: int | None
    entered_ns: int
    held_ns: int


class Arrivals(Protocol):
    """The arrival rate per nanosecond, and the time of the last arrival."""

    rate: float
    arrived_ns: int


def note_arrival(arrivals: Arrivals, now_ns: int) -> None:
    """Count one more arrival; a plain function, as both engines compute it."""
    if arrivals.arrived_ns > 0:  # otherwise it is the first
        passed_ns = float(now_ns - arrivals.arrived_ns)
        gap_ns = 1.0 / arrivals.rate if arrivals.rate > 0.0 else passed_ns
        arrivals.rate = 1.0 / max(1.0, gap_ns + (passed_ns - gap_ns) / RATE_ARRIVALS)
    arrivals.arrived_ns = now_ns


class _Hold(msgspec.Struct):
    """One line's hold: until the line has `requests` requests, or until a time."""

    since_ns: int
    until_ns: int
    requests: int


class HoldsState(msgspec.Struct, Generic[Line], frozen=True, array_like=True):
    """The complete state of a router's holds."""

    is_on: bool
    rule: HoldRule | None
    rate: float
    arrived_ns: int
    held: tuple[tuple[Line, _Hold], ...]


class Holds(Generic[Line]):
    """The holds of one router.

    Args:
        limit_ns: the longest total hold of a request; 0 for no holds.
        most: the size of the largest group, at which a hold ends.
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
        """The held lines."""
        return tuple(self._held)

    @property
    def next_ns(self) -> int | None:
        """The end of the next hold that ends automatically."""
        return min(hold.until_ns for hold in self._held.values()) if self._held else None  # read at each arrival

    def state(self) -> HoldsState[Line]:
        """Return the state."""
        return HoldsState(self.is_on, self._rule, self.rate, self.arrived_ns, tuple(self._held.items()))

    def resume(self, state: HoldsState[Line]) -> None:
        """Resume from a state."""
        self.is_on = state.is_on
        self._rule = state.rule
        self.rate = state.rate
        self.arrived_ns = state.arrived_ns
        self._held = dict(state.held)

    def set_rule(self, rule: HoldRule) -> None:
        """Set the rule for holds of lines that begin from now on."""
        self._rule = rule

    def left_ns(self, members: Iterable[Holdable], now_ns: int) -> int:
        """Return the longest hold of these from now on: the first request's remainder, at most until its deadline."""
        return max(0, min(self._last_ns(entry, now_ns) for entry in members) - now_ns) if self.is_on else 0

    def _last_ns(self, entry: Holdable, since_ns: int) -> int:
        last_ns = since_ns + self._limit_ns - entry.held_ns
        return last_ns if entry.deadline_ns is None else min(last_ns, entry.deadline_ns)

    def begin(self, line: Line, members: Iterable[Holdable], requests: int, wait_ns: int, now_ns: int) -> int:
        """Hold a line that is not held; returns its latest end."""
        until_ns = now_ns + min(wait_ns, self.left_ns(members, now_ns))
        self._held[line] = _Hold(now_ns, until_ns, min(requests, self._most))
        return until_ns

    def join(self, line: Line, entry: Holdable, segment: int, waiting: int, now_ns: int) -> bool:
        """Count a request that has entered a line of `waiting` requests; returns whether that ends the line's hold.

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
        """Hold a line that begins with these, its only requests, according to the rule."""
        if self._rule is None:
            return
        requests, wait_ns = self._rule.requests[segment - 1], self._rule.wait_ns[segment - 1]
        if self._rule.arrivals_ns:
            requests = max(requests, int(min(self.rate * self._rule.arrivals_ns[segment - 1], self._most)))
        requests = min(requests, self._most)
        if len(members) < requests and wait_ns > 0:
            self.begin(line, members, requests, wait_ns, now_ns)

    def end(self, line: Line, members: Iterable[Holdable], now_ns: int) -> None:
        """End a line's hold: its members were held from its start, or their entry, until now or its end."""
        hold = self._held.pop(line)
        ended_ns = min(now_ns, hold.until_ns)
        for entry in members:
            entry.held_ns += max(0, ended_ns - max(hold.since_ns, entry.entered_ns))

    def due(self, now_ns: int) -> tuple[Line, ...]:
        """Return the lines whose hold has reached its end."""
        return tuple(line for line, hold in self._held.items() if hold.until_ns <= now_ns)
