"""Slurm's accounting: `sacct -X -D --parsable2 --format=...`, `|` between fields, a header line.

Fields and their words: slurm.schedmd.com/sacct.html. GPUs stand in TRES as `gres/gpu=4` or by type (`gres/gpu:a100=4`),
in GRES of older versions as `gpu:4` or `gpu:a100:4`; both are the whole job's (slurm, `_fill_in_gres_fields`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from jobs.delimited import Columns, columns, first_line, split_header
from jobs.fields import Cells, Numbers, dates, durations, mapped, named, numbers, status_of, truths
from jobs.lines import blocks
from jobs.rows import LIFE, OPEN, REQUEUED, UNSTARTED, Lives, Options, Rows
from jobs.tally import Tally
from kit.errors import InputError

FIELDS: Final = (
    "JobIDRaw,JobID,Cluster,User,Account,Partition,QOS,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,State,NNodes,"
    "ReqTRES,AllocTRES"
)
COMMAND: Final = f"TZ=UTC sacct -a -X -D --parsable2 -S 2024-01-01 -E now --format={FIELDS}"
_IDS: Final = ("JobIDRaw", "JobID")
_REQUIRED: Final = ("Submit", "Start", "End", "State")
_GPUS_OF: Final = ("AllocTRES", "AllocGRES", "ReqTRES", "ReqGRES")  # the first that names some counts
_WANTED: Final = (*FIELDS.split(","), "Elapsed", "Timelimit", *_GPUS_OF)
_GPUS: Final = re.compile(r"(?:^|,)(?:gres/)?gpu(?::([^=:,(]+))?[=:](\d+)")
_SOME_GPUS: Final = re.compile(rb"gres/gpu(?::[^=|\n]+)?=[1-9]|\|(?:[^|\n]*,)?gpu(?::[^:,|\n]+)?:[1-9]")
_HET: Final = r"^(?P<job>\d+)\+(?P<part>\d{1,4})$"
_NOT_ENDED: Final = ("RUNNING", "PENDING", "SUSPENDED", "RESIZING", "COMPLETING", "CONFIGURING", "STAGE_OUT")
_STATES: Final = r"\|(COMPLETED|FAILED|TIMEOUT|CANCELLED|PENDING|RUNNING)\b"
_NO_LIMIT_S: Final = 365 * 86400  # what Slurm notes of a job without a limit
HELD: Final = "could not begin at their Submit (dependency, hold, begin time): they wait from Eligible on"
FILLED: Final = "name no GPU: their nodes times --gpus-per-node"
CLOCK_CHANGED: Final = (
    "End - Start differs from ElapsedRaw by an hour (clocks were changed: use `TZ=UTC sacct`, or --timezone)"
)
_ODD_ELAPSED: Final = "ElapsedRaw is no number: End - Start instead"


def looks_like(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of such a log."""
    names = lines[0].split("|")
    return len(names) > 3 and "State" in names and any(name in names for name in _IDS)


def is_another_form(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of what `sacct` writes without `--parsable2`, or without a header."""
    has_rows = any(re.search(_STATES, line) for line in lines)
    return has_rows or re.search(r"\bJobID(Raw)?\b", lines[0]) is not None or '"slurm"' in "".join(lines).lower()


def read(path: Path, options: Options, tally: Tally) -> Iterator[Rows]:
    """Its rows; each is one life of a job."""
    line, rest = first_line(path, blocks(path))
    found = next((name for name in _IDS if name in line.split("|")), "JobIDRaw")
    names = split_header(line, "|", str(path), (found, *_REQUIRED), f"the whole command is `{COMMAND}`")
    if not set(_GPUS_OF) & set(names) and options.gpus_per_node is None:
        problem = "neither ReqTRES nor AllocTRES, which name the GPUs; add them to sacct's --format, or give "
        raise InputError(str(path), "line 1", problem + "--gpus-per-node N where jobs have whole nodes (with NNodes)")
    options = only_where_needed(path, options, tally)
    for block in columns(rest, names, _WANTED, tally, "|", quoted=False):
        yield rows_of(block, options)


def only_where_needed(path: Path, options: Options, tally: Tally) -> Options:
    """Without `--gpus-per-node` where the log names GPUs: what names none there is a job without GPUs."""
    if options.gpus_per_node is None or not any(_SOME_GPUS.search(block.data) for block in blocks(path)):
        return options
    tally.tell("rows of this log name GPUs, so a row that names none has none: --gpus-per-node was not used")
    return replace(options, gpus_per_node=None)


def rows_of(block: Columns, options: Options) -> Rows:
    """Lives of jobs, from columns as `sacct` names them."""
    id_name = next(name for name in _IDS if name in block.texts)
    state = named(block.of("State"), lambda word: word.partition(" ")[0].upper())
    submit, eligible, start, end = (
        dates(block.of(name), options.timezone) for name in ("Submit", "Eligible", "Start", "End")
    )
    is_held = eligible.values > submit.values
    gpus, types, is_filled = _gpus(block, options)
    ids, part = _het(block, id_name)
    run_s, noted = _elapsed(block, start.values, end.values)
    is_header, is_step = truths(compute.equal(ids, id_name)), truths(compute.match_substring(ids, "."))
    limit = durations(block.of("TimelimitRaw" if "TimelimitRaw" in block.texts else "Timelimit"), 60)
    return Rows(
        lines=block.lines,
        submit_s=np.where(is_held, eligible.values, submit.values),
        start_s=start.values,
        run_s=run_s,
        gpus=gpus,
        requested_s=np.where(limit.values == _NO_LIMIT_S, np.nan, limit.values),
        texts={
            "job_id": ids,
            "user": block.of("User"),
            "vc": block.of({"partition": "Partition", "account": "Account", "qos": "QOS"}[options.vc]),
            "gpu_types": types,
            "status": named(state, status_of),
        },
        refused={
            "a header again": is_header,
            "steps of jobs (`sacct -X` leaves them out)": is_step,
            "ended before it started": (run_s < 0) | ((end.values < start.values) & ~noted[CLOCK_CHANGED]),
        },
        noted={**noted, HELD: is_held, FILLED: is_filled},
        needed={"submit time": submit, "eligible time": eligible, "start": start, "end": end},
        optional={"time limit": limit},
        lives=Lives(
            kind=np.where(is_header | is_step, LIFE, _kind(state, start, end)),
            submitted_s=submit.values,
            whose=compute.binary_join_element_wise(*(block.of(name) for name in ("User", "Account", "Cluster")), "|"),
            part=part,
        ),
    )


def _kind(state: Any, start: Cells, end: Cells) -> NDArray[np.int8]:
    """What each row says of a life of its job."""
    is_open = truths(compute.is_in(state, value_set=pyarrow.array(_NOT_ENDED))) | end.is_missing
    kinds = [(is_open, OPEN), (start.is_missing, UNSTARTED), (truths(compute.equal(state, "REQUEUED")), REQUEUED)]
    return np.select([where for where, _ in kinds], [kind for _, kind in kinds], LIFE).astype(np.int8)


def _het(block: Columns, id_name: str) -> tuple[Any, NDArray[np.int16]]:
    """Ids of jobs, of which a heterogeneous one has several (`12+0`, `12+1` in JobID), and which part each row is."""
    ids, part = block.of(id_name), np.full(len(block.lines), -1, np.int16)
    names = block.of("JobID")
    if truths(compute.match_substring(names, "+")).any():
        found = compute.extract_regex(names, _HET)
        ids = compute.coalesce(compute.struct_field(found, "job"), ids)
        part = compute.fill_null(compute.struct_field(found, "part").cast(pyarrow.int16()), -1).to_numpy()
    return ids, part


def _elapsed(block: Columns, start_s: Numbers, end_s: Numbers) -> tuple[Numbers, dict[str, NDArray[np.bool_]]]:
    """How long each ran: what Slurm counted, which knows of clock changes; what is to be said of it."""
    between_s = end_s - start_s
    name = next((name for name in ("ElapsedRaw", "Elapsed") if name in block.texts), None)
    elapsed_s = between_s if name is None else durations(block.of(name)).values
    ran = np.isfinite(between_s)
    is_odd = ran & np.isnan(elapsed_s)
    return np.where(is_odd, between_s, elapsed_s), {
        CLOCK_CHANGED: ran & (np.abs(np.abs(between_s - elapsed_s) - 3600) < 2),
        _ODD_ELAPSED: is_odd,
    }


def _gpus(block: Columns, options: Options) -> tuple[Numbers, Any, NDArray[np.bool_]]:
    """GPUs of each job, the types that it asked for, and where `--gpus-per-node` supplied them.

    What it was given counts; where that names none, what it asked for. Any type that it did not ask for by name is
    allowed.
    """
    gpus = np.zeros(len(block.lines))
    for name in _GPUS_OF:
        if name in block.texts and not (gpus > 0).all():
            gpus = np.where(gpus > 0, gpus, mapped(block.of(name), count_of))
    asked = block.of("ReqTRES" if "ReqTRES" in block.texts else "ReqGRES")
    is_filled = gpus == 0 if options.gpus_per_node is not None else np.zeros(len(gpus), bool)
    filled = numbers(block.of("NNodes")) * (options.gpus_per_node or 0)
    return np.where(is_filled, filled, gpus), named(asked, types_of), is_filled


def count_of(tres: str) -> float:
    """GPUs in a text of TRES or GRES: the total where one stands there, else the sum over types; 0 without any."""
    found = _GPUS.findall(tres)
    totals = [int(count) for kind, count in found if not kind]
    return float(totals[0] if totals else sum(int(count) for _, count in found))


def types_of(tres: str) -> str:
    """The types of GPUs that such a text names, joined by `|`."""
    return "|".join(sorted({kind for kind, count in _GPUS.findall(tres) if kind and int(count)}))
