"""`sim.physics`, compiled: batches that share a device. Float work is done in the reference's order."""

from __future__ import annotations

from math import ceil

from policies.jit import Ints, Reals, kernel
from sim.compiled.layout import *
from sim.compiled.rows import device_at, instance_at, reschedule, server_at
from sim.tables import CROWDING_LIMIT_PERMILLE

_LIMIT = CROWDING_LIMIT_PERMILLE


@kernel
def account(k: Ints, r: Reals, p: Ints, d: int, now: int) -> None:
    """The time since the device's last change (`SimulatedDevice.advance`)."""
    elapsed = now - k[d + V_UPDATED]
    if elapsed == 0:
        return
    if k[d + V_IS_EXTRAPOLATED]:
        k[d + V_EXTRAPOLATED_NS] += elapsed
    r[d + V_ENERGY] += r[d + V_POWER] * elapsed
    k[d + V_BUSY_NS] += k[d + V_BUSY] * elapsed
    slot = k[d + V_FIRST]
    while slot != NONE:
        i = instance_at(p, slot)
        r[i + I_WORK] -= elapsed / r[i + I_SLOW]
        slot = k[i + I_RUN_NEXT]
    k[d + V_UPDATED] = now


@kernel
def energy_mj(k: Ints, r: Reals, d: int, now: int) -> float:
    """Energy drawn until now."""
    return (r[d + V_ENERGY] + r[d + V_POWER] * (now - k[d + V_UPDATED])) / 1_000_000_000


@kernel
def busy_ms(k: Ints, d: int, now: int) -> float:
    """The integral of utilization until now."""
    return (k[d + V_BUSY_NS] + k[d + V_BUSY] * (now - k[d + V_UPDATED])) / 1_000_000_000


@kernel
def start_running(k: Ints, r: Reals, p: Ints, d: int, slot: int, now: int) -> None:
    """A batch begins: last in the order of the device's sums."""
    account(k, r, p, d, now)
    i, last = instance_at(p, slot), k[d + V_LAST]
    k[i + I_RUN_PREVIOUS], k[i + I_RUN_NEXT] = last, NONE
    if last == NONE:
        k[d + V_FIRST] = slot
    else:
        k[instance_at(p, last) + I_RUN_NEXT] = slot
    k[d + V_LAST] = slot
    k[d + V_COUNT] += 1
    k[d + V_TOUCHED] = 1


@kernel
def stop_running(k: Ints, r: Reals, p: Ints, d: int, slot: int, now: int) -> None:
    """A batch has ended, or was killed."""
    account(k, r, p, d, now)
    i = instance_at(p, slot)
    before, after = k[i + I_RUN_PREVIOUS], k[i + I_RUN_NEXT]
    if before == NONE:
        k[d + V_FIRST] = after
    else:
        k[instance_at(p, before) + I_RUN_NEXT] = after
    if after == NONE:
        k[d + V_LAST] = before
    else:
        k[instance_at(p, after) + I_RUN_PREVIOUS] = before
    k[d + V_COUNT] -= 1
    k[d + V_TOUCHED] = 1


@kernel
def settle(k: Ints, r: Reals, p: Ints, q: Reals, d: int, now: int) -> None:
    """Re-rate what runs, once for all changes of an event (`SimulatedDevice._rerate`), and plan the next ends."""
    k[d + V_TOUCHED] = 0
    z, first, is_across = k[d + V_PARAMETERS], k[d + V_FIRST], False
    demand, host, busy, bandwidth = 0, 0, 0, 0.0
    slot = first
    while slot != NONE:
        i = instance_at(p, slot)
        u = k[i + I_ROW]
        demand += p[u + U_DEMAND]
        host += p[u + U_HOST]
        busy += p[u + U_BUSY]
        bandwidth += q[u + U_BANDWIDTH]
        is_across = is_across or k[i + I_SERVER] != k[instance_at(p, first) + I_SERVER]
        slot = k[i + I_RUN_NEXT]
    load: int = max(demand, host)
    processes = 1
    if is_across:
        load, processes = _across(k, p, d, demand, load)
    k[d + V_IS_EXTRAPOLATED] = k[d + V_COUNT] > q[z + Z_MOST] or (is_across and processes > q[z + Z_MOST_PROCESSES])
    crowding = p[z + Z_CROWDING_ACROSS] if is_across else p[z + Z_CROWDING]
    common = q[crowding + min(load, _LIMIT)]
    uncapped_mw = q[z + Z_IDLE_MW]
    slot = first
    while slot != NONE:
        i = instance_at(p, slot)
        u = k[i + I_ROW]
        slow = common * (1.0 + q[z + Z_ALPHA] * (bandwidth - q[u + U_BANDWIDTH])) * r[i + I_FACTOR]
        r[i + I_SLOW] = slow
        uncapped_mw += q[u + U_POWER] / slow
        slot = k[i + I_RUN_NEXT]
    phi = min(1.0, max(q[z + Z_PHI_MIN], 1.0 - q[z + Z_THROTTLE] * (uncapped_mw / q[z + Z_CAP_MW] - 1.0)))
    slot = first
    while slot != NONE:
        i = instance_at(p, slot)
        r[i + I_SLOW] *= r[d + V_PACE] / phi
        k[i + I_END] = now + max(0, ceil(r[i + I_WORK] * r[i + I_SLOW]))
        slot = k[i + I_RUN_NEXT]
    r[d + V_POWER] = min(q[z + Z_CAP_MW], uncapped_mw)
    k[d + V_BUSY] = min(1000, busy)
    replan(k, p, d)


@kernel
def _across(k: Ints, p: Ints, d: int, demand: int, load: int) -> tuple[int, int]:
    """x of a set of several processes, and their number (`sim.device.total_load`)."""
    z, processes, turns, most_host = k[d + V_PARAMETERS], 0, 0, 0
    for n in range(p[z + Z_SERVER_COUNT]):
        server, host, busy, is_there = p[p[z + Z_SERVERS] + n], 0, 0, False
        slot = k[d + V_FIRST]
        while slot != NONE:
            i = instance_at(p, slot)
            if k[i + I_SERVER] == server:
                is_there = True
                host += p[k[i + I_ROW] + U_HOST]
                busy += p[k[i + I_ROW] + U_BUSY]
            slot = k[i + I_RUN_NEXT]
        if is_there:
            processes += 1
            turns += min(1000, busy)
            most_host = max(most_host, host)
    if p[z + Z_HOSTED]:
        return load, processes
    return max(demand, max(most_host, turns)), processes


@kernel
def replan(k: Ints, p: Ints, d: int) -> None:
    """When each server's next batch ends, as things are."""
    z = k[d + V_PARAMETERS]
    for n in range(p[z + Z_SERVER_COUNT]):
        s = server_at(p, p[p[z + Z_SERVERS] + n])
        soonest = NEVER
        if k[s + S_FAILING_HEAD] != NONE:
            soonest = k[instance_at(p, k[s + S_FAILING_HEAD]) + I_NS]
        slot = k[d + V_FIRST]
        while slot != NONE:
            i = instance_at(p, slot)
            if k[i + I_SERVER] == k[s + S_INDEX] and not k[i + I_FROZEN] and k[i + I_END] < soonest:
                soonest = k[i + I_END]
            slot = k[i + I_RUN_NEXT]
        k[s + S_TIMES + END] = soonest
        reschedule(k, p, s)


@kernel
def next_ending(k: Ints, p: Ints, s: int, now: int) -> int:
    """The lowest batch of those of a server that end now: the slot of its instance."""
    best = k[s + S_FAILING_HEAD]
    slot = best
    while slot != NONE:
        i = instance_at(p, slot)
        if k[i + I_BATCH] < k[instance_at(p, best) + I_BATCH]:
            best = slot
        slot = k[i + I_LINK]
    slot = k[device_at(p, k[s + S_DEVICE]) + V_FIRST]
    while slot != NONE:
        i = instance_at(p, slot)
        if k[i + I_SERVER] == k[s + S_INDEX] and not k[i + I_FROZEN] and k[i + I_END] == now:  # noqa: SIM102
            if best == NONE or k[i + I_BATCH] < k[instance_at(p, best) + I_BATCH]:
                best = slot
        slot = k[i + I_RUN_NEXT]
    return best


@kernel
def freeze(k: Ints, r: Reals, p: Ints, s: int, now: int) -> None:
    """A server hangs: its batches stop where they are (what they draw stays)."""
    d = device_at(p, k[s + S_DEVICE])
    account(k, r, p, d, now)
    slot = k[d + V_FIRST]
    while slot != NONE:
        i = instance_at(p, slot)
        if k[i + I_SERVER] == k[s + S_INDEX]:
            k[i + I_FROZEN] = 1
        slot = k[i + I_RUN_NEXT]
    replan(k, p, d)


@kernel
def straggle(k: Ints, r: Reals, p: Ints, s: int, factor: float, now: int) -> None:
    """A server's batches, and those that it will start, run `factor` times slower."""
    d = device_at(p, k[s + S_DEVICE])
    account(k, r, p, d, now)
    r[s + S_FACTOR] = factor
    slot = k[d + V_FIRST]
    while slot != NONE:
        i = instance_at(p, slot)
        if k[i + I_SERVER] == k[s + S_INDEX]:
            r[i + I_FACTOR] = factor
        slot = k[i + I_RUN_NEXT]
    k[d + V_TOUCHED] = 1
