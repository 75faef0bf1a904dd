"""Tide's decision: a price for a GPU-second that follows the load, and the width, server and group it leads to.

See `policies.tide` for what the knobs mean and how they are learned. This is the one place where it decides, in
simulation on either engine and on hardware.
"""

from __future__ import annotations

from math import exp, log

from policies.compiled.layout import *
from policies.jit import Ints, Reals, kernel

# fmt: off
# Knobs: what is learned, then tables that depend on the cluster.
FEATURES = 11
(
    T_WEIGHTS,                                                                  # FEATURES of them
    T_TRANSFER, T_BATCH, T_MOVE_S, T_SLOWNESS, T_SHARE, T_SHARE_LOAD, T_DELAY, T_HOLD, T_COMING,
    T_WORTH_AT, T_COST_AT, T_CAPACITY_AT, T_TAU_FAST, T_TAU_MID, T_TAU_SLOW, T_TAU_SPEED, T_WAITING_S,
    T_GUARD_ON_S, T_GUARD_OFF_S,
    T_SIZE,
) = (0, *range(FEATURES, FEATURES + 20))
# Memory.
(
    E_NOW, E_ARRIVED, E_FAST, E_MID, E_SLOW, E_PRICE, E_BACKLOG, E_IS_GUARDED, E_HANDOVERS, E_GUARDED,
    E_SERVERS,                                                                  # N records follow, then N x S widths
) = range(11)
(
    F_WORK, F_BUSY, F_DRAINED, F_COMING,
    F_SIZE,
) = range(5)
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
            took_s = passed_s if work_s > 0 else min(passed_s, h[e + F_WORK])  # all done: perhaps long ago
            h[e + F_BUSY] = (h[e + F_BUSY] + took_s) * keep
            h[e + F_DRAINED] = (h[e + F_DRAINED] + max(0.0, h[e + F_WORK] - work_s)) * keep
        h[e + F_WORK] = work_s
        h[e + F_COMING] *= keep  # where some are lost on the way, none stays counted
    h[m + E_NOW], h[m + E_ARRIVED] = v[SEEN_NOW], arrived


@kernel
def is_up(v: Ints, index: int) -> bool:
    """As far as a router can see: a server that can't take a block and has none is out."""
    s = _server(v, index)
    return v[s + ITS_CODE] != 0 or v[s + ITS_BLOCKS] > 0


@kernel
def slowness(h: Reals, m: int, index: int) -> float:
    """Time a server took for what was expected to take one unit of it, as far as is known."""
    e = m + E_SERVERS + index * F_SIZE
    if h[e + F_BUSY] < 1e-3:
        return 1.0
    return min(20.0, max(0.25, h[e + F_BUSY] / (h[e + F_DRAINED] + 1e-4)))


@kernel
def price(g: Ints, h: Reals, v: Ints, m: int, t: int) -> float:
    """The logarithm of what a GPU-second costs now, in accuracy."""
    work_s, capacity, up, inside = 0.0, 0.0, 0, v[SEEN_FIFO]
    for index in range(g[PLAN_SERVERS]):
        work_s += v[_server(v, index) + ITS_WORK_NS] / _NS
        inside += v[_server(v, index) + ITS_REQUESTS]
        if is_up(v, index):
            capacity += h[int(h[t + T_CAPACITY_AT]) + index]
            up += 1
    up = max(up, 1)
    backlog_s = (work_s + v[SEEN_FIFO] * h[t + T_WAITING_S]) / up
    waited_s = (v[SEEN_NOW] - v[SEEN_ENTERED]) / _NS
    fast, mid, slow = h[m + E_FAST] + 1.0, h[m + E_MID] + 1.0, h[m + E_SLOW] + 1.0
    w, capacity, each = t + T_WEIGHTS, capacity + 1.0, inside / up
    h[m + E_BACKLOG] = backlog_s
    return (
        h[w]
        + h[w + 1] * log(1.0 + each / 2.0)
        + h[w + 2] * log(1.0 + each / 16.0)
        + h[w + 3] * log(1.0 + each / 128.0)
        + h[w + 4] * log(1.0 + backlog_s / 1e-3)
        + h[w + 5] * log(fast / mid)
        + h[w + 6] * log(mid / slow)
        + h[w + 7] * log(mid / capacity)
        + h[w + 8] * max(0.0, mid / capacity - 1.0)
        + h[w + 9] * (fast / capacity)
        + h[w + 10] * log(1.0 + waited_s / 1e-3)
    )


@kernel
def last_width_at(g: Ints, v: Ints, m: int, server: int) -> int:
    """Where it stands which width the head's segment was last given on that server."""
    return m + E_SERVERS + g[PLAN_SERVERS] * F_SIZE + server * g[PLAN_SEGMENTS] + v[SEEN_SEGMENT]


@kernel
def width_at(g: Ints, h: Reals, v: Ints, t: int, last_at: int, server: int, paid: float) -> int:
    """The width there whose accuracy, less what its time costs, is the most; the narrowest of several."""
    worth, holds = int(h[t + T_WORTH_AT]) + v[SEEN_SEGMENT] * g[PLAN_WIDTHS], v[_server(v, server) + ITS_HOLDS]
    best, found, last = 0.0, NONE, int(h[last_at])
    for width in range(g[PLAN_WIDTHS]):
        if not holds >> width & 1:
            continue
        key = key_at_width(g, v, width)
        batch_ns = g[g[PLAN_BATCH_NS_AT] + (server * g[PLAN_KEYS] + key) * (g[PLAN_MOST] + 1) + v[SEEN_CANDIDATES]]
        cost = h[int(h[t + T_COST_AT]) + server * g[PLAN_KEYS] + key] + h[t + T_DELAY] * batch_ns / _NS
        value = h[worth + width] - paid * cost + h[t + T_HOLD] * (width == last)
        if found == NONE or value > best:
            best, found = value, width
    return found


@kernel
def is_guarded(h: Reals, m: int, t: int) -> bool:
    """Whether the backlog is so long that only the fallback may decide: above one level, until below another."""
    if h[m + E_IS_GUARDED] == 0.0 and h[m + E_BACKLOG] > h[t + T_GUARD_ON_S]:
        h[m + E_IS_GUARDED] = 1.0
        h[m + E_HANDOVERS] += 1.0
    elif h[m + E_IS_GUARDED] == 1.0 and h[m + E_BACKLOG] < h[t + T_GUARD_OFF_S]:
        h[m + E_IS_GUARDED] = 0.0
    h[m + E_GUARDED] += h[m + E_IS_GUARDED]
    return h[m + E_IS_GUARDED] == 1.0


@kernel
def fall_back(g: Ints, v: Ints) -> None:
    """The narrowest width, least work first and then stay, as many as there are: nothing carries more."""
    location, found = v[SEEN_LOCATION], NONE
    for index in range(g[PLAN_SERVERS]):
        s = _server(v, index)
        if v[s + ITS_CODE] == 0:
            continue
        if found == NONE or v[s + ITS_WORK_NS] < v[_server(v, found) + ITS_WORK_NS]:
            found = index
    if location >= 0 and v[_server(v, location) + ITS_CODE] != 0:
        found = location
    width = 0
    while not v[_server(v, found) + ITS_HOLDS] >> width & 1:
        width += 1
    g[PLAN_SERVER], g[PLAN_WIDTH] = found, width
    g[PLAN_GROUP] = g[g[PLAN_GROUPS_AT] + g[PLAN_GROUP_COUNT] - 1]


@kernel
def score_of(g: Ints, h: Reals, v: Ints, m: int, t: int, index: int, key: int) -> float:
    """When the candidates would be done at a server, about: its work and theirs at its real pace, and the way there.

    Its work is also a share of what is to come back from images that have their place there.
    """
    location, lines = v[SEEN_LOCATION], g[PLAN_SEGMENTS] * (g[PLAN_WIDTHS] + 1)
    slow = 1.0 + h[t + T_SLOWNESS] * (slowness(h, m, index) - 1.0)
    batch = g[g[PLAN_BATCH_NS_AT] + (index * g[PLAN_KEYS] + key) * (g[PLAN_MOST] + 1) + v[SEEN_CANDIDATES]] / _NS
    coming_s = h[m + E_SERVERS + index * F_SIZE + F_COMING] / h[int(h[t + T_CAPACITY_AT]) + index]
    work_s = v[_server(v, index) + ITS_WORK_NS] / _NS + h[t + T_COMING] * coming_s
    score = (work_s + h[t + T_BATCH] * batch) * slow
    if location in (ANYWHERE, index):
        return score
    line = v[SEEN_SEGMENT] * (g[PLAN_WIDTHS] + 1) + v[SEEN_PREVIOUS]
    place = ((location + 1) * g[PLAN_SERVERS] + index) * lines + line
    score += h[t + T_TRANSFER] * (g[g[PLAN_TRANSFER_NS_AT] + place * (g[PLAN_MOST] + 1) + v[SEEN_CANDIDATES]] / _NS)
    return score + h[t + T_MOVE_S] if location >= 0 else score


@kernel
def group_at(g: Ints, h: Reals, v: Ints, m: int, t: int) -> int:
    """The smallest group that holds the share of the candidates which the load asks for."""
    share = h[t + T_SHARE] + h[t + T_SHARE_LOAD] * log(1.0 + h[m + E_BACKLOG] / 1e-3)
    wanted = v[SEEN_CANDIDATES] * share
    for n in range(g[PLAN_GROUP_COUNT] - 1):
        if g[g[PLAN_GROUPS_AT] + n] >= wanted:
            return g[g[PLAN_GROUPS_AT] + n]
    return g[g[PLAN_GROUPS_AT] + g[PLAN_GROUP_COUNT] - 1]


@kernel
def key_at_width(g: Ints, v: Ints, width: int) -> int:
    """The work key of the head at this width."""
    return (v[SEEN_SEGMENT] * g[PLAN_WIDTHS] + width) * (g[PLAN_WIDTHS] + 1) + v[SEEN_PREVIOUS]


@kernel
def note_sent(g: Ints, h: Reals, v: Ints, m: int) -> None:
    """What was sent is work that will not be worked off before it is seen; and what it leaves to do has a place now."""
    sent, servers = min(g[PLAN_GROUP], v[SEEN_CANDIDATES]), m + E_SERVERS
    to_come = (g[PLAN_SEGMENTS] - 1 - v[SEEN_SEGMENT]) / g[PLAN_SEGMENTS]  # of an image's way, beyond this segment
    if v[SEEN_LOCATION] >= 0:
        left = servers + v[SEEN_LOCATION] * F_SIZE + F_COMING
        h[left] = max(0.0, h[left] - sent * (to_come + 1.0 / g[PLAN_SEGMENTS]))
    its, key = servers + g[PLAN_SERVER] * F_SIZE, key_at_width(g, v, g[PLAN_WIDTH])
    h[its + F_COMING] += sent * to_come
    h[its + F_WORK] += sent * g[g[PLAN_IMAGE_NS_AT] + g[PLAN_SERVER] * g[PLAN_KEYS] + key] / _NS


@kernel
def choose_by_tide(g: Ints, h: Reals, v: Ints) -> None:
    """The server where the candidates are done first at the width that the price leaves them there; then the group."""
    m, t = g[PLAN_MEMORY_AT], g[PLAN_KNOBS_AT]
    remember(g, h, v, m, t)
    level = price(g, h, v, m, t)
    h[m + E_PRICE] = level
    if is_guarded(h, m, t):
        fall_back(g, v)
    else:
        paid, best, found, chosen = exp(level), 0.0, NONE, 0
        for index in range(g[PLAN_SERVERS]):
            if v[_server(v, index) + ITS_CODE] == 0:
                continue
            width = width_at(g, h, v, t, last_width_at(g, v, m, index), index, paid)
            score = score_of(g, h, v, m, t, index, key_at_width(g, v, width))
            if found == NONE or score < best:
                best, found, chosen = score, index, width
        g[PLAN_SERVER], g[PLAN_WIDTH], g[PLAN_GROUP] = found, chosen, group_at(g, h, v, m, t)
    h[last_width_at(g, v, m, g[PLAN_SERVER])] = g[PLAN_WIDTH]
    note_sent(g, h, v, m)
