"""The text of a flag, whatever it is: a value, or one line that says what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slimsched import arguments
from slimsched.cli import main


@pytest.mark.parametrize(
    "flag, text, value",
    [
        (arguments.duration_s, "1ms", 0.001),
        (arguments.duration_s, "1e7", 1e7),
        (arguments.duration_s, "0", 0.0),
        (arguments.options_of, '{"a": [1]}', {"a": [1]}),
        (arguments.changes_of, ["a.b=[1, 2]", "c=x"], {"a.b": [1, 2], "c": "x"}),
    ],
)
def test_what_is_taken(flag: Callable[[Any], Any], text: Any, value: Any) -> None:
    assert flag(text) == value


@pytest.mark.parametrize(
    "flag, text",
    [
        *((arguments.duration_s, text) for text in ("nan", "inf", "-1", "1e8", "1us", "", "9" * 5000)),
        *((arguments.path, text) for text in ("", "a\0b", "a\nb", "x" * 256, "x/" * 3000, "\udcff")),
        *((arguments.options_of, text) for text in ("[" * 100_000, '{"a": NaN}', "[]", "x" * 5000)),
        *((arguments.changes_of, [text]) for text in ("", "a", "=1", "a=[", "x" * 5000)),
    ],
)
def test_what_is_refused(flag: Callable[[Any], Any], text: Any) -> None:
    """In words that fit into a line."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        flag(text)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "words, flag",
    [
        (["bound", "paper", "--window", "0"], "--window"),
        (["compare", "paper", "--jobs", "100000"], "--jobs"),
        (["profile", "check", "x.yaml", "--model", "m", "--points", "1000000000"], "--points"),
        (["calibrate", "--model", "m", "--batch-limit", "1000000000"], "--batch-limit"),
        (["simulate", "a\0b"], "SCENARIO"),
        (["model", "check", "digits", "--options", "[" * 100_000], "--options"),
    ],
)
def test_a_flag_is_one_line(words: list[str], flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert flag in error
