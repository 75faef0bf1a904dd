"""A cluster's run in compiled code, its router included if that is a plan (`policies.compiled`)."""

from __future__ import annotations

from kit.jit import Ints, entry, ints, kernel, reals
from policies.compiled.layout import ANYWHERE, OUTSIDE, Plan, Sheet
from policies.compiled.rows import seen_at
from policies.compiled.rules import choose
from sim.compiled.agenda import advance, decide
from sim.compiled.codes import ASKED, NONE
from sim.compiled.layout import Cluster, Parameters, Server
from sim.compiled.observation import code_of
from sim.compiled.rows import block_at, key_at, knobs_of, observed_at, place_of, request_at, server_at, tally_at

NEEDS_DRAWS, NEEDS_PLAN = range(100, 102)


@kernel
def write_sheet(c: Cluster, p: Parameters, plan: Plan, sheet: Sheet) -> None:
    """Write a router's view of the pending decision."""
    request = request_at(c, p, c.slot)
    its_place = place_of(p, request)
    sheet.now_ns, sheet.segment, sheet.previous_width = c.now_ns, request.segment, request.previous_width
    sheet.location = ANYWHERE if p.anywhere else request.location
    sheet.candidates, sheet.entered_ns = c.candidates, request.entered_ns
    sheet.fifo_length, sheet.completed, sheet.hold_left_ns = c.fifo_length, c.completed, c.hold_left_ns
    tally = tally_at(c, p, request.service_class)
    sheet.accuracy_sum, sheet.late, sheet.goal_floor = tally.accuracy_sum, tally.late, tally.floor
    sheet.goal_limit_ns, sheet.goal_energy_weight = tally.limit_ns, tally.energy_weight
    sheet.service_class, sheet.others_completed = request.service_class, c.completed - tally.completed
    sheet.outstanding, sheet.up = c.in_flight - c.fifo_length, ints(c)[p.up_at + its_place]
    sheet.samples = 0 if plan.sees_all else c.looked
    for place in range(sheet.samples if sheet.samples else p.servers):
        index = place
        if sheet.samples:
            index = ints(sheet)[sheet.samples_at + place] = ints(c)[p.looked_at + place]
        server, seen = server_at(c, p, index), seen_at(sheet, index)
        seen.code = code_of(c, p, index, its_place)
        seen.holds = ints(p)[knobs_of(p, server).codes_at + its_place]
        seen.requests, seen.blocks = server.requests, server.blocks
        seen.utilization, seen.power_w = observed_at(c, p, index).utilization, reals(c)[p.powers_at + index]
        seen.work_ns = work_ns(c, p, plan, server) if plan.image_ns_at else 0


@kernel
def work_ns(c: Cluster, p: Parameters, plan: Plan, server: Server) -> int:
    """Return the expected time of outstanding work at a server, summed over its blocks or its keys, whichever are
    fewer."""
    work, costs_at = 0, plan.image_ns_at + ints(plan)[plan.devices_at + server.index] * plan.keys
    if server.blocks > p.keys:
        for key in range(p.keys):
            work += key_at(p, server, key).outstanding * ints(plan)[costs_at + key]
        return work
    number = server.first_block
    while number != NONE:
        block = block_at(c, p, number)
        work += (block.count - block.ended) * ints(plan)[costs_at + block.key]
        number = block.next
    return work


@entry
def run_cluster(row: Ints, parameters: Ints, plan: Ints, sheet: Ints, server: int, width: int, group: int) -> int:
    """Run a cluster to its end, to a decision that is not the plan's, or until something must grow or be made.

    It begins with its first instant, with the pending decision, or with the answer to it (`server` is NONE for none).
    """
    c, p, its, seen = Cluster(row), Parameters(parameters), Plan(plan), Sheet(sheet)
    if server != NONE:
        decide(c, p, server, width, group)
    while True:
        if c.asked == 0:
            status = advance(c, p)
            if status != ASKED:
                return status
        if its.width_rule.rule == OUTSIDE:
            return ASKED
        c.credits = 0
        if its.draw + its.most_draws > its.draws:
            return NEEDS_DRAWS
        write_sheet(c, p, its, seen)
        if c.now_ns >= its.wake_ns:
            return NEEDS_PLAN
        choose(its, seen)
        decide(c, p, its.server, its.width, its.group)
