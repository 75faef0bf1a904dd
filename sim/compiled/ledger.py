"""`policies.ledger`, compiled: reported power, credits, and (where a run keeps them) records.

The integral of reported power up to an earlier time is what it was when that time was now, bit for bit; so a request
remembers it when it enters the FIFO, and no history is kept.
"""

from __future__ import annotations

from policies.jit import Ints, Reals, ints_at, kernel, reals_at
from sim.compiled.layout import *
from sim.compiled.rows import block_at, member_at, request_at, server_at

_NS = 1_000_000_000


@kernel
def energy_j(k: Ints, r: Reals, now: int) -> float:
    """The integral of the servers' mean reported power (`ReportedPower.energy_j`)."""
    return r[C_ENERGY] + r[C_POWER_MEAN] * (now - k[C_POWER_NS]) / _NS


@kernel
def report_power(k: Ints, r: Reals, p: Ints, s: int, power_w: float, utilization: float, now: int) -> None:
    """A server's power and utilization are this from now on."""
    r[s + S_SEEN_POWER], r[s + S_SEEN_UTILIZATION] = power_w, utilization
    k[C_VARIANCE_STALE] = 1
    if k[C_POWER_NS] != now:
        r[C_ENERGY] = energy_j(k, r, now)
        k[C_POWER_NS] = now
    total = 0.0
    for index in range(p[P_SERVERS]):
        total += r[server_at(p, index) + S_SEEN_POWER]
    r[C_POWER_MEAN] = total / p[P_SERVERS]


@kernel
def utilization_variance(k: Ints, r: Reals, p: Ints) -> float:
    """`policies.reward.variance` of the reported utilizations."""
    if k[C_VARIANCE_STALE]:
        k[C_VARIANCE_STALE] = 0
        total, squares, servers = 0.0, 0.0, p[P_SERVERS]
        for index in range(servers):
            total += r[server_at(p, index) + S_SEEN_UTILIZATION]
        mean = total / servers
        for index in range(servers):
            difference = r[server_at(p, index) + S_SEEN_UTILIZATION] - mean
            squares += difference * difference
        r[C_VARIANCE] = squares / servers
    return r[C_VARIANCE]


@kernel
def credit(k: Ints, r: Reals, p: Ints, q: Reals, b: int, now: int) -> None:
    """A block has ended: Eq. 7 for the decision that made it."""
    members = k[b + B_COUNT]
    span_ns, block_j, accuracy = 0, 0.0, 0.0
    for position in range(members):
        m = member_at(p, b, position)
        span_ns += k[m + M_SPAN]
        block_j += r[m + M_ENERGY]
        accuracy += r[m + M_ACCURACY]
    latency_s = span_ns / members / _NS
    p_acc = accuracy / members
    c = p[P_CREDITS_AT] + k[C_CREDITS] * D_SIZE
    k[C_CREDITS] += 1
    k[c + D_DECISION], k[c + D_TAG] = k[b + B_DECISION], k[b + B_TAG]
    r[c + D_ACCURACY] = q[P_ALPHA] * (p_acc - q[P_MEAN_TOP1] if p[P_CENTRE] else p_acc)
    r[c + D_LATENCY] = -q[P_BETA] * latency_s
    r[c + D_ENERGY] = -q[P_GAMMA] * (block_j / members)
    r[c + D_IMBALANCE] = -q[P_DELTA] * utilization_variance(k, r, p)
    r[c + D_BONUS] = q[P_BONUS]
    r[c + D_TOTAL] = r[c + D_ACCURACY] + r[c + D_LATENCY] + r[c + D_ENERGY] + r[c + D_IMBALANCE] + r[c + D_BONUS]
    if k[C_DETAIL]:
        _record_block(k, r, b, c, latency_s, now)


# --------------------------------------------------------------------------------------------------------- the records


@kernel
def _record_block(k: Ints, r: Reals, b: int, c: int, latency_s: float, now: int) -> None:
    at = k[C_BLOCKS_AT] + 8 * E_SIZE * k[C_BLOCK_RECORDS]
    k[C_BLOCK_RECORDS] += 1
    out, real = ints_at(at), reals_at(at)
    out[E_DECISION], out[E_LINE], out[E_SERVER], out[E_KEY] = (
        k[b + B_DECISION],
        k[b + B_LINE],
        k[b + B_SERVER],
        k[b + B_KEY],
    )
    out[E_COUNT], out[E_SNAPSHOT], out[E_SENT] = k[b + B_COUNT], k[b + B_SNAPSHOT], k[b + B_SENT]
    out[E_ARRIVED], out[E_ENDED] = k[b + B_ARRIVED], now
    real[E_LATENCY] = latency_s
    for term in range(5):
        real[E_CREDIT + term] = r[c + D_ACCURACY + term]


@kernel
def record_batch(k: Ints, p: Ints, s: int, i: int, now: int) -> None:
    """A batch has ended."""
    if not k[C_DETAIL]:
        return
    out = ints_at(k[C_BATCHES_AT] + 8 * H_SIZE * k[C_BATCH_RECORDS])
    k[C_BATCH_RECORDS] += 1
    widths, key = p[P_WIDTHS], k[i + I_KEY]
    out[H_SERVER], out[H_BATCH], out[H_INSTANCE] = k[s + S_INDEX], k[i + I_BATCH], k[i + I_ID]
    out[H_SEGMENT], out[H_WIDTH] = key // (widths + 1) // widths, k[i + I_SERVED]
    out[H_PREVIOUS], out[H_COUNT] = key % (widths + 1), k[i + I_COUNT]
    out[H_COMMANDED], out[H_STARTED], out[H_ENDED] = k[i + I_COMMANDED], k[i + I_STARTED], now


@kernel
def record_reading(k: Ints, s: int, sampled: int, utilization: float, power_w: float, vram: int, waiting: int) -> None:
    """A sensor's reading has come."""
    if not k[C_DETAIL]:
        return
    at = k[C_READINGS_AT] + 8 * N_SIZE * k[C_READINGS]
    k[C_READINGS] += 1
    out, real = ints_at(at), reals_at(at)
    out[N_SERVER], out[N_SAMPLED], out[N_VRAM], out[N_QUEUED] = k[s + S_INDEX], sampled, vram, waiting
    real[N_UTILIZATION], real[N_POWER] = utilization, power_w


@kernel
def record_variance(k: Ints, r: Reals, p: Ints) -> None:
    """A report has come: gpu_var as it is now."""
    if not k[C_DETAIL]:
        return
    reals_at(k[C_VARIANCES_AT] + 8 * k[C_VARIANCES])[0] = utilization_variance(k, r, p)
    k[C_VARIANCES] += 1


@kernel
def record_request(
    k: Ints, r: Reals, p: Ints, a: int, fate: int, reason: int, retries: int, correct: int, now: int
) -> None:
    """A request is done with (or the run is over)."""
    if not k[C_KEEPS]:
        return
    segments = p[P_SEGMENTS]
    at = k[C_REQUESTS_AT] + 8 * (A_STAGES + STAGE_COUNT + 1 + 2 * segments) * k[C_REQUEST_RECORDS]
    k[C_REQUEST_RECORDS] += 1
    out, real, life = ints_at(at), reals_at(at), a + R_SIZE
    out[A_ID], out[A_ARRIVED], out[A_FINISHED], out[A_FATE] = k[a + R_ID], k[a + R_ARRIVED], now, fate
    out[A_REASON], out[A_RETRIES], out[A_CORRECT] = reason, retries, correct
    real[A_ENERGY] = energy_j(k, r, now) - r[a + R_ARRIVED_J]
    out[A_LENGTH] = k[life + L_LENGTH]
    for stage in range(STAGE_COUNT):
        total = 0
        for segment in range(k[life + L_STAGES]):
            total += k[life + L_SERVERS + 2 * segments + segment * STAGE_COUNT + stage]
        out[A_STAGES + stage] = total
    out[A_STAGES + STAGE_COUNT] = k[life + L_LOST]
    for n in range(2 * segments):
        out[A_STAGES + STAGE_COUNT + 1 + n] = k[life + L_SERVERS + n]


@kernel
def note_loss(k: Ints, p: Ints, a: int, now: int) -> None:
    """The try that is under way has failed (`_Life.lose`)."""
    if k[C_KEEPS]:
        life = a + R_SIZE
        k[life + L_LOST] += now - k[life + L_SINCE]
        k[life + L_SINCE] = now


@kernel
def note_return(k: Ints, p: Ints, s: int, i: int, a: int, now: int) -> None:
    """A request is back from a segment that ran on instance `i`: divide its time (`_Life.pass_segment`)."""
    if not k[C_KEEPS]:
        return
    life, segments, passed = a + R_SIZE, p[P_SEGMENTS], k[a + R_SEGMENT]
    k[life + L_LENGTH] = passed + 1
    k[life + L_SERVERS + passed] = k[s + S_INDEX]
    k[life + L_SERVERS + segments + passed] = k[i + I_SERVED]
    stages = life + L_SERVERS + 2 * segments
    for n in range(passed * STAGE_COUNT, k[life + L_STAGES] * STAGE_COUNT):
        k[life + L_LOST] += k[stages + n]
    k[life + L_STAGES] = passed + 1
    b, stages, entered = block_at(p, k[a + R_BLOCK]), stages + passed * STAGE_COUNT, k[life + L_SINCE]
    snapshot = max(entered, k[b + B_SNAPSHOT])
    sent = max(snapshot, k[b + B_SENT])
    arrived = max(sent, k[b + B_ARRIVED])
    commanded = max(arrived, k[i + I_COMMANDED])
    started = min(max(commanded, k[i + I_STARTED]), now)
    load = max(0, min(k[i + I_LOADED], commanded) - max(arrived, k[i + I_LOAD_BEGAN]))
    k[stages], k[stages + 1], k[stages + 2] = snapshot - entered, sent - snapshot, arrived - sent
    k[stages + 3], k[stages + 4] = commanded - arrived - load, load
    k[stages + 5], k[stages + 6] = started - commanded, now - started
    k[life + L_SINCE] = now


@kernel
def record_rest(k: Ints, r: Reals, p: Ints, scratch: Ints, now: int) -> None:
    """The run is over: what is in flight gets its record, in the order of arrival.

    Args:
        scratch: room for the slots of all in flight.
    """
    count = collect_in_flight(k, p, scratch)
    sort_by_id(k, p, scratch, count)
    for n in range(count):
        record_request(k, r, p, request_at(p, scratch[n]), IN_FLIGHT, NO_REASON, 0, 0, now)


@kernel
def collect_in_flight(k: Ints, p: Ints, found: Ints) -> int:
    """The slots of all requests in flight."""
    count = 0
    for slot in range(p[P_REQUESTS]):
        if k[request_at(p, slot) + R_ID] != NONE:
            found[count] = slot
            count += 1
    return count


@kernel
def sort_by_id(k: Ints, p: Ints, slots: Ints, count: int) -> None:
    """Slots in the order of their requests (Shell's sort)."""
    gap = count // 2
    while gap > 0:
        for n in range(gap, count):
            slot, place = slots[n], n
            while place >= gap and k[request_at(p, slots[place - gap]) + R_ID] > k[request_at(p, slot) + R_ID]:
                slots[place] = slots[place - gap]
                place -= gap
            slots[place] = slot
        gap //= 2
