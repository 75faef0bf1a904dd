"""What a search wants to know of a run, from its records, in compiled code: no list, no lock of the interpreter."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

import numpy as np
import numpy.typing as npt

from policies.jit import Ints, Reals, entry, ints
from sim.compiled.layout import *
from sim.compiled.program import Program
from sim.compiled.simulation import RunRow

_BUCKETS = 4096
_FIRST_S, _RATIO = 1e-5, 1.005  # of a histogram of latencies; 4096 buckets reach 7000 s
_COUNTED, _UNFINISHED, _SUM, _SQUARES, _ACCURACY, _MOVES, _P50, _P99, _SIZE = range(9)


@entry
def tally(
    records: Ints, count: int, begin_ns: int, end_ns: int, segments: int, widths: int, prior: Reals,
    counts: Ints, out: Reals,
) -> None:  # fmt: skip
    """Over the requests that arrived in the window; one that did not complete counts with the time it has waited."""
    size = records.shape[1]
    k, total = ints(records), 0
    servers_at = A_STAGES + STAGE_COUNT + 1
    for n in range(count):
        a = n * size
        arrived = k[a + A_ARRIVED]
        if arrived < begin_ns or arrived > end_ns:
            continue
        latency_s = (k[a + A_FINISHED] - arrived) / 1e9
        total += 1
        out[_SUM] += latency_s
        out[_SQUARES] += latency_s * latency_s
        bucket = int(log(max(latency_s, _FIRST_S) / _FIRST_S) / log(_RATIO))
        counts[min(bucket, _BUCKETS - 1)] += 1
        if k[a + A_FATE] != COMPLETED:
            out[_UNFINISHED] += 1
            continue
        code = 0
        for s in range(segments):
            code = code * widths + k[a + servers_at + segments + s]
            if s > 0:
                out[_MOVES] += k[a + servers_at + s] != k[a + servers_at + s - 1]
        out[_ACCURACY] += prior[code]
    out[_COUNTED] = total
    passed, below = 0, 0
    for bucket in range(_BUCKETS):
        passed += counts[bucket]
        if below == 0 and 2 * passed >= total:
            out[_P50], below = _FIRST_S * exp((bucket + 0.5) * log(_RATIO)), 1
        if 100 * passed >= 99 * total:
            out[_P99] = _FIRST_S * exp((bucket + 0.5) * log(_RATIO))
            return


@dataclass(frozen=True, slots=True)
class RunScore:
    """A run in a few figures, over the requests that arrived after the warm-up.

    Attributes:
        images: those requests; `unfinished` of them failed or were in flight at the end.
        mean_s, std_s: latencies; an unfinished one counts with the time it waited.
        p50_s, p99_s: within 0.5 %.
        accuracy: the mean prior of the completed ones' width tuples: accuracy without the chance of labels.
        moves: an image's changes of server.
        decisions: of the whole run.
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


def score_run(run: RunRow, priors: npt.NDArray[np.float64], begin_ns: int) -> RunScore:
    """The figures of a run that has ended; `priors` by the number of a width tuple (`tuple_priors`)."""
    row, counts, out = run.row, np.zeros(_BUCKETS, np.int64), np.zeros(_SIZE)
    program, records = run.program, run.records.requests
    tally(
        records, int(row[C_REQUEST_RECORDS]), begin_ns, int(row[C_HORIZON]), program.segments, program.width_count,
        priors, counts, out,
    )  # fmt: skip
    total = max(1.0, out[_COUNTED])
    completed = max(1.0, out[_COUNTED] - out[_UNFINISHED])
    mean_s = float(out[_SUM] / total)
    return RunScore(
        images=int(out[_COUNTED]),
        unfinished=int(out[_UNFINISHED]),
        mean_s=mean_s,
        std_s=float(np.sqrt(max(0.0, out[_SQUARES] / total - mean_s * mean_s))),
        p50_s=float(out[_P50]),
        p99_s=float(out[_P99]),
        accuracy=float(out[_ACCURACY] / completed),
        moves=float(out[_MOVES] / completed),
        decisions=int(row[C_DECISION]),
    )


def tuple_priors(program: Program) -> npt.NDArray[np.float64]:
    """The accuracy prior of every width tuple, by its number."""
    p = program.parameters
    size = program.width_count**program.segments
    at = p[P_PRIOR] + p[p[P_PRIOR_LEVELS] + program.segments - 1]
    return p.view(np.float64)[at : at + size].copy()
