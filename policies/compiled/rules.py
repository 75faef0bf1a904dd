"""The rules of `policies.rules`, compiled: placements, widths and groups over a sheet.

Each has its twin's name in its docstring. They count in whole nanoseconds, add and divide in the order that their twins
do, and draw the same numbers in the same order.
"""

from __future__ import annotations

from policies.compiled.layout import *
from policies.compiled.tide import choose_by_tide
from policies.jit import Ints, Reals, kernel, reals_at
from policies.rules.slackfit import SLACK_BUCKETS


@kernel
def server_on(index: int) -> int:
    """A server's record on the sheet."""
    return SEEN_SERVERS + index * ITS_SIZE


@kernel
def draw(g: Ints) -> float:
    """The next of the router's own uniform numbers."""
    g[PLAN_DRAW] += 1
    return reals_at(g[PLAN_UNIFORMS_AT])[g[PLAN_DRAW] - 1]


@kernel
def drawn(g: Ints, count: int) -> int:
    """`context.drawn`: a number from 0 to count - 1."""
    return int(draw(g) * count)


@kernel
def can_take(v: Ints, index: int) -> bool:
    """`ServerView.valid`."""
    return v[server_on(index) + ITS_CODE] != 0


@kernel
def count_valid(v: Ints, servers: int) -> int:
    """How many servers can take the block."""
    count = 0
    for index in range(servers):
        count += can_take(v, index)
    return count


@kernel
def nth_valid(v: Ints, servers: int, number: int) -> int:
    """The server with this number among the valid ones."""
    for index in range(servers):
        if can_take(v, index):
            if number == 0:
                return index
            number -= 1
    return NONE


# -------------------------------------------------------------------------------------------------------------- costs


@kernel
def key_of(g: Ints, v: Ints, width: int) -> int:
    """The work key of the head at this width."""
    return (v[SEEN_SEGMENT] * g[PLAN_WIDTHS] + width) * (g[PLAN_WIDTHS] + 1) + v[SEEN_PREVIOUS]


@kernel
def batch_ns(g: Ints, server: int, key: int, batch: int) -> int:
    """`costs.batch_ns`."""
    return g[g[PLAN_BATCH_NS_AT] + (server * g[PLAN_KEYS] + key) * (g[PLAN_MOST] + 1) + batch]


@kernel
def transfer_ns(g: Ints, v: Ints, server: int) -> int:
    """`costs.transfer_ns`: the candidates' inputs; 0 where a block may mix locations."""
    source = v[SEEN_LOCATION]
    if source == ANYWHERE:
        return 0
    line = v[SEEN_SEGMENT] * (g[PLAN_WIDTHS] + 1) + v[SEEN_PREVIOUS]
    lines = g[PLAN_SEGMENTS] * (g[PLAN_WIDTHS] + 1)
    place = ((source + 1) * g[PLAN_SERVERS] + server) * lines + line
    return g[g[PLAN_TRANSFER_NS_AT] + place * (g[PLAN_MOST] + 1) + v[SEEN_CANDIDATES]]


# ------------------------------------------------------------------------------------------------------------- widths


@kernel
def held(holds: int, wanted: int) -> int:
    """`widths.held_width`: the widest held one that is not above `wanted` (NONE: below all), or else the narrowest."""
    for width in range(wanted, -1, -1):
        if holds >> width & 1:
            return width
    width = wanted + 1
    while not holds >> width & 1:
        width += 1
    return width


@kernel
def random_width(g: Ints, holds: int) -> int:
    """`widths.RandomWidth`."""
    count, width = 0, 0
    for n in range(g[PLAN_WIDTHS]):
        count += holds >> n & 1
    number = drawn(g, count)
    while number > 0 or not holds >> width & 1:
        number -= holds >> width & 1
        width += 1
    return width


@kernel
def rung_of(g: Ints, h: Reals, v: Ints, w: int) -> int:
    """`widths.Ladder`: how many thresholds the load per server exceeds."""
    waiting = v[SEEN_FIFO]
    for index in range(g[PLAN_SERVERS]):
        waiting += v[server_on(index) + ITS_REQUESTS]
    load, rung = waiting / g[PLAN_SERVERS], 0
    for n in range(g[w + WIDTHS_RUNG_COUNT] - 1):
        rung += load > h[g[w + WIDTHS_THRESHOLDS_AT] + n]
    return rung


@kernel
def variant_of(g: Ints, v: Ints, w: int, server: int) -> int:
    """`infaas.Variants`: the server's tuple, after its step of the moment; asked again at that time it is the same."""
    at = g[w + WIDTHS_VARIANTS_AT]
    its, now = at + VARIANTS_SERVERS + server * VARIANT_SIZE, v[SEEN_NOW]
    if now - g[its + VARIANT_SINCE_NS] >= g[at + VARIANTS_HOLD_NS]:
        wait_ns, step = v[server_on(server) + ITS_WORK_NS] + v[SEEN_FIFO] * g[at + VARIANTS_WAITING_NS], 0
        if wait_ns > g[at + VARIANTS_DOWN_NS] and g[its + VARIANT_LEVEL] < g[its + VARIANT_COUNT] - 1:
            step = 1
        elif wait_ns < g[at + VARIANTS_UP_NS] and g[its + VARIANT_LEVEL] > 0:
            step = -1
        if step != 0:
            g[its + VARIANT_LEVEL] += step
            g[its + VARIANT_SINCE_NS] = now
    return g[its + VARIANT_TUPLES_AT] + g[its + VARIANT_LEVEL] * g[PLAN_SEGMENTS]


@kernel
def width_for(g: Ints, h: Reals, v: Ints, w: int, server: int) -> int:
    """The width for the candidate block on that server, by the record of widths at `w`."""
    holds, rule, tuple_at = v[server_on(server) + ITS_HOLDS], g[w + WIDTHS_RULE], g[w + WIDTHS_TUPLE_AT]
    if rule == RANDOM_WIDTH:
        return random_width(g, holds)
    if rule == LADDER:
        tuple_at = g[w + WIDTHS_RUNGS_AT] + rung_of(g, h, v, w) * g[PLAN_SEGMENTS]
    elif rule == INFAAS:
        tuple_at = variant_of(g, v, w, server)
    elif rule == BY_SERVER:
        tuple_at = g[w + WIDTHS_RUNGS_AT] + server * g[PLAN_SEGMENTS]
    return held(holds, g[tuple_at + v[SEEN_SEGMENT]])


# ---------------------------------------------------------------------------------------------------------- placements


@kernel
def measure(g: Ints, h: Reals, v: Ints, rule: int, index: int) -> float:
    """What a rule counts of a server; whole numbers are exact (`compose` sees to it)."""
    s = server_on(index)
    if rule in (SHORTEST, TWO):
        return v[s + ITS_REQUESTS] * 1.0
    if rule in (SHORTEST_BY_SPEED, TWO_BY_SPEED):
        return v[s + ITS_REQUESTS] / h[g[PLAN_SPEEDS_AT] + index]
    if rule == LEAST_WORK:
        return v[s + ITS_WORK_NS] * 1.0
    key = key_of(g, v, width_for(g, h, v, g[PLAN_DELAY_AT], index))
    return (v[s + ITS_WORK_NS] + transfer_ns(g, v, index) + batch_ns(g, index, key, v[SEEN_CANDIDATES])) * 1.0


@kernel
def least(g: Ints, h: Reals, v: Ints, rule: int) -> int:
    """`ShortestQueue`, `ShortestQueueBySpeed`, `LeastWork`, `ShortestDelay`; the lowest of several."""
    best, found = 0.0, NONE
    for index in range(g[PLAN_SERVERS]):
        if can_take(v, index):
            value = measure(g, h, v, rule, index)
            if found == NONE or value < best:
                best, found = value, index
    return found


@kernel
def one_of_two(g: Ints, h: Reals, v: Ints, rule: int) -> int:
    """`PowerOfTwo`, `PowerOfTwoBySpeed`: of one valid server there is one draw all the same."""
    servers, count = g[PLAN_SERVERS], count_valid(v, g[PLAN_SERVERS])
    first = drawn(g, count)
    if count == 1:
        return nth_valid(v, servers, 0)
    second = drawn(g, count - 1)
    second += second >= first
    one, other = nth_valid(v, servers, min(first, second)), nth_valid(v, servers, max(first, second))
    return other if measure(g, h, v, rule, other) < measure(g, h, v, rule, one) else one


@kernel
def weighted(g: Ints, h: Reals, v: Ints) -> int:
    """`WeightedRandom`."""
    total, passed, found = 0.0, 0.0, NONE
    for index in range(g[PLAN_SERVERS]):
        if can_take(v, index):
            total += h[g[PLAN_SPEEDS_AT] + index]
    wanted = draw(g) * total
    for index in range(g[PLAN_SERVERS]):
        if can_take(v, index):
            passed += h[g[PLAN_SPEEDS_AT] + index]
            found = index
            if wanted < passed:
                break
    return found


@kernel
def next_in_turn(g: Ints, v: Ints) -> int:
    """`RoundRobin`."""
    found = nth_valid(v, g[PLAN_SERVERS], 0)
    for index in range(g[PLAN_TURN] + 1, g[PLAN_SERVERS]):
        if can_take(v, index):
            found = index
            break
    g[PLAN_TURN] = found
    return found


@kernel
def furthest_behind(g: Ints, h: Reals, v: Ints) -> int:
    """`Milp._place`: one without a share only where there is no other."""
    images = min(g[g[PLAN_GROUPS_AT] + g[PLAN_GROUP_COUNT] - 1], v[SEEN_CANDIDATES])
    total, least_ahead, found, is_shareless = images, 0.0, NONE, False
    for index in range(g[PLAN_SERVERS]):
        total += g[g[PLAN_PLACED_AT] + index]
    for index in range(g[PLAN_SERVERS]):
        if not can_take(v, index):
            continue
        share = h[g[PLAN_SHARES_AT] + index]
        ahead, has_none = g[g[PLAN_PLACED_AT] + index] - share * total, share == 0
        if found == NONE or (is_shareless and not has_none) or (is_shareless == has_none and ahead < least_ahead):
            least_ahead, found, is_shareless = ahead, index, has_none
    g[g[PLAN_PLACED_AT] + found] += images
    return found


@kernel
def place(g: Ints, h: Reals, v: Ints) -> int:
    """The server for the candidate block."""
    location, rule, servers = v[SEEN_LOCATION], g[PLAN_PLACEMENT], g[PLAN_SERVERS]
    if g[PLAN_STAYS] and location >= 0 and can_take(v, location):  # `Sticky`
        return location
    if rule == AT_RANDOM:
        return nth_valid(v, servers, drawn(g, count_valid(v, servers)))
    if rule == WEIGHTED:
        return weighted(g, h, v)
    if rule == ROUND_ROBIN:
        return next_in_turn(g, v)
    if rule in (TWO, TWO_BY_SPEED):
        return one_of_two(g, h, v, rule)
    if rule == DEFICIT:
        return furthest_behind(g, h, v)
    if rule == IDLE:  # `IdleQueue`
        for index in range(servers):
            if can_take(v, index) and v[server_on(index) + ITS_REQUESTS] == 0:
                return index
        return nth_valid(v, servers, drawn(g, count_valid(v, servers)))
    return least(g, h, v, rule)


# ------------------------------------------------------------------------------------------------------------- choices


@kernel
def group_for(g: Ints) -> int:
    """`RandomGroup`, `LargestGroup`."""
    number = g[PLAN_GROUP_COUNT] - 1
    if g[PLAN_GROUP_RULE] == RANDOM_GROUP:
        number = drawn(g, g[PLAN_GROUP_COUNT])
    return g[g[PLAN_GROUPS_AT] + number]


@kernel
def fit_slack(g: Ints, v: Ints, server: int) -> None:
    """`SlackFit`: the width and the group for that server.

    Options are numbered by width and group; what is in a bucket is known by its number: `latest` of each stands in the
    plan.
    """
    candidates, holds, latest = v[SEEN_CANDIDATES], v[server_on(server) + ITS_HOLDS], g[PLAN_SCRATCH_AT]
    groups = 1  # beyond the first that takes all candidates they change nothing
    while groups < g[PLAN_GROUP_COUNT] and g[g[PLAN_GROUPS_AT] + groups - 1] < candidates:
        groups += 1
    first_ns, last_ns = NONE, NONE
    for option in range(g[PLAN_WIDTHS] * groups):
        if holds >> option // groups & 1:
            found_ns = option_ns(g, v, server, option, groups)
            first_ns = found_ns if first_ns == NONE else min(first_ns, found_ns)
            last_ns = max(last_ns, found_ns)
    spread_ns = max(last_ns - first_ns, 1)
    for bucket in range(SLACK_BUCKETS + 1):
        g[latest + bucket] = NONE
    for option in range(g[PLAN_WIDTHS] * groups):
        if holds >> option // groups & 1:
            found_ns = option_ns(g, v, server, option, groups)
            bucket = (found_ns - first_ns) * SLACK_BUCKETS // spread_ns
            g[latest + bucket] = max(g[latest + bucket], found_ns)
    s = server_on(server)
    waited_ns = v[SEEN_NOW] - v[SEEN_ENTERED]
    slack_ns = g[PLAN_SHARE_NS] - waited_ns - v[s + ITS_WORK_NS] - transfer_ns(g, v, server)
    chosen = SLACK_BUCKETS
    while chosen > 0 and (g[latest + chosen] == NONE or g[latest + chosen] > slack_ns):
        chosen -= 1
    most = NONE
    for option in range(g[PLAN_WIDTHS] * groups):
        if holds >> option // groups & 1:
            found_ns, group = option_ns(g, v, server, option, groups), option % groups
            if (found_ns - first_ns) * SLACK_BUCKETS // spread_ns == chosen and group >= most:
                most = group
                g[PLAN_WIDTH], g[PLAN_GROUP] = option // groups, g[g[PLAN_GROUPS_AT] + group]


@kernel
def option_ns(g: Ints, v: Ints, server: int, option: int, groups: int) -> int:
    """The expected latency of one of `SlackFit`'s options."""
    batch = min(g[g[PLAN_GROUPS_AT] + option % groups], v[SEEN_CANDIDATES])
    return batch_ns(g, server, key_of(g, v, option // groups), batch)


@kernel
def choose(g: Ints, h: Reals, v: Ints, u: Reals) -> None:
    """Decide about the sheet; the choice stands in the plan."""
    rule = g[PLAN_WIDTH_RULE]
    if rule == TIDE:
        choose_by_tide(g, h, v)
        return
    g[PLAN_SERVER] = place(g, h, v)
    if rule == SLACKFIT:
        fit_slack(g, v, g[PLAN_SERVER])
        return
    g[PLAN_WIDTH] = width_for(g, h, v, PLAN_WIDTH_RULE, g[PLAN_SERVER])
    g[PLAN_GROUP] = group_for(g)
