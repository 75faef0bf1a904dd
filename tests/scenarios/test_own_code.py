"""`--no-own-code`: before anything of a user's class runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from hw.networks.network_files import save_model
from kit.plugins import REFUSING
from scenarios.job import main_job
from slimsched.cli import main
from tests import tiny
from tests.scenarios.files import write_scenario
from tests.scenarios.own_network import DigitsPerceptron

RUNS = "from pathlib import Path\nPath('ran').touch()\n"
NETWORK = """
schema: slimsched.scenario/1
name: own
model: {network: 'refused_net:Net', dataset: digits}
cluster: {servers: [{name: cpu, device: {cores: [0]}}]}
workload: {kind: poisson, rate_img_s: 30}
duration_s: 3
warmup_s: 0.5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scenarios, and classes that leave a file when they are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("refused_net", "refused_router", "refused_set"):
        (tmp_path / f"{name}.py").write_text(f"{RUNS}class Net:\n    pass\n")
    write_scenario(tmp_path)
    (tmp_path / "network.yaml").write_text(NETWORK)
    of_a_set = NETWORK.replace("dataset: digits", "dataset: 'refused_set:Net'").replace("'refused_net:Net'", "digits")
    (tmp_path / "set.yaml").write_text(of_a_set)
    (tmp_path / "measured.yaml").write_text(tiny.measured("m").to_yaml())
    named = (tmp_path / "tiny.yaml").read_text().replace("[random, jsq]", "[random, 'refused_router:Net']")
    (tmp_path / "router.yaml").write_text(named)
    torch.manual_seed(0)
    save_model(tmp_path / "net.safetensors", DigitsPerceptron(8), "refused_net:Net", {})
    return tmp_path


@pytest.mark.parametrize("command", ["calibrate", "profile check measured.yaml"])
def test_a_checkpoints_own_network_is_refused(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the setting for all commands; other commands stand in tests/refusals/own_code.yaml."""
    monkeypatch.setenv(REFUSING, "1")
    network = ["--model", "net.safetensors", "--network", "refused_net:Net", "--quiet"]
    assert main([*command.split(), *network]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'refused_net:Net' is custom code (refused_net.py: Net), which --no-own-code" in line
    assert not (folder / "ran").exists()


def test_a_long_run_refuses_it_as_it_begins(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_job, "make_model", lambda _: pytest.fail("training began"))
    named = (folder / "network.yaml").read_text().replace("'refused_net:Net'", "digits")
    (folder / "network.yaml").write_text(f"{named}validate: {{routers: ['refused_router:Net']}}\n")
    assert main(["run", "network.yaml", "--no-own-code"]) == 2
    assert "own: routers: 'refused_router:Net' is custom code (refused_router.py: Net)" in capsys.readouterr().err


def test_no_own_code_flag_allows_a_scenario_that_needs_no_own_code(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scenario with custom classes is simulated with a built-in router, and the classes aren't imported."""
    assert main(["simulate", "router.yaml", "--router", "jsq", "--no-own-code"]) == 0
    assert "own code" not in capsys.readouterr().err
    assert not (folder / "ran").exists()


def test_own_code_is_announced_before_its_import(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "refused_router.py").write_text("raise SystemExit(0)\n")
    assert main(["simulate", "tiny.yaml", "--router", "refused_router:Net"]) == 2
    told, wrong = capsys.readouterr().err.splitlines()
    assert told == "own code: refused_router.py: Net (tiny: router) runs with your rights"
    assert (
        wrong
        == "slimsched: tiny: router: 'refused_router:Net' could not be made: SystemExit: 0 (refused_router.py, line 1)"
    )
