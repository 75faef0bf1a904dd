"""The loop of the compiled engine: what happens next, until a decision is asked for or the run is over.

At one instant: arrivals, then server by server what `layout` lists in its order, then the end of the router's decision,
and last the start of the next one, when nothing is left at the instant (`sim.agenda`). Every slot knows its own next
time, so no event is ever stale.
"""

from __future__ import annotations

from policies.jit import Ints, Reals, ints_at, kernel, reals_at
from sim.compiled.chance import hashed_below
from sim.compiled.faults import next_fault, return_to_service
from sim.compiled.greedy import (
    begin_next,
    end_batch,
    end_load,
    end_unload,
    next_telemetry,
    sample,
    schedule,
    take_block,
)
from sim.compiled.layout import *
from sim.compiled.ledger import record_rest
from sim.compiled.physics import account, settle
from sim.compiled.router import arrive, ask, ask_ns, end_transfer, form_block, may_send, plan_arrival
from sim.compiled.rows import device_at, reschedule, server_at, soonest_server


@kernel
def _set_off(k: Ints, r: Reals, p: Ints, q: Reals) -> None:
    """The first instant: servers come up, sensors are read, devices take their pace (`Simulation._set_off`)."""
    for index in range(p[P_SERVERS]):
        s = server_at(p, index)
        return_to_service(k, r, p, s, 0)
        sample(k, r, p, q, s, 0)
        reschedule(k, p, s)
    for index in range(p[P_DEVICES]):
        _start_pace(k, r, p, q, device_at(p, index))
    plan_arrival(k)


@kernel
def advance(k: Ints, r: Reals, p: Ints, q: Reals) -> int:
    """Run to the next decision (ASKED), to the end (ENDED), or until a pool or a list of records must grow."""
    if k[C_IS_SET_OFF] == 0:
        k[C_IS_SET_OFF] = 1
        _set_off(k, r, p, q)
    while k[C_STATUS] == 0:
        now = k[C_NOW]
        due = min(k[C_ARRIVAL_NS], min(k[p[P_TREE] + 1], k[C_DECISION_END]))
        wake = ask_ns(k, p)
        if wake <= now and due > now:
            if ask(k, r, p, now):
                return ASKED
        elif _is_over(k, p, min(due, wake)):
            _end(k, r, p)
            return ENDED
        elif wake < due:
            k[C_NOW] = wake
        else:
            problem = _lacks(k, p)
            if problem:
                return problem
            k[C_NOW] = due
            _step(k, r, p, q, due)
    return k[C_STATUS]


@kernel
def _lacks(k: Ints, p: Ints) -> int:
    """What must grow before the next event, whatever it is."""
    if k[C_FREE_REQUESTS] == 0 and k[C_ARRIVAL_NS] != NEVER:
        return REQUESTS_FULL
    if k[C_FREE_INSTANCES] < p[P_MARGIN]:
        return INSTANCES_FULL
    if k[C_DETAIL]:
        blocks = k[C_BLOCK_RECORDS] + p[P_SERVERS] * p[P_CAP] >= k[C_BLOCKS_ROOM]
        readings = k[C_READINGS] >= k[C_READINGS_ROOM] or k[C_VARIANCES] >= k[C_VARIANCES_ROOM]
        if blocks or readings or k[C_BATCH_RECORDS] >= k[C_BATCHES_ROOM]:
            return RECORDS_FULL
    return 0


@kernel
def decide(k: Ints, p: Ints, server: int, width: int, group: int) -> None:
    """Answer the decision that is asked for; it takes effect when its time has passed."""
    k[C_ASKED], k[C_SERVER], k[C_WIDTH], k[C_GROUP] = 0, server, width, group
    k[C_DECISION_END] = k[C_NOW] + p[P_DECISION_NS]


@kernel
def _step(k: Ints, r: Reals, p: Ints, q: Reals, now: int) -> None:
    """What is next at this instant."""
    if k[C_ARRIVAL_NS] == now:
        arrive(k, r, p, now)
    elif k[p[P_TREE] + 1] == now:
        s = server_at(p, soonest_server(k, p))
        _happen(k, r, p, q, s, now)
        _settle_device(k, r, p, q, s, now)
        reschedule(k, p, s)
    else:
        k[C_DECISION_END] = NEVER
        if may_send(k, p):
            b = form_block(k, r, p, q, now)
            s = server_at(p, k[C_SERVER])
            if k[b + B_MOVES] == 0:
                take_block(k, r, p, q, s, b, now)
                _settle_device(k, r, p, q, s, now)
            reschedule(k, p, s)


@kernel
def _happen(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """A server's next event, in the order of kinds."""
    times = s + S_TIMES
    if k[times + TRANSFER] == now:
        b = end_transfer(k, p, s, now)
        if b != NONE:
            take_block(k, r, p, q, s, b, now)
    elif k[times + START] == now:
        begin_next(k, r, p, q, s, now)
    elif k[times + END] == now:
        end_batch(k, r, p, q, s, now)
    elif k[times + LOAD] == now:
        end_load(k, r, p, q, s, now)
    elif k[times + UNLOAD] == now:
        end_unload(k, r, p, q, s, now)
    elif k[times + TIMER] == now:
        schedule(k, r, p, q, s, now)
    elif k[times + TELEMETRY] == now:
        next_telemetry(k, r, p, q, s, now)
    elif k[times + FAULT] == now:
        next_fault(k, r, p, q, s, now)
    else:
        _change_pace(k, r, p, q, device_at(p, k[s + S_DEVICE]), s, now)


@kernel
def _settle_device(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    d = device_at(p, k[s + S_DEVICE])
    if k[d + V_TOUCHED]:
        settle(k, r, p, q, d, now)


# ---------------------------------------------------------------------------------------------------------------- pace


@kernel
def _start_pace(k: Ints, r: Reals, p: Ints, q: Reals, d: int) -> None:
    """The device's speed comes and goes as it really did, or as its profile says (`SharedDevice.start_pace`)."""
    z = k[d + V_PARAMETERS]
    if p[z + Z_SERVER_COUNT] == 0:
        return
    s = server_at(p, p[p[z + Z_SERVERS]])
    if k[d + V_CHANGES_AT] != 0:
        if k[d + V_CHANGES] > 0:
            k[s + S_TIMES + PACE] = ints_at(k[d + V_CHANGES_AT])[0]
            reschedule(k, p, s)
    elif p[z + Z_PACE]:
        drawn = hashed_below(k[d + V_PACE_SALT], FIRST_DRAW, FIRST_DRAW, p[z + Z_FULL_SUM] + p[z + Z_SLOW_SUM])
        k[d + V_PACE_SLOW] = drawn >= p[z + Z_SLOW_SUM]  # the change that follows turns it round
        _change_pace(k, r, p, q, d, s, 0)
        reschedule(k, p, s)


@kernel
def _change_pace(k: Ints, r: Reals, p: Ints, q: Reals, d: int, s: int, now: int) -> None:
    z = k[d + V_PARAMETERS]
    account(k, r, p, d, now)
    if k[d + V_CHANGES_AT] != 0:
        changes, at = ints_at(k[d + V_CHANGES_AT]), k[d + V_CHANGE]
        r[d + V_PACE] = reals_at(k[d + V_CHANGES_AT])[2 * at + 1] / q[z + Z_MEAN_PACE]
        k[d + V_CHANGE] = at + 1
        k[s + S_TIMES + PACE] = changes[2 * at + 2] if at + 1 < k[d + V_CHANGES] else NEVER
    else:
        is_slow = 1 - k[d + V_PACE_SLOW]
        r[d + V_PACE] = q[z + Z_SLOW_FACTOR] if is_slow else 1.0
        durations = p[z + Z_SLOW] if is_slow else p[z + Z_FULL]
        count = p[z + Z_SLOW_COUNT] if is_slow else p[z + Z_FULL_COUNT]
        drawn = hashed_below(k[d + V_PACE_SALT], is_slow, k[d + V_PACE_NUMBER], count)
        k[d + V_PACE_SLOW] = is_slow
        k[d + V_PACE_NUMBER] += 1
        k[s + S_TIMES + PACE] = now + p[durations + drawn]
    settle(k, r, p, q, d, now)


# ------------------------------------------------------------------------------------------------------------- the end


@kernel
def _is_over(k: Ints, p: Ints, due: int) -> bool:
    """`Simulation._is_over`."""
    if due <= k[C_HORIZON]:
        return False
    if not k[C_DRAINS]:
        return True
    is_drained = k[C_ARRIVED] == k[C_ARRIVAL_COUNT] and k[C_IN_FLIGHT] == 0
    return is_drained or k[C_GONE] == p[P_SERVERS] or due > k[C_HORIZON] + k[C_LIMIT]


@kernel
def _end(k: Ints, r: Reals, p: Ints) -> None:
    """Under `drain`, the run ends at the horizon or at the last completion (or death), whichever is later."""
    ended = k[C_HORIZON]
    if k[C_DRAINS]:
        is_done = k[C_IN_FLIGHT] == 0 or k[C_GONE] == p[P_SERVERS]
        ended = max(ended, k[C_NOW]) if is_done else ended + k[C_LIMIT]
    k[C_ENDED] = ended
    k[C_STATUS] = ENDED
    if k[C_KEEPS]:
        record_rest(k, r, p, ints_at(k[C_SCRATCH]), ended)
