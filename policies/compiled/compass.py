"""`policies.rules.compass`, compiled: its plain functions over a plan's records, and `Compass.choose` over a sheet."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf

from kit.jit import ints, kernel, kernel_of, reals
from policies.compiled.control import Control, end_of_dial, shift_of, weight_of
from policies.compiled.layout import Plan, Sheet
from policies.compiled.record import INT, REAL, Record
from policies.compiled.rows import (
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
from policies.rules import compass
from policies.rules.compass import REMEMBERED


class Weights(Record):
    """`Numbers`, as far as a decision reads them one by one."""

    level = rise = stay = REAL


class CompassMemory(Record):
    """The settings of `Compass`; a `Coming` for each server follows.

    Its tables: units by server; a `Priced` for each class.
    """

    weights = Weights.blank()
    unit_ns = REAL
    ways_at = priced_at = control_at = INT


class Priced(Record):
    """`compass.PricedRungs`, and the number of its rungs."""

    rungs_at = count = thresholds_at = savings_at = INT


class Coming(Record):
    """`compass.Coming`."""

    images = REAL
    seen_ns = INT


_MEMORY = CompassMemory.size

log_price: Callable[[Weights, float, float], float] = kernel_of(compass.log_price)
units_until_end: Callable[[Weights, float, float, float, float, bool], float] = kernel_of(compass.units_until_end)


@kernel
def rung_for(plan: Plan, sheet: Sheet, its: CompassMemory) -> int:
    """Compute `Compass._rung`."""
    shift, weight = 0.0, 0.0
    if its.control_at:
        control = Control(plan, its.control_at, sheet.service_class)
        shift = shift_of(control, sheet)
        weight = weight_of(control, sheet)
    load = (sheet.fifo_length + sheet.outstanding) / max(1, sheet.up)
    price = exp(log_price(its.weights, load, shift))
    rung, priced = 0, Priced(plan, its.priced_at, sheet.service_class)
    for n in range(priced.count - 1):
        rung += price > reals(plan)[priced.thresholds_at + n] - weight * reals(plan)[priced.savings_at + n]
    if its.control_at:
        Control(plan, its.control_at, sheet.service_class).end = end_of_dial(rung, priced.count)
    return rung


@kernel
def units_until_end_at(plan: Plan, sheet: Sheet, its: CompassMemory, index: int, width: int, taken: int) -> float:
    """Compute `Compass._units_until_end`."""
    unit_ns, to_come = its.unit_ns, Coming(its, _MEMORY, index).images * reals(plan)[its.ways_at + index]
    moved, batch = transfer_ns(plan, sheet, index) / unit_ns, batch_ns(plan, index, key_of(plan, sheet, width), taken)
    work = seen_at(sheet, index).work_ns / unit_ns
    return units_until_end(its.weights, work, to_come, moved, batch / unit_ns, sheet.location == index)


@kernel
def take_bearing(plan: Plan, sheet: Sheet) -> None:
    """Run `Compass.choose`."""
    its = CompassMemory(plan, plan.memory_at)
    tuple_at = Priced(plan, its.priced_at, sheet.service_class).rungs_at + rung_for(plan, sheet, its) * plan.segments
    taken, least = min(largest_group(plan), sheet.candidates), inf
    for place in range(looked(plan, sheet)):
        index = looked_at(sheet, place)
        seen, coming = seen_at(sheet, index), Coming(its, _MEMORY, index)
        passed = (sheet.now_ns - coming.seen_ns) / its.unit_ns
        coming.images *= REMEMBERED / (REMEMBERED + passed) if is_up(sheet, index) else 0.0
        coming.seen_ns = sheet.now_ns
        if seen.code:
            width = held(seen.holds, ints(plan)[tuple_at + sheet.segment])
            units = units_until_end_at(plan, sheet, its, index, width, taken)
            if units < least:
                least, plan.server, plan.width = units, index, width
    plan.group = largest_group(plan)
    left = (plan.segments - 1 - sheet.segment) / plan.segments
    if sheet.location >= 0:
        before = Coming(its, _MEMORY, sheet.location)
        before.images = max(0.0, before.images - taken * (left + 1 / plan.segments))
    Coming(its, _MEMORY, plan.server).images += taken * left
