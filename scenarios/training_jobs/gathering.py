"""From a log's rows to a trace: rows that make no job are left out, lives of a job joined, the rest sorted and written.

Columns are held until the end of the log, for a trace is sorted by submit time: at the peak some 280 bytes a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray

from policies.jobs.shares import is_share
from scenarios.training_jobs.fields import Numbers
from scenarios.training_jobs.rows import Rows
from scenarios.training_jobs.tally import Tally
from scenarios.training_jobs.trace import COLUMNS, SLICE_ROWS

LONGEST_RUN_S: Final = 10 * 365.25 * 86400
MOST_GPUS: Final = 1_000_000
EARLIEST_S: Final = datetime(1990, 1, 1, tzinfo=UTC).timestamp()
LATEST_S: Final = datetime(2100, 1, 1, tzinfo=UTC).timestamp()
LONG_GAP_S: Final = 180 * 86400
_WORDS: Final = ("user", "vc", "gpu_types", "status", "job_class")
_TIMES: Final = ("submit_s", "start_s", "run_s", "requested_s")
_NUMBERS: Final = (*_TIMES, "gpus", "gpu_share", "attempts", "line")
BACKWARDS: Final = "started before they were submitted: wait and start are not known"
NO_GPU: Final = "ask for no GPU"
NO_SHARE: Final = "ask for a share of a GPU that is none: below 0.001, above 1, or of several"


@dataclass(slots=True)
class Gathered:
    """Jobs, block by block, and in the end as one table.

    Attributes:
        joins: rows of one id are lives of one job; else only the first of them is kept.
        sums: a job's run time is that of all its lives together; else that of the last one.
    """

    tally: Tally
    joins: bool
    sums: bool = True
    is_date: bool | None = None
    tables: list[Any] = field(default_factory=list)
    mixed: int | None = None  # the first line whose times are of another kind than the first one's

    def add(self, rows: Rows) -> None:
        """Keep what makes a job, and count the rest."""
        kept = self._kept(rows)
        dates = np.broadcast_to(rows.is_date, len(rows.lines))[kept]
        if len(dates):
            self.is_date = bool(dates[0]) if self.is_date is None else self.is_date
            if (odd := dates != self.is_date).any() and self.mixed is None:
                self.mixed = int(rows.lines[kept][odd][0])
        noted = {**rows.noted} if rows.start_s is None else {**rows.noted, BACKWARDS: rows.start_s < rows.submit_s}
        for what, where in noted.items():
            self.tally.note(what, rows.lines[where & kept])
        self.tables.append(_table(rows, kept))

    def _kept(self, rows: Rows) -> NDArray[np.bool_]:
        kept = np.ones(len(rows.lines), bool)
        for reason, where in {**rows.refused, **_general(rows)}.items():
            self.tally.leave_out(reason, rows.lines[where & kept])
            kept &= ~where
        return kept

    def finish(self) -> Finished | None:
        """All jobs, sorted by submit time, those of one id joined; None where there are none."""
        if not sum(table.num_rows for table in self.tables):
            return None
        table = pyarrow.concat_tables(self.tables)
        self.tables.clear()
        numbers = {name: table[name].to_numpy() for name in _NUMBERS}
        words = table.drop_columns(list(_NUMBERS)).unify_dictionaries().combine_chunks()
        del table
        order = self._joined(words["job_id"], numbers)
        order = order[np.argsort(numbers["submit_s"][order], kind="stable")]
        self._tell_times(numbers["submit_s"][order], numbers["line"][order])
        return Finished(words, numbers, order)

    def _joined(self, job_id: Any, numbers: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
        """The row that stands for each job; its numbers become the whole job's."""
        codes = _codes(job_id.combine_chunks())
        if codes is None:
            return np.arange(len(job_id))
        if not self.joins:
            return _first_of_each(codes, numbers["line"], self.tally)
        order = np.lexsort((numbers["line"], numbers["start_s"], codes))
        order = _without_twins(order, codes, numbers, self.tally)
        return self._lives(order, codes, numbers)

    def _lives(
        self, order: NDArray[np.int64], codes: NDArray[np.int64], numbers: dict[str, NDArray[Any]]
    ) -> NDArray[np.int64]:
        """Lives in the order of their starts, by job: the last of each stands for it."""
        begins = np.flatnonzero(_is_next(codes[order]))
        last = order[np.append(begins[1:], len(order)) - 1]
        lives = np.diff(np.append(begins, len(order)))
        again = order[np.setdiff1d(np.arange(len(order)), begins)]
        self.tally.note("further lives of requeued jobs, joined with their first", numbers["line"][again])
        ran_s = np.add.reduceat(numbers["run_s"][order], begins)
        submit_s = np.minimum.reduceat(numbers["submit_s"][order], begins)
        start_s = numbers["start_s"][order[begins]]
        attempts = np.add.reduceat(numbers["attempts"][order], begins).astype(np.int32)
        if (lives > 1).any():
            earlier_s = float(((ran_s - numbers["run_s"][last]) * numbers["gpus"][last]).sum())
            how = "counted in (--lives last leaves them out)" if self.sums else "left out (--lives sum counts them in)"
            self.tally.tell(f"{earlier_s / 3600:,.0f} GPU-hours of lives before the last are {how}")
        for name in ("submit_s", "start_s", "attempts", "run_s"):
            numbers[name] = numbers[name].copy()  # Arrow's own can't be written
        numbers["submit_s"][last], numbers["start_s"][last] = submit_s, start_s
        numbers["attempts"][last] = attempts
        if self.sums:
            numbers["run_s"][last] = ran_s
        return np.asarray(last, np.int64)

    def _tell_times(self, submit_s: Numbers, line: NDArray[np.int64]) -> None:
        """Rows that are not in the order of their times, and long holes between them."""
        backwards = np.diff(submit_s[np.argsort(line)]) < 0
        if backwards.any():
            self.tally.tell(f"{int(backwards.sum()):,} rows were submitted before the row above them; they are sorted")
        gaps_s = np.diff(submit_s)
        if len(gaps_s) and (gap_s := float(gaps_s.max())) > LONG_GAP_S:
            behind = int(line[int(gaps_s.argmax()) + 1])
            self.tally.tell(
                f"nothing was submitted for {gap_s / 86400:,.0f} days before line {behind}: are these two logs, "
                "or is a year wrong?"
            )


@dataclass(frozen=True, slots=True)
class Finished:
    """All jobs of a log.

    Attributes:
        words, numbers: their columns in the order of the log.
        order: the rows that are jobs, by submit time.
    """

    words: Any
    numbers: dict[str, NDArray[Any]]
    order: NDArray[np.int64]

    @property
    def start_s(self) -> float:
        """The first submit time, as the log has it."""
        return float(self.numbers["submit_s"][self.order[0]])

    @property
    def days(self) -> float:
        """From the first submit to the last."""
        return (float(self.numbers["submit_s"][self.order[-1]]) - self.start_s) / 86400

    def slices(self) -> Iterator[Any]:
        """The normal form, a part at a time."""
        for begin in range(0, len(self.order), SLICE_ROWS):
            yield self._normal(self.order[begin : begin + SLICE_ROWS])

    def _normal(self, rows: NDArray[np.int64]) -> Any:
        """The columns of the normal form, from the trace's start."""
        submit_s, start_s, run_s, requested_s = (self.numbers[name][rows] for name in _TIMES)
        begun_s = np.where(start_s >= submit_s, start_s, np.nan)
        words = self.words.take(pyarrow.array(rows))
        found = {
            "submit_s": submit_s - self.start_s,
            "run_s": run_s,
            "gpus": self.numbers["gpus"][rows],
            "gpu_share": self.numbers["gpu_share"][rows],
            "requested_s": np.where(requested_s > 0, requested_s, np.nan),
            "recorded_wait_s": begun_s - submit_s,
            "recorded_start_s": begun_s - self.start_s,
            "attempts": self.numbers["attempts"][rows],
            **{name: words[name].cast(pyarrow.string()) for name in ("job_id", *_WORDS)},
        }
        return pyarrow.table({name: found[name] for name in COLUMNS})


def _general(rows: Rows) -> dict[str, NDArray[np.bool_]]:
    """Why a row makes no job, whatever the format; comparisons with not-a-number are false."""
    is_date = np.broadcast_to(rows.is_date, len(rows.lines))
    submit_s, run_s, gpus = rows.submit_s, rows.run_s, rows.gpus
    return {
        "no submit time": ~np.isfinite(submit_s),
        "submitted before 1990 or after 2100": is_date & ((submit_s < EARLIEST_S) | (submit_s > LATEST_S)),
        "no run time": ~np.isfinite(run_s),
        "a negative run time": run_s < 0,
        "ran for 0 s": run_s == 0,
        "ran for more than ten years": run_s > LONGEST_RUN_S,
        NO_GPU: ~(gpus > 0),
        f"ask for more than {MOST_GPUS:,} GPUs": gpus > MOST_GPUS,
        **({} if rows.gpu_share is None else {NO_SHARE: ~is_share(rows.gpu_share, np.ceil(gpus))}),
    }


def _table(rows: Rows, kept: NDArray[np.bool_]) -> Any:
    """The rows that are kept, with a start only where it is not before the submit."""
    count, mask = len(rows.lines), pyarrow.array(kept)
    nothing = np.full(count, np.nan)
    times = {name: nothing if (found := getattr(rows, name)) is None else found for name in _TIMES}
    attempts = np.ones(count, np.int32) if rows.attempts is None else rows.attempts
    words = {}
    for name in _WORDS:
        found = rows.texts.get(name)
        text = pyarrow.repeat(pyarrow.scalar("unknown" if name == "status" else ""), count) if found is None else found
        words[name] = text.filter(mask).dictionary_encode()
    return pyarrow.table(
        {
            "line": rows.lines[kept],
            "job_id": rows.texts["job_id"].filter(mask).cast(pyarrow.large_string()),
            **{name: values[kept] for name, values in times.items()},
            "gpus": np.ceil(rows.gpus[kept]).astype(np.int32),
            "gpu_share": np.ones(kept.sum()) if rows.gpu_share is None else np.round(rows.gpu_share[kept], 3),
            "attempts": attempts[kept].astype(np.int32),
            **words,
        }
    )


def _codes(job_id: Any) -> NDArray[np.int64] | None:
    """A number for each id that differs; None where all do. Ids that are plain integers are their own numbers.

    A table of all texts would take some 140 bytes a job for a moment.
    """
    try:
        found = job_id.cast(pyarrow.int64())
    except pyarrow.ArrowInvalid:
        found = None
    if found is None or not found.cast(pyarrow.large_string()).equals(job_id):  # 007 is not 7
        found = job_id.dictionary_encode().indices
    codes: NDArray[np.int64] = found.to_numpy().astype(np.int64)
    in_order = np.sort(codes)
    return codes if (in_order[1:] == in_order[:-1]).any() else None


def _is_next(codes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each is another than the one before it."""
    return np.concatenate([[True], codes[1:] != codes[:-1]])


def _first_of_each(codes: NDArray[np.int64], line: NDArray[np.int64], tally: Tally) -> NDArray[np.int64]:
    order = np.lexsort((line, codes))
    is_first = _is_next(codes[order])
    tally.leave_out("an id that an earlier row has", line[order[~is_first]])
    return order[is_first]


def _without_twins(
    order: NDArray[np.int64], codes: NDArray[np.int64], numbers: dict[str, NDArray[Any]], tally: Tally
) -> NDArray[np.int64]:
    """Rows of one id that began at one time are one life, written twice."""
    same_job = ~_is_next(codes[order])
    start_s = numbers["start_s"][order]
    is_twin = same_job & (np.diff(start_s, prepend=np.nan) == 0)
    tally.leave_out("a life that an earlier row has", numbers["line"][order[is_twin]])
    return np.asarray(order[~is_twin], np.int64)
