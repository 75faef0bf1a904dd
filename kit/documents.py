"""Text and JSON on disk, hashes of a stage's inputs, stored results of interrupted work, and results as documents."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from kit.errors import InputError, nearest
from kit.files import atomic_path, folder_hash, lies_there, read_bytes

if TYPE_CHECKING:
    import pandas


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document atomically."""
    write_text(path, json_text(document))


def json_text(document: Any) -> str:
    """Return a document as JSON; raises `ValueError` for not-a-number, which JSON lacks."""
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path) -> Any:
    """Return a JSON document; raises `InputError` if it is missing or broken, or contains not-a-number."""
    try:
        text = read_bytes(path)
        document = json.loads(text, parse_constant=no_number)
        if rb"\u" in text:  # an escape can write half a surrogate pair, which no text can hold
            json.dumps(document, ensure_ascii=False).encode()
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(str(path), "", f"no readable JSON: {error}") from None
    return document


def no_number(constant: str) -> Any:
    """Raise `ValueError`: a hook for `json.loads`, which would accept `NaN` and `Infinity`."""
    raise ValueError(f"{constant} is not a JSON number")


@contextmanager
def with_remedy(remedy: str) -> Iterator[None]:
    """Add a remedy to the message of any `InputError` raised within."""
    try:
        yield
    except InputError as error:
        raise InputError(error.source, error.key, f"{error.problem}; {remedy}") from None


@contextmanager
def told_of(path: Path, remedy: str) -> Iterator[None]:
    """Report errors of files that are complete but not in this version's format, with the place in the file."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, ValueError) as error:
        problem = f"holds what no version of this project writes ({type(error).__name__}: {error})"
        raise InputError(str(path), "", f"{problem}; {remedy}") from error


def inputs_hash(*parts: Any) -> str:
    """Return a fingerprint of a stage's inputs: plain data, texts, and the contents of files and folders (`Path`)."""
    digest = hashlib.sha256()
    for part in parts:
        if not isinstance(part, Path):
            data = json.dumps(part, sort_keys=True, default=str).encode()
        elif part.is_dir():
            data = folder_hash(part).encode()
        else:
            data = part.read_bytes()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def read_text(path: Path, source: str | None = None, key: str = "") -> str:
    """Return a text file; raises `InputError` (naming `source` and `key`, which name the file) if it can't be read."""
    try:
        hint = "" if lies_there(path) else _neighbor(path)
        return read_bytes(path, source=source or "", key=key, hint=hint).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        prefix = f"{path}: " if source else ""
        is_gzip = error.object.startswith(b"\x1f\x8b")
        remedy = "it is compressed: gunzip it first" if is_gzip else "is it the file that you mean?"
        raise InputError(source or str(path), key, f"{prefix}not UTF-8 text (byte {error.start}); {remedy}") from None


def _neighbor(path: Path) -> str:
    """Return a hint: the most similar file of that kind in the same folder."""
    folder = path.absolute().parent
    if not lies_there(folder):
        remedy = ": paths in a scenario count from its folder" if path.is_absolute() else ""
        return f"; the folder {folder} does not exist{remedy}"
    names = sorted(file.name for file in folder.glob("*") if file.suffix == path.suffix)
    location = "that folder" if path.is_absolute() else str(folder)
    return f"; in {location}: {nearest(path.name, names[:20])}" if names else f"; looked in {folder}"


@dataclass(frozen=True, kw_only=True)
class Document:
    """The common base of all results.

    Attributes:
        document: the result as plain data, which `--json` writes on the command line (docs/metrics.md).
        remarks: warnings and other remarks, which a command would write to standard error.
    """

    remarks: tuple[str, ...] = field(default=(), repr=False)

    if TYPE_CHECKING:

        @property
        def document(self) -> Mapping[str, Any]:  # noqa: D102 - see above
            ...

    def rows(self) -> list[dict[str, Any]]:
        """Return the result's table as plain data: a dictionary for each row, all with the same keys."""
        return [{name: value for name, value in self.document.items() if name != "schema" and is_plain(value)}]

    def to_json(self) -> str:
        """Return the document as JSON text."""

        return json_text(dict(self.document))

    def to_frame(self) -> pandas.DataFrame:
        """Return the table of `rows` as a pandas data frame.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            remedy = "pip install 'slim-scheduler[frames]' (or pandas); .rows() gives the same without it"
            raise InputError("to_frame", "", f"needs pandas, which is not installed: {remedy}") from None
        return pandas.DataFrame(self.rows())

    @property
    def afterword(self) -> str:
        """The text to print after the result; empty if there is none."""
        return ""

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return 0

    def require_whole(self) -> None:
        """Raise `WorkError` if the work produced nothing, though there is a result to inspect."""

    def with_remarks(self, remarks: Sequence[str]) -> Self:
        """Return the same result with these remarks."""
        return replace(self, remarks=tuple(remarks))


@dataclass(frozen=True, kw_only=True)
class OwnDocument(Document):
    """A result whose fields are its document."""

    _left_out: ClassVar[tuple[str, ...]] = ("remarks",)

    @property
    def document(self) -> Mapping[str, Any]:
        """The fields as plain data; paths as text."""
        return {
            field.name: plain(getattr(self, field.name)) for field in fields(self) if field.name not in self._left_out
        }


def plain(value: Any) -> Any:
    """Return a value in JSON's types: paths as text, and numpy's numbers as numbers."""
    return msgspec.to_builtins(value, enc_hook=lambda each: each.item() if hasattr(each, "item") else str(each))


def is_plain(value: Any) -> bool:
    """Return whether a value fits in a cell of a table."""
    return value is None or isinstance(value, str | int | float)


class Memo:
    """A growing list of plain data with one fingerprint: a JSON line for each finished piece of work.

    What an interruption has damaged, a torn line and all that follows it, is dropped. So is everything with another
    fingerprint. The first row creates the file.

    Args:
        path: the file, which belongs to this work alone.
        inputs: fingerprint of all that determines the rows (`kit.documents.inputs_hash`).

    Attributes:
        rows: the stored rows, in the order of addition.
    """

    def __init__(self, path: Path, inputs: str) -> None:
        self.path, self._head = path, {"inputs": inputs}
        lines, length = _read(path)
        self._bytes = length if lines[:1] == [self._head] else 0
        self.rows: list[Any] = lines[1:] if self._bytes else []

    def add(self, row: Any) -> None:
        """Append a row, on disk before this returns."""
        lines = [row] if self._bytes else [self._head, row]
        text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            os.truncate(file.fileno(), self._bytes)
            file.write(text)
        self._bytes += len(text)
        self.rows.append(row)


def rows_in(path: Path) -> list[Any]:
    """Return the rows of a memo's file, whatever its inputs were."""
    return _read(path)[0][1:]


def _read(path: Path) -> tuple[list[Any], int]:
    """Return the complete lines up to the first incomplete one, and their size in bytes."""
    rows, length = list[Any](), 0
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
        if not line.endswith(b"\n"):
            del rows[-1]
            break
        length += len(line)
    return rows, length
