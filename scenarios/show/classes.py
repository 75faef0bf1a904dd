"""What each class of requests was promised, and what it got: a table of a run, of a comparison, or of a validation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scenarios.metrics.catalogue import MEASURES, OF_CLASSES
from scenarios.metrics.slo import SloDocument
from scenarios.show.table import Column, Table, column

_ACCURACY, _P99 = MEASURES["expected_accuracy"], MEASURES["latency_p99_s"]


def classes_table(
    slo: SloDocument | None, rows: Iterable[tuple[tuple[str, ...], Mapping[str, Any]]], *heads: str, title: str = ""
) -> Table | None:
    """Return a line for each class of each row: the router (under `heads`), and its `classes`; None without classes."""
    promised = {} if slo is None else slo.get("classes", {})
    if not promised:
        return None
    columns = [*(Column(head, is_text=True) for head in heads), Column("class", is_text=True)]
    columns += [column(_ACCURACY, "floor"), column(_P99, "p99 limit"), *map(column, OF_CLASSES)]
    cells = [
        [*names, name, asked["floor"], asked["p99_limit_s"], *(each.of(classes[name]) for each in OF_CLASSES)]
        for names, classes in rows
        for name, asked in promised.items()
    ]
    return Table(columns, cells, title)
