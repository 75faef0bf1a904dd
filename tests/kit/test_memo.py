"""What an interruption leaves is gone on from, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.documents import Memo, rows_in


@pytest.mark.parametrize(
    ("damage", "known"),
    [
        (lambda text: text, [[1.5], {"a": None}]),
        (lambda text: text[:-3], [[1.5]]),
        (lambda text: text.replace(b"[1.5]", b"[1.5"), []),
        (lambda text: b"", []),
        (lambda text: b"\xff" + text, []),
    ],
)
def test_rows_are_known_up_to_the_first_that_is_torn(damage: object, known: list[object], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first = Memo(path, "abc")
    first.add([1.5])
    first.add({"a": None})
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    second = Memo(path, "abc")
    assert second.rows == known
    second.add("more")
    assert Memo(path, "abc").rows == rows_in(path) == [*known, "more"]
    assert Memo(path, "def").rows == []
