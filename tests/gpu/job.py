"""What a user does: the commands themselves."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
import yaml

from hw.datasets import load_dataset
from hw.evaluation import evaluate
from hw.networks import Network
from hw.training import EpochReport, recipe, train
from scenarios.files.reading import read_profile
from tests.gpu.evidence import ROOT
from tests.gpu.stand import Stand

SLIMSCHED: Final = (sys.executable, "-c", "import sys; from scenarios.cli import main; sys.exit(main(sys.argv[1:]))")
QUICKSTART: Final = ROOT / "scenarios" / "quickstart.yaml"
EPOCHS: Final = 2
SAME: Final = 0.999


def calibrated(stand: Stand) -> tuple[str, Mapping[str, Any]]:
    """A profile of random weights, with its own stated errors; it stays in the evidence's folder."""
    device, budget = ("cuda:0", "85s") if stand.is_gpu else ("cpu:0", "15s")
    out = (stand.out / "profiles").resolve()
    wrong = _slimsched(
        "calibrate", "--model", stand.file.path, "--device", device, "--budget", budget, "--out", out, "--allow-busy"
    )
    if wrong:
        return wrong, {}
    (path,) = out.glob(f"{device.replace(':', '')}.yaml")
    profile = read_profile(Path(path), "--out")
    errors = {f"{each.metric}, {each.kind}, mean %": each.mean_abs_pct for each in profile.errors}
    power, ways = profile.power, profile.device.stamps.get("ways_timed", "not timed")
    told = {"awake_w": power.awake_w, "awake_s": power.awake_s, "padding": profile.padding, "ways": ways}
    return "", {"profile": str(path), "points": len(profile.latency), **errors, **told}


def _slimsched(*words: object) -> str:
    """What was wrong; empty where nothing was."""
    done = subprocess.run([*SLIMSCHED, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no word"])[-1]


def quickstart(stand: Stand) -> tuple[str, Mapping[str, Any]]:
    """From nothing to a validation at three loads: what a new user runs first, with little of each stage."""
    scenario = yaml.safe_load(QUICKSTART.read_text())
    scenario["model"]["training"] = {"epochs": 3, "device": "cuda:0" if stand.is_gpu else "cpu"}
    scenario["calibration"] = {"budget": "25s", "allow_busy": True}
    scenario["tuning"]["decisions"] = 200_000
    routers = ["random", "tuned:fixed", "tide"]
    scenario["compare"] = {"routers": routers, "seeds": [0]}
    loads = [0.3, 0.6, 0.8] if stand.is_gpu else [0.3]
    scenario["validate"] = {
        "routers": routers, "loads": loads, "duration_s": "2s", "warmup_s": "0.3s", "repeats": 1, "go_on": True
    }  # fmt: skip
    scenario.pop("training")
    folder = (stand.out / "quickstart").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "scenario-given.yaml"
    path.write_text(yaml.safe_dump(scenario))
    if wrong := _slimsched("run", path, "--out", folder / "run", "--quiet"):
        return wrong, {}
    real = [json.loads(each.read_text()) for each in sorted((folder / "run" / "hardware").glob("*/result.json"))]
    lost = sum(row["images"]["arrived"] - row["images"]["completed"] - row["images"]["failed"] for row in real)
    numbers: dict[str, Any] = {"runs": len(real), "lost": lost}
    for row in real:
        numbers[f"{row['router']}_{row['throughput_img_s']:.0f}_img_s_p99_ms"] = 1e3 * row["latency_s"]["p99"]
    return ("no run on executors" if not real else f"{lost} have no end" if lost else ""), numbers


def trained(stand: Stand) -> tuple[str, Mapping[str, Any]]:
    """Two epochs, straight and broken off in between: the same bits; and a table like the CPU's."""
    network, data = Network("digit-pairs"), load_dataset("digit-pairs")
    name = "cuda:0" if stand.is_gpu else "cpu"
    knobs = replace(recipe("digit-pairs", "digit-pairs"), epochs=EPOCHS, device=name, checkpoint_epochs=1)
    folder = Path(tempfile.mkdtemp(prefix="slimsched-gpu-"))
    straight = train(network, data, knobs)

    def leave(report: EpochReport) -> None:
        raise InterruptedError

    with contextlib.suppress(InterruptedError):
        train(network, data, knobs, on_epoch=leave, checkpoint=folder / "checkpoint")
    resumed = train(network, data, knobs, checkpoint=folder / "checkpoint")
    weights, others = straight.state_dict(), resumed.state_dict()
    is_same = all(torch.equal(weights[each], others[each]) for each in weights)
    here, there = (evaluate(straight, data, device=device).correct for device in ("cpu", name))
    share = float((here == there).mean())
    wrong = [*([] if is_same else ["other bits when it was resumed"]), *([] if share >= SAME else ["another table"])]
    return "; ".join(wrong), {"same_bits": is_same, "table_as_the_cpu": share}
