"""Several routers in one run: one of them has the seat, whose knowledge stands in the cluster's row; the others' waits.

What a router knows is `SEAT` numbers of the row from `SEAT_AT`, and the areas from `valid_at` to `observed_at`; lines
are the router's own by their numbers. A server knows its owner, and all that a server does is told to that one.
"""

from __future__ import annotations

from kit.jit import ints, ints_at, kernel
from sim.compiled.codes import NEVER, NONE
from sim.compiled.layout import SEAT, SEAT_AT, Cluster, Parameters
from sim.compiled.rows import request_at

_AT, _SEAT = SEAT_AT, SEAT
_WAKE = Cluster.offsets["wake_ns"]


@kernel
def wake_ns(c: Cluster, p: Parameters) -> int:
    """From when on a decision may be asked for; NEVER while nothing can be asked (`RouterCore.next_wake_ns`)."""
    if c.slot != NONE or c.fifo_head == NONE:
        return NEVER
    if not c.at_cap and c.held < c.fifo_length:
        return c.host_free_ns
    wake = c.next_hold_ns
    if c.at_cap and p.sheds:
        wake = min(wake, request_at(c, p, c.fifo_head).deadline_ns)
    return max(wake, c.host_free_ns)


@kernel
def sit_down(c: Cluster, p: Parameters, place: int) -> None:
    """Let a router have the seat."""
    if c.place == place:
        return
    c.wake_ns = wake_ns(c, p)
    row, seats = ints(c), ints_at(c.seats_at)
    left, taken = c.place * p.seat_size, place * p.seat_size
    for n in range(p.seat_size):
        at = _AT + n if n < _SEAT else p.valid_at + n - _SEAT
        seats[left + n] = row[at]
        row[at] = seats[taken + n]
    c.place = place


@kernel
def known_of(c: Cluster, p: Parameters, place: int, field: int) -> int:
    """What a router knows, by the field's place in `Cluster`."""
    return ints(c)[field] if place == c.place else ints_at(c.seats_at)[place * p.seat_size + field - _AT]


@kernel
def next_asker(c: Cluster, p: Parameters, due: int) -> int:
    """When a router may ask next, if nothing is due before; the first of those who may now takes the seat."""
    soonest, now = NEVER, c.now_ns
    for place in range(p.routers):
        wake = max(now, wake_ns(c, p) if place == c.place else known_of(c, p, place, _WAKE))
        if wake <= now and due > now:
            sit_down(c, p, place)
            return wake
        soonest = min(soonest, wake)
    return soonest
