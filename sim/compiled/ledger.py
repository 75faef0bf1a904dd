"""`policies.ledger`, compiled: reported power, credits, and (if a run keeps them) records.

The integral of reported power up to an earlier time is its value when that time was now, bit for bit; so a request
stores it when it enters the FIFO, and no history is kept.
"""

from __future__ import annotations

from kit.jit import Ints, ints, kernel, reals, reals_at
from sim.compiled.codes import IN_FLIGHT, NO_REASON, NONE
from sim.compiled.layout import (
    BatchRow,
    Block,
    BlockRow,
    Cluster,
    Credit,
    Instance,
    Journey,
    Message,
    Parameters,
    ReadingRow,
    Report,
    Request,
    RequestRow,
    Server,
    Stages,
    Terms,
)
from sim.compiled.rows import block_at, knobs_of, member_at, observed_at, request_at

_NS = 1_000_000_000
_TERMS, _STAGES, _JOURNEY, _REQUEST, _REQUEST_ROW = Terms.size, Stages.size, Journey.size, Request.size, RequestRow.size


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
    observed.utilization, observed.power = utilization, power_w / knobs_of(p, server).power_limit_w
    reals(c)[p.powers_at + server.index] = power_w
    c.variance_is_stale = c.power_is_stale = 1


@kernel
def utilization_variance(c: Cluster, p: Parameters) -> float:
    """Compute `policies.reward.variance` of the reported utilizations."""
    if c.variance_is_stale:
        c.variance_is_stale = 0
        total, squares, servers = 0.0, 0.0, p.servers
        for index in range(servers):
            total += observed_at(c, p, index).utilization
        mean = total / servers
        for index in range(servers):
            difference = observed_at(c, p, index).utilization - mean
            squares += difference * difference
        c.variance = squares / servers
    return c.variance


@kernel
def close_block(c: Cluster, p: Parameters, block: Block, now: int) -> Credit:
    """End a block: Eq. 7 for the decision that made it."""
    members = block.count
    span_ns, block_j, accuracy = 0, 0.0, 0.0
    for position in range(members):
        member = member_at(p, block, position)
        span_ns += member.span_ns
        block_j += member.energy_j
        accuracy += member.accuracy
    latency_s = span_ns / members / _NS
    p_acc = accuracy / members
    credited = Credit(c, p.credits_at, c.credits)
    terms = credited.terms
    c.credits += 1
    credited.decision, credited.tag = block.decision, block.tag
    terms.accuracy = p.alpha * (p_acc - p.mean_top1 if p.centre else p_acc)
    terms.latency = -p.beta * latency_s
    terms.energy = -p.gamma * (block_j / members)
    terms.imbalance = -p.delta * utilization_variance(c, p)
    terms.bonus = p.bonus
    credited.total = terms.accuracy + terms.latency + terms.energy + terms.imbalance + terms.bonus
    if c.detail:
        _record_block(c, block, terms, latency_s, now)
    return credited


# --------------------------------------------------------------------------------------------------------- the records


@kernel
def _record_block(c: Cluster, block: Block, terms: Terms, latency_s: float, now: int) -> None:
    out = BlockRow(c.block_rows_at, 0, c.block_rows)
    c.block_rows += 1
    out.decision, out.line, out.server, out.key = block.decision, block.line, block.server, block.key
    out.count, out.snapshot_ns, out.sent_ns = block.count, block.snapshot_ns, block.sent_ns
    out.arrived_ns, out.ended_ns = block.arrived_ns, now
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
    out.server, out.batch, out.instance = server.index, instance.batch, instance.id
    out.segment, out.width = key // (widths + 1) // widths, instance.served_width
    out.previous_width, out.count = key % (widths + 1), instance.count
    out.commanded_ns, out.started_ns, out.ended_ns = instance.commanded_ns, instance.started_ns, now


@kernel
def record_reading(c: Cluster, server: Server, report: Report) -> None:
    """Record a sensor's reading."""
    if not c.detail:
        return
    out = ReadingRow(c.reading_rows_at, 0, c.reading_rows)
    c.reading_rows += 1
    out.server, out.sampled_ns, out.vram_bytes = server.index, report.sampled_ns, report.vram_bytes
    out.queue_length, out.utilization, out.power_w = report.queue_length, report.utilization, report.power_w


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
    journey = Journey(request, _REQUEST)
    lived, rest = ints(journey), ints(out)
    out.id, out.arrived_ns, out.finished_ns, out.fate = request.id, request.arrived_ns, now, fate
    out.reason, out.retries, out.correct = reason, retries, correct
    out.energy_j = energy_j(c, p, now) - request.arrived_j
    out.length = journey.length
    for stage in range(_STAGES):
        total = 0
        for segment in range(journey.stages):
            total += lived[_JOURNEY + 2 * segments + segment * _STAGES + stage]
        rest[_REQUEST_ROW + stage] = total
    rest[_REQUEST_ROW + _STAGES] = journey.lost_ns
    for n in range(2 * segments):
        rest[_REQUEST_ROW + _STAGES + 1 + n] = lived[_JOURNEY + n]


@kernel
def note_loss(c: Cluster, p: Parameters, request: Request, now: int) -> None:
    """Record that the try in progress has failed (`_Journey.lose`)."""
    if c.keeps:
        journey = Journey(request, _REQUEST)
        journey.lost_ns += now - journey.since_ns
        journey.since_ns = now


@kernel
def note_return(c: Cluster, p: Parameters, server: Server, message: Message, request: Request, now: int) -> None:
    """Divide a request's time in a segment that it has passed among the stages (`_Journey.pass_segment`)."""
    if not c.keeps:
        return
    journey, segments, passed = Journey(request, _REQUEST), p.segments, request.segment
    lived = ints(journey)
    journey.length = passed + 1
    lived[_JOURNEY + passed] = server.index
    lived[_JOURNEY + segments + passed] = message.width
    for n in range(passed * _STAGES, journey.stages * _STAGES):
        journey.lost_ns += lived[_JOURNEY + 2 * segments + n]
    journey.stages = passed + 1
    block, stages, entered = (
        block_at(c, p, request.block),
        Stages(journey, _JOURNEY + 2 * segments, passed),
        journey.since_ns,
    )
    snapshot = max(entered, block.snapshot_ns)
    sent = max(snapshot, block.sent_ns)
    gathered = max(sent, block.gathered_ns)
    arrived = max(gathered, block.arrived_ns)
    commanded = max(arrived, message.commanded_ns)
    started = min(max(commanded, message.started_ns), now)
    ended = min(max(started, message.ended_ns), now)
    load = max(0, min(message.loaded_ns, commanded) - max(arrived, message.load_began_ns))
    stages.router_wait, stages.decision, stages.transfer = snapshot - entered, sent - snapshot, gathered - sent
    stages.handover = arrived - gathered + now - ended
    stages.queue, stages.load = commanded - arrived - load, load
    stages.dispatch, stages.run = started - commanded, ended - started
    journey.since_ns = now


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
def collect_in_flight(c: Cluster, p: Parameters, found: Ints) -> int:
    """Write the slots of all requests in flight."""
    count = 0
    for slot in range(p.requests):
        if request_at(c, p, slot).id != NONE:
            found[count] = slot
            count += 1
    return count


@kernel
def sort_by_id(c: Cluster, p: Parameters, slots: Ints, count: int) -> None:
    """Sort slots in the order of their requests (Shell's sort)."""
    gap = count // 2
    while gap > 0:
        for n in range(gap, count):
            slot, place = slots[n], n
            while place >= gap and request_at(c, p, slots[place - gap]).id > request_at(c, p, slot).id:
                slots[place] = slots[place - gap]
                place -= gap
            slots[place] = slot
        gap //= 2
