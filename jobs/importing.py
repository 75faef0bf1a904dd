"""A log as a trace: which format it is, its rows, the jobs they make, the file; and what became of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from jobs.fields import FORMS
from jobs.formats.known import FORMATS, format_of
from jobs.gathering import EARLIEST_S, LATEST_S, NO_GPU, Finished, Gathered
from jobs.rows import UNITS_S, Options
from jobs.tally import Tally
from jobs.trace import write_slices
from kit.errors import InputError

_MOST_REASONS: Final = 3
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
        sums: a requeued job ran as long as all its lives together; else as long as the last one.
        told: is called with the number of rows read so far.

    Raises:
        InputError: the file can't be read as such a log, or no row of it makes a job.
    """
    options = options or Options()
    is_told = name == "auto" and not options.columns
    found = format_of(log, options) if name == "auto" else name
    known, tally = FORMATS[found], Tally()
    gathered = Gathered(tally, known.joins, sums)
    for rows in known.read(log, options, tally):
        gathered.add(rows)
        told(tally.rows)
    if len(gathered.forms) > 1:
        found_forms = " and ".join(f"{FORMS[form]} (line {line})" for form, line in gathered.forms.items())
        raise InputError(str(log), "", f"mixes {found_forms}; write all times in one form")
    finished = gathered.finish()
    if finished is None:
        raise InputError(str(log), "", _nothing(tally))
    if not gathered.is_date:
        _require_seconds(log, finished)
    start = _start(finished, bool(gathered.is_date), tally)
    run_p50_s = float(np.median(finished.numbers["run_s"][finished.order]))
    says_otherwise = " (--unit says otherwise)" if found == "csv" else ""
    if not _SHORT_S <= run_p50_s <= _LONG_S:
        tally.tell(f"the median run time is {run_p50_s:,.3g} s: are these seconds?{says_otherwise}")
    if finished.days > _LONG_DAYS:
        tally.tell(f"the log spans {finished.days / 365.25:,.0f} years: are its times in seconds?{says_otherwise}")
    result = Imported(found, is_told, len(finished.order), finished.days, start, run_p50_s, tally)
    provenance = {"format": found, "file": log.name, "start": start, "jobs": result.jobs, "rows": tally.rows}
    write_slices(out, finished.slices(), {**provenance, "left_out": tally.document()["left_out"]})
    return result


def _require_seconds(log: Path, finished: Finished) -> None:
    """Raises `InputError` where times are too large for seconds since 1970, or since whenever a log begins."""
    if finished.start_s <= LATEST_S:
        return
    units = (unit for unit in ("ms", "us", "ns") if EARLIEST_S <= UNITS_S[unit] * finished.start_s <= LATEST_S)
    unit = next(units, None)
    remedy = f"--unit {unit} takes all plain numbers of times for {unit}" if unit else "write 2024-01-31T12:00:00"
    line = int(finished.numbers["line"][finished.order[0]])
    problem = f"{finished.start_s:.0f} s are after the year 2100, counted from 1970; {remedy}"
    raise InputError(str(log), f"line {line}", problem)


def _start(finished: Finished, is_date: bool, tally: Tally) -> str | None:
    """The calendar's time of the first submit; seconds that can be Unix times are taken for such."""
    if not is_date and not EARLIEST_S <= finished.start_s <= LATEST_S:
        return None
    if not is_date:
        tally.tell("times are taken for Unix times: seconds since 1970")
    return datetime.fromtimestamp(finished.start_s, UTC).isoformat(timespec="seconds")


def _nothing(tally: Tally) -> str:
    """Why no row makes a job, and what helps."""
    if not tally.left_out:
        return "has no rows, only a header; a log has at least one job"
    reasons = sorted(tally.left_out.items(), key=lambda item: -item[1].rows)[:_MOST_REASONS]
    told = "; ".join(f"{count.rows:,} {reason} (first: line {count.first_line})" for reason, count in reasons)
    remedy = (
        " Where a Slurm log does not name GPUs (AccountingStorageTRES lacks gres/gpu), --gpus-per-node N supplies them"
        if reasons[0][0] == NO_GPU
        else ""
    )
    return f"none of its {tally.rows:,} rows makes a job: {told}.{remedy}"
