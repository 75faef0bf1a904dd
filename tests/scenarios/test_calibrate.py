"""`slimsched calibrate`: what is wrong shows before anything is measured, and what was measured is never lost."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hw.networks.architectures import SlimResNet, SlimResNetConfig
from hw.networks.network_files import save_model

pytestmark = [pytest.mark.release, pytest.mark.slow]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of two segments and two widths, random weights."""
    torch.manual_seed(0)
    config = SlimResNetConfig(1, 8, 10, 8, 1, 2, widths=(0.5, 1.0), strides=(1, 2))
    path = tmp_path_factory.mktemp("model") / "two.safetensors"
    save_model(path, SlimResNet(config), "two", {})
    return path


def calibration(model: Path, folder: Path, budget: str) -> subprocess.Popen[str]:
    """A calibration in a process of its own."""
    command = [sys.executable, "-m", "slimsched", "calibrate", "--model", str(model), "--device", "cpu:0"]
    command += ["--batch-limit", "4", "--budget", budget, "--out", str(folder), "--allow-busy"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


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
    while log.read_text().count("\n") <= 40 and begun.poll() is None:
        select.select([], [], [], 0.05)
    os.kill(begun.pid, signal.SIGINT)
    _, rest = begun.communicate(timeout=60)
    assert begun.returncode == 130
    assert "the same command resumes" in rest
    assert "Traceback" not in rest
    kept = log.read_text().splitlines()
    assert all(json.loads(line) for line in kept)

    again = calibration(model, tmp_path, "12s")  # a machine many times slower would call less too little
    out, told = again.communicate(timeout=180)
    assert again.returncode == 0, told
    assert "steps are done" in told
    assert out.strip() == f"profile: {tmp_path / 'cpu0.yaml'}"
    assert log.read_text().splitlines()[: len(kept)] == kept
