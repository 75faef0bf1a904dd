"""Tide's decision: a price for a GPU-second that follows the load, and the width, server and group it leads to.

See `policies.tide` for what the knobs mean and how they are learned. This is the one place where it decides, in
simulation on either engine and on hardware.
"""

from __future__ import annotations

from math import exp, log

from policies.compiled.control import Control, shift_of, weight_of
from policies.compiled.layout import ANYWHERE, NONE, Plan, Sheet
from policies.compiled.record import INT, REAL, Record
from policies.compiled.rows import batch_ns, is_up, key_of, largest_group, seen_at, transfer_ns
from policies.goal_control import AT_BOTH, AT_NARROWEST, AT_WIDEST, FREE
from policies.jit import ints, kernel, reals


class Price(Record):
    """The weights of Tide's price (`policies.tide.knobs`)."""

    level = queue_2 = queue_16 = queue_128 = backlog_1ms = rising = risen = load = overload = load_now = REAL
    waited_1ms = REAL


class Knobs(Record):
    """What Tide has learned, and tables that depend on the cluster."""

    price = Price.blank()
    transfer = batch = move_s = slowness = share = share_load = delay = hold = coming = REAL
    worth_at = cost_at = capacity_at = energy_at = INT
    tau_fast_s = tau_mid_s = tau_slow_s = tau_speed_s = waiting_s = guard_on_s = guard_off_s = REAL


class Memory(Record):
    """What Tide remembers; each server's follows, then the width that each gave each segment last."""

    now_ns = arrived = INT
    fast_img_s = mid_img_s = slow_img_s = price = backlog_s = REAL
    is_guarded = handovers = guarded = INT


class Remembered(Record):
    """What Tide remembers of a server."""

    work_s = busy_s = drained_s = coming = REAL


_NS = 1e9
_MEMORY = Memory.size
_REMEMBERED = Remembered.size


@kernel
def remember(plan: Plan, sheet: Sheet, memory: Memory, knobs: Knobs) -> None:
    """Arrival rates over three times, and how fast each server really works off what it was sent."""
    arrived = sheet.completed + sheet.fifo_length
    for index in range(plan.servers):
        arrived += seen_at(sheet, index).requests
    passed_s = (sheet.now_ns - memory.now_ns) / _NS
    came = max(0.0, arrived - memory.arrived)
    memory.fast_img_s += (came - memory.fast_img_s * passed_s) / (knobs.tau_fast_s + passed_s)
    memory.mid_img_s += (came - memory.mid_img_s * passed_s) / (knobs.tau_mid_s + passed_s)
    memory.slow_img_s += (came - memory.slow_img_s * passed_s) / (knobs.tau_slow_s + passed_s)
    keep = knobs.tau_speed_s / (knobs.tau_speed_s + passed_s)
    for index in range(plan.servers):
        its, work_s = remembered_of(memory, index), seen_at(sheet, index).work_ns / _NS
        if its.work_s > 0:
            took_s = passed_s if work_s > 0 else min(passed_s, its.work_s)  # all done: perhaps long ago
            its.busy_s = (its.busy_s + took_s) * keep
            its.drained_s = (its.drained_s + max(0.0, its.work_s - work_s)) * keep
        its.work_s = work_s
        its.coming *= keep  # where some are lost on the way, none stays counted
    memory.now_ns, memory.arrived = sheet.now_ns, arrived


@kernel
def remembered_of(memory: Memory, index: int) -> Remembered:
    """What is remembered of a server."""
    return Remembered(memory, _MEMORY, index)


@kernel
def slowness(memory: Memory, index: int) -> float:
    """Time a server took for what was expected to take one unit of it, as far as is known."""
    its = remembered_of(memory, index)
    if its.busy_s < 1e-3:
        return 1.0
    return min(20.0, max(0.25, its.busy_s / (its.drained_s + 1e-4)))


@kernel
def price_of(plan: Plan, sheet: Sheet, memory: Memory, knobs: Knobs) -> float:
    """The logarithm of what a GPU-second costs now, in accuracy."""
    work_s, capacity, up, inside = 0.0, 0.0, 0, sheet.fifo_length
    for index in range(plan.servers):
        work_s += seen_at(sheet, index).work_ns / _NS
        inside += seen_at(sheet, index).requests
        if is_up(sheet, index):
            capacity += reals(plan)[knobs.capacity_at + index]
            up += 1
    up = max(up, 1)
    backlog_s = (work_s + sheet.fifo_length * knobs.waiting_s) / up
    waited_s = (sheet.now_ns - sheet.entered_ns) / _NS
    fast, mid, slow = memory.fast_img_s + 1.0, memory.mid_img_s + 1.0, memory.slow_img_s + 1.0
    price, capacity, each = knobs.price, capacity + 1.0, inside / up
    memory.backlog_s = backlog_s
    return (
        price.level
        + price.queue_2 * log(1.0 + each / 2.0)
        + price.queue_16 * log(1.0 + each / 16.0)
        + price.queue_128 * log(1.0 + each / 128.0)
        + price.backlog_1ms * log(1.0 + backlog_s / 1e-3)
        + price.rising * log(fast / mid)
        + price.risen * log(mid / slow)
        + price.load * log(mid / capacity)
        + price.overload * max(0.0, mid / capacity - 1.0)
        + price.load_now * (fast / capacity)
        + price.waited_1ms * log(1.0 + waited_s / 1e-3)
    )


@kernel
def last_width_at(plan: Plan, sheet: Sheet, server: int) -> int:
    """Where in the memory it stands which width the head's segment was last given on that server."""
    return _MEMORY + plan.servers * _REMEMBERED + server * plan.segments + sheet.segment


@kernel
def width_at(plan: Plan, sheet: Sheet, memory: Memory, knobs: Knobs, server: int, paid: float, weight: float) -> int:
    """The width there whose accuracy, less what its time and joules cost, is the most; the narrowest of several."""
    worth, holds = knobs.worth_at + sheet.segment * plan.widths, seen_at(sheet, server).holds
    best, found, last = 0.0, NONE, ints(memory)[last_width_at(plan, sheet, server)]
    for width in range(plan.widths):
        if not holds >> width & 1:
            continue
        key = key_of(plan, sheet, width)
        its_ns = batch_ns(plan, server, key, sheet.candidates)
        cost = reals(plan)[knobs.cost_at + server * plan.keys + key] + knobs.delay * its_ns / _NS
        value = reals(plan)[worth + width] - paid * cost + knobs.hold * (width == last)
        if weight > 0.0:
            value -= weight * reals(plan)[knobs.energy_at + server * plan.keys + key]
        if found == NONE or value > best:
            best, found = value, width
    return found


@kernel
def is_guarded(memory: Memory, knobs: Knobs) -> bool:
    """Whether the backlog is so long that only the fallback may decide: above one level, until below another."""
    if not memory.is_guarded and memory.backlog_s > knobs.guard_on_s:
        memory.is_guarded = 1
        memory.handovers += 1
    elif memory.is_guarded and memory.backlog_s < knobs.guard_off_s:
        memory.is_guarded = 0
    memory.guarded += memory.is_guarded
    return memory.is_guarded == 1


@kernel
def fall_back(plan: Plan, sheet: Sheet) -> None:
    """The narrowest width, least work first and then stay, as many as there are: nothing carries more."""
    location, found = sheet.location, NONE
    for index in range(plan.servers):
        seen = seen_at(sheet, index)
        if seen.code == 0:
            continue
        if found == NONE or seen.work_ns < seen_at(sheet, found).work_ns:
            found = index
    if location >= 0 and seen_at(sheet, location).code != 0:
        found = location
    width = 0
    while not seen_at(sheet, found).holds >> width & 1:
        width += 1
    plan.server, plan.width = found, width
    plan.group = largest_group(plan)


@kernel
def score_of(plan: Plan, sheet: Sheet, memory: Memory, knobs: Knobs, index: int, key: int) -> float:
    """When the candidates would be done at a server, about: its work and theirs at its real speed, and the way there.

    Its work is also a share of what is to come back from images that have their place there.
    """
    location = sheet.location
    slow = 1.0 + knobs.slowness * (slowness(memory, index) - 1.0)
    batch = batch_ns(plan, index, key, sheet.candidates) / _NS
    coming_s = remembered_of(memory, index).coming / reals(plan)[knobs.capacity_at + index]
    work_s = seen_at(sheet, index).work_ns / _NS + knobs.coming * coming_s
    score = (work_s + knobs.batch * batch) * slow
    if location in (ANYWHERE, index):
        return score
    score += knobs.transfer * (transfer_ns(plan, sheet, index) / _NS)
    return score + knobs.move_s if location >= 0 else score


@kernel
def group_at(plan: Plan, sheet: Sheet, memory: Memory, knobs: Knobs) -> int:
    """The smallest group that holds the share of the candidates which the load asks for."""
    share = knobs.share + knobs.share_load * log(1.0 + memory.backlog_s / 1e-3)
    wanted = sheet.candidates * share
    for n in range(plan.group_count - 1):
        if ints(plan)[plan.groups_at + n] >= wanted:
            return ints(plan)[plan.groups_at + n]
    return largest_group(plan)


@kernel
def note_sent(plan: Plan, sheet: Sheet, memory: Memory) -> None:
    """What was sent is work that will not be worked off before it is seen; and what it leaves to do has a place now."""
    sent = min(plan.group, sheet.candidates)
    to_come = (plan.segments - 1 - sheet.segment) / plan.segments  # of an image's way, beyond this segment
    if sheet.location >= 0:
        left = remembered_of(memory, sheet.location)
        left.coming = max(0.0, left.coming - sent * (to_come + 1.0 / plan.segments))
    its, key = remembered_of(memory, plan.server), key_of(plan, sheet, plan.width)
    its.coming += sent * to_come
    its.work_s += sent * ints(plan)[plan.image_ns_at + plan.server * plan.keys + key] / _NS


@kernel
def end_of_price(plan: Plan, sheet: Sheet, memory: Memory) -> int:
    """Whether a lower price would have changed nothing, or a higher one; under the guard neither would."""
    holds, width = seen_at(sheet, plan.server).holds, plan.width
    is_widest, is_narrowest = holds >> width == 1, holds & ((1 << width) - 1) == 0
    if memory.is_guarded == 1 or (is_widest and is_narrowest):
        return AT_BOTH
    if is_widest:
        return AT_WIDEST
    return AT_NARROWEST if is_narrowest else FREE


@kernel
def choose_by_tide(plan: Plan, sheet: Sheet) -> None:
    """The server where the candidates are done first at the width that the price leaves them there; then the group."""
    memory, knobs = Memory(plan, plan.memory_at), Knobs(plan, plan.knobs_at)
    remember(plan, sheet, memory, knobs)
    level = price_of(plan, sheet, memory, knobs)
    control_at, weight = plan.width_rule.control_at, 0.0
    if control_at:
        control = Control(plan, control_at)
        level -= shift_of(control, sheet)
        weight = weight_of(control, sheet)
    memory.price = level
    if is_guarded(memory, knobs):
        fall_back(plan, sheet)
    else:
        paid, best, found, chosen = exp(level), 0.0, NONE, 0
        for index in range(plan.servers):
            if seen_at(sheet, index).code == 0:
                continue
            width = width_at(plan, sheet, memory, knobs, index, paid, weight)
            score = score_of(plan, sheet, memory, knobs, index, key_of(plan, sheet, width))
            if found == NONE or score < best:
                best, found, chosen = score, index, width
        plan.server, plan.width, plan.group = found, chosen, group_at(plan, sheet, memory, knobs)
    if control_at:
        Control(plan, control_at).end = end_of_price(plan, sheet, memory)
    ints(memory)[last_width_at(plan, sheet, plan.server)] = plan.width
    note_sent(plan, sheet, memory)
