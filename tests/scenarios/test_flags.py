"""The text of a flag, whatever it is: a value, or one line that says what is allowed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from scenarios.cli import main
from scenarios.terminal import flags


@pytest.mark.parametrize(
    "flag, text, value",
    [
        (flags.duration_s, "1ms", 0.001),
        (flags.duration_s, "1e7", 1e7),
        (flags.duration_or_none_s, "0", 0.0),
        (flags.whole, "0", 0),
        (flags.positive, "1000000000000000", 10**15),
        (flags.up_to(24), "24", 24),
        (flags.share, "1", 1.0),
        (flags.options, '{"a": [1]}', {"a": [1]}),
    ],
)
def test_what_is_taken(flag: Callable[[str], Any], text: str, value: Any) -> None:
    assert flag(text) == value


@pytest.mark.parametrize(
    "flag, text",
    [
        *((flags.duration_s, text) for text in ("0", "nan", "inf", "-1", "1e8", "1us", "", "9" * 5000)),
        *((flags.duration_or_none_s, text) for text in ("nan", "-0.1", "inf")),
        *((flags.whole, text) for text in ("-1", "1.5", "1e3", "٣", "9" * 5000, "1000000000000001", "")),
        *((flags.up_to(24), text) for text in ("0", "25")),
        *((flags.share, text) for text in ("nan", "inf", "1.1", "x" * 5000)),
        *((flags.path, text) for text in ("", "a\0b", "a\nb", "x" * 256, "x/" * 3000, "\udcff")),
        *((flags.options, text) for text in ("[" * 100_000, '{"a": NaN}', "[]", "x" * 5000)),
    ],
)
def test_what_is_refused(flag: Callable[[str], Any], text: str) -> None:
    """In words that fit into a line."""
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        flag(text)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "words",
    [
        ["bound", "x.yaml", "--window", "0"],
        ["compare", "x.yaml", "--jobs", "100000"],
        ["profile", "check", "x.yaml", "--model", "m", "--points", "1000000000"],
        ["calibrate", "--model", "m", "--batch-limit", "1000000000"],
        ["simulate", "a\0b"],
        ["model", "check", "digits", "--options", "[" * 100_000],
    ],
)
def test_a_flag_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "--help" in error
