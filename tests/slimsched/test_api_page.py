"""`docs/api.md` shows every public name, and the examples of the docstrings are a program that shows what it prints."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import scenarios.cluster_gym
import slimsched
from tests.test_docs import ROOT

SHOWN = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
MEASURING = ("slimsched.calibrate(", "slimsched.validate(")  # about a minute each
LONG = (*MEASURING, "slimsched.run(")


def _examples() -> list[str]:
    """In the page's order: the environment's, then those of the functions."""
    shown = [getattr(slimsched, name.partition(".")[2]) for name in SHOWN if name.startswith("slimsched.")]
    docs = [inspect.getdoc(each) or "" for each in (scenarios.cluster_gym, *shown)]
    found = [re.findall(r"^ +```python\n(.*?)^ +```$", doc, re.DOTALL | re.MULTILINE) for doc in docs]
    return [inspect.cleandoc("\n" + example) for examples in found for example in examples]


def test_api_page_shows_every_public_name() -> None:
    assert sorted(SHOWN) == sorted(
        ["slimsched", "scenarios.cluster_gym", *(f"slimsched.{name}" for name in slimsched.__all__)]
    )


def run(examples: list[str], folder: Path) -> str:
    body = "\n".join(examples).replace("\n", "\n    ")
    script = folder / "examples.py"
    script.write_text(f"import slimsched\n\nif __name__ == '__main__':\n    {body}\n", encoding="utf-8")
    done = subprocess.run([sys.executable, script.name], cwd=folder, capture_output=True, text=True, timeout=280)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


@pytest.mark.workers
@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    examples = [example for example in _examples() if not any(each in example for each in LONG)]
    assert len(examples) == len(_examples()) - 3 == 10
    lines = run(examples, tmp_path).splitlines()
    assert "paper 2.0 ['fast0', 'fast1', 'slow']" in lines
    assert len(lines) == sum(example.count("print(") for example in examples) + 2  # one of them is in a loop of three
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"short", "learning", "suite"}


@pytest.mark.release
def test_the_examples_of_measuring_run(tmp_path: Path) -> None:
    """In real time: a device is calibrated, and real servers are held against their simulation."""
    examples = [example for example in _examples() if any(each in example for each in MEASURING)]
    validated, calibrated = run(examples, tmp_path).splitlines()
    assert "'throughput': " in validated
    assert "cpu0.yaml" in calibrated
