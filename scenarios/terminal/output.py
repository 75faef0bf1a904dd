"""Where words go: results, remarks, and the files that flags name."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from policies.errors import InputError
from scenarios.files.documents import json_text, write_json

Say = Callable[[str], None]


class Output:
    """Where words go: results to standard output (unless that is kept for JSON), remarks to standard error."""

    def __init__(self, arguments: Namespace) -> None:
        self.quiet: bool = arguments.quiet
        self._json: str | None = arguments.json
        if self._json and self._json != "-" and (Path(self._json).is_dir() or not Path(self._json).parent.is_dir()):
            raise InputError(
                "--json", "", f"{self._json}: no file can be written there; name one in a folder that exists"
            )

    def remark(self, text: str) -> None:
        """Something about the work."""
        if not self.quiet:
            sys.stderr.write(text + "\n")

    def result(self, text: str, document: Any) -> int:
        """The result for people, and as a document where one was asked for; returns exit code 0."""
        if self._json == "-":
            sys.stdout.write(json_text(document))
            self.remark(text)
            return 0
        if self._json:
            write_json(Path(self._json), document)
        sys.stdout.write(text + "\n")
        return 0


def output_file(flag: str, path: Path) -> Path:
    """A file to write, named by a flag; raises `InputError` for a folder."""
    if path.is_dir():
        raise InputError(flag, "", f"{path}: this is a folder; name a file")
    return path


def picture_file(arguments: Namespace) -> Path | None:
    """Where a picture is to be written, if one is asked for; raises `InputError` for a form that is not drawn."""
    path: Path | None = arguments.picture
    if path is not None and path.suffix not in (".png", ".svg"):
        raise InputError("--picture", "", f"{path}: name a .png or .svg file")
    return None if path is None else output_file("--picture", path)


def writable_folder(flag: str, path: Path) -> Path:
    """A folder to write into, made where there is none; raises `InputError` where that can't be."""
    import tempfile

    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(flag, "", f"{path}: can't be written to ({error.strerror}); name another folder") from None
    return path
