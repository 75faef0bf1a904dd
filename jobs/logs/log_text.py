"""A log's lines in blocks, of a plain or a gzip file of any size, and their fields as columns; a row is a line."""

from __future__ import annotations

import csv
import gzip
import tarfile
import zlib
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow
from pyarrow import compute
from pyarrow import csv as arrow_csv

from jobs.logs.log_rows import ImportStats, Lines, Rows, truths
from kit.errors import InputError, nearest
from kit.files import require_file

BLOCK_BYTES: Final = 4 << 20
LONGEST_LINE_BYTES: Final = 1 << 20
MAX_LOG_BYTES: Final = 1 << 40
HEAD_BYTES: Final = 1 << 16
_HEAD_LINES: Final = 50
_TAR_BYTES: Final = 262  # up to the end of its magic word
_OTHERS: Final = {
    "a zip archive": b"PK\x03\x04",
    "compressed with xz": b"\xfd7zXZ\0",
    "compressed with zstd": b"\x28\xb5\x2f\xfd",
    "compressed with bzip2": b"BZh",
    "a Parquet file": b"PAR1",
}
_UNIT: Final = "\x1f"  # separator of fields in lines that had quotes
CUT: Final = "the last line, which has no line end"


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Complete lines; each ends with a line feed.

    Attributes:
        first_line: the number of its first line, from 1.
        rows: how many lines there are.
        is_cut: whether the file's last line is in it without an end.
    """

    first_line: int
    data: bytes
    rows: int
    is_cut: bool = False


def blocks(path: Path, size: int = BLOCK_BYTES) -> Iterator[TextBlock]:
    """Yield a file's lines, in blocks of about `size` bytes.

    A byte order mark is dropped. Lines may have Windows endings; a carriage return within a line becomes a blank.

    Raises:
        InputError: the file is missing, empty, not a text or cut off, or has a line longer than 1 MiB.
    """
    require_file(path, MAX_LOG_BYTES)
    line = 1
    try:
        with _opened(path) as file:
            while data := file.read(size):
                data = (_text(path, data) if line == 1 else data) + file.readline(LONGEST_LINE_BYTES)
                if is_cut := not data.endswith(b"\n"):
                    data += b"\n"
                _require_short(path, line, data)
                if b"\r" in data:
                    data = data.replace(b"\r\n", b"\n").replace(b"\r", b" ")
                yield (block := TextBlock(line, data, data.count(b"\n"), is_cut))
                line += block.rows
    except PermissionError:
        raise InputError(str(path), "", "can't be read: permission denied") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        problem = f"the archive is damaged or cut off ({error}); copy or compress it again"
        raise InputError(str(path), "", problem) from None
    if line == 1:
        raise InputError(str(path), "", "is empty; a log has at least one job")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open the file, or the only one in a tar archive."""
    with path.open("rb") as plain:
        is_gzip = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        with gzip.open(plain) if is_gzip else plain as file:
            is_tar = file.read(_TAR_BYTES)[-5:] == b"ustar"
            file.seek(0)
            yield _only_member(path, file) if is_tar else file


def _only_member(path: Path, file: IO[bytes] | gzip.GzipFile) -> IO[bytes]:
    archive = tarfile.open(fileobj=file)  # noqa: SIM115 - as long as the file
    members = [member for member in archive if member.isfile()]
    if len(members) == 1 and (member := archive.extractfile(members[0])) is not None:
        return member
    names = ", ".join(member.name for member in members[:3])
    problem = f"holds {len(members)} files ({names:.200}); unpack it (tar -xf), and name the one that is the log"
    raise InputError(str(path), "", problem)


def _text(path: Path, data: bytes) -> bytes:
    """Return the first bytes without a byte order mark; raises `InputError` if they are not UTF-8 or ASCII text."""
    for what, magic in _OTHERS.items():
        if data.startswith(magic):
            raise InputError(str(path), "", f"is {what}; a log is text, plain or compressed with gzip: unpack it first")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:HEAD_BYTES]:
        problem = "is UTF-16 or no text at all; expected UTF-8: `iconv -f UTF-16 -t UTF-8 FILE` converts it"
        raise InputError(str(path), "", problem)
    return data.removeprefix(b"\xef\xbb\xbf")


def _require_short(path: Path, line: int, data: bytes) -> None:
    """Check the length of lines; only a block longer than the limit can contain such a line."""
    start = 0
    while len(data) - start > LONGEST_LINE_BYTES:
        end = data.rfind(b"\n", start, start + LONGEST_LINE_BYTES + 1)
        if end < 0:
            line += data.count(b"\n", 0, start)
            problem = "is longer than 1 MiB; a log has one job a line: does the file have line ends, and is it text?"
            raise InputError(str(path), f"line {line}", problem)
        start = end + 1


def head(path: Path) -> str:
    """Return a file's first non-empty lines except comments (`;`), to detect its format; raises as `blocks` does."""
    lines: list[str] = []
    for block in blocks(path, HEAD_BYTES):
        texts = block.data.decode("utf-8", "backslashreplace").splitlines()
        lines += [text for text in texts if text.strip() and not text.startswith(";")]
        if len(lines) >= _HEAD_LINES:
            break
    return "\n".join(lines[:_HEAD_LINES])


def first_line(path: Path) -> tuple[str, Iterator[TextBlock]]:
    """Return a file's first line, and the blocks after it."""
    rest = blocks(path)
    block = next(rest)
    line, _, behind = block.data.partition(b"\n")
    if not line.strip():
        raise InputError(str(path), "line 1", "is empty; the first line names the columns")
    second = [replace(block, first_line=2, data=behind, rows=block.rows - 1)] if behind else []
    return line.decode("utf-8", "backslashreplace"), chain(second, rest)


def names_of(line: str, delimiter: str, source: str, required: Iterable[str], remedy: str) -> list[str]:
    """Return the names of a header line; raises `InputError` if a required one is missing or occurs twice.

    Args:
        remedy: how to fix a missing column.
    """
    names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
    for name in required:
        if not (count := names.count(name)):
            hint = nearest(name, [column[:100] for column in names[:100] if column])
            raise InputError(source, "line 1", f"no column {name!r}; {hint}; {remedy}")
        if count > 1:
            raise InputError(source, "line 1", f"{count} columns {name!r}; name each once")
    return [name if name and names.index(name) == index else f"#{index}" for index, name in enumerate(names)]


def rows_of(
    text_blocks: Iterable[TextBlock],
    names: Sequence[str],
    included: Container[str],
    stats: ImportStats,
    delimiter: str = ",",
    *,
    is_quoted: bool = False,
    always_ends: bool = False,
) -> Iterator[Rows]:
    """Yield the wanted columns of each block; lines of another width and empty lines are left out and counted.

    Args:
        names: of all fields of a line, in their order.
        is_quoted: fields may be in double quotes (and then contain the delimiter); otherwise a quote is a letter.
        always_ends: the log's writer ends each line, so a last line without an end is incomplete.
    """
    for block in text_blocks:
        stats.rows += block.rows
        block = _utf8(block, stats)
        separator = delimiter
        unclosed = np.empty(0, np.int64)
        if is_quoted and b'"' in block.data:
            block, unclosed = _without_quotes(block, delimiter)
            stats.left_out.add("quotes that don't close", unclosed)
            separator = _UNIT
        rows = _parsed(block, names, included, separator, stats)
        is_empty = np.ones(len(rows.lines), bool)  # the parser returns an empty line as a row of empty texts
        for text in rows.columns.values():
            is_empty &= is_empty.any() and truths(compute.equal(text, ""))
        if is_empty.any():
            stats.left_out.add("empty lines", np.setdiff1d(rows.lines[is_empty], unclosed))
            rows = rows.chosen(~is_empty)
        if block.is_cut:
            last = block.first_line + block.rows - 1
            stats.messages.append(f"line {last:,}, the last, has no line end: if a copy broke off there, copy it again")
            if always_ends:
                stats.left_out.add(CUT, rows.lines[rows.lines == last])
                rows = rows.chosen(rows.lines != last)
        if len(rows.lines):
            yield rows


def _parsed(
    block: TextBlock, names: Sequence[str], included: Container[str], delimiter: str, stats: ImportStats
) -> Rows:
    widths: dict[int, int] = {}  # of lines with another width

    def skipped(row: Any) -> str:
        widths[row.number] = row.actual_columns
        return "skip"

    table = arrow_csv.read_csv(
        pyarrow.BufferReader(block.data),
        arrow_csv.ReadOptions(use_threads=False, block_size=len(block.data) + 1, column_names=list(names)),
        arrow_csv.ParseOptions(
            delimiter=delimiter, quote_char=False, ignore_empty_lines=False, invalid_row_handler=skipped
        ),
        arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pyarrow.string()),
            include_columns=[name for name in names if name in included],
            strings_can_be_null=False,
        ),
    )
    lines = np.arange(block.first_line, block.first_line + block.rows)
    odd, width = np.array(list(widths), np.int64) - 1, np.array(list(widths.values()), np.int64)
    stats.left_out.add(f"fewer than {len(names)} fields", lines[odd[width < len(names)]])
    stats.left_out.add(f"more than {len(names)} fields", lines[odd[width > len(names)]])
    return Rows(np.delete(lines, odd), {name: table[name].combine_chunks() for name in table.column_names})


def _utf8(block: TextBlock, stats: ImportStats) -> TextBlock:
    """Escape bytes that are not UTF-8, so that no two names become equal."""
    if block.data.isascii():
        return block
    written = block.data.decode("utf-8", "backslashreplace").encode()
    if written != block.data:
        lines = zip(block.data.split(b"\n"), written.split(b"\n"), strict=True)
        odd = [number for number, (was, now) in enumerate(lines, block.first_line) if was != now]
        stats.noted.add("bytes that are not UTF-8, written out as \\x..", np.array(odd, np.int64))
    return replace(block, data=written)


def _without_quotes(block: TextBlock, delimiter: str) -> tuple[TextBlock, Lines]:
    """Return lines with another delimiter and no quotes, and lines with unclosed quotes, which become empty."""
    written, unclosed = [], []
    for number, line in enumerate(block.data.decode().split("\n")[:-1], block.first_line):
        try:
            fields = (
                next(csv.reader([line], delimiter=delimiter, strict=True)) if '"' in line else line.split(delimiter)
            )
        except csv.Error:
            unclosed.append(number)
            fields = []
        written.append(_UNIT.join(fields))
    return replace(block, data=("\n".join(written) + "\n").encode()), np.array(unclosed, np.int64)
