"""What a trace holds, as a document: load, sizes, durations, users, virtual clusters, waits, predictability."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.predictability import accuracies
from jobs.trace import JobTrace

Numbers = NDArray[np.float64]
DAY_S: Final = 86400.0
QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
SCHEMA: Final = "slimsched.jobsummary/1"


def summarize(
    trace: JobTrace, gpus: int | None = None, told: Callable[[int], None] = lambda jobs: None
) -> dict[str, Any]:
    """A trace in numbers.

    Args:
        gpus: of the cluster that its load is told for.
        told: is called with the number of jobs that were looked at so far.
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
        "prediction": [asdict(each) for each in accuracies(trace, told)],
    }


def _load(trace: JobTrace, gpus: int | None) -> dict[str, Any]:
    """GPUs that the work submitted a day keeps busy: its GPU-seconds over the day's seconds."""
    span_s = float(trace.submit_s[-1])
    whole_days = int(span_s // DAY_S)
    busy = np.bincount((trace.submit_s // DAY_S).astype(np.int64), weights=trace.gpu_s) / DAY_S
    days = busy[:whole_days]  # the last one is not whole
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
    """By GPUs, or parts of one: how many jobs, their share of the GPU time, and how long they run."""
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
    """By a column's text: jobs and share of the GPU time, the largest first."""
    names, codes = trace.codes(column)
    counts = np.bincount(codes, minlength=len(names))
    shares = np.bincount(codes, weights=trace.gpu_s, minlength=len(names)) / trace.gpu_s.sum()
    order = np.argsort(-shares, kind="stable")
    return [{"name": str(names[k]), "jobs": int(counts[k]), "gpu_time_share": float(shares[k])} for k in order]


def _waits(trace: JobTrace) -> dict[str, Any]:
    """Of the jobs whose log told it."""
    known = trace.recorded_wait_s[np.isfinite(trace.recorded_wait_s)]
    found = _spread(known) if len(known) else {"mean_s": None, "cv2": None, "quantiles_s": None}
    return {"known_share": len(known) / len(trace), **found}
