"""`policies.fifo.KeyedFifo`, compiled twice: the router's FIFO by line, and a server's queue by work key.

Both are lists through `R_NEXT`, one a key, oldest first. The router's requests hang in one more list in the order of
all; a server keeps its keys in the order of their oldest request.
"""

from __future__ import annotations

from policies.jit import Ints, kernel
from sim.compiled.layout import *
from sim.compiled.rows import key_at, request_at

ALONE_AFTER = 2  # `policies.router.ALONE_AFTER`

# ------------------------------------------------------------------------------------------------- the router's FIFO


@kernel
def shared_line(k: Ints, p: Ints, a: int) -> int:
    """What those who share a block with a request have in common: (segment, previous width, location) as a number."""
    location = -2 if p[P_ANYWHERE] else k[a + R_LOCATION]
    return (k[a + R_SEGMENT] * (p[P_WIDTHS] + 1) + k[a + R_PREVIOUS]) * (p[P_SERVERS] + 2) + location + 2


@kernel
def line_at(p: Ints, line: int) -> int:
    """A line's record."""
    return p[P_LINES_AT] + line * L_SIZE


@kernel
def push(k: Ints, p: Ints, slot: int) -> None:
    """A request to the FIFO's tail."""
    a = request_at(p, slot)
    tail = k[C_FIFO_TAIL]
    k[a + R_FIFO_PREVIOUS], k[a + R_FIFO_NEXT], k[a + R_NEXT] = tail, NONE, NONE
    if tail == NONE:
        k[C_FIFO_HEAD] = slot
    else:
        k[request_at(p, tail) + R_FIFO_NEXT] = slot
    k[C_FIFO_TAIL] = slot
    k[C_FIFO_LENGTH] += 1
    line = ALONE if k[a + R_RETRIES] >= ALONE_AFTER else shared_line(k, p, a)
    k[a + R_LINE] = line
    if line == ALONE:
        return
    at = line_at(p, line)
    if k[at + L_COUNT] == 0:
        k[at + L_HEAD] = slot
    else:
        k[request_at(p, k[at + L_TAIL]) + R_NEXT] = slot
    k[at + L_TAIL] = slot
    k[at + L_COUNT] += 1


@kernel
def _unlink(k: Ints, p: Ints, a: int) -> None:
    """Out of the order of all."""
    before, after = k[a + R_FIFO_PREVIOUS], k[a + R_FIFO_NEXT]
    if before == NONE:
        k[C_FIFO_HEAD] = after
    else:
        k[request_at(p, before) + R_FIFO_NEXT] = after
    if after == NONE:
        k[C_FIFO_TAIL] = before
    else:
        k[request_at(p, after) + R_FIFO_PREVIOUS] = before
    k[C_FIFO_LENGTH] -= 1


@kernel
def waiting_with(k: Ints, p: Ints, slot: int) -> int:
    """How many wait in the line whose oldest request this is."""
    line = k[request_at(p, slot) + R_LINE]
    return 1 if line == ALONE else k[line_at(p, line) + L_COUNT]


@kernel
def is_oldest(k: Ints, p: Ints, slot: int) -> bool:
    """Whether a waiting request is the first of its line."""
    line = k[request_at(p, slot) + R_LINE]
    return line == ALONE or k[line_at(p, line) + L_HEAD] == slot


@kernel
def pop(k: Ints, p: Ints, slot: int) -> int:
    """Take the oldest request of a line, `slot`; returns the line's next one."""
    a = request_at(p, slot)
    _unlink(k, p, a)
    line = k[a + R_LINE]
    if line == ALONE:
        return NONE
    at = line_at(p, line)
    k[at + L_HEAD] = k[a + R_NEXT]
    k[at + L_COUNT] -= 1
    return k[a + R_NEXT]


@kernel
def remove(k: Ints, p: Ints, slot: int) -> None:
    """Take a request from wherever it waits in its line."""
    a = request_at(p, slot)
    _unlink(k, p, a)
    k[C_REMOVALS] += 1
    line = k[a + R_LINE]
    if line == ALONE:
        return
    at = line_at(p, line)
    before, found = NONE, k[at + L_HEAD]
    while found != slot:
        before, found = found, k[request_at(p, found) + R_NEXT]
    if before == NONE:
        k[at + L_HEAD] = k[a + R_NEXT]
    else:
        k[request_at(p, before) + R_NEXT] = k[a + R_NEXT]
    if k[at + L_TAIL] == slot:
        k[at + L_TAIL] = before
    k[at + L_COUNT] -= 1


# ----------------------------------------------------------------------------------------------------- a server's queue


@kernel
def enqueue(k: Ints, p: Ints, s: int, key: int, slot: int) -> None:
    """A request to the tail of a server's queue."""
    a, at = request_at(p, slot), key_at(p, s, key)
    k[a + R_NEXT] = NONE
    k[a + R_SEQUENCE] = k[s + S_SEQUENCE]
    k[s + S_SEQUENCE] += 1
    k[s + S_QUEUED] += 1
    if k[at + K_COUNT] == 0:
        k[at + K_HEAD] = slot
        k[s + S_ORDER + k[s + S_KEYS]] = key
        k[s + S_KEYS] += 1
    else:
        k[request_at(p, k[at + K_TAIL]) + R_NEXT] = slot
    k[at + K_TAIL] = slot
    k[at + K_COUNT] += 1


@kernel
def dequeue(k: Ints, p: Ints, s: int, place: int, most: int) -> int:
    """Take the oldest requests of the key at a place of the order, `most` at most; returns the first of them.

    The key is not blocked any more, and its load counter ends with its queue.
    """
    key = k[s + S_ORDER + place]
    at = key_at(p, s, key)
    count = min(most, k[at + K_COUNT])
    head = k[at + K_HEAD]
    last = head
    for _ in range(count - 1):
        last = k[request_at(p, last) + R_NEXT]
    k[at + K_HEAD] = k[request_at(p, last) + R_NEXT]
    k[request_at(p, last) + R_NEXT] = NONE
    k[at + K_COUNT] -= count
    k[s + S_QUEUED] -= count
    k[at + K_BLOCKED_SINCE] = NONE
    if k[at + K_COUNT] == 0:
        k[at + K_LOADS] = 0
        k[s + S_KEYS] -= 1
        for n in range(place, k[s + S_KEYS]):
            k[s + S_ORDER + n] = k[s + S_ORDER + n + 1]
    else:
        _reorder(k, p, s, place)
    return head


@kernel
def _reorder(k: Ints, p: Ints, s: int, place: int) -> None:
    """A key's oldest request is a younger one now."""
    key = k[s + S_ORDER + place]
    sequence = k[request_at(p, k[key_at(p, s, key) + K_HEAD]) + R_SEQUENCE]
    while place + 1 < k[s + S_KEYS]:
        following = k[s + S_ORDER + place + 1]
        if k[request_at(p, k[key_at(p, s, following) + K_HEAD]) + R_SEQUENCE] > sequence:
            break
        k[s + S_ORDER + place] = following
        place += 1
    k[s + S_ORDER + place] = key
