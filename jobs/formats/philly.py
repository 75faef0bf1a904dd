"""Microsoft's Philly: `cluster_job_log`, a JSON list of jobs with their attempts; dates of local time.

Keys: github.com/msr-fiddle/philly-traces (Jeon et al., USENIX ATC 2019). Attempts may lack and times be null; a job
whose last attempt has no end was still running. Attempts follow each other: a job ran as long as they together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow
from numpy.typing import NDArray

from jobs.fields import Cells, Numbers, dates, named, status_of
from jobs.lines import blocks
from jobs.rows import Options, Rows
from jobs.tally import Tally
from kit.errors import InputError

LONGEST_JOB_BYTES: Final = 16 << 20
_QUOTE, _BACKSLASH, _OPEN, _CLOSE, _FEED = (ord(each) for each in '"\\{}\n')


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


_DECODER: Final = msgspec.json.Decoder(list[_Job])
_ONE: Final = msgspec.json.Decoder(_Job)


def looks_like(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of such a log."""
    text = " ".join(lines)
    return text.lstrip().startswith("[") and any(f'"{key}"' in text for key in ("jobid", "attempts"))


def read(path: Path, options: Options, tally: Tally) -> Iterator[Rows]:
    """Its rows."""
    for text, begins, lines in _objects(path):
        jobs = _decoded(text, begins, lines, str(path))
        tally.rows += len(jobs)
        if jobs:
            yield _rows(jobs, lines, options)


def _objects(path: Path) -> Iterator[tuple[bytes, NDArray[np.int64], NDArray[np.int64]]]:
    """Whole objects of the list, many at a time; where each begins, and on which line."""
    rest, line = b"", 0
    for block in blocks(path):
        data = rest + block.data if line else _opened(block.data, str(path))
        line = line or 1
        begins, ends = _spans(data)
        cut = int(ends[-1]) + 1 if len(ends) else 0
        if cut:
            feeds = np.flatnonzero(np.frombuffer(data[:cut], np.uint8) == _FEED)
            yield data[:cut], begins[: len(ends)], line + np.searchsorted(feeds, begins[: len(ends)])
            line += len(feeds)
        rest = data[cut:]
        if len(rest) > LONGEST_JOB_BYTES:
            raise InputError(str(path), f"line {line}", "a job of more than 16 MiB; is a bracket or a quote missing?")
    if rest.strip(b" \t\n,") != b"]":
        problem = f"the list does not end ({rest.strip()[-40:]!r}); the file is cut off, or no Philly log"
        raise InputError(str(path), f"line {line}", problem)


def _opened(data: bytes, source: str) -> bytes:
    """Without the bracket that opens the list."""
    begin = data.find(b"[")
    if begin < 0 or data[:begin].strip():
        raise InputError(source, "line 1", f"{data[:40]!r}; a Philly log is a JSON list of jobs and begins with [")
    return data[:begin] + b" " + data[begin + 1 :]


def _spans(data: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the list's objects begin and end in a text; brackets within strings do not count."""
    text = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    if b"\\" in data:
        quotes = quotes[~_escaped(text, quotes)]
    braces = np.flatnonzero((text == _OPEN) | (text == _CLOSE))
    braces = braces[np.searchsorted(quotes, braces) % 2 == 0]
    opens = text[braces] == _OPEN
    depth = np.cumsum(np.where(opens, 1, -1))
    return braces[opens & (depth == 1)], braces[~opens & (depth == 0)]


def _escaped(text: NDArray[np.uint8], quotes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether an odd number of backslashes stands before each quote."""
    found = np.zeros(len(quotes), bool)
    which, before = np.arange(len(quotes)), quotes - 1
    while len(which := which[(before >= 0) & (text[before] == _BACKSLASH)]):
        found[which] ^= True
        before = before[(before >= 0) & (text[before] == _BACKSLASH)] - 1
    return found


def _decoded(text: bytes, begins: NDArray[np.int64], lines: NDArray[np.int64], source: str) -> list[_Job]:
    """The jobs of some objects; raises `InputError` with the line of the first one that can't be read."""
    try:
        return _DECODER.decode(b"[" + text.strip(b" \t\n,") + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        bounds = [*begins.tolist(), len(text)]
        for begin, end, line in zip(bounds, bounds[1:], lines.tolist(), strict=False):
            try:
                _ONE.decode(text[begin:end].strip(b" \t\n,"))
            except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
                raise InputError(source, f"line {line}", f"this job can't be read: {wrong}") from None
        raise InputError(source, f"line {int(lines[0])}", f"jobs that can't be read: {error}") from None


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
    is_open = _at(end.is_missing & ~start.is_missing, last, has_any, False)
    gpus = np.array([max((_gpus(each) for each in job.attempts), default=0) for job in jobs], np.float64)
    backwards = np.bincount(owner, weights=ran_s < 0, minlength=len(jobs)) > 0
    no_time = np.bincount(owner, weights=np.isnan(ran_s), minlength=len(jobs)) > 0
    return Rows(
        lines=lines,
        submit_s=submit.values,
        start_s=_first_start(start_s, owner, len(jobs)),
        run_s=np.bincount(owner, weights=np.nan_to_num(ran_s), minlength=len(jobs)).astype(np.float64),
        gpus=gpus,
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


def _gpus(attempt: _Attempt) -> int:
    return sum(len(each.gpus) for each in attempt.detail)


def _at(values: NDArray[Any], index: NDArray[np.int64], is_there: NDArray[np.bool_], otherwise: Any) -> NDArray[Any]:
    found = np.full(len(index), otherwise)
    found[is_there] = values[index[is_there]]
    return found


def _first_start(start_s: Numbers, owner: NDArray[np.int64], jobs: int) -> Numbers:
    """Of the attempts of each job that have one."""
    first = np.full(jobs, np.inf)
    is_known = np.isfinite(start_s)
    np.minimum.at(first, owner[is_known], start_s[is_known])
    return np.where(np.isfinite(first), first, np.nan)
