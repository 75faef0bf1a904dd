"""Measured figures with their goals."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.documents import write_text
from scenarios.show.tables import Column, Table, number, to_text


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        at_most, at_least: its goal; None for none.
        detail: its components, units last.
        load_average: the machine's in the last minute; `os.cpu_count()` is its number of cores.
    """

    item: str
    what: str
    value: float
    at_most: float | None
    at_least: float | None
    detail: Mapping[str, Any]
    load_average: float

    @property
    def is_reached(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least


def row(
    item: str,
    what: str,
    value: float,
    at_most: float | None = None,
    at_least: float | None = None,
    detail: Mapping[str, Any] | None = None,
) -> Row:
    """Build a row of a figure that has just been measured."""
    return Row(item, what, float(value), at_most, at_least, detail or {}, os.getloadavg()[0])


def table(rows: Sequence[Row]) -> str:
    """Return all rows as a table."""
    columns = [Column("item"), Column("what"), Column("value"), Column("goal"), Column("reached"), Column("load")]
    texts = {True: "yes", False: "no", None: ""}
    cells = [
        [row.item, row.what, number(row.value, 3), _goal(row), texts[row.is_reached], number(row.load_average, 1)]
        for row in rows
    ]
    return to_text([Table(columns, cells, "serving")], 160)


def _goal(of: Row) -> str:
    if of.at_most is not None:
        return f"at most {of.at_most:g}"
    return "" if of.at_least is None else f"at least {of.at_least:g}"


def keep(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows as JSON lines."""
    lines = [json.dumps({**vars(row), "is_reached": row.is_reached}) + "\n" for row in rows]
    write_text(path, "".join(lines))
