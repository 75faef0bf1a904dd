"""What was made in a run folder: a journal of lines, appended before and after each file is written.

A file is claimed before it is written, so that one that was killed midway is not taken for somebody else's; and sealed
with its content's hash when it is whole. The last line of a path counts. It knows no file but its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from kit.files import atomic_path

SCHEMA: Final = "slimsched.run-folder/1"
_CLOSED: Final = {"closed": True}


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a path in the folder.

    Attributes:
        by: the stage or command that made it.
        sha256: of its content when it was written; None where it is being written, or is written again and again.
        steps: of an event log.
    """

    by: str
    sha256: str | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Contents:
    """A manifest as it was read.

    Attributes:
        scenario: the scenario's file, named from the folder.
        is_clean: it ends as a command that ended by itself leaves it, and every line could be read.
    """

    scenario: str | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    is_clean: bool = False


def read_manifest(path: Path) -> Contents | None:
    """What a manifest says; None where there is none, or its first line is damaged. Damaged lines are left out."""
    try:
        lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    except OSError:
        return None
    head = _line(lines[0])
    if head is None or head.get("schema") != SCHEMA:
        return None
    scenario = head.get("scenario")
    entries: dict[str, Entry] = {}
    found = [_line(line) for line in lines[1:-1]]
    for record in found:
        if record is not None and (name := _name(record)) is not None:
            entries.pop(name, None)
            if (entry := _entry(record)) is not None:
                entries[name] = entry
    is_whole = None not in found and lines[-1] == b""
    is_clean = is_whole and found[-1:] == [_CLOSED]
    return Contents(scenario if isinstance(scenario, str) else None, entries, is_clean)


def _line(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _name(record: dict[str, Any]) -> str | None:
    """A path that lies in the folder; None for any other, whoever wrote it."""
    name = record.get("path")
    if not isinstance(name, str) or "\0" in name:
        return None
    parts = PurePosixPath(name).parts
    is_inside = parts and not name.startswith("/") and ".." not in parts and "/".join(parts) == name
    return name if is_inside else None


def _entry(record: dict[str, Any]) -> Entry | None:
    by, sha256, steps = (record.get(key) for key in ("by", "sha256", "steps"))
    if not isinstance(by, str):
        return None  # it is gone
    return Entry(by, sha256 if isinstance(sha256, str) else None, steps if type(steps) is int else None)


class Journal:
    """A manifest that is being written; the folder's lock must be held.

    Args:
        contents: what is known; the file is written anew with it.
    """

    def __init__(self, path: Path, contents: Contents) -> None:
        self.entries = dict(contents.entries)
        self.scenario = contents.scenario
        lines = [{"schema": SCHEMA, "scenario": contents.scenario}]
        lines += [_record(name, entry) for name, entry in self.entries.items()]
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"".join(map(_text, lines)))
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)

    def put(self, name: str, entry: Entry) -> None:
        """A path is claimed (without a hash), or sealed."""
        if self.entries.get(name) != entry:
            self._append(_record(name, entry))
            self.entries[name] = entry

    def drop(self, name: str) -> None:
        """A path is no more."""
        if self.entries.pop(name, None) is not None:
            self._append({"path": name})

    def made_by(self, by: str) -> Iterator[tuple[str, Entry]]:
        """What a stage or command has made."""
        yield from [(name, entry) for name, entry in self.entries.items() if entry.by == by]

    def close(self) -> None:
        """The end of a command, even of one that failed; a command that was killed does not write it."""
        with suppress(OSError):
            self._append(_CLOSED)
        os.close(self._descriptor)

    def _append(self, record: dict[str, Any]) -> None:
        """One line, with the disk when this returns; where it does not fit, the line is taken back."""
        end, text = os.fstat(self._descriptor).st_size, _text(record)
        try:
            while text:
                text = text[os.write(self._descriptor, text) :]
            os.fsync(self._descriptor)
        except OSError:
            with suppress(OSError):
                os.truncate(self._descriptor, end)
            raise


def _record(name: str, entry: Entry) -> dict[str, Any]:
    known = {"sha256": entry.sha256, "steps": entry.steps}
    return {"path": name, "by": entry.by, **{key: value for key, value in known.items() if value is not None}}


def _text(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
