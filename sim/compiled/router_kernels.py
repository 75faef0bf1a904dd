"""`policies.router_core`, compiled, with the links of `sim.host_and_network`: the FIFO, micro-batches, and returned
requests."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, expm1, log

import numpy as np

from kit.jit import Ints, bytes_at, ints, ints_at, kernel, kernel_of, reals, reals_at
from policies import router_queue
from policies.router_queue import SALT, TRIES
from sim.compiled.device_kernels import do_cpu_work, free_ns
from sim.compiled.queue_kernels import (
    batch_queue_of,
    begin_batching_delay,
    credit_batching_delays,
    credit_given_up,
    delay_late_comers,
    end_due_batching_delays,
    is_oldest,
    join,
    may_delay_ns,
    note_arrival,
    push,
    remove,
    take,
    take_along,
    waiting_with,
)
from sim.compiled.row_access import (
    batch_queue_at,
    close_micro_batch,
    code_of,
    collect_in_flight,
    count_requests,
    device_at,
    energy_j,
    hashed_below,
    hashed_share,
    key_at,
    member_at,
    micro_batch_at,
    model_at,
    move_at,
    note_loss,
    note_return,
    params_of,
    path_key,
    place_of,
    record_request,
    request_at,
    reschedule,
    server_at,
    sort_by_id,
    stats_at,
)
from sim.compiled.row_layout import (
    ALONE,
    COMPLETED,
    DEADLINE,
    DRAWN,
    FAILED,
    NEVER,
    NO_REASON,
    NO_ROOM,
    NO_TUPLE,
    NONE,
    SERVER_LOST,
    ClassStats,
    Cluster,
    Goal,
    Medium,
    Message,
    MicroBatch,
    Parameters,
    Request,
    Room,
    Server,
    ServerParams,
    Trace,
)
from sim.host_and_network import PACKET_BYTES

_PACKET = PACKET_BYTES
_NS = 1_000_000_000
_SALT, _TRIES = SALT, TRIES
_REQUEST = Request.size

has_room: Callable[[Room, int, float], bool] = kernel_of(router_queue.has_room)
note_end: Callable[[Room, int, bool], None] = kernel_of(router_queue.note_end)

# ----------------------------------------------------------------------------------------------------------- arrivals


@kernel
def arrive(c: Cluster, p: Parameters, now: int) -> None:
    """Admit the next image (`RouterCore._admit`)."""
    slot = c.free_request
    request = request_at(c, p, slot)
    c.free_request = request.next
    c.free_requests -= 1
    request.id = c.arrived
    request.arrived_ns, request.arrived_j = now, energy_j(c, p, now)
    request.service_class = ints_at(c.classes_at)[c.arrived]
    deadline_ns = ints_at(c.deadlines_at)[request.service_class]
    request.deadline_ns = now + deadline_ns if deadline_ns != NONE else NEVER
    if c.keeps:
        trace = Trace(request, _REQUEST)
        trace.length = trace.lost_ns = trace.stages = 0
        trace.since_ns = now
    c.arrived += 1
    plan_arrival(c)
    c.in_flight += 1
    if not has_room(c.room, c.in_flight - 1, stats_at(c, p, request.service_class).rank):
        c.failed += 1
        record_request(c, p, request, FAILED, NO_ROOM, 0, 0, now)
        release(c, p, slot)
        return
    request.segment = request.previous_width = request.code = request.retries = 0
    request.location, request.incarnation = NONE, 0
    request.delayed_ns, request.batching_delays = 0, 0
    note_arrival(c.arrivals, now)
    enter(c, p, slot, now)


@kernel
def plan_arrival(c: Cluster) -> None:
    """Plan the next arrival."""
    more = c.arrived < c.arrival_count
    c.arrival_ns = ints_at(c.arrivals_at)[c.arrived] if more else NEVER


@kernel
def enter(c: Cluster, p: Parameters, slot: int, now: int) -> None:
    """Append a request to the FIFO."""
    request = request_at(c, p, slot)
    request.entered_ns, request.entered_j = now, energy_j(c, p, now)
    request.micro_batch = NONE
    push(c, p, slot)
    join(c, p, slot, now)


@kernel
def release(c: Cluster, p: Parameters, slot: int) -> None:
    """Free the slot of a request that has ended."""
    request = request_at(c, p, slot)
    request.id = NONE
    request.next = c.free_request
    c.free_request = slot
    c.free_requests += 1
    c.in_flight -= 1


@kernel
def set_goal(c: Cluster, p: Parameters) -> None:
    """Set the operator's next goal (`RouterCore._set_goal`), and the time of the one after it."""
    goal = Goal(c.goals_at, 0, c.goal)
    stats = stats_at(c, p, goal.service_class)
    stats.floor, stats.limit_ns = goal.floor, goal.limit_ns
    stats.energy_weight = goal.energy_weight
    _set_room(c, p)
    c.goal += 1
    plan_goal(c)


@kernel
def _set_room(c: Cluster, p: Parameters) -> None:
    """Run `RouterCore._set_room`."""
    limit_ns = NEVER
    for number in range(p.classes):
        stats, better = stats_at(c, p, number), 0
        if stats.limit_ns > 0:
            limit_ns = min(limit_ns, stats.limit_ns)
        for other in range(p.classes):
            if stats_at(c, p, other).floor > stats.floor:
                better += 1
        stats.rank = better / max(1, p.classes - 1)
    c.room.images = p.sustained_img_s * limit_ns / _NS if limit_ns < NEVER else 0.0


@kernel
def plan_goal(c: Cluster) -> None:
    """Plan the next goal."""
    c.goal_ns = Goal(c.goals_at, 0, c.goal).from_ns if c.goal < c.goals else NEVER


@kernel
def limit_ns(c: Cluster, stats: ClassStats) -> int:
    """Compute `RouterCore._limit_ns_of`."""
    return stats.limit_ns if c.own_limit_ns == NONE else c.own_limit_ns


# ---------------------------------------------------------------------------------------------------------- decisions


@kernel
def ask_ns(c: Cluster, p: Parameters) -> int:
    """Return when a decision may be asked for; NEVER while none is possible (`RouterCore.next_wake_ns`)."""
    if c.slot != NONE or c.fifo_head == NONE:
        return NEVER
    if not c.at_cap and c.delayed < c.fifo_length:
        return max(c.now_ns, c.host_free_ns)
    wake = c.next_batching_delay_ns
    if c.at_cap and p.sheds:
        wake = min(wake, request_at(c, p, c.fifo_head).deadline_ns)
    return max(max(c.now_ns, wake), c.host_free_ns)


@kernel
def ask(c: Cluster, p: Parameters, now: int) -> bool:
    """Ask for a decision if a request is waiting and a server can take a micro-batch (`RouterCore._ask`)."""
    if c.next_batching_delay_ns <= now:
        end_due_batching_delays(c, p, now, now)
    if p.sheds:
        _shed(c, p, now)
    slot = _oldest_servable(c, p)
    if slot == NONE:
        if c.fifo_head != NONE:
            c.at_cap = c.delayed < c.fifo_length
        return False
    c.in_batch_queue = waiting_with(c, p, slot)
    candidates = min(c.in_batch_queue, p.micro_batch_size)
    request = request_at(c, p, slot)
    c.slot, c.candidates = slot, candidates
    c.batching_delay_left_ns = may_delay_ns(c, p, slot, candidates, now)
    c.batch_queue, c.is_alone = batch_queue_of(c, p, request), request.batch_queue == ALONE
    if c.faulty:
        c.removals_seen = c.removals
        for n in range(candidates):
            ints(c)[p.candidates_at + n] = request_at(c, p, slot).id
            slot = request_at(c, p, slot).next
    c.decision += 1
    c.snapshot_ns = now
    c.asked = 1
    if 0 < p.samples < p.servers:
        _sample_servers(c, p, request)
    return True


@kernel
def _sample_servers(c: Cluster, p: Parameters, request: Request) -> None:
    """Run `policies.router_queue.sampled_servers`; `looked` is 0 if all are examined."""
    location, count = NONE if p.anywhere else request.location, 0
    any_can = False
    if location != NONE:
        ints(c)[p.looked_at], count = location, 1
        any_can = code_of(c, p, location, place_of(p, request)) != 0
    for n in range(min(c.freed, p.samples)):
        if count > p.samples // 2:
            break
        index = ints(c)[p.freed_at + (c.freed - 1 - n) % p.samples]
        if _joins_sample(c, p, request, count, index):
            count, any_can = count + 1, True
    for draw in range(_TRIES * p.samples):
        if count == p.samples:
            break
        if _joins_sample(c, p, request, count, hashed_below(_SALT, c.decision, draw, p.servers)):
            count, any_can = count + 1, True
    c.looked = count if any_can else 0


@kernel
def _joins_sample(c: Cluster, p: Parameters, request: Request, count: int, index: int) -> bool:
    """Add a server to the sample, if it can take the micro-batch and is not in it; returns whether it was added."""
    if code_of(c, p, index, place_of(p, request)) == 0:
        return False
    for n in range(count):
        if ints(c)[p.looked_at + n] == index:
            return False
    ints(c)[p.looked_at + count] = index
    return True


@kernel
def _shed(c: Cluster, p: Parameters, now: int) -> None:
    """Give up the requests at the FIFO's head whose deadline has passed."""
    while c.fifo_head != NONE:
        slot = c.fifo_head
        if request_at(c, p, slot).deadline_ns > now:
            return
        take(c, p, slot)
        _give_up(c, p, slot, DEADLINE, now)


@kernel
def _oldest_servable(c: Cluster, p: Parameters) -> int:
    """Return the oldest request of the oldest batch queue that some server can take a micro-batch of."""
    if c.free_servers == 0:
        return NONE
    slot = c.fifo_head
    while slot != NONE:
        request = request_at(c, p, slot)
        if ints(c)[p.valid_at + place_of(p, request)] > 0 and is_oldest(c, p, slot) and not _is_held(c, p, request):
            return slot
        slot = request.fifo_next
    return NONE


@kernel
def _is_held(c: Cluster, p: Parameters, request: Request) -> bool:
    return c.delayed > 0 and request.batch_queue != ALONE and batch_queue_at(c, p, request.batch_queue).is_held == 1


@kernel
def _oldest_asked(c: Cluster, p: Parameters) -> int:
    """Return the oldest request of the decision's batch queue, if the candidates are still its oldest; otherwise
    NONE."""
    if not c.faulty or c.removals == c.removals_seen:
        return c.slot
    first = c.slot
    if c.is_alone:
        request = request_at(c, p, first)
        waits = request.id == ints(c)[p.candidates_at] and request.micro_batch == NONE and request.batch_queue == ALONE
        return first if waits and batch_queue_of(c, p, request) == c.batch_queue else NONE
    batch_queue = batch_queue_at(c, p, c.batch_queue)
    if batch_queue.count < c.candidates:
        return NONE
    first = batch_queue.head
    slot = first
    for n in range(c.candidates):
        if request_at(c, p, slot).id != ints(c)[p.candidates_at + n]:
            return NONE
        slot = request_at(c, p, slot).next
    return first


@kernel
def may_send(c: Cluster, p: Parameters) -> bool:
    """End the decision; returns whether its micro-batch can be sent. (Its server may have failed, or its requests are
    gone.)"""
    slot = _oldest_asked(c, p)
    if server_at(c, p, c.server).is_up and slot != NONE:
        c.slot = slot
        return True
    c.slot = NONE
    c.dropped += 1
    return False


@kernel
def hold_back(c: Cluster, p: Parameters, now: int) -> None:
    """End the decision with a batching delay."""
    slot = _oldest_asked(c, p)
    c.slot = NONE
    if slot == NONE or not begin_batching_delay(c, p, slot, now):
        c.dropped += 1


@kernel
def send_micro_batch(c: Cluster, p: Parameters, now: int) -> int:
    """Form the chosen micro-batch and book its transfers (`RouterCore._send`, `Simulation._send`); returns its slot."""
    slot, count = c.slot, min(c.micro_batch_size, c.candidates)
    server = server_at(c, p, c.server)
    head = request_at(c, p, slot)
    key = (head.segment * p.widths + c.width) * (p.widths + 1) + head.previous_width
    number = _take_slot(c, p, server)
    micro_batch = micro_batch_at(c, p, number)
    micro_batch.decision, micro_batch.server = c.decision, c.server
    micro_batch.tag = c.tag
    micro_batch.key, micro_batch.count = key, count
    micro_batch.ended, micro_batch.batch_queue = 0, c.batch_queue
    micro_batch.snapshot_ns = c.snapshot_ns
    micro_batch.sent_ns = micro_batch.gathered_ns = now
    micro_batch.arrived_ns = 0
    micro_batch.moves, micro_batch.moving = 0, 0
    micro_batch.then = c.then
    if c.then > 0:
        c.has_paths = 1
    for step in range(c.then):
        ints(micro_batch)[p.path_at + step] = ints(c)[p.then_at + step]
    c.slot = NONE
    for position in range(count):
        following = take(c, p, slot)
        request, member = request_at(c, p, slot), member_at(p, micro_batch, position)
        request.micro_batch, request.position = number, position
        member.request, member.has_ended = slot, 0
        member.source = request.location
        if p.max_batching_delay_ns:
            take_along(request, member)
        if request.location != c.server:
            _add_move(micro_batch, request.location)
        slot = following
    for step in range(1 + micro_batch.then):
        queue = key_at(p, server, path_key(p, micro_batch, step))
        if queue.outstanding == 0:
            queue.since = c.decision
        queue.outstanding += count
    count_requests(c, p, server, count)
    server.micro_batches += 1
    if server.micro_batches == p.cap:
        _count_free(c, p, server, -1)
    if server.micro_batches == 1:
        _count_up(c, p, server, 1, 0)
    if count == c.in_batch_queue and not c.is_alone:
        delay_late_comers(c, p, c.batch_queue, now)
    if micro_batch.moves > 0:
        _book_transfers(c, p, server, number, now)
    return number


@kernel
def _take_slot(c: Cluster, p: Parameters, server: Server) -> int:
    """Return a free slot for a micro-batch: last in the list of its server's micro-batches, which is thus in the order
    of decisions."""
    number, last = c.free_micro_batch, server.last_micro_batch
    micro_batch = micro_batch_at(c, p, number)
    c.free_micro_batch = micro_batch.next
    c.free_micro_batches -= 1
    micro_batch.previous, micro_batch.next = last, NONE
    if last == NONE:
        server.first_micro_batch = number
    else:
        micro_batch_at(c, p, last).next = number
    server.last_micro_batch = number
    return number


@kernel
def _free_slot(c: Cluster, p: Parameters, server: Server, number: int) -> None:
    """Remove a micro-batch that has ended from its server's list."""
    micro_batch = micro_batch_at(c, p, number)
    if micro_batch.previous == NONE:
        server.first_micro_batch = micro_batch.next
    else:
        micro_batch_at(c, p, micro_batch.previous).next = micro_batch.next
    if micro_batch.next == NONE:
        server.last_micro_batch = micro_batch.previous
    else:
        micro_batch_at(c, p, micro_batch.next).previous = micro_batch.previous
    micro_batch.next = c.free_micro_batch
    c.free_micro_batch = number
    c.free_micro_batches += 1


@kernel
def _add_move(micro_batch: MicroBatch, source: int) -> None:
    """Add a source of the micro-batch's inputs: in the order of places, each once."""
    position = micro_batch.moves
    for n in range(position):
        if move_at(micro_batch, n).source == source:
            return
    while position > 0 and move_at(micro_batch, position - 1).source > source:
        move_at(micro_batch, position).source = move_at(micro_batch, position - 1).source
        position -= 1
    move_at(micro_batch, position).source = source
    micro_batch.moves += 1


@kernel
def _count_free(c: Cluster, p: Parameters, server: Server, change: int) -> None:
    """Count one more, or one fewer, server that can take micro-batches."""
    c.free_servers += change
    fits = params_of(p, server).fits_any_at
    for place in range(p.places):
        ints(c)[p.valid_at + place] += change * ints(p)[fits + place]


@kernel
def _count_up(c: Cluster, p: Parameters, server: Server, change: int, holds: int) -> None:
    """Count one more, or one fewer, server that seems up to a head (`context.is_up`): it holds the segment, or has
    micro-batches.

    `holds` is 1 if the server came or went, and 0 if its micro-batches did, which affects the places that it
    does not hold.
    """
    fits = params_of(p, server).fits_any_at
    for place in range(p.places):
        if ints(p)[fits + place] == holds:
            ints(c)[p.up_at + place] += change


# -------------------------------------------------------------------------------------------------------------- links


@kernel
def _book_transfers(c: Cluster, p: Parameters, server: Server, number: int, now: int) -> None:
    micro_batch, widths = micro_batch_at(c, p, number), p.widths
    segment, previous = micro_batch.key // (widths + 1) // widths, micro_batch.key % (widths + 1)
    model = model_at(p, server.device)
    one_bytes = ints(p)[model.input_bytes_at + segment * (widths + 1) + previous]
    micro_batch.moving, micro_batch.next_moving = micro_batch.moves, NONE
    if server.first_moving == NONE:
        server.first_moving = number
    else:
        micro_batch_at(c, p, server.last_moving).next_moving = number
    server.last_moving = number
    for n in range(micro_batch.moves):
        move, moved = move_at(micro_batch, n), 0
        for position in range(micro_batch.count):
            if member_at(p, micro_batch, position).source == move.source:
                moved += 1
        begins_ns = _copy(c, p, server_at(c, p, move.source), moved, now) if move.source != NONE else now
        move.end_ns = _transfer(c, p, move.source, server, one_bytes * moved, begins_ns)
        if move.source != NONE:
            move.end_ns = max(move.end_ns, now + model.fetch_ns)
        move.is_moving = 1
        server.times.transfer = min(server.times.transfer, move.end_ns)
    reschedule(c, p, server)


@kernel
def _copy(c: Cluster, p: Parameters, source: Server, images: int, now: int) -> int:
    """Copy activations for a move, as CPU work of the server's process (`SimulatedServer.copy`); returns when it is
    done."""
    model, device = model_at(p, source.device), device_at(c, p, source.device)
    if model.has_cpu_work == 0 or source.is_up == 0 or source.is_hung:
        return now
    begins_ns = free_ns(c, p, device, now, now + model.slice_ns, device.waiting_ns)
    return do_cpu_work(c, p, device, model.moved_ns + model.moved_image_ns * images, now, begins_ns)


@kernel
def _transfer(c: Cluster, p: Parameters, source: int, server: Server, transfer_bytes: int, now: int) -> int:
    """Book a transfer on the destination's medium; returns when it arrives (`Network.transfer`)."""
    params = params_of(p, server)
    latency_s, bandwidth = params.latency_s, params.bandwidth_bytes_s
    arrives = 1.0
    uplinks_s, is_near = 0.0, False
    if source != NONE:
        other = ServerParams(p, p.server_params_at, source)
        is_near, uplinks_s = other.rack == params.rack, other.uplink_s
        latency_s, bandwidth = max(other.latency_s, latency_s), min(other.bandwidth_bytes_s, bandwidth)
        arrives *= 1 - other.loss
    arrives *= 1 - params.loss
    loss = 1 - arrives
    medium = Medium(c, p.media_at, params.medium)
    if not is_near:
        latency_s += uplinks_s + params.uplink_s
        if params.uplink_bytes_s > 0:
            uplink = Medium(c, p.media_at, p.uplinks + params.rack)
            now = max(now, uplink.free_ns) + ceil(transfer_bytes / (1 - loss) / params.uplink_bytes_s * _NS)
            uplink.free_ns = now
    started = max(now, medium.free_ns)
    medium.free_ns = started + ceil(transfer_bytes / (1 - loss) / bandwidth * _NS)
    latencies = 1
    if loss > 0:
        chance = hashed_share(c.links_salt, params.medium, medium.transfers)
        latencies += 2 * (_rounds(transfer_bytes, loss, chance) - 1)
    medium.transfers += 1
    return medium.free_ns + ceil(latencies * latency_s * _NS)


@kernel
def _rounds(transfer_bytes: int, loss: float, chance: float) -> int:
    """Compute `sim.host_and_network.rounds`."""
    packets = -(-transfer_bytes // _PACKET)
    if packets == 0 or chance == 0.0:
        return 1
    one_missing = -expm1(log(chance) / packets)
    most: int = max(1, ceil(log(one_missing) / log(loss)))
    return most


@kernel
def _stop_moving(c: Cluster, p: Parameters, server: Server, number: int) -> None:
    """Remove a micro-batch with no further moves from the list of micro-batches in transfer to the server."""
    before, at = NONE, server.first_moving
    while at != number:
        before, at = at, micro_batch_at(c, p, at).next_moving
    after = micro_batch_at(c, p, number).next_moving
    if before == NONE:
        server.first_moving = after
    else:
        micro_batch_at(c, p, before).next_moving = after
    if after == NONE:
        server.last_moving = before
    micro_batch_at(c, p, number).moving = 0


@kernel
def _plan_transfers(c: Cluster, p: Parameters, server: Server) -> None:
    """Plan the end of the next of a server's transfers."""
    soonest, number = NEVER, server.first_moving
    while number != NONE:
        micro_batch = micro_batch_at(c, p, number)
        for n in range(micro_batch.moves):
            soonest = min(soonest, move_at(micro_batch, n).end_ns)
        number = micro_batch.next_moving
    server.times.transfer = soonest
    reschedule(c, p, server)


@kernel
def _ending_move(micro_batch: MicroBatch, now: int) -> int:
    """Return the first of a micro-batch's moves that ends now; NONE if none does."""
    for n in range(micro_batch.moves):
        if move_at(micro_batch, n).end_ns == now:
            return n
    return NONE


@kernel
def end_transfer(c: Cluster, p: Parameters, server: Server, now: int) -> int:
    """End a transfer to a server: that of the oldest micro-batch. Returns the micro-batch if it is complete now,
    otherwise NONE."""
    number = server.first_moving
    while _ending_move(micro_batch_at(c, p, number), now) == NONE:
        number = micro_batch_at(c, p, number).next_moving
    micro_batch = micro_batch_at(c, p, number)
    move = move_at(micro_batch, _ending_move(micro_batch, now))
    move.end_ns = NEVER
    source = move.source
    if source == NONE or not server_at(c, p, source).is_hung:  # a stopped process sends nothing
        move.is_moving = 0
        micro_batch.moving -= 1
        micro_batch.gathered_ns = now
        for position in range(micro_batch.count):
            member = member_at(p, micro_batch, position)
            if member.source == source:
                request = request_at(c, p, member.request)
                request.location, request.incarnation = server.index, server.incarnation
    is_there = micro_batch.moving == 0
    if is_there:
        _stop_moving(c, p, server, number)
    _plan_transfers(c, p, server)
    return number if is_there else NONE


@kernel
def fail_transfers(c: Cluster, p: Parameters, source: int, now: int) -> None:
    """Retry micro-batches that waited for inputs from a failed server (`Simulation._fail_transfers`)."""
    number = _oldest_waiting_for(c, p, source)
    while number != NONE:
        micro_batch = micro_batch_at(c, p, number)
        server = server_at(c, p, micro_batch.server)
        _stop_moving(c, p, server, number)
        _plan_transfers(c, p, server)
        for position in range(micro_batch.count):
            retry(c, p, member_at(p, micro_batch, position).request, SERVER_LOST, now)
        number = _oldest_waiting_for(c, p, source)


@kernel
def _oldest_waiting_for(c: Cluster, p: Parameters, source: int) -> int:
    """Return the oldest micro-batch that waits for inputs from a server."""
    best = NONE
    for index in range(p.servers):
        number = server_at(c, p, index).first_moving
        while number != NONE:
            micro_batch = micro_batch_at(c, p, number)
            if _waits_for(micro_batch, source):
                if best == NONE or micro_batch.decision < micro_batch_at(c, p, best).decision:
                    best = number
                break
            number = micro_batch.next_moving
    return best


@kernel
def _waits_for(micro_batch: MicroBatch, source: int) -> bool:
    for n in range(micro_batch.moves):
        move = move_at(micro_batch, n)
        if move.is_moving == 1 and move.source == source:
            return True
    return False


# ---------------------------------------------------------------------------------------------------- what comes back


@kernel
def advance_request(c: Cluster, p: Parameters, server: Server, message: Message, slot: int, now: int) -> None:
    """Advance a request past a segment, and those of its path before it (`RouterCore._advance`)."""
    request = request_at(c, p, slot)
    number, position = request.micro_batch, request.position
    micro_batch, first, segment = micro_batch_at(c, p, number), request.segment, message.segment
    member = member_at(p, micro_batch, position)
    member.span_ns = now - request.entered_ns
    member.energy_j = energy_j(c, p, now) - request.entered_j
    code = request.code
    for passed in range(first, segment + 1):
        width = message.width
        if passed < segment:
            width = path_key(p, micro_batch, passed - first) // (p.widths + 1) % p.widths
        note_return(c, p, server, message, request, passed, width, now)
        code = code * p.widths + width
    request.code, request.previous_width = code, message.width + 1
    request.segment = segment + 1
    request.location, request.incarnation = server.index, server.incarnation
    if segment + 1 == p.segments:
        is_right = is_correct(c, request.id, code)
        member.accuracy = is_right
        stats = stats_at(c, p, request.service_class)
        c.completed += 1
        stats.completed += 1
        if p.top1_at != NONE:
            stats.accuracy_sum += reals(p)[p.top1_at + code]
        took_ns = now - request.arrived_ns
        if 0 < limit_ns(c, stats) < took_ns:
            stats.late += 1
        note_end(c.room, c.in_flight, 0 < stats.limit_ns < took_ns)
        record_request(c, p, request, COMPLETED, NO_REASON, request.retries, is_right, now)
        release(c, p, slot)
    else:
        member.accuracy = reals(p)[p.prior_at + ints(p)[p.prior_levels_at + segment] + code]
        enter(c, p, slot, now)
    _leave_micro_batch(c, p, number, position, now)


@kernel
def is_correct(c: Cluster, request: int, code: int) -> int:
    """Return whether a request's prediction is right after its last segment (`sim.simulated_cluster`)."""
    if c.label_kind == DRAWN:
        return 1 if hashed_share(c.labels_salt, request, 0) < reals_at(c.label_table_at)[code] else 0
    column = ints_at(c.label_table_at)[code]
    if column == NONE:
        c.status = NO_TUPLE
        return 0
    image = ints_at(c.images_at)[request]
    return np.int64(bytes_at(c.labels_at)[image * c.label_columns + column])  # type: ignore[return-value]


@kernel
def retry(c: Cluster, p: Parameters, slot: int, reason: int, now: int) -> None:
    """Requeue at the FIFO's tail; from segment 1 if the activations were lost with their server
    (`RouterCore._retry`)."""
    request = request_at(c, p, slot)
    number, position = request.micro_batch, request.position
    if number != NONE:
        member = member_at(p, micro_batch_at(c, p, number), position)
        member.span_ns = now - request.entered_ns
        member.energy_j = energy_j(c, p, now) - request.entered_j
        member.accuracy = 0.0
        note_loss(c, p, request, now)
    request.retries += 1
    location = request.location
    if location != NONE:
        server = server_at(c, p, location)
        if not server.is_up or server.incarnation != request.incarnation:
            request.segment = request.previous_width = request.code = 0
            request.location = NONE
    if request.retries > p.max_retries:
        _give_up(c, p, slot, reason, now)
    else:
        enter(c, p, slot, now)
    if number != NONE:
        _leave_micro_batch(c, p, number, position, now)


@kernel
def _give_up(c: Cluster, p: Parameters, slot: int, reason: int, now: int) -> None:
    request = request_at(c, p, slot)
    c.failed += 1
    stats = stats_at(c, p, request.service_class)
    if limit_ns(c, stats) > 0:
        stats.late += 1
    note_end(c.room, c.in_flight - 1, stats.limit_ns > 0)
    credit_given_up(c, p, request, now)
    record_request(c, p, request, FAILED, reason, request.retries, 0, now)
    release(c, p, slot)


@kernel
def _leave_micro_batch(c: Cluster, p: Parameters, number: int, position: int, now: int) -> None:
    """End a member of a micro-batch; the micro-batch ends with its last one."""
    micro_batch = micro_batch_at(c, p, number)
    server = server_at(c, p, micro_batch.server)
    member_at(p, micro_batch, position).has_ended = 1
    micro_batch.ended += 1
    count_requests(c, p, server, -1)
    for step in range(1 + micro_batch.then):
        key_at(p, server, path_key(p, micro_batch, step)).outstanding -= 1
    if micro_batch.ended < micro_batch.count:
        return
    if server.micro_batches == p.cap and server.is_up:
        _count_free(c, p, server, 1)
    server.micro_batches -= 1
    if server.micro_batches == 0:
        _count_up(c, p, server, -1, 0)
    if p.samples:
        ints(c)[p.freed_at + c.freed % p.samples] = server.index
        c.freed += 1
    c.at_cap = 0
    credited = close_micro_batch(c, p, micro_batch, now)
    if c.pending_batching_delays > 0:
        for n in range(micro_batch.count):
            credit_batching_delays(c, p, member_at(p, micro_batch, n), credited)
    _free_slot(c, p, server, number)


# ------------------------------------------------------------------------------------------------ servers come and go


@kernel
def gain_server(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Put a server in service, in a new incarnation, without micro-batches (`ServerUp` at the router)."""
    _count_free(c, p, server, 1)
    _count_up(c, p, server, 1, 1)
    c.at_cap = 0
    end_due_batching_delays(c, p, NEVER, now)
    server.seen_vram_bytes = server.seen_loaded_bits = server.seen_loading_bits = 0


@kernel
def lose_server(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Retry requests sent to a failed server, or waiting for activations that were there (`RouterCore._lose`).

    It is down already, and its reported power is 0.
    """
    if server.micro_batches < p.cap:
        _count_free(c, p, server, -1)
    _count_up(c, p, server, -1, 1)
    end_due_batching_delays(c, p, NEVER, now)
    scratch = _scratch(c, p)
    waiting = _remove_waiting(c, p, server, scratch)
    _retry_micro_batches(c, p, server, now)
    for n in range(waiting):
        retry(c, p, scratch[n], SERVER_LOST, now)
    server.seen_vram_bytes = server.seen_loaded_bits = server.seen_loading_bits = 0
    c.at_cap = 0


@kernel
def _scratch(c: Cluster, p: Parameters) -> Ints:
    return ints_at(c.scratch_at)


@kernel
def _remove_waiting(c: Cluster, p: Parameters, server: Server, slots: Ints) -> int:
    """Remove requests with activations at a server from the FIFO, and list them in order of arrival."""
    in_flight, count = collect_in_flight(c, p, slots), 0
    for n in range(in_flight):
        request = request_at(c, p, slots[n])
        if request.micro_batch == NONE and request.location == server.index:
            slots[count] = slots[n]
            count += 1
    sort_by_id(c, p, slots, count)
    for n in range(count):
        remove(c, p, slots[n])
    return count


@kernel
def _retry_micro_batches(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Retry the members of a server's micro-batches that have not ended, by micro-batch."""
    number = server.first_micro_batch
    while number != NONE:
        micro_batch = micro_batch_at(c, p, number)
        following = micro_batch.next
        if micro_batch.moving > 0:
            _stop_moving(c, p, server, number)
        for position in range(micro_batch.count):
            member = member_at(p, micro_batch, position)
            if not member.has_ended:
                retry(c, p, member.request, SERVER_LOST, now)
        number = following
    _plan_transfers(c, p, server)
