"""The loop of the compiled engine: the next events, until a decision is pending or the run is over.

At one instant: arrivals, then server by server the events of `layout` in its order, then the operator's next goal, the
work of the router's host (its decision before its received messages), and last the start of the next decision, when
nothing is left at the instant (`sim.agenda`). Every slot has its next time, so no event is stale.
"""

from __future__ import annotations

from kit.jit import Ints, ints, ints_at, kernel, reals_at
from policies.compiled.layout import HOLD
from sim.compiled.chance import hashed_below
from sim.compiled.codes import (
    ASKED,
    BLOCKS_FULL,
    ENDED,
    FIRST_DRAW,
    INSTANCES_FULL,
    MESSAGES_FULL,
    NEVER,
    NONE,
    RECORDS_FULL,
    REQUESTS_FULL,
)
from sim.compiled.faults import next_fault, return_to_service
from sim.compiled.greedy import (
    begin_next,
    finish,
    finish_load,
    finish_unload,
    hand_over,
    next_telemetry,
    sample,
    schedule,
    take_block_in,
)
from sim.compiled.holds import end_due_holds
from sim.compiled.host import arrive_at_host, begin_decision, hear_next
from sim.compiled.layout import Cluster, Device, Parameters, Server
from sim.compiled.ledger import record_rest
from sim.compiled.physics import advance_device, rerate
from sim.compiled.router import (
    arrive,
    ask,
    ask_ns,
    end_transfer,
    hold_back,
    may_send,
    plan_arrival,
    plan_goal,
    send_block,
    set_goal,
)
from sim.compiled.rows import block_at, device_at, model_of, reschedule, server_at, soonest_ns, soonest_server


@kernel
def _set_off(c: Cluster, p: Parameters) -> None:
    """Process the first instant: servers come up, sensors are read, devices start their slowdown
    (`Simulation._set_off`)."""
    for index in range(p.servers):
        server = server_at(c, p, index)
        return_to_service(c, p, server, 0)
        sample(c, p, server, 0)
        reschedule(c, p, server)
    for index in range(p.devices):
        _start_slowdown(c, p, device_at(c, p, index))
    plan_arrival(c)
    plan_goal(c)


@kernel
def advance(c: Cluster, p: Parameters) -> int:
    """Run to the next decision (ASKED), to the end (ENDED), or until a pool or a list of records must grow."""
    if c.is_set_off == 0:
        c.is_set_off = 1
        _set_off(c, p)
    while c.status == 0:
        now = c.now_ns
        due = min(min(min(c.arrival_ns, c.arrivals_end_ns), soonest_ns(c, p)), min(c.decision_end_ns, c.hear_ns))
        due = min(due, c.goal_ns)
        wake = ask_ns(c, p)
        if wake <= now and due > now:
            if ask(c, p, now):
                return ASKED
        elif _is_over(c, p, min(due, wake)):
            _end(c, p)
            return ENDED
        elif wake < due:
            c.now_ns = wake
        else:
            problem = _lacks(c, p)
            if problem:
                return problem
            c.now_ns = due
            _step(c, p, due)
    return c.status


@kernel
def _lacks(c: Cluster, p: Parameters) -> int:
    """Return what must grow before the next event, whatever it is."""
    if c.free_requests == 0 and c.arrival_ns != NEVER:
        return REQUESTS_FULL
    if c.free_blocks == 0 and c.decision_end_ns != NEVER:
        return BLOCKS_FULL
    if c.free_instances < p.margin:
        return INSTANCES_FULL
    if c.free_messages < p.widths + 4:
        return MESSAGES_FULL
    if c.detail:
        blocks = c.block_rows + p.blocks >= c.block_rows_room
        readings = c.reading_rows >= c.reading_rows_room or c.variances >= c.variances_room
        if blocks or readings or c.batch_rows >= c.batch_rows_room:
            return RECORDS_FULL
    return 0


@kernel
def decide(c: Cluster, p: Parameters, server: int, width: int, group: int) -> None:
    """Answer the pending decision; it takes effect when policy and host have finished it (or see `HOLD`)."""
    c.asked = 0
    if server == HOLD:
        c.hold_requests, c.hold_wait_ns = width, group
        c.decision_end_ns = begin_decision(c, p, 0, 0)
        return
    c.hold_requests, c.server, c.width, c.group = 0, server, width, group
    c.decision_end_ns = begin_decision(c, p, server, min(group, c.candidates))


@kernel
def decide_to_hold(c: Cluster, p: Parameters, groups: Ints, wait_ns: int) -> None:
    """Apply the answer of a policy that chooses a wait (`Waits.hold`)."""
    size = 0
    while groups[size] <= c.candidates:
        size += 1
    decide(c, p, HOLD, groups[size], min(wait_ns, c.hold_left_ns))


@kernel
def _step(c: Cluster, p: Parameters, now: int) -> None:
    """Process the next event at this instant."""
    if c.arrival_ns == now:
        arrive(c, p, now)
    elif soonest_ns(c, p) == now:
        server = server_at(c, p, soonest_server(c, p))
        _happen(c, p, server, now)
        _rerate_touched(c, p, server, now)
        reschedule(c, p, server)
    elif c.goal_ns == now:
        set_goal(c, p)
    elif c.arrivals_end_ns == now:
        c.arrivals_end_ns = NEVER
        c.may_hold = 0
        end_due_holds(c, p, NEVER, now)
    elif c.decision_end_ns == now:
        _end_decision(c, p, now)
    else:
        hear_next(c, p, now)


@kernel
def _end_decision(c: Cluster, p: Parameters, now: int) -> None:
    """Finish a decision at the router's host and policy."""
    c.decision_end_ns = NEVER
    if c.hold_requests:
        hold_back(c, p, now)
    elif may_send(c, p):
        number = send_block(c, p, now)
        server = server_at(c, p, c.server)
        if block_at(c, p, number).moves == 0:
            hand_over(c, p, server, number, now)
            _rerate_touched(c, p, server, now)
        reschedule(c, p, server)


@kernel
def _happen(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Process a server's next event, in the order of kinds."""
    times = server.times
    if times.transfer == now:
        number = end_transfer(c, p, server, now)
        if number != NONE:
            hand_over(c, p, server, number, now)
    elif times.block == now:
        take_block_in(c, p, server, now)
    elif times.start == now:
        begin_next(c, p, server, now)
    elif times.end == now:
        finish(c, p, server, now)
    elif times.load == now:
        finish_load(c, p, server, now)
    elif times.unload == now:
        finish_unload(c, p, server, now)
    elif times.timer == now:
        schedule(c, p, server, now)
    elif times.telemetry == now:
        next_telemetry(c, p, server, now)
    elif times.message == now:
        arrive_at_host(c, p, server, now)
    elif times.fault == now:
        next_fault(c, p, server, now)
    else:
        _change_slowdown(c, p, device_at(c, p, server.device), server, now)


@kernel
def _rerate_touched(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    device = device_at(c, p, server.device)
    if device.is_touched:
        rerate(c, p, device, now)


# ------------------------------------------------------------------------------------------------------------ slowdown


@kernel
def _start_slowdown(c: Cluster, p: Parameters, device: Device) -> None:
    """Change the device's speed by its record or its profile (`SharedDevice.start_slowdown`)."""
    model = model_of(p, device)
    if model.server_count == 0:
        return
    server = server_at(c, p, ints(p)[model.servers_at])
    if device.changes_at != 0:
        if device.changes > 0:
            server.times.slowdown = ints_at(device.changes_at)[0]
            reschedule(c, p, server)
    elif model.has_slowdown:
        drawn = hashed_below(device.slowdown_salt, FIRST_DRAW, FIRST_DRAW, model.full_sum_ns + model.slow_sum_ns)
        device.is_slow = 1 if drawn >= model.slow_sum_ns else 0  # the change that follows inverts it
        _change_slowdown(c, p, device, server, 0)
        reschedule(c, p, server)


@kernel
def _change_slowdown(c: Cluster, p: Parameters, device: Device, server: Server, now: int) -> None:
    model = model_of(p, device)
    advance_device(c, p, device, now)
    if device.changes_at != 0:
        changes, at = ints_at(device.changes_at), device.change
        device.slowdown = reals_at(device.changes_at)[2 * at + 1] / model.mean_slowdown
        device.change = at + 1
        server.times.slowdown = changes[2 * at + 2] if at + 1 < device.changes else NEVER
    else:
        is_slow = 1 - device.is_slow
        device.slowdown = model.slow_factor if is_slow else 1.0
        durations = model.slow_at if is_slow else model.full_at
        count = model.slow_count if is_slow else model.full_count
        drawn = hashed_below(device.slowdown_salt, is_slow, device.slowdown_number, count)
        device.is_slow = is_slow
        device.slowdown_number += 1
        server.times.slowdown = now + ints(p)[durations + drawn]
    rerate(c, p, device, now)


# ------------------------------------------------------------------------------------------------------------- the end


@kernel
def _is_over(c: Cluster, p: Parameters, due: int) -> bool:
    """Compute `Simulation._is_over`."""
    if due <= c.horizon_ns:
        return False
    if not c.drains:
        return True
    is_drained = c.arrived == c.arrival_count and c.in_flight == 0
    return is_drained or c.gone == p.servers or due > c.horizon_ns + c.limit_ns


@kernel
def _end(c: Cluster, p: Parameters) -> None:
    """End the run: under `drain` at the horizon or the last completion (or failure), whichever is later."""
    ended = c.horizon_ns
    if c.drains:
        is_done = c.in_flight == 0 or c.gone == p.servers
        ended = max(ended, c.now_ns) if is_done else ended + c.limit_ns
    c.ended_ns = ended
    c.status = ENDED
    if c.keeps:
        record_rest(c, p, ints_at(c.scratch_at), ended)
