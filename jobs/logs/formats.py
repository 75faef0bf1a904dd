"""The logs that can be read, by name: what a file's first lines look like, and how its columns become `Rows`.

Where columns and their meaning come from:

    helios       github.com/S-Lab-System-Group/HeliosData (Hu et al., SC 2021): `cluster_log.csv`, dates of local time
    openb        github.com/alibaba/clusterdata, cluster-trace-gpu-v2023 (Weng et al., USENIX ATC 2023):
                 `openb_pod_list_*.csv`, seconds from the trace's start; a pod of one GPU may ask for thousandths of it
    rltune       github.com/dshruti20/RLTune: 19 or 20 numbers a line (with think time), -1 for what is not known
    swf          cs.huji.ac.il/labs/parallel/workload/swf.html (Feitelson et al.): 18 numbers a line, `;` before
                 comments, -1 for what is not known; processors count as GPUs
    alibaba-pai  cluster-trace-gpu-v2020 (Weng et al., NSDI 2022): `pai_job_table.csv`, and beside it the
                 `pai_task_table.csv` that says what jobs asked for, both without a header. A job's GPUs are those of
                 its tasks together, rounded up; it waits from its own start to that of its first task
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow
from pyarrow import compute

from jobs.logs import own_csv, philly, slurm
from jobs.logs.fields import dates, is_number, known, mapped, name_of, named, numbers, status_of, truths
from jobs.logs.rows import Options, Rows, Tally
from jobs.logs.text import Columns, TextBlock, blocks, columns, head, headed, headless
from kit.errors import InputError

_HELIOS: Final = ("job_id", "user", "vc", "gpu_num", "state", "submit_time", "start_time", "duration")
_OPENB: Final = (
    "name", "num_gpu", "gpu_milli", "gpu_spec", "pod_phase", "creation_time", "deletion_time", "scheduled_time",
)  # fmt: skip
_RLTUNE: Final = (
    "job", "submit", "wait", "run", "gpus", "cpu_time", "memory", "cpus", "requested_time", "requested_memory",
    "status", "user", "group", "executable", "queue", "partition", "preceding", "vc", "gpu_type",
)  # fmt: skip
_RLTUNE_TYPES: Final = {"0": "T4", "1": "MISC", "2": "P100", "3": "V100-16", "4": "V100-32"}
_SWF: Final = (
    "job", "submit", "wait", "run", "allocated", "cpu", "memory", "requested", "requested_time",
    "requested_memory", "status", "user", "group", "executable", "queue", "partition", "preceding", "think",
)  # fmt: skip
_WANTED: Final = (
    "job", "submit", "wait", "run", "gpus", "allocated", "requested", "requested_time", "status", "user", "queue", "vc",
    "gpu_type",
)  # fmt: skip
_SWF_STATUSES: Final = {"0": "failed", "1": "completed", "5": "cancelled"}
_SWF_PARTS: Final = ("2", "3", "4")
_UNIX_START: Final = re.compile(rb"^;\s*UnixStartTime:\s*(\d{9,11})", re.MULTILINE)
_PAI_JOB: Final = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_PAI_TASK: Final = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip
_PAI_STATUSES: Final = ("Running", "Terminated", "Failed", "Waiting")
SHARES: Final = "ask for a share of a GPU; the sum is rounded up to whole ones"
_OWN: Final = "a CSV file of your own needs --columns"


# ------------------------------------------------------------------------------------------------- tables with a header


def _helios(path: Path, options: Options, tally: Tally) -> Iterator[Rows]:
    for block in headed(path, _HELIOS, "is it a Helios cluster_log.csv?", tally):
        submit, start = (dates(block.of(name), options.timezone) for name in ("submit_time", "start_time"))
        yield Rows(
            lines=block.lines,
            submit_s=submit.values,
            start_s=start.values,
            run_s=numbers(block.of("duration")),
            gpus=numbers(block.of("gpu_num")),
            texts={
                **{name: block.of(name) for name in ("job_id", "user", "vc")},
                "status": named(block.of("state"), status_of),
            },
            refused={"never started": start.is_missing},
            needed={"submit time": submit, "start": start},
        )


def _openb(path: Path, _: Options, tally: Tally) -> Iterator[Rows]:
    for block in headed(path, _OPENB, "is it an openb_pod_list file?", tally):
        start_s, end_s = numbers(block.of("scheduled_time")), numbers(block.of("deletion_time"))
        gpus, milli = numbers(block.of("num_gpu")), numbers(block.of("gpu_milli"))
        yield Rows(
            lines=block.lines,
            submit_s=numbers(block.of("creation_time")),
            start_s=start_s,
            run_s=end_s - start_s,
            gpus=gpus,
            gpu_share=np.where(gpus == 1, milli / 1000, 1.0),
            texts={
                "job_id": block.of("name"),
                "gpu_types": block.of("gpu_spec"),
                "status": named(block.of("pod_phase"), status_of),
            },
            is_date=False,
            refused={"never started": np.isnan(start_s), "not yet ended": np.isnan(end_s)},
        )


# ---------------------------------------------------------------------------------------------- tables of numbers alone


def _is_rltune(lines: Sequence[str]) -> bool:
    rows = [line.split(",") for line in lines if not line.startswith(";")]
    if not rows or len(rows[0]) not in (19, 20):
        return False
    return "proceeding_job_number" in rows[0] or all(map(is_number, rows[0][1:]))


def _rltune(path: Path, _: Options, tally: Tally) -> Iterator[Rows]:
    layouts = (_RLTUNE, (*_RLTUNE[:17], "think", *_RLTUNE[17:]))
    allowed = "19 (README) or 20 (with think time)"
    for block in headless(path, layouts, allowed, tally, lambda line: "submit" in line, _WANTED):
        submit_s = numbers(block.of("submit"))
        yield Rows(
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
                "gpu_types": named(block.of("gpu_type"), lambda number: _RLTUNE_TYPES.get(number, "")),
            },
            is_date=False,
        )


def _is_swf(lines: Sequence[str]) -> bool:
    jobs = [line.split() for line in lines if not line.startswith(";")]
    return bool(jobs) and len(jobs[0]) == len(_SWF) and all(map(is_number, jobs[0]))


def _swf(path: Path, _: Options, tally: Tally) -> Iterator[Rows]:
    """Remarks count neither as read nor as left out."""
    start_s = 0
    for block in blocks(path):
        if (match := _UNIX_START.search(block.data)) is not None:
            start_s = int(match[1])
        for each in columns([_single_blanks(block)], _SWF, _WANTED, tally, " ", quoted=False):
            yield _swf_rows(each, start_s)
    comments = tally.left_out.pop("empty lines", None)
    tally.rows -= 0 if comments is None else comments.rows


def _single_blanks(block: TextBlock) -> TextBlock:
    """One blank between fields, none around them; comments as empty lines."""
    data = re.sub(rb"(?m)^[ \t]*;.*$", b"", block.data) if b";" in block.data else block.data
    text = np.frombuffer(data, np.uint8)
    is_blank = (text == 32) | (text == 9)
    is_edge = is_blank | (text == 10)
    after_edge = np.concatenate([[True], is_edge[:-1]])
    before_end = np.concatenate([text[1:] == 10, [True]])
    kept = np.where(is_blank, 32, text)[~(is_blank & (after_edge | before_end))]
    return TextBlock(block.first_line, re.sub(rb" +\n", b"\n", kept.astype(np.uint8).tobytes()), block.rows)


def _swf_rows(block: Columns, start_s: int) -> Rows:
    submit_s, wait_s, run_s = (numbers(block.of(name)) for name in ("submit", "wait", "run"))
    allocated, requested = (known(numbers(block.of(name))) for name in ("allocated", "requested"))
    status = block.of("status")
    return Rows(
        lines=block.lines,
        submit_s=submit_s + start_s,
        start_s=submit_s + start_s + known(wait_s),
        run_s=known(run_s),
        gpus=np.where(allocated > 0, allocated, requested),
        requested_s=known(numbers(block.of("requested_time"))),
        texts={
            "job_id": block.of("job"),
            "user": named(block.of("user"), name_of),
            "vc": named(block.of("queue"), name_of),
            "status": named(status, lambda word: _SWF_STATUSES.get(word, "unknown")),
        },
        is_date=start_s > 0,
        refused={
            "parts of a job whose whole is a line of its own (status 2 to 4)": mapped(
                status, lambda word: word in _SWF_PARTS
            ).astype(bool)
        },
    )


# ------------------------------------------------------------------------------------------------- jobs and their tasks


def _is_pai(lines: Sequence[str]) -> bool:
    fields = lines[0].split(",")
    return len(fields) == len(_PAI_JOB) and (tuple(fields) == _PAI_JOB or fields[3] in _PAI_STATUSES)


def _pai(path: Path, options: Options, tally: Tally) -> Iterator[Rows]:
    """The tasks are read first, and held: some 100 bytes a job."""
    if options.tasks is None or not options.tasks.is_file():
        problem = "a PAI job's GPUs stand in pai_task_table.csv; put that file beside this one"
        raise InputError(str(path), "", problem)
    tasks = _tasks(options.tasks, tally)
    jobs = tasks["job"].combine_chunks()
    for block in _pai_table(path, _PAI_JOB, tally):
        place = compute.index_in(block.of("job_name"), value_set=jobs)
        own = tasks.take(place)  # nulls of a job without tasks
        start_s, end_s = own["start_s_min"].to_numpy(), numbers(block.of("end_time"))
        yield Rows(
            lines=block.lines,
            submit_s=numbers(block.of("start_time")),
            start_s=start_s,
            run_s=end_s - start_s,
            gpus=own["percent_sum"].to_numpy() / 100,
            texts={
                "job_id": block.of("job_name"),
                "user": block.of("user"),
                "gpu_types": compute.fill_null(own["kind_max"], "").combine_chunks(),
                "status": named(block.of("status"), status_of),
            },
            is_date=False,
            refused={
                "no tasks in the table of tasks": truths(place.is_null()),
                "never started": np.isnan(start_s),
                "not yet ended": np.isnan(end_s),
            },
            noted={SHARES: truths(compute.fill_null(own["share_max"], False))},
        )


def _pai_table(path: Path, names: Sequence[str], tally: Tally) -> Iterator[Columns]:
    allowed = f"the {len(names)} of the table: {', '.join(names)}"
    yield from headless(path, (names,), allowed, tally, lambda line: line.startswith(f"{names[0]},"))


def _tasks(path: Path, tally: Tally) -> Any:
    """What the tasks of each job ask for together."""
    rows = Tally()
    parts = [_asked(block) for block in _pai_table(path, _PAI_TASK, rows)]
    tally.tell(f"{rows.rows:,} tasks were read from {path.name}")
    for reason, count in rows.left_out.items():
        tally.tell(f"{path.name}: {count.rows:,} tasks left out, from line {count.first_line} on: {reason}")
    table = pyarrow.concat_tables([_asked(Columns(np.empty(0, np.int64), {})), *parts])
    asked = [("percent", "sum"), ("start_s", "min"), ("kind", "max"), ("share", "max")]
    return table.group_by("job").aggregate(asked).combine_chunks()


def _asked(block: Columns) -> Any:
    percent = np.nan_to_num(numbers(block.of("inst_num")) * numbers(block.of("plan_gpu")))
    has_gpu = pyarrow.array(percent > 0)
    return pyarrow.table(
        {
            "job": block.of("job_name"),
            "percent": percent,
            "start_s": pyarrow.array(numbers(block.of("start_time")), from_pandas=True),
            "kind": compute.if_else(has_gpu, block.of("gpu_type"), ""),
            "share": np.nan_to_num(numbers(block.of("plan_gpu"))) % 100 != 0,
        }
    )


# -------------------------------------------------------------------------------------------------------------- by name


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of log.

    Attributes:
        looks_like: whether a file's first lines are of it; no file's lines are of two.
        read: its rows, block by block.
        joins: rows of one id are attempts of one job.
    """

    looks_like: Callable[[Sequence[str]], bool]
    read: Callable[[Path, Options, Tally], Iterator[Rows]]
    joins: bool = False


FORMATS: Final[Mapping[str, Format]] = {
    "sacct": Format(slurm.looks_like, slurm.read, joins=True),
    "jobcomp": Format(slurm.looks_like_jobcomp, slurm.read_jobcomp, joins=True),
    "swf": Format(_is_swf, _swf),
    "philly": Format(philly.looks_like, philly.read),
    "helios": Format(lambda lines: set(_HELIOS) <= set(lines[0].split(",")), _helios),
    "alibaba-pai": Format(_is_pai, _pai),
    "openb": Format(lambda lines: set(_OPENB) <= set(lines[0].split(",")), _openb),
    "rltune": Format(_is_rltune, _rltune),
    "csv": Format(own_csv.looks_like, own_csv.read),
}


def format_of(path: Path, options: Options) -> str:
    """Which format a file is, by its first lines; raises `InputError` where none or several fit."""
    if options.columns:
        return "csv"
    lines = [line for line in head(path) if line.strip()] or [""]
    names = [name for name, each in FORMATS.items() if each.looks_like(lines)]
    if len(names) == 1:
        return names[0]
    if not names and slurm.is_another_form(lines):
        problem = f"{lines[0]!r:.60} may be sacct's, but not with --parsable2 and a header line: make it by"
        raise InputError(str(path), "", f"{problem} `{slurm.COMMAND}`; {_OWN}")
    problem = f"its first line is {lines[0]!r:.120}, which {'several formats have' if names else 'no known format has'}"
    remedy = f"say which it is with --format {'|'.join(names or FORMATS)}; {_OWN}"
    raise InputError(str(path), "", f"{problem}; {remedy}")
