"""`policies.holds`, compiled, with `RouterCore`'s part: held lines are in a list."""

from __future__ import annotations

from collections.abc import Callable

from kit.jit import ints, kernel, kernel_of
from policies.holds import MAX_HOLDS
from policies.holds import note_arrival as _note_arrival
from sim.compiled.codes import ALONE, NEVER, NONE
from sim.compiled.layout import Arrivals, Cluster, Credit, HoldMade, Member, Parameters, Request
from sim.compiled.ledger import energy_j, utilization_variance
from sim.compiled.rows import line_at, request_at

_OF_REQUEST, _OF_MEMBER = Request.offsets["first_hold"], Member.offsets["first_hold"]
_CREDIT = Credit.size
_NS = 1_000_000_000

note_arrival: Callable[[Arrivals, int], None] = kernel_of(_note_arrival)


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
    hold.decision, hold.tag, hold.entered_ns, hold.entered_j = c.decision, c.tag, request.entered_ns, request.entered_j
    request.holds += 1
    c.pending_holds += 1
    return True


# ------------------------------------------------------------------------------------------------------------- credits


@kernel
def take_along(request: Request, member: Member) -> None:
    """Record a request's departure from the FIFO in a block, with the decisions that held it."""
    member.holds = request.holds
    for n in range(request.holds):
        mine, its = HoldMade(member, _OF_MEMBER, n), HoldMade(request, _OF_REQUEST, n)
        mine.decision, mine.tag = its.decision, its.tag
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
