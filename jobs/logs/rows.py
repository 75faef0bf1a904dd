"""Rows of a log in the normal form: rejected rows by reason, with a count and the first line of each."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import product
from typing import Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray

from jobs.logs.fields import FORMS, NAIVE, ZONED, Cells, Mask, Numbers, durations, numbers, status_of, times
from jobs.policies.cluster import is_share

LONGEST_RUN_S: Final = 10 * 365.25 * 86400
MAX_GPUS: Final = 1_000_000
EARLIEST_S: Final = datetime(1990, 1, 1, tzinfo=UTC).timestamp()
LATEST_S: Final = datetime(2100, 1, 1, tzinfo=UTC).timestamp()
UNITS_S: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
# A row is an attempt of a job, one after which its job went back to the queue, or none.
ATTEMPT, REQUEUED, OPEN, UNSTARTED = range(4)
WORDS: Final = ("user", "vc", "gpu_types", "status", "job_class", "whose")
START = "recorded_start_s"
END = "recorded_end_s"
ELIGIBLE = "eligible_s"
WAIT = "recorded_wait_s"
TIMES: Final = {"submit_s": "submit time", ELIGIBLE: "eligible time", START: "start", END: "end"}
DURATIONS: Final = {"run_s": "run time", WAIT: "wait", "requested_s": "time limit"}
SIZES: Final = {"gpus": "GPUs", "gpu_share": "share of a GPU", "nodes": "nodes"}
QUANTITIES: Final = {**TIMES, **DURATIONS, **SIZES, "attempts": "attempts"}
HELD: Final = "could not begin at their Submit (dependency, hold, begin time): they wait from Eligible on"
BACKWARDS: Final = "started before they were submitted: wait and start are not known"
ENDED_FIRST: Final = "ended before it started"
NO_GPU: Final = "ask for no GPU"
NO_SHARE: Final = "ask for a share of a GPU that is none: below 0.001, above 1, or of several"
Lines = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an import, as users give them.

    Attributes:
        gpus_per_node: GPUs of a node, if the log contains only nodes.
        vc: the field of a Slurm log that is the virtual cluster: `partition`, `account` or `qos`.
        timezone: time zone of dates without one.
        columns: for a CSV file: its column for each of the normal form, and `END`.
        unit_s: for a CSV file: unit of times in seconds; `units_s`: in columns (of the normal form) with another unit.
        tasks: path of a second table that the format needs.
    """

    gpus_per_node: int | None = None
    vc: str = "partition"
    timezone: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    unit_s: float = 1.0
    units_s: Mapping[str, float] = field(default_factory=dict)
    tasks: Any = None


@dataclass(slots=True)
class Count:
    """A number of rows, and the line of the first."""

    rows: int
    first_line: int


class Counts(dict[str, Count]):
    """Counts of rows by reason, in the order in which reasons first occur."""

    def add(self, reason: str, lines: Lines) -> None:
        """Count more rows for a reason."""
        if len(lines):
            first = int(lines.min())
            count = self.setdefault(reason, Count(0, first))
            count.rows, count.first_line = count.rows + len(lines), min(count.first_line, first)

    def document(self) -> list[dict[str, Any]]:
        """Return the counts for JSON."""
        return [{"reason": reason, **asdict(count)} for reason, count in self.items()]


@dataclass(slots=True)
class Tally:
    """Statistics of an import: rows read, left out and changed.

    Attributes:
        rows: all rows that were read, used or not.
        left_out: rows that made no job; noted: kept rows with changed or doubtful values.
        told: messages about the file as a whole.
        forms: forms of the times of all jobs, each with its first line.
        unread: messages about each unparseable quantity.
    """

    rows: int = 0
    left_out: Counts = field(default_factory=Counts)
    noted: Counts = field(default_factory=Counts)
    told: list[str] = field(default_factory=list)
    forms: dict[int, int] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the statistics for JSON."""
        counts = {"left_out": self.left_out.document(), "noted": self.noted.document()}
        return {"rows": self.rows, **counts, "told": self.told}


@dataclass(frozen=True, slots=True)
class Rows:
    """A block's jobs, or attempts of jobs; all columns have one length.

    Attributes:
        lines: the line number of each, from 1.
        columns: texts by the log's own names; finally by those of the normal form and of `QUANTITIES` (or `Cells`).
            Slurm has more: `whose` (user, account and cluster, of which only equality counts), `is_open`,
            `is_requeued`, `part` (of a heterogeneous job, from 0; -1 of any other) and `used_nodes`.
        required: quantities without which a row makes no job.
        is_calendar: whether times are calendar times, or only numbers; None if their form determines it.
        refused: format-specific reasons to leave rows out, each with the rows; the first that applies is reported.
        noted: messages about kept rows, each with the rows.
    """

    lines: Lines
    columns: Mapping[str, Any]
    required: Container[str] = ("submit_s", "run_s", "gpus")
    is_calendar: bool | None = False
    refused: Mapping[str, Mask] = field(default_factory=dict)
    noted: Mapping[str, Mask] = field(default_factory=dict)

    def of(self, name: str) -> Any:
        """Return a column of texts, empty ones if the log has no such column."""
        return self.columns[name] if name in self.columns else pyarrow.repeat("", len(self.lines))

    def chosen(self, is_kept: Mask) -> Rows:
        """Return some of the rows, before their texts are parsed."""
        if is_kept.all():
            return self
        mask = pyarrow.array(is_kept)
        return Rows(self.lines[is_kept], {name: text.filter(mask) for name, text in self.columns.items()})


def known(values: Numbers) -> Numbers:
    """Replace negative numbers, which mean unknown in SWF, with not-a-number."""
    return np.where(values >= 0, values, np.nan)


def table_of(rows: Rows, options: Options, tally: Tally) -> Any:
    """Return the rows that make a job, or need later checks; count the others."""
    many, given = len(rows.lines), rows.columns
    cells = {name: _cells(rows, name, options) for name in QUANTITIES if name in given}
    of = dict.fromkeys(QUANTITIES, np.full(many, np.nan)) | {name: each.values for name, each in cells.items()}
    submit_s = np.where(of[ELIGIBLE] > of["submit_s"], of[ELIGIBLE], of["submit_s"])
    gpus = np.ceil(np.clip(np.nan_to_num(of["gpus"]), 0, MAX_GPUS + 1)).astype(np.int32)
    columns = {
        "submit_s": submit_s,
        **({"submitted_s": of["submit_s"]} if ELIGIBLE in given else {}),
        "start_s": of[START] if START in given else submit_s + known(of[WAIT]),
        "run_s": of["run_s"] if "run_s" in given else of[END] - of[START],
        "requested_s": known(of["requested_s"]),
        "gpus": gpus,
        "nodes": np.clip(np.nan_to_num(of["nodes"], nan=1.0), 1, np.maximum(gpus, 1)).astype(np.int32),
        "gpu_milli": np.round(np.clip(np.nan_to_num(of["gpu_share"], nan=1.0), -1, 9) * 1000).astype(np.int16),
        "attempts": np.fmax(of["attempts"], 1).astype(np.int32),
        "kind": _kind(rows, cells),
        "part": np.broadcast_to(given.get("part", -1), many).astype(np.int16),
        **({"used_nodes": given["used_nodes"].astype(np.int32)} if "used_nodes" in given else {}),
        "line": rows.lines,
    }
    kept = pyarrow.array(_kept(rows, cells, columns, tally))
    nothing = pyarrow.DictionaryArray.from_arrays(np.zeros(many, np.int32), [""])
    words = {name: given[name].dictionary_encode() if name in given else nothing for name in WORDS}
    codes, statuses = words["status"].indices, map(status_of, words["status"].dictionary.to_pylist())
    words["status"] = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(statuses, pyarrow.string()))
    return pyarrow.table({**columns, **words, "job_id": given["job_id"].cast(pyarrow.large_string())}).filter(kept)


def _cells(rows: Rows, name: str, options: Options) -> Cells:
    column = rows.columns[name]
    if isinstance(column, Cells):
        return column
    unit_s = options.units_s.get(name, options.unit_s) if rows.is_calendar is None else 1.0
    if name in DURATIONS:
        return durations(column, unit_s)
    if name in TIMES and rows.is_calendar is not False:
        return times(column, options.timezone, unit_s, zero_is_nothing=rows.is_calendar is True)
    return numbers(column)


def _kind(rows: Rows, cells: Mapping[str, Cells]) -> NDArray[np.int8]:
    """Return each row's kind of attempt; a row that the format refuses counts as an ordinary one."""
    kind = np.full(len(rows.lines), ATTEMPT, np.int8)
    kind[rows.columns.get("is_requeued", [])] = REQUEUED
    for name, missing in ((END, OPEN), (START, UNSTARTED)):
        if name in rows.required:
            kind[cells[name].is_missing] = missing
    kind[rows.columns.get("is_open", [])] = OPEN
    for where in rows.refused.values():
        kind[where] = ATTEMPT
    return kind


def _kept(rows: Rows, cells: Mapping[str, Cells], columns: Mapping[str, Any], tally: Tally) -> Mask:
    """Return a mask of rows to keep: attempts of jobs, and rows about a job that has not begun or not ended."""
    is_attempt, forms = columns["kind"] <= REQUEUED, cells["submit_s"].forms
    is_date = bool(rows.is_calendar) | ((forms & np.int64(NAIVE | ZONED)) > 0)
    submit_s = cells["submit_s"].values
    run_s = columns["run_s"]
    gpus = cells["gpus"].values
    unread: dict[bool, dict[str, Mask]] = {True: {}, False: {}}  # by whether it is required
    for name, each in cells.items():
        if (where := each.is_unread & is_attempt).any():
            said = f"unread {QUANTITIES[name]}, such as {each.texts[int(where.argmax())].as_py()!r:.40}"
            unread[name in rows.required][tally.unread.setdefault(name, f"{said}; write {each.allowed}")] = where
    reasons = {
        **rows.refused,
        **({} if "run_s" in cells else {ENDED_FIRST: cells[END].values < cells[START].values}),
        **unread[True],
        "no submit time": np.isnan(submit_s),
        "submitted before 1990 or after 2100": is_date & ((submit_s < EARLIEST_S) | (submit_s > LATEST_S)),
        "no run time": np.isnan(run_s),
        "a negative run time": run_s < 0,
        "ran for more than ten years": run_s > LONGEST_RUN_S,
        NO_GPU: ~(gpus > 0),
        f"ask for more than {MAX_GPUS:,} GPUs": gpus > MAX_GPUS,
        NO_SHARE: ~is_share(columns["gpu_milli"] / 1000, columns["gpus"]),
    }
    is_job = is_attempt.copy()
    for reason, where in reasons.items():
        if (left_out := where & is_job).any():
            tally.left_out.add(reason, rows.lines[left_out])
            is_job &= ~left_out
    notes = {HELD: columns["submit_s"] > submit_s, BACKWARDS: columns["start_s"] < columns["submit_s"]}
    for what, where in {**rows.noted, **unread[False], **notes}.items():
        tally.noted.add(what, rows.lines[where & is_job])
    for name, form in product(TIMES, FORMS):
        if name in cells and form not in tally.forms and (where := is_job & (cells[name].forms & form > 0)).any():
            tally.forms[form] = int(rows.lines[where.argmax()])
    return np.asarray(is_job | ~is_attempt)
