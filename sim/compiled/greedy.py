"""`policies.greedy` and `sim.server`, compiled: Algorithm 1 at one server, and what its commands bring about.

What a step answers is carried out where it is decided: returns and rejections come first in a step and touch the router
alone, so their order against loads and batches does not matter.
"""

from __future__ import annotations

from math import ceil

from policies.jit import Ints, Reals, bytes_at, kernel
from sim.compiled.chance import hashed_below
from sim.compiled.fifo import dequeue, enqueue
from sim.compiled.layout import *
from sim.compiled.ledger import record_batch, record_reading, record_variance, report_power
from sim.compiled.physics import account, busy_ms, energy_mj, next_ending, replan, start_running, stop_running
from sim.compiled.router import give_back, lose_server, retry, welcome
from sim.compiled.rows import device_at, instance_at, key_at, member_at, request_at, spec_at

# --------------------------------------------------------------------------------------------------- words about keys


@kernel
def _segment_of(p: Ints, key: int) -> int:
    return key // (p[P_WIDTHS] + 1) // p[P_WIDTHS]


@kernel
def _spec_of(p: Ints, key: int) -> int:
    """The instance that a key asks for: segment and width as one number."""
    return key // (p[P_WIDTHS] + 1)


@kernel
def _bytes_of(k: Ints, p: Ints, s: int, spec: int) -> int:
    return p[p[k[s + S_PARAMETERS] + X_INSTANCE_BYTES] + spec]


@kernel
def _costs_of(k: Ints, p: Ints, s: int, spec: int) -> int:
    return p[p[P_DEVICE_PARAMETERS] + k[s + S_DEVICE] * Z_SIZE + Z_COSTS] + spec * J_SIZE


# ------------------------------------------------------------------------------------------------------------- events


@kernel
def take_block(k: Ints, r: Reals, p: Ints, q: Reals, s: int, b: int, now: int) -> None:
    """A block and all its inputs are at the server."""
    key = k[b + B_KEY]
    k[b + B_ARRIVED] = now
    can_hold = p[p[k[s + S_PARAMETERS] + X_CAN_HOLD] + _spec_of(p, key)]
    for position in range(k[b + B_COUNT]):
        slot = k[member_at(p, b, position) + M_REQUEST]
        if can_hold:
            enqueue(k, p, s, key, slot)
        else:
            retry(k, r, p, q, slot, TOO_LARGE, now)
    schedule(k, r, p, q, s, now)


@kernel
def begin_next(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """The dispatch of a server's oldest command has ended."""
    slot = k[s + S_STARTS_HEAD]
    following = k[instance_at(p, slot) + I_LINK]
    k[s + S_STARTS_HEAD] = following
    k[s + S_TIMES + START] = NEVER if following == NONE else k[instance_at(p, following) + I_NS]
    _begin(k, r, p, q, s, slot, now)


@kernel
def end_batch(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """A batch of the server ends: its work is done, or it found no memory."""
    slot = next_ending(k, p, s, now)
    i, d = instance_at(p, slot), device_at(p, k[s + S_DEVICE])
    if k[i + I_ROW] == NONE:
        _unlink_failing(k, p, s, slot)
        _release(k, p, s, slot, now)
        _reject(k, r, p, q, k[i + I_HEAD], MEMORY, now)
        _unload(k, p, s, slot, now)
        _back_off(k, r, p, q, s, k[i + I_SPEC], now)
        replan(k, p, d)
    else:
        stop_running(k, r, p, d, slot, now)
        _release(k, p, s, slot, now)
        _hand_back(k, r, p, q, s, i, now)
    schedule(k, r, p, q, s, now)


@kernel
def _hand_back(k: Ints, r: Reals, p: Ints, q: Reals, s: int, i: int, now: int) -> None:
    """What has passed goes to the router; what the last segment finds no label for is rejected."""
    if k[C_POISON] != 0 and k[i + I_SPEC] // p[P_WIDTHS] == p[P_SEGMENTS] - 1:
        poisoned = _set_poisoned_aside(k, p, i)
        if poisoned == k[i + I_COUNT]:
            _reject(k, r, p, q, k[i + I_FAILED], UNLABELLED, now)
            return
        k[s + S_IMAGES] += k[i + I_COUNT] - poisoned
    else:
        k[i + I_FAILED] = NONE
        k[s + S_IMAGES] += k[i + I_COUNT]
    k[spec_at(p, s, k[i + I_SPEC]) + Q_FAILURES] = 0
    k[s + S_BATCHES] += 1
    record_batch(k, p, s, i, now)
    slot = k[i + I_HEAD]
    while slot != NONE:
        following = k[request_at(p, slot) + R_NEXT]
        give_back(k, r, p, q, s, i, slot, now)
        slot = following
    _reject(k, r, p, q, k[i + I_FAILED], UNLABELLED, now)


@kernel
def _set_poisoned_aside(k: Ints, p: Ints, i: int) -> int:
    """Split a batch into those that are well and those that are not; returns the number of the latter."""
    poison, slot, count = bytes_at(k[C_POISON]), k[i + I_HEAD], 0
    last_well, last_ill = NONE, NONE
    k[i + I_HEAD], k[i + I_FAILED] = NONE, NONE
    while slot != NONE:
        a = request_at(p, slot)
        following = k[a + R_NEXT]
        k[a + R_NEXT] = NONE
        if poison[k[a + R_ID]]:
            if last_ill == NONE:
                k[i + I_FAILED] = slot
            else:
                k[request_at(p, last_ill) + R_NEXT] = slot
            last_ill = slot
            count += 1
        else:
            if last_well == NONE:
                k[i + I_HEAD] = slot
            else:
                k[request_at(p, last_well) + R_NEXT] = slot
            last_well = slot
        slot = following
    return count


@kernel
def _reject(k: Ints, r: Reals, p: Ints, q: Reals, slot: int, reason: int, now: int) -> None:
    while slot != NONE:
        following = k[request_at(p, slot) + R_NEXT]
        retry(k, r, p, q, slot, reason, now)
        slot = following


@kernel
def _unlink_failing(k: Ints, p: Ints, s: int, slot: int) -> None:
    found = k[s + S_FAILING_HEAD]
    if found == slot:
        k[s + S_FAILING_HEAD] = k[instance_at(p, slot) + I_LINK]
        return
    while k[instance_at(p, found) + I_LINK] != slot:
        found = k[instance_at(p, found) + I_LINK]
    k[instance_at(p, found) + I_LINK] = k[instance_at(p, slot) + I_LINK]


@kernel
def end_load(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """A load ends; at a server that hangs nobody hears of it."""
    slot = _take_due(k, p, s, S_LOADS_HEAD, LOAD, now)
    if k[s + S_HUNG]:
        return
    i = instance_at(p, slot)
    spec = spec_at(p, s, k[i + I_SPEC])
    k[spec + Q_HOSTED] = 1
    k[spec + Q_LOADING] -= 1
    k[i + I_LOADED] = now
    _set_free(k, p, s, slot, now)
    schedule(k, r, p, q, s, now)


@kernel
def end_unload(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """An unload ends: its memory is free."""
    slot = _take_due(k, p, s, S_UNLOADS_HEAD, UNLOAD, now)
    if k[s + S_HUNG]:
        return
    spec = k[instance_at(p, slot) + I_SPEC]
    k[s + S_FREEING] -= _bytes_of(k, p, s, spec)
    k[s + S_USED] -= _bytes_of(k, p, s, spec)
    _remove(k, p, s, slot)
    schedule(k, r, p, q, s, now)


@kernel
def _take_due(k: Ints, p: Ints, s: int, head: int, kind: int, now: int) -> int:
    """The instance of the lowest id among those whose time has come, out of its list; the next one is planned."""
    due, soonest = NONE, NEVER
    slot = k[s + head]
    while slot != NONE:
        i = instance_at(p, slot)
        if k[i + I_NS] == now and (due == NONE or k[i + I_ID] < k[instance_at(p, due) + I_ID]):
            due = slot
        slot = k[i + I_LINK]
    before, slot = NONE, k[s + head]
    while slot != NONE:
        following = k[instance_at(p, slot) + I_LINK]
        if slot != due:
            soonest = min(soonest, k[instance_at(p, slot) + I_NS])
            before = slot
        elif before == NONE:
            k[s + head] = following
        else:
            k[instance_at(p, before) + I_LINK] = following
        slot = following
    k[s + S_TIMES + kind] = soonest
    return due


# ---------------------------------------------------------------------------------------------------------- instances


@kernel
def _set_free(k: Ints, p: Ints, s: int, slot: int, now: int) -> None:
    """Last in the order of idleness."""
    i, tail = instance_at(p, slot), k[s + S_IDLE_TAIL]
    k[i + I_STATE], k[i + I_USED_NS] = FREE, now
    k[spec_at(p, s, k[i + I_SPEC]) + Q_FREE] += 1
    k[i + I_IDLE_PREVIOUS], k[i + I_IDLE_NEXT] = tail, NONE
    if tail == NONE:
        k[s + S_IDLE_HEAD] = slot
    else:
        k[instance_at(p, tail) + I_IDLE_NEXT] = slot
    k[s + S_IDLE_TAIL] = slot


@kernel
def _set_taken(k: Ints, p: Ints, s: int, slot: int, state: int) -> None:
    i = instance_at(p, slot)
    k[i + I_STATE] = state
    k[spec_at(p, s, k[i + I_SPEC]) + Q_FREE] -= 1
    before, after = k[i + I_IDLE_PREVIOUS], k[i + I_IDLE_NEXT]
    if before == NONE:
        k[s + S_IDLE_HEAD] = after
    else:
        k[instance_at(p, before) + I_IDLE_NEXT] = after
    if after == NONE:
        k[s + S_IDLE_TAIL] = before
    else:
        k[instance_at(p, after) + I_IDLE_PREVIOUS] = before


@kernel
def _release(k: Ints, p: Ints, s: int, slot: int, now: int) -> None:
    """A batch is over: its instance is free."""
    k[s + S_RUNNING] -= k[instance_at(p, slot) + I_COUNT]
    _set_free(k, p, s, slot, now)


@kernel
def _load(k: Ints, p: Ints, s: int, spec: int, now: int) -> None:
    """The first load comes from disk, a later one from host memory."""
    slot = k[C_FREE_INSTANCE]
    i, at, costs = instance_at(p, slot), spec_at(p, s, spec), _costs_of(k, p, s, spec)
    k[C_FREE_INSTANCE] = k[i + I_NEXT]
    k[C_FREE_INSTANCES] -= 1
    k[i + I_ID], k[i + I_SPEC], k[i + I_STATE], k[i + I_SERVER] = k[s + S_NEXT_INSTANCE], spec, LOADING, k[s + S_INDEX]
    k[s + S_NEXT_INSTANCE] += 1
    k[i + I_NEXT] = k[at + Q_HEAD]
    k[at + Q_HEAD] = slot
    k[at + Q_LOADING] += 1
    k[at + Q_ALIVE] += 1
    k[s + S_USED] += _bytes_of(k, p, s, spec)
    k[s + S_PEAK] = max(k[s + S_PEAK], k[s + S_USED])
    k[s + S_LOADS] += 1
    k[i + I_LOAD_BEGAN], k[i + I_LOADED] = now, now
    k[i + I_NS] = now + (p[costs + J_RELOAD] if k[at + Q_HOSTED] else p[costs + J_LOAD])
    k[i + I_LINK] = k[s + S_LOADS_HEAD]
    k[s + S_LOADS_HEAD] = slot
    k[s + S_TIMES + LOAD] = min(k[s + S_TIMES + LOAD], k[i + I_NS])


@kernel
def _unload(k: Ints, p: Ints, s: int, slot: int, now: int) -> None:
    _set_taken(k, p, s, slot, UNLOADING)
    i = instance_at(p, slot)
    spec = k[i + I_SPEC]
    k[spec_at(p, s, spec) + Q_ALIVE] -= 1
    k[s + S_FREEING] += _bytes_of(k, p, s, spec)
    k[s + S_UNLOADS] += 1
    k[i + I_NS] = now + p[_costs_of(k, p, s, spec) + J_UNLOAD]
    k[i + I_LINK] = k[s + S_UNLOADS_HEAD]
    k[s + S_UNLOADS_HEAD] = slot
    k[s + S_TIMES + UNLOAD] = min(k[s + S_TIMES + UNLOAD], k[i + I_NS])


@kernel
def _remove(k: Ints, p: Ints, s: int, slot: int) -> None:
    """An instance is gone: its slot is free."""
    i = instance_at(p, slot)
    at = spec_at(p, s, k[i + I_SPEC])
    found = k[at + Q_HEAD]
    if found == slot:
        k[at + Q_HEAD] = k[i + I_NEXT]
    else:
        while k[instance_at(p, found) + I_NEXT] != slot:
            found = k[instance_at(p, found) + I_NEXT]
        k[instance_at(p, found) + I_NEXT] = k[i + I_NEXT]
    k[i + I_NEXT] = k[C_FREE_INSTANCE]
    k[C_FREE_INSTANCE] = slot
    k[C_FREE_INSTANCES] += 1


@kernel
def _back_off(k: Ints, r: Reals, p: Ints, q: Reals, s: int, spec: int, now: int) -> None:
    """A batch lacked memory: the next load waits, and after the last try nobody waits for it."""
    at, x = spec_at(p, s, spec), k[s + S_PARAMETERS]
    if now < k[at + Q_RETRY_NS]:
        return
    k[at + Q_FAILURES] += 1
    if k[at + Q_FAILURES] < p[x + X_LOAD_RETRIES]:
        k[at + Q_RETRY_NS] = now + p[x + X_LOAD_BACKOFF_NS] * (1 << (k[at + Q_FAILURES] - 1))
        k[s + S_BACKED_OFF] = 1
        return
    k[at + Q_FAILURES], k[at + Q_RETRY_NS] = 0, 0
    place = 0
    while place < k[s + S_KEYS]:
        key = k[s + S_ORDER + place]
        if _spec_of(p, key) == spec and not _has_instance_for(k, p, s, key):
            _reject(k, r, p, q, dequeue(k, p, s, place, k[key_at(p, s, key) + K_COUNT]), MEMORY, now)
        else:
            place += 1


# ---------------------------------------------------------------------------------------------------------- decisions


@kernel
def schedule(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """Alg. 1's loop until nothing more can be done at this instant (`GreedyScheduler._schedule`)."""
    while _serve_next(k, r, p, q, s, now):
        pass
    if k[s + S_QUEUED] > 0:
        _load_for_blocked(k, r, p, q, s, now)
        _scale_up(k, r, p, q, s, now)
    idle_ns = p[k[s + S_PARAMETERS] + X_IDLE_NS]
    if idle_ns != NONE:
        while k[s + S_IDLE_HEAD] != NONE and now - k[instance_at(p, k[s + S_IDLE_HEAD]) + I_USED_NS] >= idle_ns:
            _unload(k, p, s, k[s + S_IDLE_HEAD], now)
    plan_wake(k, p, s, now)


@kernel
def _serve_next(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> bool:
    """Run the oldest key that a free instance can serve, unless an older one may not be overtaken."""
    for place in range(k[s + S_KEYS]):
        key = k[s + S_ORDER + place]
        slot = _free_best_fit(k, p, s, key)
        if slot != NONE:
            _run(k, r, p, q, s, place, slot, now)
            return True
        at = key_at(p, s, key)
        if k[at + K_BLOCKED_SINCE] == NONE:
            k[at + K_BLOCKED_SINCE] = now
        if _may_not_be_overtaken(k, p, s, key, now):
            return False
    return False


@kernel
def _may_not_be_overtaken(k: Ints, p: Ints, s: int, key: int, now: int) -> bool:
    return p[k[s + S_PARAMETERS] + X_BLOCKS] == 1 or _is_overdue(k, p, s, key, now)


@kernel
def _is_overdue(k: Ints, p: Ints, s: int, key: int, now: int) -> bool:
    return now - k[key_at(p, s, key) + K_BLOCKED_SINCE] >= p[k[s + S_PARAMETERS] + X_SKIP_NS]


@kernel
def _free_best_fit(k: Ints, p: Ints, s: int, key: int) -> int:
    """Alg. 1 l. 7: the smallest free width that serves; ties go to the most recently used, then the lowest id."""
    spec = _spec_of(p, key)
    for wider in range(spec, (spec // p[P_WIDTHS] + 1) * p[P_WIDTHS]):
        at = spec_at(p, s, wider)
        if k[at + Q_FREE] == 0:
            continue
        best, slot = NONE, k[at + Q_HEAD]
        while slot != NONE:
            i = instance_at(p, slot)
            if k[i + I_STATE] == FREE:
                b = instance_at(p, best) if best != NONE else i
                is_later = k[i + I_USED_NS] > k[b + I_USED_NS]
                is_as_late = k[i + I_USED_NS] == k[b + I_USED_NS]
                if best == NONE or is_later or (is_as_late and k[i + I_ID] < k[b + I_ID]):
                    best = slot
            slot = k[i + I_NEXT]
        return best
    return NONE


@kernel
def _run(k: Ints, r: Reals, p: Ints, q: Reals, s: int, place: int, slot: int, now: int) -> None:
    """Alg. 1 l. 14-17: form a batch of one key and make the instance busy."""
    x, i, key = k[s + S_PARAMETERS], instance_at(p, slot), k[s + S_ORDER + place]
    count = min(p[x + X_BATCH_LIMIT], k[key_at(p, s, key) + K_COUNT])
    k[i + I_HEAD] = dequeue(k, p, s, place, count)
    _set_taken(k, p, s, slot, BUSY)
    spec = k[i + I_SPEC] if p[x + X_AS_INSTANCE] else _spec_of(p, key)
    k[i + I_BATCH], k[i + I_COUNT], k[i + I_KEY], k[i + I_SERVED] = k[s + S_NEXT_BATCH], count, key, spec % p[P_WIDTHS]
    k[s + S_NEXT_BATCH] += 1
    k[s + S_RUNNING] += count
    k[i + I_PADDED] = count
    for n in range(p[x + X_PADDED_COUNT]):
        if p[p[x + X_PADDED] + n] >= count:
            k[i + I_PADDED] = p[p[x + X_PADDED] + n]
            break
    k[i + I_COMMANDED], k[i + I_STARTED], k[i + I_LINK] = now, now, NONE
    dispatch_ns = p[p[P_DEVICE_PARAMETERS] + k[s + S_DEVICE] * Z_SIZE + Z_DISPATCH]
    if dispatch_ns == 0:
        _begin(k, r, p, q, s, slot, now)
        return
    k[i + I_NS] = now + dispatch_ns
    if k[s + S_STARTS_HEAD] == NONE:
        k[s + S_STARTS_HEAD] = slot
        k[s + S_TIMES + START] = now + dispatch_ns
    else:
        k[instance_at(p, k[s + S_STARTS_TAIL]) + I_LINK] = slot
    k[s + S_STARTS_TAIL] = slot


@kernel
def _begin(k: Ints, r: Reals, p: Ints, q: Reals, s: int, slot: int, now: int) -> None:
    """The forward pass begins, in parts where the memory is squeezed; at a server that hangs it never does."""
    if k[s + S_HUNG]:
        return
    i, room = instance_at(p, slot), k[s + S_ROOM]
    k[i + I_STARTED] = now
    z = p[P_DEVICE_PARAMETERS] + k[s + S_DEVICE] * Z_SIZE
    key = (k[i + I_SPEC] // p[P_WIDTHS] * p[P_WIDTHS] + k[i + I_SERVED]) * (p[P_WIDTHS] + 1)
    key += k[i + I_KEY] % (p[P_WIDTHS] + 1)
    table = p[z + Z_TABLE] + key * (p[z + Z_LIMIT] + 1) * U_SIZE
    if room == NONE or k[i + I_COUNT] <= room:
        row = table + k[i + I_PADDED] * U_SIZE
        work = _solo_ns(k, p, q, s, i, row)
    elif room < 1:
        k[i + I_ROW], k[i + I_NS] = NONE, now
        k[i + I_LINK] = k[s + S_FAILING_HEAD]
        k[s + S_FAILING_HEAD] = slot
        k[s + S_TIMES + END] = now
        return
    else:
        first = k[i + I_COUNT]
        while first > room:
            first = (first + 1) // 2
        row = table + first * U_SIZE
        work = _work_in_parts(k, p, q, s, i, table, room)
    if p[row + U_LATENCY] == NONE:
        k[C_STATUS] = NO_CURVE
    r[i + I_WORK], r[i + I_FACTOR], r[i + I_SLOW] = work, r[s + S_FACTOR], 1.0
    k[i + I_ROW], k[i + I_FROZEN], k[i + I_END] = row, 0, 0
    start_running(k, r, p, device_at(p, k[s + S_DEVICE]), slot, now)


@kernel
def _work_in_parts(k: Ints, p: Ints, q: Reals, s: int, i: int, table: int, room: int) -> int:
    """Solo time of a batch that runs in halves of halves (`sim.server.parts_that_fit`)."""
    stack, depth, work = p[P_SCRATCH_AT], 1, 0
    k[stack] = k[i + I_COUNT]
    while depth > 0:
        depth -= 1
        size = k[stack + depth]
        if size <= room:
            work += _solo_ns(k, p, q, s, i, table + size * U_SIZE)
        else:
            k[stack + depth], k[stack + depth + 1] = size // 2, size - size // 2
            depth += 2
    return work


@kernel
def _solo_ns(k: Ints, p: Ints, q: Reals, s: int, i: int, row: int) -> int:
    """The mean, or the median times a quantile drawn by hash (`SimulatedServer._solo_ns`)."""
    if p[row + U_JITTER] == NONE:
        return p[row + U_LATENCY]
    drawn = hashed_below(k[C_JITTER_SALT], k[s + S_INDEX], k[i + I_BATCH], p[row + U_JITTERS])
    return ceil(p[row + U_TYPICAL] * q[p[row + U_JITTER] + drawn])


@kernel
def _load_for_blocked(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """Alg. 1 l. 8-12 for every blocked key, oldest first; the oldest that memory stops may evict idle instances."""
    x = k[s + S_PARAMETERS]
    may_evict = p[x + X_BLOCKS] == 0
    for place in range(k[s + S_KEYS]):
        key = k[s + S_ORDER + place]
        spec = _spec_of(p, key)
        if not _is_loading_for(k, p, s, key) and _admits(k, r, p, q, s, spec, now, _is_overdue(k, p, s, key, now)):
            if _fits(k, p, s, spec):
                _load_for_key(k, p, s, key, now)
            elif may_evict:
                if _evict_for(k, p, s, spec, now):
                    return
                may_evict = False
        if _may_not_be_overtaken(k, p, s, key, now):
            return


@kernel
def _scale_up(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """One more instance while the queue is above Q_th and the counter below N_new."""
    x = k[s + S_PARAMETERS]
    for place in range(k[s + S_KEYS]):
        key = k[s + S_ORDER + place]
        at, spec = key_at(p, s, key), _spec_of(p, key)
        while (
            k[at + K_COUNT] > p[x + X_TRIGGER]
            and k[at + K_LOADS] < p[x + X_SCALE_CAP]
            and _fits(k, p, s, spec)
            and _admits(k, r, p, q, s, spec, now, False)
        ):
            _load_for_key(k, p, s, key, now)
        if _may_not_be_overtaken(k, p, s, key, now):
            return


@kernel
def _admits(k: Ints, r: Reals, p: Ints, q: Reals, s: int, spec: int, now: int, is_overdue: bool) -> bool:
    """`can_load` but for the memory: U_blk, which a segment's first instance and an overdue key ignore."""
    if now < k[spec_at(p, s, spec) + Q_RETRY_NS]:
        return False
    if is_overdue or r[s + S_UTILIZATION] < q[k[s + S_PARAMETERS] + X_UTILIZATION_BLOCK]:
        return True
    first = spec // p[P_WIDTHS] * p[P_WIDTHS]
    for other in range(first, first + p[P_WIDTHS]):
        if k[spec_at(p, s, other) + Q_ALIVE] > 0:
            return False
    return True


@kernel
def _fits(k: Ints, p: Ints, s: int, spec: int) -> bool:
    return k[s + S_USED] + _bytes_of(k, p, s, spec) <= p[k[s + S_PARAMETERS] + X_CAP]


@kernel
def _has_instance_for(k: Ints, p: Ints, s: int, key: int) -> bool:
    spec = _spec_of(p, key)
    for wider in range(spec, (spec // p[P_WIDTHS] + 1) * p[P_WIDTHS]):
        if k[spec_at(p, s, wider) + Q_ALIVE] > 0:
            return True
    return False


@kernel
def _is_loading_for(k: Ints, p: Ints, s: int, key: int) -> bool:
    spec = _spec_of(p, key)
    for wider in range(spec, (spec // p[P_WIDTHS] + 1) * p[P_WIDTHS]):
        if k[spec_at(p, s, wider) + Q_LOADING] > 0:
            return True
    return False


@kernel
def _load_for_key(k: Ints, p: Ints, s: int, key: int, now: int) -> None:
    k[key_at(p, s, key) + K_LOADS] += 1
    _load(k, p, s, _spec_of(p, key), now)


@kernel
def _evict_for(k: Ints, p: Ints, s: int, spec: int, now: int) -> bool:
    """Unload idle instances, least recently used first, if that makes room; whether enough is on its way out."""
    short_bytes = k[s + S_USED] - k[s + S_FREEING] + _bytes_of(k, p, s, spec) - p[k[s + S_PARAMETERS] + X_CAP]
    if short_bytes <= 0:
        return True
    victims, slot = 0, k[s + S_IDLE_HEAD]
    while slot != NONE and short_bytes > 0:
        i = instance_at(p, slot)
        short_bytes -= _bytes_of(k, p, s, k[i + I_SPEC])
        victims += 1
        slot = k[i + I_IDLE_NEXT]
    if short_bytes > 0:
        return False
    for _ in range(victims):
        _unload(k, p, s, k[s + S_IDLE_HEAD], now)
    return True


@kernel
def plan_wake(k: Ints, p: Ints, s: int, now: int) -> None:
    """The next time at which something could change without an event."""
    wake = NEVER
    if k[s + S_BACKED_OFF]:
        for place in range(k[s + S_KEYS]):
            retry_ns = k[spec_at(p, s, _spec_of(p, k[s + S_ORDER + place])) + Q_RETRY_NS]
            if retry_ns > now:
                wake = min(wake, retry_ns)
    idle_ns = p[k[s + S_PARAMETERS] + X_IDLE_NS]
    if idle_ns != NONE and k[s + S_IDLE_HEAD] != NONE:
        wake = min(wake, k[instance_at(p, k[s + S_IDLE_HEAD]) + I_USED_NS] + idle_ns)
    k[s + S_TIMES + TIMER] = wake


# ---------------------------------------------------------------------------------------------------------- telemetry


@kernel
def next_telemetry(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """A report arrives, or the sensor is read; where both are due the report is first: it was planned earlier."""
    ring = s + p[P_REPORTS_AT]
    if k[s + S_REPORTS] > 0 and k[ring + k[s + S_REPORT_FIRST] * T_SIZE + T_RECEIVED] == now:
        t = ring + k[s + S_REPORT_FIRST] * T_SIZE
        k[s + S_REPORT_FIRST] = (k[s + S_REPORT_FIRST] + 1) % p[P_REPORTS]
        k[s + S_REPORTS] -= 1
        _report(k, r, p, q, s, t, now)
    else:
        sample(k, r, p, q, s, now)
    _plan_telemetry(k, p, s)


@kernel
def _plan_telemetry(k: Ints, p: Ints, s: int) -> None:
    soonest = k[s + S_SAMPLE_NS]
    if k[s + S_REPORTS] > 0:
        soonest = min(soonest, k[s + p[P_REPORTS_AT] + k[s + S_REPORT_FIRST] * T_SIZE + T_RECEIVED])
    k[s + S_TIMES + TELEMETRY] = soonest


@kernel
def sample(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """Read the sensor, unless the server is down or hangs; the reading arrives after its lag."""
    d = device_at(p, k[s + S_DEVICE])
    z = k[d + V_PARAMETERS]
    k[s + S_SAMPLE_NS] = now + p[z + Z_PERIOD]
    if k[s + S_UP] == 1 and k[s + S_HUNG] == 0:
        g = s + p[P_SENSOR_AT] + k[s + S_READ] % p[P_SENSOR] * G_SIZE
        k[g + G_NS], r[g + G_ENERGY], r[g + G_BUSY] = now, energy_mj(k, r, d, now), busy_ms(k, d, now)
        k[s + S_READ] += 1
        t = s + p[P_REPORTS_AT] + (k[s + S_REPORT_FIRST] + k[s + S_REPORTS]) % p[P_REPORTS] * T_SIZE
        k[t + T_RECEIVED], k[t + T_SAMPLED], k[t + T_EPOCH] = now + p[z + Z_LAG], now, k[s + S_EPOCH]
        r[t + T_POWER] = _average(k, r, p, s, G_ENERGY, p[z + Z_POWER_WINDOW], r[d + V_POWER] / 1000)
        r[t + T_UTILIZATION] = _average(k, r, p, s, G_BUSY, p[z + Z_UTILIZATION_WINDOW], k[d + V_BUSY] / 1000)
        k[t + T_VRAM] = k[s + S_USED]
        if p[z + Z_LAG] == 0:
            _report(k, r, p, q, s, t, now)
        else:
            k[s + S_REPORTS] += 1
    _plan_telemetry(k, p, s)


@kernel
def _average(k: Ints, r: Reals, p: Ints, s: int, column: int, window: int, present: float) -> float:
    """Over the last `window` periods, or as many as there are; `present` where there is no past (`WindowedSensor`)."""
    count = k[s + S_READ]
    if count == 1:
        return present
    ring, most = s + p[P_SENSOR_AT], p[P_SENSOR]
    latest = ring + (count - 1) % most * G_SIZE
    kept = min(count, 1 + max_window(p, k[s + S_DEVICE]))
    earlier = ring + (count - 1 - min(window, kept - 1)) % most * G_SIZE
    return (r[latest + column] - r[earlier + column]) * 1e6 / (k[latest + G_NS] - k[earlier + G_NS])


@kernel
def max_window(p: Ints, device: int) -> int:
    """The longer of a sensor's windows, in periods."""
    z = p[P_DEVICE_PARAMETERS] + device * Z_SIZE
    return max(p[z + Z_POWER_WINDOW], p[z + Z_UTILIZATION_WINDOW])


@kernel
def _report(k: Ints, r: Reals, p: Ints, q: Reals, s: int, t: int, now: int) -> None:
    """A reading arrives at the server's scheduler, and at the router."""
    if k[s + S_UP] == 0 or k[s + S_HUNG] == 1 or k[t + T_EPOCH] != k[s + S_EPOCH]:
        return
    sampled, utilization, power_w, vram = k[t + T_SAMPLED], r[t + T_UTILIZATION], r[t + T_POWER], k[t + T_VRAM]
    r[s + S_UTILIZATION] = utilization
    schedule(k, r, p, q, s, now)
    record_reading(k, s, sampled, utilization, power_w, vram, k[s + S_QUEUED] + k[s + S_RUNNING])
    k[s + S_SEEN_VRAM] = vram
    report_power(k, r, p, s, power_w, utilization, now)
    record_variance(k, r, p)


# ------------------------------------------------------------------------------------------------ servers come and go


@kernel
def come_up(k: Ints, r: Reals, p: Ints, s: int, now: int) -> None:
    """(Re)start, in a new life; it is down."""
    x = k[s + S_PARAMETERS]
    k[s + S_EPOCH] += 1
    k[s + S_UP] = 1
    for n in range(p[x + X_PRELOAD_COUNT]):
        _load(k, p, s, p[p[x + X_PRELOAD] + n], now)
    welcome(k, p, s)


@kernel
def go_down(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """Die: batches, instances, queue and activations are gone; it is up."""
    d = device_at(p, k[s + S_DEVICE])
    account(k, r, p, d, now)
    slot = k[d + V_FIRST]
    while slot != NONE:
        following = k[instance_at(p, slot) + I_RUN_NEXT]
        if k[instance_at(p, slot) + I_SERVER] == k[s + S_INDEX]:
            stop_running(k, r, p, d, slot, now)
        slot = following
    k[d + V_TOUCHED] = 1
    k[s + S_UP], k[s + S_HUNG], k[s + S_READ] = 0, 0, 0
    _forget(k, r, p, s)
    report_power(k, r, p, s, 0.0, 0.0, now)
    lose_server(k, r, p, q, s, now)


@kernel
def _forget(k: Ints, r: Reals, p: Ints, s: int) -> None:
    """The scheduler, the executor and what was under way between them: nothing is left."""
    for spec in range(p[P_SPECS]):
        at = spec_at(p, s, spec)
        while k[at + Q_HEAD] != NONE:
            _remove(k, p, s, k[at + Q_HEAD])
        for field in range(Q_FREE, Q_SIZE):
            k[at + field] = 0
    for place in range(k[s + S_KEYS]):
        at = key_at(p, s, k[s + S_ORDER + place])
        k[at + K_HEAD], k[at + K_TAIL], k[at + K_COUNT] = NONE, NONE, 0
    for key in range(p[P_KEYS]):
        at = key_at(p, s, key)
        k[at + K_BLOCKED_SINCE], k[at + K_LOADS] = NONE, 0
    k[s + S_KEYS], k[s + S_QUEUED], k[s + S_RUNNING], k[s + S_BACKED_OFF] = 0, 0, 0, 0
    k[s + S_USED], k[s + S_FREEING], r[s + S_UTILIZATION] = p[k[s + S_PARAMETERS] + X_CONTEXT], 0, 0.0
    k[s + S_IDLE_HEAD], k[s + S_IDLE_TAIL], k[s + S_STARTS_HEAD], k[s + S_STARTS_TAIL] = NONE, NONE, NONE, NONE
    k[s + S_LOADS_HEAD], k[s + S_UNLOADS_HEAD], k[s + S_FAILING_HEAD] = NONE, NONE, NONE
    for kind in (START, END, LOAD, UNLOAD, TIMER):
        k[s + S_TIMES + kind] = NEVER
