"""Pages and figures of data frames: text is in `templates/`, and numbers come from frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import floor, log10
from pathlib import Path
from typing import Any, Final

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from scenarios.metrics.statistics import MeanInterval

NONE: Final = "-"


def write_frames(folder: Path, frames: Mapping[str, pd.DataFrame]) -> None:
    """Write each frame as `NAME.csv`, figures to six digits, counts as integers; empty frames have no file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        if frame.columns.empty:
            (folder / f"{name}.csv").unlink(missing_ok=True)
            continue
        frame.convert_dtypes().to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")


def read_frames(folder: Path, prefix: str = "") -> dict[str, pd.DataFrame]:
    """Read the CSV files of a folder by their names, without their common prefix."""
    files = sorted(folder.glob(f"{prefix}*.csv"))
    return {path.stem.removeprefix(prefix): pd.read_csv(path, keep_default_na=False, na_values=[""]) for path in files}


def render(template: str, **facts: Any) -> str:
    """Render a page; the template receives frames as lists of rows, in which None means missing."""
    environment = Environment(
        loader=PackageLoader("benchmarks.study", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"number": number, "change": change, "yes": yes, "row": table_row, "header": table_header}
    rows = {name: rows_of(each) if isinstance(each, pd.DataFrame) else each for name, each in facts.items()}
    return environment.get_template(template).render(**rows)


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a frame's rows, with None for missing values."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(key): value for key, value in row.items()} for row in plain.to_dict("records")]


def number(value: float | None, digits: int | None = None, *, signed: bool = False) -> str:
    """Format a number with this many digits after the point, or three significant ones; `-` for none."""
    if value is None or pd.isna(value):
        return NONE
    after = digits if digits is not None else max(0, 2 - floor(log10(abs(value)))) if value else 0
    return f"{value:{'+' if signed else ''},.{after}f}"


def change(row: Mapping[str, Any], name: str, unit: str = " %", digits: int = 1) -> str:
    """Format a mean and its interval as `-10.3 ± 4.0 %`, a ratio as `-10.3 (-14.1 to -6.3) %`; none as `-`."""
    mean, half = row.get(name), row.get(f"{name}_ci95")
    if mean is None:
        return NONE
    if (low := row.get(f"{name}_low")) is not None:
        ends = (number(end, digits, signed=True) for end in (low, row[f"{name}_high"]))
        return f"{number(mean, digits, signed=True)} ({' to '.join(ends)}){unit}"
    return number(mean, digits, signed=True) + ("" if half is None else f" ± {number(half, digits)}") + unit


def yes(holds: Any) -> str:
    """Format a truth value for a table."""
    return (
        "?"
        if holds is None
        else "**yes**"
        if holds in (True, "yes")
        else "no"
        if holds in (False, "no")
        else str(holds)
    )


def table_row(cells: Iterable[Any]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(str(NONE if cell is None else cell) for cell in cells)} |"


def table_header(heads: Sequence[str]) -> str:
    """Return the first two lines of a Markdown table."""
    return f"{table_row(heads)}\n{table_row(['---'] * len(heads))}"


def columns(name: str, interval: MeanInterval) -> dict[str, float | None]:
    """Return a mean and its half-width as two columns."""
    return {name: interval["mean"], f"{name}_ci95": interval["ci95"]}
