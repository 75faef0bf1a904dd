"""A CSV file of anybody's, with a header line: its columns are named with `--columns`, or have the normal form's names.

Times are dates or seconds; of both in one column none is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow
from pyarrow import compute

from policies.errors import InputError, nearest
from scenarios.training_jobs.delimited import Columns, columns, first_line, split_header
from scenarios.training_jobs.fields import Numbers, known, named, numbers, status_of, times, truths
from scenarios.training_jobs.lines import blocks
from scenarios.training_jobs.rows import Options, Rows
from scenarios.training_jobs.tally import Tally
from scenarios.training_jobs.trace import COLUMNS

REQUIRED: Final = ("submit_s", "run_s", "gpus")
_DELIMITERS: Final = ",;\t|"
EXAMPLE: Final = "--columns submit_s=submitted,run_s=seconds,gpus=num_gpus,user=owner"


def looks_like(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of a file that has the normal form's own names."""
    return set(REQUIRED) <= {name.strip() for name in lines[0].split(_delimiter(lines[0]))}


def read(path: Path, options: Options, tally: Tally) -> Iterator[Rows]:
    """Its rows."""
    line, rest = first_line(path, blocks(path))
    delimiter = _delimiter(line)
    header = [name.strip().strip('"') for name in line.split(delimiter)]
    of = {name: options.columns.get(name, name) for name in COLUMNS if name in options.columns or name in header}
    for name in options.columns:
        if name not in COLUMNS:
            raise InputError("--columns", name, f"is no column of a trace; {nearest(name, COLUMNS)}")
    for name in REQUIRED:
        of.setdefault(name, name)
    names = split_header(line, delimiter, str(path), list(dict.fromkeys(of.values())), f"name yours: {EXAMPLE}")
    for block in columns(rest, names, of.values(), tally, delimiter, quoted=True):
        yield _rows(block, of, options)


def _rows(block: Columns, of: Mapping[str, str], options: Options) -> Rows:
    def number(name: str) -> Numbers | None:
        return numbers(block.of(of[name])) if name in of else None

    submit_s, is_date = times(block.of(of["submit_s"]), options.timezone)
    start_s = None
    if "recorded_start_s" in of:
        start_s, _ = times(block.of(of["recorded_start_s"]), options.timezone)
    elif (wait_s := number("recorded_wait_s")) is not None:
        start_s = submit_s + known(wait_s)
    requested_s, attempts, share = number("requested_s"), number("attempts"), number("gpu_share")
    texts = {name: block.of(of[name]) for name in ("user", "vc", "gpu_types", "job_class") if name in of}
    if "status" in of:
        texts["status"] = named(block.of(of["status"]), status_of)
    texts["job_id"] = block.of(of["job_id"]) if "job_id" in of else pyarrow.array(map(str, block.lines.tolist()))
    gpus_text = block.of(of["gpus"])
    gpus, is_empty = numbers(gpus_text), truths(compute.equal(compute.utf8_trim_whitespace(gpus_text), ""))
    return Rows(
        lines=block.lines,
        submit_s=submit_s,
        start_s=start_s,
        run_s=numbers(block.of(of["run_s"])),
        gpus=gpus,
        gpu_share=None if share is None else np.where(np.isnan(share), 1.0, share),
        requested_s=None if requested_s is None else known(requested_s),
        attempts=None if attempts is None else np.where(attempts >= 1, attempts, 1).astype(np.int32),
        texts=texts,
        is_date=is_date,
        refused={"GPUs not a number": np.isnan(gpus) & ~is_empty},
        noted={"ask for a part of a GPU, and count as whole ones (a column gpu_share has shares)": gpus % 1 > 0},
    )


def _delimiter(line: str) -> str:
    """The one that the header has most of."""
    return max(_DELIMITERS, key=line.count)
