"""Pages and pictures of data frames: what is said stands in `templates/`, and figures come from frames."""

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
    """Each as `NAME.csv`, figures to six digits, counts whole; what is empty has no file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        if frame.columns.empty:
            (folder / f"{name}.csv").unlink(missing_ok=True)
            continue
        frame.convert_dtypes().to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")


def read_frames(folder: Path, prefix: str = "") -> dict[str, pd.DataFrame]:
    """The CSV files of a folder by their names, without the prefix that they all have."""
    files = sorted(folder.glob(f"{prefix}*.csv"))
    return {path.stem.removeprefix(prefix): pd.read_csv(path, keep_default_na=False, na_values=[""]) for path in files}


def render(template: str, **given: Any) -> str:
    """A page; frames are given to it as lists of rows, in which None is what is missing."""
    environment = Environment(
        loader=PackageLoader("benchmarks.study", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"number": number, "change": change, "yes": yes, "row": table_row, "head": table_head}
    rows = {name: rows_of(each) if isinstance(each, pd.DataFrame) else each for name, each in given.items()}
    return environment.get_template(template).render(**rows)


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A frame's rows, with None for what is missing."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(key): value for key, value in row.items()} for row in plain.to_dict("records")]


def number(value: float | None, digits: int | None = None, *, signed: bool = False) -> str:
    """With so many digits after the point, or three that count; `-` for none."""
    if value is None or pd.isna(value):
        return NONE
    after = digits if digits is not None else max(0, 2 - floor(log10(abs(value)))) if value else 0
    return f"{value:{'+' if signed else ''},.{after}f}"


def change(row: Mapping[str, Any], name: str, unit: str = " %", digits: int = 1) -> str:
    """`-10.3 ± 4.0 %` of the columns of a mean and its interval, `-10.3 (-14.1 to -6.3) %` of those of a ratio; `-` for
    none."""
    mean, half = row.get(name), row.get(f"{name}_ci95")
    if mean is None:
        return NONE
    if (low := row.get(f"{name}_low")) is not None:
        ends = (number(end, digits, signed=True) for end in (low, row[f"{name}_high"]))
        return f"{number(mean, digits, signed=True)} ({' to '.join(ends)}){unit}"
    return number(mean, digits, signed=True) + ("" if half is None else f" ± {number(half, digits)}") + unit


def yes(holds: Any) -> str:
    """In a table."""
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
    """A line of a Markdown table."""
    return f"| {' | '.join(str(NONE if cell is None else cell) for cell in cells)} |"


def table_head(heads: Sequence[str]) -> str:
    """The first two lines of a Markdown table."""
    return f"{table_row(heads)}\n{table_row(['---'] * len(heads))}"


def columns(name: str, interval: MeanInterval) -> dict[str, float | None]:
    """A mean and its half-width as two columns."""
    return {name: interval["mean"], f"{name}_ci95": interval["ci95"]}
