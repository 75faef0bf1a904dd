"""From a log's rows to a trace: rows that make no job are left out, those of one job joined, jobs sorted and written.

Columns are held until the end of the log, for a trace is sorted by submit time: at the peak some 280 bytes a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray

from jobs.logs.fields import FORMS, NAIVE, SECONDS, Cells, Numbers
from jobs.logs.formats import FORMATS, format_of
from jobs.logs.joining import RAN_NOT, codes_of, is_next, joined
from jobs.logs.rows import REQUEUED, UNITS_S, Options, Rows, Tally
from jobs.policies.cluster import is_share
from jobs.trace import COLUMNS, SLICE_ROWS, write_slices
from kit.errors import InputError

LONGEST_RUN_S: Final = 10 * 365.25 * 86400
MAX_GPUS: Final = 1_000_000
EARLIEST_S: Final = datetime(1990, 1, 1, tzinfo=UTC).timestamp()
LATEST_S: Final = datetime(2100, 1, 1, tzinfo=UTC).timestamp()
LONG_GAP_S: Final = 180 * 86400
_WORDS: Final = ("user", "vc", "gpu_types", "status", "job_class")
_TIMES: Final = ("submit_s", "start_s", "run_s", "requested_s")
BACKWARDS: Final = "started before they were submitted: wait and start are not known"
NO_GPU: Final = "ask for no GPU"
NO_SHARE: Final = "ask for a share of a GPU that is none: below 0.001, above 1, or of several"


@dataclass(slots=True)
class Gathered:
    """Jobs, block by block, and in the end as one table.

    Attributes:
        joins: rows of one id may be attempts of one job; else only the first of them is kept.
        sums: a job's run time is that of all its attempts together; else that of the last one.
        is_date: whether the first job's times are of the calendar.
        forms: of the times of all jobs, each with the first line that has it.
        words, numbers: in the end, the columns of all jobs in the order of the log.
        order: in the end, the rows that are jobs, by submit time.
    """

    tally: Tally
    joins: bool
    sums: bool = True
    is_date: bool | None = None
    tables: list[Any] = field(default_factory=list)
    forms: dict[int, int] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)  # what is said of each quantity that can't be read
    words: Any = None
    numbers: dict[str, NDArray[Any]] = field(default_factory=dict)
    order: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, rows: Rows) -> None:
        """Keep what makes a job, and count the rest."""
        is_attempt = np.ones(len(rows.lines), bool) if rows.kind is None else rows.kind <= REQUEUED
        kept = self._kept(rows, is_attempt)
        is_job = kept & is_attempt
        if is_job.any() and self.is_date is None:
            self.is_date = bool(np.broadcast_to(rows.is_date, len(rows.lines))[is_job][0])
        self._note_forms(rows, is_job)
        noted = {**rows.noted, **self._unread(rows.optional, is_job)}
        if rows.start_s is not None:
            noted[BACKWARDS] = rows.start_s < rows.submit_s
        for what, where in noted.items():
            self.tally.note(what, rows.lines[where & is_job])
        self.tables.append(_table(rows, kept))

    def _kept(self, rows: Rows, is_attempt: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Rows of which something is left to be said when all are there; what is no attempt of a job stays as such."""
        kept = np.ones(len(rows.lines), bool)
        unread = self._unread(rows.needed, is_attempt)
        for reason, where in {**rows.refused, **unread, **_general(rows)}.items():
            self.tally.leave_out(reason, rows.lines[where & kept & is_attempt])
            kept &= ~(where & is_attempt)
        return kept

    def _unread(self, columns: Mapping[str, Cells], among: NDArray[np.bool_]) -> dict[str, NDArray[np.bool_]]:
        """Where each quantity can't be read; what is said of it shows the first of these texts."""
        where = {name: cells.is_unread & among for name, cells in columns.items()}
        for name, cells in columns.items():
            if where[name].any() and name not in self.unread:
                text = cells.texts[int(where[name].argmax())].as_py()
                self.unread[name] = f"unread {name}, such as {text!r:.40}; write {cells.allowed}"
        return {self.unread[name]: each for name, each in where.items() if name in self.unread}

    def _note_forms(self, rows: Rows, is_job: NDArray[np.bool_]) -> None:
        """The times of a log have one form, in all columns."""
        forms = np.zeros(len(rows.lines), np.int64)
        for cells in (*rows.needed.values(), *rows.optional.values()):
            forms = forms | cells.forms
        forms = np.where(forms == 0, np.where(rows.is_date, NAIVE, SECONDS), forms)
        for form in FORMS:
            if form not in self.forms and (where := is_job & (forms & form > 0)).any():
                self.forms[form] = int(rows.lines[where][0])

    def finish(self) -> bool:
        """Sort all jobs by submit time, those of one id joined; whether there are any."""
        if not sum(table.num_rows for table in self.tables):
            return False
        table, numbers = pyarrow.concat_tables(self.tables), self.numbers
        self.tables.clear()
        for name in table.column_names:
            if name not in ("job_id", *_WORDS, "whose"):
                numbers[name] = table[name].to_numpy()
                table = table.drop_columns([name])  # or each would be held twice
        words = table.unify_dictionaries().combine_chunks()
        del table
        if self.joins:
            self.words, order = joined(words, numbers, self.tally, sums=self.sums)
        else:
            self.words, order = words, _first_of_each(words["job_id"], numbers["line"], self.tally)
        self.order = order[np.argsort(numbers["submit_s"][order], kind="stable")]
        self._tell_times(numbers["submitted_s" if self.joins else "submit_s"][self.order], numbers["line"][self.order])
        return len(order) > 0

    def _tell_times(self, submit_s: Numbers, line: NDArray[np.int64]) -> None:
        """Rows that are not in the order of their times, and long holes between them."""
        backwards = np.diff(submit_s[np.argsort(line)]) < 0
        if backwards.any():
            self.tally.tell(f"{int(backwards.sum()):,} rows were submitted before the row above them; they are sorted")
        order = np.argsort(submit_s, kind="stable")
        gaps_s = np.diff(submit_s[order])
        if len(gaps_s) and (gap_s := float(gaps_s.max())) > LONG_GAP_S:
            behind = int(line[order[int(gaps_s.argmax()) + 1]])
            self.tally.tell(
                f"nothing was submitted for {gap_s / 86400:,.0f} days before line {behind}: are these two logs, "
                "or is a year wrong?"
            )

    @property
    def start_s(self) -> float:
        """The first submit time, as the log has it."""
        return float(self.numbers["submit_s"][self.order[0]])

    @property
    def days(self) -> float:
        """From the first submit to the last."""
        return (float(self.numbers["submit_s"][self.order[-1]]) - self.start_s) / 86400

    def normal(self, rows: NDArray[np.int64]) -> Any:
        """The normal form of some rows, with times from the trace's start."""
        submit_s, start_s, run_s, requested_s = (self.numbers[name][rows] for name in _TIMES)
        begun_s = np.where(start_s >= submit_s, start_s, np.nan)
        words = self.words.take(pyarrow.array(rows))
        cells = {
            "submit_s": submit_s - self.start_s,
            "run_s": run_s,
            "gpus": self.numbers["gpus"][rows],
            "gpu_share": self.numbers["gpu_share"][rows] if "gpu_share" in self.numbers else np.ones(len(rows)),
            "requested_s": np.where(requested_s > 0, requested_s, np.nan),
            "recorded_wait_s": begun_s - submit_s,
            "recorded_start_s": begun_s - self.start_s,
            "attempts": self.numbers["attempts"][rows],
            **{name: words[name].cast(pyarrow.string()) for name in ("job_id", *_WORDS)},
        }
        return pyarrow.table({name: cells[name] for name in COLUMNS})


def _general(rows: Rows) -> dict[str, NDArray[np.bool_]]:
    """Why a row makes no job, whatever the format; comparisons with not-a-number are false."""
    is_date = np.broadcast_to(rows.is_date, len(rows.lines))
    run_s, gpus = rows.run_s, rows.gpus
    submit_s = rows.submit_s if rows.submitted_s is None else rows.submitted_s
    return {
        "no submit time": ~np.isfinite(submit_s),
        "submitted before 1990 or after 2100": is_date & ((submit_s < EARLIEST_S) | (submit_s > LATEST_S)),
        "no run time": ~np.isfinite(run_s),
        "a negative run time": run_s < 0,
        RAN_NOT: (run_s == 0) & (rows.kind is None),
        "ran for more than ten years": run_s > LONGEST_RUN_S,
        NO_GPU: ~(gpus > 0),
        f"ask for more than {MAX_GPUS:,} GPUs": gpus > MAX_GPUS,
        **({} if rows.gpu_share is None else {NO_SHARE: ~is_share(rows.gpu_share, np.ceil(gpus))}),
    }


def _table(rows: Rows, kept: NDArray[np.bool_]) -> Any:
    """The rows that are kept."""
    count, mask = len(rows.lines), pyarrow.array(kept)
    nothing, ones = np.full(count, np.nan), np.ones(count, np.int32)
    columns: dict[str, Any] = {"line": rows.lines[kept]}
    columns["job_id"] = rows.texts["job_id"].filter(mask).cast(pyarrow.large_string())
    for name in _TIMES:
        columns[name] = (nothing if (column := getattr(rows, name)) is None else column)[kept]
    columns["gpus"] = np.ceil(np.nan_to_num(rows.gpus[kept])).astype(np.int32)
    if rows.gpu_share is not None:
        columns["gpu_share"] = np.round(rows.gpu_share[kept], 3)
    columns["attempts"] = (ones if rows.attempts is None else rows.attempts)[kept].astype(np.int32)
    for name in _WORDS:
        missing = pyarrow.scalar("unknown" if name == "status" else "")
        text = rows.texts[name] if name in rows.texts else pyarrow.repeat(missing, count)
        columns[name] = text.filter(mask).dictionary_encode()
    if rows.kind is not None:
        columns |= {name: getattr(rows, name)[kept] for name in ("kind", "submitted_s", "part")}
        columns["whose"] = rows.whose.filter(mask).dictionary_encode()
    return pyarrow.table(columns)


def _first_of_each(job_id: Any, line: NDArray[np.int64], tally: Tally) -> NDArray[np.int64]:
    codes = codes_of(job_id.combine_chunks())
    if codes is None:
        return np.arange(len(line))
    order = np.lexsort((line, codes))
    is_first = is_next(codes[order])
    tally.leave_out("an id that an earlier row has", line[order[~is_first]])
    return order[is_first]


# ------------------------------------------------------------------------------------------------------------- import


_MAX_REASONS: Final = 3
_SHORT_S: Final = 10.0  # a median run time below may be of minutes or hours
_LONG_S: Final = 30 * 86400.0  # and one above of milliseconds
_LONG_DAYS: Final = 20 * 365.25


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a log.

    Attributes:
        format: which it was; `is_told` where the file itself told it.
        start: the calendar's time of the first submit, where it is known.
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
        """As JSON has it."""
        return {
            "schema": "slimsched.jobimport/1",
            "format": self.format,
            "jobs": self.jobs,
            "days": self.days,
            "start": self.start,
            "run_p50_s": self.run_p50_s,
            **self.tally.document(),
        }


def import_log(
    log: Path,
    out: Path,
    name: str = "auto",
    options: Options | None = None,
    *,
    sums: bool = True,
    told: Callable[[int], None] = lambda rows: None,
) -> Imported:
    """Reads a log of any size and writes its trace.

    Args:
        name: of the format; `auto` tells it from the first lines.
        sums: a requeued job ran as long as all its attempts together; else as long as the last one.
        told: is called with the number of rows read so far.

    Raises:
        InputError: the file can't be read as such a log, or no row of it makes a job.
    """
    options = options or Options()
    is_told = name == "auto" and not options.columns
    log_format = format_of(log, options) if name == "auto" else name
    known, tally = FORMATS[log_format], Tally()
    gathered = Gathered(tally, known.joins, sums)
    for rows in known.read(log, options, tally):
        gathered.add(rows)
        told(tally.rows)
    if len(gathered.forms) > 1:
        found_forms = " and ".join(f"{FORMS[form]} (line {line})" for form, line in gathered.forms.items())
        raise InputError(str(log), "", f"mixes {found_forms}; write all times in one form")
    if not gathered.finish():
        raise InputError(str(log), "", _nothing(tally))
    if not gathered.is_date:
        _require_seconds(log, gathered)
    start = _start(gathered, tally)
    run_p50_s = float(np.median(gathered.numbers["run_s"][gathered.order]))
    says_otherwise = " (--unit says otherwise)" if log_format == "csv" else ""
    if not _SHORT_S <= run_p50_s <= _LONG_S:
        tally.tell(f"the median run time is {run_p50_s:,.3g} s: are these seconds?{says_otherwise}")
    if gathered.days > _LONG_DAYS:
        tally.tell(f"the log spans {gathered.days / 365.25:,.0f} years: are its times in seconds?{says_otherwise}")
    order = gathered.order
    result = Imported(log_format, is_told, len(order), gathered.days, start, run_p50_s, tally)
    provenance = {"format": log_format, "file": log.name, "start": start, "jobs": result.jobs, "rows": tally.rows}
    slices = (gathered.normal(order[begin : begin + SLICE_ROWS]) for begin in range(0, len(order), SLICE_ROWS))
    write_slices(out, slices, {**provenance, "left_out": tally.document()["left_out"]})
    return result


def _require_seconds(log: Path, gathered: Gathered) -> None:
    """Raises `InputError` where times are too large for seconds since 1970, or since whenever a log begins."""
    if gathered.start_s <= LATEST_S:
        return
    units = (unit for unit in ("ms", "us", "ns") if EARLIEST_S <= UNITS_S[unit] * gathered.start_s <= LATEST_S)
    unit = next(units, None)
    remedy = f"--unit {unit} takes all plain numbers of times for {unit}" if unit else "write 2024-01-31T12:00:00"
    line = int(gathered.numbers["line"][gathered.order[0]])
    problem = f"{gathered.start_s:.0f} s are after the year 2100, counted from 1970; {remedy}"
    raise InputError(str(log), f"line {line}", problem)


def _start(gathered: Gathered, tally: Tally) -> str | None:
    """The calendar's time of the first submit; seconds that can be Unix times are taken for such."""
    if not gathered.is_date:
        if not EARLIEST_S <= gathered.start_s <= LATEST_S:
            return None
        tally.tell("times are taken for Unix times: seconds since 1970")
    return datetime.fromtimestamp(gathered.start_s, UTC).isoformat(timespec="seconds")


def _nothing(tally: Tally) -> str:
    """Why no row makes a job, and what helps."""
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
