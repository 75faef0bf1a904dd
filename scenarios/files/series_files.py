"""Series on disk: traces and rates from CSV files, and the decision times measured on a host.

CSV files: a row is one line. Text that a stray quote would swallow is an error, and so is every row that does not match
the header.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kit.documents import read_json, read_text
from kit.errors import InputError, nearest
from kit.strict import StrictModel, validate
from sim.device_profile import Count

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = 1e20  # nanoseconds since 1970 are less
Cell = tuple[int, str]  # the line number, and its text


def read_trace(path: Path, time_column: str) -> NDArray[np.float64]:
    """Read arrival times in seconds from a CSV file with a header line, in any order; ISO 8601 dates are converted.

    A date without a zone is taken as UTC, so that a trace is the same on every machine.

    Raises:
        InputError: no such file or column, rows that don't parse, a value that is not a time, seconds mixed with dates,
            dates with a zone mixed with dates without, or no arrival at all.
    """
    forms: dict[str, Cell] = {}
    times_s = []
    for line, text in _column(path, time_column):
        form, time_s = _time_s(text, str(path), line)
        forms.setdefault(form, (line, text))
        times_s.append(time_s)
    if not times_s:
        raise InputError(str(path), "", f"the trace has no arrival under {time_column!r}; it needs at least one")
    if len(forms) > 1:
        lines = " and ".join(f"{form} (line {line}: {text!r:.80})" for form, (line, text) in forms.items())
        raise InputError(str(path), "", f"mixes {lines} under {time_column!r}; write all times in one form")
    return np.asarray(times_s, dtype=np.float64)


def read_rates(path: Path, column: str) -> NDArray[np.float64]:
    """Read a curve of counts or rates from a CSV file with a header line.

    Raises:
        InputError: no such file or column, rows that don't parse, a value that is not a count or rate, or none above
            zero.
    """
    levels = np.array([_level(text, str(path), line) for line, text in _column(path, column)])
    if not levels.any():
        raise InputError(str(path), "", f"nothing above zero under {column!r}; a curve of rates needs some arrivals")
    return levels


def _level(text: str, source: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (isfinite(value) and value >= 0):
        problem = f"{text!r:.80} is not a count or rate; expected finite numbers from 0 (fill a recording's gaps first)"
        raise InputError(source, f"line {line}", problem)
    return value


def _time_s(text: str, source: str, line: int) -> tuple[str, float]:
    """Return a time's form, in words, and its seconds since an arbitrary origin."""
    try:
        value = float(text)
    except ValueError:
        return _date_s(text, source, line)
    if not abs(value) <= _LATEST:
        problem = f"{text!r:.80} is not a time; expected finite seconds or ISO 8601 dates"
        raise InputError(source, f"line {line}", problem)
    return "seconds", value


def _date_s(text: str, source: str, line: int) -> tuple[str, float]:
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        problem = f"{text!r:.80} is not a time; expected seconds or ISO 8601 dates"
        raise InputError(source, f"line {line}", problem) from None
    if date.tzinfo is None:
        return "dates without a zone", (date.replace(tzinfo=UTC) - _EPOCH).total_seconds()
    return "dates with a zone", (date - _EPOCH).total_seconds()


# --------------------------------------------------------------------------------------------------------------- rows


_JSON: Final = "is JSON; expected CSV: pandas.read_json(FILE, lines=True).to_csv(...) writes it"
_OTHER_FORMS: Final = {
    "{": _JSON,
    "[": _JSON,
    "#": "is a comment, and the first line must name the columns; remove lines that begin with #",
}  # by how the first line begins


def _column(path: Path, column: str) -> list[Cell]:
    """Return the cells of a column of a CSV file with a header line; empty lines at the end don't count."""
    lines = read_text(path).rstrip().replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if lines == [""]:
        raise InputError(str(path), "", "is empty; it needs a header line and one value a line")
    rows = _rows(lines)
    _, header = next(rows)
    columns = [] if isinstance(header, str) else [name.strip() for name in header]
    if column not in columns and lines[0][:1] in _OTHER_FORMS:
        raise InputError(str(path), "line 1", _OTHER_FORMS[lines[0][:1]])
    if isinstance(header, str):
        raise InputError(str(path), "line 1", f"no header line ({header}); it names the columns")
    if columns.count(column) != 1:
        problem = f"{columns.count(column)} columns {column!r}" if column in columns else f"no column {column!r}"
        remedy = "name each once" if column in columns else nearest(column, [name[:100] for name in columns[:100]])
        raise InputError(str(path), "line 1", f"{problem}; {remedy}")
    index = columns.index(column)
    cells: list[Cell] = []
    wrong, first = 0, ""
    for line, row in rows:
        if isinstance(row, list) and len(row) == len(columns):
            cells.append((line, row[index].strip()))
            continue
        wrong += 1
        first = first or f"line {line} ({row if isinstance(row, str) else f'{len(row)} fields'})"
    if wrong:
        problem = f"{wrong:,} of {len(lines) - 1:,} rows don't have the header's {len(columns)} fields"
        raise InputError(str(path), "", f"{problem}, the first is {first}; correct or remove them")
    return cells


def _rows(lines: list[str]) -> Iterator[tuple[int, list[str] | str]]:
    """Yield each line's number, and its fields or what is wrong with it. Nothing spans several lines."""
    for number, line in enumerate(lines, start=1):
        try:
            yield number, line.split(",") if '"' not in line else next(csv.reader([line], strict=True))
        except csv.Error as error:  # a quote that doesn't close, or closes too early
            yield number, str(error)


SCHEMA: Final = "slimsched.decision-time/1"
MAX_S: Final = 60.0  # as of `router.decision_s`


class DecisionTime(StrictModel):
    """CPU time of one router's decisions, and of those of `random` over the same views, in turns."""

    schema_: Literal["slimsched.decision-time/1"] = Field(alias="schema", description="the form of this file")
    router: str = Field(description="its name in tables", min_length=1)
    provenance: Literal["measured"] = Field(description="the source of the times")
    machine: str = Field(description="the processor")
    cores: tuple[Annotated[int, Field(ge=0)], ...] = Field(description="that it was kept to; empty for any")
    views: Count = Field(description="of how many decisions")
    rounds: Count = Field(description="how often each was made")
    own_s: float = Field(description="mean over views, each the median of its rounds", ge=0, le=MAX_S)
    random_s: float = Field(description="the same of `random`", ge=0, le=MAX_S)

    @property
    def beyond_s(self) -> float:
        """The time of a decision beyond one of `random`, with which the host's costs are measured."""
        return max(0.0, self.own_s - self.random_s)


def read_decision_time(path: Path, router: str) -> DecisionTime:
    """Read that router's; raises `InputError` if it is missing, broken, or another's."""
    raw = read_json(path)
    if not isinstance(raw, dict):
        raise InputError(str(path), "", f"must be an object with the schema {SCHEMA}")
    time = validate(DecisionTime, raw, str(path))
    if time.router != router:
        raise InputError(str(path), "router", f"is {time.router!r}, and not {router!r}; remove the file")
    return time
