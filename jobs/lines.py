"""A log's lines in blocks, of a plain or a gzip file of any size: memory does not grow with the file."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from kit.errors import InputError
from kit.files import require_file

BLOCK_BYTES: Final = 4 << 20
LONGEST_LINE_BYTES: Final = 1 << 20
MOST_LOG_BYTES: Final = 1 << 40
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
class Block:
    """Whole lines; each ends with a line feed.

    Attributes:
        first_line: the number of its first line, from 1.
        rows: how many lines there are.
    """

    first_line: int
    data: bytes
    rows: int


def blocks(path: Path, size: int = BLOCK_BYTES) -> Iterator[Block]:
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
    """A file's first lines, the last of them no remark (`;`), to tell what it is; raises as `blocks` does."""
    found: list[str] = []
    for block in blocks(path, HEAD_BYTES):
        for line in block.data[:HEAD_BYTES].decode("utf-8", "backslashreplace").splitlines():
            if len(found) < _HEAD_LINES or not line.startswith(";"):
                found.append(line)
            if len(found) > _HEAD_LINES:
                return found
    return found


def _block(path: Path, line: int, data: bytes) -> Block:
    _require_short(path, line, data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b" ")
    return Block(line, data, data.count(b"\n"))


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
    require_file(path, MOST_LOG_BYTES)
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
