"""README is short and easy to read, and its commands are commands. The other pages are easy to read, too."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from benchmarks.study.terminal_picture import PAGE, PICTURE, first_block, picture
from slimsched.cli import command_of
from tests.reading import prose, read, syllables
from tests.typed import typed

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MADE_BEFORE = {  # by the commands that stand before those that name them, or by the user
    "profiles/cpu0.yaml",
    "jobs.log",
    "jobs.jobtrace.parquet",
    "ours.yaml",
}
GRADE = 10.0
PAGE_GRADES = {"Flesch-Kincaid": 7.5, "Gunning fog": 10.0}  # the most of a page of docs/
HARDER = {"engines.md": {"Flesch-Kincaid": 9.6, "Gunning fog": 12.0}}  # its sentences are still long
MIN_SENTENCES = 20  # of a page that is graded: in fewer one name of a module changes the grade


def code_of(page: str) -> list[str]:
    """The lines of its blocks."""
    return [line.strip() for line in page.splitlines() if line.startswith("    ")]


COMMANDS = [line for line in code_of(README) if line.startswith("slimsched ")]


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_its_commands_are_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real command line takes them, where what they read is there."""
    monkeypatch.chdir(tmp_path)
    for name in MADE_BEFORE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for command in COMMANDS:
        words = shlex.split(command, comments=True)[1:]
        assert " ".join(words).startswith(typed(words))


def test_all_its_blocks_are_looked_at() -> None:
    """Commands of ours, targets of `make` that are there, and Python that can be parsed."""
    rest = [line for line in code_of(README) if line not in COMMANDS]
    targets = [line.split("#")[0].split() for line in rest if line.startswith("make ")]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets
    assert [words for words in targets if not re.search(rf"^{words[1]}:", makefile, re.MULTILINE)] == []
    python = "\n".join(line for line in rest if not line.startswith("make "))
    assert len(ast.parse(python).body) == 3


def test_what_it_names_in_passing_is_a_command() -> None:
    named = re.findall(r"`(?:slimsched ([a-z]+)|(jobs [a-z-]+))`", README)
    assert len(named) > 3
    for words in map("".join, named):
        assert words == "jobs" or command_of(words.split())


def test_it_is_easy_to_read() -> None:
    """By each of the usual measures, not only by the one that is kindest."""
    grades = read(README).grades
    assert {name: grade for name, grade in grades.items() if grade > GRADE} == {}


def test_the_other_pages_are_easy_to_read() -> None:
    """`python -m tests.reading docs/PAGE` tells the grades; shorter sentences and commoner words mend them."""
    hard: dict[tuple[str, str], float] = {}
    graded = set()
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name, text = path.relative_to(ROOT / "docs").as_posix(), path.read_text(encoding="utf-8")
        if prose(text) and (found := read(text)).sentences >= MIN_SENTENCES:
            graded.add(name)
            grades, limits = found.grades, HARDER.get(name, PAGE_GRADES)
            hard |= {(name, each): grades[each] for each, limit in limits.items() if grades[each] > limit}
    assert hard == {}
    assert len(graded) >= 25
    assert graded >= HARDER.keys()


def test_the_measures_measure() -> None:
    """Known words, a known sentence, and what is no prose."""
    told = ("cat", "people", "latency", "simulation", "router", "measured", "devices", "table", "simulated", "accuracy")
    assert [syllables(word) for word in told] == [1, 2, 3, 4, 2, 2, 3, 2, 4, 4]
    page = "# A head\n\nOne two\nthree `four`. Five [six](seven.md)!\n\n    code\n\n| a | b |\n\n- An item\n  goes on\n"
    assert prose(page) == ["One two three four. Five six!", "An item goes on"]
    easy, hard = (
        read("The cat sat on the mat. It was red."),
        read("Institutional considerations necessitate evaluation."),
    )
    assert easy.words == 9
    assert easy.sentences == 2
    assert easy.flesch_kincaid == pytest.approx(0.39 * 4.5 + 11.8 * 1 - 15.59)
    assert easy.gunning_fog == pytest.approx(0.4 * 4.5)
    assert all(hard.grades[name] > GRADE > easy.grades[name] for name in hard.grades)
    with pytest.raises(ValueError, match="no prose"):
        read("# A head\n\n| a | b |\n\n    code\n")


def test_the_glossary_is_short() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert 0 < len(rows) <= 15
    assert "(docs/glossary.md)" in README


def test_its_picture_is_of_the_output_in_the_quickstart() -> None:
    """`python -m benchmarks.study.terminal_picture` makes it."""
    lines = first_block((ROOT / PAGE).read_text(encoding="utf-8"))
    assert lines[0].startswith("$ slimsched run paper-live-quick")
    assert (ROOT / PICTURE).read_text(encoding="utf-8") == picture(lines)
    assert f"]({PICTURE})" in README
