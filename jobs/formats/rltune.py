"""RLTune's form of other traces: 19 or 20 numbers a line, -1 for what is not known, with or without a header line.

Columns as its code reads them (github.com/dshruti20/RLTune). Its README names 19; the Philly and Helios files have a
twentieth, think time, before the last two. `gpu_type`: 0 T4, 1 MISC, 2 P100, 3 V100 16 GB, 4 V100 32 GB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from jobs.delimited import Columns, columns, first_line
from jobs.fields import is_number, known, name_of, named, numbers
from jobs.lines import Block, blocks
from jobs.rows import Options, Rows
from jobs.tally import Tally
from kit.errors import InputError

_FIELDS: Final = (
    "job", "submit", "wait", "run", "gpus", "cpu_time", "memory", "cpus", "requested_time", "requested_memory",
    "status", "user", "group", "executable", "queue", "partition", "preceding", "vc", "gpu_type",
)  # fmt: skip
_WANTED: Final = ("job", "submit", "wait", "run", "gpus", "requested_time", "user", "vc", "gpu_type")
_TYPES: Final = {"0": "T4", "1": "MISC", "2": "P100", "3": "V100-16", "4": "V100-32"}


def looks_like(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of such a file."""
    found = [line.split(",") for line in lines if not line.startswith(";")]
    if not found or len(found[0]) not in (19, 20):
        return False
    return "proceeding_job_number" in found[0] or all(map(is_number, found[0][1:]))


def read(path: Path, _: Options, tally: Tally) -> Iterator[Rows]:
    """Its rows."""
    line, rest = first_line(path, blocks(path))
    width = line.count(",") + 1
    if width not in (19, 20):
        raise InputError(str(path), "line 1", f"{width} fields; allowed are 19 (README) or 20 (with think time)")
    names = [*_FIELDS[:17], *(["think"] if width == 20 else []), *_FIELDS[17:]]
    first = [] if "submit" in line else [Block(1, f"{line}\n".encode(), 1)]
    for block in columns(chain(first, rest), names, _WANTED, tally, ",", quoted=False):
        yield _rows(block)


def _rows(block: Columns) -> Rows:
    submit_s = numbers(block.of("submit"))
    return Rows(
        lines=block.lines,
        submit_s=submit_s,
        start_s=submit_s + known(numbers(block.of("wait"))),
        run_s=known(numbers(block.of("run"))),
        gpus=numbers(block.of("gpus")),
        requested_s=known(numbers(block.of("requested_time"))),
        texts={
            "job_id": block.of("job"),
            "user": named(block.of("user"), name_of),
            "vc": named(block.of("vc"), name_of),
            "gpu_types": named(block.of("gpu_type"), lambda number: _TYPES.get(number, "")),
        },
        is_date=np.zeros(len(block.lines), bool),
    )
