"""The text of a flag, whatever it is: a value, or a few words on what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slimsched import arguments


@pytest.mark.parametrize(
    "flag, text, value",
    [
        (arguments.duration_s, "1ms", 0.001),
        (arguments.duration_s, "1e7", 1e7),
        (arguments.duration_s, "0", 0.0),
        (lambda text: text and getattr(arguments.network_of(text), "label", None), 'a:B {"a":[1]}', 'a:B {"a": [1]}'),
        (arguments.changes_of, ["a.b=[1, 2]", "c=x"], {"a.b": [1, 2], "c": "x"}),
    ],
)
def test_flag_text_is_parsed_to_its_value(flag: Callable[[Any], Any], text: Any, value: Any) -> None:
    assert flag(text) == value


@pytest.mark.parametrize(
    "flag, text",
    [
        *((arguments.duration_s, text) for text in ("nan", "inf", "-1", "1e8", "1us", "", "9" * 5000)),
        *((arguments.path, text) for text in ("", "a\0b", "a\nb", "x" * 256, "x/" * 3000, "\udcff")),
        *((arguments.network_of, f"a:B {text}") for text in ("[" * 100_000, '{"a": NaN}', "[]", "x" * 5000)),
        *((arguments.changes_of, [text]) for text in ("", "a", "=1", "a=[", "x" * 5000)),
    ],
)
def test_flag_with_invalid_text_is_refused_briefly(flag: Callable[[Any], Any], text: Any) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        flag(text)
    assert len(str(caught.value)) < 250
