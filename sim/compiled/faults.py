"""`sim.faults`, compiled: what is planned goes wrong, and dead servers come back when their supervision says so."""

from __future__ import annotations

from policies.jit import Ints, Reals, ints_at, kernel
from sim.compiled.greedy import come_up, go_down
from sim.compiled.layout import *
from sim.compiled.physics import freeze, straggle
from sim.compiled.router import drop_transfers
from sim.compiled.rows import reschedule, server_at

_ENDS, _BEGINS = 0, 1


@kernel
def plan_fault(k: Ints, p: Ints, now: int, server: int, order: int, what: int, argument: int) -> None:
    """Put one more fault on the list."""
    f = p[P_FAULTS_AT] + k[C_FAULTS] * F_SIZE
    k[C_FAULTS] += 1
    k[f + F_NS], k[f + F_SERVER], k[f + F_ORDER], k[f + F_WHAT], k[f + F_ARGUMENT] = now, server, order, what, argument
    k[f + F_NUMBER] = k[C_FAULT_NUMBER]
    k[C_FAULT_NUMBER] += 1
    s = server_at(p, server)
    k[s + S_TIMES + FAULT] = min(k[s + S_TIMES + FAULT], now)
    reschedule(k, p, s)


@kernel
def next_fault(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """The server's next fault: what ends comes before what begins, what was planned first before what was later."""
    best, soonest = NONE, NEVER
    for n in range(k[C_FAULTS]):
        f = p[P_FAULTS_AT] + n * F_SIZE
        if k[f + F_SERVER] != k[s + S_INDEX] or k[f + F_NS] != now:
            continue
        if best == NONE or _is_before(k, f, best):
            best = f
    what, argument, factor = k[best + F_WHAT], k[best + F_ARGUMENT], r[best + F_ARGUMENT]
    k[C_FAULTS] -= 1
    last = p[P_FAULTS_AT] + k[C_FAULTS] * F_SIZE
    for field in range(F_SIZE):
        k[best + field] = k[last + field]
    for n in range(k[C_FAULTS]):
        f = p[P_FAULTS_AT] + n * F_SIZE
        if k[f + F_SERVER] == k[s + S_INDEX]:
            soonest = min(soonest, k[f + F_NS])
    k[s + S_TIMES + FAULT] = soonest
    _happen(k, r, p, q, s, what, argument, factor, now)


@kernel
def _is_before(k: Ints, one: int, other: int) -> bool:
    if k[one + F_ORDER] != k[other + F_ORDER]:
        return k[one + F_ORDER] < k[other + F_ORDER]
    return k[one + F_NUMBER] < k[other + F_NUMBER]


@kernel
def _happen(k: Ints, r: Reals, p: Ints, q: Reals, s: int, what: int, argument: int, factor: float, now: int) -> None:
    if what == TAKE_OUT:
        _take_out(k, r, p, q, s, argument, now)
    elif what == COME_UP:
        return_to_service(k, r, p, s, now)
    elif what == STRAGGLE:
        straggle(k, r, p, s, factor, now)
    elif what == SQUEEZE:
        k[s + S_ROOM] = argument
    elif what == CRASH:
        _crash(k, r, p, q, s, now)
    elif what == HANG:
        if k[s + S_UP]:
            k[s + S_HUNG] = 1
            freeze(k, r, p, s, now)
            plan_fault(k, p, now + p[P_HANG_NS], k[s + S_INDEX], _BEGINS, NOTICE_HANG, k[s + S_EPOCH])
    elif k[s + S_EPOCH] == argument:
        _crash(k, r, p, q, s, now)


@kernel
def return_to_service(k: Ints, r: Reals, p: Ints, s: int, now: int) -> None:
    """Unless it is there, a planned outage keeps it out, or its new process is not ready (`FaultDriver.come_up`)."""
    if k[s + S_UP] or now < max(k[s + S_OUT_UNTIL], k[s + S_READY_AT]):
        return
    if k[s + S_DOWN_SINCE] != NONE:
        out = ints_at(k[C_RESTARTS_AT] + 8 * W_SIZE * k[C_RESTARTS])
        out[W_SERVER], out[W_DOWN], out[W_UP] = k[s + S_INDEX], k[s + S_DOWN_SINCE], now
        k[C_RESTARTS] += 1
        k[s + S_DOWN_SINCE] = NONE
    k[s + S_UP_SINCE] = now
    come_up(k, r, p, s, now)


@kernel
def _take_out(k: Ints, r: Reals, p: Ints, q: Reals, s: int, until: int, now: int) -> None:
    if until == NEVER and k[s + S_OUT_UNTIL] != NEVER:
        k[C_GONE] += 1
    k[s + S_OUT_UNTIL] = max(k[s + S_OUT_UNTIL], until)
    if k[s + S_UP]:
        _restart_at(k, p, s, now)
        _kill(k, r, p, q, s, now)


@kernel
def _kill(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    k[s + S_DOWN_SINCE] = now
    go_down(k, r, p, q, s, now)
    drop_transfers(k, r, p, q, k[s + S_INDEX], now)


@kernel
def _crash(k: Ints, r: Reals, p: Ints, q: Reals, s: int, now: int) -> None:
    """It dies now and is ready again after its back-off and the time that a process needs to start."""
    if not k[s + S_UP]:
        return
    _kill(k, r, p, q, s, now)
    ready = _restart_at(k, p, s, now) + p[P_START_NS]
    k[s + S_READY_AT] = ready
    plan_fault(k, p, ready, k[s + S_INDEX], _ENDS, COME_UP, 0)


@kernel
def _restart_at(k: Ints, p: Ints, s: int, now: int) -> int:
    """`policies.faults.RestartPlan.restart_at_ns`."""
    if k[s + S_UP_SINCE] != NONE and now - k[s + S_UP_SINCE] >= p[P_STABLE_NS]:
        k[s + S_DEATHS] = 0
    k[s + S_UP_SINCE] = NONE
    doublings = min(k[s + S_DEATHS], 30)
    k[s + S_DEATHS] += 1
    if p[P_BACKOFF_NS] > p[P_BACKOFF_LIMIT_NS] >> doublings:  # asked so that nothing overflows
        return now + p[P_BACKOFF_LIMIT_NS]
    return now + (p[P_BACKOFF_NS] << doublings)
