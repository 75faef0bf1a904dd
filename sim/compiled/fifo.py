"""`policies.fifo.KeyedFifo`, compiled twice: the router's FIFO by line, and a server's queue by work key.

Both are lists through `Request.next`, one for each key, oldest first. The router's requests are in one more list in the
overall order; a server keeps its keys in the order of their oldest request.
"""

from __future__ import annotations

from kit.jit import ints, kernel
from sim.compiled.codes import ALONE, NONE
from sim.compiled.layout import ORDER_AT, Cluster, Parameters, Request, Server
from sim.compiled.rows import key_at, line_at, request_at

ALONE_AFTER = 2  # `policies.router.ALONE_AFTER`

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
    request.fifo_previous, request.fifo_next, request.next = tail, NONE, NONE
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
    """Remove a request from the overall order."""
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
def dequeue(c: Cluster, p: Parameters, server: Server, place: int, most: int) -> int:
    """Take at most `most` of the oldest requests of the key at a place of the order; returns the first of them.

    The key is not blocked any more, and its load counter ends with its queue.
    """
    key = ints(server)[ORDER_AT + place]
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
        for n in range(place, server.keys):
            ints(server)[ORDER_AT + n] = ints(server)[ORDER_AT + n + 1]
    else:
        _reorder(c, p, server, place)
    return head


@kernel
def _reorder(c: Cluster, p: Parameters, server: Server, place: int) -> None:
    """Reorder a key whose oldest request has become a younger one."""
    key = ints(server)[ORDER_AT + place]
    sequence = request_at(c, p, key_at(p, server, key).head).sequence
    while place + 1 < server.keys:
        following = ints(server)[ORDER_AT + place + 1]
        if request_at(c, p, key_at(p, server, following).head).sequence > sequence:
            break
        ints(server)[ORDER_AT + place] = following
        place += 1
    ints(server)[ORDER_AT + place] = key
