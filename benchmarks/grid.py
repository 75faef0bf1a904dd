"""The runner of grids: a row for each point (scenario x variant x seed), made in processes and kept as it comes.

A file of rows is JSON lines. A row is of one `GridRow`, and names it by a fingerprint of all that decides it. So an
interrupted command goes on where it stopped, what has changed is made again, and what has not is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kit.documents import inputs_hash, write_text
from kit.parallel import each
from scenarios.terminal.progress import Progress

Row = dict[str, Any]
ROOT: Final = Path(__file__).parents[1]
DECIDING: Final = ("kit", "policies", "sim", "scenarios/metrics", "scenarios/runs", "scenarios/world")


@dataclass(frozen=True)
class GridRow:
    """One row that is wanted.

    Attributes:
        key: what it is of, as plain data: `scenario`, and what tells it from the scenario's others.
        decided_by: fingerprint of what else decides it: the scenario's file, say, and a budget.
        given: what its work needs beside the key; it decides nothing.
    """

    key: Mapping[str, Any]
    decided_by: str
    given: Any = None

    @property
    def inputs(self) -> str:
        """The row's fingerprint."""
        return inputs_hash(dict(self.key), self.decided_by)[:16]


def code_state() -> str:
    """Fingerprint of the code that decides a simulated run."""
    files = [path for place in DECIDING for path in sorted((ROOT / place).rglob("*.py"))]
    return inputs_hash(*files)


def read_rows(path: Path) -> list[Row]:
    """What a file holds, but a line that was torn by an interruption; empty where there is none."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def kept_rows(path: Path, points: Sequence[GridRow]) -> list[Row | None]:
    """For each point its row in the file, or None."""
    known = {row["inputs"]: row for row in read_rows(path)}
    return [known.get(point.inputs) for point in points]


def make_rows(
    path: Path,
    points: Sequence[GridRow],
    work: Callable[[Any, GridRow], Row],
    common: Any = None,
    *,
    jobs: int = 1,
    prepare: Callable[[Any], object] | None = None,
    quiet: bool = False,
    is_whole: bool = True,
) -> int:
    """Make every row that the file lacks; returns how many that were. Rows of scenarios that have no point stay.

    Args:
        work: a module's function; it is given `common` and a point, and returns the row's figures.
        prepare: what is done once on a machine before processes do it beside each other (compiling, say).
        is_whole: no other points of these scenarios are wanted: their other rows are of another state, and go.

    Raises:
        WorkError: a process was killed. What the work raises comes through as it is.
    """
    missing = [point for point, row in zip(points, kept_rows(path, points), strict=True) if row is None]
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        Progress(path.stem, len(points), unit="row", quiet=quiet or not missing) as progress,
        path.open("a", encoding="utf-8") as file,
        closing(each(work, common, missing, jobs, prepare)) as rows,
    ):
        progress.set(len(points) - len(missing))
        for place, figures in rows:
            point = missing[place]
            file.write(json.dumps({"inputs": point.inputs, **point.key, **figures}) + "\n")
            file.flush()
            progress.note = f" ({point.key['scenario']})"
            progress.update()
    if is_whole:
        _tidy(path, points)
    return len(missing)


def _tidy(path: Path, points: Sequence[GridRow]) -> None:
    """In the order of the points, without rows of another state of their scenarios."""
    ours = {point.key["scenario"] for point in points}
    rows = [row for row in read_rows(path) if row["scenario"] not in ours]
    rows += [row for row in kept_rows(path, points) if row is not None]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if text != path.read_text(encoding="utf-8"):
        write_text(path, text)
