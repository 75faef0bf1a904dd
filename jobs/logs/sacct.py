"""Slurm's accounting: `sacct -X -D --parsable2 --format=...`, `|` between fields, a header; and `jobcomp/filetxt`.

Fields and their words: slurm.schedmd.com/sacct.html. GPUs are in TRES as `gres/gpu=4` or by type (`gres/gpu:a100=4`),
in GRES of older versions as `gpu:4` or `gpu:a100:4`; both are totals of the job (slurm, `_fill_in_gres_fields`).
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

from jobs.logs.log_rows import (
    ELIGIBLE,
    END,
    ENDED_FIRST,
    MAX_GPUS,
    REQUEUED,
    START,
    Cells,
    ImportStats,
    Mask,
    Numbers,
    Options,
    Rows,
    durations,
    mapped,
    named,
    numbers,
    times,
    truths,
)
from jobs.logs.log_text import blocks, first_line, names_of, rows_of
from kit.errors import InputError

FIELDS: Final = (
    "JobIDRaw,JobID,Cluster,User,Account,Partition,QOS,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,State,NNodes,"
    "ReqTRES,AllocTRES"
)
COMMAND: Final = f"TZ=UTC sacct -a -X -D --parsable2 -S 2024-01-01 -E now --format={FIELDS}"
_IDS: Final = ("JobIDRaw", "JobID")
_TIMES: Final = {"submit_s": "Submit", ELIGIBLE: "Eligible", START: "Start", END: "End"}
_GPUS_OF: Final = ("AllocTRES", "AllocGRES", "ReqTRES", "ReqGRES")  # the first that names GPUs is used
_WANTED: Final = (*FIELDS.split(","), "Elapsed", "Timelimit", *_GPUS_OF)
_GPUS: Final = re.compile(r"(?:^|,)(?:gres/)?gpu(?::([^=:,(]+))?[=:](\d+)")
_NODES: Final = re.compile(r"(?:^|,)node=(\d+)")
_SOME_GPUS: Final = re.compile(rb"gres/gpu(?::[^=|\n]+)?=[1-9]|\|(?:[^|\n]*,)?gpu(?::[^:,|\n]+)?:[1-9]")
_NOT_ENDED: Final = pyarrow.array(
    ["RUNNING", "PENDING", "SUSPENDED", "RESIZING", "COMPLETING", "CONFIGURING", "STAGE_OUT"]
)
LOOKS_LIKE: Final = re.compile(r"(?=(.*\|)?JobID(Raw)?(\||$))(?=(.*\|)?State(\||$))(.*\|){3}", re.MULTILINE)
ANOTHER_FORM: Final = re.compile(  # output of `sacct` without `--parsable2`, or without a header
    r'\A.*\bJobID(Raw)?\b|\|(COMPLETED|FAILED|TIMEOUT|CANCELLED|PENDING|RUNNING)\b|"(?i:slurm)"'
)
_NO_LIMIT_S: Final = 365 * 86400  # Slurm's value for a job without a limit
NOT_ELIGIBLE: Final = "jobs that were held, or depended on others, wait from their Submit on, as if they could begin"
FILLED: Final = "name no GPU: their nodes times --gpus-per-node"
MORE: Final = "were given more GPUs than they requested (--exclusive): all that they held count"
SPREAD: Final = "ran on more nodes than their GPUs need, without a request: simulated on the fewest that they can use"
ASKED: Final = "requested more nodes than their GPUs need (-N, by ReqTRES): simulated evenly over that many"
CLOCK_CHANGED: Final = (
    "End - Start differs from ElapsedRaw by an hour (clocks were changed: use `TZ=UTC sacct`, or --timezone)"
)
_ODD_ELAPSED: Final = "ElapsedRaw is not a number: End - Start instead"


def read(path: Path, options: Options, stats: ImportStats) -> Iterator[Rows]:
    """Yield the log's rows; each is one attempt of a job."""
    line, rest = first_line(path)
    id_name = next((name for name in _IDS if name in line.split("|")), "JobIDRaw")
    required = (id_name, "Submit", "Start", "End", "State")
    names = names_of(line, "|", str(path), required, f"the whole command is `{COMMAND}`")
    if not set(_GPUS_OF) & set(names) and options.gpus_per_node is None:
        problem = "neither ReqTRES nor AllocTRES, which name the GPUs; add them to sacct's --format, or give "
        raise InputError(str(path), "line 1", problem + "--gpus-per-node N where jobs have whole nodes (with NNodes)")
    options = only_where_needed(path, options, stats)
    if "Eligible" not in names:
        stats.messages.append(f"no column Eligible: {NOT_ELIGIBLE}")
    for rows in rows_of(rest, names, _WANTED, stats, "|", always_ends=True):
        yield _attempts(rows, options)


def only_where_needed(path: Path, options: Options, stats: ImportStats) -> Options:
    """Return options without `--gpus-per-node` if the log names GPUs: a row without any is then a job without GPUs."""
    if options.gpus_per_node is None or not any(_SOME_GPUS.search(block.data) for block in blocks(path)):
        return options
    stats.messages.append("rows of this log name GPUs, so a row that names none has none: --gpus-per-node was not used")
    return replace(options, gpus_per_node=None)


def _attempts(rows: Rows, options: Options) -> Rows:
    """Build attempts of jobs from columns with `sacct`'s names."""
    raw = rows.columns
    id_name = next(name for name in _IDS if name in raw)
    state = named(rows.of("State"), lambda text: text.partition(" ")[0].upper())
    cells = {
        name: times(raw[own], options.timezone, zero_is_nothing=True) for name, own in _TIMES.items() if own in raw
    }
    start_s, end_s = cells[START].values, cells[END].values
    sizes, noted_sizes = _sizes(rows, options)
    ids, part = _het(rows, id_name)
    run_s, noted = _elapsed(rows, end_s - start_s)
    limit = durations(rows.of("TimelimitRaw" if "TimelimitRaw" in raw else "Timelimit"), 60)
    columns = {
        **cells,
        "job_id": ids,
        "run_s": Cells(run_s),
        **sizes,
        "requested_s": replace(limit, values=np.where(limit.values == _NO_LIMIT_S, np.nan, limit.values)),
        "user": rows.of("User"),
        "vc": rows.of({"partition": "Partition", "account": "Account", "qos": "QOS"}[options.vc]),
        "status": state,
        "whose": compute.binary_join_element_wise(*(rows.of(name) for name in ("User", "Account", "Cluster")), "|"),
        "is_open": truths(compute.is_in(state, value_set=_NOT_ENDED)),
        "is_requeued": truths(compute.equal(state, "REQUEUED")),
        "part": part,
    }
    refused = {
        "a header again": truths(compute.equal(ids, id_name)),
        "steps of jobs (`sacct -X` leaves them out)": truths(compute.match_substring(ids, ".")),
        ENDED_FIRST: (run_s < 0) | ((end_s < start_s) & ~noted[CLOCK_CHANGED]),
    }
    return Rows(rows.lines, columns, _TIMES, True, refused, {**noted, **noted_sizes})


def _het(rows: Rows, id_name: str) -> tuple[Any, NDArray[np.int16] | int]:
    """Return ids of jobs, several for a heterogeneous one (`12+0`, `12+1` in JobID), and each row's part."""
    ids, names = rows.of(id_name), rows.of("JobID")
    if not truths(compute.match_substring(names, "+")).any():
        return ids, -1
    parts = compute.extract_regex(names, r"^(?P<job>\d+)\+(?P<part>\d{1,4})$")
    part = compute.fill_null(compute.struct_field(parts, "part").cast(pyarrow.int16()), -1).to_numpy()
    return compute.coalesce(compute.struct_field(parts, "job"), ids), part


def _elapsed(rows: Rows, between_s: Numbers) -> tuple[Numbers, dict[str, Mask]]:
    """Return run times as Slurm counted them, across clock changes; and notes about them."""
    name = next((name for name in ("ElapsedRaw", "Elapsed") if name in rows.columns), None)
    elapsed_s = between_s if name is None else durations(rows.of(name)).values
    is_odd = np.isfinite(between_s) & np.isnan(elapsed_s)
    is_changed = np.abs(np.abs(between_s - elapsed_s) - 3600) < 2
    return np.where(is_odd, between_s, elapsed_s), {CLOCK_CHANGED: is_changed, _ODD_ELAPSED: is_odd}


def _sizes(rows: Rows, options: Options) -> tuple[dict[str, Any], dict[str, Mask]]:
    """Return GPUs of each job, the types and nodes that it requested, and notes about them.

    Allocated GPUs count; if none are named, requested ones. A job that requested no type may use any.
    """
    gpus, asked = np.zeros(len(rows.lines)), rows.of("ReqTRES" if "ReqTRES" in rows.columns else "ReqGRES")
    for name in _GPUS_OF:
        if name in rows.columns and not (gpus > 0).all():
            gpus = np.where(gpus > 0, gpus, mapped(rows.of(name), count_of))
    nodes, asked_gpus = numbers(rows.of("NNodes")).values, mapped(asked, count_of)
    is_filled = (gpus == 0) & (options.gpus_per_node is not None)
    columns = {
        "gpus": Cells(np.where(is_filled, nodes * (options.gpus_per_node or 0), gpus)),
        "gpu_types": named(asked, types_of),
        "nodes": Cells(mapped(asked, nodes_of)),
        "used_nodes": np.clip(np.nan_to_num(nodes), 0, MAX_GPUS),
    }
    return columns, {FILLED: is_filled, MORE: (asked_gpus > 0) & (gpus > asked_gpus)}


def keep_asked_nodes(columns: dict[str, NDArray[Any]], stats: ImportStats) -> None:
    """Keep the requested nodes of jobs that requested more than their GPUs need, and ran on more; of all rows.

    The largest use of one node by a job determines a node's GPUs.
    """
    gpus, used, asked, lines = (columns[name] for name in ("gpus", "used_nodes", "nodes", "line"))
    is_job = (columns["kind"] <= REQUEUED) & (used > 0)
    of_a_node = np.ceil(np.divide(gpus, used, out=np.ones(len(gpus)), where=is_job)).max(initial=1.0)
    needed = np.ceil(gpus / of_a_node)
    is_spread, is_asked = is_job & (used > needed), asked > needed
    stats.noted.add(SPREAD, lines[is_spread & ~is_asked])
    stats.noted.add(ASKED, lines[is_spread & is_asked])
    columns["nodes"] = np.where(is_spread & is_asked, asked, np.int32(1))


def count_of(tres: str) -> float:
    """Return the GPUs in a text of TRES or GRES: the total if there is one, otherwise the sum over types (or 0)."""
    matches = _GPUS.findall(tres)
    totals = [int(count) for kind, count in matches if not kind]
    return float(totals[0] if totals else sum(int(count) for _, count in matches))


def nodes_of(tres: str) -> float:
    """Return the least number of nodes that a text of TRES implies; 0 if it has none."""
    match = _NODES.search(tres)
    return float(match[1]) if match else 0.0


def types_of(tres: str) -> str:
    """Return the types of GPUs in such a text, joined by `|`."""
    return "|".join(sorted({kind for kind, count in _GPUS.findall(tres) if kind and int(count)}))


# -------------------------------------------------------------------------------------------------------------- jobcomp
# A line a job, `Key=value` separated by blanks; some values contain blanks.
#
# The keys and their order: slurm, src/plugins/jobcomp/filetxt. A value ends at the next key of the file.


_KNOWN: Final = [
    "JobId", "UserId", "GroupId", "Name", "JobState", "Partition", "TimeLimit", "StartTime", "EndTime",
    "NodeList", "NodeCnt", "ProcCnt", "WorkDir", "ReservationName", "Gres", "Tres", "Account", "QOS", "WcKey",
    "Cluster", "SubmitTime", "EligibleTime", "DerivedExitCode", "ExitCode",
]  # fmt: skip
_KEYS: Final = ("JobId", "JobState", "StartTime", "EndTime", "SubmitTime")
_AS_SACCT: Final = {
    "JobId": "JobIDRaw", "UserId": "User", "JobState": "State", "TimeLimit": "Timelimit", "NodeCnt": "NNodes",
    "StartTime": "Start", "EndTime": "End", "SubmitTime": "Submit", "EligibleTime": "Eligible", "Tres": "ReqTRES",
    "Partition": "Partition", "Account": "Account", "QOS": "QOS", "Cluster": "Cluster",
}  # fmt: skip
_HET_KEYS: Final = re.compile(r"(?:Het|Pack)JobId=(\d+) (?:Het|Pack)JobOffset=(\d+)")
_UNIT: Final = "\x1f"
_KEY: Final = re.compile(r"(?:^| )([A-Za-z_]+)=")


def read_jobcomp(path: Path, options: Options, stats: ImportStats) -> Iterator[Rows]:
    """Yield the log's rows; each is one attempt of a job."""
    keys = [key for key in dict.fromkeys(_KEY.findall(first_line(path)[0])) if key in _KNOWN]
    for key in _KEYS:
        if key not in keys:
            raise InputError(str(path), "line 1", f"no {key}=; needed are {'=, '.join(_KEYS)}=")
    options = only_where_needed(path, options, stats)
    separated = (replace(block, data=_separated(block.data, keys)) for block in blocks(path))
    for rows in rows_of(separated, keys, _AS_SACCT, stats, _UNIT, always_ends=True):
        right = np.all([truths(compute.starts_with(text, f"{key}=")) for key, text in rows.columns.items()], axis=0)
        stats.left_out.add("keys in another order than on the first line", rows.lines[~right])
        if right.any():
            yield _attempts(_as_sacct(rows.chosen(right)), options)


def _separated(data: bytes, keys: Sequence[str]) -> bytes:
    """Return the data with a separator instead of the blank before each key."""
    text = np.frombuffer(data + bytes(32), np.uint8).copy()
    blanks = np.flatnonzero(text == 32)
    first_two = text[blanks + 1].astype(np.uint16) * 256 + text[blanks + 2]
    for key in keys[1:]:
        prefix = f"{key}=".encode()
        starts = blanks[first_two == prefix[0] * 256 + prefix[1]]
        for index in range(2, len(prefix)):
            starts = starts[text[starts + 1 + index] == prefix[index]]
        text[starts] = ord(_UNIT)
    return text[:-32].tobytes()


def _as_sacct(rows: Rows) -> Rows:
    """Rename columns to sacct's; some versions write more keys after `EligibleTime`, only for some jobs."""
    texts = {_AS_SACCT[key]: compute.utf8_slice_codeunits(text, len(key) + 1) for key, text in rows.columns.items()}
    texts["State"] = named(texts["State"], lambda text: "REQUEUED" if text == "PENDING" else text)
    if "User" in texts:
        texts["User"] = named(texts["User"], lambda text: text.partition("(")[0])
    if truths(compute.match_substring(rows.of("EligibleTime"), "Job")).any():
        parts = named(texts["Eligible"], lambda text: "+".join(one.groups()) if (one := _HET_KEYS.search(text)) else "")
        texts |= {"JobID": parts, "Eligible": named(texts["Eligible"], lambda text: text.partition(" ")[0])}
    return replace(rows, columns=texts)
