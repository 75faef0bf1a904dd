"""Microsoft's Philly: `cluster_job_log`, a JSON list of jobs with their attempts; dates of local time.

Keys: github.com/msr-fiddle/philly-traces (Jeon et al., USENIX ATC 2019). Attempts may lack and times be null; a job
whose last attempt has no end was still running. Attempts follow each other: a job ran as long as they together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow
from numpy.typing import NDArray

from jobs.logs.fields import Cells, dates, named, status_of
from jobs.logs.rows import Options, Rows, Tally
from jobs.logs.text import blocks
from kit.errors import InputError

_AT_ONCE: Final = 5_000  # jobs


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


_TEXTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_JOBS: Final = msgspec.json.Decoder(list[_Job])
_JOB: Final = msgspec.json.Decoder(_Job)


def looks_like(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of such a log."""
    text = " ".join(lines)
    return text.lstrip().startswith("[") and any(f'"{key}"' in text for key in ("jobid", "attempts"))


def read(path: Path, options: Options, tally: Tally) -> Iterator[Rows]:
    """Its rows. The file is held as a whole: a list has no lines to cut it at."""
    data = b"".join(block.data for block in blocks(path))
    objects, at, line = _objects(data, str(path)), 0, 1
    for begin in range(0, len(objects), _AT_ONCE):
        chunk, lines = objects[begin : begin + _AT_ONCE], list[int]()
        for each in chunk:
            text = memoryview(each)
            begins = data.index(text[0], at)  # nothing but blanks and a comma stands before it
            ends = begins + len(text)
            lines.append(line + data.count(b"\n", at, begins))
            line, at = lines[-1] + data.count(b"\n", begins, ends), ends
        jobs = _decoded(chunk, lines, str(path))
        tally.rows += len(jobs)
        yield _rows(jobs, np.array(lines), options)


def _objects(data: bytes, source: str) -> list[msgspec.Raw]:
    """The texts of the list's jobs."""
    if not data.lstrip().startswith(b"["):
        raise InputError(source, "line 1", f"{data[:40]!r}; a Philly log is a JSON list of jobs and begins with [")
    try:
        return _TEXTS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = f"the list does not end, or is no JSON ({error}); the file is cut off, or no Philly log"
        raise InputError(source, "", problem) from None


def _decoded(texts: list[msgspec.Raw], lines: list[int], source: str) -> list[_Job]:
    """Their jobs; raises `InputError` with the line of the first one that can't be read."""
    try:
        return _JOBS.decode(b"[" + b",".join(texts) + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError):
        for text, line in zip(texts, lines, strict=True):
            try:
                _JOB.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise InputError(source, f"line {line}", f"this job can't be read: {error}") from None
        raise


def _rows(jobs: list[_Job], lines: NDArray[np.int64], options: Options) -> Rows:
    attempts = [attempt for job in jobs for attempt in job.attempts]
    counts = np.array([len(job.attempts) for job in jobs])
    owner = np.repeat(np.arange(len(jobs)), counts)
    start, end = (
        _dates(texts, options)
        for texts in ([each.start_time for each in attempts], [each.end_time for each in attempts])
    )
    submit = _dates([job.submitted_time for job in jobs], options)
    start_s, end_s = start.values, end.values
    ran_s = end_s - start_s
    last = np.cumsum(counts) - 1
    has_any = counts > 0
    is_open = np.zeros(len(jobs), bool)
    is_open[has_any] = (end.is_missing & ~start.is_missing)[last[has_any]]
    begun_s = np.full(len(jobs), np.nan)
    np.fmin.at(begun_s, owner, start_s)  # the first of those that are known
    held = [[sum(len(part.gpus) for part in attempt.detail) for attempt in job.attempts] for job in jobs]
    backwards = np.bincount(owner, weights=ran_s < 0, minlength=len(jobs)) > 0
    no_time = np.bincount(owner, weights=np.isnan(ran_s), minlength=len(jobs)) > 0
    return Rows(
        lines=lines,
        submit_s=submit.values,
        start_s=begun_s,
        run_s=np.bincount(owner, weights=np.nan_to_num(ran_s), minlength=len(jobs)).astype(np.float64),
        gpus=np.array([max(each, default=0) for each in held], np.float64),
        attempts=np.maximum(counts, 1).astype(np.int32),
        texts={
            "job_id": pyarrow.array([job.jobid for job in jobs], pyarrow.string()),
            "user": pyarrow.array([job.user or "" for job in jobs], pyarrow.string()),
            "vc": pyarrow.array([job.vc or "" for job in jobs], pyarrow.string()),
            "status": named(pyarrow.array([job.status for job in jobs], pyarrow.string()), status_of),
        },
        refused={
            "never started": ~has_any,
            "not yet ended": is_open,
            "an attempt that ended before it started": backwards,
        },
        noted={"attempts without a start or an end that can be read; the others count": no_time},
        needed={"submit time": submit},
    )


def _dates(texts: list[str | None], options: Options) -> Cells:
    return dates(pyarrow.array([text or "" for text in texts], pyarrow.string()), options.timezone)
