"""The records, energy and figures of a compiled run, without an object for each request."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from kit.jit import Ints, Reals, entry, ints
from policies.compiled.plan_layout import INT, REAL, Record
from policies.run_records import NOT_PASSED, DeviceTotals, Downtime, RequestColumns, RunColumns, ServerTotals
from policies.vocabulary import NS_PER_S
from sim.compiled.cluster_rows import Program
from sim.compiled.compiled_run import RunRow
from sim.compiled.row_layout import (
    COMPLETED,
    DOWN_REASONS,
    FAILED,
    NONE,
    REASONS,
    ClassStats,
    Device,
    Parameters,
    RequestRow,
    Server,
    Stages,
)


def device_of(run: RunRow, index: int) -> Device:
    """Return a device's record."""
    return Device(run.cluster, run.shape.p.devices_at, index)


def cpu_work_ns(device: Device, now_ns: int) -> int:
    """Return how long the device's passes were stopped since its last change."""
    return max(0, min(device.cpu_work_until_ns, now_ns) - max(device.paused_from_ns, device.updated_ns))


def awake_ns(device: Device, stays_ns: int, now_ns: int) -> int:
    """Return how long clocks stayed up without work since the device's last change."""
    if device.count > 0 or device.passes_ended_ns == 0:
        return 0
    return max(0, min(now_ns, device.passes_ended_ns + stays_ns) - device.updated_ns)


def energy_j(run: RunRow, index: int, ended_ns: int) -> float:
    """Return a device's energy since the run's start."""
    device, tables = device_of(run, index), run.program.cluster.devices[index]
    elapsed_ns, cpu_work_done_ns = ended_ns - device.updated_ns, cpu_work_ns(device, ended_ns)
    drawn_mw_ns = (
        device.power_mw * (elapsed_ns - cpu_work_done_ns) + max(device.power_mw, tables.cpu_work_mw) * cpu_work_done_ns
    )
    drawn_mw_ns += tables.awake_mw * awake_ns(device, tables.awake_ns, ended_ns)
    return (device.energy_mw_ns + drawn_mw_ns) / NS_PER_S / 1000


_BUCKETS = 4096
_FIRST_S, _RATIO = 1e-5, 1.005  # of a histogram of latencies; 4096 buckets reach 7000 s
_SERVERS_AT = RequestRow.size + Stages.size + 1


class _ClassStats(Record):
    counted = unfinished = failed = INT
    sum_s = squares = accuracy = REAL
    moves = INT
    p50_s = p99_s = REAL


@entry
def stats(
    records: Ints, size: int, begin_ns: int, end_ns: int, segments: int, widths: int, prior: Reals,
    counts: Ints, out: Ints,
) -> None:  # fmt: skip
    """Sum over the requests that arrived in the window; an uncompleted one counts with its waiting time so far."""
    totals = _ClassStats(out)
    for n in range(len(records) // size):
        request = RequestRow(records, n * size)
        if request.arrived_ns < begin_ns or request.arrived_ns > end_ns:
            continue
        latency_s = (request.finished_ns - request.arrived_ns) / 1e9
        totals.counted += 1
        totals.sum_s += latency_s
        totals.squares += latency_s * latency_s
        bucket = int(log(max(latency_s, _FIRST_S) / _FIRST_S) / log(_RATIO))
        counts[min(bucket, _BUCKETS - 1)] += 1
        if request.fate != COMPLETED:
            totals.unfinished += 1
            if request.fate == FAILED:
                totals.failed += 1
            continue
        code, numbers = 0, ints(request)
        for segment in range(segments):
            code = code * widths + numbers[_SERVERS_AT + segments + segment]
            if segment > 0 and numbers[_SERVERS_AT + segment] != numbers[_SERVERS_AT + segment - 1]:
                totals.moves += 1
        totals.accuracy += prior[code]
    passed, below = 0, 0
    for bucket in range(_BUCKETS):
        passed += counts[bucket]
        if below == 0 and 2 * passed >= totals.counted:
            totals.p50_s, below = _FIRST_S * exp((bucket + 0.5) * log(_RATIO)), 1
        if 100 * passed >= 99 * totals.counted:
            totals.p99_s = _FIRST_S * exp((bucket + 0.5) * log(_RATIO))
            return


@dataclass(frozen=True, slots=True)
class RunScore:
    """The figures of a run, over the requests that arrived after the warm-up.

    Attributes:
        images: their number; `unfinished` of them failed or were in flight at the end, `failed` of them failed.
        mean_s, std_s: latencies; an unfinished one counts with its waiting time.
        p50_s, p99_s: within 0.5 %.
        accuracy: the mean prior of the completed ones' width tuples: accuracy without random predictions.
        moves: an image's mean number of changes of server.
        decisions: number of decisions in the whole run.
        image_j: energy of all devices in the whole run, over the number of completed images.
        class_images, class_accuracies: for each class of requests, those completed in the whole run, and their
            accuracy.
    """

    images: int
    unfinished: int
    mean_s: float
    std_s: float
    p50_s: float
    p99_s: float
    accuracy: float
    moves: float
    decisions: int
    failed: int = 0
    image_j: float = 0.0
    class_images: tuple[int, ...] = ()
    class_accuracies: tuple[float, ...] = ()


def score_run(run: RunRow, priors: npt.NDArray[np.float64], begin_ns: int) -> RunScore:
    """Return the figures of a run that has ended; `priors` by the number of a width tuple (`tuple_priors`)."""
    totals, counts = _ClassStats.blank(), np.zeros(_BUCKETS, np.int64)
    program, records = run.program, run.records.requests[: run.cluster.request_rows]
    stats(
        records.view(np.int64), records.itemsize // 8, begin_ns, run.cluster.horizon_ns, program.segments,
        program.width_count, priors, counts, totals.numbers,
    )  # fmt: skip
    total = max(1, totals.counted)
    completed = max(1, totals.counted - totals.unfinished)
    mean_s = totals.sum_s / total
    classes = [ClassStats(run.cluster, run.shape.p.class_stats_at, number) for number in range(run.shape.p.classes)]
    return RunScore(
        images=totals.counted,
        unfinished=totals.unfinished,
        mean_s=mean_s,
        std_s=float(np.sqrt(max(0.0, totals.squares / total - mean_s * mean_s))),
        p50_s=totals.p50_s,
        p99_s=totals.p99_s,
        accuracy=totals.accuracy / completed,
        moves=totals.moves / completed,
        decisions=run.cluster.decision,
        failed=totals.failed,
        image_j=_drawn_j(run) / max(1, run.cluster.completed),
        class_images=tuple(figures.completed for figures in classes),
        class_accuracies=tuple(figures.accuracy_sum / max(1, figures.completed) for figures in classes),
    )


def _drawn_j(run: RunRow) -> float:
    return sum(energy_j(run, index, run.cluster.ended_ns) for index in range(len(run.program.cluster.devices)))


def tuple_priors(program: Program) -> npt.NDArray[np.float64]:
    """Return the accuracy prior of every width tuple, by its number."""
    p = Parameters(program.parameters)
    size = program.width_count**program.segments
    at = p.prior_at + int(program.parameters[p.prior_levels_at + program.segments - 1])
    return program.parameters.view(np.float64)[at : at + size].copy()


def run_columns(run: RunRow) -> RunColumns:
    """Return the columns of a run that has ended and keeps its requests."""
    c, records = run.cluster, run.records
    is_detailed = run.run.detail
    reasons = tuple(REASONS[number] for number in range(len(REASONS)))
    return RunColumns(
        ended_ns=c.ended_ns,
        requests=request_columns(records.requests[: c.request_rows], run.program.widths, reasons, is_detailed),
        servers=tuple(_server_totals(run, index) for index in range(run.program.servers)),
        devices=tuple(_device_totals(run, index) for index in range(len(run.program.cluster.devices))),
        gpu_var=records.variances[: c.variances if is_detailed else 0],
        decisions=c.decision,
        downtimes=tuple(
            Downtime(server, down_ns, None if up_ns == NONE else up_ns, DOWN_REASONS[reason])
            for server, down_ns, up_ns, reason in records.downtimes[: c.downtimes].tolist()
        ),
    )


def _server_totals(run: RunRow, index: int) -> ServerTotals:
    c, p = run.cluster, run.shape.p
    spec, ended_ns = run.program.cluster.servers[index], run.cluster.ended_ns
    server, device = Server(c, p.servers_at + index * p.server_size), device_of(run, spec.device)
    tables = run.program.cluster.devices[spec.device]
    cpu_work_done_ns, busy_permille = cpu_work_ns(device, ended_ns), max(device.busy_permille, tables.cpu_work_permille)
    busy = device.busy_permille_ns + device.busy_permille * (ended_ns - device.updated_ns - cpu_work_done_ns)
    busy += busy_permille * cpu_work_done_ns
    return ServerTotals(
        name=spec.name,
        device=spec.device,
        busy_s=busy / NS_PER_S / 1000,
        images=server.images,
        batches=server.batches,
        loads=server.loads,
        unloads=server.unloads,
        vram_peak_bytes=server.peak_bytes,
    )


def _device_totals(run: RunRow, index: int) -> DeviceTotals:
    device, tables = device_of(run, index), run.program.cluster.devices[index]
    ended_ns = run.cluster.ended_ns
    open_ns = ended_ns - device.updated_ns if device.is_extrapolated else 0
    power = tables.profile.power
    return DeviceTotals(
        name=tables.name,
        energy_j=energy_j(run, index, ended_ns),
        bare_idle_w=power.bare_idle_w,
        context_idle_w=power.context_idle_w,
        extrapolated_s=(device.extrapolated_ns + open_ns) / NS_PER_S,
    )


def request_columns(
    rows: NDArray[Any], widths: tuple[float, ...], reasons: tuple[str, ...], is_detailed: bool
) -> RequestColumns:
    """Convert recorded requests (`run.request_row`), in their order.

    Args:
        reasons: why a request failed, by the engine's numbers.
    """
    head, ran = rows["head"], rows["servers"]
    width = rows["widths"]
    is_passed = np.arange(ran.shape[1]) < head["length"][:, np.newaxis]
    return RequestColumns(
        request=head["id"],
        arrived_ns=head["arrived_ns"],
        finished_ns=head["finished_ns"],
        status=head["fate"].astype(np.int8),  # the layout numbers them in the order of `STATUSES`
        reason=head["reason"].astype(np.int8),
        correct=head["correct"] != 0,
        energy_j=head["energy_j"],
        width=np.where(is_passed, width, NOT_PASSED).astype(np.int8),
        moves=np.count_nonzero((ran[:, 1:] != ran[:, :-1]) & is_passed[:, 1:], axis=1),
        stages_ns=rows["stages_ns"] if is_detailed else None,
        reasons=reasons,
        widths=widths,
    )
