"""SenseTime's Helios: `cluster_log.csv`, a header line, dates of local time.

Columns and their meaning: github.com/S-Lab-System-Group/HeliosData (Hu et al., SC 2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from jobs.delimited import Columns, columns, first_line, split_header
from jobs.fields import dates, named, numbers, status_of
from jobs.lines import blocks
from jobs.rows import Options, Rows
from jobs.tally import Tally

_REQUIRED: Final = ("job_id", "user", "vc", "gpu_num", "state", "submit_time", "start_time", "duration")


def looks_like(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of such a log."""
    return set(_REQUIRED) <= set(lines[0].split(","))


def read(path: Path, options: Options, tally: Tally) -> Iterator[Rows]:
    """Its rows."""
    line, rest = first_line(path, blocks(path))
    names = split_header(line, ",", str(path), _REQUIRED, "is it a Helios cluster_log.csv?")
    for block in columns(rest, names, _REQUIRED, tally, ",", quoted=True):
        yield _rows(block, options)


def _rows(block: Columns, options: Options) -> Rows:
    submit, start = (dates(block.of(name), options.timezone) for name in ("submit_time", "start_time"))
    return Rows(
        lines=block.lines,
        submit_s=submit.values,
        start_s=start.values,
        run_s=numbers(block.of("duration")),
        gpus=numbers(block.of("gpu_num")),
        texts={
            "job_id": block.of("job_id"),
            "user": block.of("user"),
            "vc": block.of("vc"),
            "status": named(block.of("state"), status_of),
        },
        refused={"never started": start.is_missing},
        needed={"submit time": submit, "start": start},
    )
