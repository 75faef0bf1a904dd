"""The figures of a run for a search, from its records, in compiled code: without lists and the interpreter's lock."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

import numpy as np
import numpy.typing as npt

from kit.jit import Ints, Reals, entry, ints
from policies.compiled.record import INT, REAL, Record
from sim.compiled.codes import COMPLETED, FAILED
from sim.compiled.layout import Parameters, RequestRow, Stages, Tally
from sim.compiled.program import Program
from sim.compiled.run import RunRow
from sim.compiled.totals import energy_j

_BUCKETS = 4096
_FIRST_S, _RATIO = 1e-5, 1.005  # of a histogram of latencies; 4096 buckets reach 7000 s
_SERVERS_AT = RequestRow.size + Stages.size + 1


class _Tally(Record):
    counted = unfinished = failed = INT
    sum_s = squares = accuracy = REAL
    moves = INT
    p50_s = p99_s = REAL


@entry
def tally(
    records: Ints, size: int, begin_ns: int, end_ns: int, segments: int, widths: int, prior: Reals,
    counts: Ints, out: Ints,
) -> None:  # fmt: skip
    """Sum over the requests that arrived in the window; an uncompleted one counts with its waiting time so far."""
    totals = _Tally(out)
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
            totals.failed += request.fate == FAILED
            continue
        code, its = 0, ints(request)
        for s in range(segments):
            code = code * widths + its[_SERVERS_AT + segments + s]
            if s > 0:
                totals.moves += its[_SERVERS_AT + s] != its[_SERVERS_AT + s - 1]
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
        accuracy: the mean prior of the completed ones' width tuples: accuracy without random labels.
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
    totals, counts = _Tally.blank(), np.zeros(_BUCKETS, np.int64)
    program, records = run.program, run.records.requests[: run.cluster.request_rows]
    tally(
        records.view(np.int64), records.itemsize // 8, begin_ns, run.cluster.horizon_ns, program.segments,
        program.width_count, priors, counts, totals.numbers,
    )  # fmt: skip
    total = max(1, totals.counted)
    completed = max(1, totals.counted - totals.unfinished)
    mean_s = totals.sum_s / total
    classes = [Tally(run.cluster, run.shape.p.tallies_at, number) for number in range(run.shape.p.classes)]
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
        class_images=tuple(each.completed for each in classes),
        class_accuracies=tuple(each.accuracy_sum / max(1, each.completed) for each in classes),
    )


def _drawn_j(run: RunRow) -> float:
    return sum(energy_j(run, index, run.cluster.ended_ns) for index in range(len(run.program.cluster.devices)))


def tuple_priors(program: Program) -> npt.NDArray[np.float64]:
    """Return the accuracy prior of every width tuple, by its number."""
    p = Parameters(program.parameters)
    size = program.width_count**program.segments
    at = p.prior_at + int(program.parameters[p.prior_levels_at + program.segments - 1])
    return program.parameters.view(np.float64)[at : at + size].copy()
