"""Import of a log as a trace: leave out rows that make no job, join rows of one job, sort and write jobs.

Columns stay in memory until the end of the log, for a trace is sorted by submit time: at the peak some 280 bytes a job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray

from jobs.logs.fields import FORMS, NAIVE, ZONED
from jobs.logs.formats import FORMATS, format_of
from jobs.logs.joining import Log
from jobs.logs.rows import EARLIEST_S, LATEST_S, NO_GPU, UNITS_S, WORDS, Options, Tally, table_of
from jobs.logs.slurm import keep_asked_nodes
from jobs.trace import COLUMNS, SLICE_ROWS, write_slices
from kit.errors import InputError

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
        format: the log's format; `is_told` if the file itself determined it.
        start: the calendar time of the first submit, if it is known.
        run_p50_s: the median run time.
    """

    format: str
    is_told: bool
    jobs: int
    days: float
    start: str | None
    run_p50_s: float
    tally: Tally

    def document(self) -> dict[str, Any]:
        """Return the result for JSON."""
        own = {name: getattr(self, name) for name in ("format", "jobs", "days", "start", "run_p50_s")}
        return {"schema": "slimsched.jobimport/1", **own, **self.tally.document()}


def import_log(
    log: Path,
    out: Path,
    name: str = "auto",
    options: Options | None = None,
    *,
    sums: bool = True,
    told: Callable[[int], None] = lambda rows: None,
) -> Imported:
    """Read a log of any size and write its trace.

    Args:
        name: the format; `auto` detects it from the first lines.
        sums: a requeued job's run time is the sum over its attempts; otherwise that of the last one.
        told: is called with the number of rows read so far.

    Raises:
        InputError: the file can't be parsed as such a log, or none of its rows makes a job.
    """
    options = options or Options()
    tally = Tally()
    tables = []
    is_date = False
    is_told = name == "auto" and not options.columns
    log_format = format_of(log, options) if name == "auto" else name
    for rows in FORMATS[log_format].read(log, options, tally):
        tables.append(table_of(rows, options, tally))
        is_date |= bool(rows.is_calendar)
        told(tally.rows)
    if len(tally.forms) > 1:
        mixed = " and ".join(f"{FORMS[form]} (line {line})" for form, line in tally.forms.items())
        raise InputError(str(log), "", f"mixes {mixed}; write all times in one form")
    if not sum(map(len, tables)):
        raise InputError(str(log), "", _nothing(tally))
    whole = _whole(tables, tally)
    if "used_nodes" in whole.numbers:
        keep_asked_nodes(whole.numbers, tally)
    order = whole.jobs(joins=FORMATS[log_format].joins, sums=sums)
    if not len(order):
        raise InputError(str(log), "", _nothing(tally))
    order = order[np.argsort(whole.numbers["submit_s"][order], kind="stable")]
    submit_s = whole.numbers["submit_s"][order]
    _tell_order(whole.numbers["submitted_s"][order], whole.numbers["line"][order], tally)
    start_s, days = float(submit_s[0]), float(submit_s[-1] - submit_s[0]) / 86400
    is_date |= not tally.forms.keys().isdisjoint((NAIVE, ZONED))
    if not is_date and start_s > LATEST_S:
        raise _no_seconds(log, start_s, int(whole.numbers["line"][order[0]]))
    start = None
    if is_date or start_s >= EARLIEST_S:
        start = datetime.fromtimestamp(start_s, UTC).isoformat(timespec="seconds")
    if start and not is_date:
        tally.told.append("times are taken for Unix times: seconds since 1970")
    run_p50_s = float(np.median(whole.numbers["run_s"][order]))
    says_otherwise = " (--unit says otherwise)" if log_format == "csv" else ""
    if not _SHORT_S <= run_p50_s <= _LONG_S:
        tally.told.append(f"the median run time is {run_p50_s:,.3g} s: are these seconds?{says_otherwise}")
    if log_format == "csv":
        _tell_limits(whole.numbers["run_s"][order], whole.numbers["requested_s"][order], tally)
    if days > _LONG_DAYS:
        tally.told.append(f"the log spans {days / 365.25:,.0f} years: are its times in seconds?{says_otherwise}")
    provenance = {"format": log_format, "file": log.name, "start": start, "jobs": len(order), "rows": tally.rows}
    slices = (_normal(whole, order[begin : begin + SLICE_ROWS], start_s) for begin in range(0, len(order), SLICE_ROWS))
    write_slices(out, slices, {**provenance, "left_out": tally.left_out.document()})
    return Imported(log_format, is_told, len(order), days, start, run_p50_s, tally)


def _whole(tables: list[pyarrow.Table], tally: Tally) -> Log:
    """Return all rows as one table, moving column by column, or each would be in memory twice."""
    table, numbers = pyarrow.concat_tables(tables), dict[str, NDArray[Any]]()
    tables.clear()
    for name in set(table.column_names) - {"job_id", *WORDS}:
        numbers[name] = table[name].to_numpy()
        table = table.drop_columns([name])
    numbers.setdefault("submitted_s", numbers["submit_s"])
    return Log(table.unify_dictionaries().combine_chunks(), numbers, tally)


def _normal(log: Log, rows: NDArray[np.int64], start_of_trace_s: float) -> pyarrow.Table:
    """Return some rows in the normal form, with times from the trace's start."""
    columns = {name: column[rows] for name, column in log.numbers.items() if name in (*COLUMNS, "start_s")}
    words = log.words.select(["job_id", *(name for name in WORDS if name in COLUMNS)]).take(pyarrow.array(rows))
    submit_s, start_s = columns["submit_s"], columns.pop("start_s")
    begun_s = np.where(start_s >= submit_s, start_s, np.nan)
    columns |= {name: words[name].cast(pyarrow.string()) for name in words.column_names}
    columns |= {
        "submit_s": submit_s - start_of_trace_s,
        "gpu_share": log.numbers["gpu_milli"][rows] / 1000,
        "requested_s": np.where(columns["requested_s"] > 0, columns["requested_s"], np.nan),
        "recorded_wait_s": begun_s - submit_s,
        "recorded_start_s": begun_s - start_of_trace_s,
    }
    return pyarrow.table({name: columns[name] for name in COLUMNS})


def _tell_limits(run_s: NDArray[np.float64], requested_s: NDArray[np.float64], tally: Tally) -> None:
    """Warn if many jobs ran past their limit and its grace: the limits are in another unit."""
    has_limit = requested_s > 0
    beyond = int((run_s[has_limit] > 1.1 * requested_s[has_limit] + _GRACE_S).sum())
    if beyond > _MANY * has_limit.sum():
        problem = f"{beyond:,} of {int(has_limit.sum()):,} jobs with a time limit ran longer than that"
        tally.told.append(f"{problem}: is it in another unit? For minutes, --columns requested_s=COLUMN:min")


def _tell_order(submit_s: NDArray[np.float64], line: NDArray[np.int64], tally: Tally) -> None:
    """Warn of rows that are not in the order of their times, and of long gaps between them."""
    backwards = int((np.diff(submit_s[np.argsort(line)]) < 0).sum())
    if backwards:
        tally.told.append(f"{backwards:,} rows were submitted before the row above them; they are sorted")
    order = np.argsort(submit_s, kind="stable")
    gaps_s = np.diff(submit_s[order])
    if len(gaps_s) and (gap_s := float(gaps_s.max())) > LONG_GAP_S:
        behind = int(line[order[int(gaps_s.argmax()) + 1]])
        problem = f"nothing was submitted for {gap_s / 86400:,.0f} days before line {behind}"
        tally.told.append(f"{problem}: are these two logs, or is a year wrong?")


def _no_seconds(log: Path, start_s: float, line: int) -> InputError:
    """Return the error of times too large for seconds since 1970, or since the log's start."""
    units = [unit for unit in ("ms", "us", "ns") if EARLIEST_S <= UNITS_S[unit] * start_s <= LATEST_S]
    remedy = f"--unit {units[0]} takes all plain numbers for {units[0]}" if units else "write 2024-01-31T12:00:00"
    return InputError(str(log), f"line {line}", f"{start_s:.0f} s are after the year 2100, counted from 1970; {remedy}")


def _nothing(tally: Tally) -> str:
    """Return why no row makes a job, and a remedy."""
    if not tally.left_out:
        return "has no rows, only a header; a log has at least one job"
    reasons = sorted(tally.left_out.items(), key=lambda item: -item[1].rows)[:_MAX_REASONS]
    counts = "; ".join(f"{count.rows:,} {reason} (first: line {count.first_line})" for reason, count in reasons)
    remedy = (
        " Where a Slurm log does not name GPUs (AccountingStorageTRES lacks gres/gpu), --gpus-per-node N supplies them"
        if reasons[0][0] == NO_GPU
        else ""
    )
    return f"none of its {tally.rows:,} rows makes a job: {counts}.{remedy}"
