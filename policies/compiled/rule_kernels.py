"""The rules of `policies.rules`, compiled: placements, widths and micro-batch sizes over an observation.

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
    ObservationRecord,
    Plan,
    Record,
    WidthRule,
    add_path,
    batch_ns,
    held,
    is_up,
    key_of,
    largest_micro_batch,
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

# Rules of micro-batch sizes.
LARGEST, RANDOM_MICRO_BATCH_SIZE = range(2)


class Rung(Record):
    """A class's ladder: the present rung, the last rung, the offset of its tuples, and the share of a threshold at
    which it steps up again."""

    rung = last = tuples_at = INT
    share = REAL


class VariantSteps(Record):
    """INFaaS: the thresholds for a server's steps between variants; its `Variant` for each server follows."""

    waiting_ns = up_ns = down_ns = dwell_ns = leap = INT


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
def can_take(observation: ObservationRecord, index: int) -> bool:
    """Compute `ServerView.valid`."""
    return seen_at(observation, index).code != 0


@kernel
def count_valid(plan: Plan, observation: ObservationRecord) -> int:
    """Return the number of examined servers that can take the micro-batch."""
    count = 0
    for position in range(looked(plan, observation)):
        if can_take(observation, looked_at(observation, position)):
            count += 1
    return count


@kernel
def nth_valid(plan: Plan, observation: ObservationRecord, number: int) -> int:
    """Return the server with this number among them."""
    for position in range(looked(plan, observation)):
        index = looked_at(observation, position)
        if can_take(observation, index):
            if number == 0:
                return index
            number -= 1
    return NONE


# ------------------------------------------------------------------------------------------------------------- widths


@kernel
def random_width(plan: Plan, fits: int) -> int:
    """Compute `widths.RandomWidth`."""
    count, width = 0, 0
    for candidate in range(plan.widths):
        count += fits >> candidate & 1
    number = drawn(plan, count)
    while number > 0 or not fits >> width & 1:
        number -= fits >> width & 1
        width += 1
    return width


@kernel
def requests_per_server(observation: ObservationRecord) -> float:
    """Compute `widths.requests_per_server`."""
    return (observation.fifo_length + observation.outstanding) / max(1, observation.up)


@kernel
def set_rung(plan: Plan, observation: ObservationRecord, rule: WidthRule) -> None:
    """Set the rung of `widths.Ladder`: the number of thresholds that the load exceeds, with hysteresis; or
    `controlled.ControlledLadder`."""
    load = requests_per_server(observation)
    if rule.control_at:
        load *= exp(-shift_of(Control(plan, rule.control_at, observation.service_class), observation))
    down = stay = 0
    rung = Rung(plan, rule.rung_at, observation.service_class)
    for step in range(rung.last):
        threshold = reals(plan)[rule.thresholds_at + step]
        if load > threshold:
            down += 1
        if load > threshold * rung.share:
            stay += 1
    rung.rung = max(down, min(rung.rung, stay))
    if rule.control_at:
        Control(plan, rule.control_at, observation.service_class).end = end_of_dial(rung.rung, rung.last + 1)


@kernel
def step_variant(plan: Plan, observation: ObservationRecord, rule: WidthRule, server: int) -> None:
    """Run a server's step of `Variants`; repeated calls at that time do nothing."""
    steps, now = VariantSteps(plan, rule.variants_at), observation.now_ns
    variant = Variant(steps, _STEPS, server)
    if now - variant.since_ns >= steps.dwell_ns:
        wait_ns, step = seen_at(observation, server).work_ns + observation.fifo_length * steps.waiting_ns, 0
        cheaper = variant.count - 1 - variant.level
        if wait_ns > steps.down_ns and cheaper > 0:
            step = min(steps.leap, cheaper, wait_ns // max(steps.down_ns, 1))
        elif wait_ns < steps.up_ns and variant.level > 0:
            step = -1
        if step != 0:
            variant.level += step
            variant.since_ns = now


@kernel
def present_tuple_at(plan: Plan, observation: ObservationRecord, rule: WidthRule, server: int) -> int:
    """Compute `FixedWidths.widths_of`, `Ladder.widths_of`, `Variants.widths_of`, and the same of `Milp`: the offset of
    the widths of all segments on that server."""
    if rule.rule == LADDER:
        rung = Rung(plan, rule.rung_at, observation.service_class)
        return rung.tuples_at + rung.rung * plan.segments
    if rule.rule == INFAAS:
        variant = Variant(VariantSteps(plan, rule.variants_at), _STEPS, server)
        return variant.tuples_at + variant.level * plan.segments
    if rule.rule == BY_SERVER:
        return rule.rungs_at + server * plan.segments
    return rule.tuple_at + observation.service_class * plan.segments


@kernel
def width_for(plan: Plan, observation: ObservationRecord, rule: WidthRule, server: int) -> int:
    """Return the width for the candidate micro-batch on that server, by a rule of widths."""
    fits = seen_at(observation, server).fits
    if rule.rule == RANDOM_WIDTH:
        return random_width(plan, fits)
    if rule.rule == LADDER:
        set_rung(plan, observation, rule)
    elif rule.rule == INFAAS:
        step_variant(plan, observation, rule, server)
    return held(fits, ints(plan)[present_tuple_at(plan, observation, rule, server) + observation.segment])


# ---------------------------------------------------------------------------------------------------------- placements


@kernel
def measure(plan: Plan, observation: ObservationRecord, rule: int, index: int) -> float:
    """Return a rule's count for a server; whole numbers are exact (guaranteed by `policies.router_plans`)."""
    view = seen_at(observation, index)
    if rule in (SHORTEST_QUEUE, POWER_OF_TWO):
        return view.requests * 1.0
    if rule in (SHORTEST_QUEUE_BY_SPEED, POWER_OF_TWO_BY_SPEED):
        return view.requests / reals(plan)[plan.speeds_at + index]
    if rule == LEAST_WORK:
        return view.work_ns * 1.0
    if rule == LEAST_WORK_COMING:
        to_come = to_come_at(plan, index)
        return view.work_ns + to_come.images * to_come.way_ns
    key = key_of(plan, observation, width_for(plan, observation, WidthRule(plan, plan.delay_at), index))
    return (
        view.work_ns + transfer_ns(plan, observation, index) + batch_ns(plan, index, key, observation.candidates)
    ) * 1.0


@kernel
def least(plan: Plan, observation: ObservationRecord, rule: int) -> int:
    """Compute `ShortestQueue`, `ShortestQueueBySpeed`, `LeastWork`, `ShortestDelay`; ties go to the lowest."""
    best, server = 0.0, NONE
    for position in range(looked(plan, observation)):
        index = looked_at(observation, position)
        if can_take(observation, index):
            value = measure(plan, observation, rule, index)
            if server == NONE or value < best:
                best, server = value, index
    return server


@kernel
def one_of_two(plan: Plan, observation: ObservationRecord, rule: int) -> int:
    """Compute `PowerOfTwo`, `PowerOfTwoBySpeed`: one valid server still costs one draw."""
    count = count_valid(plan, observation)
    first = drawn(plan, count)
    if count == 1:
        return nth_valid(plan, observation, 0)
    second = drawn(plan, count - 1)
    if second >= first:
        second += 1
    lower, higher = nth_valid(plan, observation, min(first, second)), nth_valid(plan, observation, max(first, second))
    return higher if measure(plan, observation, rule, higher) < measure(plan, observation, rule, lower) else lower


@kernel
def weighted(plan: Plan, observation: ObservationRecord) -> int:
    """Compute `WeightedRandom`."""
    total = passed = 0.0
    drawn = NONE
    for position in range(looked(plan, observation)):
        index = looked_at(observation, position)
        if can_take(observation, index):
            total += reals(plan)[plan.speeds_at + index]
    threshold = draw(plan) * total
    for position in range(looked(plan, observation)):
        index = looked_at(observation, position)
        if can_take(observation, index):
            passed += reals(plan)[plan.speeds_at + index]
            drawn = index
            if threshold < passed:
                break
    return drawn


@kernel
def next_in_turn(plan: Plan, observation: ObservationRecord) -> int:
    """Compute `RoundRobin`."""
    lowest, following = plan.servers, plan.servers
    for position in range(looked(plan, observation)):
        index = looked_at(observation, position)
        if can_take(observation, index):
            lowest = min(lowest, index)
            if index > plan.turn:
                following = min(following, index)
    plan.turn = following if following < plan.servers else lowest
    return plan.turn


@kernel
def furthest_behind(plan: Plan, observation: ObservationRecord) -> int:
    """Compute `Milp._place`: a server without a share only if none has one."""
    images = min(largest_micro_batch(plan), observation.candidates)
    total, least_ahead = images, 0.0
    best, is_shareless = NONE, False
    for index in range(plan.servers):
        total += ints(plan)[plan.placed_at + index]
    for index in range(plan.servers):
        if not can_take(observation, index):
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
def least_with_coming(plan: Plan, observation: ObservationRecord) -> int:
    """Compute `LeastWorkComing`."""
    memory, location = WorkToCome(plan, plan.coming_at), observation.location
    for position in range(looked(plan, observation)):
        index = looked_at(observation, position)
        to_come = to_come_at(plan, index)
        keep = memory.forget_ns / (memory.forget_ns + (observation.now_ns - to_come.seen_ns))
        to_come.seen_ns = observation.now_ns
        to_come.images *= keep if is_up(observation, index) else 0.0
    stays = plan.stays and location >= 0 and can_take(observation, location)
    best = location if stays else least(plan, observation, LEAST_WORK_COMING)
    images, remaining = (
        min(memory.most, observation.candidates),
        (plan.segments - 1 - observation.segment) / plan.segments,
    )
    if location >= 0:
        source = to_come_at(plan, location)
        source.images = max(0.0, source.images - images * (remaining + 1 / plan.segments))
    to_come_at(plan, best).images += images * remaining
    return best


@kernel
def next_packed(plan: Plan, observation: ObservationRecord) -> int:
    """Compute `Packed`."""
    for rank in range(plan.servers):
        packed = Packed(plan, plan.packed_at, rank)
        if (
            can_take(observation, packed.server)
            and measure(plan, observation, LEAST_WORK, packed.server) < packed.full_ns
        ):
            return packed.server
    return least(plan, observation, LEAST_WORK)


@kernel
def place(plan: Plan, observation: ObservationRecord) -> int:
    """Return the server for the candidate micro-batch."""
    location, rule = observation.location, plan.placement
    if rule == LEAST_WORK_COMING:
        return least_with_coming(plan, observation)
    if plan.stays and location >= 0 and can_take(observation, location):  # `Sticky`
        return location
    if rule == AT_RANDOM:
        return nth_valid(plan, observation, drawn(plan, count_valid(plan, observation)))
    if rule == WEIGHTED_RANDOM:
        return weighted(plan, observation)
    if rule == ROUND_ROBIN:
        return next_in_turn(plan, observation)
    if rule in (POWER_OF_TWO, POWER_OF_TWO_BY_SPEED):
        return one_of_two(plan, observation, rule)
    if rule == PACKED:
        return next_packed(plan, observation)
    if rule == DEFICIT:
        return furthest_behind(plan, observation)
    if rule == IDLE_QUEUE:
        for place in range(looked(plan, observation)):
            index = looked_at(observation, place)
            if can_take(observation, index) and seen_at(observation, index).requests == 0:
                return index
        return nth_valid(plan, observation, drawn(plan, count_valid(plan, observation)))
    return least(plan, observation, rule)


# ------------------------------------------------------------------------------------------------------------- choices


@kernel
def micro_batch_size_for(plan: Plan) -> int:
    """Compute `RandomMicroBatch`, `LargestMicroBatch`."""
    number = plan.micro_batch_size_count - 1
    if plan.micro_batch_size_rule == RANDOM_MICRO_BATCH_SIZE:
        number = drawn(plan, plan.micro_batch_size_count)
    return ints(plan)[plan.micro_batch_sizes_at + number]


@kernel
def fit_slack(plan: Plan, observation: ObservationRecord, server: int) -> None:
    """Run `SlackFit`: set the width and the micro-batch size for that server.

    Options are numbered by width and micro-batch size; the plan has the `latest` time of each bucket by its number.
    """
    candidates, view = observation.candidates, seen_at(observation, server)
    latest = ints(Latest(plan, plan.scratch_at))
    fits = view.fits
    micro_batch_sizes = 1  # sizes beyond the first that takes all candidates change nothing
    while (
        micro_batch_sizes < plan.micro_batch_size_count
        and ints(plan)[plan.micro_batch_sizes_at + micro_batch_sizes - 1] < candidates
    ):
        micro_batch_sizes += 1
    first_ns, last_ns = NONE, NONE
    for option in range(plan.widths * micro_batch_sizes):
        if fits >> option // micro_batch_sizes & 1:
            latency_ns = option_ns(plan, observation, server, option, micro_batch_sizes)
            first_ns = latency_ns if first_ns == NONE else min(first_ns, latency_ns)
            last_ns = max(last_ns, latency_ns)
    spread_ns = max(last_ns - first_ns, 1)
    for bucket in range(SLACK_BUCKETS + 1):
        latest[bucket] = NONE
    for option in range(plan.widths * micro_batch_sizes):
        if fits >> option // micro_batch_sizes & 1:
            latency_ns = option_ns(plan, observation, server, option, micro_batch_sizes)
            bucket = (latency_ns - first_ns) * SLACK_BUCKETS // spread_ns
            latest[bucket] = max(latest[bucket], latency_ns)
    waited_ns = observation.now_ns - observation.entered_ns
    slack_ns = plan.share_ns - waited_ns - view.work_ns - transfer_ns(plan, observation, server)
    best_bucket = SLACK_BUCKETS
    while best_bucket > 0 and (latest[best_bucket] == NONE or latest[best_bucket] > slack_ns):
        best_bucket -= 1
    most = NONE
    for option in range(plan.widths * micro_batch_sizes):
        if fits >> option // micro_batch_sizes & 1:
            latency_ns, micro_batch_size = (
                option_ns(plan, observation, server, option, micro_batch_sizes),
                option % micro_batch_sizes,
            )
            if (latency_ns - first_ns) * SLACK_BUCKETS // spread_ns == best_bucket and micro_batch_size >= most:
                most = micro_batch_size
                plan.width, plan.micro_batch_size = (
                    option // micro_batch_sizes,
                    ints(plan)[plan.micro_batch_sizes_at + micro_batch_size],
                )


@kernel
def option_ns(plan: Plan, observation: ObservationRecord, server: int, option: int, micro_batch_sizes: int) -> int:
    """Return the expected latency of one of `SlackFit`'s options."""
    batch = min(ints(plan)[plan.micro_batch_sizes_at + option % micro_batch_sizes], observation.candidates)
    return batch_ns(plan, server, key_of(plan, observation, option // micro_batch_sizes), batch)


@kernel
def limit_widths(plan: Plan, observation: ObservationRecord) -> None:
    """Limit the observation to each server's working set (`DelayingRouter.sets`)."""
    for position in range(looked(plan, observation)):
        index = looked_at(observation, position)
        seen_at(observation, index).fits &= ints(plan)[plan.masks_at + index * plan.segments + observation.segment]


@kernel
def choose(plan: Plan, observation: ObservationRecord) -> None:
    """Decide about the observation; the choice is written to the plan."""
    rule = plan.width_rule.rule
    if plan.masks_at:
        limit_widths(plan, observation)
    if rule == LOOKAHEAD:
        look_ahead(plan, observation)
        return
    if rule == COMPASS:
        take_bearing(plan, observation)
        return
    plan.server = place(plan, observation)
    if rule == SLACKFIT:
        fit_slack(plan, observation, plan.server)
        return
    plan.width = width_for(plan, observation, plan.width_rule, plan.server)
    plan.micro_batch_size = micro_batch_size_for(plan)
    add_path(plan, observation, present_tuple_at(plan, observation, plan.width_rule, plan.server))
