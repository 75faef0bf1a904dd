"""Tide's decision: a price for a GPU-second that follows the load, and the width, server and group it leads to.

See `policies.tide` for what the knobs mean and how they are learned. This is the one place where it decides, in simulation
on either engine and on hardware.
"""

from __future__ import annotations

from math import exp, log

from policies.fast.layout import *
from policies.jit import Ints, Reals, kernel

# fmt: off
# Knobs: what is learned, then tables that depend on the cluster.
FEATURES = 10
(
    T_WEIGHTS,                                                                  # FEATURES of them
    T_TRANSFER, T_BATCH, T_MOVE_S, T_SLOWNESS, T_SHARE, T_SHARE_LOAD, T_OWN_COST,
    T_WORTH_AT, T_COST_AT, T_UNIT_S, T_CAPACITY_AT, T_TAU_FAST, T_TAU_MID, T_TAU_SLOW, T_TAU_SPEED, T_WAIT_ITEM_S,
    T_SIZE,
) = (0, *range(FEATURES, FEATURES + 17))
# Memory.
(
    E_NOW, E_ARRIVED, E_FAST, E_MID, E_SLOW, E_PRICE, E_BACKLOG,
    E_SERVERS,                                                                  # N records follow
) = range(8)
(
    F_WORK, F_BUSY, F_DRAINED,
    F_SIZE,
) = range(4)
# fmt: on
_NS = 1e9


@kernel
def _server(v: Ints, index: int) -> int:
    return SEEN_SERVERS + index * ITS_SIZE


@kernel
def remember(g: Ints, h: Reals, v: Ints, m: int, t: int) -> None:
    """Arrival rates over three times, and how fast each server really works off what it was sent."""
    arrived = v[SEEN_COMPLETED] + v[SEEN_FIFO]
    for index in range(g[PLAN_SERVERS]):
        arrived += v[_server(v, index) + ITS_REQUESTS]
    passed_s = (v[SEEN_NOW] - h[m + E_NOW]) / _NS
    came = max(0.0, arrived - h[m + E_ARRIVED])
    h[m + E_FAST] += (came - h[m + E_FAST] * passed_s) / (h[t + T_TAU_FAST] + passed_s)
    h[m + E_MID] += (came - h[m + E_MID] * passed_s) / (h[t + T_TAU_MID] + passed_s)
    h[m + E_SLOW] += (came - h[m + E_SLOW] * passed_s) / (h[t + T_TAU_SLOW] + passed_s)
    keep = h[t + T_TAU_SPEED] / (h[t + T_TAU_SPEED] + passed_s)
    for index in range(g[PLAN_SERVERS]):
        e, work_s = m + E_SERVERS + index * F_SIZE, v[_server(v, index) + ITS_WORK_NS] / _NS
        if h[e + F_WORK] > 0:
            h[e + F_BUSY] = (h[e + F_BUSY] + passed_s) * keep
            h[e + F_DRAINED] = (h[e + F_DRAINED] + max(0.0, h[e + F_WORK] - work_s)) * keep
        h[e + F_WORK] = work_s
    h[m + E_NOW], h[m + E_ARRIVED] = v[SEEN_NOW], arrived


@kernel
def is_up(v: Ints, index: int) -> bool:
    """As far as a router can see: a server that can't take a block and has none is out."""
    s = _server(v, index)
    return v[s + ITS_CODE] != 0 or v[s + ITS_BLOCKS] > 0


@kernel
def slowness(g: Ints, h: Reals, m: int, index: int) -> float:
    """Time a server took for what was expected to take one unit of it, as far as is known."""
    e = m + E_SERVERS + index * F_SIZE
    if h[e + F_BUSY] < 1e-3:
        return 1.0
    return min(20.0, max(0.25, h[e + F_BUSY] / (h[e + F_DRAINED] + 1e-4)))


@kernel
def price(g: Ints, h: Reals, v: Ints, m: int, t: int) -> float:
    """The logarithm of what a GPU-second costs now, in accuracy."""
    work_s, capacity, up = 0.0, 0.0, 0
    for index in range(g[PLAN_SERVERS]):
        work_s += v[_server(v, index) + ITS_WORK_NS] / _NS
        if is_up(v, index):
            capacity += h[int(h[t + T_CAPACITY_AT]) + index]
            up += 1
    up = max(up, 1)
    backlog_s = (work_s + v[SEEN_FIFO] * h[t + T_WAIT_ITEM_S]) / up
    waited_s = (v[SEEN_NOW] - v[SEEN_ENTERED]) / _NS
    fast, mid, slow = h[m + E_FAST] + 1.0, h[m + E_MID] + 1.0, h[m + E_SLOW] + 1.0
    w, capacity = t + T_WEIGHTS, capacity + 1.0
    h[m + E_BACKLOG] = backlog_s
    return (
        h[w]
        + h[w + 1] * log(1.0 + backlog_s / 1e-3)
        + h[w + 2] * log(1.0 + backlog_s / 1e-2)
        + h[w + 3] * log(1.0 + backlog_s / 1e-1)
        + h[w + 4] * log(fast / mid)
        + h[w + 5] * log(mid / slow)
        + h[w + 6] * log(mid / capacity)
        + h[w + 7] * max(0.0, mid / capacity - 1.0)
        + h[w + 8] * log(1.0 + waited_s / 1e-3)
        + h[w + 9] * (fast / capacity)
    )


@kernel
def width_at(g: Ints, h: Reals, v: Ints, t: int, server: int, paid: float) -> int:
    """The held width whose accuracy, less what its time costs, is the most; the narrowest of several."""
    worth, holds = int(h[t + T_WORTH_AT]) + v[SEEN_SEGMENT] * g[PLAN_WIDTHS], v[_server(v, server) + ITS_HOLDS]
    best, found = 0.0, NONE
    for width in range(g[PLAN_WIDTHS]):
        if not holds >> width & 1:
            continue
        key = (v[SEEN_SEGMENT] * g[PLAN_WIDTHS] + width) * (g[PLAN_WIDTHS] + 1) + v[SEEN_PREVIOUS]
        value = h[worth + width] - paid * h[int(h[t + T_COST_AT]) + server * g[PLAN_KEYS] + key]
        if found == NONE or value > best:
            best, found = value, width
    return found


@kernel
def choose_by_tide(g: Ints, h: Reals, v: Ints, u: Reals) -> None:
    """The server with the earliest expected end at the width that the price leaves it, and so many as the load asks for."""
    m, t = g[PLAN_MEMORY_AT], g[PLAN_KNOBS_AT]
    remember(g, h, v, m, t)
    level = price(g, h, v, m, t)
    h[m + E_PRICE] = level
    paid = exp(level)
    location, best, found, chosen = v[SEEN_LOCATION], 0.0, NONE, 0
    lines = g[PLAN_SEGMENTS] * (g[PLAN_WIDTHS] + 1)
    line = v[SEEN_SEGMENT] * (g[PLAN_WIDTHS] + 1) + v[SEEN_PREVIOUS]
    for index in range(g[PLAN_SERVERS]):
        s = _server(v, index)
        if v[s + ITS_CODE] == 0:
            continue
        width = width_at(g, h, v, t, index, paid)
        key = (v[SEEN_SEGMENT] * g[PLAN_WIDTHS] + width) * (g[PLAN_WIDTHS] + 1) + v[SEEN_PREVIOUS]
        slow = 1.0 + h[t + T_SLOWNESS] * (slowness(g, h, m, index) - 1.0)
        batch = g[g[PLAN_BATCH_NS_AT] + (index * g[PLAN_KEYS] + key) * (g[PLAN_MOST] + 1) + v[SEEN_CANDIDATES]] / _NS
        score = (v[s + ITS_WORK_NS] / _NS + h[t + T_BATCH] * batch) * slow
        if location != ANYWHERE and location != index:
            place = ((location + 1) * g[PLAN_SERVERS] + index) * lines + line
            moved = g[g[PLAN_TRANSFER_NS_AT] + place * (g[PLAN_MOST] + 1) + v[SEEN_CANDIDATES]] / _NS
            score += h[t + T_TRANSFER] * moved
            if location >= 0:
                score += h[t + T_MOVE_S]
        if found == NONE or score < best:
            best, found, chosen = score, index, width
    wanted = v[SEEN_CANDIDATES] * (h[t + T_SHARE] + h[t + T_SHARE_LOAD] * log(1.0 + h[m + E_BACKLOG] / 1e-3))
    group = g[g[PLAN_GROUPS_AT] + g[PLAN_GROUP_COUNT] - 1]
    for n in range(g[PLAN_GROUP_COUNT] - 1, -1, -1):
        if g[g[PLAN_GROUPS_AT] + n] >= wanted:
            group = g[g[PLAN_GROUPS_AT] + n]
    g[PLAN_SERVER], g[PLAN_WIDTH], g[PLAN_GROUP] = found, chosen, group
    key = (v[SEEN_SEGMENT] * g[PLAN_WIDTHS] + chosen) * (g[PLAN_WIDTHS] + 1) + v[SEEN_PREVIOUS]
    sent = min(group, v[SEEN_CANDIDATES]) * g[g[PLAN_IMAGE_NS_AT] + found * g[PLAN_KEYS] + key] / _NS
    h[m + E_SERVERS + found * F_SIZE + F_WORK] += sent
