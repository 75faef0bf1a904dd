"""The runner of grids: a row for each point (scenario x variant x seed), computed in processes and stored at once.

A file of rows is JSON lines. A row belongs to one `GridRow`, identified by a fingerprint of all that decides it. So an
interrupted command resumes, changed rows are recomputed, and unchanged ones are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kit.documents import inputs_hash
from kit.parallel import each
from scenarios.terminal.progress import Progress

Row = dict[str, Any]
ROOT: Final = Path(__file__).parents[1]
DECIDING: Final = ("kit", "policies", "sim", "scenarios/metrics", "scenarios/runs", "scenarios/experiment")


@dataclass(frozen=True)
class GridRow:
    """A requested row.

    Attributes:
        key: its identity, as plain data: `scenario`, and what distinguishes it from the scenario's others.
        decided_by: fingerprint of other inputs: the scenario's file, say, and a budget.
        source: further arguments of its work, without influence on the result.
    """

    key: Mapping[str, Any]
    decided_by: str
    source: Any = None

    @property
    def inputs(self) -> str:
        """The row's fingerprint."""
        return inputs_hash(dict(self.key), self.decided_by)[:16]


def code_state() -> str:
    """Return a fingerprint of the code that decides a simulated run."""
    files = [path for folder in DECIDING for path in sorted((ROOT / folder).rglob("*.py"))]
    return inputs_hash(*files)


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a file, without a line truncated by an interruption; empty if there is none."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def kept_rows(path: Path, points: Sequence[GridRow]) -> list[Row | None]:
    """Return each point's row in the file, or None."""
    by_inputs = {row["inputs"]: row for row in read_rows(path)}
    return [by_inputs.get(point.inputs) for point in points]


def make_rows(path: Path, points: Sequence[GridRow], work: Callable[[Any, GridRow], Row], common: Any = None) -> None:
    """Compute every row that the file lacks; other rows stay.

    Args:
        work: a module's function of `common` and a point, which returns the row's figures.

    Raises:
        WorkError: a process was killed. The work's own errors are passed on.
    """
    missing = [point for point, row in zip(points, kept_rows(path, points), strict=True) if row is None]
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        Progress(path.stem, len(points), unit="row", quiet=not missing) as progress,
        path.open("a", encoding="utf-8") as file,
        closing(each(work, common, missing, 1)) as rows,
    ):
        progress.set(len(points) - len(missing))
        for index, figures in rows:
            point = missing[index]
            file.write(json.dumps({"inputs": point.inputs, **point.key, **figures}) + "\n")
            file.flush()
            progress.note = f" ({point.key['scenario']})"
            progress.update()
