"""How fast each class of jobs is on each type of GPU: a table from a file, and the speeds that follow from it.

A table is YAML (`slimsched.throughputs/1`) or CSV: a header `job_class,TYPE,TYPE ...`, and a row for each class. Its
numbers are steps, images or samples a second, whatever the unit: only their ratios within a row count.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from kit import strict
from kit.documents import read_text
from kit.errors import InputError, nearest
from kit.strict import StrictModel

Positive = Annotated[float, Field(gt=0)]
OTHERS: Final = "*"  # the row of classes that have none
Table = Mapping[str, Mapping[str, float]]


class ThroughputsFile(StrictModel):
    """Throughputs by job class and GPU type."""

    schema_: Literal["slimsched.throughputs/1"] = Field(alias="schema")
    classes: Annotated[dict[str, dict[str, Positive]], Field(min_length=1)]


def read_throughputs(path: Path) -> Table:
    """Job class -> GPU type -> throughput, above 0.

    Raises:
        InputError: there is no such file, or it is no such table.
    """
    text = read_text(path)
    if path.suffix.lower() == ".csv":
        return _of_csv(text, str(path))
    return strict.parse(ThroughputsFile, text, str(path)).classes


def _of_csv(text: str, source: str) -> Table:
    lines = csv.reader(text.splitlines())
    head = [cell.strip() for cell in next(lines, [])]
    if len(head) < 2 or head[0] != "job_class" or len(set(head)) < len(head) or not all(head):
        problem = f"{','.join(head)!r:.80}; it must be `job_class`, and a column for each GPU type"
        raise InputError(source, "line 1", problem)
    table: dict[str, Mapping[str, float]] = {}
    for row in lines:
        if not row:
            continue
        key = f"line {lines.line_num}"
        if len(row) != len(head):
            raise InputError(source, key, f"has {len(row)} fields; the header has {len(head)}")
        job_class = row[0].strip()
        if job_class in table:
            raise InputError(source, key, f"the class {job_class!r:.80} stands there twice")
        cells = zip(head[1:], row[1:], strict=True)
        table[job_class] = {kind: _number(cell, source, f"{key}, {kind}") for kind, cell in cells if cell.strip()}
    if not table:
        raise InputError(source, "", "holds no class of jobs; give a row for each")
    return table


def _number(text: str, source: str, key: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise InputError(source, key, f"{text.strip()!r:.40}; a throughput is a finite number above 0")
    return value


def relative_to(table: Table, reference: str, source: str) -> dict[str, dict[str, float]]:
    """Speeds: each throughput over that of its class on the reference type.

    Raises:
        InputError: a class has no throughput there.
    """
    for job_class, row in table.items():
        if reference not in row:
            problem = (
                f"has no throughput on {reference!r}, on which the trace's run times count ({nearest(reference, row)})"
            )
            raise InputError(source, job_class, f"{problem}; add it, or name another type as `cluster.reference`")
    return {
        job_class: {kind: value / row[reference] for kind, value in row.items()} for job_class, row in table.items()
    }


def with_others(speeds: Mapping[str, Mapping[str, float]], classes: Iterable[str]) -> dict[str, Mapping[str, float]]:
    """The same, with the row `*` for each of these classes that has none of its own."""
    named = {job_class: row for job_class, row in speeds.items() if job_class != OTHERS}
    if OTHERS not in speeds:
        return named
    return {**dict.fromkeys(classes, speeds[OTHERS]), **named}
