"""Text and JSON on disk: read with errors that name the file, written whole or not at all; hashes of what work used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kit.errors import InputError, nearest
from kit.files import atomic_path, folder_hash, lies_there, read_bytes


def write_text(path: Path, text: str) -> None:
    """A UTF-8 file, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, document: Any) -> None:
    """A JSON document, whole or not at all."""
    write_text(path, json_text(document))


def json_text(document: Any) -> str:
    """A document as JSON; not-a-number is refused, for JSON has none."""
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_checked(path: Path, content: Any) -> None:
    """A JSON document with a hash of its content, for what is read by this program alone."""
    write_json(path, {"sha256": _content_hash(content), "content": content})


def read_checked(path: Path) -> Any:
    """What `write_checked` wrote; raises `InputError` where it is missing, or is anything else."""
    document = read_json(path)
    if not isinstance(document, dict) or document.get("sha256") != _content_hash(document.get("content")):
        raise InputError(str(path), "", "its content is not what its hash says")
    return document["content"]


def _content_hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_json(path: Path) -> Any:
    """A JSON document; raises `InputError` where it is missing or broken, or holds what JSON can't (not-a-number)."""
    try:
        text = read_bytes(path)
        document = json.loads(text, parse_constant=no_number)
        if rb"\u" in text:  # half a character can be written as an escape alone, and no text can hold it
            json.dumps(document, ensure_ascii=False).encode()
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(str(path), "", f"no readable JSON: {error}") from None
    return document


def no_number(word: str) -> Any:
    """For `json.loads`, which would take `NaN` and `Infinity`: raises `ValueError`."""
    raise ValueError(f"{word} is no number that JSON knows")


@contextmanager
def with_remedy(remedy: str) -> Iterator[None]:
    """What is wrong with a file is told with what to do about it."""
    try:
        yield
    except InputError as error:
        raise InputError(error.source, error.key, f"{error.problem}; {remedy}") from None


@contextmanager
def told_of(path: Path, remedy: str) -> Iterator[None]:
    """Within it, files that are whole but not of the form that this version writes are told, and of which place."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, ValueError) as error:
        problem = f"holds what no version of this project writes ({type(error).__name__}: {error})"
        raise InputError(str(path), "", f"{problem}; {remedy}") from error


def inputs_hash(*parts: Any) -> str:
    """A fingerprint of what a stage depends on: plain data, texts, and the contents of files and folders (`Path`)."""
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
    """A text file; raises `InputError` (naming `source` and `key`, the place that named it) where it can't be read."""
    try:
        hint = "" if lies_there(path) else _neighbor(path)
        return read_bytes(path, source=source or "", key=key, hint=hint).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        named = f"{path}: " if source else ""
        is_gzip = error.object.startswith(b"\x1f\x8b")
        remedy = "it is compressed: gunzip it first" if is_gzip else "is it the file that you mean?"
        raise InputError(source or str(path), key, f"{named}not UTF-8 text (byte {error.start}); {remedy}") from None


def _neighbor(path: Path) -> str:
    """A hint: the nearest file of that kind in the same folder."""
    folder = path.absolute().parent
    if not lies_there(folder):
        remedy = ": paths in a scenario count from its folder" if path.is_absolute() else ""
        return f"; there is no folder {folder}{remedy}"
    others = sorted(other.name for other in folder.glob("*") if other.suffix == path.suffix)
    place = "that folder" if path.is_absolute() else str(folder)
    return f"; in {place}: {nearest(path.name, others[:20])}" if others else f"; looked in {folder}"
