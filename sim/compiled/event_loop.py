"""The loop of the compiled engine: the next events, faults among them, until a decision is pending or the run is over.

Faults: planned faults are injected, and failed servers come back by their supervision (`sim.faults`).

Order at one instant (`sim.event_queue`): arrivals, then server by server the events of `row_layout.Times` in its order,
then the operator's next goal, the work of the router's host (its decision before its received messages), and last the
start of the next decision, when nothing is left at the instant. Every slot stores its next time, so no event is stale.

`run_cluster` runs a cluster whose router is a plan (`policies.compiled`), decisions included.
"""

from __future__ import annotations

from kit.jit import Ints, entry, ints, ints_at, kernel, reals, reals_at
from policies.compiled.plan_layout import ANYWHERE, BATCHING_DELAY, OUTSIDE, ObservationRecord, Plan, seen_at
from policies.compiled.rule_kernels import choose
from policies.faults import Crash, Fault, Hang, Outage, Poison, Slowness, Squeeze
from sim.compiled.device_kernels import advance_device, freeze, rerate, straggle
from sim.compiled.greedy_kernels import (
    begin_next,
    come_up,
    finish,
    finish_load,
    finish_unload,
    go_down,
    hand_over,
    next_telemetry,
    sample,
    schedule,
    take_micro_batch_in,
)
from sim.compiled.host_kernels import arrive_at_host, begin_decision, hear_next
from sim.compiled.queue_kernels import end_due_batching_delays
from sim.compiled.router_kernels import (
    arrive,
    ask,
    ask_ns,
    end_transfer,
    fail_transfers,
    hold_back,
    may_send,
    plan_arrival,
    plan_goal,
    send_micro_batch,
    set_goal,
)
from sim.compiled.row_access import (
    code_of,
    device_at,
    fault_at,
    hashed_below,
    key_at,
    micro_batch_at,
    model_of,
    observed_at,
    params_of,
    path_key,
    place_of,
    record_rest,
    request_at,
    reschedule,
    server_at,
    soonest_ns,
    soonest_server,
    stats_at,
)
from sim.compiled.row_layout import (
    ASKED,
    DIED,
    ENDED,
    FIRST_DRAW,
    HUNG,
    INSTANCES_FULL,
    MESSAGES_FULL,
    MICRO_BATCHES_FULL,
    NEVER,
    NONE,
    OUT,
    RECORDS_FULL,
    REQUESTS_FULL,
    Cluster,
    Device,
    DowntimeRow,
    Parameters,
    PlannedFault,
    Server,
)

# --------------------------------------------------------------------------------------------------------------- faults


Step = tuple[int, int, int, int, int, float]

ENDS, BEGINS = range(2)  # at one instant ends come first
TAKE_OUT, COME_UP, STRAGGLE, SQUEEZE, CRASH, HANG, NOTICE_HANG = range(7)  # the actions of a step
_FAULT = PlannedFault.size


def steps(fault: Fault) -> list[Step]:
    """Return a fault's steps: (when, server, order, action, argument, factor), as in `FaultDriver.plan`."""
    match fault:
        case Outage(server, start_ns, end_ns):
            out = [(start_ns, server, BEGINS, TAKE_OUT, NEVER if end_ns is None else end_ns, 0.0)]
            return out if end_ns is None else [*out, (end_ns, server, ENDS, COME_UP, 0, 0.0)]
        case Slowness(server, start_ns, end_ns, factor):
            return [(start_ns, server, BEGINS, STRAGGLE, 0, factor), (end_ns, server, ENDS, STRAGGLE, 0, 1.0)]
        case Squeeze(server, start_ns, end_ns, batch):
            return [(start_ns, server, BEGINS, SQUEEZE, batch, 0.0), (end_ns, server, ENDS, SQUEEZE, NONE, 0.0)]
        case Crash(server, at_ns):
            return [(at_ns, server, BEGINS, CRASH, 0, 0.0)]
        case Hang(server, at_ns):
            return [(at_ns, server, BEGINS, HANG, 0, 0.0)]
        case Poison():
            return []


@kernel
def plan_fault(
    c: Cluster, p: Parameters, server: Server, due_ns: int, order: int, action: int, argument: int, factor: float
) -> None:
    """Add one more fault to the list."""
    fault = fault_at(c, p, c.faults)
    fault.due_ns, fault.server = due_ns, server.index
    fault.order, fault.number = order, c.fault_number
    fault.action, fault.argument = action, argument
    fault.factor = factor
    c.faults += 1
    c.fault_number += 1
    server.times.fault = min(server.times.fault, due_ns)
    reschedule(c, p, server)


@entry
def plan_cluster_fault(
    row: Ints, parameters: Ints, due_ns: int, server: int, order: int, action: int, argument: int, factor: float
) -> None:
    """Add a fault to a cluster's list."""
    c, p = Cluster(row), Parameters(parameters)
    plan_fault(c, p, server_at(c, p, server), due_ns, order, action, argument, factor)


@kernel
def next_fault(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Inject the server's next fault: ends before beginnings, earlier planned ones before later ones."""
    best, soonest = NONE, NEVER
    for n in range(c.faults):
        fault = fault_at(c, p, n)
        if fault.server != server.index or fault.due_ns != now:
            continue
        if best == NONE or _is_before(fault, fault_at(c, p, best)):
            best = n
    fault = fault_at(c, p, best)
    action, argument = fault.action, fault.argument
    factor = fault.factor
    c.faults -= 1
    freed, last = ints(fault), ints(fault_at(c, p, c.faults))
    for field in range(_FAULT):
        freed[field] = last[field]
    for n in range(c.faults):
        fault = fault_at(c, p, n)
        if fault.server == server.index:
            soonest = min(soonest, fault.due_ns)
    server.times.fault = soonest
    _fault_happens(c, p, server, action, argument, factor, now)


@kernel
def _is_before(fault: PlannedFault, other: PlannedFault) -> bool:
    if fault.order != other.order:
        return fault.order < other.order
    return fault.number < other.number


@kernel
def _fault_happens(
    c: Cluster, p: Parameters, server: Server, action: int, argument: int, factor: float, now: int
) -> None:
    if action == TAKE_OUT:
        _take_out(c, p, server, argument, now)
    elif action == COME_UP:
        return_to_service(c, p, server, now)
    elif action == STRAGGLE:
        straggle(c, p, server, factor, now)
    elif action == SQUEEZE:
        server.room_images = argument
    elif action == CRASH:
        _crash(c, p, server, DIED, now)
    elif action == HANG:
        _hang(c, p, server, now)
    elif server.incarnation == argument:
        _crash(c, p, server, HUNG, now)


@kernel
def _hang(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    if server.is_up:
        server.is_hung = 1
        server.times.timer = NEVER
        freeze(c, p, server, now)
        plan_fault(c, p, server, now + p.hang_ns, BEGINS, NOTICE_HANG, server.incarnation, 0.0)


@kernel
def return_to_service(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Bring a server up unless it is up, in a planned outage, or its new process isn't ready
    (`FaultDriver.come_up`)."""
    if server.is_up or now < max(server.out_until_ns, server.ready_ns):
        return
    if server.downtime != NONE:
        out = DowntimeRow(c.downtimes_at, 0, server.downtime)
        out.up_ns = now
        server.downtime = NONE
    server.up_since_ns = now
    come_up(c, p, server, now)


@kernel
def _take_out(c: Cluster, p: Parameters, server: Server, until: int, now: int) -> None:
    if until == NEVER and server.out_until_ns != NEVER:
        c.gone += 1
    server.out_until_ns = max(server.out_until_ns, until)
    if server.is_up:
        _restart_at(c, p, server, now)
        _kill(c, p, server, OUT, now)


@kernel
def _kill(c: Cluster, p: Parameters, server: Server, reason: int, now: int) -> None:
    server.downtime = c.downtimes
    out = DowntimeRow(c.downtimes_at, 0, c.downtimes)
    out.server, out.down_ns = server.index, now
    out.up_ns, out.reason = NONE, reason
    c.downtimes += 1
    go_down(c, p, server, now)
    fail_transfers(c, p, server.index, now)


@kernel
def _crash(c: Cluster, p: Parameters, server: Server, reason: int, now: int) -> None:
    """Fail a server now; it is ready again after its back-off and the time to start a process."""
    if not server.is_up:
        return
    _kill(c, p, server, reason, now)
    ready = _restart_at(c, p, server, now) + p.start_ns
    server.ready_ns = ready
    plan_fault(c, p, server, ready, ENDS, COME_UP, 0, 0.0)


@kernel
def _restart_at(c: Cluster, p: Parameters, server: Server, now: int) -> int:
    """Compute `policies.faults.RestartPlan.restart_at_ns`."""
    if server.up_since_ns != NONE and now - server.up_since_ns >= p.stable_ns:
        server.deaths = 0
    server.up_since_ns = NONE
    doublings = min(server.deaths, 30)
    server.deaths += 1
    if p.backoff_ns > p.backoff_limit_ns >> doublings:  # in this form nothing overflows
        return now + p.backoff_limit_ns
    return now + (p.backoff_ns << doublings)


# ------------------------------------------------------------------------------------------------------------- the loop


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
    if c.free_micro_batches == 0 and c.decision_end_ns != NEVER:
        return MICRO_BATCHES_FULL
    if c.free_instances < p.margin:
        return INSTANCES_FULL
    if c.free_messages < 2 * p.widths + 6:
        return MESSAGES_FULL
    if c.detail:
        micro_batches = c.micro_batch_rows + p.micro_batches >= c.micro_batch_rows_room
        readings = c.reading_rows >= c.reading_rows_room or c.variances >= c.variances_room
        if micro_batches or readings or c.batch_rows >= c.batch_rows_room:
            return RECORDS_FULL
    return 0


@kernel
def decide(c: Cluster, p: Parameters, server: int, width: int, micro_batch_size: int) -> None:
    """Answer the pending decision; it takes effect when policy and host have finished it (or see `BATCHING_DELAY`)."""
    c.asked = 0
    if server == BATCHING_DELAY:
        c.batching_delay_requests, c.batching_delay_wait_ns = width, micro_batch_size
        c.decision_end_ns = begin_decision(c, p, 0, 0)
        return
    c.batching_delay_requests, c.server = 0, server
    c.width, c.micro_batch_size = width, micro_batch_size
    c.decision_end_ns = begin_decision(c, p, server, min(micro_batch_size, c.candidates))


@kernel
def decide_to_delay(c: Cluster, p: Parameters, micro_batch_sizes: Ints, wait_ns: int) -> None:
    """Apply the answer of a policy that chooses a wait (`Waits.batching_delay`)."""
    size = 0
    while micro_batch_sizes[size] <= c.candidates:
        size += 1
    decide(c, p, BATCHING_DELAY, micro_batch_sizes[size], min(wait_ns, c.batching_delay_left_ns))


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
        c.may_delay = 0
        end_due_batching_delays(c, p, NEVER, now)
    elif c.decision_end_ns == now:
        _end_decision(c, p, now)
    else:
        hear_next(c, p, now)


@kernel
def _end_decision(c: Cluster, p: Parameters, now: int) -> None:
    """Finish a decision at the router's host and policy."""
    c.decision_end_ns = NEVER
    if c.batching_delay_requests:
        hold_back(c, p, now)
    elif may_send(c, p):
        number = send_micro_batch(c, p, now)
        server = server_at(c, p, c.server)
        if micro_batch_at(c, p, number).moves == 0:
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
    elif times.micro_batch == now:
        take_micro_batch_in(c, p, server, now)
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
    """Change the device's speed by its record or its profile (`SharedDevice.followed_slowdown`)."""
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


# ---------------------------------------------------------------------------------------------- the decisions of a plan


NEEDS_DRAWS, NEEDS_PLAN = range(100, 102)


@kernel
def write_observation(c: Cluster, p: Parameters, plan: Plan, observation: ObservationRecord) -> None:
    """Write a router's view of the pending decision."""
    request = request_at(c, p, c.slot)
    place_number = place_of(p, request)
    observation.now_ns, observation.segment = c.now_ns, request.segment
    observation.previous_width = request.previous_width
    observation.location = ANYWHERE if p.anywhere else request.location
    observation.candidates, observation.entered_ns = c.candidates, request.entered_ns
    observation.fifo_length, observation.completed = c.fifo_length, c.completed
    observation.batching_delay_left_ns = c.batching_delay_left_ns
    stats = stats_at(c, p, request.service_class)
    observation.accuracy_sum, observation.late = stats.accuracy_sum, stats.late
    observation.goal_floor = stats.floor
    observation.goal_limit_ns, observation.goal_energy_weight = stats.limit_ns, stats.energy_weight
    observation.service_class, observation.others_completed = request.service_class, c.completed - stats.completed
    observation.outstanding, observation.up = c.in_flight - c.fifo_length, ints(c)[p.up_at + place_number]
    observation.samples = 0 if plan.sees_all else c.looked
    for position in range(observation.samples if observation.samples else p.servers):
        index = position
        if observation.samples:
            index = ints(observation)[observation.samples_at + position] = ints(c)[p.looked_at + position]
        server, view = server_at(c, p, index), seen_at(observation, index)
        view.code = code_of(c, p, index, place_number)
        view.fits = ints(p)[params_of(p, server).codes_at + place_number]
        view.requests, view.micro_batches = server.requests, server.micro_batches
        view.utilization, view.power_w = observed_at(c, p, index).utilization, reals(c)[p.powers_at + index]
        view.work_ns = work_ns(c, p, plan, server) if plan.image_ns_at else 0


@kernel
def work_ns(c: Cluster, p: Parameters, plan: Plan, server: Server) -> int:
    """Return the expected time of outstanding work at a server, summed over its micro-batches or its keys, whichever
    are fewer."""
    work, costs_at = 0, plan.image_ns_at + ints(plan)[plan.devices_at + server.index] * plan.keys
    if server.micro_batches > p.keys:
        for key in range(p.keys):
            work += key_at(p, server, key).outstanding * ints(plan)[costs_at + key]
        return work
    number = server.first_micro_batch
    while number != NONE:
        micro_batch = micro_batch_at(c, p, number)
        for step in range(1 + micro_batch.then):
            key = path_key(p, micro_batch, step)
            work += (micro_batch.count - micro_batch.ended) * ints(plan)[costs_at + key]
        number = micro_batch.next
    return work


@entry
def run_cluster(
    row: Ints, parameters: Ints, plan_row: Ints, view: Ints, server: int, width: int, micro_batch_size: int
) -> int:
    """Run a cluster to its end, to a decision that is not the plan's, or until something must grow or be made.

    It begins with its first instant, with the pending decision, or with the answer to it (`server` is NONE for none).
    """
    c, p = Cluster(row), Parameters(parameters)
    plan, observation = Plan(plan_row), ObservationRecord(view)
    if server != NONE:
        decide(c, p, server, width, micro_batch_size)
    while True:
        if c.asked == 0:
            status = advance(c, p)
            if status != ASKED:
                return status
        if plan.width_rule.rule == OUTSIDE:
            return ASKED
        c.credits = 0
        if plan.draw + plan.most_draws > plan.draws:
            return NEEDS_DRAWS
        write_observation(c, p, plan, observation)
        if c.now_ns >= plan.wake_ns:
            return NEEDS_PLAN
        choose(plan, observation)
        c.then = plan.then
        for step in range(plan.then):
            ints(c)[p.then_at + step] = ints(plan)[plan.then_at + step]
        decide(c, p, plan.server, plan.width, plan.micro_batch_size)
