"""The router's and the servers' FIFO queues, and batching delays, compiled.

Batching delays are `policies.router_queue.Holds`, with the part of `RouterCore`; the held lines are in a list.

The router's FIFO and a server's queue consist of lists through `Request.next`, one for each key, oldest first. The
router's requests are in one more list in the overall order; a server keeps its keys in the order of their oldest
request.
"""

from __future__ import annotations

from collections.abc import Callable

from kit.jit import ints, kernel, kernel_of
from policies.router_queue import MAX_HOLDS
from policies.router_queue import note_arrival as _note_arrival
from sim.compiled.row_access import energy_j, key_at, line_at, request_at, utilization_variance
from sim.compiled.row_layout import (
    ALONE,
    NEVER,
    NONE,
    ORDER_AT,
    Arrivals,
    Cluster,
    Credit,
    HoldMade,
    Member,
    Parameters,
    Request,
    Server,
)

_OF_REQUEST, _OF_MEMBER = Request.offsets["first_hold"], Member.offsets["first_hold"]
_CREDIT = Credit.size
_NS = 1_000_000_000

note_arrival: Callable[[Arrivals, int], None] = kernel_of(_note_arrival)


# ---------------------------------------------------------------------------------------------------------------- holds


@kernel
def left_ns(c: Cluster, p: Parameters, slot: int, count: int, now: int) -> int:
    """Return the longest hold of a line's requests, from its oldest on (`Holds.left_ns`)."""
    least = NEVER
    for _ in range(count):
        request = request_at(c, p, slot)
        least = min(least, min(now + p.max_batching_delay_ns - request.held_ns, request.deadline_ns))
        slot = request.next
    return max(0, least - now)


@kernel
def may_hold_ns(c: Cluster, p: Parameters, slot: int, candidates: int, now: int) -> int:
    """Return the longest hold in a decision's view (`RouterCore._hold_left_ns`)."""
    request = request_at(c, p, slot)
    if c.may_hold == 0 or candidates >= p.group or request.line == ALONE or request.holds >= MAX_HOLDS:
        return 0
    return left_ns(c, p, slot, candidates, now)


@kernel
def _begin(c: Cluster, p: Parameters, number: int, requests: int, wait_ns: int, now: int) -> None:
    """Run `Holds.begin`."""
    line = line_at(c, p, number)
    line.is_held, line.since_ns = 1, now
    line.until_ns = now + min(wait_ns, left_ns(c, p, line.head, line.count, now))
    line.requests = min(requests, p.group)
    line.previous_held, line.next_held = NONE, c.first_held
    if c.first_held != NONE:
        line_at(c, p, c.first_held).previous_held = number
    c.first_held = number
    c.held += line.count
    c.next_hold_ns = min(c.next_hold_ns, line.until_ns)


@kernel
def join(c: Cluster, p: Parameters, slot: int, now: int) -> None:
    """Note a request that has entered its line (`Holds.join`)."""
    request = request_at(c, p, slot)
    if c.may_hold == 0 or request.line == ALONE:
        return
    line = line_at(c, p, request.line)
    if line.is_held:
        c.held += 1
        last = min(now + p.max_batching_delay_ns - request.held_ns, request.deadline_ns)
        line.until_ns = min(line.until_ns, last)
        c.next_hold_ns = min(c.next_hold_ns, last)
        if line.count >= line.requests:
            end_hold(c, p, request.line, now)
    elif line.count == 1:
        _begin_by_rule(c, p, request.line, request.segment, now)


@kernel
def hold_late_comers(c: Cluster, p: Parameters, number: int, now: int) -> None:
    """Apply the hold rule to requests that arrived during the decision as to a new line
    (`RouterCore._hold_late_comers`)."""
    line = line_at(c, p, number)
    if c.may_hold and line.count > 0:
        _begin_by_rule(c, p, number, request_at(c, p, line.head).segment, now)


@kernel
def _begin_by_rule(c: Cluster, p: Parameters, number: int, segment: int, now: int) -> None:
    """Run `Holds.begin_by_rule`."""
    if not c.has_hold_rule:
        return
    requests, wait_ns = ints(c)[p.hold_rule_at + segment], ints(c)[p.hold_rule_at + p.segments + segment]
    requests = max(requests, int(min(c.arrivals.rate * ints(c)[p.hold_rule_at + 2 * p.segments + segment], p.group)))
    requests = min(requests, p.group)
    if line_at(c, p, number).count < requests and wait_ns > 0:
        _begin(c, p, number, requests, wait_ns, now)


@kernel
def end_hold(c: Cluster, p: Parameters, number: int, now: int) -> None:
    """Make a line eligible for decisions again (`RouterCore._end_hold`)."""
    line = line_at(c, p, number)
    ended, slot = min(now, line.until_ns), line.head
    for _ in range(line.count):
        request = request_at(c, p, slot)
        request.held_ns += max(0, ended - max(line.since_ns, request.entered_ns))
        slot = request.next
    if line.previous_held == NONE:
        c.first_held = line.next_held
    else:
        line_at(c, p, line.previous_held).next_held = line.next_held
    if line.next_held != NONE:
        line_at(c, p, line.next_held).previous_held = line.previous_held
    line.is_held = 0
    c.held -= line.count
    c.at_cap = 0
    c.next_hold_ns = NEVER
    other = c.first_held
    while other != NONE:
        c.next_hold_ns = min(c.next_hold_ns, line_at(c, p, other).until_ns)
        other = line_at(c, p, other).next_held


@kernel
def end_due_holds(c: Cluster, p: Parameters, until: int, now: int) -> None:
    """End the holds that end by a time; NEVER for all."""
    number = c.first_held
    while number != NONE:
        line = line_at(c, p, number)
        following = line.next_held
        if line.until_ns <= until:
            end_hold(c, p, number, now)
        number = following


@kernel
def begin_hold(c: Cluster, p: Parameters, slot: int, now: int) -> bool:
    """Hold the decision's line, whose oldest is `slot` (`RouterCore._hold`); returns whether it is held."""
    request = request_at(c, p, slot)
    if c.may_hold == 0 or line_at(c, p, request.line).count >= c.hold_requests:
        return False
    _begin(c, p, request.line, c.hold_requests, c.hold_wait_ns, now)
    hold = HoldMade(request, _OF_REQUEST, request.holds)
    hold.decision, hold.tag = c.decision, c.tag
    hold.entered_ns, hold.entered_j = request.entered_ns, request.entered_j
    request.holds += 1
    c.pending_holds += 1
    return True


# ------------------------------------------------------------------------------------------------------------- credits


@kernel
def take_along(request: Request, member: Member) -> None:
    """Record a request's departure from the FIFO in a block, with the decisions that held it."""
    member.holds = request.holds
    for n in range(request.holds):
        copied, hold = HoldMade(member, _OF_MEMBER, n), HoldMade(request, _OF_REQUEST, n)
        copied.decision, copied.tag = hold.decision, hold.tag
    request.holds = 0


@kernel
def credit_holds(c: Cluster, p: Parameters, member: Member, block: Credit) -> None:
    """Give the decisions that held a member the credit of its block."""
    for n in range(member.holds):
        hold, credited = HoldMade(member, _OF_MEMBER, n), Credit(c, p.credits_at, c.credits)
        c.credits += 1
        for number in range(_CREDIT):
            ints(credited)[number] = ints(block)[number]
        credited.decision, credited.tag = hold.decision, hold.tag
    c.pending_holds -= member.holds


@kernel
def credit_given_up(c: Cluster, p: Parameters, request: Request, now: int) -> None:
    """Give the decisions that held a request, given up in the FIFO, the credit of a block of it alone with a wrong
    label."""
    for n in range(request.holds):
        hold, credited = HoldMade(request, _OF_REQUEST, n), Credit(c, p.credits_at, c.credits)
        c.credits += 1
        terms = credited.terms
        terms.accuracy = p.alpha * (0.0 - p.mean_top1 if p.centre else 0.0)
        terms.latency = -p.beta * ((now - hold.entered_ns) / _NS)
        terms.energy = -p.gamma * (energy_j(c, p, now) - hold.entered_j)
        terms.imbalance = -p.delta * utilization_variance(c, p)
        terms.bonus = p.bonus
        credited.total = terms.accuracy + terms.latency + terms.energy + terms.imbalance + terms.bonus
        credited.decision, credited.tag = hold.decision, hold.tag
    c.pending_holds -= request.holds
    request.holds = 0


ALONE_AFTER = 2  # `policies.router_core.ALONE_AFTER`

# ------------------------------------------------------------------------------------------------- the router's FIFO


@kernel
def line_of(c: Cluster, p: Parameters, request: Request) -> int:
    """Return the common key of requests that may share a block: (class, segment, previous width, location) as a
    number."""
    location = -2 if p.anywhere else request.location
    segment = request.service_class * p.segments + request.segment
    return (segment * (p.widths + 1) + request.previous_width) * (p.servers + 2) + location + 2


@kernel
def push(c: Cluster, p: Parameters, slot: int) -> None:
    """Append a request to the FIFO."""
    request = request_at(c, p, slot)
    tail = c.fifo_tail
    request.fifo_previous = tail
    request.fifo_next = request.next = NONE
    if tail == NONE:
        c.fifo_head = slot
    else:
        request_at(c, p, tail).fifo_next = slot
    c.fifo_tail = slot
    c.fifo_length += 1
    request.line = ALONE if request.retries >= ALONE_AFTER else line_of(c, p, request)
    if request.line == ALONE:
        return
    line = line_at(c, p, request.line)
    if line.count == 0:
        line.head = slot
    else:
        request_at(c, p, line.tail).next = slot
    line.tail = slot
    line.count += 1


@kernel
def _unlink(c: Cluster, p: Parameters, request: Request) -> None:
    before, after = request.fifo_previous, request.fifo_next
    if before == NONE:
        c.fifo_head = after
    else:
        request_at(c, p, before).fifo_next = after
    if after == NONE:
        c.fifo_tail = before
    else:
        request_at(c, p, after).fifo_previous = before
    c.fifo_length -= 1


@kernel
def waiting_with(c: Cluster, p: Parameters, slot: int) -> int:
    """Return the number of requests in the line whose oldest request this is."""
    line = request_at(c, p, slot).line
    return 1 if line == ALONE else line_at(c, p, line).count


@kernel
def is_oldest(c: Cluster, p: Parameters, slot: int) -> bool:
    """Return whether a waiting request is the first of its line."""
    line = request_at(c, p, slot).line
    return line == ALONE or line_at(c, p, line).head == slot


@kernel
def take(c: Cluster, p: Parameters, slot: int) -> int:
    """Take the oldest request of a line, `slot`; returns the line's next one."""
    request = request_at(c, p, slot)
    _unlink(c, p, request)
    if request.line == ALONE:
        return NONE
    line = line_at(c, p, request.line)
    line.head = request.next
    line.count -= 1
    return request.next


@kernel
def remove(c: Cluster, p: Parameters, slot: int) -> None:
    """Remove a request from any place in its line."""
    request = request_at(c, p, slot)
    _unlink(c, p, request)
    c.removals += 1
    if request.line == ALONE:
        return
    line = line_at(c, p, request.line)
    before, at = NONE, line.head
    while at != slot:
        before, at = at, request_at(c, p, at).next
    if before == NONE:
        line.head = request.next
    else:
        request_at(c, p, before).next = request.next
    if line.tail == slot:
        line.tail = before
    line.count -= 1


# ----------------------------------------------------------------------------------------------------- a server's queue


@kernel
def enqueue(c: Cluster, p: Parameters, server: Server, key: int, slot: int) -> None:
    """Append a request to a server's queue."""
    request, queue = request_at(c, p, slot), key_at(p, server, key)
    request.next = NONE
    request.sequence = server.sequence
    server.sequence += 1
    server.queued += 1
    if queue.count == 0:
        queue.head = slot
        ints(server)[ORDER_AT + server.keys] = key
        server.keys += 1
    else:
        request_at(c, p, queue.tail).next = slot
    queue.tail = slot
    queue.count += 1


@kernel
def dequeue(c: Cluster, p: Parameters, server: Server, position: int, most: int) -> int:
    """Take at most `most` of the oldest requests of the key at a place of the order; returns the first of them.

    The key is not blocked any more, and its load counter ends with its queue.
    """
    key = ints(server)[ORDER_AT + position]
    queue = key_at(p, server, key)
    count = min(most, queue.count)
    head = queue.head
    last = head
    for _ in range(count - 1):
        last = request_at(c, p, last).next
    queue.head = request_at(c, p, last).next
    request_at(c, p, last).next = NONE
    queue.count -= count
    server.queued -= count
    queue.blocked_since_ns = NONE
    if queue.count == 0:
        queue.loads = 0
        server.keys -= 1
        for n in range(position, server.keys):
            ints(server)[ORDER_AT + n] = ints(server)[ORDER_AT + n + 1]
    else:
        _reorder(c, p, server, position)
    return head


@kernel
def _reorder(c: Cluster, p: Parameters, server: Server, position: int) -> None:
    """Reorder a key whose oldest request has become a younger one."""
    key = ints(server)[ORDER_AT + position]
    sequence = request_at(c, p, key_at(p, server, key).head).sequence
    while position + 1 < server.keys:
        following = ints(server)[ORDER_AT + position + 1]
        if request_at(c, p, key_at(p, server, following).head).sequence > sequence:
            break
        ints(server)[ORDER_AT + position] = following
        position += 1
    ints(server)[ORDER_AT + position] = key
