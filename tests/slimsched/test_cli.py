"""The command line: exit codes, one message a mistake, and standard output that holds results alone."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.runs.folder import RunFolder
from sim.device_profile import Profile
from slimsched.cli import main
from slimsched.commands import COMMANDS
from slimsched.launching import flags_of, function_of
from tests.scenarios.files import write_scenario
from tests.scenarios.folders import leave_undrawn, run_folder


def test_help_is_fast_to_import() -> None:
    """Asking for help opens none of the heavy rooms."""
    heavy = ("torch", "matplotlib", "scipy", "pydantic", "numba")
    code = f"import sys, slimsched.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_its_function(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The list of all has the first line of its docstring; its help explains each argument."""
    assert f"{function_of(command).__doc__}\n".startswith(f"{COMMANDS[command][1]}\n")
    assert main([*command.split(), "--help"]) == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"Usage: slimsched {command}" in told
    for name in inspect.signature(function_of(command)).parameters:
        assert re.search(rf"^ +{name}: ", function_of(command).__doc__ or "", re.MULTILINE), name


def test_the_surface_is_small(capsys: pytest.CaptureFixture[str]) -> None:
    """At most 26 commands, and 9 of training jobs; each is in the list of all."""
    own = [name for name in COMMANDS if not name.startswith("jobs ")]
    assert (len(own), len(COMMANDS)) == (26, 35)
    assert sum(len(flags_of(command)) for command in own) <= 110
    for words in (["--help"], ["-h"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert [name for name in own if f"  {name} " not in out] == []
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("slimsched ")


def test_simulate_is_deterministic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same scenario, router and seed give the same JSON but for wall_s, and standard output holds only it."""
    path = write_scenario(tmp_path)
    found = []
    for _ in range(2):
        assert main(["simulate", str(path), "--router", "jsq", "--seed", "5", "--json", "-"]) == 0
        streams = capsys.readouterr()
        found.append({**json.loads(streams.out), "wall_s": 0})
    assert "accuracy" in streams.err
    assert found[0] == found[1]
    assert (found[0]["schema"], found[0]["router"], found[0]["seed"]) == ("slimsched.result/1", "jsq", 5)
    assert found[0]["images"]["completed"] > 100


def test_synthesized_profiles_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`profile synth` writes what `profile show` reads, plots and calls a datasheet's."""
    path, plot = tmp_path / "gpu.yaml", tmp_path / "gpu.html"
    flags = ["--network", "slimresnet-tiny"]
    assert main(["profile", "synth", "RTX 2080 Ti", *flags, "--out", str(path)]) == 0
    capsys.readouterr()
    assert main(["profile", "show", str(path), "--plot", str(plot), "--json", "-"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["provenance"] == "datasheet"
    assert "no error is promised" in shown.err
    assert "Figure 1" in plot.read_text(encoding="utf-8")
    assert Profile.from_yaml(path.read_text(), "x").batch_limit == 128


def test_report_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`report` writes the page again and shows where."""
    leave_undrawn(monkeypatch)
    run_folder(tmp_path, routers=("random",), seeds=(0,), profiles=())
    assert main(["report", str(tmp_path), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == {"reports": [str(tmp_path / "report.html")]}


def test_the_report_is_drawn_after_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Charts take as long as some runs: nobody waits for them."""
    shown: list[str] = []

    def build(folder: RunFolder) -> Path:
        shown.append(capsys.readouterr().out)
        return folder / "report.html"

    monkeypatch.setattr("scenarios.show.report.build_report", build)
    assert main(["run", str(write_scenario(tmp_path)), "--out", str(tmp_path / "run")]) == 0
    (before,) = shown
    assert "\n  Run " in before
    assert capsys.readouterr().out == f"report: {tmp_path / 'run' / 'report.html'}\n"


def test_run_does_all_that_a_simulation_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`run` of a scenario without a network compares and reports; a second time every stage is skipped."""
    leave_undrawn(monkeypatch)
    path = write_scenario(tmp_path)
    arguments = ["run", str(path), "--out", str(tmp_path / "run")]
    assert main(arguments) == 0
    first = capsys.readouterr()
    assert "compare: begins" in first.err
    assert "\n  Run " in first.out
    assert "report.html" in first.out
    assert main(arguments) == 0
    second = capsys.readouterr()
    assert "compare: skipped, done before" in second.err
    told = [[line for line in each.out.splitlines() if "wall time" not in line] for each in (first, second)]
    assert told[0] == told[1]
