"""The rules of `policies.rules`, compiled: placements, widths and groups over a sheet."""

from __future__ import annotations

from policies.fast.layout import *
from policies.fast.tide import choose_by_tide
from policies.jit import Ints, Reals, kernel, reals_at

_FAR = 1 << 62


@kernel
def server_on(v: Ints, index: int) -> int:
    """A server's record on the sheet."""
    return SEEN_SERVERS + index * ITS_SIZE


@kernel
def draw(g: Ints) -> float:
    """The next of the router's own uniform numbers."""
    g[PLAN_DRAW] += 1
    return reals_at(g[PLAN_UNIFORMS_AT])[g[PLAN_DRAW] - 1]


@kernel
def nth_valid(v: Ints, servers: int, number: int) -> int:
    """The server with this number among the valid ones."""
    for index in range(servers):
        if v[server_on(v, index) + ITS_CODE] != 0:
            if number == 0:
                return index
            number -= 1
    return NONE


@kernel
def count_valid(v: Ints, servers: int) -> int:
    """How many servers can take the block."""
    count = 0
    for index in range(servers):
        count += v[server_on(v, index) + ITS_CODE] != 0
    return count


@kernel
def key_of(g: Ints, v: Ints, width: int) -> int:
    """The work key of the head at this width."""
    return (v[SEEN_SEGMENT] * g[PLAN_WIDTHS] + width) * (g[PLAN_WIDTHS] + 1) + v[SEEN_PREVIOUS]


@kernel
def image_ns(g: Ints, server: int, key: int) -> int:
    """`CostModel.image_s` in nanoseconds."""
    return g[g[PLAN_IMAGE_NS_AT] + server * g[PLAN_KEYS] + key]


@kernel
def batch_ns(g: Ints, server: int, key: int, batch: int) -> int:
    """`CostModel.batch_s` in nanoseconds."""
    return g[g[PLAN_BATCH_NS_AT] + (server * g[PLAN_KEYS] + key) * (g[PLAN_MOST] + 1) + batch]


@kernel
def transfer_ns(g: Ints, v: Ints, server: int) -> int:
    """`CostModel.transfer_s` of the candidates' inputs, in nanoseconds; 0 where a block may mix locations."""
    source = v[SEEN_LOCATION]
    if source == ANYWHERE or source == server:
        return 0
    line = v[SEEN_SEGMENT] * (g[PLAN_WIDTHS] + 1) + v[SEEN_PREVIOUS]
    lines = g[PLAN_SEGMENTS] * (g[PLAN_WIDTHS] + 1)
    place = ((source + 1) * g[PLAN_SERVERS] + server) * lines + line
    return g[g[PLAN_TRANSFER_NS_AT] + place * (g[PLAN_MOST] + 1) + v[SEEN_CANDIDATES]]


# ------------------------------------------------------------------------------------------------------------- widths


@kernel
def held(holds: int, wanted: int) -> int:
    """The widest held width that is not above `wanted`, or else the narrowest held one."""
    for width in range(wanted, -1, -1):
        if holds >> width & 1:
            return width
    width = wanted + 1
    while not holds >> width & 1:
        width += 1
    return width


@kernel
def rung_of(g: Ints, h: Reals, v: Ints) -> int:
    """`Ladder`: how many thresholds the load per server exceeds."""
    waiting = v[SEEN_FIFO]
    for index in range(g[PLAN_SERVERS]):
        waiting += v[server_on(v, index) + ITS_REQUESTS]
    load, rung = waiting / g[PLAN_SERVERS], 0
    for n in range(g[PLAN_RUNG_COUNT] - 1):
        rung += load > h[g[PLAN_THRESHOLDS_AT] + n]
    return rung


@kernel
def width_for(g: Ints, h: Reals, v: Ints, server: int) -> int:
    """The width for the candidate block on that server."""
    holds, rule = v[server_on(v, server) + ITS_HOLDS], g[PLAN_WIDTH_RULE]
    if rule == RANDOM_WIDTH:
        count = 0
        for width in range(g[PLAN_WIDTHS]):
            count += holds >> width & 1
        number = int(draw(g) * count)
        for width in range(g[PLAN_WIDTHS]):
            if holds >> width & 1:
                if number == 0:
                    return width
                number -= 1
    if rule == LADDER:
        return held(holds, g[g[PLAN_RUNGS_AT] + rung_of(g, h, v) * g[PLAN_SEGMENTS] + v[SEEN_SEGMENT]])
    if rule == BY_SERVER:
        return held(holds, g[g[PLAN_RUNGS_AT] + server * g[PLAN_SEGMENTS] + v[SEEN_SEGMENT]])
    return held(holds, g[g[PLAN_TUPLE_AT] + v[SEEN_SEGMENT]])


# ---------------------------------------------------------------------------------------------------------- placements


@kernel
def least(g: Ints, h: Reals, v: Ints, rule: int) -> int:
    """The valid server with the least of what the rule counts; the lowest of several."""
    best, found = _FAR * 1.0, NONE
    for index in range(g[PLAN_SERVERS]):
        s = server_on(v, index)
        if v[s + ITS_CODE] == 0:
            continue
        value = measure(g, h, v, rule, index)
        if found == NONE or value < best:
            best, found = value, index
    return found


@kernel
def measure(g: Ints, h: Reals, v: Ints, rule: int, index: int) -> float:
    """What a rule counts of a server."""
    s = server_on(v, index)
    if rule == SHORTEST or rule == TWO:
        return v[s + ITS_REQUESTS] * 1.0
    if rule == SHORTEST_BY_SPEED or rule == TWO_BY_SPEED:
        return v[s + ITS_REQUESTS] / h[g[PLAN_SPEEDS_AT] + index]
    if rule == LEAST_WORK:
        return v[s + ITS_WORK_NS] * 1.0
    key = key_of(g, v, width_for(g, h, v, index))
    return (v[s + ITS_WORK_NS] + (transfer_ns(g, v, index) + batch_ns(g, index, key, v[SEEN_CANDIDATES]))) * 1.0


@kernel
def one_of_two(g: Ints, h: Reals, v: Ints, rule: int) -> int:
    """The better of two valid servers drawn at random."""
    servers, count = g[PLAN_SERVERS], count_valid(v, g[PLAN_SERVERS])
    first = int(draw(g) * count)
    if count == 1:
        return nth_valid(v, servers, 0)
    second = int(draw(g) * (count - 1))
    second += second >= first
    one, other = nth_valid(v, servers, min(first, second)), nth_valid(v, servers, max(first, second))
    return other if measure(g, h, v, rule, other) < measure(g, h, v, rule, one) else one


@kernel
def weighted(g: Ints, h: Reals, v: Ints) -> int:
    """A valid server with a probability by its speed."""
    total, found = 0.0, NONE
    for index in range(g[PLAN_SERVERS]):
        if v[server_on(v, index) + ITS_CODE] != 0:
            total += h[g[PLAN_SPEEDS_AT] + index]
    wanted, passed = draw(g) * total, 0.0
    for index in range(g[PLAN_SERVERS]):
        if v[server_on(v, index) + ITS_CODE] != 0:
            passed += h[g[PLAN_SPEEDS_AT] + index]
            found = index
            if wanted < passed:
                return index
    return found


@kernel
def place(g: Ints, h: Reals, v: Ints) -> int:
    """The server for the candidate block."""
    location, rule, servers = v[SEEN_LOCATION], g[PLAN_PLACEMENT], g[PLAN_SERVERS]
    if g[PLAN_STAYS] and location >= 0 and v[server_on(v, location) + ITS_CODE] != 0:
        return location
    if rule == AT_RANDOM:
        return nth_valid(v, servers, int(draw(g) * count_valid(v, servers)))
    if rule == WEIGHTED:
        return weighted(g, h, v)
    if rule == ROUND_ROBIN:
        found = nth_valid(v, servers, 0)
        for index in range(g[PLAN_TURN] + 1, servers):
            if v[server_on(v, index) + ITS_CODE] != 0:
                found = index
                break
        g[PLAN_TURN] = found
        return found
    if rule == TWO or rule == TWO_BY_SPEED:
        return one_of_two(g, h, v, rule)
    if rule == IDLE:
        for index in range(servers):
            s = server_on(v, index)
            if v[s + ITS_CODE] != 0 and v[s + ITS_REQUESTS] == 0:
                return index
        return nth_valid(v, servers, int(draw(g) * count_valid(v, servers)))
    return least(g, h, v, rule)


# -------------------------------------------------------------------------------------------------------------- groups


@kernel
def group_for(g: Ints) -> int:
    """The group's size."""
    if g[PLAN_GROUP_RULE] == RANDOM_GROUP:
        return g[g[PLAN_GROUPS_AT] + int(draw(g) * g[PLAN_GROUP_COUNT])]
    if g[PLAN_GROUP_RULE] == CAPPED:
        return g[PLAN_GROUP_CAP]
    return g[g[PLAN_GROUPS_AT] + g[PLAN_GROUP_COUNT] - 1]


@kernel
def choose(g: Ints, h: Reals, v: Ints, u: Reals) -> None:
    """Decide about the sheet; the choice stands in the plan."""
    if g[PLAN_WIDTH_RULE] == TIDE:
        choose_by_tide(g, h, v)
        return
    server = place(g, h, v)
    g[PLAN_SERVER] = server
    g[PLAN_WIDTH] = width_for(g, h, v, server)
    g[PLAN_GROUP] = group_for(g)
