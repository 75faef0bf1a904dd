"""The command line: exit codes, one message a mistake, and standard output that holds results alone."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kit.documents import write_text
from kit.errors import WorkError
from scenarios.files.reading import load_scenario
from scenarios.runs.folder import RunFolder
from scenarios.runs.logs import LOG_FILE, write_cores
from scenarios.runs.records import write_run
from scenarios.runs.simulate import run_simulation
from scenarios.world.materials import make_world
from sim.profile import Profile
from slimsched.cli import main
from slimsched.commands import COMMANDS
from slimsched.launching import flags_of, function_of
from tests.scenarios.files import write_scenario
from tests.scenarios.folders import run_folder


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
    """At most 20 commands, and 8 of training jobs; each is in the list of all."""
    own = [name for name in COMMANDS if not name.startswith("jobs ")]
    assert (len(own), len(COMMANDS)) == (20, 28)
    assert sum(len(flags_of(command)) for command in own) <= 90
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


def test_compare_writes_the_papers_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`compare` prints a row a router and writes its JSON; a second time it says that it was done before."""
    path = write_scenario(tmp_path)
    target = tmp_path / "x.json"
    arguments = ["compare", str(path), "--out", str(tmp_path / "run"), "--json", str(target)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    document = json.loads(target.read_text())
    assert [row["router"] for row in document["rows"]] == ["random", "jsq"]
    assert document["rows"][0]["seeds"] == [0, 1]
    assert "random" in out
    assert main([*arguments, "--quiet"]) == 0
    assert json.loads(target.read_text()) == document
    assert capsys.readouterr().err == ""


def test_compare_takes_routers_and_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Flags go over the scenario's routers and seeds."""
    path = write_scenario(tmp_path)
    flags = ["--router", "sticky", "--router", "fixed:0.5,1", "--seed", "4", "--out", str(tmp_path / "r")]
    assert main(["compare", str(path), *flags, "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["router"], row["seeds"]) for row in rows] == [("sticky", [4]), ("fixed:0.5,1", [4])]


def test_synthesized_profiles_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`profile synth` writes what `profile show` reads, plots and calls a datasheet's."""
    path, plot = tmp_path / "gpu.yaml", tmp_path / "gpu.html"
    flags = ["--network", "slimresnet-tiny", "--batch-limit", "16"]
    assert main(["profile", "synth", "RTX 2080 Ti", *flags, "--out", str(path)]) == 0
    capsys.readouterr()
    assert main(["profile", "show", str(path), "--plot", str(plot), "--json", "-"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["provenance"] == "datasheet"
    assert "no error is promised" in shown.err
    assert "Figure 1" in plot.read_text(encoding="utf-8")
    assert Profile.from_yaml(path.read_text(), "x").batch_limit == 16


def test_report_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`report` writes the page again and says where."""
    run_folder(tmp_path, routers=("random",), seeds=(0,))
    shutil.rmtree(tmp_path / "profiles")  # their figures take their time
    assert main(["report", str(tmp_path), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(tmp_path / "report.html")}


def test_replay_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run's own log replays to identical commands (exit code 0); one that was changed does not (exit code 1), and
    one of a cluster with other servers is the user's mistake. The scenario has no say: it may be another one by now."""
    scenario = load_scenario(write_scenario(tmp_path))
    world = make_world(scenario, tmp_path)
    result, record = run_simulation(world, world.router("random"), "random", 0, keep_log=True)
    folder, knobs = RunFolder(tmp_path / "run"), [server.knobs for server in world.cluster.servers]
    write_text(folder / "scenario.yaml", "name: another\n")
    write_run(folder, result, record)
    assert main(["replay", str(folder.path)]) == 2
    assert "slimsched validate" in capsys.readouterr().err
    write_cores(folder, world.cluster.router, knobs[:0])
    assert main(["replay", str(folder.path)]) == 2
    assert "server:0 is not one of router" in capsys.readouterr().err
    write_cores(folder, world.cluster.router, knobs)
    assert main(["replay", str(folder.path)]) == 0
    assert "random-seed0: identical commands" in capsys.readouterr().out
    changed = next(index for index, step in enumerate(record.log) if step.commands)
    log = (*record.log[:changed], dataclasses.replace(record.log[changed], commands=()), *record.log[changed + 1 :])
    write_run(folder, result, dataclasses.replace(record, log=log))
    assert main(["replay", str(folder.path)]) == 1
    out = capsys.readouterr().out
    step = record.log[changed]
    assert f"random-seed0/{LOG_FILE}: step {changed} at {step.now_ns / 1e9:.6f} s, {step.core}, differs" in out
    event, logged, replayed = (line.split(maxsplit=1)[1] for line in out.splitlines()[1:4])
    assert event.startswith(type(step.event).__name__)
    assert logged == "[]"
    assert replayed.startswith(f"[{type(step.commands[0]).__name__}")


@pytest.mark.parametrize(
    "error, code", [(WorkError("the device failed"), 1), (OSError(28, "disk full"), 1), (KeyboardInterrupt(), 130)]
)
def test_other_failures_have_their_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Failed work is 1, an interruption 130; each with one line."""

    def fail() -> int:
        raise error

    monkeypatch.setattr("slimsched.profiles.devices", fail)
    assert main(["devices"]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_run_does_all_that_a_simulation_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`run` of a scenario without a network compares and reports; a second time every stage is skipped."""
    path = write_scenario(tmp_path)
    arguments = ["run", str(path), "--out", str(tmp_path / "run")]
    assert main(arguments) == 0
    first = capsys.readouterr()
    assert "compare: begins" in first.err
    assert "report.html" in first.out
    assert main(arguments) == 0
    second = capsys.readouterr()
    assert "compare: skipped, done before" in second.err
    told = [[line for line in each.out.splitlines() if "wall time" not in line] for each in (first, second)]
    assert told[0] == told[1]


def test_a_trained_router_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`train` writes a router that `simulate --router ppo` and its file's name both run."""
    path = write_scenario(
        tmp_path, "warmup_s: 100ms", "warmup_s: 0\ntraining: {batch: 64, minibatch: 32, horizon_s: 1}"
    )
    folder = tmp_path / "run"
    assert main(["train", str(path), "--set", "training.decisions=200", "--out", str(folder), "--quiet"]) == 0
    router = folder / "router.safetensors"
    assert router.is_file()
    capsys.readouterr()
    for name, shown in (("ppo", "ppo"), (str(router), "router")):
        assert main(["simulate", str(path), "--router", name, "--out", str(folder), "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["router"] == shown
