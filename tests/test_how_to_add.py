"""docs/how-to-add.md is held to the source: the files that it names for an example are those that mention it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from policies.router_names import make_router
from slimsched.commands import COMMANDS
from tests.policies.cluster_views import choice_of, context, server, view
from tests.test_architecture import ROOT, sources

PAGE = ROOT / "docs" / "how-to-add.md"
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Section:
    """One kind of thing to add.

    Attributes:
        names: what the example is called in the source; a word that contains one mentions it.
        to_touch: the source files to touch.
        elsewhere: those that mention the example for a reason of its own.
    """

    title: str
    text: str

    @property
    def names(self) -> list[str]:
        return re.findall(r"`([^`]+)`", re.findall(r"^In the source: (.*)$", self.text, re.MULTILINE)[0])

    @property
    def to_touch(self) -> list[str]:
        return self._rows("source file | what goes into it")

    @property
    def elsewhere(self) -> list[str]:
        return self._rows("the example also stands in | because")

    def _rows(self, head: str) -> list[str]:
        table = re.search(rf"^\| {re.escape(head)} \|\n\|---\|---\|\n((?:\|.*\n)+)", self.text, re.MULTILINE)
        return re.findall(r"^\| `([^`]+)` \|", table[1], re.MULTILINE) if table else []


def sections() -> list[Section]:
    _, *parts = PAGE.read_text(encoding="utf-8").split("\n## ")
    return [Section(*part.split("\n", 1)) for part in parts]


KINDS = [section for section in sections() if section.title != "Of your own"]


@cache
def words() -> dict[str, frozenset[str]]:
    """Of each source file its identifiers and texts, without comments and docstrings."""
    return {name: frozenset(_words(tree)) for name, tree in sources().items()}


def _words(tree: ast.Module) -> Iterator[str]:
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings, of attributes too
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.keyword(arg=str(word)):
                yield word
            case ast.ClassDef(name=word) | ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word):
                yield word
            case ast.alias(name=word, asname=other):
                yield from (word, other or word)
            case ast.ImportFrom(module=str(word)):
                yield word
            case ast.Constant(value=str(word)) if id(node) not in prose:
                yield word


def mentioning(names: list[str]) -> list[str]:
    return [file for file, found in words().items() if any(name in word for name in names for word in found)]


@pytest.mark.parametrize("section", KINDS, ids=lambda section: section.title)
def test_the_files_are_those_that_mention_the_example(section: Section) -> None:
    assert section.to_touch
    found, named = set(mentioning(section.names)), {*section.to_touch, *section.elsewhere}
    assert (found - named, named - found) == (set(), set()), "not on the page, and not in the source"


def test_every_name_of_an_example_is_one() -> None:
    assert [name for section in KINDS for name in section.names if not mentioning([name])] == []


def test_the_head_of_the_page_counts_the_files() -> None:
    rows = re.findall(
        r"^\| .*?\[.*?\]\(#(.*?)\).* \| `.*?` \| (\d+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    counted = {section.title.lower().replace(" ", "-"): len(section.to_touch) for section in sections()}
    assert {anchor: int(count) for anchor, count in rows} == counted


def test_every_file_and_command_of_the_page_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    paths = set(re.findall(r"`?\b((?:tests|scenarios|policies|sim|hw|calibrate)/[\w/.-]+\.(?:py|yaml))", text))
    assert [path for path in sorted(paths) if not (ROOT / path).is_file()] == []
    given = re.findall(r"slimsched ((?:profile |model |jobs )?\w+)", text)
    assert given
    assert set(given) <= {*COMMANDS}


def test_the_router_of_the_page_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = next(section.text for section in sections() if section.title == "Of your own")
    block = re.search(r"In `my_rules\.py`:\n\n((?:    .*\n|\n)+)", text)
    assert block is not None
    (tmp_path / "my_rules.py").write_text(re.sub(r"^    ", "", block[1], flags=re.MULTILINE))
    monkeypatch.syspath_prepend(tmp_path)
    router = make_router("my_rules:FewestMicroBatches", context())
    monkeypatch.delitem(sys.modules, "my_rules")
    seen = view(server(3), server(0, valid=False), server(0, widths=(False, True, True, True)))
    choice = choice_of(router, seen, np.random.default_rng(0))
    assert (choice.server, choice.width) == (2, 0.5)
