"""Text and JSON on disk: atomic writes, read errors that name the file, and hashes of the inputs of a stage."""

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


def no_number(word: str) -> Any:
    """Raise `ValueError`: a hook for `json.loads`, which would accept `NaN` and `Infinity`."""
    raise ValueError(f"{word} is no number that JSON knows")


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
        named = f"{path}: " if source else ""
        is_gzip = error.object.startswith(b"\x1f\x8b")
        remedy = "it is compressed: gunzip it first" if is_gzip else "is it the file that you mean?"
        raise InputError(source or str(path), key, f"{named}not UTF-8 text (byte {error.start}); {remedy}") from None


def _neighbor(path: Path) -> str:
    """Return a hint: the most similar file of that kind in the same folder."""
    folder = path.absolute().parent
    if not lies_there(folder):
        remedy = ": paths in a scenario count from its folder" if path.is_absolute() else ""
        return f"; there is no folder {folder}{remedy}"
    others = sorted(other.name for other in folder.glob("*") if other.suffix == path.suffix)
    place = "that folder" if path.is_absolute() else str(folder)
    return f"; in {place}: {nearest(path.name, others[:20])}" if others else f"; looked in {folder}"
