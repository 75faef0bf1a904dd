"""`policies.rules.compass`, compiled: its plain functions over a plan's records, and `Compass.choose` over a sheet."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf

from kit.jit import Reals, ints, kernel, kernel_of, reals
from policies.compiled.control import Control, end_of_dial, shift_of, weight_of
from policies.compiled.layout import Plan, Sheet
from policies.compiled.record import INT, REAL, Record
from policies.compiled.rows import (
    batch_ns,
    held,
    image_ns,
    is_up,
    key_of,
    largest_group,
    load_ns,
    looked,
    looked_at,
    seen_at,
    transfer_ns,
)
from policies.rules import candidates, compass
from policies.rules.candidates import SERVER, SETTING, WIDTH
from policies.rules.compass import MANY, MAX_AGE


class Weights(Record):
    """`Numbers`, as far as a decision asks for them one by one."""

    level = rise = fifo = candidates = age = fast = middle = slow = REAL
    to_come = transfer = batch = load = trust = distance = REAL


class CompassMemory(Record):
    """What `Compass` is told, and remembers; a `Watched` for each server follows.

    Its tables: units by server; the price's logarithm, and the bonus for staying, by segment; joules by server, segment
    and width; a `Priced` for each class. At `costs_at`, what each candidate costs at the last decision, infinite where
    there is none; `best` is the place of the least. With a network (of `hidden` numbers between its layers; 0: there is
    none) its weights stand at `network_at`, its inputs at `inputs_at`, how dear each candidate was before it at
    `reluctance_at`, and room for its sums at `sums_at`.
    """

    weights = Weights.blank()
    unit_ns = share = fast_rate = middle_rate = slow_rate = REAL
    arrived = seen_ns = ways_at = more_at = stay_at = joules_at = priced_at = control_at = INT
    costs_at = best = hidden = network_at = inputs_at = reluctance_at = sums_at = INT
    sharpness = REAL


class Priced(Record):
    """`compass.PricedRungs`, and how many of its rungs there are."""

    rungs_at = count = thresholds_at = savings_at = widths = INT


class Watched(Record):
    """`Seen`."""

    work = busy = done = coming = REAL
    seen_ns = INT


_MEMORY = CompassMemory.size

follow_rates: Callable[[CompassMemory, int, float, float], None] = kernel_of(compass.follow_rates)
follow_server: Callable[[Watched, float, float, bool], None] = kernel_of(compass.follow_server)
slowness: Callable[[Watched], float] = kernel_of(compass.slowness)
log_price: Callable[[Weights, CompassMemory, float, int, int, float, float], float] = kernel_of(compass.log_price)
server_cost: Callable[[Weights, float, float, float, float, float], float] = kernel_of(compass.server_cost)
width_cost: Callable[[Weights, float, float, float], float] = kernel_of(compass.width_cost)
write_setting: Callable[..., None] = kernel_of(candidates.write_setting)
write_rates: Callable[..., None] = kernel_of(compass.write_rates)
write_server: Callable[..., None] = kernel_of(candidates.write_server)
write_width: Callable[..., None] = kernel_of(candidates.write_width)
reluctance: Callable[[float, float], float] = kernel_of(candidates.reluctance)


@kernel
def rung_for(plan: Plan, sheet: Sheet, its: CompassMemory, inside: int) -> int:
    """The width tuple that the price asks for."""
    age, more = (sheet.now_ns - sheet.entered_ns) / its.unit_ns, reals(plan)[its.more_at + sheet.segment]
    weight = 0.0
    if its.control_at:
        control = Control(plan, its.control_at, sheet.service_class)
        more -= shift_of(control, sheet)
        weight = weight_of(control, sheet)
    load = inside / max(1, sheet.up)
    price = log_price(its.weights, its, load, sheet.fifo_length, sheet.candidates, age, more)
    if its.hidden:
        place, share = sheet.segment / max(1, plan.segments - 1), min(1.0, sheet.candidates / MANY)
        write_setting(reals(plan), its.inputs_at, load, sheet.fifo_length, share, min(MAX_AGE, age), price, place)
        write_rates(reals(plan), its.inputs_at, its)
    rung, priced = 0, Priced(plan, its.priced_at, sheet.service_class)
    for n in range(priced.count - 1):
        rung += exp(price) > reals(plan)[priced.thresholds_at + n] - weight * reals(plan)[priced.savings_at + n]
    if its.control_at:
        Control(plan, its.control_at, sheet.service_class).end = end_of_dial(rung, priced.count)
    return rung


@kernel
def server_cost_of(plan: Plan, sheet: Sheet, its: CompassMemory, index: int, place: int, work: float) -> float:
    """`Compass._server_cost`."""
    stay = reals(plan)[its.stay_at + sheet.segment] if sheet.location == index else 0.0
    watched = Watched(its, _MEMORY, index)
    to_come = watched.coming * reals(plan)[its.ways_at + index]
    moved, slow = transfer_ns(plan, sheet, index) / its.unit_ns, slowness(watched)
    if its.hidden:
        at, is_here = its.inputs_at + SETTING + SERVER * place, 1.0 if sheet.location == index else 0.0
        write_server(reals(plan), at, work, slow, to_come, moved, is_here)
    return server_cost(its.weights, work, slow, to_come, moved, stay)


@kernel
def width_cost_of(
    plan: Plan, sheet: Sheet, its: CompassMemory, index: int, place: int, wanted: int, taken: int
) -> float:
    """`Compass._width_cost`."""
    width = place % plan.widths
    batch = batch_ns(plan, index, key_of(plan, sheet, width), taken) / its.unit_ns
    load = load_ns(plan, sheet, index, width) / its.unit_ns
    steps = (width - wanted) * (4.0 / Priced(plan, its.priced_at, sheet.service_class).widths)
    if its.hidden:
        at = its.inputs_at + SETTING + SERVER * plan.servers + WIDTH * place
        write_width(reals(plan), at, batch, load, steps, width / max(1, plan.widths - 1))
    joules = reals(plan)[its.joules_at + (index * plan.segments + sheet.segment) * plan.widths + width]
    return width_cost(its.weights, batch, load, abs(steps)) + joules


@kernel
def add_products(row: Reals, to: int, inputs_at: int, inputs: int, weights_at: int, columns: int) -> None:
    """The sums at `to`, and after them product by product: so many inputs on a layer with so many columns."""
    for k in range(inputs):
        for column in range(columns):
            row[to + column] += row[inputs_at + k] * row[weights_at + k * columns + column]


@kernel
def correct(plan: Plan, its: CompassMemory) -> None:
    """`Compass._corrected`: costs become what is least for the candidate that is preferred."""
    row, hidden, widths = reals(plan), its.hidden, plan.widths
    of_setting = its.network_at + hidden
    of_server = of_setting + SETTING * hidden
    of_width = of_server + SERVER * hidden
    last = of_width + WIDTH * hidden
    servers_at = its.inputs_at + SETTING
    widths_at = servers_at + SERVER * plan.servers
    of_all, of_one, of_it = its.sums_at, its.sums_at + hidden, its.sums_at + 2 * hidden
    least = row[its.costs_at + its.best]
    for n in range(hidden):
        row[of_all + n] = row[its.network_at + n]
    add_products(row, of_all, its.inputs_at, SETTING, of_setting, hidden)
    for place in range(plan.servers * widths):
        if place % widths == 0:
            for n in range(hidden):
                row[of_one + n] = row[of_all + n]
            add_products(row, of_one, servers_at + SERVER * (place // widths), SERVER, of_server, hidden)
        if row[its.costs_at + place] == inf:
            continue
        for n in range(hidden):
            row[of_it + n] = row[of_one + n]
        add_products(row, of_it, widths_at + WIDTH * place, WIDTH, of_width, hidden)
        score, dearer = 0.0, reluctance(row[its.costs_at + place], least)
        for n in range(hidden):
            score += max(row[of_it + n], 0.0) * row[last + n]
        row[its.reluctance_at + place] = dearer
        row[its.costs_at + place] = its.sharpness * dearer - score


@kernel
def find_best(plan: Plan, sheet: Sheet, its: CompassMemory) -> None:
    """The first of the cheapest."""
    its.best = 0
    for place in range(1, looked(plan, sheet) * plan.widths):
        if reals(plan)[its.costs_at + place] < reals(plan)[its.costs_at + its.best]:
            its.best = place


@kernel
def weigh(plan: Plan, sheet: Sheet) -> None:
    """What each candidate costs, and which is the best."""
    its = CompassMemory(plan, plan.memory_at)
    inside = sheet.fifo_length + sheet.outstanding
    passed = (sheet.now_ns - its.seen_ns) / its.unit_ns
    follow_rates(its, sheet.completed + inside, passed, its.share)
    its.seen_ns = sheet.now_ns
    rung = rung_for(plan, sheet, its, inside)
    tuple_at = Priced(plan, its.priced_at, sheet.service_class).rungs_at + rung * plan.segments
    taken, place = min(largest_group(plan), sheet.candidates), 0
    for at in range(looked(plan, sheet)):
        index = looked_at(sheet, at)
        seen, watched = seen_at(sheet, index), Watched(its, _MEMORY, index)
        work = seen.work_ns / its.unit_ns
        follow_server(watched, work, (sheet.now_ns - watched.seen_ns) / its.unit_ns, is_up(sheet, index))
        watched.seen_ns = sheet.now_ns
        wanted = held(seen.holds, ints(plan)[tuple_at + sheet.segment]) if seen.code else 0
        base = server_cost_of(plan, sheet, its, index, at, work) if seen.code else inf
        for width in range(plan.widths):
            reals(plan)[its.costs_at + place] = inf
            if seen.code and seen.holds >> width & 1:
                cost = base + width_cost_of(plan, sheet, its, index, place, wanted, taken)
                reals(plan)[its.costs_at + place] = cost
            place += 1
    find_best(plan, sheet, its)
    if its.hidden:
        for rest in range(place, plan.servers * plan.widths):
            reals(plan)[its.costs_at + rest] = inf
        correct(plan, its)
        find_best(plan, sheet, its)


@kernel
def settle(plan: Plan, sheet: Sheet, place: int) -> None:
    """Choose a candidate."""
    its = CompassMemory(plan, plan.memory_at)
    plan.server, plan.width = looked_at(sheet, place // plan.widths), place % plan.widths
    plan.group = largest_group(plan)
    taken, key = min(plan.group, sheet.candidates), key_of(plan, sheet, plan.width)
    added = taken * (image_ns(plan, plan.server, key) / its.unit_ns)
    after, left = Watched(its, _MEMORY, plan.server), (plan.segments - 1 - sheet.segment) / plan.segments
    after.work += added
    if sheet.location >= 0:
        before = Watched(its, _MEMORY, sheet.location)
        before.coming = max(0.0, before.coming - taken * (left + 1 / plan.segments))
    after.coming += taken * left


@kernel
def take_bearing(plan: Plan, sheet: Sheet) -> None:
    """`Compass.choose`."""
    weigh(plan, sheet)
    settle(plan, sheet, CompassMemory(plan, plan.memory_at).best)
