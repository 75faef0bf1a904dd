"""`policies.rules.lookahead`, compiled: the same numbers, added in the same order."""

from __future__ import annotations

from math import exp

from kit.jit import ints, kernel
from policies.compiled.control import Control, end_of_dial, shift_of
from policies.compiled.layout import NONE, Plan, Sheet
from policies.compiled.record import INT, REAL, Record
from policies.compiled.rows import batch_ns, is_up, key_of, largest_group, seen_at, transfer_ns

_NS = 1e9


class Ahead(Record):
    """The settings and memory of `Lookahead`. Its tables: by server and width, by segment and width, by server."""

    horizon_s = weight = rate_img_s = REAL
    blocks = arrived = seen_ns = image_ns_at = worth_ns_at = busy_ns_at = control_at = INT


@kernel
def remember_arrivals(sheet: Sheet, ahead: Ahead) -> None:
    """Run `Lookahead._remember`."""
    arrived = sheet.completed + sheet.fifo_length + sheet.outstanding
    passed_s = (sheet.now_ns - ahead.seen_ns) / _NS
    came = max(0, arrived - ahead.arrived)
    ahead.rate_img_s += (came - ahead.rate_img_s * passed_s) / (ahead.horizon_s + passed_s)
    ahead.arrived, ahead.seen_ns = arrived, sheet.now_ns


@kernel
def first_to_end(plan: Plan, sheet: Sheet, ahead: Ahead, width: int, lot: int) -> int:
    """Add a lot to the server that is up and ends it first, and return that end."""
    busy_ns, image_ns, best, first_ns = ints(plan), ints(plan), NONE, 0
    for index in range(plan.servers):
        if is_up(sheet, index):
            end_ns = busy_ns[ahead.busy_ns_at + index] + lot * image_ns[ahead.image_ns_at + index * plan.widths + width]
            if best == NONE or end_ns < first_ns:
                best, first_ns = index, end_ns
    busy_ns[ahead.busy_ns_at + best] = first_ns
    return first_ns


@kernel
def cost_ns(
    plan: Plan, sheet: Sheet, ahead: Ahead, server: int, width: int, taken: int, coming: int, lots: int, scale: float
) -> float:
    """Compute `Lookahead._cost_ns`."""
    busy_ns = ints(plan)
    for index in range(plan.servers):
        busy_ns[ahead.busy_ns_at + index] = seen_at(sheet, index).work_ns
    own_ns = transfer_ns(plan, sheet, server) + batch_ns(plan, server, key_of(plan, sheet, width), taken)
    busy_ns[ahead.busy_ns_at + server] += own_ns
    total_ns, images = taken * (busy_ns[ahead.busy_ns_at + server] * 1.0), taken * 1.0
    each = (coming + lots - 1) // lots
    for number in range(lots):
        lot = max(0, min(each, coming - number * each))
        end_ns = first_to_end(plan, sheet, ahead, width, lot)
        total_ns += ahead.weight * lot * (end_ns * 1.0)
        images += ahead.weight * lot
    return total_ns / images - ints(plan)[ahead.worth_ns_at + sheet.segment * plan.widths + width] * scale


@kernel
def look_ahead(plan: Plan, sheet: Sheet) -> None:
    """Run `Lookahead.choose`."""
    ahead = Ahead(plan, plan.memory_at)
    remember_arrivals(sheet, ahead)
    taken = min(largest_group(plan), sheet.candidates)
    coming = max(0, sheet.fifo_length - taken) + int(ahead.rate_img_s * ahead.horizon_s * plan.segments)
    best, chosen, scale = 0.0, NONE, 1.0
    narrowest, widest = plan.widths, NONE
    if ahead.control_at:
        scale = exp(shift_of(Control(plan, ahead.control_at, sheet.service_class), sheet))
    lots = ahead.blocks * sheet.up
    for index in range(plan.servers):
        seen = seen_at(sheet, index)
        for width in range(plan.widths):
            if seen.code == 0 or not seen.holds >> width & 1:
                continue
            narrowest, widest = min(narrowest, width), max(widest, width)
            cost = cost_ns(plan, sheet, ahead, index, width, taken, coming, lots, scale)
            if chosen == NONE or cost < best:
                best, chosen = cost, index
                plan.server, plan.width = index, width
    plan.group = largest_group(plan)
    if ahead.control_at:
        control = Control(plan, ahead.control_at, sheet.service_class)
        control.end = end_of_dial(widest - plan.width, widest - narrowest + 1)
