"""`policies.router`, compiled, with the links of `sim.network`: the FIFO, blocks, and what comes back."""

from __future__ import annotations

from math import ceil, expm1, log

import numpy as np

from policies.jit import Ints, Reals, bytes_at, ints_at, kernel, reals_at
from sim.compiled.chance import hashed_share
from sim.compiled.fifo import is_oldest, line_at, pop, push, remove, shared_line, waiting_with
from sim.compiled.layout import *
from sim.compiled.ledger import collect_in_flight, credit, energy_j, note_loss, note_return, record_request, sort_by_id
from sim.compiled.rows import (
    block_at,
    key_at,
    member_at,
    moves_at,
    request_at,
    reschedule,
    server_at,
)
from sim.network import PACKET_BYTES

_PACKET = PACKET_BYTES
_NS = 1_000_000_000

# ----------------------------------------------------------------------------------------------------------- arrivals


@kernel
def arrive(k: Ints, r: Reals, p: Ints, now: int) -> None:
    """The next image enters the system."""
    slot = k[C_FREE_REQUEST]
    a = request_at(p, slot)
    k[C_FREE_REQUEST] = k[a + R_NEXT]
    k[C_FREE_REQUESTS] -= 1
    k[C_IN_FLIGHT] += 1
    k[a + R_ID] = k[C_ARRIVED]
    k[a + R_SEGMENT], k[a + R_PREVIOUS], k[a + R_CODE], k[a + R_RETRIES] = 0, 0, 0, 0
    k[a + R_LOCATION], k[a + R_EPOCH] = NONE, 0
    k[a + R_ARRIVED] = now
    k[a + R_DEADLINE] = now + k[C_DEADLINE] if k[C_DEADLINE] != NONE else NEVER
    if k[C_KEEPS]:
        life = a + R_SIZE
        k[life + L_LENGTH], k[life + L_SINCE], k[life + L_LOST], k[life + L_STAGES] = 0, now, 0, 0
    enter(k, r, p, slot, now)
    r[a + R_ARRIVED_J] = r[a + R_ENTERED_J]
    k[C_ARRIVED] += 1
    plan_arrival(k)


@kernel
def plan_arrival(k: Ints) -> None:
    """When the next one comes."""
    more = k[C_ARRIVED] < k[C_ARRIVAL_COUNT]
    k[C_ARRIVAL_NS] = ints_at(k[C_ARRIVALS])[k[C_ARRIVED]] if more else NEVER


@kernel
def enter(k: Ints, r: Reals, p: Ints, slot: int, now: int) -> None:
    """To the FIFO's tail."""
    a = request_at(p, slot)
    k[a + R_ENTERED], r[a + R_ENTERED_J] = now, energy_j(k, r, now)
    k[a + R_BLOCK] = NONE
    push(k, p, slot)


@kernel
def release(k: Ints, p: Ints, slot: int) -> None:
    """A request is done with: its slot is free again."""
    a = request_at(p, slot)
    k[a + R_ID] = NONE
    k[a + R_NEXT] = k[C_FREE_REQUEST]
    k[C_FREE_REQUEST] = slot
    k[C_FREE_REQUESTS] += 1
    k[C_IN_FLIGHT] -= 1


# ---------------------------------------------------------------------------------------------------------- decisions


@kernel
def ask_ns(k: Ints, p: Ints) -> int:
    """From when on a decision may be asked for; NEVER while nothing can be asked (`RouterCore.next_wake_ns`)."""
    if k[C_SLOT] != NONE or k[C_FIFO_HEAD] == NONE:
        return NEVER
    wake = k[C_NOW]
    if k[C_AT_CAP]:
        if not p[P_SHEDS]:
            return NEVER
        wake = max(wake, k[request_at(p, k[C_FIFO_HEAD]) + R_DEADLINE])
    return max(wake, k[C_HOST_FREE])


@kernel
def ask(k: Ints, r: Reals, p: Ints, now: int) -> bool:
    """Ask for a decision if somebody waits and a server can take a block (`RouterCore._ask`)."""
    if p[P_SHEDS]:
        _shed(k, r, p, now)
    slot = _oldest_servable(k, p)
    if slot == NONE:
        if k[C_FIFO_HEAD] != NONE:
            k[C_AT_CAP] = 1
        return False
    candidates = min(waiting_with(k, p, slot), p[P_GROUP])
    a = request_at(p, slot)
    k[C_SLOT], k[C_CANDIDATES], k[C_LINE], k[C_IS_ALONE] = (
        slot,
        candidates,
        shared_line(k, p, a),
        k[a + R_LINE] == ALONE,
    )
    if k[C_FAULTY]:
        k[C_REMOVALS_SEEN] = k[C_REMOVALS]
        for n in range(candidates):
            k[p[P_CANDIDATES_AT] + n] = k[request_at(p, slot) + R_ID]
            slot = k[request_at(p, slot) + R_NEXT]
    k[C_DECISION] += 1
    k[C_SNAPSHOT] = now
    k[C_ASKED] = 1
    if p[P_BUSY_NS] > 0:
        k[C_HOST_FREE] = now + p[P_BUSY_NS]
    return True


@kernel
def _shed(k: Ints, r: Reals, p: Ints, now: int) -> None:
    """Give up those at the FIFO's head whose deadline has passed."""
    while k[C_FIFO_HEAD] != NONE:
        slot = k[C_FIFO_HEAD]
        if k[request_at(p, slot) + R_DEADLINE] > now:
            return
        pop(k, p, slot)
        _give_up(k, r, p, slot, DEADLINE, now)


@kernel
def _oldest_servable(k: Ints, p: Ints) -> int:
    """The oldest request of the oldest line that some server can take a block of."""
    if k[C_FREE_SERVERS] == 0:
        return NONE
    slot = k[C_FIFO_HEAD]
    while slot != NONE:
        a = request_at(p, slot)
        if k[p[P_VALID] + k[a + R_SEGMENT]] > 0 and is_oldest(k, p, slot):
            return slot
        slot = k[a + R_FIFO_NEXT]
    return NONE


@kernel
def _oldest_asked(k: Ints, p: Ints) -> int:
    """The oldest request of the line that was asked about, if the candidates are still its oldest; else NONE."""
    if not k[C_FAULTY] or k[C_REMOVALS] == k[C_REMOVALS_SEEN]:
        return k[C_SLOT]
    first = k[C_SLOT]
    if k[C_IS_ALONE]:
        a = request_at(p, first)
        waits = k[a + R_ID] == k[p[P_CANDIDATES_AT]] and k[a + R_BLOCK] == NONE and k[a + R_LINE] == ALONE
        return first if waits and shared_line(k, p, a) == k[C_LINE] else NONE
    at = line_at(p, k[C_LINE])
    if k[at + L_COUNT] < k[C_CANDIDATES]:
        return NONE
    first = k[at + L_HEAD]
    slot = first
    for n in range(k[C_CANDIDATES]):
        if k[request_at(p, slot) + R_ID] != k[p[P_CANDIDATES_AT] + n]:
            return NONE
        slot = k[request_at(p, slot) + R_NEXT]
    return first


@kernel
def may_send(k: Ints, p: Ints) -> bool:
    """The decision has ended: whether its block can be sent. (Its server may have died, or its requests are gone.)"""
    slot = _oldest_asked(k, p)
    if k[server_at(p, k[C_SERVER]) + S_UP] and slot != NONE:
        k[C_SLOT] = slot
        return True
    k[C_SLOT] = NONE
    k[C_DROPPED] += 1
    return False


@kernel
def form_block(k: Ints, r: Reals, p: Ints, q: Reals, now: int) -> int:
    """Form the chosen block and book its transfers (`RouterCore._send`, `Simulation._send`); returns the block."""
    slot, count = k[C_SLOT], min(k[C_GROUP], k[C_CANDIDATES])
    s = server_at(p, k[C_SERVER])
    head = request_at(p, slot)
    key = (k[head + R_SEGMENT] * p[P_WIDTHS] + k[C_WIDTH]) * (p[P_WIDTHS] + 1) + k[head + R_PREVIOUS]
    number = k[C_SERVER] * p[P_CAP]
    while k[block_at(p, number) + B_DECISION] != NONE:
        number += 1
    b = block_at(p, number)
    k[b + B_DECISION], k[b + B_SERVER], k[b + B_EPOCH] = k[C_DECISION], k[C_SERVER], k[s + S_EPOCH]
    k[b + B_KEY], k[b + B_COUNT], k[b + B_ENDED], k[b + B_LINE] = key, count, 0, k[C_LINE]
    k[b + B_TAG] = k[C_TAG]
    k[b + B_SNAPSHOT], k[b + B_SENT], k[b + B_ARRIVED], k[b + B_MOVES], k[b + B_MOVING] = k[C_SNAPSHOT], now, 0, 0, 0
    k[C_SLOT] = NONE
    for position in range(count):
        following = pop(k, p, slot)
        a, m = request_at(p, slot), member_at(p, b, position)
        k[a + R_BLOCK], k[a + R_POSITION] = number, position
        k[m + M_REQUEST], k[m + M_ENDED], k[m + M_SOURCE] = slot, 0, k[a + R_LOCATION]
        if k[a + R_LOCATION] != k[C_SERVER]:
            _add_move(k, b, k[a + R_LOCATION])
        slot = following
    at = key_at(p, s, key)
    if k[at + K_OUTSTANDING] == 0:
        k[at + K_SINCE] = k[C_DECISION]
    k[at + K_OUTSTANDING] += count
    k[s + S_REQUESTS] += count
    k[s + S_BLOCKS] += 1
    if k[s + S_BLOCKS] == p[P_CAP]:
        _count_free(k, p, s, -1)
    _book_transfers(k, p, q, s, b, now)
    return b


@kernel
def _add_move(k: Ints, b: int, source: int) -> None:
    """One more place from which inputs of the block must come: in the order of places, each once."""
    moves = moves_at(b)
    place = k[b + B_MOVES]
    for n in range(place):
        if k[moves + n * O_SIZE + O_SOURCE] == source:
            return
    while place > 0 and k[moves + (place - 1) * O_SIZE + O_SOURCE] > source:
        k[moves + place * O_SIZE + O_SOURCE] = k[moves + (place - 1) * O_SIZE + O_SOURCE]
        place -= 1
    k[moves + place * O_SIZE + O_SOURCE] = source
    k[b + B_MOVES] += 1


@kernel
def _count_free(k: Ints, p: Ints, s: int, change: int) -> None:
    """One more, or one fewer, server can take blocks."""
    k[C_FREE_SERVERS] += change
    holds = p[k[s + S_PARAMETERS] + X_HOLDS_ANY]
    for segment in range(p[P_SEGMENTS]):
        k[p[P_VALID] + segment] += change * p[holds + segment]


# -------------------------------------------------------------------------------------------------------------- links


@kernel
def _book_transfers(k: Ints, p: Ints, q: Reals, s: int, b: int, now: int) -> None:
    if k[b + B_MOVES] == 0:
        return
    widths = p[P_WIDTHS]
    segment, previous = k[b + B_KEY] // (widths + 1) // widths, k[b + B_KEY] % (widths + 1)
    z = p[P_DEVICE_PARAMETERS] + k[s + S_DEVICE] * Z_SIZE
    one_bytes = p[p[z + Z_BYTES] + segment * (widths + 1) + previous]
    k[b + B_MOVING] = k[b + B_MOVES]
    for n in range(k[b + B_MOVES]):
        move, moved = moves_at(b) + n * O_SIZE, 0
        for position in range(k[b + B_COUNT]):
            moved += k[member_at(p, b, position) + M_SOURCE] == k[move + O_SOURCE]
        k[move + O_NS] = _transfer(k, p, q, k[move + O_SOURCE], s, one_bytes * moved, now)
        k[move + O_MOVING] = 1
    plan_transfers(k, p, s)


@kernel
def _transfer(k: Ints, p: Ints, q: Reals, source: int, s: int, transfer_bytes: int, now: int) -> int:
    """Book a transfer on the destination's medium; returns when it arrives (`Network.transfer`)."""
    x = k[s + S_PARAMETERS]
    latency_s, bandwidth, arrives = q[x + X_LATENCY], q[x + X_BANDWIDTH], 1.0
    if source != NONE:
        y = p[P_SERVER_PARAMETERS] + source * X_SIZE
        latency_s, bandwidth = max(q[y + X_LATENCY], latency_s), min(q[y + X_BANDWIDTH], bandwidth)
        arrives *= 1 - q[y + X_LOSS]
    arrives *= 1 - q[x + X_LOSS]
    loss = 1 - arrives
    medium = p[P_MEDIA_AT] + p[x + X_MEDIUM] * Y_SIZE
    started = max(now, k[medium + Y_FREE_AT])
    k[medium + Y_FREE_AT] = started + ceil(transfer_bytes / (1 - loss) / bandwidth * _NS)
    latencies = 1
    if loss > 0:
        chance = hashed_share(k[C_LINKS_SALT], p[x + X_MEDIUM], k[medium + Y_TRANSFERS])
        latencies += 2 * (_rounds(transfer_bytes, loss, chance) - 1)
    k[medium + Y_TRANSFERS] += 1
    return k[medium + Y_FREE_AT] + ceil(latencies * latency_s * _NS)


@kernel
def _rounds(transfer_bytes: int, loss: float, chance: float) -> int:
    """`sim.network.rounds`."""
    packets = -(-transfer_bytes // _PACKET)
    if packets == 0 or chance == 0.0:
        return 1
    one_missing = -expm1(log(chance) / packets)
    most: int = max(1, ceil(log(one_missing) / log(loss)))
    return most


@kernel
def plan_transfers(k: Ints, p: Ints, s: int) -> None:
    """When the next of a server's transfers ends."""
    soonest, first = NEVER, k[s + S_INDEX] * p[P_CAP]
    for number in range(first, first + p[P_CAP]):
        b = block_at(p, number)
        if k[b + B_DECISION] == NONE or k[b + B_MOVING] == 0:
            continue
        for n in range(k[b + B_MOVES]):
            soonest = min(soonest, k[moves_at(b) + n * O_SIZE + O_NS])
    k[s + S_TIMES + TRANSFER] = soonest
    reschedule(k, p, s)


@kernel
def end_transfer(k: Ints, p: Ints, s: int, now: int) -> int:
    """A transfer to a server ends: the one of the lowest block. Returns the block if it is all there now, else NONE."""
    first, best, move = k[s + S_INDEX] * p[P_CAP], NONE, NONE
    for number in range(first, first + p[P_CAP]):
        b = block_at(p, number)
        if k[b + B_DECISION] == NONE or k[b + B_MOVING] == 0:
            continue
        if best != NONE and k[best + B_DECISION] < k[b + B_DECISION]:
            continue
        for n in range(k[b + B_MOVES]):
            if k[moves_at(b) + n * O_SIZE + O_NS] == now:
                best, move = b, moves_at(b) + n * O_SIZE
                break
    k[move + O_NS] = NEVER
    source = k[move + O_SOURCE]
    is_stuck = source != NONE and k[server_at(p, source) + S_HUNG] == 1  # a stopped process sends nothing
    if not is_stuck:
        k[move + O_MOVING] = 0
        k[best + B_MOVING] -= 1
        for position in range(k[best + B_COUNT]):
            m = member_at(p, best, position)
            if k[m + M_SOURCE] == source:
                a = request_at(p, k[m + M_REQUEST])
                k[a + R_LOCATION], k[a + R_EPOCH] = k[s + S_INDEX], k[s + S_EPOCH]
    plan_transfers(k, p, s)
    return best if k[best + B_MOVING] == 0 else NONE


@kernel
def drop_transfers(k: Ints, r: Reals, p: Ints, q: Reals, server: int, now: int) -> None:
    """A server died: blocks that waited for inputs from it are tried again (`Simulation._fail_transfers`)."""
    while True:
        best = NONE
        for number in range(p[P_SERVERS] * p[P_CAP]):
            b = block_at(p, number)
            if k[b + B_DECISION] == NONE or k[b + B_MOVING] == 0:
                continue
            waits = False
            for n in range(k[b + B_MOVES]):
                move = moves_at(b) + n * O_SIZE
                waits = waits or (k[move + O_MOVING] == 1 and k[move + O_SOURCE] == server)
            if waits and (best == NONE or k[b + B_DECISION] < k[best + B_DECISION]):
                best = b
        if best == NONE:
            return
        k[best + B_MOVING] = 0
        plan_transfers(k, p, server_at(p, k[best + B_SERVER]))
        for position in range(k[best + B_COUNT]):
            retry(k, r, p, q, k[member_at(p, best, position) + M_REQUEST], SERVER_LOST, now)


# ---------------------------------------------------------------------------------------------------- what comes back


@kernel
def give_back(k: Ints, r: Reals, p: Ints, q: Reals, s: int, i: int, slot: int, now: int) -> None:
    """A request has passed a segment on instance `i`: one width more (`RouterCore._advance`)."""
    a = request_at(p, slot)
    number, position, segment = k[a + R_BLOCK], k[a + R_POSITION], k[a + R_SEGMENT]
    m = member_at(p, block_at(p, number), position)
    k[m + M_SPAN] = now - k[a + R_ENTERED]
    r[m + M_ENERGY] = energy_j(k, r, now) - r[a + R_ENTERED_J]
    note_return(k, p, s, i, a, now)
    width = k[i + I_SERVED]
    code = k[a + R_CODE] * p[P_WIDTHS] + width
    k[a + R_CODE], k[a + R_PREVIOUS], k[a + R_SEGMENT] = code, width + 1, segment + 1
    k[a + R_LOCATION], k[a + R_EPOCH] = k[s + S_INDEX], k[s + S_EPOCH]
    if segment + 1 == p[P_SEGMENTS]:
        is_right = is_correct(k, k[a + R_ID], code)
        r[m + M_ACCURACY] = is_right
        k[C_COMPLETED] += 1
        record_request(k, r, p, a, COMPLETED, NO_REASON, k[a + R_RETRIES], is_right, now)
        release(k, p, slot)
    else:
        r[m + M_ACCURACY] = q[p[P_PRIOR] + p[p[P_PRIOR_LEVELS] + segment] + code]
        enter(k, r, p, slot, now)
    _leave_block(k, r, p, q, number, position, now)


@kernel
def is_correct(k: Ints, request: int, code: int) -> int:
    """Whether a request's label is right after its last segment (`sim.accuracy`)."""
    if k[C_LABEL_KIND] == DRAWN:
        return 1 if hashed_share(k[C_LABELS_SALT], request, 0) < reals_at(k[C_LABEL_TABLE])[code] else 0
    column = ints_at(k[C_LABEL_TABLE])[code]
    if column == NONE:
        k[C_STATUS] = NO_TUPLE
        return 0
    image = ints_at(k[C_IMAGES])[request]
    return np.int64(bytes_at(k[C_LABELS])[image * k[C_LABEL_COLUMNS] + column])  # type: ignore[return-value]


@kernel
def retry(k: Ints, r: Reals, p: Ints, q: Reals, slot: int, reason: int, now: int) -> None:
    """Back to the FIFO's tail; from segment 1 where the activations died with their server (`RouterCore._retry`)."""
    a = request_at(p, slot)
    number, position = k[a + R_BLOCK], k[a + R_POSITION]
    if number != NONE:
        m = member_at(p, block_at(p, number), position)
        k[m + M_SPAN] = now - k[a + R_ENTERED]
        r[m + M_ENERGY] = energy_j(k, r, now) - r[a + R_ENTERED_J]
        r[m + M_ACCURACY] = 0.0
        note_loss(k, p, a, now)
    k[a + R_RETRIES] += 1
    location = k[a + R_LOCATION]
    if location != NONE:
        s = server_at(p, location)
        if not k[s + S_UP] or k[s + S_EPOCH] != k[a + R_EPOCH]:
            k[a + R_SEGMENT], k[a + R_PREVIOUS], k[a + R_CODE], k[a + R_LOCATION] = 0, 0, 0, NONE
    if k[a + R_RETRIES] > p[P_RETRIES]:
        _give_up(k, r, p, slot, reason, now)
    else:
        enter(k, r, p, slot, now)
    if number != NONE:
        _leave_block(k, r, p, q, number, position, now)


@kernel
def _give_up(k: Ints, r: Reals, p: Ints, slot: int, reason: int, now: int) -> None:
    a = request_at(p, slot)
    k[C_FAILED] += 1
    record_request(k, r, p, a, FAILED, reason, k[a + R_RETRIES], 0, now)
    release(k, p, slot)


@kernel
def _leave_block(k: Ints, r: Reals, p: Ints, q: Reals, number: int, position: int, now: int) -> None:
    """A member of a block has ended; the block ends with its last one."""
    b = block_at(p, number)
    s = server_at(p, k[b + B_SERVER])
    k[member_at(p, b, position) + M_ENDED] = 1
    k[b + B_ENDED] += 1
    k[s + S_REQUESTS] -= 1
    k[key_at(p, s, k[b + B_KEY]) + K_OUTSTANDING] -= 1
    if k[b + B_ENDED] < k[b + B_COUNT]:
        return
    if k[s + S_BLOCKS] == p[P_CAP] and k[s + S_UP]:
        _count_free(k, p, s, 1)
    k[s + S_BLOCKS] -= 1
    k[C_AT_CAP] = 0
    credit(k, r, p, q, b, now)
    k[b + B_DECISION] = NONE


# ------------------------------------------------------------------------------------------------ servers come and go


@kernel
def welcome(k: Ints, p: Ints, s: int) -> None:
    """A server is in service, in a new life, with nothing sent there (`ServerUp` at the router)."""
    _count_free(k, p, s, 1)
    k[C_AT_CAP] = 0
    k[s + S_SEEN_VRAM] = 0


@kernel
def lose_server(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """A server died: what was sent there, and what waits for activations that were there (`RouterCore._lose`).

    It is down already, and its reported power is 0.
    """
    if k[s + S_BLOCKS] < p[P_CAP]:
        _count_free(k, p, s, -1)
    scratch = _scratch(k, p)
    waiting = _remove_waiting(k, p, s, scratch)
    _retry_blocks(k, r, p, q, s, now)
    for n in range(waiting):
        retry(k, r, p, q, scratch[n], SERVER_LOST, now)
    k[s + S_SEEN_VRAM] = 0
    k[C_AT_CAP] = 0


@kernel
def _scratch(k: Ints, p: Ints) -> Ints:
    return ints_at(k[C_SCRATCH])


@kernel
def _remove_waiting(k: Ints, p: Ints, s: int, found: Ints) -> int:
    """Take those who wait with their activations at a server out of the FIFO; they are listed in order of arrival."""
    everyone, count = collect_in_flight(k, p, found), 0
    for n in range(everyone):
        a = request_at(p, found[n])
        if k[a + R_BLOCK] == NONE and k[a + R_LOCATION] == k[s + S_INDEX]:
            found[count] = found[n]
            count += 1
    sort_by_id(k, p, found, count)
    for n in range(count):
        remove(k, p, found[n])
    return count


@kernel
def _retry_blocks(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """The members of a server's blocks that have not ended, by block."""
    first = k[s + S_INDEX] * p[P_CAP]
    while True:
        best = NONE
        for number in range(first, first + p[P_CAP]):
            b = block_at(p, number)
            if k[b + B_DECISION] != NONE and (best == NONE or k[b + B_DECISION] < k[best + B_DECISION]):
                best = b
        if best == NONE:
            break
        k[best + B_MOVING] = 0
        for position in range(k[best + B_COUNT]):
            m = member_at(p, best, position)
            if not k[m + M_ENDED]:
                retry(k, r, p, q, k[m + M_REQUEST], SERVER_LOST, now)
    plan_transfers(k, p, s)
