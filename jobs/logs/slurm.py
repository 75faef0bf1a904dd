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

from jobs.logs.fields import Cells, Numbers, dates, durations, mapped, named, numbers, status_of, truths
from jobs.logs.rows import ATTEMPT, OPEN, REQUEUED, UNSTARTED, Options, Rows, Tally
from jobs.logs.text import Columns, TextBlock, blocks, columns, first_line, split_header
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
NOT_ELIGIBLE: Final = "jobs that were held, or depended on others, wait from their Submit on, as if they could begin"
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
    """Its rows; each is one attempt of a job."""
    line, rest = first_line(path, blocks(path))
    id_name = next((name for name in _IDS if name in line.split("|")), "JobIDRaw")
    names = split_header(line, "|", str(path), (id_name, *_REQUIRED), f"the whole command is `{COMMAND}`")
    if not set(_GPUS_OF) & set(names) and options.gpus_per_node is None:
        problem = "neither ReqTRES nor AllocTRES, which name the GPUs; add them to sacct's --format, or give "
        raise InputError(str(path), "line 1", problem + "--gpus-per-node N where jobs have whole nodes (with NNodes)")
    options = only_where_needed(path, options, tally)
    if "Eligible" not in names:
        tally.tell(f"no column Eligible: {NOT_ELIGIBLE}")
    for block in columns(rest, names, _WANTED, tally, "|", quoted=False):
        yield rows_of(block, options)


def only_where_needed(path: Path, options: Options, tally: Tally) -> Options:
    """Without `--gpus-per-node` where the log names GPUs: what names none there is a job without GPUs."""
    if options.gpus_per_node is None or not any(_SOME_GPUS.search(block.data) for block in blocks(path)):
        return options
    tally.tell("rows of this log name GPUs, so a row that names none has none: --gpus-per-node was not used")
    return replace(options, gpus_per_node=None)


def rows_of(block: Columns, options: Options) -> Rows:
    """Attempts of jobs, from columns as `sacct` names them."""
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
        kind=np.where(is_header | is_step, ATTEMPT, _kind(state, start, end)),
        submitted_s=submit.values,
        whose=compute.binary_join_element_wise(*(block.of(name) for name in ("User", "Account", "Cluster")), "|"),
        part=part,
    )


def _kind(state: Any, start: Cells, end: Cells) -> NDArray[np.int8]:
    """What each row says of an attempt of its job."""
    is_open = truths(compute.is_in(state, value_set=pyarrow.array(_NOT_ENDED))) | end.is_missing
    kinds = [(is_open, OPEN), (start.is_missing, UNSTARTED), (truths(compute.equal(state, "REQUEUED")), REQUEUED)]
    return np.select([where for where, _ in kinds], [kind for _, kind in kinds], ATTEMPT).astype(np.int8)


def _het(block: Columns, id_name: str) -> tuple[Any, NDArray[np.int16]]:
    """Ids of jobs, of which a heterogeneous one has several (`12+0`, `12+1` in JobID), and which part each row is."""
    ids, part = block.of(id_name), np.full(len(block.lines), -1, np.int16)
    names = block.of("JobID")
    if truths(compute.match_substring(names, "+")).any():
        parts = compute.extract_regex(names, _HET)
        ids = compute.coalesce(compute.struct_field(parts, "job"), ids)
        part = compute.fill_null(compute.struct_field(parts, "part").cast(pyarrow.int16()), -1).to_numpy()
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
    text = block.of("ReqTRES" if "ReqTRES" in block.texts else "ReqGRES")
    is_filled = gpus == 0 if options.gpus_per_node is not None else np.zeros(len(gpus), bool)
    filled = numbers(block.of("NNodes")) * (options.gpus_per_node or 0)
    return np.where(is_filled, filled, gpus), named(text, types_of), is_filled


def count_of(tres: str) -> float:
    """GPUs in a text of TRES or GRES: the total where one stands there, else the sum over types; 0 without any."""
    matches = _GPUS.findall(tres)
    totals = [int(count) for kind, count in matches if not kind]
    return float(totals[0] if totals else sum(int(count) for _, count in matches))


def types_of(tres: str) -> str:
    """The types of GPUs that such a text names, joined by `|`."""
    return "|".join(sorted({kind for kind, count in _GPUS.findall(tres) if kind and int(count)}))


# -------------------------------------------------------------------------------------------------------------- jobcomp
# Slurm's `jobcomp/filetxt`: a line a job, `Key=value` with blanks between them, of which some values hold blanks.
#
# The keys and their order: slurm, src/plugins/jobcomp/filetxt. A value ends where the next key of the file begins.


_KNOWN: Final = (
    "JobId", "UserId", "GroupId", "Name", "JobState", "Partition", "TimeLimit", "StartTime", "EndTime",
    "NodeList", "NodeCnt", "ProcCnt", "WorkDir", "ReservationName", "Gres", "Tres", "Account", "QOS", "WcKey",
    "Cluster", "SubmitTime", "EligibleTime", "DerivedExitCode", "ExitCode",
)  # fmt: skip
_KEYS: Final = ("JobId", "JobState", "StartTime", "EndTime", "SubmitTime")
_AS_SACCT: Final = {
    "JobId": "JobIDRaw", "UserId": "User", "JobState": "State", "TimeLimit": "Timelimit", "NodeCnt": "NNodes",
    "StartTime": "Start", "EndTime": "End", "SubmitTime": "Submit", "EligibleTime": "Eligible", "Tres": "ReqTRES",
    "Partition": "Partition", "Account": "Account", "QOS": "QOS", "Cluster": "Cluster",
}  # fmt: skip
_HET_KEYS: Final = re.compile(r"(?:Het|Pack)JobId=(\d+) (?:Het|Pack)JobOffset=(\d+)")
_UNIT: Final = "\x1f"
_UNIT_BYTE: Final = 0x1F
_KEY: Final = re.compile(r"(?:^| )([A-Za-z_]+)=")


def looks_like_jobcomp(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of such a log."""
    return lines[0].startswith("JobId=") and "JobState=" in lines[0]


def read_jobcomp(path: Path, options: Options, tally: Tally) -> Iterator[Rows]:
    """Its rows; each is one attempt of a job."""
    keys: list[str] = []
    options = only_where_needed(path, options, tally)
    for block in blocks(path):
        keys = keys or _keys_of(block, str(path))
        for block_columns in columns([_separated(block, keys)], keys, _AS_SACCT, tally, _UNIT, quoted=False):
            if len((right := _checked(block_columns, tally)).lines):
                yield rows_of(_as_sacct(right), options)


def _keys_of(block: TextBlock, source: str) -> list[str]:
    """The keys of the first line, in their order."""
    first = block.data[: block.data.index(b"\n")].decode("utf-8", "replace")
    keys = [key for key in dict.fromkeys(_KEY.findall(first)) if key in _KNOWN]
    for key in _KEYS:
        if key not in keys:
            raise InputError(source, f"line {block.first_line}", f"no {key}=; needed are {'=, '.join(_KEYS)}=")
    return keys


def _separated(block: TextBlock, keys: Sequence[str]) -> TextBlock:
    """With a separator instead of the blank before each key."""
    text = np.frombuffer(block.data + bytes(32), np.uint8).copy()
    blanks = np.flatnonzero(text == 32)
    first_two = text[blanks + 1].astype(np.uint16) * 256 + text[blanks + 2]
    for key in keys[1:]:
        word = f"{key}=".encode()
        places = blanks[first_two == word[0] * 256 + word[1]]
        for index in range(2, len(word)):
            places = places[text[places + 1 + index] == word[index]]
        text[places] = _UNIT_BYTE
    return TextBlock(block.first_line, text[:-32].tobytes(), block.rows)


def _checked(fields: Columns, tally: Tally) -> Columns:
    """Rows whose keys stand in the order of the first line, without the keys."""
    is_right = np.ones(len(fields.lines), bool)
    for key, text in fields.texts.items():
        is_right &= truths(compute.starts_with(text, f"{key}="))
    tally.leave_out("keys in another order than on the first line", fields.lines[~is_right])
    right = fields if is_right.all() else fields.chosen(is_right)
    cut = {key: compute.utf8_slice_codeunits(text, len(key) + 1) for key, text in right.texts.items()}
    return Columns(right.lines, cut)


def _as_sacct(fields: Columns) -> Columns:
    """With sacct's names. Some versions write more keys behind `EligibleTime`, of some jobs alone."""
    texts = {_AS_SACCT[key]: text for key, text in fields.texts.items()}
    texts["User"] = named(fields.of("UserId"), lambda text: text.partition("(")[0])
    texts["State"] = named(fields.of("JobState"), lambda text: "REQUEUED" if text == "PENDING" else text)
    eligible = fields.of("EligibleTime")
    if truths(compute.match_substring(eligible, "Job")).any():
        texts["Eligible"] = named(eligible, lambda text: text.partition(" ")[0])
        texts["JobID"] = named(eligible, lambda text: "+".join(one.groups()) if (one := _HET_KEYS.search(text)) else "")
    return Columns(fields.lines, texts)
