"""Predictability of durations: each job is predicted only from jobs that had ended when it was submitted.

The error is a factor, `exp|log estimate - log truth|`; half of the estimates are off by at most its median.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from math import isfinite
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.trace import JobTrace

WINDOW: Final = 5  # the best of 1, 3, 5, 10, 20 for ThetaGPU and Theta together (docs/jobs.md)

TELL_EVERY: Final = 50_000  # jobs


def classes_of(user: str, vc: str, gpus: int, requested_s: float) -> Sequence[Hashable]:
    """Return the classes that a job belongs to, the narrowest first; the last one contains all jobs.

    Args:
        requested_s: not-a-number if none was requested.
    """
    user_gpus, vc_gpus = (user, gpus), (vc, gpus)
    wide: list[Hashable] = [("user", user_gpus), ("vc", vc_gpus), ("gpus", gpus), "all"]
    if not isfinite(requested_s):
        return [("user in vc", vc, user_gpus), *wide]
    narrow = ("user", user_gpus, requested_s)
    return [("user in vc", vc, *narrow), narrow, *wide]


def accuracies(trace: JobTrace, told: Callable[[int], None] = lambda jobs: None) -> list[dict[str, Any]]:
    """Evaluate requested times and history: the share of jobs with an estimate, and its error.

    Args:
        told: is called with the number of jobs predicted so far.
    """
    requested = np.where(trace.requested_s > 0, trace.requested_s, np.nan)
    estimates = {"requested": requested, "history": predictions(trace, told)}
    return [{"name": name, **_accuracy(estimate_s, trace)} for name, estimate_s in estimates.items()]


def predictions(trace: JobTrace, told: Callable[[int], None] = lambda jobs: None) -> NDArray[np.float64]:
    """Return history's prediction of each job at submission; not-a-number if it has none.

    A prediction is the median of the last `WINDOW` jobs of the narrowest class with an ended job, at most the requested
    time.
    """
    columns: tuple[Any, ...] = (trace.user, trace.vc, trace.gpus, trace.requested_s)
    known = list(zip(*(column.tolist() for column in columns), strict=True))
    end_s = trace.recorded_end_s
    predicted_s = np.full(len(trace), np.nan)
    durations_s: defaultdict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
    run_s, ended = trace.run_s.tolist(), iter(np.argsort(end_s, kind="stable").tolist())
    next_end = next(ended, None)
    for job, submit_s in enumerate(trace.submit_s.tolist()):
        while next_end is not None and end_s[next_end] <= submit_s:
            for each in classes_of(*known[next_end]):
                durations_s[each].append(run_s[next_end])
            next_end = next(ended, None)
        narrowest = next((each for each in classes_of(*known[job]) if each in durations_s), None)
        if narrowest is not None:
            predicted_s[job] = median(durations_s[narrowest])
        if job % TELL_EVERY == TELL_EVERY - 1:
            told(job + 1)
    return np.where(trace.requested_s > 0, np.minimum(predicted_s, trace.requested_s), predicted_s)


def _accuracy(estimate_s: NDArray[np.float64], trace: JobTrace) -> dict[str, float | None]:
    is_known = np.isfinite(estimate_s)
    if not is_known.any():
        return {"known_share": 0.0, "factor_median": None, "factor_p90": None, "within_two": None}
    factors = np.exp(np.abs(np.log(estimate_s[is_known]) - np.log(trace.run_s[is_known])))
    middle, high = np.quantile(factors, [0.5, 0.9]).tolist()
    within_two = float((factors <= 2).mean())
    return {
        "known_share": float(is_known.mean()),
        "factor_median": middle,
        "factor_p90": high,
        "within_two": within_two,
    }


# -------------------------------------------------------------------------------------------------------------- summary
# Summary of a trace: load, sizes, durations, users, virtual clusters, waits, predictability.


Numbers = NDArray[np.float64]
DAY_S: Final = 86400.0
QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
SCHEMA: Final = "slimsched.jobsummary/1"


def summarize(
    trace: JobTrace, gpus: int | None = None, told: Callable[[int], None] = lambda jobs: None
) -> dict[str, Any]:
    """Summarize a trace in numbers.

    Args:
        gpus: GPUs of the cluster for which to report the load.
        told: is called with the number of jobs processed so far.
    """
    return {
        "schema": SCHEMA,
        "provenance": dict(trace.provenance),
        "jobs": len(trace),
        "days": float(trace.submit_s[-1]) / DAY_S,
        "gpu_hours": float(trace.gpu_s.sum()) / 3600,
        "load": _load(trace, gpus),
        "durations": _spread(trace.run_s),
        "sizes": _sizes(trace),
        "users": _groups(trace, "user"),
        "vcs": _groups(trace, "vc"),
        "gpu_types": _groups(trace, "gpu_types"),
        "statuses": _groups(trace, "status"),
        "more_than_one_attempt_share": float((trace.attempts > 1).mean()),
        "recorded_waits": _waits(trace),
        "prediction": accuracies(trace, told),
    }


def _load(trace: JobTrace, gpus: int | None) -> dict[str, Any]:
    """Return the GPUs that the work submitted a day keeps busy: its GPU-seconds over the day's seconds."""
    span_s = float(trace.submit_s[-1])
    whole_days = int(span_s // DAY_S)
    busy = np.bincount((trace.submit_s // DAY_S).astype(np.int64), weights=trace.gpu_s) / DAY_S
    days = busy[:whole_days]  # the last one is incomplete
    mean = float(trace.gpu_s.sum()) / span_s if span_s else None
    return {
        "busy_gpus": mean,
        "busy_gpus_by_day": busy.tolist(),
        "days_quantiles": _quantiles(days) if len(days) else None,
        "gpus": gpus,
        "load": None if gpus is None or mean is None else mean / gpus,
        "days_above_capacity_share": None if gpus is None or not len(days) else float((days > gpus).mean()),
    }


def _spread(values: Numbers) -> dict[str, Any]:
    mean = float(values.mean())
    return {
        "mean_s": mean,
        "cv2": float(values.var()) / mean**2 if mean else None,
        "quantiles_s": _quantiles(values),
    }


def _quantiles(values: Numbers) -> dict[str, float]:
    names = ("max" if share == 1 else f"p{share * 100:g}" for share in QUANTILES)
    return dict(zip(names, np.quantile(values, QUANTILES).tolist(), strict=True))


def _sizes(trace: JobTrace) -> list[dict[str, Any]]:
    """Return, by GPUs or parts of one, the number of jobs, their share of the GPU time, and their run times."""
    sizes, codes = np.unique(trace.gpus_used, return_inverse=True)
    counts, gpu_s = np.bincount(codes), np.bincount(codes, weights=trace.gpu_s)
    order = np.argsort(codes, kind="stable")
    runs = np.split(trace.run_s[order], np.cumsum(counts)[:-1])
    return [
        {
            "gpus": int(size) if size >= 1 else float(size),
            "jobs": int(count),
            "gpu_time_share": float(share),
            "run_mean_s": float(run_s.mean()),
            "run_p50_s": float(np.median(run_s)),
        }
        for size, count, share, run_s in zip(sizes, counts, gpu_s / gpu_s.sum(), runs, strict=True)
    ]


def _groups(trace: JobTrace, column: str) -> list[dict[str, Any]]:
    """Return, by a column's text, jobs and share of the GPU time, the largest first."""
    names, codes = trace.codes(column)
    counts = np.bincount(codes, minlength=len(names))
    shares = np.bincount(codes, weights=trace.gpu_s, minlength=len(names)) / trace.gpu_s.sum()
    order = np.argsort(-shares, kind="stable")
    return [{"name": str(names[k]), "jobs": int(counts[k]), "gpu_time_share": float(shares[k])} for k in order]


def _waits(trace: JobTrace) -> dict[str, Any]:
    """Summarize the waits of jobs whose log recorded one."""
    known = trace.recorded_wait_s[np.isfinite(trace.recorded_wait_s)]
    spread = _spread(known) if len(known) else {"mean_s": None, "cv2": None, "quantiles_s": None}
    return {"known_share": len(known) / len(trace), **spread}
