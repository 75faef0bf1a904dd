"""Lines of delimited fields as columns, block by block: a row is a line, and what is no row is counted."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute
from pyarrow import csv as arrow_csv

from jobs.lines import Block
from jobs.tally import Tally
from kit.errors import InputError, nearest

_UNIT = "\x1f"  # between the fields of lines that had quotes


@dataclass(frozen=True, slots=True)
class Columns:
    """A block's rows.

    Attributes:
        lines: on which line each stands, from 1.
        texts: by column name; each as many texts as there are rows.
    """

    lines: NDArray[np.int64]
    texts: dict[str, Any]

    def of(self, name: str) -> Any:
        """A column, or empty texts where the file has none of this name."""
        return self.texts[name] if name in self.texts else empty(len(self.lines))

    def chosen(self, is_kept: NDArray[np.bool_]) -> Columns:
        """Some of the rows."""
        mask = pyarrow.array(is_kept)
        return Columns(self.lines[is_kept], {name: text.filter(mask) for name, text in self.texts.items()})


def empty(rows: int) -> Any:
    """Empty texts."""
    return pyarrow.repeat(pyarrow.scalar("", pyarrow.string()), rows)


def split_header(line: str, delimiter: str, source: str, required: Sequence[str], remedy: str) -> list[str]:
    """The names of a header line; raises `InputError` where a required one is missing or stands there twice.

    Args:
        remedy: what to do about a missing column.
    """
    names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
    for name in required:
        if (found := names.count(name)) == 1:
            continue
        problem = f"{found} columns {name!r}; name each once" if found else f"no column {name!r}; "
        hint = "" if found else f"{nearest(name, [each[:100] for each in names[:100] if each])}; {remedy}"
        raise InputError(source, "line 1", problem + hint)
    return [name if name and names.index(name) == place else f"#{place}" for place, name in enumerate(names)]


def columns(
    blocks: Iterable[Block], names: Sequence[str], wanted: Iterable[str], tally: Tally, delimiter: str, *, quoted: bool
) -> Iterator[Columns]:
    """The wanted columns of each block; lines of another width are left out and counted, and so are empty ones.

    Args:
        names: of all fields of a line, in their order.
        quoted: fields may stand in double quotes (and then hold the delimiter); else a quote is a letter.
    """
    chosen = [name for name in names if name in set(wanted)]
    for block in blocks:
        tally.rows += block.rows
        block = _utf8(block, tally)
        if quoted and b'"' in block.data:
            block, unclosed = _without_quotes(block, delimiter)
            tally.leave_out("quotes that don't close", unclosed)
            found = _parsed(block, names, chosen, tally, _UNIT)
        else:
            unclosed = np.array([], np.int64)
            found = _parsed(block, names, chosen, tally, delimiter)
        if len((found := _without_empty(found, unclosed, tally)).lines):
            yield found


def first_line(path: Path, blocks: Iterator[Block]) -> tuple[str, Iterator[Block]]:
    """A file's first line, and the blocks behind it."""
    block = next(blocks)
    end = block.data.index(b"\n")
    text = block.data[:end].decode("utf-8", "backslashreplace")
    if not text.strip():
        raise InputError(str(path), "line 1", "is empty; the first line names the columns")

    def rest() -> Iterator[Block]:
        if len(block.data) > end + 1:
            yield Block(block.first_line + 1, block.data[end + 1 :], block.rows - 1)
        yield from blocks

    return text, rest()


def _parsed(block: Block, names: Sequence[str], chosen: list[str], tally: Tally, delimiter: str) -> Columns:
    wrong: tuple[list[int], list[int]] = ([], [])  # lines of fewer fields, and of more

    def is_wrong(row: Any) -> str:
        wrong[row.actual_columns > len(names)].append(row.number)
        return "skip"

    table = arrow_csv.read_csv(
        pyarrow.BufferReader(block.data),
        arrow_csv.ReadOptions(use_threads=False, block_size=len(block.data) + 1, column_names=list(names)),
        arrow_csv.ParseOptions(
            delimiter=delimiter, quote_char=False, ignore_empty_lines=False, invalid_row_handler=is_wrong
        ),
        arrow_csv.ConvertOptions(
            column_types={name: pyarrow.string() for name in names},
            include_columns=chosen,
            strings_can_be_null=False,
        ),
    )
    is_row = np.ones(block.rows, bool)
    for how, numbers in zip(("fewer", "more"), wrong, strict=True):
        is_row[np.array(numbers, np.int64) - 1] = False
        tally.leave_out(f"{how} than {len(names)} fields", np.array(numbers, np.int64) + block.first_line - 1)
    lines = np.flatnonzero(is_row) + block.first_line
    return Columns(lines, {name: table[name].combine_chunks() for name in chosen})


def _utf8(block: Block, tally: Tally) -> Block:
    """Bytes that are no UTF-8 are written out, so that no two names become one."""
    if _is_utf8(block.data):
        return block
    odd = [number for number, line in enumerate(block.data.split(b"\n"), block.first_line) if not _is_utf8(line)]
    tally.note("bytes that are no UTF-8, written out as \\x..", np.array(odd, np.int64))
    return Block(block.first_line, block.data.decode("utf-8", "backslashreplace").encode(), block.rows)


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _without_empty(found: Columns, unclosed: NDArray[np.int64], tally: Tally) -> Columns:
    """An empty line of several columns is a row of empty texts to the parser; those of `unclosed` are counted."""
    is_empty = np.ones(len(found.lines), bool)
    for text in found.texts.values():
        is_empty &= compute.equal(text, "").to_numpy(zero_copy_only=False).astype(bool)
    if not is_empty.any():
        return found
    tally.leave_out("empty lines", found.lines[is_empty & ~np.isin(found.lines, unclosed)])
    return found.chosen(~is_empty)


def _without_quotes(block: Block, delimiter: str) -> tuple[Block, NDArray[np.int64]]:
    """Its lines with another delimiter and no quotes, and those whose quotes don't close: they are empty."""
    written, unclosed = [], []
    for number, line in enumerate(block.data.decode("utf-8").split("\n")[:-1], block.first_line):
        fields = line.split(delimiter)
        if '"' in line:
            try:
                fields = next(csv.reader([line], delimiter=delimiter, strict=True))
            except csv.Error:
                unclosed.append(number)
                fields = []
        written.append(_UNIT.join(fields))
    data = ("\n".join(written) + "\n").encode()
    return Block(block.first_line, data, block.rows), np.array(unclosed, np.int64)
