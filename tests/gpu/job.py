"""What a user does: the commands themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scenarios.files.reading import read_profile
from tests.gpu.evidence import ROOT
from tests.gpu.stand import Stand


def calibrated(stand: Stand) -> tuple[str, Mapping[str, Any]]:
    """A profile of random weights, with its own stated errors; it stays in the evidence's folder."""
    device, budget = ("cuda:0", "85s") if stand.is_gpu else ("cpu:0", "15s")
    out = (stand.out / "profiles").resolve()
    code = "import sys; from scenarios.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "calibrate", "--model", str(stand.file.path), "--device", device]
    command += ["--budget", budget, "--out", str(out), "--allow-busy"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["no word"])[-1], {}
    (path,) = out.glob(f"{device.replace(':', '')}.yaml")
    profile = read_profile(Path(path), "--out")
    errors = {f"{each.metric}, {each.kind}, mean %": each.mean_abs_pct for each in profile.errors}
    return "", {"profile": str(path), "points": len(profile.latency), **errors}
