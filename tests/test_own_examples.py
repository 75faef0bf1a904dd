"""A router, a network and images of one's own, as `examples/` shows them: each in its folder, as a user runs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest

from hw.accuracy import load_accuracy
from scenarios.files.documents import read_json
from tests.test_docs import ROOT


def copy_of(name: str, folder: Path) -> Path:
    """An example where its run folder is in nobody's way."""
    return Path(
        shutil.copytree(ROOT / "examples" / name, folder / name, ignore=shutil.ignore_patterns("runs", "__py*"))
    )


def said_by(folder: Path, *words: str) -> str:
    """What a command prints in an example's folder; it must end well."""
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_own_router_is_compared_with_two_that_ship(tmp_path: Path) -> None:
    """It narrows as queues grow: quicker than a full-width rule in bursts, and less accurate."""
    folder = copy_of("own-router", tmp_path)
    lines = said_by(folder, "compare.py").splitlines()
    assert [line.split()[0] for line in lines] == ["jsq", "ladder", "thrifty:Thrifty"]
    jsq, _, thrifty = (literal_eval(line.split(maxsplit=1)[1]) for line in lines)
    assert thrifty["latency_mean_s"] < jsq["latency_mean_s"]
    assert thrifty["accuracy"] < jsq["accuracy"]


def test_the_own_network_keeps_the_rules_and_learns(tmp_path: Path) -> None:
    """Up to its accuracy; the whole job is the release's."""
    folder, run = copy_of("own-network", tmp_path), tmp_path / "run"
    options = '{"features": 256}'
    command = ("-m", "scenarios.cli", "model")
    rules = said_by(folder, *command, "check", "own_network:Perceptron", "--options", options).splitlines()
    assert len(rules) == 10
    assert all(line.startswith("kept ") for line in rules)
    for step in ("train", "evaluate"):
        said_by(folder, *command, step, "scenario.yaml", "--out", str(run))
    top1 = load_accuracy(run / "accuracy.json").top1()
    assert len(top1) == 27
    assert 0.25 < top1[0.25, 0.25, 0.25] < top1[1.0, 1.0, 1.0] < 1.0  # by chance it would be 0.125


@pytest.mark.workers
@pytest.mark.release
def test_the_own_network_is_served(tmp_path: Path) -> None:
    """The whole job: a minute and more of real time."""
    folder, run = copy_of("own-network", tmp_path), tmp_path / "run"
    said_by(folder, "-m", "scenarios.cli", "run", "scenario.yaml", "--out", str(run))
    pairs = read_json(run / "validation.json")["pairs"]
    assert [pair["router"] for pair in pairs] == ["sticky", "ladder"]
    assert all(pair["hardware"]["images"]["completed"] > 100 for pair in pairs)
