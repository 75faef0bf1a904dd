"""Files of any bytes: what can't be read is one message; a pipe is not waited for, and nothing endless is read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.documents import read_json, read_text
from kit.errors import InputError
from kit.files import read_bytes

MAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "no such file"),
    "a folder": (lambda path: path.mkdir(), "this is a folder"),
    "a pipe": (os.mkfifo, "a device or a pipe"),
    "an endless device": (lambda path: path.symlink_to("/dev/zero"), "a device or a pipe"),
    "a loop": (lambda path: path.symlink_to(path), "can't be read"),
    "not UTF-8": (lambda path: path.write_bytes(b"a: \xff"), "not UTF-8 text (byte 3)"),
}


@pytest.mark.parametrize("make, problem", MAKES.values(), ids=MAKES)
def test_path_that_is_not_a_text_file_is_refused_with_its_problem(
    make: Callable[[Path], object], problem: str, tmp_path: Path
) -> None:
    """The error names the path, or the file and the key that refer to the path."""
    path = tmp_path / "x.yaml"
    make(path)
    with pytest.raises(InputError) as caught:
        read_text(path)
    assert caught.value.source == str(path)
    assert problem in caught.value.problem
    with pytest.raises(InputError) as caught:
        read_text(path, "scenario.yaml", "model.accuracy")
    assert (caught.value.source, caught.value.key) == ("scenario.yaml", "model.accuracy")
    assert caught.value.problem.startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "a.**", "a.["])
def test_names_of_any_bytes(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_text(tmp_path / name)


def test_the_size_is_asked_before_reading(tmp_path: Path) -> None:
    """A sparse file of a terabyte takes no memory."""
    path = tmp_path / "x.yaml"
    with path.open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(InputError, match=r"has 1,000,000 MB; expected at most 256"):
        read_bytes(path)


@pytest.mark.parametrize(
    "text, problem",
    [
        ("[" * 200_000, "no readable JSON"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ("[-Infinity]", "-Infinity is not a JSON number"),
        ("9" * 5000, "no readable JSON"),
        ('["\\ud800"]', "surrogates not allowed"),
        ("", "no readable JSON"),
        ("{'a': 1}", "no readable JSON"),
    ],
)
def test_text_that_is_not_json_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_json(path)
    assert caught.value.source == str(path)
    assert problem in caught.value.problem


def test_json_of_whole_characters(tmp_path: Path) -> None:
    """An escaped pair is one character."""
    path = tmp_path / "x.json"
    path.write_text(json.dumps(["\N{GRINNING FACE}"]))
    assert read_json(path) == ["\N{GRINNING FACE}"]
