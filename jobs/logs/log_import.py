"""Import of a log as a trace: rows of one job are joined, rows that make no job left out.

Rows of one job (`Log.jobs`) are the attempts of a requeued job, or the parts of a heterogeneous one.

`import_log` keeps the columns in memory until the end of the log, because a trace is sorted by submit time: at the peak
some 280 bytes a job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from jobs.job_traces import COLUMNS, SLICE_ROWS, write_slices
from jobs.logs.log_formats import FORMATS, format_of
from jobs.logs.log_rows import (
    EARLIEST_S,
    FORMS,
    LATEST_S,
    NAIVE,
    NO_GPU,
    OPEN,
    REQUEUED,
    TEXT_COLUMNS,
    UNITS_S,
    UNSTARTED,
    ZONED,
    ImportStats,
    Mask,
    Options,
    table_of,
)
from jobs.logs.sacct import keep_asked_nodes
from kit.errors import InputError

LONGEST_BETWEEN_S: Final = 30 * 86400.0  # a requeued job is back in the queue at once; ids repeat much later
LONGEST_SUBMIT_S: Final = 10.0  # of all parts of a heterogeneous job
NOT_ENDED: Final = "not yet ended"
NOT_STARTED: Final = "never started"
RAN_NOT: Final = "ran for 0 s"
TWINS: Final = "an attempt that an earlier row has"
AGAIN: Final = "an id that an earlier row has"
ATTEMPTS: Final = "further attempts of requeued jobs, joined with their first"
PARTS: Final = "further parts of heterogeneous jobs, joined with their first: GPUs are summed"
OTHERS: Final = "have the id of a job of another user, account, cluster or time: separate jobs, named ID#2"
Indices = NDArray[np.int64]


# ------------------------------------------------------------------------------------------------------ rows of one job


@dataclass(slots=True)
class Log:
    """All remaining rows of a log, in its order.

    Attributes:
        texts, numbers: their columns; joining replaces the values of the row that represents a job.
    """

    texts: Any
    numbers: dict[str, NDArray[Any]]
    stats: ImportStats

    def jobs(self, *, joins: bool, sums: bool) -> Indices:
        """Return the rows that represent jobs, with distinct ids.

        Args:
            joins: rows of one id may be attempts of one job; otherwise only the first is kept.
            sums: a job's run time is the sum over its attempts; otherwise that of the last one.
        """
        ids = codes_of(self.texts["job_id"].combine_chunks())
        if ids is None or not joins:
            order = np.arange(len(self.texts))
            order, _ = self._ended(order, order + 1)
            has_run = self.numbers["run_s"][order] > 0
            self.stats.left_out.add(RAN_NOT, self.numbers["line"][order[~has_run]])
            order = order[has_run]
            if ids is None:
                return order
            order = order[np.argsort(ids[order], kind="stable")]
            is_first = is_next(ids[order])
            self.stats.left_out.add(AGAIN, self.numbers["line"][order[~is_first]])
            return order[is_first]
        for name, column in self.numbers.items():
            self.numbers[name] = column.copy()  # Arrow's memory is read-only
        keys = ids, self.texts["whose"].combine_chunks().indices.to_numpy()
        submitted_s, start_s, part, line, kind = self._of("submitted_s", "start_s", "part", "line", "kind")
        # attempts last: of two exports, the later has the end of jobs that were open in the earlier
        order = np.lexsort((line, part, start_s, kind <= REQUEUED, submitted_s, *keys[::-1]))
        order = self._whole(self._without_twins(order, keys), keys)
        order = self._of_attempts(*self._ended(order, np.cumsum(self._begins(order, keys))), sums)
        self._name_apart(order, ids)
        return order

    def _of(self, *names: str, rows: Any = slice(None)) -> list[NDArray[Any]]:
        return [self.numbers[name][rows] for name in names]

    def _without_twins(self, order: Indices, keys: Sequence[Indices]) -> Indices:
        """Drop duplicates: attempts of one id with the same submission and start."""
        is_attempt = self.numbers["kind"][order] <= REQUEUED
        times = self._of("submitted_s", "start_s", "part", rows=order)
        is_twin = ~is_next(*(key[order] for key in keys), *times) & is_attempt & np.roll(is_attempt, 1)
        self.stats.left_out.add(TWINS, self.numbers["line"][order[is_twin]])
        return order[~is_twin]

    def _whole(self, order: Indices, keys: Sequence[Indices]) -> Indices:
        """Merge parts of a heterogeneous job, submitted together, attempt by attempt: the first represents them."""
        if not len(rows := order[self.numbers["part"][order] >= 0]):
            return order
        part, submitted_s = self._of("part", "submitted_s", rows=rows)
        is_first = is_next(*(key[rows] for key in keys))
        is_first[1:] |= (np.diff(part) <= 0) | (np.diff(submitted_s) > LONGEST_SUBMIT_S)
        begins, first = np.flatnonzero(is_first), rows[is_first]
        for name, of_all in (("gpus", np.add), ("nodes", np.maximum), ("run_s", np.maximum), ("requested_s", np.fmax)):
            self.numbers[name][first] = of_all.reduceat(self.numbers[name][rows], begins)
        types = np.split(self.texts["gpu_types"].take(pyarrow.array(rows)).to_numpy(), begins[1:])
        self._replace("gpu_types", first, ["|".join(sorted(set("|".join(texts).split("|")) - {""})) for texts in types])
        self.stats.noted.add(PARTS, self.numbers["line"][rows[~is_first]])
        return order[~np.isin(order, rows[~is_first])]

    def _begins(self, order: Indices, keys: Sequence[Indices]) -> Mask:
        """Return a mask of jobs' first rows: an attempt of the same job is submitted after the previous one's end."""
        submitted_s, start_s, run_s, kind = self._of("submitted_s", "start_s", "run_s", "kind", rows=order)
        after_s = submitted_s[1:] - np.where(kind <= REQUEUED, start_s + run_s, submitted_s)[:-1]
        begins = is_next(*(key[order] for key in keys))
        begins[1:] |= ~((after_s >= 0) & (after_s <= LONGEST_BETWEEN_S))
        return begins

    def _ended(self, order: Indices, jobs: Indices) -> tuple[Indices, Indices]:
        """Return attempts of ended jobs, and the job of each; a job with an open or requeued last row has not ended."""
        kind, line = self._of("kind", "line", rows=order)
        is_last = np.append(jobs[1:] != jobs[:-1], True)
        is_open = np.isin(kind[is_last], (REQUEUED, OPEN))[jobs - 1]
        self.stats.left_out.add(NOT_ENDED, line[(kind == OPEN) | (is_open & (kind != UNSTARTED))])
        self.stats.left_out.add(NOT_STARTED, line[kind == UNSTARTED])
        is_kept = ~is_open & (kind <= REQUEUED)
        return order[is_kept], jobs[is_kept]

    def _of_attempts(self, order: Indices, jobs: Indices, sums: bool) -> Indices:
        """Let the last attempt of each job represent it."""
        if not len(order):
            return order
        is_first = is_next(jobs)
        begins = np.flatnonzero(is_first)
        ends = np.append(begins[1:], len(order)) - 1
        first, last = order[begins], order[ends]
        run_s, start_s, line, attempts = self._of("run_s", "start_s", "line", "attempts", rows=order)
        ran_s = np.add.reduceat(run_s, begins)
        counted_s = ran_s if sums else run_s[ends]
        is_kept = np.repeat(counted_s > 0, ends - begins + 1)
        self.stats.left_out.add(RAN_NOT, line[~is_kept])
        self.stats.noted.add(ATTEMPTS, line[is_kept & ~is_first])
        if (is_kept & ~is_first).any():
            earlier_s = float(((ran_s - run_s[ends]) * self.numbers["gpus"][last])[counted_s > 0].sum())
            how = "counted in (--attempts last leaves them out)" if sums else "left out (--attempts sum counts them in)"
            self.stats.messages.append(f"{earlier_s / 3600:,.0f} GPU-hours of attempts before the last are {how}")
        begun_s = np.where(run_s > 0, start_s, np.inf)  # an attempt of 0 s was not a start
        self.numbers["start_s"][last] = np.minimum.reduceat(begun_s, begins)
        self.numbers["attempts"][last] = np.add.reduceat(attempts, begins)
        self.numbers["run_s"][last] = counted_s
        for name in ("submit_s", "submitted_s"):
            self.numbers[name][last] = self.numbers[name][first]
        return np.asarray(last[counted_s > 0])

    def _name_apart(self, order: Indices, ids: Indices) -> None:
        """Give new ids to jobs whose id an earlier one has."""
        is_first, position = is_next(ids[order]), np.arange(len(order))
        ordinals = position - np.maximum.accumulate(np.where(is_first, position, 0)) + 1
        if len(others := order[~is_first]):
            self.stats.noted.add(OTHERS, self.numbers["line"][others])
            texts = self.texts["job_id"].take(pyarrow.array(others)).to_pylist()
            names = [f"{text}#{ordinal}" for text, ordinal in zip(texts, ordinals[~is_first], strict=True)]
            self._replace("job_id", others, names)

    def _replace(self, name: str, rows: Indices, texts: list[str]) -> None:
        column = self.texts[name].combine_chunks().cast(pyarrow.large_string())
        mask = np.zeros(len(column), bool)
        mask[rows] = True
        in_order = pyarrow.array(texts, pyarrow.large_string()).take(pyarrow.array(np.argsort(rows)))
        replaced = compute.replace_with_mask(column, pyarrow.array(mask), in_order)
        self.texts = self.texts.set_column(self.texts.column_names.index(name), name, replaced)


def codes_of(job_id: Any) -> Indices | None:
    """Return a number per distinct id; None if all differ. Ids that are plain integers are their own numbers.

    A table of all texts would temporarily take some 140 bytes a job.
    """
    is_number = compute.match_substring_regex(job_id, r"^(0|[1-9]\d{0,17})$")  # 007 is not 7
    column = job_id.cast(pyarrow.int64()) if compute.all(is_number).as_py() else job_id.dictionary_encode().indices
    codes: Indices = column.to_numpy().astype(np.int64)
    in_order = np.sort(codes)
    return codes if (in_order[1:] == in_order[:-1]).any() else None


def is_next(*codes: NDArray[Any]) -> Mask:
    """Return whether each row differs from the one before it in any of the columns."""
    mask = np.zeros(len(codes[0]), bool)
    mask[:1] = True
    for column in codes:
        mask[1:] |= column[1:] != column[:-1]
    return mask


# ----------------------------------------------------------------------------------------------------------- the import


LONG_GAP_S: Final = 180 * 86400
_SHORT_S: Final = 10.0  # a median run time below may be of minutes or hours
_LONG_S: Final = 30 * 86400.0  # and one above of milliseconds
_LONG_DAYS: Final = 20 * 365.25
_GRACE_S: Final = 600.0  # typical run time beyond a job's limit that sites allow (Slurm's OverTimeLimit)
_MANY: Final = 0.05  # of the jobs with a limit
_MAX_REASONS: Final = 3


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import.

    Attributes:
        format: the log's format; `is_detected` if the file itself determined it.
        start: the calendar time of the first submit, if it is known.
        run_p50_s: the median run time.
    """

    format: str
    is_detected: bool
    jobs: int
    days: float
    start: str | None
    run_p50_s: float
    stats: ImportStats

    def document(self) -> dict[str, Any]:
        """Return the result for JSON."""
        own = {name: getattr(self, name) for name in ("format", "jobs", "days", "start", "run_p50_s")}
        return {"schema": "slimsched.jobimport/1", **own, **self.stats.document()}


def import_log(
    log: Path,
    out: Path,
    name: str = "auto",
    options: Options | None = None,
    *,
    sums: bool = True,
    on_progress: Callable[[int], None] = lambda rows: None,
) -> Imported:
    """Read a log of any size and write its trace.

    Args:
        name: the format; `auto` detects it from the first lines.
        sums: a requeued job's run time is the sum over its attempts; otherwise that of the last one.
        on_progress: is called with the number of rows read so far.

    Raises:
        InputError: the file can't be parsed as such a log, or none of its rows makes a job.
    """
    options = options or Options()
    stats = ImportStats()
    tables = []
    is_date = False
    is_detected = name == "auto" and not options.columns
    log_format = format_of(log, options) if name == "auto" else name
    for rows in FORMATS[log_format].read(log, options, stats):
        tables.append(table_of(rows, options, stats))
        is_date |= bool(rows.is_calendar)
        on_progress(stats.rows)
    if len(stats.forms) > 1:
        mixed = " and ".join(f"{FORMS[form]} (line {line})" for form, line in stats.forms.items())
        raise InputError(str(log), "", f"mixes {mixed}; write all times in one form")
    if not sum(map(len, tables)):
        raise InputError(str(log), "", _nothing(stats))
    whole = _whole(tables, stats)
    if "used_nodes" in whole.numbers:
        keep_asked_nodes(whole.numbers, stats)
    order = whole.jobs(joins=FORMATS[log_format].joins, sums=sums)
    if not len(order):
        raise InputError(str(log), "", _nothing(stats))
    order = order[np.argsort(whole.numbers["submit_s"][order], kind="stable")]
    submit_s = whole.numbers["submit_s"][order]
    _tell_order(whole.numbers["submitted_s"][order], whole.numbers["line"][order], stats)
    start_s, days = float(submit_s[0]), float(submit_s[-1] - submit_s[0]) / 86400
    is_date |= not stats.forms.keys().isdisjoint((NAIVE, ZONED))
    if not is_date and start_s > LATEST_S:
        raise _no_seconds(log, start_s, int(whole.numbers["line"][order[0]]))
    start = None
    if is_date or start_s >= EARLIEST_S:
        start = datetime.fromtimestamp(start_s, UTC).isoformat(timespec="seconds")
    if start and not is_date:
        stats.messages.append("times are taken for Unix times: seconds since 1970")
    run_p50_s = float(np.median(whole.numbers["run_s"][order]))
    says_otherwise = " (otherwise give --unit)" if log_format == "csv" else ""
    if not _SHORT_S <= run_p50_s <= _LONG_S:
        stats.messages.append(f"the median run time is {run_p50_s:,.3g} s: are these seconds?{says_otherwise}")
    if log_format == "csv":
        _tell_limits(whole.numbers["run_s"][order], whole.numbers["requested_s"][order], stats)
    if days > _LONG_DAYS:
        stats.messages.append(f"the log spans {days / 365.25:,.0f} years: are its times in seconds?{says_otherwise}")
    provenance = {"format": log_format, "file": log.name, "start": start, "jobs": len(order), "rows": stats.rows}
    slices = (_normal(whole, order[begin : begin + SLICE_ROWS], start_s) for begin in range(0, len(order), SLICE_ROWS))
    write_slices(out, slices, {**provenance, "left_out": stats.left_out.document()})
    return Imported(log_format, is_detected, len(order), days, start, run_p50_s, stats)


def _whole(tables: list[pyarrow.Table], stats: ImportStats) -> Log:
    """Return all rows as one table, moving column by column, or each would be in memory twice."""
    table, numbers = pyarrow.concat_tables(tables), dict[str, NDArray[Any]]()
    tables.clear()
    for name in set(table.column_names) - {"job_id", *TEXT_COLUMNS}:
        numbers[name] = table[name].to_numpy()
        table = table.drop_columns([name])
    numbers.setdefault("submitted_s", numbers["submit_s"])
    return Log(table.unify_dictionaries().combine_chunks(), numbers, stats)


def _normal(log: Log, rows: NDArray[np.int64], start_of_trace_s: float) -> pyarrow.Table:
    """Return some rows in the normal form, with times from the trace's start."""
    columns = {name: column[rows] for name, column in log.numbers.items() if name in (*COLUMNS, "start_s")}
    texts = log.texts.select(["job_id", *(name for name in TEXT_COLUMNS if name in COLUMNS)]).take(pyarrow.array(rows))
    submit_s, start_s = columns["submit_s"], columns.pop("start_s")
    begun_s = np.where(start_s >= submit_s, start_s, np.nan)
    columns |= {name: texts[name].cast(pyarrow.string()) for name in texts.column_names}
    columns |= {
        "submit_s": submit_s - start_of_trace_s,
        "gpu_share": log.numbers["gpu_milli"][rows] / 1000,
        "requested_s": np.where(columns["requested_s"] > 0, columns["requested_s"], np.nan),
        "recorded_wait_s": begun_s - submit_s,
        "recorded_start_s": begun_s - start_of_trace_s,
    }
    return pyarrow.table({name: columns[name] for name in COLUMNS})


def _tell_limits(run_s: NDArray[np.float64], requested_s: NDArray[np.float64], stats: ImportStats) -> None:
    """Warn if many jobs ran past their limit and its grace: the limits are in another unit."""
    has_limit = requested_s > 0
    beyond = int((run_s[has_limit] > 1.1 * requested_s[has_limit] + _GRACE_S).sum())
    if beyond > _MANY * has_limit.sum():
        problem = f"{beyond:,} of {int(has_limit.sum()):,} jobs with a time limit ran longer than that"
        stats.messages.append(f"{problem}: is it in another unit? For minutes, --columns requested_s=COLUMN:min")


def _tell_order(submit_s: NDArray[np.float64], line: NDArray[np.int64], stats: ImportStats) -> None:
    """Warn of rows that are not in the order of their times, and of long gaps between them."""
    backwards = int((np.diff(submit_s[np.argsort(line)]) < 0).sum())
    if backwards:
        stats.messages.append(f"{backwards:,} rows were submitted before the row above them; they are sorted")
    order = np.argsort(submit_s, kind="stable")
    gaps_s = np.diff(submit_s[order])
    if len(gaps_s) and (gap_s := float(gaps_s.max())) > LONG_GAP_S:
        behind = int(line[order[int(gaps_s.argmax()) + 1]])
        problem = f"nothing was submitted for {gap_s / 86400:,.0f} days before line {behind}"
        stats.messages.append(f"{problem}: are these two logs, or is a year wrong?")


def _no_seconds(log: Path, start_s: float, line: int) -> InputError:
    """Return the error of times too large for seconds since 1970, or since the log's start."""
    units = [unit for unit in ("ms", "us", "ns") if EARLIEST_S <= UNITS_S[unit] * start_s <= LATEST_S]
    remedy = f"--unit {units[0]} takes all plain numbers for {units[0]}" if units else "write 2024-01-31T12:00:00"
    return InputError(str(log), f"line {line}", f"{start_s:.0f} s are after the year 2100, counted from 1970; {remedy}")


def _nothing(stats: ImportStats) -> str:
    """Return why no row makes a job, and a remedy."""
    if not stats.left_out:
        return "has no rows, only a header; a log has at least one job"
    reasons = sorted(stats.left_out.items(), key=lambda item: -item[1].rows)[:_MAX_REASONS]
    counts = "; ".join(f"{count.rows:,} {reason} (first: line {count.first_line})" for reason, count in reasons)
    remedy = (
        " If a Slurm log does not name GPUs (AccountingStorageTRES lacks gres/gpu), --gpus-per-node N supplies them"
        if reasons[0][0] == NO_GPU
        else ""
    )
    return f"none of its {stats.rows:,} rows makes a job: {counts}.{remedy}"
