"""A command's output must not replace what it reads, nor what a run folder keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

from kit.errors import InputError
from scenarios.runs.folder import FILES, FOLDERS, RunFolder


def require_apart(written: Sequence[Path], read: Iterable[Path]) -> None:
    """Return whether the files that a command writes are none that it reads, and differ.

    Raises:
        InputError: a result would take the place of an input, of another result, or of a run folder's file.
    """
    read = list(read)
    for place in written:
        if any(_are_one(place, path) for path in read):
            problem = "the command reads this file, and its result would replace it; name another"
            raise InputError(str(place), "", problem)
        if (folder := _run_folder_of(place)) is not None:
            raise InputError(
                str(place), "", f"was made in the run folder {folder}, and would be replaced; name another"
            )
    for one, other in combinations(written, 2):
        if one.absolute() == other.absolute() or (one.is_file() and _are_one(one, other)):
            raise InputError(str(one), "", "two results can't go into one file; name another for one of them")


def require_beside(written: Sequence[Path], folder: Path) -> None:
    """Check that the files that a command writes can be in the same folder as what it makes in its run folder.

    Raises:
        InputError: one would be the folder, or above it, or replace a file that a run makes.
    """
    real = folder.resolve()
    for place in written:
        wanted = place.parent.resolve() / place.name
        if wanted == real or wanted in real.parents:
            raise InputError(str(place), "", f"the run folder {folder} is to be made there; name another")
        if wanted.is_relative_to(real) and _is_of_a_run(wanted.relative_to(real)):
            raise InputError(str(place), "", f"is a name of the run folder {folder}'s own files; name another")


def _are_one(place: Path, path: Path) -> bool:
    """Check for a regular file under two names; devices may be read and written."""
    try:
        return place.is_file() and place.samefile(path)
    except (OSError, ValueError):
        return False


def _run_folder_of(place: Path) -> Path | None:
    """Return the run folder that made the file there."""
    if not place.is_file():
        return None
    real = place.resolve()
    for folder in real.parents:
        if RunFolder(folder).is_flagged and _is_of_a_run(real.relative_to(folder)):
            return folder
    return None


def _is_of_a_run(name: Path) -> bool:
    """Check whether a file is of a run, by its path in a run folder."""
    return str(name) in FILES or name.parts[0] in FOLDERS
