"""The router's and the servers' FIFO queues, and batching delays, compiled.

Batching delays are `policies.router_queue.BatchingDelays`, with the part of `RouterCore`; the delayed batch queues are
in a list.

The router's FIFO and a server's queue consist of lists through `Request.next`, one for each key, oldest first. The
router's requests are in one more list in the overall order; a server keeps its keys in the order of their oldest
request.
"""

from __future__ import annotations

from collections.abc import Callable

from kit.jit import ints, kernel, kernel_of
from policies.router_queue import MAX_BATCHING_DELAYS
from policies.router_queue import note_arrival as _note_arrival
from sim.compiled.row_access import batch_queue_at, energy_j, key_at, request_at, utilization_variance
from sim.compiled.row_layout import (
    ALONE,
    NEVER,
    NONE,
    ORDER_AT,
    Arrivals,
    BatchingDelayMade,
    Cluster,
    Credit,
    Member,
    Parameters,
    Request,
    Server,
)

_OF_REQUEST, _OF_MEMBER = Request.offsets["first_batching_delay"], Member.offsets["first_batching_delay"]
_CREDIT = Credit.size
_NS = 1_000_000_000

note_arrival: Callable[[Arrivals, int], None] = kernel_of(_note_arrival)


# ------------------------------------------------------------------------------------------------------ batching delays


@kernel
def left_ns(c: Cluster, p: Parameters, slot: int, count: int, now: int) -> int:
    """Return the longest batching delay of a queue's requests, from its oldest on (`BatchingDelays.left_ns`)."""
    least = NEVER
    for _ in range(count):
        request = request_at(c, p, slot)
        least = min(least, min(now + p.max_batching_delay_ns - request.delayed_ns, request.deadline_ns))
        slot = request.next
    return max(0, least - now)


@kernel
def may_delay_ns(c: Cluster, p: Parameters, slot: int, candidates: int, now: int) -> int:
    """Return the longest batching delay in a decision's view (`RouterCore._batching_delay_left_ns`)."""
    request = request_at(c, p, slot)
    if (
        c.may_delay == 0
        or candidates >= p.micro_batch_size
        or request.batch_queue == ALONE
        or request.batching_delays >= MAX_BATCHING_DELAYS
    ):
        return 0
    return left_ns(c, p, slot, candidates, now)


@kernel
def _begin(c: Cluster, p: Parameters, number: int, requests: int, wait_ns: int, now: int) -> None:
    """Run `BatchingDelays.begin`."""
    batch_queue = batch_queue_at(c, p, number)
    batch_queue.is_held, batch_queue.since_ns = 1, now
    batch_queue.until_ns = now + min(wait_ns, left_ns(c, p, batch_queue.head, batch_queue.count, now))
    batch_queue.requests = min(requests, p.micro_batch_size)
    batch_queue.previous_delayed, batch_queue.next_delayed = NONE, c.first_delayed
    if c.first_delayed != NONE:
        batch_queue_at(c, p, c.first_delayed).previous_delayed = number
    c.first_delayed = number
    c.delayed += batch_queue.count
    c.next_batching_delay_ns = min(c.next_batching_delay_ns, batch_queue.until_ns)


@kernel
def join(c: Cluster, p: Parameters, slot: int, now: int) -> None:
    """Note a request that has entered its batch queue (`BatchingDelays.join`)."""
    request = request_at(c, p, slot)
    if c.may_delay == 0 or request.batch_queue == ALONE:
        return
    batch_queue = batch_queue_at(c, p, request.batch_queue)
    if batch_queue.is_held:
        c.delayed += 1
        last = min(now + p.max_batching_delay_ns - request.delayed_ns, request.deadline_ns)
        batch_queue.until_ns = min(batch_queue.until_ns, last)
        c.next_batching_delay_ns = min(c.next_batching_delay_ns, last)
        if batch_queue.count >= batch_queue.requests:
            end_batching_delay(c, p, request.batch_queue, now)
    elif batch_queue.count == 1:
        _begin_by_rule(c, p, request.batch_queue, request.segment, now)


@kernel
def delay_late_comers(c: Cluster, p: Parameters, number: int, now: int) -> None:
    """Apply the batching delay rule to requests that arrived during the decision as to a new batch queue
    (`RouterCore._delay_late_comers`)."""
    batch_queue = batch_queue_at(c, p, number)
    if c.may_delay and batch_queue.count > 0:
        _begin_by_rule(c, p, number, request_at(c, p, batch_queue.head).segment, now)


@kernel
def _begin_by_rule(c: Cluster, p: Parameters, number: int, segment: int, now: int) -> None:
    """Run `BatchingDelays.begin_by_rule`."""
    if not c.has_batching_delay_rule:
        return
    requests, wait_ns = (
        ints(c)[p.batching_delay_rule_at + segment],
        ints(c)[p.batching_delay_rule_at + p.segments + segment],
    )
    requests = max(
        requests,
        int(min(c.arrivals.rate * ints(c)[p.batching_delay_rule_at + 2 * p.segments + segment], p.micro_batch_size)),
    )
    expected = 1 + int(min(c.arrivals.rate * wait_ns, p.micro_batch_size))
    requests = min(requests, p.micro_batch_size, expected)
    if batch_queue_at(c, p, number).count < requests and wait_ns > 0:
        _begin(c, p, number, requests, wait_ns, now)


@kernel
def end_batching_delay(c: Cluster, p: Parameters, number: int, now: int) -> None:
    """Make a batch queue eligible for decisions again (`RouterCore._end_batching_delay`)."""
    batch_queue = batch_queue_at(c, p, number)
    ended, slot = min(now, batch_queue.until_ns), batch_queue.head
    for _ in range(batch_queue.count):
        request = request_at(c, p, slot)
        request.delayed_ns += max(0, ended - max(batch_queue.since_ns, request.entered_ns))
        slot = request.next
    if batch_queue.previous_delayed == NONE:
        c.first_delayed = batch_queue.next_delayed
    else:
        batch_queue_at(c, p, batch_queue.previous_delayed).next_delayed = batch_queue.next_delayed
    if batch_queue.next_delayed != NONE:
        batch_queue_at(c, p, batch_queue.next_delayed).previous_delayed = batch_queue.previous_delayed
    batch_queue.is_held = 0
    c.delayed -= batch_queue.count
    c.at_cap = 0
    c.next_batching_delay_ns = NEVER
    other = c.first_delayed
    while other != NONE:
        c.next_batching_delay_ns = min(c.next_batching_delay_ns, batch_queue_at(c, p, other).until_ns)
        other = batch_queue_at(c, p, other).next_delayed


@kernel
def end_due_batching_delays(c: Cluster, p: Parameters, until: int, now: int) -> None:
    """End the batching delays that end by a time; NEVER for all."""
    number = c.first_delayed
    while number != NONE:
        batch_queue = batch_queue_at(c, p, number)
        following = batch_queue.next_delayed
        if batch_queue.until_ns <= until:
            end_batching_delay(c, p, number, now)
        number = following


@kernel
def begin_batching_delay(c: Cluster, p: Parameters, slot: int, now: int) -> bool:
    """Delay the decision's batch queue, whose oldest is `slot` (`RouterCore._batching_delay`); returns whether it is
    delayed."""
    request = request_at(c, p, slot)
    if c.may_delay == 0 or batch_queue_at(c, p, request.batch_queue).count >= c.batching_delay_requests:
        return False
    _begin(c, p, request.batch_queue, c.batching_delay_requests, c.batching_delay_wait_ns, now)
    batching_delay = BatchingDelayMade(request, _OF_REQUEST, request.batching_delays)
    batching_delay.decision, batching_delay.tag = c.decision, c.tag
    batching_delay.entered_ns, batching_delay.entered_j = request.entered_ns, request.entered_j
    request.batching_delays += 1
    c.pending_batching_delays += 1
    return True


# ------------------------------------------------------------------------------------------------------------- credits


@kernel
def take_along(request: Request, member: Member) -> None:
    """Record a request's departure from the FIFO in a micro-batch, with the decisions that delayed it."""
    member.batching_delays = request.batching_delays
    for n in range(request.batching_delays):
        copied, batching_delay = BatchingDelayMade(member, _OF_MEMBER, n), BatchingDelayMade(request, _OF_REQUEST, n)
        copied.decision, copied.tag = batching_delay.decision, batching_delay.tag
    request.batching_delays = 0


@kernel
def credit_batching_delays(c: Cluster, p: Parameters, member: Member, micro_batch: Credit) -> None:
    """Give the decisions that delayed a member the credit of its micro-batch."""
    for n in range(member.batching_delays):
        batching_delay, credited = BatchingDelayMade(member, _OF_MEMBER, n), Credit(c, p.credits_at, c.credits)
        c.credits += 1
        for number in range(_CREDIT):
            ints(credited)[number] = ints(micro_batch)[number]
        credited.decision, credited.tag = batching_delay.decision, batching_delay.tag
    c.pending_batching_delays -= member.batching_delays


@kernel
def credit_given_up(c: Cluster, p: Parameters, request: Request, now: int) -> None:
    """Give the decisions that delayed a request, given up in the FIFO, the credit of a micro-batch of it alone with a
    wrong prediction."""
    for n in range(request.batching_delays):
        batching_delay, credited = BatchingDelayMade(request, _OF_REQUEST, n), Credit(c, p.credits_at, c.credits)
        c.credits += 1
        terms = credited.terms
        terms.accuracy = p.alpha * (0.0 - p.mean_accuracy if p.centre else 0.0)
        terms.latency = -p.beta * ((now - batching_delay.entered_ns) / _NS)
        terms.energy = -p.gamma * (energy_j(c, p, now) - batching_delay.entered_j)
        terms.imbalance = -p.delta * utilization_variance(c, p)
        terms.bonus = p.bonus
        credited.total = terms.accuracy + terms.latency + terms.energy + terms.imbalance + terms.bonus
        credited.decision, credited.tag = batching_delay.decision, batching_delay.tag
    c.pending_batching_delays -= request.batching_delays
    request.batching_delays = 0


ALONE_AFTER = 2  # `policies.router_core.ALONE_AFTER`

# ------------------------------------------------------------------------------------------------- the router's FIFO


@kernel
def batch_queue_of(c: Cluster, p: Parameters, request: Request) -> int:
    """Return the common key of requests that may share a micro-batch: (class, segment, previous width, location) as a
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
    request.batch_queue = ALONE if request.retries >= ALONE_AFTER else batch_queue_of(c, p, request)
    if request.batch_queue == ALONE:
        return
    batch_queue = batch_queue_at(c, p, request.batch_queue)
    if batch_queue.count == 0:
        batch_queue.head = slot
    else:
        request_at(c, p, batch_queue.tail).next = slot
    batch_queue.tail = slot
    batch_queue.count += 1


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
    """Return the number of requests in the batch queue whose oldest request this is."""
    batch_queue = request_at(c, p, slot).batch_queue
    return 1 if batch_queue == ALONE else batch_queue_at(c, p, batch_queue).count


@kernel
def is_oldest(c: Cluster, p: Parameters, slot: int) -> bool:
    """Return whether a waiting request is the first of its batch queue."""
    batch_queue = request_at(c, p, slot).batch_queue
    return batch_queue == ALONE or batch_queue_at(c, p, batch_queue).head == slot


@kernel
def take(c: Cluster, p: Parameters, slot: int) -> int:
    """Take the oldest request of a batch queue, `slot`; returns its next one."""
    request = request_at(c, p, slot)
    _unlink(c, p, request)
    if request.batch_queue == ALONE:
        return NONE
    batch_queue = batch_queue_at(c, p, request.batch_queue)
    batch_queue.head = request.next
    batch_queue.count -= 1
    return request.next


@kernel
def remove(c: Cluster, p: Parameters, slot: int) -> None:
    """Remove a request from any place in its batch queue."""
    request = request_at(c, p, slot)
    _unlink(c, p, request)
    c.removals += 1
    if request.batch_queue == ALONE:
        return
    batch_queue = batch_queue_at(c, p, request.batch_queue)
    before, at = NONE, batch_queue.head
    while at != slot:
        before, at = at, request_at(c, p, at).next
    if before == NONE:
        batch_queue.head = request.next
    else:
        request_at(c, p, before).next = request.next
    if batch_queue.tail == slot:
        batch_queue.tail = before
    batch_queue.count -= 1


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
