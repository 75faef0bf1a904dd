"""Where a command may write: an unwritable path is an error before the work, and the check creates nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.errors import InputError
from kit.files import destination


def writable_file(path: Path) -> Path:
    """Return the path, if a file can be written there, or to what is there; folders that are missing would be made.

    A regular file would be replaced, and a link's target; a device, a pipe or an open descriptor be written to.

    Raises:
        InputError: it can't.
    """
    with _told_of(path):
        place = destination(path)
        if isinstance(place, int):
            return path
        if place.is_file() or not place.exists():
            _require_writable(path, place.absolute().parent)
        elif not os.access(place, os.W_OK):
            raise InputError(str(path), "", "can't be written (Permission denied); name another place")
    return path


def writable_folder(path: Path) -> Path:
    """Return the path, if files can be written into a folder there; it would be made if it is missing.

    Raises:
        InputError: they can't.
    """
    with _told_of(path):
        if path.exists() and not path.is_dir():
            raise InputError(str(path), "", "this is a file; name a folder")
        _require_writable(path, path.absolute())
    return path


def in_a_folder(path: Path) -> Path:
    """Return the path, if its folder is there: a mistyped path makes no folders; raises `InputError` if it is not."""
    with _told_of(path):
        if not path.absolute().parent.is_dir():
            problem = f"there is no folder {path.parent}; make it, or name one that exists"
            raise InputError(str(path), "", problem)
    return path


def _require_writable(path: Path, folder: Path) -> None:
    """Check that files can be written into the folder, or into its nearest existing parent."""
    while not (folder.exists() or folder.is_symlink()):
        folder = folder.parent
    if not folder.is_dir():
        raise InputError(str(path), "", f"{folder} is no folder: nothing can lie below it; name another place")
    with tempfile.TemporaryFile(dir=folder):
        pass


@contextmanager
def _told_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(str(path), "", f"can't be written ({error.strerror}); name another place") from None
