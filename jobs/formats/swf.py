"""The Standard Workload Format: 18 numbers a line with blanks between, `;` before remarks, -1 for what is not known.

Fields: cs.huji.ac.il/labs/parallel/workload/swf.html (Feitelson et al.). Processors count as GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from jobs.delimited import Columns, columns
from jobs.fields import Numbers, is_number, known, mapped, name_of, named, numbers
from jobs.lines import Block, blocks
from jobs.rows import Options, Rows
from jobs.tally import Tally

_FIELDS: Final = (
    "job", "submit", "wait", "run", "allocated", "cpu", "memory", "requested", "requested_time",
    "requested_memory", "status", "user", "group", "executable", "queue", "partition", "preceding", "think",
)  # fmt: skip
_WANTED: Final = ("job", "submit", "wait", "run", "allocated", "requested", "requested_time", "status", "user", "queue")
_STATUSES: Final = {"0": "failed", "1": "completed", "5": "cancelled"}
_PARTS: Final = ("2", "3", "4")
_UNIX_START: Final = re.compile(rb"^;\s*UnixStartTime:\s*(\d{9,11})", re.MULTILINE)


def looks_like(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of such a log."""
    jobs = [line.split() for line in lines if not line.startswith(";")]
    return bool(jobs) and len(jobs[0]) == len(_FIELDS) and all(map(is_number, jobs[0]))


def read(path: Path, _: Options, tally: Tally) -> Iterator[Rows]:
    """Its rows; remarks are no rows."""
    start_s = 0
    for block in blocks(path):
        if (found := _UNIX_START.search(block.data)) is not None:
            start_s = int(found[1])
        for each in columns([_single_blanks(block)], _FIELDS, _WANTED, tally, " ", quoted=False):
            yield _rows(each, start_s)
    tally.rows -= _remarks(tally)


def _remarks(tally: Tally) -> int:
    """Lines that were remarks; they count neither as read nor as left out."""
    found = tally.left_out.pop("empty lines", None)
    return 0 if found is None else found.rows


def _single_blanks(block: Block) -> Block:
    """One blank between fields, none around them; remarks as empty lines."""
    data = re.sub(rb"(?m)^[ \t]*;.*$", b"", block.data) if b";" in block.data else block.data
    text = np.frombuffer(data, np.uint8)
    is_blank = (text == 32) | (text == 9)
    is_edge = is_blank | (text == 10)
    after_edge = np.concatenate([[True], is_edge[:-1]])
    before_end = np.concatenate([text[1:] == 10, [True]])
    kept = np.where(is_blank, 32, text)[~(is_blank & (after_edge | before_end))]
    return Block(block.first_line, re.sub(rb" +\n", b"\n", kept.astype(np.uint8).tobytes()), block.rows)


def _rows(block: Columns, start_s: int) -> Rows:
    submit_s, wait_s, run_s = (numbers(block.of(name)) for name in ("submit", "wait", "run"))
    allocated, requested = (known(numbers(block.of(name))) for name in ("allocated", "requested"))
    status = block.of("status")
    return Rows(
        lines=block.lines,
        submit_s=submit_s + start_s,
        start_s=submit_s + start_s + known(wait_s),
        run_s=known(run_s),
        gpus=_first_known(allocated, requested),
        requested_s=known(numbers(block.of("requested_time"))),
        texts={
            "job_id": block.of("job"),
            "user": named(block.of("user"), name_of),
            "vc": named(block.of("queue"), name_of),
            "status": named(status, lambda word: _STATUSES.get(word, "unknown")),
        },
        is_date=np.full(len(block.lines), start_s > 0),
        refused={
            "parts of a job whose whole is a line of its own (status 2 to 4)": mapped(
                status, lambda word: word in _PARTS
            ).astype(bool)
        },
    )


def _first_known(first: Numbers, second: Numbers) -> Numbers:
    return np.where(first > 0, first, second)
