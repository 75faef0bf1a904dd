"""README is short, and its commands are commands."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from slimsched.cli import command_of

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def code_of(page: str) -> list[str]:
    return [line.strip() for line in page.splitlines() if line.startswith("    ")]


COMMANDS = [line for line in code_of(README) if line.startswith("slimsched ")]


def test_readme_has_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


def test_readme_code_blocks_are_commands_make_targets_or_python() -> None:
    """Make targets exist, and the Python can be parsed."""
    rest = [line for line in code_of(README) if line not in COMMANDS]
    targets = [line.split("#")[0].split() for line in rest if line.startswith("make ")]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets
    assert [words for words in targets if not re.search(rf"^{words[1]}:", makefile, re.MULTILINE)] == []
    python = "\n".join(line for line in rest if not line.startswith("make "))
    assert len(ast.parse(python).body) == 3


def test_readme_inline_commands_exist() -> None:
    named = re.findall(r"`(?:slimsched ([a-z]+)|(jobs [a-z-]+))`", README)
    assert len(named) > 3
    for words in map("".join, named):
        assert words == "jobs" or command_of(words.split())


def test_the_glossary_is_short() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert 0 < len(rows) <= 21
    assert "(docs/glossary.md)" in README


def test_readme_first_command_comes_within_150_words() -> None:
    assert len(README[: README.index("    make quickstart")].split()) <= 150
