"""Series on disk: traces (when each request came) and rates (how many in each period), from CSV files."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policies.errors import InputError, nearest
from scenarios.files.documents import read_text


def read_trace(path: Path, time_column: str) -> NDArray[np.float64]:
    """Arrival times in seconds from a CSV file with a header line; ISO 8601 dates become seconds, too.

    Raises:
        InputError: no such file or column, a value that is no time, or no arrival at all.
    """
    times_s = [_time_s(text, str(path), line) for line, text in enumerate(_column(path, time_column), start=2)]
    if not times_s:
        raise InputError(str(path), "", f"the trace has no arrival under {time_column!r}; it needs at least one")
    return np.asarray(times_s, dtype=np.float64)


def read_rates(path: Path, column: str) -> NDArray[np.float64]:
    """A curve of counts or rates from a CSV file with a header line.

    Raises:
        InputError: no such file or column, a value that is no count or rate, or none above zero.
    """
    levels = np.array([_level(text, str(path), line) for line, text in enumerate(_column(path, column), start=2)])
    if not levels.any():
        raise InputError(str(path), "", f"nothing above zero under {column!r}; a curve of rates needs some arrivals")
    return levels


def _level(text: str, source: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (np.isfinite(value) and value >= 0):
        problem = f"{text!r} is no count or rate; allowed are finite numbers from 0 (fill a recording's gaps first)"
        raise InputError(source, f"line {line}", problem)
    return value


def _column(path: Path, column: str) -> list[str]:
    """What stands in a column of a CSV file with a header line."""
    lines = read_text(path).splitlines()
    if not lines:
        raise InputError(str(path), "", "is empty; it needs a header line and one value a line")
    reader = csv.DictReader(lines)
    columns = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = columns
    if column not in columns:
        raise InputError(str(path), "line 1", f"no column {column!r}; {nearest(column, columns)}")
    return [(row[column] or "").strip() for row in reader]


def _time_s(text: str, source: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = _date_s(text, source, line)
    if not np.isfinite(value):
        raise InputError(source, f"line {line}", f"{text!r} is no time; allowed are finite seconds or ISO 8601 dates")
    return value


def _date_s(text: str, source: str, line: int) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        problem = f"{text!r} is no time; allowed are seconds or ISO 8601 dates"
        raise InputError(source, f"line {line}", problem) from None
