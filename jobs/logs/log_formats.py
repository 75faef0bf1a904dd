"""Supported log formats, by name: detection, and columns as those of a trace.

Philly (`philly`, the log `cluster_job_log` of Microsoft): a JSON list of jobs with their attempts; dates of local time.
Keys: github.com/msr-fiddle/philly-traces (Jeon et al., USENIX ATC 2019). Attempts may be missing and times null; a job
whose last attempt has no end was still running. Attempts are consecutive: a job's run time is their sum.

Other formats, with the sources of their columns and the meaning of these (addresses: docs/jobs.md):

    helios       Hu et al., SC 2021: dates of local time
    openb        Weng et al., USENIX ATC 2023: seconds from the trace's start; a pod of one GPU may ask for thousandths
    rltune       19 or 20 numbers a line (with think time), -1 for unknown values
    swf          Feitelson et al.: 18 numbers a line, `;` before comments, -1 for unknown values
    alibaba-pai  Weng et al., NSDI 2022, two tables without headers: a job's GPUs are the sum over its tasks,
                 rounded up; it waits from its own start to that of its first task
    csv          any table with a header line, named by `--columns`, or with the normal form's names

Slurm's formats (`sacct`, `jobcomp`) are in `jobs.logs.sacct`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow
from pyarrow import compute

from jobs.job_traces import COLUMNS
from jobs.logs import sacct
from jobs.logs.log_rows import (
    END,
    QUANTITIES,
    START,
    WAIT,
    Cells,
    ImportStats,
    Lines,
    Options,
    Rows,
    known,
    named,
    numbers,
    times,
    truths,
)
from jobs.logs.log_text import TextBlock, blocks, first_line, head, names_of, rows_of
from kit.errors import InputError, nearest

_AT_ONCE: Final = 5_000  # jobs
_COLUMNS: Final = {"job_id": "jobid", "user": "user", "vc": "vc", "status": "status", "submit_s": "submitted_time"}


# --------------------------------------------------------------------------------------------------------------- Philly


class _Detail(msgspec.Struct, gc=False):
    gpus: list[str] = []


class _Attempt(msgspec.Struct, gc=False):
    start_time: str | None = None
    end_time: str | None = None
    detail: list[_Detail] = []


class _Job(msgspec.Struct, gc=False):
    jobid: str
    submitted_time: str | None = None
    status: str = ""
    vc: str | None = None
    user: str | None = None
    attempts: list[_Attempt] = []


_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_JOB: Final = msgspec.json.Decoder(_Job)
_NO_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError)


def read(path: Path, options: Options, stats: ImportStats) -> Iterator[Rows]:
    """Yield the log's rows; the file is read into memory, for a list has no lines to cut it at."""
    data = b"".join(block.data for block in blocks(path))
    if not data.lstrip().startswith(b"["):
        raise InputError(str(path), "line 1", f"{data[:40]!r}; a Philly log is a JSON list of jobs and begins with [")
    try:
        objects = _LIST.decode(data)
    except _NO_JSON as error:
        problem = f"the list does not end, or is not JSON ({error}); the file is cut off, or no Philly log"
        raise InputError(str(path), "", problem) from None
    at, line = 0, 1
    for begin in range(0, len(objects), _AT_ONCE):
        jobs, lines = list[_Job](), list[int]()
        for raw in objects[begin : begin + _AT_ONCE]:
            text = memoryview(raw)
            begins = data.index(text[0], at)  # only blanks and a comma precede it
            lines.append(line + data.count(b"\n", at, begins))
            at = begins + len(text)
            line = lines[-1] + data.count(b"\n", begins, at)
            try:
                jobs.append(_JOB.decode(text))
            except _NO_JSON as error:
                raise InputError(str(path), f"line {lines[-1]}", f"this job can't be read: {error}") from None
        stats.rows += len(jobs)
        yield _rows(jobs, np.array(lines), options)


def _rows(jobs: list[_Job], lines: Lines, options: Options) -> Rows:
    attempts = [attempt for job in jobs for attempt in job.attempts]
    counts = np.array([len(job.attempts) for job in jobs])
    owner = np.repeat(np.arange(len(jobs)), counts)
    start, end = (
        times(_texts(texts), options.timezone, zero_is_nothing=True)
        for texts in ((attempt.start_time for attempt in attempts), (attempt.end_time for attempt in attempts))
    )
    begun_s = np.full(len(jobs), np.nan)
    is_open = np.zeros(len(jobs), bool)
    gpus = np.zeros(len(jobs))
    np.fmin.at(begun_s, owner, start.values)  # the first known start
    np.maximum.at(gpus, owner, [sum(len(part.gpus) for part in attempt.detail) for attempt in attempts])
    is_open[owner] = end.is_missing & ~start.is_missing  # the last of each job is written last
    ran_s = end.values - start.values
    run_s, backwards, unknown = (
        np.bincount(owner, weights, len(jobs)).astype(np.float64)
        for weights in (np.nan_to_num(ran_s), ran_s < 0, np.isnan(ran_s))
    )
    text_columns = {name: _texts(getattr(job, key) for job in jobs) for name, key in _COLUMNS.items()}
    quantities = {
        START: Cells(begun_s),
        "run_s": Cells(run_s),
        "gpus": Cells(gpus),
        "attempts": Cells(counts.astype(np.float64)),
    }
    return Rows(
        lines,
        {**text_columns, **quantities, "is_open": is_open},
        ("submit_s", START),
        is_calendar=True,
        refused={"an attempt that ended before it started": backwards > 0},
        noted={"attempts without a start or an end that can be read; the others count": unknown > 0},
    )


def _texts(texts: Iterable[str | None]) -> pyarrow.Array:
    return pyarrow.array([text or "" for text in texts], pyarrow.string())


_HELIOS: Final = {
    "job_id": "job_id", "user": "user", "vc": "vc", "gpus": "gpu_num", "status": "state",
    "submit_s": "submit_time", START: "start_time", "run_s": "duration",
}  # fmt: skip
_OPENB: Final = {
    "job_id": "name", "gpus": "num_gpu", "gpu_share": "gpu_milli", "gpu_types": "gpu_spec", "status": "pod_phase",
    "submit_s": "creation_time", START: "scheduled_time", END: "deletion_time",
}  # fmt: skip
_TIMED: Final = ("submit_s", START, END, "gpus")
_SWF: Final = [
    "job_id", "submit_s", "recorded_wait_s", "run_s", "gpus", "cpu", "memory", "requested", "requested_s",
    "requested_memory", "status", "user", "group", "executable", "vc", "partition", "preceding", "think",
]  # fmt: skip
_RLTUNE: Final = [
    "job_id", "submit_s", "recorded_wait_s", "run_s", "gpus", "cpu_time", "memory", "cpus", "requested_s",
    "requested_memory", "ended", "user", "group", "executable", "queue", "partition", "preceding", "vc",
    "gpu_types",
]  # fmt: skip
_NUMBERED: Final = {*COLUMNS, WAIT, "requested"}
_RLTUNE_TYPES: Final = {"0": "T4", "1": "MISC", "2": "P100", "3": "V100-16", "4": "V100-32"}
_SWF_STATUSES: Final = {"0": "failed", "1": "completed", "5": "cancelled"}
_PARTS: Final = "parts of a job that has a separate line for the whole (status 2 to 4)"
_UNIX_START: Final = re.compile(rb"^;\s*UnixStartTime:\s*(\d{9,11})", re.MULTILINE)
_NUMBER: Final = r"[ \t]*-?[\d.]+(e[-+]?\d+)?"
_FLAGS: Final = re.ASCII | re.MULTILINE
_PAI_JOB: Final = ["job_name", "inst_id", "user", "status", "start_time", "end_time"]
_PAI_TASK: Final = [
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
]  # fmt: skip
_PAI_STATUSES: Final = "status|Running|Terminated|Failed|Waiting"
SHARES: Final = "ask for a share of a GPU; the sum is rounded up to whole ones"
PART: Final = "ask for a part of a GPU, and count as whole ones (a column gpu_share has shares)"
_COMMA: Final = r"^\s*[-+]?\d+(,\d+)+(\.\d+)?\s*$"
_THOUSANDS: Final = r"^\s*[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?\s*$"
_EXAMPLE: Final = f"submit_s=submitted,run_s=seconds,gpus=num_gpus,user=owner (for run_s= also {START}=,{END}=)"
_OWN: Final = "a custom CSV file needs --columns"


# ------------------------------------------------------------------------------------------------- tables with a header


def _headed(path: Path, of: Mapping[str, str], remedy: str, stats: ImportStats, delimiter: str = ",") -> Iterator[Rows]:
    """Yield columns by the trace's names.

    Args:
        of: the file's column for each of them.
    """
    line, rest = first_line(path)
    names = names_of(line, delimiter, str(path), dict.fromkeys(of.values()), remedy)
    for rows in rows_of(rest, names, of.values(), stats, delimiter, is_quoted=True):
        yield replace(rows, columns={name: rows.columns[own] for name, own in of.items()})


def _helios(path: Path, _: Options, stats: ImportStats) -> Iterator[Rows]:
    for rows in _headed(path, _HELIOS, "is it a Helios cluster_log.csv?", stats):
        yield replace(rows, required=("submit_s", START, "run_s", "gpus"), is_calendar=True)


def _openb(path: Path, _: Options, stats: ImportStats) -> Iterator[Rows]:
    for rows in _headed(path, _OPENB, "is it an openb_pod_list file?", stats):
        gpus, milli = numbers(rows.of("gpus")), numbers(rows.of("gpu_share"))
        share = replace(milli, values=np.where(gpus.values == 1, milli.values / 1000, 1.0))
        yield replace(rows, columns={**rows.columns, "gpus": gpus, "gpu_share": share}, required=_TIMED)


def _required(names: Container[str]) -> tuple[str, ...]:
    return _TIMED if "run_s" not in names and END in names else ("submit_s", "run_s", "gpus")


def _is_csv(text: str) -> bool:
    line = text.partition("\n")[0]
    names = {name.strip() for name in line.split(_delimiter(line))}
    return set(_required(names)) <= names


def _delimiter(line: str) -> str:
    """Return the delimiter most frequent in the header."""
    return max(",;\t|", key=line.count)


def _csv(path: Path, options: Options, stats: ImportStats) -> Iterator[Rows]:
    names = (*COLUMNS, END)
    for name in options.columns:
        if name not in names:
            raise InputError("--columns", name, f"is not a column of a trace; {nearest(name, names)}")
    delimiter = _delimiter(line := first_line(path)[0])
    header = [name.strip().strip('"') for name in line.split(delimiter)]
    of = {name: options.columns.get(name, name) for name in names if name in options.columns or name in header}
    of = {name: name for name in _required(of)} | of
    for rows in _headed(path, of, f"name yours: --columns {_EXAMPLE}", stats, delimiter):
        columns = {"job_id": pyarrow.array(map(str, rows.lines.tolist())), **rows.columns}
        for name in filter(columns.__contains__, QUANTITIES):
            columns[name] = _plain(columns[name], name, rows, str(path), has_thousands=delimiter == ",")
        columns["gpus"] = gpus = numbers(columns["gpus"])
        yield replace(
            rows, columns=columns, required=_required(of), is_calendar=None, noted={PART: gpus.values % 1 > 0}
        )


def _plain(texts: Any, name: str, rows: Rows, source: str, has_thousands: bool) -> Any:
    """Return texts of numbers without thousands separators; raises `InputError` for a comma that may be a decimal sign.

    Args:
        has_thousands: commas in numbers can't be decimal signs, for the table's fields are separated by commas.
    """
    if not truths(compute.match_substring(texts, ",")).any():
        return texts
    has_comma = truths(compute.match_substring_regex(texts, _COMMA))
    is_odd = has_comma & ~(truths(compute.match_substring_regex(texts, _THOUSANDS)) & has_thousands)
    if is_odd.any():
        row = int(is_odd.argmax())
        problem = f"{texts[row].as_py()!r:.40}: is this comma for decimals, or between thousands? Write 7200, or 7.2"
        raise InputError(source, f"line {rows.lines[row]}", f"{name}: {problem}")
    return compute.if_else(pyarrow.array(has_comma), compute.replace_substring(texts, ",", ""), texts)


# ---------------------------------------------------------------------------------------------- tables of numbers alone


def _known(rows: Rows) -> dict[str, Any]:
    """Replace -1 with an empty text."""
    names = {name: named(rows.of(name), lambda text: "" if text.startswith("-") else text) for name in ("user", "vc")}
    run = numbers(rows.of("run_s"))
    return {**rows.columns, **names, "run_s": replace(run, values=known(run.values))}


def _headless(
    path: Path, layouts: Sequence[Sequence[str]], allowed: str, stats: ImportStats, included: Container[str]
) -> Iterator[Rows]:
    """Yield wanted columns of a CSV file whose layout follows from its width; a first line may be a header.

    Args:
        allowed: the possible widths, in words.
    """
    line, rest = first_line(path)
    names = {len(layout): layout for layout in layouts}.get(width := line.count(",") + 1)
    if names is None:
        raise InputError(str(path), "line 1", f"{width} fields; expected {allowed}")
    is_header = ("submit" if "submit_s" in names else f"{names[0]},") in line
    first = [] if is_header else [TextBlock(1, f"{line}\n".encode(), 1)]
    return rows_of(chain(first, rest), names, included, stats)


def _rltune(path: Path, _: Options, stats: ImportStats) -> Iterator[Rows]:
    layouts = (_RLTUNE, [*_RLTUNE[:17], "think", *_RLTUNE[17:]])
    for rows in _headless(path, layouts, "19 (README) or 20 (with think time)", stats, _NUMBERED):
        types = named(rows.of("gpu_types"), lambda number: _RLTUNE_TYPES.get(number, ""))
        yield replace(rows, columns={**_known(rows), "gpu_types": types})


def _swf(path: Path, _: Options, stats: ImportStats) -> Iterator[Rows]:
    """Yield rows of SWF; comments count neither as read nor as left out."""
    start_s = 0
    for block in blocks(path):
        if (match := _UNIX_START.search(block.data)) is not None:
            start_s = int(match[1])
        for rows in rows_of([_single_blanks(block)], _SWF, _NUMBERED, stats, " "):
            columns = _known(rows)
            submit, gpus, requested = (numbers(columns[name]) for name in ("submit_s", "gpus", "requested"))
            columns |= {
                "submit_s": replace(submit, values=submit.values + start_s),
                "gpus": Cells(np.where(gpus.values > 0, gpus.values, requested.values)),
                "status": named(rows.of("status"), lambda code: _SWF_STATUSES.get(code, "")),
            }
            parts = truths(compute.is_in(rows.of("status"), value_set=pyarrow.array(["2", "3", "4"])))
            yield replace(rows, columns=columns, is_calendar=start_s > 0, refused={_PARTS: parts})
    if comments := stats.left_out.pop("empty lines", None):
        stats.rows -= comments.rows


def _single_blanks(block: TextBlock) -> TextBlock:
    """Normalize to one blank between fields, none around them; comments become empty lines."""
    data = re.sub(rb"(?m)^[ \t]*;.*$", b"", block.data) if b";" in block.data else block.data
    data = data.replace(b"\t", b" ")
    while b"  " in data:
        data = data.replace(b"  ", b" ")
    return replace(block, data=data.replace(b" \n", b"\n").replace(b"\n ", b"\n").lstrip(b" "))


# ------------------------------------------------------------------------------------------------- jobs and their tasks


def _pai_table(path: Path, names: Sequence[str], stats: ImportStats) -> Iterator[Rows]:
    return _headless(path, (names,), f"the {len(names)} of the table: {', '.join(names)}", stats, names)


def _pai(path: Path, options: Options, stats: ImportStats) -> Iterator[Rows]:
    """Yield rows of Alibaba PAI; the tasks are read first, and stay in memory: some 100 bytes a job."""
    if options.tasks is None or not options.tasks.is_file():
        problem = "a PAI job's GPUs are in pai_task_table.csv; put that file next to this one"
        raise InputError(str(path), "", problem)
    tasks = _tasks(options.tasks, stats)
    jobs = tasks["job"].combine_chunks()
    for rows in _pai_table(path, _PAI_JOB, stats):
        row = compute.index_in(rows.of("job_name"), value_set=jobs)
        own = tasks.take(row)  # nulls of a job without tasks
        columns = {
            "job_id": rows.of("job_name"),
            "user": rows.of("user"),
            "status": rows.of("status"),
            "gpu_types": compute.fill_null(own["type_max"], "").combine_chunks(),
            "gpus": Cells(own["percent_sum"].to_numpy() / 100),
            "submit_s": rows.of("start_time"),
            START: Cells(own["start_s_min"].to_numpy()),
            END: rows.of("end_time"),
        }
        refused = {"no tasks in the table of tasks": truths(row.is_null())}
        noted = {SHARES: truths(compute.fill_null(own["is_share_max"], False))}
        yield Rows(rows.lines, columns, _TIMED, refused=refused, noted=noted)


def _tasks(path: Path, stats: ImportStats) -> Any:
    """Return the sum of what each job's tasks request."""
    own = ImportStats()
    tables = [_requests(rows) for rows in _pai_table(path, _PAI_TASK, own)]
    stats.messages.append(f"{own.rows:,} tasks were read from {path.name}")
    for reason, count in own.left_out.items():
        stats.messages.append(f"{path.name}: {count.rows:,} tasks left out, from line {count.first_line} on: {reason}")
    stats.messages += [f"{path.name}: {text}" for text in own.messages]
    table = pyarrow.concat_tables([_requests(Rows(np.empty(0, np.int64), {})), *tables])
    of_job = [("percent", "sum"), ("start_s", "min"), ("type", "max"), ("is_share", "max")]
    return table.group_by("job").aggregate(of_job).combine_chunks()


def _requests(tasks: Rows) -> Any:
    many, percent, start_s = (numbers(tasks.of(name)).values for name in ("inst_num", "plan_gpu", "start_time"))
    asked = np.nan_to_num(many * percent)
    return pyarrow.table(
        {
            "job": tasks.of("job_name"),
            "percent": asked,
            "start_s": pyarrow.array(start_s, from_pandas=True),
            "type": compute.if_else(pyarrow.array(asked > 0), tasks.of("gpu_type"), ""),
            "is_share": np.nan_to_num(percent) % 100 != 0,
        }
    )


# -------------------------------------------------------------------------------------------------------------- by name


@dataclass(frozen=True, slots=True)
class Format:
    """A log format.

    Attributes:
        looks_like: whether a file's first lines match it; no file matches two.
        read: reader of its rows, block by block.
        joins: whether rows with the same id are attempts of one job.
    """

    looks_like: Callable[[str], object]
    read: Callable[[Path, Options, ImportStats], Iterator[Rows]]
    joins: bool = False


def _has(of: Mapping[str, str]) -> Callable[[str], object]:
    return re.compile("".join(rf"(?=(.*,)?{name}(,|$))" for name in of.values()), re.MULTILINE).match


FORMATS: Final[Mapping[str, Format]] = {
    "sacct": Format(sacct.LOOKS_LIKE.match, sacct.read, joins=True),
    "jobcomp": Format(re.compile(r"JobId=.*JobState=").match, sacct.read_jobcomp, joins=True),
    "swf": Format(re.compile(rf"{_NUMBER}([ \t]{_NUMBER}){{17}}[ \t]*$", _FLAGS).match, _swf),
    "philly": Format(re.compile(r'\s*\[[\s\S]*"(jobid|attempts)"').match, read),
    "helios": Format(_has(_HELIOS), _helios),
    "alibaba-pai": Format(re.compile(rf"([^,\n]*,){{3}}({_PAI_STATUSES})(,[^,\n]*){{2}}$", _FLAGS).match, _pai),
    "openb": Format(_has(_OPENB), _openb),
    "rltune": Format(
        re.compile(rf"[^,\n]*(,{_NUMBER}[ \t]*){{18,19}}$|.*proceeding_job_number", _FLAGS).match, _rltune
    ),
    "csv": Format(_is_csv, _csv),
}


def format_of(path: Path, options: Options) -> str:
    """Detect a file's format from its first lines; raises `InputError` if none fits."""
    text = head(path)
    others = (sacct.ANOTHER_FORM.search, FORMATS["philly"].looks_like)
    if text.lstrip()[:1] in ("{", "[") and not any(looks_like(text) for looks_like in others):
        remedy = "pandas.read_json(FILE, lines=True).to_csv(...) writes it if each line is a job"
        raise InputError(str(path), "", f"is JSON; expected CSV, with --columns: {remedy}")
    if options.columns:
        return "csv"
    for name, candidate in FORMATS.items():
        if candidate.looks_like(text):
            return name
    line = text.partition("\n")[0]
    if sacct.ANOTHER_FORM.search(text):
        problem = f"{line!r:.60} may be sacct's, but not with --parsable2 and a header line: make it by"
        raise InputError(str(path), "", f"{problem} `{sacct.COMMAND}`; {_OWN}")
    problem = f"its first line is {line!r:.120}, which no known format has"
    raise InputError(str(path), "", f"{problem}; name its format with --format {'|'.join(FORMATS)}; {_OWN}")
