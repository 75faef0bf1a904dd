"""What a command writes must not lie where it reads, nor where a run folder keeps what was made in it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Final

from kit.errors import InputError
from scenarios.runs.folder import FILES, FOLDERS, RunFolder

_READ: Final = ("scenario", "router", "model", "profile", "log", "trace", "tasks")
_WRITTEN: Final = ("json", "plot", "file")
_OUT_IS_A_FILE: Final = (
    "tune",
    "profile synth",
    "jobs import",
    "jobs generate",
    "jobs init",
    "jobs simulate",
    "jobs tune",
    "jobs train",
)


def require_apart(arguments: Namespace, named: Iterable[Path] = ()) -> None:
    """Whether the files that a command's flags ask for are none that it reads, and differ.

    Args:
        named: what it reads beside the files that its flags name.

    Raises:
        InputError: a result would take the place of an input, of another result, or of a run folder's file.
    """
    read = [*_given(arguments, _READ), *named]
    written = list(_given(arguments, (*_WRITTEN, *(("out",) if arguments.command in _OUT_IS_A_FILE else ()))))
    for place in written:
        if any(_are_one(place, path) for path in read):
            raise InputError(
                str(place), "", "the command reads this file, and its result would replace it; name another"
            )
        if (folder := _run_folder_of(place)) is not None:
            raise InputError(
                str(place), "", f"was made in the run folder {folder}, and would be replaced; name another"
            )
    for one, other in combinations(written, 2):
        if one.absolute() == other.absolute() or (one.is_file() and _are_one(one, other)):
            raise InputError(str(one), "", "two results can't go into one file; name another for one of them")


def require_beside(arguments: Namespace, folder: Path) -> None:
    """Whether the files that a command's flags ask for can lie beside what it makes in its run folder.

    Raises:
        InputError: one would be the folder, or above it, or take the place of a file that a run makes.
    """
    real = folder.resolve()
    for place in _given(arguments, _WRITTEN):
        wanted = place.parent.resolve() / place.name
        if wanted == real or wanted in real.parents:
            raise InputError(str(place), "", f"the run folder {folder} is to be made there; name another")
        if wanted.is_relative_to(real) and _is_of_a_run(wanted.relative_to(real)):
            raise InputError(str(place), "", f"is a name of the run folder {folder}'s own files; name another")


def _given(arguments: Namespace, names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        value = getattr(arguments, name, None)
        for each in value if isinstance(value, list) else [value]:
            if each is not None and str(each) != "-":
                yield Path(each)


def _are_one(place: Path, path: Path) -> bool:
    """A regular file by two names; devices may be read and written."""
    try:
        return place.is_file() and place.samefile(path)
    except (OSError, ValueError):
        return False


def _run_folder_of(place: Path) -> Path | None:
    """The run folder that made the file which lies there."""
    if not place.is_file():
        return None
    real = place.resolve()
    for folder in real.parents:
        if RunFolder(folder).is_marked and _is_of_a_run(real.relative_to(folder)):
            return folder
    return None


def _is_of_a_run(name: Path) -> bool:
    """By a file's path in a run folder."""
    return str(name) in FILES or name.parts[0] in FOLDERS
