"""Traces of training jobs in their normal form, `slimsched.jobtrace/1`, and how predictable their durations are.

The normal form is one Parquet file, sorted by submit time.

Predictions (`predictions`): each job is predicted only from jobs that had ended when it was submitted. A prediction's
error is a factor, `exp|log estimate - log truth|`; half of the estimates are off by at most the median factor.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jobs.policies.job_cluster import JobArrived, is_share
from kit.errors import InputError, in_a_line, nearest
from kit.files import atomic_path, require_file
from kit.units import NS_PER_S

if TYPE_CHECKING:
    import pyarrow


SCHEMA: Final = "slimsched.jobtrace/1"
STATUSES: Final = ("completed", "failed", "cancelled", "timeout", "node_fail", "unknown")
_MAY_BE_UNKNOWN: Final = ("requested_s", "recorded_wait_s", "recorded_start_s")
MAX_TRACE_BYTES: Final = 1 << 38
SLICE_ROWS: Final = 1 << 18
_KEY: Final = b"slimsched"
_REMEDY: Final = "make it with `slimsched jobs import` or `slimsched jobs generate`"
Texts = NDArray[np.object_]
Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class JobTrace:
    """Jobs in the order of their submit times; all columns have one length. Job i of a run is row i.

    Attributes:
        submit_s: submission, from the trace's start.
        run_s: run time at the reference type, alone.
        gpu_types: GPU types that it may use, joined by `|`; empty for any.
        requested_s, recorded_wait_s, recorded_start_s: not-a-number if the log has no value.
        status: how it ended, one of `STATUSES`.
        attempts: number of its starts.
        job_class: its row in a table of speeds; empty if there is none.
        gpu_share: the part of its one GPU that it needs, in whole thousandths; 1 for all of it.
        nodes: the least number of nodes over which its GPUs are spread evenly (Slurm's `--nodes`); 1 for no constraint.
        provenance: its origin: `format`, `file`, `start` (calendar time, or None) and counts.
    """

    job_id: Texts
    submit_s: Numbers
    run_s: Numbers
    gpus: Counts
    user: Texts
    vc: Texts
    gpu_types: Texts
    requested_s: Numbers
    recorded_wait_s: Numbers
    recorded_start_s: Numbers
    status: Texts
    attempts: Counts
    job_class: Texts
    gpu_share: Numbers
    nodes: Counts
    provenance: Mapping[str, Any]

    @staticmethod
    def of(submit_s: ArrayLike, run_s: ArrayLike, gpus: ArrayLike, **others: Any) -> JobTrace:
        """Build a trace from the required columns and any others; sorts by submission."""
        provenance, count = others.pop("provenance", {}), len(np.asarray(submit_s))
        defaults = {"Texts": "", "Numbers": np.nan, "Counts": 1}
        types = {"Texts": object, "Numbers": float, "Counts": np.int64}
        columns: dict[str, Any] = {name: [defaults[kind]] * count for name, kind in _KINDS.items()}
        columns |= {"job_id": list(map(str, range(count))), "status": ["unknown"] * count, "gpu_share": [1.0] * count}
        columns |= {"submit_s": submit_s, "run_s": run_s, "gpus": gpus, **others}
        assert columns.keys() == _KINDS.keys(), f"no such columns among {', '.join(others)}"
        order = np.argsort(np.asarray(submit_s, float), kind="stable")
        arrays = {name: np.asarray(columns[name], types[kind])[order] for name, kind in _KINDS.items()}
        return JobTrace(**arrays, provenance=provenance)

    def __len__(self) -> int:
        return len(self.job_id)

    def rows(self, which: Any) -> JobTrace:
        """Return some of the jobs, in their order (a mask, a slice)."""
        return replace(self, **{name: getattr(self, name)[which] for name in COLUMNS})

    @property
    def recorded_end_s(self) -> Numbers:
        """Each job's end in the log; if no start is recorded, as if it had not waited."""
        return np.where(np.isfinite(self.recorded_start_s), self.recorded_start_s, self.submit_s) + self.run_s

    @property
    def gpu_s(self) -> Numbers:
        """GPU-seconds of each job, at the reference type."""
        return self.run_s * self.gpus_used

    @property
    def gpus_used(self) -> Numbers:
        """GPUs of each job: below 1 for a job with a share of one."""
        return np.asarray(self.gpus * self.gpu_share)

    @property
    def submit_ns(self) -> Counts:
        """Submission times in whole nanoseconds."""
        return np.round(self.submit_s * NS_PER_S).astype(np.int64)

    @property
    def work_ns(self) -> Counts:
        """Run times at the reference type in whole nanoseconds, unknown to schedulers."""
        return np.round(self.run_s * NS_PER_S).astype(np.int64)

    @property
    def asked_types(self) -> set[str]:
        """The types of GPUs that any job requests."""
        return {kind for text in set(self.gpu_types.tolist()) for kind in text.split("|") if kind}

    @property
    def days(self) -> float:
        """Days from the first submission to the last."""
        return float(self.submit_s[-1] - self.submit_s[0]) / 86400

    @property
    def run_cv2(self) -> float:
        """C^2 of the run times: the variance over the squared mean."""
        return float(self.run_s.var() / self.run_s.mean() ** 2)

    def load_on(self, gpus: int) -> float:
        """Return requested GPU time over that of `gpus` GPUs between first and last submission; infinite if equal."""
        span_s = float(self.submit_s[-1] - self.submit_s[0])
        return float(self.gpu_s.sum()) / (gpus * span_s) if span_s > 0 else np.inf

    def at_load(self, load: float, gpus: int) -> JobTrace:
        """Scale the submission times so that the jobs are this load on `gpus` GPUs.

        Raises:
            InputError: all jobs are submitted at once.
        """
        if (present := self.load_on(gpus)) == np.inf:
            raise InputError("load", "", "all jobs are submitted at once: no rate of arrivals gives a load")
        return replace(self, submit_s=self.submit_s * (present / load))

    def arrivals(self) -> list[JobArrived]:
        """Return each job as a scheduler receives it, without its run time."""
        requested = np.round(self.requested_s * NS_PER_S)
        milli = np.round(self.gpu_share * 1000).astype(np.int64).tolist()
        return [
            JobArrived(
                row,
                int(self.gpus[row]),
                submit_ns,
                str(self.user[row]),
                str(self.vc[row]),
                tuple(self.gpu_types[row].split("|")) if self.gpu_types[row] else (),
                None if np.isnan(requested[row]) else int(requested[row]),
                str(self.job_class[row]),
                gpu_milli=milli[row],
                nodes=int(self.nodes[row]),
            )
            for row, submit_ns in enumerate(self.submit_ns.tolist())
        ]

    def codes(self, column: str) -> tuple[Texts, NDArray[np.int32]]:
        """Return a column's distinct texts, and each job's index among them."""
        import pyarrow

        coded = pyarrow.array(getattr(self, column), pyarrow.string()).dictionary_encode()
        return coded.dictionary.to_numpy(zero_copy_only=False), coded.indices.to_numpy()


_KINDS: Final[Mapping[str, str]] = {
    field.name: str(field.type) for field in fields(JobTrace) if field.name != "provenance"
}
COLUMNS: Final = tuple(_KINDS)


def arrow_schema(provenance: Mapping[str, Any]) -> pyarrow.Schema:
    """Return the file's columns with its metadata."""
    import pyarrow

    kinds = {"Texts": pyarrow.string(), "Numbers": pyarrow.float64(), "Counts": pyarrow.int32()}
    text = json.dumps({"schema": SCHEMA, **provenance}, sort_keys=True, allow_nan=False)
    columns = [pyarrow.field(name, kinds[kind], nullable=False) for name, kind in _KINDS.items()]
    return pyarrow.schema(columns, {_KEY: text.encode()})


def write_trace(path: Path, trace: JobTrace) -> None:
    """Write a trace's file, completely or not at all; equal traces give equal bytes, with one version of pyarrow."""
    import pyarrow

    write_slices(path, [pyarrow.table({name: getattr(trace, name) for name in COLUMNS})], trace.provenance)


def write_slices(path: Path, slices: Iterable[pyarrow.Table], provenance: Mapping[str, Any]) -> None:
    """Write a trace's file from consecutive tables, completely or not at all."""
    from pyarrow import parquet

    schema = arrow_schema(provenance)
    with atomic_path(path) as temporary, parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for table in slices:
            writer.write_table(table.cast(schema), row_group_size=SLICE_ROWS)


def read_trace(path: Path) -> JobTrace:
    """Read and check a trace from its file.

    Raises:
        InputError: it is missing, of another kind or version, or a column has invalid values.
    """
    from pyarrow import ArrowException, parquet

    require_file(path, MAX_TRACE_BYTES)
    try:
        with parquet.ParquetFile(path) as file:
            provenance = _provenance(file.schema_arrow, str(path))
            table = file.read(list(COLUMNS))
        columns = {name: table[name].to_numpy() for name in COLUMNS}
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        problem = f"not a trace of jobs, or damaged ({in_a_line(str(error), 100)}); {_REMEDY}"
        raise InputError(str(path), "", problem) from None
    for name, kind in _KINDS.items():
        if (nulls := table[name].null_count) > 0:
            raise InputError(str(path), name, f"{nulls:,} rows hold nothing; {_REMEDY}")
        if kind == "Counts":
            columns[name] = columns[name].astype(np.int64)
    trace = JobTrace(**columns, provenance=provenance)
    _check(trace, str(path))
    return trace


def is_imported(path: Path) -> bool:
    """Return whether a file is a trace imported from a log."""
    from pyarrow import ArrowException, parquet

    try:
        return "left_out" in _provenance(parquet.read_schema(path), str(path))
    except (ArrowException, OSError, InputError):
        return False


def _provenance(schema: pyarrow.Schema, source: str) -> dict[str, Any]:
    """Return the provenance in a file with the right columns."""
    try:
        document = json.loads((schema.metadata or {}).get(_KEY, b"{}"))
        name = document.pop("schema", None)
    except (ValueError, RecursionError, AttributeError):
        name = None
    if name != SCHEMA:
        raise InputError(source, "schema", f"{name!r:.80}; expected {SCHEMA!r}: {_REMEDY}")
    kinds = {each.name: each.type for each in schema}
    for column in arrow_schema({}):
        if (kind := kinds.get(column.name)) is None:
            raise InputError(source, column.name, f"no such column; {nearest(column.name, kinds)}: {_REMEDY}")
        if kind != column.type:
            raise InputError(source, column.name, f"holds {kind}, not {column.type}; {_REMEDY}")
    if tuple(each for each in kinds if each in COLUMNS) != COLUMNS:
        raise InputError(source, "", f"columns in the order {', '.join(kinds)}; expected {', '.join(COLUMNS)}")
    return dict(document)


def _check(trace: JobTrace, source: str) -> None:
    if not len(trace):
        raise InputError(source, "", "holds no job; a trace has at least one")
    statuses, status = trace.codes("status")
    seconds = "seconds, or NaN"  # comparisons with NaN are false
    rules = [
        ("submit_s", np.isfinite(trace.submit_s) & (trace.submit_s >= 0), "finite seconds from 0"),
        ("submit_s", np.diff(trace.submit_s, prepend=-np.inf) >= 0, "times in order: sort by submit_s"),
        ("run_s", np.isfinite(trace.run_s) & (trace.run_s > 0), "finite seconds above 0"),
        ("gpus", trace.gpus >= 1, "1 or more"),
        ("attempts", trace.attempts >= 1, "1 or more"),
        ("gpu_share", is_share(trace.gpu_share, trace.gpus), "0.001 to 1, below 1 of one GPU alone"),
        ("nodes", (trace.nodes >= 1) & (trace.nodes <= trace.gpus), "1 to the job's GPUs"),
        *((name, ~((values := getattr(trace, name)) < 0) & ~np.isinf(values), seconds) for name in _MAY_BE_UNKNOWN),
        ("status", np.isin(statuses, STATUSES)[status], ", ".join(STATUSES)),
    ]
    for name, is_right, allowed in rules:
        if not is_right.all():
            row = int(np.argmin(is_right))
            problem = f"row {row}: {getattr(trace, name).tolist()[row]!r:.80}; expected {allowed}"
            raise InputError(source, name, problem)
    names, codes = trace.codes("job_id")
    if len(names) < len(codes):
        twice = names[int(np.argmax(np.bincount(codes) > 1))]
        raise InputError(source, "job_id", f"{twice!r:.80} occurs more than once; ids must differ")


# ------------------------------------------------------------------------------------------------------- predictability


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


def accuracies(trace: JobTrace, on_progress: Callable[[int], None] = lambda jobs: None) -> list[dict[str, Any]]:
    """Evaluate requested times and history: the share of jobs with an estimate, and its error.

    Args:
        on_progress: is called with the number of jobs predicted so far.
    """
    requested = np.where(trace.requested_s > 0, trace.requested_s, np.nan)
    estimates = {"requested": requested, "history": predictions(trace, on_progress)}
    return [{"name": name, **_accuracy(estimate_s, trace)} for name, estimate_s in estimates.items()]


def predictions(trace: JobTrace, on_progress: Callable[[int], None] = lambda jobs: None) -> NDArray[np.float64]:
    """Return history's prediction of each job at submission; not-a-number if it has none.

    A prediction is the median of the last `WINDOW` jobs of the narrowest class with an ended job, at most the requested
    time.
    """
    columns: tuple[Any, ...] = (trace.user, trace.vc, trace.gpus, trace.requested_s)
    features = list(zip(*(column.tolist() for column in columns), strict=True))
    end_s = trace.recorded_end_s
    predicted_s = np.full(len(trace), np.nan)
    durations_s: defaultdict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
    run_s, ended = trace.run_s.tolist(), iter(np.argsort(end_s, kind="stable").tolist())
    next_end = next(ended, None)
    for job, submit_s in enumerate(trace.submit_s.tolist()):
        while next_end is not None and end_s[next_end] <= submit_s:
            for job_class in classes_of(*features[next_end]):
                durations_s[job_class].append(run_s[next_end])
            next_end = next(ended, None)
        narrowest = next((job_class for job_class in classes_of(*features[job]) if job_class in durations_s), None)
        if narrowest is not None:
            predicted_s[job] = median(durations_s[narrowest])
        if job % TELL_EVERY == TELL_EVERY - 1:
            on_progress(job + 1)
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


DAY_S: Final = 86400.0
QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
SUMMARY_SCHEMA: Final = "slimsched.jobsummary/1"


def summarize(
    trace: JobTrace, gpus: int | None = None, on_progress: Callable[[int], None] = lambda jobs: None
) -> dict[str, Any]:
    """Summarize a trace in numbers.

    Args:
        gpus: GPUs of the cluster for which to report the load.
        on_progress: is called with the number of jobs processed so far.
    """
    return {
        "schema": SUMMARY_SCHEMA,
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
        "prediction": accuracies(trace, on_progress),
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
    return {"mean_s": mean, "cv2": float(values.var()) / mean**2 if mean else None, "quantiles_s": _quantiles(values)}


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
    waits_s = trace.recorded_wait_s[np.isfinite(trace.recorded_wait_s)]
    spread = _spread(waits_s) if len(waits_s) else {"mean_s": None, "cv2": None, "quantiles_s": None}
    return {"known_share": len(waits_s) / len(trace), **spread}
