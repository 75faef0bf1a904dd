"""What lies in a folder that a command is to write into: what is known as made there, and what is somebody else's.

A folder without a mark is taken over where a former version made all that is in it. Where a command was killed, its
manifest may lack what it made last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kit.errors import InputError
from kit.files import file_hash
from scenarios.runs import layout
from scenarios.runs.manifest import Contents, Entry, read_manifest

ENVIRONMENT_SCHEMAS: Final = ("slimsched.environment/1", "slimsched.environment/2")
RESULT: Final = "result.json"
RESULT_SCHEMA: Final = "slimsched.result/1"
ELSEWHERE: Final = "or name another folder with --out"


def require_ours(folder: Path) -> None:
    """Raises `InputError` where a folder may not be written into: it has no readable manifest, and a file of others."""
    _unlisted(folder, read_manifest(layout.manifest_of(folder)))


def contents_of(folder: Path) -> Contents:
    """What the manifest knows; of a folder without one, or whose last command was killed, what it would know.

    Raises:
        InputError: as `require_ours`.
    """
    found = read_manifest(layout.manifest_of(folder))
    lost = {name: _adopted(folder, name) for name in _unlisted(folder, found)}
    return replace(found or Contents(), entries={**(found.entries if found else {}), **lost})


def _unlisted(folder: Path, found: Contents | None) -> list[str]:
    """What is a run's by its name, and should stand in the manifest, but does not."""
    if not folder.exists() or (found is not None and found.is_clean):
        return []
    lost: list[str] = []
    foreign: list[str] = []
    for path in layout.walk(folder):
        name = path.relative_to(folder).as_posix()
        if (found and name in found.entries) or name.startswith(f"{layout.OWN}/") or layout.is_temporary(name):
            continue
        if path.is_symlink() or not path.is_file() or not _is_of_a_run(path, name):
            if found is None:
                raise _foreign(folder, name)
            foreign.append(name)
        else:
            lost.append(name)
    if foreign:  # a user's files lie here, too: whose the others are is not known
        if any(name in layout.FILES for name in lost):
            raise _foreign(folder, foreign[0])
        return []
    if found is None and lost and not _is_of_before(folder, lost):
        raise _foreign(folder, lost[0])
    return lost


def _foreign(folder: Path, name: str) -> InputError:
    if (folder / layout.OWN).is_dir():
        problem = f"its list of what was made in it is damaged, and {name} was not; move that elsewhere, {ELSEWHERE}"
    elif _schema_of(folder / "environment.json") in ENVIRONMENT_SCHEMAS:
        problem = f"has lost its mark ({layout.OWN}), and {name} is none of a run's files; move that elsewhere"
    else:
        problem = f"holds files and is no run folder ({name}); name an empty or a new folder"
    return InputError(str(folder), "", problem)


def _is_of_a_run(path: Path, name: str) -> bool:
    """By its name; a result must say itself that it is one."""
    return layout.fits(name) and (path.name != RESULT or _schema_of(path) == RESULT_SCHEMA)


def _is_of_before(folder: Path, names: Sequence[str]) -> bool:
    """Names alone are no proof: a user may have a `scenario.yaml` and `profiles`, too."""
    if (folder / layout.OWN).is_dir() or _schema_of(folder / "environment.json") in ENVIRONMENT_SCHEMAS:
        return True
    return all(
        name.startswith(f"{layout.STAGES}/")  # nobody else has such a folder
        or (name.startswith("simulation/") and f"{name.rpartition('/')[0]}/{RESULT}" in names)
        for name in names
    )


def _schema_of(path: Path) -> Any:
    """What a JSON document says that it is; None where it says nothing, or is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return document.get("schema") if isinstance(document, dict) else None


def _adopted(folder: Path, name: str) -> Entry:
    """What a former version made, as it is found; whose runs `simulate --out` kept is not known, so they stay."""
    run = name.split("/")[1] if name.startswith("simulation/") else None
    if run is not None:
        has_twin = any((folder / "hardware").glob(f"{run}*"))
        return Entry("validate" if has_twin else "simulate", file_hash(folder / name))
    if name.startswith(("training/", f"{layout.STAGES}/")) or name.endswith(".jsonl"):
        return Entry(layout.command_of(name, None))
    return Entry(layout.command_of(name, None), file_hash(folder / name))
