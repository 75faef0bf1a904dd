"""A log's lines in blocks, of a plain or a gzip file of any size: memory does not grow with the file."""

from __future__ import annotations

import csv
import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute
from pyarrow import csv as arrow_csv

from jobs.logs.rows import Tally
from kit.errors import InputError, nearest
from kit.files import require_file

BLOCK_BYTES: Final = 4 << 20
LONGEST_LINE_BYTES: Final = 1 << 20
MAX_LOG_BYTES: Final = 1 << 40
HEAD_BYTES: Final = 1 << 16
_HEAD_LINES: Final = 50
_TAR_BYTES: Final = 262  # the fields before its magic word, and that
_OTHERS: Final = {
    b"PK\x03\x04": "a zip archive",
    b"\xfd7zXZ\0": "compressed with xz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"BZh": "compressed with bzip2",
    b"PAR1": "a Parquet file",
}


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines; each ends with a line feed.

    Attributes:
        first_line: the number of its first line, from 1.
        rows: how many lines there are.
    """

    first_line: int
    data: bytes
    rows: int


def blocks(path: Path, size: int = BLOCK_BYTES) -> Iterator[TextBlock]:
    """A file's lines, in blocks of about `size` bytes.

    A byte order mark is dropped. Lines may end as Windows has them; a carriage return within a line becomes a blank.

    Raises:
        InputError: no such file, an empty one, one that is no text or is cut off, or a line longer than 1 MiB.
    """
    line, rest, is_first = 1, b"", True
    for chunk in _chunks(path, size):
        data = rest + (_checked_head(path, chunk) if is_first else chunk)
        is_first = False
        cut = data.rfind(b"\n") + 1
        rest = data[cut:]
        if cut:
            block = _block(path, line, data[:cut])
            yield block
            line += block.rows
        if len(rest) > LONGEST_LINE_BYTES:
            raise _too_long(path, line)
    if is_first:
        raise InputError(str(path), "", "is empty; a log has at least one job")
    if rest:
        yield _block(path, line, rest + b"\n")


def head(path: Path) -> list[str]:
    """A file's first lines, the last of them no comment (`;`), to tell what it is; raises as `blocks` does."""
    lines: list[str] = []
    for block in blocks(path, HEAD_BYTES):
        for line in block.data[:HEAD_BYTES].decode("utf-8", "backslashreplace").splitlines():
            if len(lines) < _HEAD_LINES or not line.startswith(";"):
                lines.append(line)
            if len(lines) > _HEAD_LINES:
                return lines
    return lines


def _block(path: Path, line: int, data: bytes) -> TextBlock:
    _require_short(path, line, data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b" ")
    return TextBlock(line, data, data.count(b"\n"))


def _require_short(path: Path, line: int, data: bytes) -> None:
    """Only where a block is longer than a line may be can one of its lines be too long."""
    start = 0
    while len(data) - start > LONGEST_LINE_BYTES:
        end = data.rfind(b"\n", start, start + LONGEST_LINE_BYTES + 1)
        if end < 0:
            raise _too_long(path, line + data.count(b"\n", 0, start))
        start = end + 1


def _too_long(path: Path, line: int) -> InputError:
    problem = "is longer than 1 MiB; a log has one job a line: does the file have line ends, and is it text?"
    return InputError(str(path), f"line {line}", problem)


def _chunks(path: Path, size: int) -> Iterator[bytes]:
    require_file(path, MAX_LOG_BYTES)
    try:
        with _opened(path) as file:
            while chunk := file.read(size):
                yield chunk
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        problem = f"the archive is damaged or cut off ({error}); copy or compress it again"
        raise InputError(str(path), "", problem) from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The file, or the only one in an archive of tar."""
    try:
        with path.open("rb") as plain:
            is_gzip = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            with gzip.open(plain) if is_gzip else plain as file:
                is_tar = file.read(_TAR_BYTES)[-5:] == b"ustar"
                file.seek(0)
                yield _only_member(path, file) if is_tar else file
    except PermissionError:
        raise InputError(str(path), "", "can't be read: permission denied") from None


def _only_member(path: Path, file: IO[bytes] | gzip.GzipFile) -> IO[bytes]:
    archive = tarfile.open(fileobj=file)  # noqa: SIM115 - as long as the file
    members = [each for each in archive if each.isfile()]
    if len(members) == 1 and (member := archive.extractfile(members[0])) is not None:
        return member
    names = ", ".join(each.name for each in members[:3])
    problem = f"holds {len(members)} files ({names:.200}); unpack it (tar -xf), and name the one that is the log"
    raise InputError(str(path), "", problem)


def _checked_head(path: Path, data: bytes) -> bytes:
    """The first bytes without a byte order mark; raises `InputError` where they are no UTF-8 or ASCII text."""
    for magic, what in _OTHERS.items():
        if data.startswith(magic):
            problem = f"is {what}; a log is text, plain or compressed with gzip: unpack it first"
            raise InputError(str(path), "", problem)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:HEAD_BYTES]:
        problem = "is UTF-16 or no text at all; allowed is UTF-8: `iconv -f UTF-16 -t UTF-8 FILE` converts it"
        raise InputError(str(path), "", problem)
    return data.removeprefix(b"\xef\xbb\xbf")


# ------------------------------------------------------------------------------------------------------------ delimited
# Lines of delimited fields as columns, block by block: a row is a line, and what is no row is counted.


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
        if (count := names.count(name)) == 1:
            continue
        problem = f"{count} columns {name!r}; name each once" if count else f"no column {name!r}; "
        hint = "" if count else f"{nearest(name, [each[:100] for each in names[:100] if each])}; {remedy}"
        raise InputError(source, "line 1", problem + hint)
    return [name if name and names.index(name) == place else f"#{place}" for place, name in enumerate(names)]


def columns(
    blocks: Iterable[TextBlock],
    names: Sequence[str],
    wanted: Iterable[str],
    tally: Tally,
    delimiter: str,
    *,
    quoted: bool,
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
            parsed = _parsed(block, names, chosen, tally, _UNIT)
        else:
            unclosed = np.array([], np.int64)
            parsed = _parsed(block, names, chosen, tally, delimiter)
        if len((parsed := _without_empty(parsed, unclosed, tally)).lines):
            yield parsed


def first_line(path: Path, blocks: Iterator[TextBlock]) -> tuple[str, Iterator[TextBlock]]:
    """A file's first line, and the blocks behind it."""
    block = next(blocks)
    line, _, behind = block.data.partition(b"\n")
    if not line.strip():
        raise InputError(str(path), "line 1", "is empty; the first line names the columns")
    rest = [TextBlock(2, behind, block.rows - 1)] if behind else []
    return line.decode("utf-8", "backslashreplace"), chain(rest, blocks)


def headed(path: Path, required: Sequence[str], remedy: str, tally: Tally) -> Iterator[Columns]:
    """These columns of a CSV file whose first line names them; raises as `split_header` does."""
    line, rest = first_line(path, blocks(path))
    names = split_header(line, ",", str(path), required, remedy)
    yield from columns(rest, names, required, tally, ",", quoted=True)


def headless(
    path: Path,
    layouts: Iterable[Sequence[str]],
    allowed: str,
    tally: Tally,
    is_header: Callable[[str], bool],
    wanted: Iterable[str] | None = None,
) -> Iterator[Columns]:
    """The wanted columns (all by default) of a CSV file whose fields are known by how many there are.

    Args:
        layouts: names of all fields, of different lengths.
        allowed: how many there may be, in words.
        is_header: whether a first line is no row, though the file needn't have one that names fields.

    Raises:
        InputError: the first line has another number of fields.
    """
    line, rest = first_line(path, blocks(path))
    names = {len(layout): layout for layout in layouts}.get(width := line.count(",") + 1)
    if names is None:
        raise InputError(str(path), "line 1", f"{width} fields; allowed are {allowed}")
    first = [] if is_header(line) else [TextBlock(1, f"{line}\n".encode(), 1)]
    yield from columns(chain(first, rest), names, names if wanted is None else wanted, tally, ",", quoted=False)


def _parsed(block: TextBlock, names: Sequence[str], chosen: list[str], tally: Tally, delimiter: str) -> Columns:
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


def _utf8(block: TextBlock, tally: Tally) -> TextBlock:
    """Bytes that are no UTF-8 are written out, so that no two names become one."""
    if block.data.isascii():
        return block
    written = block.data.decode("utf-8", "backslashreplace").encode()
    if written != block.data:
        lines = zip(block.data.split(b"\n"), written.split(b"\n"), strict=True)
        odd = [number for number, (was, now) in enumerate(lines, block.first_line) if was != now]
        tally.note("bytes that are no UTF-8, written out as \\x..", np.array(odd, np.int64))
    return TextBlock(block.first_line, written, block.rows)


def _without_empty(parsed: Columns, unclosed: NDArray[np.int64], tally: Tally) -> Columns:
    """An empty line of several columns is a row of empty texts to the parser; those of `unclosed` are counted."""
    is_empty = np.ones(len(parsed.lines), bool)
    for text in parsed.texts.values():
        is_empty &= compute.equal(text, "").to_numpy(zero_copy_only=False).astype(bool)
    if not is_empty.any():
        return parsed
    tally.leave_out("empty lines", parsed.lines[is_empty & ~np.isin(parsed.lines, unclosed)])
    return parsed.chosen(~is_empty)


def _without_quotes(block: TextBlock, delimiter: str) -> tuple[TextBlock, NDArray[np.int64]]:
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
    return TextBlock(block.first_line, data, block.rows), np.array(unclosed, np.int64)
