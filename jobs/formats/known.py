"""The formats by name, and which of them a file is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobs.formats import alibaba_pai, helios, jobcomp, openb, own_csv, philly, rltune, sacct, swf
from jobs.lines import head
from jobs.rows import Options, Rows
from jobs.tally import Tally
from kit.errors import InputError


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of log.

    Attributes:
        looks_like: whether a file's first lines are of it; no file's lines are of two.
        read: its rows, block by block.
        joins: rows of one id are lives of one job.
    """

    looks_like: Callable[[Sequence[str]], bool]
    read: Callable[[Path, Options, Tally], Iterator[Rows]]
    joins: bool = False


FORMATS: Final[Mapping[str, Format]] = {
    "sacct": Format(sacct.looks_like, sacct.read, joins=True),
    "jobcomp": Format(jobcomp.looks_like, jobcomp.read, joins=True),
    "swf": Format(swf.looks_like, swf.read),
    "philly": Format(philly.looks_like, philly.read),
    "helios": Format(helios.looks_like, helios.read),
    "alibaba-pai": Format(alibaba_pai.looks_like, alibaba_pai.read),
    "openb": Format(openb.looks_like, openb.read),
    "rltune": Format(rltune.looks_like, rltune.read),
    "csv": Format(own_csv.looks_like, own_csv.read),
}


_OWN: Final = "a CSV file of your own needs --columns"


def format_of(path: Path, options: Options) -> str:
    """Which format a file is, by its first lines; raises `InputError` where none or several fit."""
    if options.columns:
        return "csv"
    lines = [line for line in head(path) if line.strip()] or [""]
    found = [name for name, known in FORMATS.items() if known.looks_like(lines)]
    if len(found) == 1:
        return found[0]
    if not found and sacct.is_another_form(lines):
        problem = f"{lines[0]!r:.60} may be sacct's, but not with --parsable2 and a header line: make it by"
        raise InputError(str(path), "", f"{problem} `{sacct.COMMAND}`; {_OWN}")
    problem = f"its first line is {lines[0]!r:.120}, which {'several formats have' if found else 'no known format has'}"
    remedy = f"say which it is with --format {'|'.join(found or FORMATS)}; {_OWN}"
    raise InputError(str(path), "", f"{problem}; {remedy}")
