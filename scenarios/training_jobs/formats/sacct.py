"""Slurm's accounting: `sacct -X -D --parsable2 --format=...`, `|` between fields, a header line.

Fields and their words: slurm.schedmd.com/sacct.html. GPUs stand in TRES as `gres/gpu=4` or by type (`gres/gpu:a100=4`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from policies.errors import InputError
from scenarios.training_jobs.delimited import Columns, columns, first_line, split_header
from scenarios.training_jobs.fields import Numbers, dates, mapped, named, numbers, status_of, truths
from scenarios.training_jobs.lines import blocks
from scenarios.training_jobs.rows import Options, Rows
from scenarios.training_jobs.tally import Tally

COMMAND: Final = (
    "TZ=UTC sacct -a -X -D --parsable2 -S 2024-01-01 -E now --format=JobIDRaw,User,Account,Partition,QOS,Submit,"
    "Eligible,Start,End,ElapsedRaw,TimelimitRaw,State,NNodes,ReqTRES,AllocTRES"
)
_IDS: Final = ("JobIDRaw", "JobID")
_REQUIRED: Final = ("Submit", "Start", "End", "State")
_WANTED: Final = (*_IDS, *_REQUIRED, "User", "Account", "Partition", "QOS", "Eligible", "ElapsedRaw", "TimelimitRaw")
_TRES: Final = ("NNodes", "ReqTRES", "AllocTRES")
_GPUS: Final = re.compile(r"(?:^|,)gres/gpu(?::([^=,]+))?=(\d+)")
_NOT_ENDED: Final = ("RUNNING", "PENDING", "SUSPENDED", "RESIZING", "COMPLETING", "CONFIGURING", "STAGE_OUT")
CLOCK_CHANGED: Final = (
    "End - Start differs from ElapsedRaw by an hour (clocks were changed: use `TZ=UTC sacct`, or --timezone)"
)
_ODD_ELAPSED: Final = "ElapsedRaw is no number: End - Start instead"


def looks_like(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of such a log."""
    names = lines[0].split("|")
    return len(names) > 3 and "State" in names and any(name in names for name in _IDS)


def read(path: Path, options: Options, tally: Tally) -> Iterator[Rows]:
    """Its rows; each is one life of a job."""
    line, rest = first_line(path, blocks(path))
    found = next((name for name in _IDS if name in line.split("|")), "JobIDRaw")
    names = split_header(line, "|", str(path), (found, *_REQUIRED), f"the whole command is `{COMMAND}`")
    if "ReqTRES" not in names and "AllocTRES" not in names and options.gpus_per_node is None:
        problem = "neither ReqTRES nor AllocTRES, which name the GPUs; add them to sacct's --format, or give "
        raise InputError(str(path), "line 1", problem + "--gpus-per-node N where jobs have whole nodes (with NNodes)")
    for block in columns(rest, names, (*_WANTED, *_TRES), tally, "|", quoted=False):
        yield _rows(block, found, options)


def _rows(block: Columns, id_name: str, options: Options) -> Rows:
    state = named(block.of("State"), lambda word: word.partition(" ")[0].upper())
    submit_s, start_s, end_s = (dates(block.of(name), options.timezone) for name in ("Submit", "Start", "End"))
    gpus, types = gpus_of(block.of("ReqTRES"), block.of("AllocTRES"), block.of("NNodes"), options)
    ids = block.of(id_name)
    elapsed_s, noted = _elapsed(block, start_s, end_s)
    return Rows(
        lines=block.lines,
        submit_s=submit_s,
        start_s=start_s,
        run_s=elapsed_s,
        gpus=gpus,
        requested_s=60 * mapped(block.of("TimelimitRaw"), _minutes),
        texts={
            "job_id": ids,
            "user": block.of("User"),
            "vc": block.of({"partition": "Partition", "account": "Account", "qos": "QOS"}[options.vc]),
            "gpu_types": types,
            "status": named(state, status_of),
        },
        refused={
            "a header again": truths(compute.equal(ids, id_name)),
            "steps of jobs (`sacct -X` leaves them out)": truths(compute.match_substring(ids, ".")),
            "not yet ended": truths(compute.is_in(state, value_set=pyarrow.array(_NOT_ENDED))) | np.isnan(end_s),
            "never started": np.isnan(start_s),
            "ended before it started": elapsed_s < 0,
        },
        noted=noted,
    )


def _elapsed(block: Columns, start_s: Numbers, end_s: Numbers) -> tuple[Numbers, dict[str, NDArray[np.bool_]]]:
    """How long each ran: what Slurm counted, which knows of clock changes; what is to be said of it."""
    between_s = end_s - start_s
    if "ElapsedRaw" not in block.texts:
        return between_s, {}
    elapsed_s = numbers(block.of("ElapsedRaw"))
    ran = np.isfinite(between_s)
    is_odd = ran & np.isnan(elapsed_s)
    return np.where(is_odd, between_s, elapsed_s), {
        CLOCK_CHANGED: ran & (np.abs(np.abs(between_s - elapsed_s) - 3600) < 2),
        _ODD_ELAPSED: is_odd,
    }


def gpus_of(requested: Any, allocated: Any, nodes: Any, options: Options) -> tuple[Numbers, Any]:
    """GPUs of each job, and the types that it asked for.

    What it was given counts; where that names none, what it asked for; where that names none either, its nodes times
    `--gpus-per-node`. Any type that it did not ask for by name is allowed.
    """
    gpus = mapped(allocated, count_of)
    gpus = np.where(gpus > 0, gpus, mapped(requested, count_of))
    if options.gpus_per_node is not None:
        gpus = np.where(gpus > 0, gpus, mapped(nodes, _number) * options.gpus_per_node)
    return gpus, named(requested, types_of)


def count_of(tres: str) -> float:
    """GPUs in a TRES text: the total where one stands there, else the sum over types; 0 where there is none."""
    found = _GPUS.findall(tres)
    totals = [int(count) for kind, count in found if not kind]
    return float(totals[0] if totals else sum(int(count) for _, count in found))


def types_of(tres: str) -> str:
    """The types of GPUs that a TRES text names, joined by `|`."""
    return "|".join(sorted({kind for kind, count in _GPUS.findall(tres) if kind and int(count)}))


def _minutes(limit: str) -> float:
    """Not-a-number for UNLIMITED, Partition_Limit and nothing."""
    found = _number(limit)
    return found if found > 0 else np.nan


def _number(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() else np.nan
