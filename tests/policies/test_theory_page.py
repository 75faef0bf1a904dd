"""`docs/theory-of-operation.md` is held to the code: it knows every event and command, and the tests that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from policies.vocabulary import RouterCommand, RouterEvent, ServerCommand, ServerEvent

PAGE = Path("docs/theory-of-operation.md").read_text(encoding="utf-8")
ROUTER, SCHEDULER = PAGE.split("## The router's core")[1].split("## The greedy scheduler")


@pytest.mark.parametrize(
    ("section", "words"), [(ROUTER, RouterEvent | RouterCommand), (SCHEDULER, ServerEvent | ServerCommand)]
)
def test_each_cores_events_and_commands_stand_in_its_section(section: str, words: object) -> None:
    """Each in its table: what a core takes in or answers and the page does not name is a rule that nobody can read."""
    tabled = " ".join(line for line in section.splitlines() if line.startswith("| `"))
    assert [word.__name__ for word in get_args(words) if f"`{word.__name__}`" not in tabled] == []


def test_every_test_that_it_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert named
    missing = [(file, name) for file, name in named if f"def {name}(" not in Path(file).read_text(encoding="utf-8")]
    assert missing == []
