"""`policies.rules.compass`, compiled: its plain functions over a plan's records, and `Compass.choose` over a sheet."""

from __future__ import annotations

from collections.abc import Callable
from math import exp

from kit.jit import ints, kernel, kernel_of, reals
from policies.compiled.control import Control, end_of_dial, shift_of
from policies.compiled.layout import NONE, Plan, Sheet
from policies.compiled.record import INT, REAL, Record
from policies.compiled.rows import batch_ns, held, is_up, key_of, largest_group, load_ns, seen_at, transfer_ns
from policies.rules import compass


class Weights(Record):
    """`Numbers`, as far as a decision asks for them one by one."""

    level = rise = fifo = candidates = age = fast = middle = slow = REAL
    to_come = transfer = batch = load = trust = distance = REAL


class CompassMemory(Record):
    """What `Compass` is told, and remembers; a `Watched` for each server follows.

    Its tables: units by server; the price's logarithm, and the bonus for staying, by segment; joules by server, segment
    and width.
    """

    weights = Weights.blank()
    unit_ns = share = fast_rate = middle_rate = slow_rate = REAL
    arrived = seen_ns = stage_at = more_at = stay_at = joules_at = control_at = INT


class Watched(Record):
    """`Seen`."""

    work = busy = done = REAL


_MEMORY = CompassMemory.size

follow_rates: Callable[[CompassMemory, int, float, float], None] = kernel_of(compass.follow_rates)
follow_server: Callable[[Watched, float, float], None] = kernel_of(compass.follow_server)
slowness: Callable[[Watched], float] = kernel_of(compass.slowness)
log_price: Callable[[Weights, CompassMemory, float, int, int, float, float], float] = kernel_of(compass.log_price)
server_cost: Callable[[Weights, float, float, float, float, float], float] = kernel_of(compass.server_cost)
width_cost: Callable[[Weights, float, float, float], float] = kernel_of(compass.width_cost)


@kernel
def load_of(plan: Plan, sheet: Sheet, inside: int) -> float:
    """Requests inside for each server that is up."""
    up = 0
    for index in range(plan.servers):
        up += is_up(sheet, index)
    return inside / max(1, up)


@kernel
def rung_for(plan: Plan, sheet: Sheet, its: CompassMemory, inside: int) -> int:
    """The width tuple that the price asks for."""
    age, more = (sheet.now_ns - sheet.entered_ns) / its.unit_ns, reals(plan)[its.more_at + sheet.segment]
    if its.control_at:
        more -= shift_of(Control(plan, its.control_at), sheet)
    load = load_of(plan, sheet, inside)
    price = exp(log_price(its.weights, its, load, sheet.fifo_length, sheet.candidates, age, more))
    rung, rule = 0, plan.width_rule
    for n in range(rule.rung_count - 1):
        rung += price > reals(plan)[rule.thresholds_at + n]
    if its.control_at:
        Control(plan, its.control_at).end = end_of_dial(rung, rule.rung_count)
    return rung


@kernel
def server_cost_of(plan: Plan, sheet: Sheet, its: CompassMemory, index: int, work: float) -> float:
    """`Compass._server_cost`."""
    stay = reals(plan)[its.stay_at + sheet.segment] if sheet.location == index else 0.0
    to_come = seen_at(sheet, index).to_come * reals(plan)[its.stage_at + index]
    moved, slow = transfer_ns(plan, sheet, index) / its.unit_ns, slowness(Watched(its, _MEMORY, index))
    return server_cost(its.weights, work, slow, to_come, moved, stay)


@kernel
def width_cost_of(
    plan: Plan, sheet: Sheet, its: CompassMemory, index: int, width: int, wanted: int, taken: int
) -> float:
    """`Compass._width_cost`."""
    batch = batch_ns(plan, index, key_of(plan, sheet, width), taken) / its.unit_ns
    load = load_ns(plan, sheet, index, width) / its.unit_ns
    steps = abs(width - wanted) * (4.0 / plan.widths)
    joules = reals(plan)[its.joules_at + (index * plan.segments + sheet.segment) * plan.widths + width]
    return width_cost(its.weights, batch, load, steps) + joules


@kernel
def take_bearing(plan: Plan, sheet: Sheet) -> None:
    """`Compass.choose`."""
    its = CompassMemory(plan, plan.memory_at)
    inside = sheet.fifo_length
    for index in range(plan.servers):
        inside += seen_at(sheet, index).requests
    passed = (sheet.now_ns - its.seen_ns) / its.unit_ns
    follow_rates(its, sheet.completed + inside, passed, its.share)
    its.seen_ns = sheet.now_ns
    tuple_at = plan.width_rule.rungs_at + rung_for(plan, sheet, its, inside) * plan.segments
    taken, best, found = min(largest_group(plan), sheet.candidates), 0.0, NONE
    for index in range(plan.servers):
        seen = seen_at(sheet, index)
        work = seen.work_ns / its.unit_ns
        follow_server(Watched(its, _MEMORY, index), work, passed)
        if seen.code == 0:
            continue
        wanted = held(seen.holds, ints(plan)[tuple_at + sheet.segment])
        base = server_cost_of(plan, sheet, its, index, work)
        for width in range(plan.widths):
            if not seen.holds >> width & 1:
                continue
            cost = base + width_cost_of(plan, sheet, its, index, width, wanted, taken)
            if found == NONE or cost < best:
                best, found = cost, index
                plan.server, plan.width = index, width
    plan.group = largest_group(plan)
    key = key_of(plan, sheet, plan.width)
    added = taken * (ints(plan)[plan.image_ns_at + plan.server * plan.keys + key] / its.unit_ns)
    Watched(its, _MEMORY, plan.server).work += added
