"""Runs of training jobs on disk: a Parquet file each, with what it was made of, so that no run is made twice."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jobs.case import JobsCase, NamedPolicy
from jobs.sim.record import JobsRecord
from kit.documents import inputs_hash
from kit.errors import InputError
from kit.files import atomic_path, lies_there
from kit.named_files import named_files, with_paths

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEMA: Final = "slimsched.jobsrun/1"
SUFFIX: Final = ".jobsrun.parquet"
_KEY: Final = b"slimsched"
_SCALARS: Final = ("policy", "begun_ns", "ended_ns", "capacity_gpu_ns", "down_gpu_ns", "in_system_ns")
_COLUMNS: Final = tuple(field.name for field in fields(JobsRecord) if field.name not in _SCALARS)
_NOT_IN_A_RUN: Final = (
    "name",
    "policies",
    "baseline",
    "bound",
    "preemption",
    "multifactor",
)  # a policy brings its own numbers


def fingerprint(case: JobsCase, named: NamedPolicy) -> str:
    """A hash of all that a run depends on: what the scenario says of it, the files that it names, the policy."""
    scenario = with_paths(case.scenario, lambda text: Path(text).name)
    said = {key: value for key, value in scenario.model_dump(mode="json").items() if key not in _NOT_IN_A_RUN}
    read = [each.path for each in named_files(case.scenario) if each.key.partition(".")[0] not in _NOT_IN_A_RUN]
    learned = None if named.learned is None else named.learned.content()
    return inputs_hash(SCHEMA, said, repr(case.world.speeds), named.name, repr(named.policy), learned, *read)


def write_run(path: Path, record: JobsRecord, job_id: NDArray[np.object_], made_of: str) -> None:
    """A run's columns with the log's job ids, and its sums."""
    import pyarrow
    from pyarrow import parquet

    columns = {"job_id": job_id, **{name: getattr(record, name) for name in _COLUMNS}}
    scalars = {name: getattr(record, name) for name in _SCALARS}
    text = json.dumps({"schema": SCHEMA, "made_of": made_of, **scalars}, sort_keys=True)
    table = pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()})
    with atomic_path(path) as temporary:
        parquet.write_table(table.replace_schema_metadata({_KEY: text.encode()}), temporary, compression="zstd")


def read_run(path: Path, made_of: str) -> JobsRecord | None:
    """A run from its file; None where there is none, or it was made of something else, or by an older version.

    Raises:
        InputError: the file is no such run, so nothing is written in its place.
    """
    from pyarrow import ArrowException, parquet

    if not lies_there(path):
        return None
    try:
        table = parquet.read_table(path)
        said: dict[str, Any] = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
    except (ArrowException, OSError, ValueError):
        raise InputError(str(path), "", "is no run of training jobs, or damaged; remove it") from None
    if said.get("schema") != SCHEMA:
        raise InputError(str(path), "", "was not made by `slimsched jobs`; move it elsewhere, or name another folder")
    if said["made_of"] != made_of or not set(_COLUMNS) <= set(table.column_names):
        return None
    columns = {name: table[name].to_numpy() for name in _COLUMNS}
    return JobsRecord(**columns, **{name: said[name] for name in _SCALARS})
