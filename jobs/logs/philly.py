"""Microsoft's Philly: `cluster_job_log`, a JSON list of jobs with their attempts; dates of local time.

Keys: github.com/msr-fiddle/philly-traces (Jeon et al., USENIX ATC 2019). Attempts may be missing and times null; a job
whose last attempt has no end was still running. Attempts are consecutive: a job's run time is their sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow

from jobs.logs.fields import Cells, times
from jobs.logs.rows import START, Lines, Options, Rows, Tally
from jobs.logs.text import blocks
from kit.errors import InputError

_AT_ONCE: Final = 5_000  # jobs
_COLUMNS: Final = {"job_id": "jobid", "user": "user", "vc": "vc", "status": "status", "submit_s": "submitted_time"}


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


def read(path: Path, options: Options, tally: Tally) -> Iterator[Rows]:
    """Yield the log's rows; the file is read into memory, for a list has no lines to cut it at."""
    data = b"".join(block.data for block in blocks(path))
    if not data.lstrip().startswith(b"["):
        raise InputError(str(path), "line 1", f"{data[:40]!r}; a Philly log is a JSON list of jobs and begins with [")
    try:
        objects = _LIST.decode(data)
    except _NO_JSON as error:
        problem = f"the list does not end, or is no JSON ({error}); the file is cut off, or no Philly log"
        raise InputError(str(path), "", problem) from None
    at, line = 0, 1
    for begin in range(0, len(objects), _AT_ONCE):
        jobs, lines = list[_Job](), list[int]()
        for each in objects[begin : begin + _AT_ONCE]:
            text = memoryview(each)
            begins = data.index(text[0], at)  # only blanks and a comma precede it
            lines.append(line + data.count(b"\n", at, begins))
            at = begins + len(text)
            line = lines[-1] + data.count(b"\n", begins, at)
            try:
                jobs.append(_JOB.decode(text))
            except _NO_JSON as error:
                raise InputError(str(path), f"line {lines[-1]}", f"this job can't be read: {error}") from None
        tally.rows += len(jobs)
        yield _rows(jobs, np.array(lines), options)


def _rows(jobs: list[_Job], lines: Lines, options: Options) -> Rows:
    attempts = [attempt for job in jobs for attempt in job.attempts]
    counts = np.array([len(job.attempts) for job in jobs])
    owner = np.repeat(np.arange(len(jobs)), counts)
    start, end = (
        times(_texts(texts), options.timezone, zero_is_nothing=True)
        for texts in ((each.start_time for each in attempts), (each.end_time for each in attempts))
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
    words = {name: _texts(getattr(job, key) for job in jobs) for name, key in _COLUMNS.items()}
    quantities = {
        START: Cells(begun_s),
        "run_s": Cells(run_s),
        "gpus": Cells(gpus),
        "attempts": Cells(counts.astype(np.float64)),
    }
    return Rows(
        lines,
        {**words, **quantities, "is_open": is_open},
        ("submit_s", START),
        is_calendar=True,
        refused={"an attempt that ended before it started": backwards > 0},
        noted={"attempts without a start or an end that can be read; the others count": unknown > 0},
    )


def _texts(texts: Iterable[str | None]) -> pyarrow.Array:
    return pyarrow.array([text or "" for text in texts], pyarrow.string())
