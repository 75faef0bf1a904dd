"""The records of a cluster's row by index, its calendar, its ledger, and the observation that it gives a router.

The calendar (`reschedule`, `soonest_server`) has each server's next event, in a tree of winners.

The ledger has reported power, credits, and (if a run keeps them) records. The integral of reported power up to an
earlier time is the value that `energy_j` had when that time was now, bit for bit; so a request stores this value when
it enters the FIFO, and no history is kept.
"""

from __future__ import annotations

from math import log1p
from typing import Final

import numpy as np

from kit.jit import Ints, Singles, entry, ints, kernel, reals, reals_at
from sim.compiled.row_layout import (
    IN_FLIGHT,
    LOGS_TABULATED,
    NO_REASON,
    NONE,
    BatchCost,
    BatchQueue,
    BatchRow,
    BatchTimes,
    Calendar,
    ClassStats,
    Cluster,
    Credit,
    Device,
    DeviceModel,
    HeadSeen,
    Instance,
    Instances,
    KeyQueue,
    Member,
    Message,
    MicroBatch,
    MicroBatchRow,
    Move,
    Observed,
    Parameters,
    PlannedFault,
    Reading,
    ReadingRow,
    Report,
    Request,
    RequestRow,
    Server,
    ServerParams,
    ServerSeen,
    Stages,
    Terms,
    Times,
    Trace,
    WorkSeen,
)

# ----------------------------------------------------------------------------------------------------- records by index


_BLOCK: Final = MicroBatch.size
_KINDS: Final = Times.size


@kernel
def server_at(c: Cluster, p: Parameters, index: int) -> Server:
    """Return a server."""
    return Server(c, p.servers_at + index * p.server_size)


@kernel
def params_of(p: Parameters, server: Server) -> ServerParams:
    """Return a server's settings."""
    return ServerParams(p, server.params_at)


@kernel
def key_at(p: Parameters, server: Server, key: int) -> KeyQueue:
    """Return a work key's queue at a server."""
    return KeyQueue(server, p.queues_at, key)


@kernel
def spec_at(p: Parameters, server: Server, spec: int) -> Instances:
    """Return the instances of one segment and width at a server."""
    return Instances(server, p.instance_lists_at, spec)


@kernel
def report_at(p: Parameters, server: Server, number: int) -> Report:
    """Return one of the reports in transfer from a server, the oldest first."""
    return Report(server, p.reports_at, (server.first_report + number) % p.reports)


@kernel
def reading_at(p: Parameters, server: Server, number: int) -> Reading:
    """Return one of a sensor's last readings, by its number."""
    return Reading(server, p.readings_at, number % p.readings)


@kernel
def observed_at(c: Cluster, p: Parameters, index: int) -> Observed:
    """Return a server's observation."""
    return Observed(c, p.observed_at, index)


@kernel
def device_at(c: Cluster, p: Parameters, index: int) -> Device:
    """Return a device."""
    return Device(c, p.devices_at, index)


@kernel
def model_at(p: Parameters, index: int) -> DeviceModel:
    """Return a device's model, by index."""
    return DeviceModel(p, p.device_models_at, index)


@kernel
def model_of(p: Parameters, device: Device) -> DeviceModel:
    """Return a device's model, from its record."""
    return DeviceModel(p, device.model_at)


@kernel
def cost_of(p: Parameters, instance: Instance) -> BatchCost:
    """Return the cost of the batch that an instance runs."""
    return BatchCost(p, instance.cost_at)


@kernel
def request_at(c: Cluster, p: Parameters, slot: int) -> Request:
    """Return a request."""
    return Request(c, p.requests_at + slot * p.request_size)


@kernel
def place_of(p: Parameters, request: Request) -> int:
    """Compute `RouterConfig.place_of`: the number of a request's segment among those of all models."""
    return ints(p)[p.first_places_at + request.service_class] + request.segment


@kernel
def stats_at(c: Cluster, p: Parameters, service_class: int) -> ClassStats:
    """Return a class's counts and goals."""
    return ClassStats(c, p.class_stats_at, service_class)


@kernel
def batch_queue_at(c: Cluster, p: Parameters, batch_queue: int) -> BatchQueue:
    """Return a batch queue of the router's FIFO."""
    return BatchQueue(c, p.batch_queues_at, batch_queue)


@kernel
def fault_at(c: Cluster, p: Parameters, number: int) -> PlannedFault:
    """Return one of the faults to come."""
    return PlannedFault(c, p.faults_at, number)


@kernel
def instance_at(c: Cluster, p: Parameters, slot: int) -> Instance:
    """Return an instance."""
    return Instance(c, p.instances_at, slot)


@kernel
def micro_batch_at(c: Cluster, p: Parameters, slot: int) -> MicroBatch:
    """Return a micro-batch; its moves follow."""
    return MicroBatch(c, p.micro_batches_at + slot * p.micro_batch_stride)


@kernel
def message_at(c: Cluster, p: Parameters, slot: int) -> Message:
    """Return a message in transfer to the router."""
    return Message(c, p.messages_at, slot)


@kernel
def move_at(micro_batch: MicroBatch, number: int) -> Move:
    """Return one of the moves of a micro-batch."""
    return Move(micro_batch, _BLOCK, number)


@kernel
def member_at(p: Parameters, micro_batch: MicroBatch, position: int) -> Member:
    """Return a member of a micro-batch."""
    return Member(micro_batch, p.members_at + position * p.member_size)


@kernel
def path_key(p: Parameters, micro_batch: MicroBatch, step: int) -> int:
    """Compute `MicroBatch.key_at`: the key of a segment of a micro-batch's path, 0 for the first one."""
    if step == 0:
        return micro_batch.key
    path, widths = ints(micro_batch), p.widths
    segment, width = micro_batch.key // (widths + 1) // widths, micro_batch.key // (widths + 1) % widths
    previous = path[p.path_at + step - 2] if step > 1 else width
    return ((segment + step) * widths + path[p.path_at + step - 1]) * (widths + 1) + previous + 1


@kernel
def segment_of(p: Parameters, key: int) -> int:
    """Return the segment of a key."""
    return key // (p.widths + 1) // p.widths


# --------------------------------------------------------------------------------------------------------- the calendar


@kernel
def calendar(c: Cluster, p: Parameters) -> Ints:
    """Return the tree of winners: the first is at 1, and below the one at n those at 2 n and 2 n + 1."""
    return ints(Calendar(c, p.tree_at))


@kernel
def soonest_ns(c: Cluster, p: Parameters) -> int:
    """Return the time of the next event of all servers."""
    return calendar(c, p)[1]


@kernel
def reschedule(c: Cluster, p: Parameters, server: Server) -> None:
    """Update a server's next event after changes of its times, and the cluster's."""
    times = ints(server.times)
    soonest = times[0]
    for kind in range(1, _KINDS):
        soonest = min(soonest, times[kind])
    if soonest == server.next_ns:
        return
    server.next_ns = soonest
    tree, node = calendar(c, p), p.leaves + server.index
    tree[node] = soonest
    while node > 1:
        node >>= 1
        tree[node] = min(tree[2 * node], tree[2 * node + 1])


@kernel
def soonest_server(c: Cluster, p: Parameters) -> int:
    """Return the server whose event is next; the lowest of several at one instant."""
    tree, node = calendar(c, p), 1
    while node < p.leaves:
        node *= 2
        if tree[node] != tree[1]:
            node += 1
    return node - p.leaves


# ----------------------------------------------------------------------------------------------------------- the ledger


_NS = 1_000_000_000
_TERMS, _STAGES = Terms.size, Stages.size
_TRACE, _REQUEST = Trace.size, Request.size
_TIMES, _TIMES_OF_MESSAGE = BatchTimes.size, Message.offsets["times"]
_REQUEST_ROW = RequestRow.size


@kernel
def energy_j(c: Cluster, p: Parameters, now: int) -> float:
    """Return the integral of the servers' mean reported power (`ReportedPower.energy_j`).

    Many servers report at one instant, so their mean is computed on use.
    """
    if c.power_is_stale:
        c.power_is_stale, total = 0, 0.0
        for index in range(p.servers):
            total += reals(c)[p.powers_at + index]
        c.mean_power_w = total / p.servers
    return c.energy_j + c.mean_power_w * (now - c.power_ns) / _NS


@kernel
def report_power(c: Cluster, p: Parameters, server: Server, power_w: float, utilization: float, now: int) -> None:
    """Set a server's power and utilization from now on."""
    if c.power_ns != now:
        c.energy_j = energy_j(c, p, now)
        c.power_ns = now
    observed = observed_at(c, p, server.index)
    observed.utilization, observed.power = utilization, power_w / params_of(p, server).power_limit_w
    reals(c)[p.powers_at + server.index] = power_w
    c.variance_is_stale = c.power_is_stale = 1


@kernel
def utilization_variance(c: Cluster, p: Parameters) -> float:
    """Compute `policies.interfaces.variance` of the reported utilizations."""
    if c.variance_is_stale:
        c.variance_is_stale = 0
        total = squares = 0.0
        servers = p.servers
        for index in range(servers):
            total += observed_at(c, p, index).utilization
        mean = total / servers
        for index in range(servers):
            difference = observed_at(c, p, index).utilization - mean
            squares += difference * difference
        c.variance = squares / servers
    return c.variance


@kernel
def close_micro_batch(c: Cluster, p: Parameters, micro_batch: MicroBatch, now: int) -> Credit:
    """End a micro-batch: Eq. 7 for the decision that made it."""
    members = micro_batch.count
    span_ns = 0
    micro_batch_j = accuracy = 0.0
    for position in range(members):
        member = member_at(p, micro_batch, position)
        span_ns += member.span_ns
        micro_batch_j += member.energy_j
        accuracy += member.accuracy
    latency_s = span_ns / members / _NS
    p_acc = accuracy / members
    credited = Credit(c, p.credits_at, c.credits)
    terms = credited.terms
    c.credits += 1
    credited.decision, credited.tag = micro_batch.decision, micro_batch.tag
    terms.accuracy = p.alpha * (p_acc - p.mean_accuracy if p.centre else p_acc)
    terms.latency = -p.beta * latency_s
    terms.energy = -p.gamma * (micro_batch_j / members)
    terms.imbalance = -p.delta * utilization_variance(c, p)
    terms.bonus = p.bonus
    credited.total = terms.accuracy + terms.latency + terms.energy + terms.imbalance + terms.bonus
    if c.detail:
        _record_micro_batch(c, micro_batch, terms, latency_s, now)
    return credited


# --------------------------------------------------------------------------------------------------------- the records


@kernel
def _record_micro_batch(c: Cluster, micro_batch: MicroBatch, terms: Terms, latency_s: float, now: int) -> None:
    out = MicroBatchRow(c.micro_batch_rows_at, 0, c.micro_batch_rows)
    c.micro_batch_rows += 1
    out.decision, out.batch_queue = micro_batch.decision, micro_batch.batch_queue
    out.server, out.key = micro_batch.server, micro_batch.key
    out.count, out.snapshot_ns = micro_batch.count, micro_batch.snapshot_ns
    out.sent_ns = micro_batch.sent_ns
    out.arrived_ns, out.ended_ns = micro_batch.arrived_ns, now
    out.latency_s = latency_s
    for term in range(_TERMS):
        reals(out.reward)[term] = reals(terms)[term]


@kernel
def record_batch(c: Cluster, p: Parameters, server: Server, instance: Instance, now: int) -> None:
    """Record a batch that has ended."""
    if not c.detail:
        return
    out = BatchRow(c.batch_rows_at, 0, c.batch_rows)
    c.batch_rows += 1
    widths, key = p.widths, instance.key
    out.server, out.batch = server.index, instance.batch
    out.instance = instance.id
    out.segment, out.width = segment_of(p, key), instance.served_width
    out.previous_width, out.count = key % (widths + 1), instance.count
    out.commanded_ns, out.started_ns = instance.times.commanded_ns, instance.times.started_ns
    out.ended_ns = now


@kernel
def record_reading(c: Cluster, server: Server, report: Report) -> None:
    """Record a sensor's reading."""
    if not c.detail:
        return
    out = ReadingRow(c.reading_rows_at, 0, c.reading_rows)
    c.reading_rows += 1
    out.server, out.sampled_ns = server.index, report.sampled_ns
    out.vram_bytes = report.vram_bytes
    out.queue_length, out.utilization = report.queue_length, report.utilization
    out.power_w = report.power_w


@kernel
def record_variance(c: Cluster, p: Parameters) -> None:
    """Record gpu_var at a report."""
    if not c.detail:
        return
    reals_at(c.variances_at + 8 * c.variances)[0] = utilization_variance(c, p)
    c.variances += 1


@kernel
def record_request(
    c: Cluster, p: Parameters, request: Request, fate: int, reason: int, retries: int, correct: int, now: int
) -> None:
    """Record a request that has ended (or that is in flight at the run's end)."""
    if not c.keeps:
        return
    segments = p.segments
    out = RequestRow(c.request_rows_at, (_REQUEST_ROW + _STAGES + 1 + 2 * segments) * c.request_rows)
    c.request_rows += 1
    trace = Trace(request, _REQUEST)
    lived, rest = ints(trace), ints(out)
    out.id, out.arrived_ns = request.id, request.arrived_ns
    out.finished_ns, out.fate = now, fate
    out.reason, out.retries = reason, retries
    out.correct = correct
    out.energy_j = energy_j(c, p, now) - request.arrived_j
    out.length = trace.length
    for stage in range(_STAGES):
        total = 0
        for segment in range(trace.stages):
            total += lived[_TRACE + 2 * segments + segment * _STAGES + stage]
        rest[_REQUEST_ROW + stage] = total
    rest[_REQUEST_ROW + _STAGES] = trace.lost_ns
    for n in range(2 * segments):
        rest[_REQUEST_ROW + _STAGES + 1 + n] = lived[_TRACE + n]


@kernel
def note_loss(c: Cluster, p: Parameters, request: Request, now: int) -> None:
    """Record that the try in progress has failed (`_Trace.lose`)."""
    if c.keeps:
        trace = Trace(request, _REQUEST)
        trace.lost_ns += now - trace.since_ns
        trace.since_ns = now


@kernel
def note_batch(p: Parameters, request: Request, segment: int, times: BatchTimes) -> None:
    """Note the batch in which a request has passed a segment and stays on its path."""
    note, of_batch = ints(_times_at(p, request, segment)), ints(times)
    for n in range(_TIMES):
        note[n] = of_batch[n]


@kernel
def _times_at(p: Parameters, request: Request, segment: int) -> BatchTimes:
    return BatchTimes(request, _REQUEST + _TRACE + p.segments * (2 + _STAGES), segment)


@kernel
def note_return(
    c: Cluster, p: Parameters, server: Server, message: Message, request: Request, segment: int, width: int, now: int
) -> None:
    """Divide a request's time in a segment that it has passed among the stages (`run_ledger._passages`)."""
    if not c.keeps:
        return
    trace, segments = Trace(request, _REQUEST), p.segments
    lived = ints(trace)
    trace.length = segment + 1
    lived[_TRACE + segment] = server.index
    lived[_TRACE + segments + segment] = width
    for n in range(segment * _STAGES, trace.stages * _STAGES):
        trace.lost_ns += lived[_TRACE + 2 * segments + n]
    trace.stages = segment + 1
    times, is_last = BatchTimes(message, _TIMES_OF_MESSAGE), segment == message.segment
    if not is_last or message.is_early:
        times = _times_at(p, request, segment)
    if not is_last:
        now = min(max(trace.since_ns, times.ended_ns), now)
    micro_batch, stages = micro_batch_at(c, p, request.micro_batch), Stages(trace, _TRACE + 2 * segments, segment)
    entered = trace.since_ns
    snapshot = max(entered, micro_batch.snapshot_ns)
    sent = max(snapshot, micro_batch.sent_ns)
    gathered = max(sent, micro_batch.gathered_ns)
    arrived = max(gathered, micro_batch.arrived_ns)
    commanded = max(arrived, times.commanded_ns)
    started = min(max(commanded, times.started_ns), now)
    ended = min(max(started, times.ended_ns), now)
    load = max(0, min(times.loaded_ns, commanded) - max(arrived, times.load_began_ns))
    stages.router_wait, stages.decision = snapshot - entered, sent - snapshot
    stages.transfer = gathered - sent
    stages.handover = arrived - gathered + now - ended
    stages.queue, stages.load = commanded - arrived - load, load
    stages.dispatch, stages.run = started - commanded, ended - started
    trace.since_ns = now


@kernel
def record_rest(c: Cluster, p: Parameters, scratch: Ints, now: int) -> None:
    """Record requests in flight at the run's end, in the order of arrival.

    Args:
        scratch: memory for the slots of all in flight.
    """
    count = collect_in_flight(c, p, scratch)
    sort_by_id(c, p, scratch, count)
    for n in range(count):
        record_request(c, p, request_at(c, p, scratch[n]), IN_FLIGHT, NO_REASON, 0, 0, now)


@kernel
def collect_in_flight(c: Cluster, p: Parameters, slots: Ints) -> int:
    """Write the slots of all requests in flight."""
    count = 0
    for slot in range(p.requests):
        if request_at(c, p, slot).id != NONE:
            slots[count] = slot
            count += 1
    return count


@kernel
def sort_by_id(c: Cluster, p: Parameters, slots: Ints, count: int) -> None:
    """Sort slots in the order of their requests (Shell's sort)."""
    gap = count // 2
    while gap > 0:
        for n in range(gap, count):
            slot, position = slots[n], n
            while position >= gap and request_at(c, p, slots[position - gap]).id > request_at(c, p, slot).id:
                slots[position] = slots[position - gap]
                position -= gap
            slots[position] = slot
        gap //= 2


# ------------------------------------------------------------------------------------------------------ a router's view


_HEAD_SEEN, _SERVER_SEEN = HeadSeen.size, ServerSeen.size
_WORK_SEEN, _OBSERVED = WorkSeen.size, Observed.size


@kernel
def _log1p(p: Parameters, count: int) -> float:
    return reals(p)[p.logs_at + count] if count < LOGS_TABULATED else log1p(count)


@kernel
def write_observation(c: Cluster, p: Parameters, out: Singles, at: int) -> None:
    """Write Eq. 1, scaled as in `ObservationSpec`: 2 + 3N numbers from `at` on."""
    out[at] = np.float32(_log1p(p, c.fifo_length))
    out[at + 1] = np.float32(_log1p(p, c.completed))
    for n in range(_OBSERVED * p.servers):
        out[at + 2 + n] = np.float32(reals(c)[p.observed_at + n])


@kernel
def count_requests(c: Cluster, p: Parameters, server: Server, change: int) -> None:
    """Add to the outstanding requests at a server, or subtract."""
    server.requests += change
    observed_at(c, p, server.index).requests = _log1p(p, server.requests)


@kernel
def write_codes(c: Cluster, p: Parameters, out: Ints, at: int) -> None:
    """Write, for each server, the code in which bit w is whether it may be chosen with width w: 0 if it can't take the
    micro-batch."""
    place = place_of(p, request_at(c, p, c.slot))
    for index in range(p.servers):
        out[at + index] = code_of(c, p, index, place)


@kernel
def code_of(c: Cluster, p: Parameters, index: int, place: int) -> int:
    """Return one server's code for a segment of a model (`place_of`)."""
    server = server_at(c, p, index)
    is_free = server.is_up == 1 and server.micro_batches < p.cap
    return ints(p)[params_of(p, server).codes_at + place] if is_free else 0


@kernel
def resident_widths(p: Parameters, server: Server, segment: int) -> tuple[int, int]:
    """Return a segment's widths that the router assumes loaded at a server, and loading (`ServerView`), as bits."""
    first, every = min(segment * p.widths, 63), (1 << p.widths) - 1
    asked_for = 0
    for width in range(p.widths):
        for previous in range(p.widths + 1):
            key = (segment * p.widths + width) * (p.widths + 1) + previous
            if key_at(p, server, key).outstanding > 0:
                asked_for |= 1 << width
    return server.seen_loaded_bits >> first & every, (server.seen_loading_bits >> first | asked_for) & every


@entry
def read_view(row: Ints, parameters: Ints, out: Ints) -> int:
    """Write a router's view in one list: `HeadSeen`, then for each server `ServerSeen` and its work, oldest first.

    Returns its length.
    """
    c, p = Cluster(row), Parameters(parameters)
    head = HeadSeen(out)
    request = request_at(c, p, c.slot)
    head.segment, head.previous_width = request.segment, request.previous_width
    head.location = request.location
    head.candidates, head.entered_ns = c.candidates, request.entered_ns
    head.fifo_length, head.completed = c.fifo_length, c.completed
    head.batching_delay_left_ns = c.batching_delay_left_ns
    stats = stats_at(c, p, request.service_class)
    head.accuracy_sum, head.late = stats.accuracy_sum, stats.late
    head.goal_floor, head.goal_limit_ns = stats.floor, stats.limit_ns
    head.goal_energy_weight = stats.energy_weight
    head.service_class, head.others_completed = request.service_class, c.completed - stats.completed
    at = _HEAD_SEEN
    for index in range(p.servers):
        server, view = server_at(c, p, index), ServerSeen(out, at)
        view.is_valid = code_of(c, p, index, place_of(p, request)) != 0
        view.requests, view.micro_batches = server.requests, server.micro_batches
        view.vram_bytes = server.seen_vram_bytes
        view.utilization, view.power_w = observed_at(c, p, index).utilization, reals(c)[p.powers_at + index]
        view.loaded_bits, view.loading_bits = resident_widths(p, server, request.segment)
        view.keys = 0
        for key in range(p.keys):
            queue = key_at(p, server, key)
            if queue.outstanding > 0:
                position = view.keys
                while position > 0 and WorkSeen(view, _SERVER_SEEN, position - 1).since > queue.since:
                    previous, work = WorkSeen(view, _SERVER_SEEN, position - 1), WorkSeen(view, _SERVER_SEEN, position)
                    work.since, work.key = previous.since, previous.key
                    work.requests = previous.requests
                    position -= 1
                work = WorkSeen(view, _SERVER_SEEN, position)
                work.since, work.key = queue.since, key
                work.requests = queue.outstanding
                view.keys += 1
        at += _SERVER_SEEN + view.keys * _WORK_SEEN
    return at


# --------------------------------------------------------------------------------------------------------------- hashes


@kernel
def _mixed(mixed: np.uint64, number: int) -> np.uint64:
    mixed = mixed + (np.uint64(number) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@kernel
def hashed_below(salt: int, first: int, second: int, limit: int) -> int:
    """Compute `hashed(...) % limit`."""
    return np.int64(_mixed(_mixed(np.uint64(salt), first), second) % np.uint64(limit))  # type: ignore[return-value]


@kernel
def hashed_share(salt: int, first: int, second: int) -> float:
    """Compute `kit.random_streams.hashed_share`."""
    return np.float64(_mixed(_mixed(np.uint64(salt), first), second) >> np.uint64(11)) * 2.0**-53
