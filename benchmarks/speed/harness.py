"""Shared parts of benchmarks: timing in turns, the measured machine, tables (in Markdown, to be copied) and JSON."""

from __future__ import annotations

import json
import os
import platform
import time  # noqa: TID251 - it measures
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from hw.telemetry import cpu_name

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles."""

    median: float
    q1: float
    q3: float


@dataclass(frozen=True)
class Turns:
    """One candidate's seconds of a pass, by round."""

    passes_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median turn."""
        return median(self.passes_s)

    def over(self, other: Turns) -> Quartiles:
        """Return its seconds over another's, for each round separately: a machine that drifts slows both."""
        ratios = [mine / theirs for mine, theirs in zip(self.passes_s, other.passes_s, strict=True)]
        q1, middle, q3 = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
        return Quartiles(middle, q1, q3)


def in_turns(
    candidates: Mapping[Name, Callable[[], object]],
    *,
    rounds: int,
    turn_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, Turns]:
    """Let all run in turns (A B C A B C ...): a sweep to warm up, then the rounds. A turn counts as its median pass."""
    passes: dict[Name, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, run in candidates.items():
            passes_s: list[float] = []
            while not passes_s or sum(passes_s) < turn_s:
                begin_s = clock()
                run()
                passes_s.append(clock() - begin_s)
            if number:
                passes[name].append(median(passes_s))
    return {name: Turns(tuple(passes_s)) for name, passes_s in passes.items()}


def machine() -> str:
    """Describe the processor, the number of its cores, and the software."""
    versions = ", ".join(f"{each} {version(each)}" for each in ("numpy", "numba", "simpy", "gymnasium", "torch"))
    return f"{cpu_name()}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}"


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; numbers get three significant digits."""
    print(f"\n{title}\n{machine()}\n")
    table = Table(*header, box=box.MARKDOWN)
    for row in rows:
        table.add_row(*map(_cell, row))
    Console(width=240).print(table)


def write(path: Path | None, document: Any) -> None:
    """Write JSON with the machine, if a file is requested."""
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), "found": document}, indent=1), encoding="utf-8")


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
