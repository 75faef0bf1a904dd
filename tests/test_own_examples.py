"""What `examples/` shows: each in its folder, as a user runs it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from ast import get_docstring, literal_eval, parse
from pathlib import Path

import pytest

from hw.networks.accuracy_table import load_accuracy
from kit.documents import read_json
from tests.test_docs import ROOT


def copy_of(name: str, folder: Path) -> Path:
    return Path(
        shutil.copytree(ROOT / "examples" / name, folder / name, ignore=shutil.ignore_patterns("runs", "__py*"))
    )


def said_by(folder: Path, *words: str) -> str:
    """What a command prints in an example's folder; it must end well."""
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_own_router_is_compared_with_two_that_ship(tmp_path: Path) -> None:
    """It narrows as queues grow: faster than a full-width rule in bursts, and less accurate."""
    folder = copy_of("own-router", tmp_path)
    lines = said_by(folder, "compare.py").splitlines()
    assert [line.split()[0] for line in lines] == ["jsq", "ladder", "thrifty:Thrifty"]
    jsq, _, thrifty = (literal_eval(line.split(maxsplit=1)[1]) for line in lines)
    assert thrifty["latency_mean_s"] < jsq["latency_mean_s"]
    assert thrifty["accuracy"] < jsq["accuracy"]


@pytest.mark.release
@pytest.mark.parametrize(
    ("network", "scenario", "least"),
    [
        ('own_network:Perceptron {"features": 256}', "scenario.yaml", 0.25),
        ('residual:Residual {"channels": 16}', "residual.yaml", 0.15),
    ],
)
def test_the_own_network_keeps_the_rules_and_learns(tmp_path: Path, network: str, scenario: str, least: float) -> None:
    folder, run = copy_of("own-network", tmp_path), tmp_path / "run"
    command = ("-m", "slimsched", "model")
    rules = said_by(folder, *command, "check", network).splitlines()
    assert len(rules) == 11
    assert all(line.startswith("kept ") for line in rules)
    said_by(folder, *command, "train", scenario, "--out", str(run))
    top1 = load_accuracy(run / "accuracy.json").top1()
    assert len(top1) == 27
    assert least < top1[0.25, 0.25, 0.25] < top1[1.0, 1.0, 1.0] < 1.0  # by chance it would be 0.125


def shown_in(file: Path) -> list[str]:
    return re.findall("^    (.*)$", get_docstring(parse(file.read_text(encoding="utf-8"))) or "", re.MULTILINE)


def wordless(line: str) -> list[str]:
    return re.findall(r"[^\W\d]\w*", line)


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"(?<![\w.-])\d+(?:\.\d+)?", line)]


def test_the_trace_is_what_its_maker_made_and_is_compared(tmp_path: Path) -> None:
    """The router that narrows gets through the rush faster than the one that does not."""
    folder = copy_of("trace", tmp_path)
    made = (folder / "requests.csv").read_bytes()
    (folder / "requests.csv").unlink()
    said_by(folder, "make_requests.py")
    assert (folder / "requests.csv").read_bytes() == made
    said_by(folder, "-m", "slimsched", "compare", "scenario.yaml", "--engine", "compiled", "--json", "found.json", "-q")
    rows = {row["router"]: row for row in read_json(folder / "found.json")["rows"]}
    assert rows["ladder"]["latency_s"]["mean"]["mean"] < 0.5 * rows["jsq"]["latency_s"]["mean"]["mean"]


@pytest.mark.slow
@pytest.mark.release
def test_a_sixth_gpu_of_ones_own_helps(tmp_path: Path) -> None:
    folder = copy_of("five-gpus", tmp_path)
    sheet = ("rtx-4070.sheet.yaml", "--out", "rtx-4070.yaml")
    said_by(folder, "-m", "slimsched", "profile", "synth", *sheet)
    lines = said_by(folder, "five_or_six.py").splitlines()
    assert list(map(wordless, lines)) == list(map(wordless, shown_in(folder / "five_or_six.py")))
    five_jsq, five_ladder, six_jsq, six_ladder = (numbers(line)[0] for line in lines)
    assert six_ladder < five_ladder < six_jsq < five_jsq


@pytest.mark.slow
@pytest.mark.release
def test_sizes_of_a_cluster_beside_the_bound(tmp_path: Path) -> None:
    folder = copy_of("cluster-sizes", tmp_path)
    lines = said_by(folder, "sizes.py").splitlines()
    assert list(map(wordless, lines)) == list(map(wordless, shown_in(folder / "sizes.py")))
    rows = [(line.split()[1], numbers(line)) for line in lines[1:]]
    overloaded = [row for router, row in rows if len(row) == 2]
    assert [count for count, _ in overloaded] == [1, 2]
    assert all(most_img_s < 800 for _, most_img_s in overloaded)
    served = [row for router, row in rows if len(row) > 2]
    assert len(served) == 8
    for _, mean_s, least_s, p99_s, _, joules, least_joules in served:
        assert least_s < mean_s < p99_s
        assert least_joules < joules


@pytest.mark.slow
@pytest.mark.release
def test_a_table_and_a_plot_are_made(tmp_path: Path) -> None:
    folder = copy_of("pandas-and-plots", tmp_path)
    lines = said_by(folder, "loads.py").splitlines()
    assert list(map(wordless, lines)) == list(map(wordless, shown_in(folder / "loads.py")))
    of_fixed, of_ladder = lines[2:7], lines[7:12]
    assert numbers(of_fixed[-1])[1] > 5 * numbers(of_ladder[-1])[1]  # beyond what the fixed tuple carries
    assert (folder / "loads.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.release
def test_the_own_network_is_served(tmp_path: Path) -> None:
    folder, run = copy_of("own-network", tmp_path), tmp_path / "run"
    said_by(folder, "-m", "slimsched", "run", "scenario.yaml", "--out", str(run))
    pairs = read_json(run / "validation.json")["pairs"]
    assert [pair["router"] for pair in pairs] == ["sticky", "ladder"]
    assert all(pair["executors"]["images"]["completed"] > 100 for pair in pairs)
