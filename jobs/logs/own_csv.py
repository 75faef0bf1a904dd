"""A CSV file of anybody's, with a header line: its columns are named with `--columns`, or have the normal form's names.

Times are dates or seconds, in one form in all columns; durations as `fields.durations` reads them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow
from pyarrow import compute

from jobs.logs.fields import (
    SECONDS,
    UNREAD,
    Cells,
    durations,
    known,
    named,
    numbers,
    status_of,
    times,
    truths,
)
from jobs.logs.rows import Options, Rows, Tally
from jobs.logs.text import Columns, blocks, columns, first_line, split_header
from jobs.trace import COLUMNS
from kit.errors import InputError, nearest

REQUIRED: Final = ("submit_s", "run_s", "gpus")
START: Final = "recorded_start_s"
END: Final = "recorded_end_s"  # it tells the run time where no column does
_NAMES: Final = (*COLUMNS, END)
_QUANTITIES: Final = (
    "submit_s", START, END, "run_s", "recorded_wait_s", "requested_s", "gpus", "attempts", "gpu_share",
)  # fmt: skip
_DELIMITERS: Final = ",;\t|"
EXAMPLE: Final = (
    f"--columns submit_s=submitted,run_s=seconds,gpus=num_gpus,user=owner (for run_s= also {START}=,{END}=)"
)
PART: Final = "ask for a part of a GPU, and count as whole ones (a column gpu_share has shares)"
_COMMA: Final = r"^\s*[-+]?\d+(,\d+)+(\.\d+)?\s*$"
_THOUSANDS: Final = r"^\s*[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?\s*$"


def looks_like(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of a file that has the normal form's own names."""
    names = {name.strip() for name in lines[0].split(_delimiter(lines[0]))}
    return set(_required(names)) <= names


def _required(names: Container[str]) -> tuple[str, ...]:
    return ("submit_s", START, END, "gpus") if "run_s" not in names and END in names else REQUIRED


def read(path: Path, options: Options, tally: Tally) -> Iterator[Rows]:
    """Its rows."""
    line, rest = first_line(path, blocks(path))
    delimiter = _delimiter(line)
    header = [name.strip().strip('"') for name in line.split(delimiter)]
    of = {name: options.columns.get(name, name) for name in _NAMES if name in options.columns or name in header}
    for name in options.columns:
        if name not in _NAMES:
            raise InputError("--columns", name, f"is no column of a trace; {nearest(name, _NAMES)}")
    for name in _required(of):
        of.setdefault(name, name)
    names = split_header(line, delimiter, str(path), list(dict.fromkeys(of.values())), f"name yours: {EXAMPLE}")
    for block in columns(rest, names, of.values(), tally, delimiter, quoted=True):
        texts = {name: block.of(column) for name, column in of.items()}
        for name in _QUANTITIES:
            if name in texts:
                texts[name] = _plain(texts[name], name, block, str(path), has_thousands=delimiter == ",")
        yield _rows(Columns(block.lines, texts), options)


def _rows(block: Columns, options: Options) -> Rows:
    """The jobs of a block whose columns have the names of the normal form."""
    submit, start, end = (times(block.of(name), options.timezone, options.unit_s) for name in ("submit_s", START, END))
    ran, wait, requested = (
        durations(block.of(name), options.unit_s) for name in ("run_s", "recorded_wait_s", "requested_s")
    )
    gpus, attempts, share = (_quantity(block.of(name)) for name in ("gpus", "attempts", "gpu_share"))
    is_timed, times_of_run = "run_s" not in block.texts, {"start": start, "end": end}
    texts: dict[str, Any] = {
        name: block.texts[name] for name in ("user", "vc", "gpu_types", "job_class") if name in block.texts
    }
    if "status" in block.texts:
        texts["status"] = named(block.of("status"), status_of)
    has_ids = "job_id" in block.texts
    texts["job_id"] = block.of("job_id") if has_ids else pyarrow.array(map(str, block.lines.tolist()))
    unended = {
        "never started": start.is_missing,
        "not yet ended": end.is_missing,
        "ended before it started": end.values < start.values,
    }
    return Rows(
        lines=block.lines,
        submit_s=submit.values,
        start_s=start.values if START in block.texts else submit.values + known(wait.values),
        run_s=end.values - start.values if is_timed else ran.values,
        gpus=gpus.values,
        gpu_share=np.where(np.isnan(share.values), 1.0, share.values) if "gpu_share" in block.texts else None,
        requested_s=known(requested.values),
        attempts=np.where(attempts.values >= 1, attempts.values, 1).astype(np.int32),
        texts=texts,
        is_date=submit.forms != SECONDS,
        refused=unended if is_timed else {},
        noted={PART: gpus.values % 1 > 0},
        needed={"submit time": submit, "GPUs": gpus, **(times_of_run if is_timed else {"run time": ran})},
        optional={"time limit": requested, "wait": wait, **({} if is_timed else times_of_run)},
    )


def _quantity(texts: Any) -> Cells:
    values, is_empty = numbers(texts), truths(compute.equal(compute.utf8_trim_whitespace(texts), ""))
    return Cells(texts, values, np.where(np.isnan(values) & ~is_empty, UNREAD, 0), "a number")


def _plain(texts: Any, name: str, block: Columns, source: str, has_thousands: bool) -> Any:
    """Texts of numbers without a comma between thousands.

    Args:
        has_thousands: a comma in a number can't be a decimal sign, for it separates the table's fields elsewhere.

    Raises:
        InputError: one has a comma that may be a decimal sign.
    """
    if not truths(compute.match_substring(texts, ",")).any():
        return texts
    has_comma = truths(compute.match_substring_regex(texts, _COMMA))
    is_odd = has_comma & ~(truths(compute.match_substring_regex(texts, _THOUSANDS)) & has_thousands)
    if is_odd.any():
        place = int(is_odd.argmax())
        text = texts[place].as_py()
        problem = f"{name}: {text!r:.40}: is this comma for decimals, or between thousands? Write 7200, or 7.2"
        raise InputError(source, f"line {block.lines[place]}", problem)
    return compute.if_else(pyarrow.array(has_comma), compute.replace_substring(texts, ",", ""), texts)


def _delimiter(line: str) -> str:
    """The one that the header has most of."""
    return max(_DELIMITERS, key=line.count)
