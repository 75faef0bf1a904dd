"""`docs/api.md` is made of the docstrings, and its examples are a program that runs and says only what it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import slimsched
from slimsched.api_page import api_page
from tests.test_docs import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
MEASURING = "slimsched.calibrate"  # a minute


def test_the_page_is_what_the_docstrings_say() -> None:
    """Written by `python -m slimsched.api_page`."""
    assert api_page() == PAGE


def test_everything_public_is_on_it() -> None:
    headings = re.findall(r"^## `(\w+)`$", PAGE, re.MULTILINE)
    assert sorted(headings) == sorted(slimsched.__all__)
    assert "Raises:" in PAGE.partition("## `load`")[2].partition("## `")[0]


def run(examples: list[str], folder: Path) -> str:
    """As a user's script; returns what it printed."""
    body = "\n".join(examples).replace("\n", "\n    ")
    script = folder / "examples.py"
    script.write_text(f"import slimsched\n\nif __name__ == '__main__':\n    {body}\n", encoding="utf-8")
    done = subprocess.run([sys.executable, script.name], cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


@pytest.mark.workers
@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    """One after another, in an empty folder; nothing but them is printed."""
    examples = [example for example in EXAMPLES if MEASURING not in example]
    assert len(examples) == len(EXAMPLES) - 1 == 7
    lines = run(examples, tmp_path).splitlines()
    assert "paper 2.0 ['fast0', 'fast1', 'slow']" in lines
    assert len(lines) == sum(example.count("print(") for example in examples) + 2  # one of them is in a loop of three
    assert (tmp_path / "ladder.rule.yaml").is_file()
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"short", "learning", "live"}


@pytest.mark.workers
@pytest.mark.release
def test_the_example_of_measuring_runs(tmp_path: Path) -> None:
    """A minute of real time: an emulated device, and what serving costs here."""
    (example,) = [example for example in EXAMPLES if MEASURING in example]
    assert "emulated-rtx-2080-ti-x4.yaml" in run([example], tmp_path)
