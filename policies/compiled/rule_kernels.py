"""The rules of `policies.rules`, compiled: placements, widths and groups over a sheet.

Each docstring names the readable twin. The kernels use whole nanoseconds, add and divide in their twins' order, and
draw the same numbers in the same order.
"""

from __future__ import annotations

from math import exp

from kit.jit import ints, kernel, reals, reals_at
from policies.compiled.adaptive_kernels import Control, end_of_dial, look_ahead, shift_of, take_bearing
from policies.compiled.plan_layout import (
    INT,
    NONE,
    OUTSIDE,
    REAL,
    Plan,
    Record,
    Sheet,
    WidthRule,
    batch_ns,
    held,
    is_up,
    key_of,
    largest_group,
    looked,
    looked_at,
    seen_at,
    transfer_ns,
)
from policies.rules.published_rules import SLACK_BUCKETS

# Placements.
(
    AT_RANDOM,
    WEIGHTED_RANDOM,
    ROUND_ROBIN,
    SHORTEST_QUEUE,
    SHORTEST_QUEUE_BY_SPEED,
    POWER_OF_TWO,
    POWER_OF_TWO_BY_SPEED,
    IDLE_QUEUE,
    LEAST_WORK,
    SHORTEST_DELAY,
    DEFICIT,
    LEAST_WORK_COMING,
    PACKED,
) = range(13)

# Rules of widths.
RANDOM_WIDTH, FIXED, LADDER, SLACKFIT, INFAAS, BY_SERVER, LOOKAHEAD, COMPASS = range(OUTSIDE + 1, OUTSIDE + 9)

# Rules of groups.
LARGEST, RANDOM_GROUP = range(2)


class Rung(Record):
    """A class's ladder: the present rung, the last rung, the offset of its tuples, and the share of a threshold at
    which it steps up again."""

    rung = last = tuples_at = INT
    share = REAL


class VariantSteps(Record):
    """INFaaS: the thresholds for a server's steps between variants; its `Variant` for each server follows."""

    waiting_ns = up_ns = down_ns = hold_ns = leap = INT


class Variant(Record):
    """A server's variants: their number, the present one and its start, and their width tuples."""

    count = level = since_ns = tuples_at = INT


class WorkToCome(Record):
    """The memory of `LeastWorkComing`; for each server the coming work and the cost of a whole way follow."""

    forget_ns = most = INT


class ToCome(Record):
    """A server's coming whole ways of images, the cost of one, and the time of the last update."""

    images = REAL
    way_ns = seen_ns = INT


class Packed(Record):
    """`Packed`: a server in its order, and the work that fills it."""

    server = full_ns = INT


class Latest(Record):
    """SlackFit: the latest known time of each bucket: of the first one."""

    of_first_ns = INT


_STEPS = VariantSteps.size
_TO_COME = WorkToCome.size


@kernel
def draw(plan: Plan) -> float:
    """Return the next of the router's uniform random numbers."""
    plan.draw += 1
    return reals_at(plan.uniforms_at)[plan.draw - 1]


@kernel
def drawn(plan: Plan, count: int) -> int:
    """Compute `context.drawn`: a number from 0 to count - 1."""
    return int(draw(plan) * count)


@kernel
def can_take(sheet: Sheet, index: int) -> bool:
    """Compute `ServerView.valid`."""
    return seen_at(sheet, index).code != 0


@kernel
def count_valid(plan: Plan, sheet: Sheet) -> int:
    """Return the number of examined servers that can take the block."""
    count = 0
    for position in range(looked(plan, sheet)):
        if can_take(sheet, looked_at(sheet, position)):
            count += 1
    return count


@kernel
def nth_valid(plan: Plan, sheet: Sheet, number: int) -> int:
    """Return the server with this number among them."""
    for position in range(looked(plan, sheet)):
        index = looked_at(sheet, position)
        if can_take(sheet, index):
            if number == 0:
                return index
            number -= 1
    return NONE


# ------------------------------------------------------------------------------------------------------------- widths


@kernel
def random_width(plan: Plan, holds: int) -> int:
    """Compute `widths.RandomWidth`."""
    count, width = 0, 0
    for candidate in range(plan.widths):
        count += holds >> candidate & 1
    number = drawn(plan, count)
    while number > 0 or not holds >> width & 1:
        number -= holds >> width & 1
        width += 1
    return width


@kernel
def requests_per_server(sheet: Sheet) -> float:
    """Compute `widths.requests_per_server`."""
    return (sheet.fifo_length + sheet.outstanding) / max(1, sheet.up)


@kernel
def rung_of(plan: Plan, sheet: Sheet, rule: WidthRule) -> int:
    """Compute `widths.Ladder`: the number of thresholds that the load exceeds, with hysteresis; or
    `controlled.ControlledLadder`."""
    load = requests_per_server(sheet)
    if rule.control_at:
        load *= exp(-shift_of(Control(plan, rule.control_at, sheet.service_class), sheet))
    down = stay = 0
    rung = Rung(plan, rule.rung_at, sheet.service_class)
    for step in range(rung.last):
        threshold = reals(plan)[rule.thresholds_at + step]
        if load > threshold:
            down += 1
        if load > threshold * rung.share:
            stay += 1
    rung.rung = max(down, min(rung.rung, stay))
    if rule.control_at:
        Control(plan, rule.control_at, sheet.service_class).end = end_of_dial(rung.rung, rung.last + 1)
    return rung.rung


@kernel
def variant_of(plan: Plan, sheet: Sheet, rule: WidthRule, server: int) -> int:
    """Compute `infaas.Variants`: the server's tuple, after its step; repeated calls at that time return the same."""
    steps, now = VariantSteps(plan, rule.variants_at), sheet.now_ns
    variant = Variant(steps, _STEPS, server)
    if now - variant.since_ns >= steps.hold_ns:
        wait_ns, step = seen_at(sheet, server).work_ns + sheet.fifo_length * steps.waiting_ns, 0
        cheaper = variant.count - 1 - variant.level
        if wait_ns > steps.down_ns and cheaper > 0:
            step = min(steps.leap, cheaper, wait_ns // max(steps.down_ns, 1))
        elif wait_ns < steps.up_ns and variant.level > 0:
            step = -1
        if step != 0:
            variant.level += step
            variant.since_ns = now
    return variant.tuples_at + variant.level * plan.segments


@kernel
def width_for(plan: Plan, sheet: Sheet, rule: WidthRule, server: int) -> int:
    """Return the width for the candidate block on that server, by a rule of widths."""
    holds, tuple_at = seen_at(sheet, server).holds, rule.tuple_at + sheet.service_class * plan.segments
    if rule.rule == RANDOM_WIDTH:
        return random_width(plan, holds)
    if rule.rule == LADDER:
        rung = rung_of(plan, sheet, rule)
        tuple_at = Rung(plan, rule.rung_at, sheet.service_class).tuples_at + rung * plan.segments
    elif rule.rule == INFAAS:
        tuple_at = variant_of(plan, sheet, rule, server)
    elif rule.rule == BY_SERVER:
        tuple_at = rule.rungs_at + server * plan.segments
    return held(holds, ints(plan)[tuple_at + sheet.segment])


# ---------------------------------------------------------------------------------------------------------- placements


@kernel
def measure(plan: Plan, sheet: Sheet, rule: int, index: int) -> float:
    """Return a rule's count for a server; whole numbers are exact (guaranteed by `policies.router_plans`)."""
    view = seen_at(sheet, index)
    if rule in (SHORTEST_QUEUE, POWER_OF_TWO):
        return view.requests * 1.0
    if rule in (SHORTEST_QUEUE_BY_SPEED, POWER_OF_TWO_BY_SPEED):
        return view.requests / reals(plan)[plan.speeds_at + index]
    if rule == LEAST_WORK:
        return view.work_ns * 1.0
    if rule == LEAST_WORK_COMING:
        to_come = to_come_at(plan, index)
        return view.work_ns + to_come.images * to_come.way_ns
    key = key_of(plan, sheet, width_for(plan, sheet, WidthRule(plan, plan.delay_at), index))
    return (view.work_ns + transfer_ns(plan, sheet, index) + batch_ns(plan, index, key, sheet.candidates)) * 1.0


@kernel
def least(plan: Plan, sheet: Sheet, rule: int) -> int:
    """Compute `ShortestQueue`, `ShortestQueueBySpeed`, `LeastWork`, `ShortestDelay`; ties go to the lowest."""
    best, server = 0.0, NONE
    for position in range(looked(plan, sheet)):
        index = looked_at(sheet, position)
        if can_take(sheet, index):
            value = measure(plan, sheet, rule, index)
            if server == NONE or value < best:
                best, server = value, index
    return server


@kernel
def one_of_two(plan: Plan, sheet: Sheet, rule: int) -> int:
    """Compute `PowerOfTwo`, `PowerOfTwoBySpeed`: one valid server still costs one draw."""
    count = count_valid(plan, sheet)
    first = drawn(plan, count)
    if count == 1:
        return nth_valid(plan, sheet, 0)
    second = drawn(plan, count - 1)
    if second >= first:
        second += 1
    lower, higher = nth_valid(plan, sheet, min(first, second)), nth_valid(plan, sheet, max(first, second))
    return higher if measure(plan, sheet, rule, higher) < measure(plan, sheet, rule, lower) else lower


@kernel
def weighted(plan: Plan, sheet: Sheet) -> int:
    """Compute `WeightedRandom`."""
    total = passed = 0.0
    drawn = NONE
    for position in range(looked(plan, sheet)):
        index = looked_at(sheet, position)
        if can_take(sheet, index):
            total += reals(plan)[plan.speeds_at + index]
    threshold = draw(plan) * total
    for position in range(looked(plan, sheet)):
        index = looked_at(sheet, position)
        if can_take(sheet, index):
            passed += reals(plan)[plan.speeds_at + index]
            drawn = index
            if threshold < passed:
                break
    return drawn


@kernel
def next_in_turn(plan: Plan, sheet: Sheet) -> int:
    """Compute `RoundRobin`."""
    lowest, following = plan.servers, plan.servers
    for position in range(looked(plan, sheet)):
        index = looked_at(sheet, position)
        if can_take(sheet, index):
            lowest = min(lowest, index)
            if index > plan.turn:
                following = min(following, index)
    plan.turn = following if following < plan.servers else lowest
    return plan.turn


@kernel
def furthest_behind(plan: Plan, sheet: Sheet) -> int:
    """Compute `Milp._place`: a server without a share only if there is no other."""
    images = min(largest_group(plan), sheet.candidates)
    total, least_ahead = images, 0.0
    best, is_shareless = NONE, False
    for index in range(plan.servers):
        total += ints(plan)[plan.placed_at + index]
    for index in range(plan.servers):
        if not can_take(sheet, index):
            continue
        share = reals(plan)[plan.shares_at + index]
        ahead, has_none = ints(plan)[plan.placed_at + index] - share * total, share == 0
        if best == NONE or (is_shareless and not has_none) or (is_shareless == has_none and ahead < least_ahead):
            least_ahead, best = ahead, index
            is_shareless = has_none
    ints(plan)[plan.placed_at + best] += images
    return best


@kernel
def to_come_at(plan: Plan, index: int) -> ToCome:
    """Return the memory of `LeastWorkComing` for a server."""
    return ToCome(plan, plan.coming_at + _TO_COME, index)


@kernel
def least_with_coming(plan: Plan, sheet: Sheet) -> int:
    """Compute `LeastWorkComing`."""
    memory, location = WorkToCome(plan, plan.coming_at), sheet.location
    for position in range(looked(plan, sheet)):
        index = looked_at(sheet, position)
        to_come = to_come_at(plan, index)
        keep = memory.forget_ns / (memory.forget_ns + (sheet.now_ns - to_come.seen_ns))
        to_come.seen_ns = sheet.now_ns
        to_come.images *= keep if is_up(sheet, index) else 0.0
    stays = plan.stays and location >= 0 and can_take(sheet, location)
    best = location if stays else least(plan, sheet, LEAST_WORK_COMING)
    images, remaining = min(memory.most, sheet.candidates), (plan.segments - 1 - sheet.segment) / plan.segments
    if location >= 0:
        source = to_come_at(plan, location)
        source.images = max(0.0, source.images - images * (remaining + 1 / plan.segments))
    to_come_at(plan, best).images += images * remaining
    return best


@kernel
def next_packed(plan: Plan, sheet: Sheet) -> int:
    """Compute `Packed`."""
    for rank in range(plan.servers):
        packed = Packed(plan, plan.packed_at, rank)
        if can_take(sheet, packed.server) and measure(plan, sheet, LEAST_WORK, packed.server) < packed.full_ns:
            return packed.server
    return least(plan, sheet, LEAST_WORK)


@kernel
def place(plan: Plan, sheet: Sheet) -> int:
    """Return the server for the candidate block."""
    location, rule = sheet.location, plan.placement
    if rule == LEAST_WORK_COMING:
        return least_with_coming(plan, sheet)
    if plan.stays and location >= 0 and can_take(sheet, location):  # `Sticky`
        return location
    if rule == AT_RANDOM:
        return nth_valid(plan, sheet, drawn(plan, count_valid(plan, sheet)))
    if rule == WEIGHTED_RANDOM:
        return weighted(plan, sheet)
    if rule == ROUND_ROBIN:
        return next_in_turn(plan, sheet)
    if rule in (POWER_OF_TWO, POWER_OF_TWO_BY_SPEED):
        return one_of_two(plan, sheet, rule)
    if rule == PACKED:
        return next_packed(plan, sheet)
    if rule == DEFICIT:
        return furthest_behind(plan, sheet)
    if rule == IDLE_QUEUE:
        for place in range(looked(plan, sheet)):
            index = looked_at(sheet, place)
            if can_take(sheet, index) and seen_at(sheet, index).requests == 0:
                return index
        return nth_valid(plan, sheet, drawn(plan, count_valid(plan, sheet)))
    return least(plan, sheet, rule)


# ------------------------------------------------------------------------------------------------------------- choices


@kernel
def group_for(plan: Plan) -> int:
    """Compute `RandomGroup`, `LargestGroup`."""
    number = plan.group_count - 1
    if plan.group_rule == RANDOM_GROUP:
        number = drawn(plan, plan.group_count)
    return ints(plan)[plan.groups_at + number]


@kernel
def fit_slack(plan: Plan, sheet: Sheet, server: int) -> None:
    """Run `SlackFit`: set the width and the group for that server.

    Options are numbered by width and group; the plan has the `latest` time of each bucket by its number.
    """
    candidates, view = sheet.candidates, seen_at(sheet, server)
    latest = ints(Latest(plan, plan.scratch_at))
    holds = view.holds
    groups = 1  # larger groups than the first that takes all candidates change nothing
    while groups < plan.group_count and ints(plan)[plan.groups_at + groups - 1] < candidates:
        groups += 1
    first_ns, last_ns = NONE, NONE
    for option in range(plan.widths * groups):
        if holds >> option // groups & 1:
            latency_ns = option_ns(plan, sheet, server, option, groups)
            first_ns = latency_ns if first_ns == NONE else min(first_ns, latency_ns)
            last_ns = max(last_ns, latency_ns)
    spread_ns = max(last_ns - first_ns, 1)
    for bucket in range(SLACK_BUCKETS + 1):
        latest[bucket] = NONE
    for option in range(plan.widths * groups):
        if holds >> option // groups & 1:
            latency_ns = option_ns(plan, sheet, server, option, groups)
            bucket = (latency_ns - first_ns) * SLACK_BUCKETS // spread_ns
            latest[bucket] = max(latest[bucket], latency_ns)
    waited_ns = sheet.now_ns - sheet.entered_ns
    slack_ns = plan.share_ns - waited_ns - view.work_ns - transfer_ns(plan, sheet, server)
    best_bucket = SLACK_BUCKETS
    while best_bucket > 0 and (latest[best_bucket] == NONE or latest[best_bucket] > slack_ns):
        best_bucket -= 1
    most = NONE
    for option in range(plan.widths * groups):
        if holds >> option // groups & 1:
            latency_ns, group = option_ns(plan, sheet, server, option, groups), option % groups
            if (latency_ns - first_ns) * SLACK_BUCKETS // spread_ns == best_bucket and group >= most:
                most = group
                plan.width, plan.group = option // groups, ints(plan)[plan.groups_at + group]


@kernel
def option_ns(plan: Plan, sheet: Sheet, server: int, option: int, groups: int) -> int:
    """Return the expected latency of one of `SlackFit`'s options."""
    batch = min(ints(plan)[plan.groups_at + option % groups], sheet.candidates)
    return batch_ns(plan, server, key_of(plan, sheet, option // groups), batch)


@kernel
def limit_widths(plan: Plan, sheet: Sheet) -> None:
    """Limit the sheet to each server's working set (`HoldingRouter.sets`)."""
    for position in range(looked(plan, sheet)):
        index = looked_at(sheet, position)
        seen_at(sheet, index).holds &= ints(plan)[plan.masks_at + index * plan.segments + sheet.segment]


@kernel
def choose(plan: Plan, sheet: Sheet) -> None:
    """Decide about the sheet; the choice is written to the plan."""
    rule = plan.width_rule.rule
    if plan.masks_at:
        limit_widths(plan, sheet)
    if rule == LOOKAHEAD:
        look_ahead(plan, sheet)
        return
    if rule == COMPASS:
        take_bearing(plan, sheet)
        return
    plan.server = place(plan, sheet)
    if rule == SLACKFIT:
        fit_slack(plan, sheet, plan.server)
        return
    plan.width = width_for(plan, sheet, plan.width_rule, plan.server)
    plan.group = group_for(plan)
