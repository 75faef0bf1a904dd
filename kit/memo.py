"""Results stored on disk, so that interrupted work resumes when it is called again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


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
        whole, length = _read(path)
        self._bytes = length if whole[:1] == [self._head] else 0
        self.rows: list[Any] = whole[1:] if self._bytes else []

    def add(self, row: Any) -> None:
        """Append a row, on disk before this returns."""
        lines = [row] if self._bytes else [self._head, row]
        text = b"".join(json.dumps(each).encode() + b"\n" for each in lines)
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
    whole, length = list[Any](), 0
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else ():
        try:
            whole.append(json.loads(line))
        except ValueError:
            break
        if not line.endswith(b"\n"):
            del whole[-1]
            break
        length += len(line)
    return whole, length
