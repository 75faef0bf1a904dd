"""`slimsched calibrate`: what is wrong shows before anything is measured, and what was measured is never lost."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch

from hw.networks.registry import save_model
from hw.networks.slimresnet import SlimResNet, SlimResNetConfig
from scenarios.executors.announce import read_log
from scenarios.files.reading import read_profile
from slimsched.cli import main

pytestmark = pytest.mark.workers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of two segments and two widths, random weights."""
    torch.manual_seed(0)
    config = SlimResNetConfig(1, 8, 10, 8, 1, 2, widths=(0.5, 1.0), strides=(1, 2))
    path = tmp_path_factory.mktemp("model") / "two.safetensors"
    save_model(path, SlimResNet(config), "two", {})
    return path


@pytest.mark.parametrize(
    "flags, wanted",
    [
        (
            ["--out", "in_the_way/profiles"],
            ["--out", "in_the_way/profiles", "in_the_way is no folder"],
        ),
        (["--out", "in_the_way"], ["--out", "in_the_way", "this is a file", "name a folder"]),
        (["--out", "taken"], ["taken/cpu0.yaml", "this is a folder"]),
        (["--device", "cuda:99"], ["--device", "'cuda:99'", "allowed are"]),
        (["--model", "in_the_way"], ["in_the_way", "cannot be read as safetensors"]),
        (["--device", "emulated:rtx-2080ti"], ["--device", "rtx-2080ti", "did you mean 'rtx-2080-ti'"]),
        (["--device", "emulated:rtx-2080-ti:0.5"], ["--device", "a slowdown of 0.5", "allowed are 1 to"]),
        (["--device", "emulated:taken"], ["--device", "taken: this is a folder"]),
        (
            ["--device", "emulated:t4", "--model", "x"],
            ["--model", "an emulated device runs no network", "leave it out"],
        ),
        (
            ["--device", "emulated:of_own.yaml"],
            ["--device emulated:of_own.yaml: model", "'mine:Net'", "with --network"],
        ),
        (["--device", "emulated:"], ["--device", "'emulated:' names no profile", "emulated:rtx-2080-ti"]),
        (
            ["--device", "emulated:rtx-2080-ti", "--batch-limit", "200"],
            ["--batch-limit", "200 is beyond what the profile covers", "1 to 128"],
        ),
        (
            ["--device", "emulated:rtx-2080-ti", "--network", "slimresnet-tiny"],
            ["--device emulated:rtx-2080-ti", "the profile is of slimresnet18, which is not slimresnet-tiny"],
        ),
        (["--budget", "0"], ["budget", "must be more than 0 s", "45s to 15m"]),
    ],
)
def test_what_is_wrong_shows_before_anything_is_measured(
    flags: list[str],
    wanted: list[str],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line, exit code 2, and no log is begun."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in_the_way").write_text("a file")
    (tmp_path / "taken" / "cpu0.yaml").mkdir(parents=True)
    of_t4 = read_profile(Path("t4"))
    of_own = of_t4.model_copy(update={"model": of_t4.model.model_copy(update={"name": "mine:Net"})})
    (tmp_path / "of_own.yaml").write_text(of_own.to_yaml())
    real = {"--model": str(model), "--device": "cpu:0"} | dict(zip(flags[::2], flags[1::2], strict=True))
    is_emulated = any(flag.startswith("emulated:") for flag in flags)
    assert main(["calibrate", *(flags if is_emulated else chain(*real.items()))]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert len(streams.err.strip().splitlines()) == 1
    assert [word for word in wanted if word not in streams.err] == []
    assert list(tmp_path.rglob("*.jsonl")) == []


def calibration(model: Path, folder: Path, budget: str) -> subprocess.Popen[str]:
    """A calibration in a process of its own."""
    command = [sys.executable, "-m", "slimsched", "calibrate", "--model", str(model), "--device", "cpu:0"]
    command += ["--batch-limit", "4", "--budget", budget, "--out", str(folder), "--allow-busy"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.usefixtures("usual_interrupts")
def test_interrupted_it_goes_on_from_the_log(model: Path, tmp_path: Path) -> None:
    """It announces itself first; Ctrl-C ends it with 130; the same command announces what is done, and keeps it."""
    begun = calibration(model, tmp_path, "40s")
    assert begun.stderr is not None
    said = ""
    while "  log " not in said and select.select([begun.stderr], [], [], 60)[0]:
        said += begun.stderr.readline()
    assert "calibrate cpu0: " in said
    assert "6 keys x " in said
    assert "; the budget is " in said
    log = tmp_path / "cpu0.jsonl"
    while len(read_log(log)[0]) < 40 and begun.poll() is None:
        select.select([], [], [], 0.05)
    os.kill(begun.pid, signal.SIGINT)
    _, rest = begun.communicate(timeout=60)
    assert begun.returncode == 130
    assert "the same command goes on" in rest
    assert "Traceback" not in rest
    kept = log.read_text().splitlines()
    assert all(json.loads(line) for line in kept)

    again = calibration(model, tmp_path, "12s")  # a machine many times slower would call less too little
    out, told = again.communicate(timeout=180)
    assert again.returncode == 0, told
    assert "steps are done" in told
    assert out.strip() == f"profile: {tmp_path / 'cpu0.yaml'}"
    assert log.read_text().splitlines()[: len(kept)] == kept


@pytest.mark.slow
def test_a_budget_for_nothing_names_a_sensible_one(model: Path, tmp_path: Path) -> None:
    """Exit code 2, the flag and the budget that would do."""
    refused = calibration(model, tmp_path, "100ms")
    _, said = refused.communicate(timeout=60)
    assert refused.returncode == 2
    assert "--budget: 0.1 s is too little" in said
    assert "s or more" in said


def test_only_an_emulated_device_runs_no_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--device", "cpu:0", "--out", str(tmp_path / "profiles")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--model" in line
    assert "emulated:PROFILE" in line
