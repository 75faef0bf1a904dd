"""Slurm's `jobcomp/filetxt`: a line a job, `Key=value` with blanks between them, of which some values hold blanks.

The keys and their order: slurm, src/plugins/jobcomp/filetxt. A value ends where the next key of the file begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from pyarrow import compute

from jobs.delimited import Columns, columns
from jobs.fields import named, truths
from jobs.formats.sacct import only_where_needed, rows_of
from jobs.lines import Block, blocks
from jobs.rows import Options, Rows
from jobs.tally import Tally
from kit.errors import InputError

_KNOWN: Final = (
    "JobId", "UserId", "GroupId", "Name", "JobState", "Partition", "TimeLimit", "StartTime", "EndTime",
    "NodeList", "NodeCnt", "ProcCnt", "WorkDir", "ReservationName", "Gres", "Tres", "Account", "QOS", "WcKey",
    "Cluster", "SubmitTime", "EligibleTime", "DerivedExitCode", "ExitCode",
)  # fmt: skip
_REQUIRED: Final = ("JobId", "JobState", "StartTime", "EndTime", "SubmitTime")
_AS_SACCT: Final = {
    "JobId": "JobIDRaw", "UserId": "User", "JobState": "State", "TimeLimit": "Timelimit", "NodeCnt": "NNodes",
    "StartTime": "Start", "EndTime": "End", "SubmitTime": "Submit", "EligibleTime": "Eligible", "Tres": "ReqTRES",
    "Partition": "Partition", "Account": "Account", "QOS": "QOS", "Cluster": "Cluster",
}  # fmt: skip
_HET: Final = re.compile(r"(?:Het|Pack)JobId=(\d+) (?:Het|Pack)JobOffset=(\d+)")
_UNIT: Final = "\x1f"
_UNIT_BYTE: Final = 0x1F
_KEY: Final = re.compile(r"(?:^| )([A-Za-z_]+)=")


def looks_like(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of such a log."""
    return lines[0].startswith("JobId=") and "JobState=" in lines[0]


def read(path: Path, options: Options, tally: Tally) -> Iterator[Rows]:
    """Its rows; each is one life of a job."""
    keys: list[str] = []
    options = only_where_needed(path, options, tally)
    for block in blocks(path):
        keys = keys or _keys(block, str(path))
        for found in columns([_separated(block, keys)], keys, _AS_SACCT, tally, _UNIT, quoted=False):
            if len((right := _checked(found, tally)).lines):
                yield rows_of(_as_sacct(right), options)


def _keys(block: Block, source: str) -> list[str]:
    """The keys of the first line, in their order."""
    first = block.data[: block.data.index(b"\n")].decode("utf-8", "replace")
    keys = [key for key in dict.fromkeys(_KEY.findall(first)) if key in _KNOWN]
    for key in _REQUIRED:
        if key not in keys:
            raise InputError(source, f"line {block.first_line}", f"no {key}=; needed are {'=, '.join(_REQUIRED)}=")
    return keys


def _separated(block: Block, keys: Sequence[str]) -> Block:
    """With a separator instead of the blank before each key."""
    text = np.frombuffer(block.data + bytes(32), np.uint8).copy()
    blanks = np.flatnonzero(text == 32)
    first_two = text[blanks + 1].astype(np.uint16) * 256 + text[blanks + 2]
    for key in keys[1:]:
        word = f"{key}=".encode()
        places = blanks[first_two == word[0] * 256 + word[1]]
        for index in range(2, len(word)):
            places = places[text[places + 1 + index] == word[index]]
        text[places] = _UNIT_BYTE
    return Block(block.first_line, text[:-32].tobytes(), block.rows)


def _checked(found: Columns, tally: Tally) -> Columns:
    """Rows whose keys stand in the order of the first line, without the keys."""
    is_right = np.ones(len(found.lines), bool)
    for key, text in found.texts.items():
        is_right &= truths(compute.starts_with(text, f"{key}="))
    tally.leave_out("keys in another order than on the first line", found.lines[~is_right])
    right = found if is_right.all() else found.chosen(is_right)
    cut = {key: compute.utf8_slice_codeunits(text, len(key) + 1) for key, text in right.texts.items()}
    return Columns(right.lines, cut)


def _as_sacct(found: Columns) -> Columns:
    """With sacct's names. Some versions write more keys behind `EligibleTime`, of some jobs alone."""
    texts = {_AS_SACCT[key]: text for key, text in found.texts.items()}
    texts["User"] = named(found.of("UserId"), lambda text: text.partition("(")[0])
    texts["State"] = named(found.of("JobState"), lambda text: "REQUEUED" if text == "PENDING" else text)
    eligible = found.of("EligibleTime")
    if truths(compute.match_substring(eligible, "Job")).any():
        texts["Eligible"] = named(eligible, lambda text: text.partition(" ")[0])
        texts["JobID"] = named(eligible, lambda text: "+".join(one.groups()) if (one := _HET.search(text)) else "")
    return Columns(found.lines, texts)
