"""Execution of all items of the serving benchmark, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.serving import items
from benchmarks.serving.fuzz import fuzz
from benchmarks.serving.rivals import rivals
from benchmarks.serving.rows import Row, keep, table
from benchmarks.serving.soak import soak
from benchmarks.serving.stand import Stand
from kit.errors import InputError


def measure(only: Sequence[str], stand: Stand, environment: Path, path: Path) -> str:
    """Measure some items; results are stored after each, and returned as a table.

    Raises:
        InputError: an item is unknown, or the run folder or the rivals' environment is missing.
    """
    every: dict[str, Callable[[Stand], list[Row]]] = {
        "added": items.added, "saturated": items.saturated, "overload": items.overload, "memory": items.memory,
        "faults": items.faults, "fuzz": fuzz, "soak": soak, "rivals": partial(rivals, environment=environment),
    }  # fmt: skip
    if unknown := [name for name in only if name not in every]:
        raise InputError("--only", "", f"{', '.join(unknown)}: expected {', '.join(every)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for name in only:
        rows += every[name](stand)
        keep(path, rows)
    return table(rows)
