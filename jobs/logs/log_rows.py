"""Rows of a log in the normal form: texts parsed by column, and rejected rows by reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import product
from typing import Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from jobs.policies.job_cluster import is_share
from kit.units import parse_duration

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Forms of a time.
SECONDS = 1
NAIVE = 2
ZONED = 4
UNREAD = 8
FORMS: Final = {SECONDS: "seconds", NAIVE: "dates without a zone", ZONED: "dates with a zone"}
_KINDS: Final = {NAIVE: pyarrow.timestamp("us"), ZONED: pyarrow.timestamp("us", "UTC"), SECONDS: pyarrow.float64()}
_NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_WORDS_FOR_NOTHING: Final = frozenset(
    ("", "-", "unknown", "none", "null", "nan", "nat", "na", "n/a", "unlimited", "partition_limit")
)
_NOTHING: Final = pyarrow.array(
    sorted({form(word) for word in _WORDS_FOR_NOTHING for form in (str.lower, str.upper, str.title)} | {"NaT", "NaN"})
)
_PLAIN_DATES: Final = (  # as `datetime` parses them
    (re.compile(r"^(\d{4})/(\d\d)/(\d\d)"), r"\1-\2-\3"),
    (re.compile(r" ?(UTC|GMT|Z)$"), "+00:00"),
    (re.compile(r" (?=[-+]\d\d:?\d\d$)"), ""),
)
_PARTS: Final = re.compile(r"(?=\d)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)  # 2d3h, 2h5m10s
_CLOCK: Final = re.compile(r"(?:(\d+)(?:-| days?,? ))?(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)", re.ASCII)
_STATUSES: Final = {
    word: status
    for status, words in {
        "completed": "completed complete pass passed succeeded success terminated done",
        "failed": "failed fail error exit out_of_memory oom oomkilled",
        "cancelled": "cancelled canceled killed revoked preempted stopped evicted",
        "timeout": "timeout deadline deadlineexceeded",
        "node_fail": "node_fail boot_fail",
    }.items()
    for word in words.split()
}


@dataclass(frozen=True, slots=True)
class Cells:
    """A column of a log that contains a quantity.

    Attributes:
        values: not-a-number for empty or unparseable cells.
        forms: for times, one of `FORMS` each; `UNREAD` for unparseable cells; otherwise 0.
        texts: the cells' texts; None for computed columns.
        allowed: description of what can be parsed.
    """

    values: Numbers
    forms: NDArray[np.int64] | int = 0
    texts: Any = None
    allowed: str = ""

    @property
    def is_unread(self) -> Mask:
        """Mask of unparseable cells."""
        return np.broadcast_to(self.forms == np.int64(UNREAD), self.values.shape)

    @property
    def is_missing(self) -> Mask:
        """Mask of empty cells."""
        return np.isnan(self.values) & ~self.is_unread


def numbers(texts: Any) -> Cells:
    """Parse finite numbers."""
    return _quantities(texts, 1.0, lambda text: None, "a number")


def durations(texts: Any, unit_s: float = 1.0) -> Cells:
    """Parse durations in seconds; plain numbers are in this unit."""
    return _quantities(texts, unit_s, _duration, "seconds, 02:00:00, 1-02:00:00, 90m, 2h or 2h5m10s")


def _quantities(texts: Any, unit: float, other: Callable[[str], float | None], allowed: str) -> Cells:
    """Parse numbers times their unit; other texts by `other`."""

    def one(text: str) -> float:
        text = text.strip()
        if text.lower() in _WORDS_FOR_NOTHING:
            return np.nan
        value = unit * float(text) if _NUMBER.fullmatch(text) else other(text)
        return np.inf if value is None else value

    if (plain := _plain(texts)) is None:
        plain = _plain(_given(texts))
    values = mapped(texts, one) if plain is None else unit * plain
    if not (is_odd := np.isinf(values)).any():
        return Cells(values, 0, texts, allowed)
    return Cells(np.where(is_odd, np.nan, values), np.where(is_odd, UNREAD, 0), texts, allowed)


def times(texts: Any, timezone: str | None = None, unit_s: float = 1.0, *, zero_is_nothing: bool = False) -> Cells:
    """Parse times in seconds: dates as Unix times, numbers unchanged.

    A text's value depends only on itself (`_time`); Arrow parses whole columns of one form for speed.

    Args:
        timezone: zone of dates without one, such as `Europe/Berlin`; UTC by default.
        unit_s: unit of numbers, in seconds.
    """
    cells = _given(texts)
    first = cells.is_valid().index(True).as_py()
    form = _time(texts[first].as_py())[1] if first >= 0 else NAIVE
    try:
        column = cells.cast(_KINDS[form])  # trying wrong kinds would be slow
        values = _floats(column) if form == SECONDS else _unix_s(column, timezone if form == NAIVE else None)
        forms = np.where(np.isnan(values), 0, np.where(np.isinf(values), UNREAD, form))
    except (pyarrow.ArrowInvalid, KeyError):
        values, forms = mapped(texts, _time).reshape(-1, 2).T
        forms = forms.astype(np.int64)
        if timezone is not None:
            stamps = pyarrow.array(np.round(1e6 * np.where(forms == NAIVE, values, 0))).cast(pyarrow.int64())
            values = np.where(forms == NAIVE, _unix_s(stamps.cast(pyarrow.timestamp("us")), timezone), values)
    if (is_seconds := forms == SECONDS).any():
        values = np.where(is_seconds, unit_s * values, values)
        forms = np.where(is_seconds & (values == 0) & zero_is_nothing, 0, forms)
    values = np.where((forms == 0) | (forms == UNREAD), np.nan, values)
    return Cells(values, forms, texts, "2024-01-31T12:00:00, also with a zone (+01:00), or seconds")


def _plain(texts: Any) -> Numbers | None:
    """Parse plain numbers; None if any text is not one."""
    with suppress(pyarrow.ArrowInvalid):
        return _floats(texts.cast(pyarrow.float64()))
    return None


def _given(texts: Any) -> Any:
    """Replace empty cells with nulls."""
    is_nothing = compute.is_in(texts, value_set=_NOTHING)
    return compute.if_else(is_nothing, None, texts) if is_nothing.true_count else texts


def _unix_s(stamps: Any, timezone: str | None) -> Numbers:
    if timezone is not None:
        stamps = compute.assume_timezone(stamps, timezone, ambiguous="earliest", nonexistent="earliest")
    return _floats(stamps.cast(pyarrow.int64())) / 1e6


def _time(text: str) -> tuple[float, int]:
    """Parse one time and its form; a date without a zone is in UTC."""
    text = text.strip()
    if text.lower() in _WORDS_FOR_NOTHING:
        return np.nan, 0
    if _NUMBER.fullmatch(text) and np.isfinite(value := float(text)):
        return value, SECONDS
    for pattern, plain in _PLAIN_DATES:
        text = pattern.sub(plain, text)
    try:
        date = datetime.fromisoformat(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp(), ZONED if date.tzinfo else NAIVE
    except (ValueError, OverflowError):
        return np.nan, UNREAD


def _duration(text: str) -> float | None:
    """Parse the seconds of a clock time or a number with a unit; None for anything else."""
    if (clock := _CLOCK.fullmatch(text) or _PARTS.fullmatch(text)) is not None:
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return 86400 * days + 3600 * hours + 60 * minutes + seconds
    with suppress(ValueError):
        return parse_duration(text) if text[0].isdigit() and text[-1].isalpha() else None
    return None


def mapped(texts: Any, of: Callable[[str], float | tuple[float, ...]]) -> Numbers:
    """Map each text to a number (or some), computed once per distinct text."""
    coded = texts.dictionary_encode()
    values = np.array([of(text) for text in coded.dictionary.to_pylist()], np.float64)
    return values[coded.indices.to_numpy(zero_copy_only=False)] if len(values) else np.empty(0)


def named(texts: Any, of: Callable[[str], str]) -> Any:
    """Map each text to a word, computed once per distinct text."""
    coded = texts.dictionary_encode()
    values = [of(text) for text in coded.dictionary.to_pylist()]
    return pyarrow.array(values, pyarrow.string()).take(coded.indices)


def truths(mask: Any) -> Mask:
    """Convert an Arrow mask."""
    values: Mask = mask.to_numpy(zero_copy_only=False).astype(bool)
    return values


def status_of(text: str) -> str:
    """Return the normal form of a log's status (`CANCELLED by 1000`, `Pass`); `unknown` if it is not known."""
    return _STATUSES.get(text.partition(" ")[0].lower().rstrip("+"), "unknown")


def _floats(column: Any) -> Numbers:
    """Convert to floats, nulls to not-a-number."""
    values: Numbers = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return values


LONGEST_RUN_S: Final = 10 * 365.25 * 86400
MAX_GPUS: Final = 1_000_000
EARLIEST_S: Final = datetime(1990, 1, 1, tzinfo=UTC).timestamp()
LATEST_S: Final = datetime(2100, 1, 1, tzinfo=UTC).timestamp()
UNITS_S: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
# A row is an attempt of a job, one after which its job went back to the queue, or none.
ATTEMPT, REQUEUED, OPEN, UNSTARTED = range(4)
TEXT_COLUMNS: Final = ("user", "vc", "gpu_types", "status", "job_class", "whose")
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
class ImportStats:
    """Statistics of an import: rows read, left out and changed.

    Attributes:
        rows: all rows that were read, used or not.
        left_out: rows that made no job; noted: kept rows with changed or doubtful values.
        messages: about the file as a whole.
        forms: forms of the times of all jobs, each with its first line.
        unread: messages about each unparseable quantity.
    """

    rows: int = 0
    left_out: Counts = field(default_factory=Counts)
    noted: Counts = field(default_factory=Counts)
    messages: list[str] = field(default_factory=list)
    forms: dict[int, int] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the statistics for JSON."""
        counts = {"left_out": self.left_out.document(), "noted": self.noted.document()}
        return {"rows": self.rows, **counts, "told": self.messages}


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


def table_of(rows: Rows, options: Options, stats: ImportStats) -> Any:
    """Return the rows that make a job, or need later checks; count the others."""
    many, raw = len(rows.lines), rows.columns
    cells = {name: _cells(rows, name, options) for name in QUANTITIES if name in raw}
    of = dict.fromkeys(QUANTITIES, np.full(many, np.nan)) | {name: column.values for name, column in cells.items()}
    submit_s = np.where(of[ELIGIBLE] > of["submit_s"], of[ELIGIBLE], of["submit_s"])
    gpus = np.ceil(np.clip(np.nan_to_num(of["gpus"]), 0, MAX_GPUS + 1)).astype(np.int32)
    columns = {
        "submit_s": submit_s,
        **({"submitted_s": of["submit_s"]} if ELIGIBLE in raw else {}),
        "start_s": of[START] if START in raw else submit_s + known(of[WAIT]),
        "run_s": of["run_s"] if "run_s" in raw else of[END] - of[START],
        "requested_s": known(of["requested_s"]),
        "gpus": gpus,
        "nodes": np.clip(np.nan_to_num(of["nodes"], nan=1.0), 1, np.maximum(gpus, 1)).astype(np.int32),
        "gpu_milli": np.round(np.clip(np.nan_to_num(of["gpu_share"], nan=1.0), -1, 9) * 1000).astype(np.int16),
        "attempts": np.fmax(of["attempts"], 1).astype(np.int32),
        "kind": _kind(rows, cells),
        "part": np.broadcast_to(raw.get("part", -1), many).astype(np.int16),
        **({"used_nodes": raw["used_nodes"].astype(np.int32)} if "used_nodes" in raw else {}),
        "line": rows.lines,
    }
    is_kept = pyarrow.array(_kept(rows, cells, columns, stats))
    nothing = pyarrow.DictionaryArray.from_arrays(np.zeros(many, np.int32), [""])
    texts = {name: raw[name].dictionary_encode() if name in raw else nothing for name in TEXT_COLUMNS}
    codes, statuses = texts["status"].indices, map(status_of, texts["status"].dictionary.to_pylist())
    texts["status"] = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(statuses, pyarrow.string()))
    return pyarrow.table({**columns, **texts, "job_id": raw["job_id"].cast(pyarrow.large_string())}).filter(is_kept)


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


def _kept(rows: Rows, cells: Mapping[str, Cells], columns: Mapping[str, Any], stats: ImportStats) -> Mask:
    """Return a mask of rows to keep: attempts of jobs, and rows about a job that has not begun or not ended."""
    is_attempt, forms = columns["kind"] <= REQUEUED, cells["submit_s"].forms
    is_date = bool(rows.is_calendar) | ((forms & np.int64(NAIVE | ZONED)) > 0)
    submit_s = cells["submit_s"].values
    run_s = columns["run_s"]
    gpus = cells["gpus"].values
    unread: dict[bool, dict[str, Mask]] = {True: {}, False: {}}  # by whether it is required
    for name, column in cells.items():
        if (where := column.is_unread & is_attempt).any():
            problem = f"unread {QUANTITIES[name]}, such as {column.texts[int(where.argmax())].as_py()!r:.40}"
            unread[name in rows.required][stats.unread.setdefault(name, f"{problem}; write {column.allowed}")] = where
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
            stats.left_out.add(reason, rows.lines[left_out])
            is_job &= ~left_out
    notes = {HELD: columns["submit_s"] > submit_s, BACKWARDS: columns["start_s"] < columns["submit_s"]}
    for what, where in {**rows.noted, **unread[False], **notes}.items():
        stats.noted.add(what, rows.lines[where & is_job])
    for name, form in product(TIMES, FORMS):
        if name in cells and form not in stats.forms and (where := is_job & (cells[name].forms & form > 0)).any():
            stats.forms[form] = int(rows.lines[where.argmax()])
    return np.asarray(is_job | ~is_attempt)
