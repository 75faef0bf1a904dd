"""Alibaba PAI (2020): `pai_job_table.csv`, and with `--tasks` the `pai_task_table.csv` that says what jobs asked for.

Columns: github.com/alibaba/clusterdata, cluster-trace-gpu-v2020 (Weng et al., NSDI 2022); the files have no header.
A job's GPUs are those of its tasks together (`inst_num` times `plan_gpu`, in percent), rounded up; its type is the one
that it was given. It waits from its own start to that of its first task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from jobs.delimited import Columns, columns, first_line
from jobs.fields import Numbers, named, numbers, status_of
from jobs.lines import Block, blocks
from jobs.rows import Options, Rows
from jobs.tally import Tally
from kit.errors import InputError

_JOB: Final = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_TASK: Final = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip
_STATUSES: Final = ("Running", "Terminated", "Failed", "Waiting")
SHARES: Final = "ask for a share of a GPU; the sum is rounded up to whole ones"


def looks_like(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of the table of jobs."""
    fields = lines[0].split(",")
    return len(fields) == len(_JOB) and (tuple(fields) == _JOB or fields[3] in _STATUSES)


def read(path: Path, options: Options, tally: Tally) -> Iterator[Rows]:
    """Its rows; the tasks are read first, and held: some 100 bytes a job."""
    if options.tasks is None:
        problem = "a PAI job's GPUs stand in pai_task_table.csv; name that file with --tasks"
        raise InputError(str(path), "", problem)
    tasks = _Tasks(options.tasks, tally)
    for block in _table(path, _JOB, tally):
        yield _rows(block, tasks)


def _table(path: Path, names: Sequence[str], tally: Tally) -> Iterator[Columns]:
    line, rest = first_line(path, blocks(path))
    if (width := line.count(",") + 1) != len(names):
        problem = f"{width} fields; allowed are the {len(names)} of the table: {', '.join(names)}"
        raise InputError(str(path), "line 1", problem)
    first = [] if line.startswith(f"{names[0]},") else [Block(1, f"{line}\n".encode(), 1)]
    yield from columns(chain(first, rest), names, names, tally, ",", quoted=False)


class _Tasks:
    """What the tasks of each job ask for together."""

    def __init__(self, path: Path, tally: Tally) -> None:
        rows = Tally()
        parts = [_asked(block) for block in _table(path, _TASK, rows)]
        tally.tell(f"{rows.rows:,} tasks were read from {path.name}")
        for reason, count in rows.left_out.items():
            tally.tell(f"{path.name}: {count.rows:,} tasks left out, from line {count.first_line} on: {reason}")
        table = pyarrow.concat_tables(parts) if parts else _nothing()
        found = table.group_by("job").aggregate(
            [("percent", "sum"), ("start_s", "min"), ("kind", "max"), ("share", "max")]
        )
        self._jobs = found["job"].combine_chunks()
        self._gpus = found["percent_sum"].to_numpy() / 100
        self._start_s = found["start_s_min"].combine_chunks().to_numpy(zero_copy_only=False)
        self._kinds = found["kind_max"].combine_chunks()
        self._is_share = found["share_max"].combine_chunks().to_numpy(zero_copy_only=False).astype(bool)

    def of(self, jobs: Any) -> tuple[Numbers, Numbers, Any, NDArray[np.bool_], NDArray[np.bool_]]:
        """GPUs, first start, type, whether any was a share of a GPU, and whether the job has tasks at all."""
        place = compute.index_in(jobs, value_set=self._jobs)
        has_tasks = place.is_valid().to_numpy(zero_copy_only=False).astype(bool)
        index = place.fill_null(0).to_numpy()
        if not len(self._jobs):
            nothing = np.full(len(jobs), np.nan)
            return nothing, nothing, pyarrow.repeat("", len(jobs)), has_tasks, has_tasks
        gpus, start_s = (np.where(has_tasks, each[index], np.nan) for each in (self._gpus, self._start_s))
        kinds = compute.fill_null(self._kinds.take(place), "")
        return gpus, start_s, kinds, self._is_share[index] & has_tasks, has_tasks


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


def _nothing() -> Any:
    kinds = {"job": "string", "percent": "double", "start_s": "double", "kind": "string", "share": "bool"}
    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in kinds.items()])
    return schema.empty_table()


def _rows(block: Columns, tasks: _Tasks) -> Rows:
    gpus, start_s, kinds, is_share, has_tasks = tasks.of(block.of("job_name"))
    end_s = numbers(block.of("end_time"))
    return Rows(
        lines=block.lines,
        submit_s=numbers(block.of("start_time")),
        start_s=start_s,
        run_s=end_s - start_s,
        gpus=gpus,
        texts={
            "job_id": block.of("job_name"),
            "user": block.of("user"),
            "gpu_types": kinds,
            "status": named(block.of("status"), status_of),
        },
        is_date=False,
        refused={
            "no tasks in the table of tasks": ~has_tasks,
            "never started": np.isnan(start_s),
            "not yet ended": np.isnan(end_s),
        },
        noted={SHARES: is_share},
    )
