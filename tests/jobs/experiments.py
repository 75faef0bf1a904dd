"""Small scenarios of training jobs on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from jobs.job_scenario import JobExperiment, read_case, read_scenario
from jobs.job_traces import JobTrace, write_trace
from slimsched.jobs.verbs import profile_images_s

NODES = [{"count": 1, "gpus": 4}]


def trace_of(rows: Sequence[tuple[float, float, int]], **columns: Any) -> JobTrace:
    """(submit, run, GPUs) of each job, in seconds; other columns as they are given, else not known."""
    submit_s, run_s, gpus = zip(*rows, strict=True)
    others: dict[str, Any] = {"job_id": [f"j{row}" for row in range(len(rows))], "status": ["completed"] * len(rows)}
    provenance = {"format": "csv", "file": "x", "start": None}
    return JobTrace.of(submit_s, run_s, gpus, **{**others, **columns}, provenance=provenance)


def write_case(folder: Path, trace: JobTrace, /, **keys: Any) -> Path:
    """A scenario's file with its trace beside it."""
    write_trace(folder / "t.jobtrace.parquet", trace)
    document = {
        "schema": "slimsched.jobs/1",
        "name": "small",
        "trace": "t.jobtrace.parquet",
        "cluster": {"nodes": NODES},
        "policies": ["fifo"],
        **keys,
    }
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def case_of(folder: Path, trace: JobTrace, /, **keys: Any) -> JobExperiment:
    path = write_case(folder, trace, **keys)
    return read_case(read_scenario(path), str(path), profile_images_s)
