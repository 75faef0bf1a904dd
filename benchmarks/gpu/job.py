"""Checks of a user's workflow, by the commands themselves."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
import yaml

from benchmarks.gpu.evidence import ROOT
from benchmarks.gpu.stand import NETWORKS, CantTellError, Stand
from hw.networks.datasets import load_dataset
from hw.networks.network_files import Network
from hw.networks.network_training import EpochReport, evaluate, recipe, train
from scenarios.files.scenario_reading import read_profile
from scenarios.metrics.fidelity import PROMISED_PCT, ValidationDocument

SLIMSCHED: Final = (sys.executable, "-c", "import sys; from slimsched.cli import main; sys.exit(main(sys.argv[1:]))")
QUICKSTART: Final = ROOT / "scenarios" / "quickstart.yaml"
DEVICES: Final = {"cuda": "cuda:0", "cpu": "cpu:0"}
NOISE: Final = {"cuda": "benchmarks.gpu.noise:LargeNoise", "cpu": "benchmarks.gpu.noise:Noise"}
LOADS: Final = (0.3, 0.6, 0.8)
ROUTERS: Final = ("random", "jsq", "ladder")
EPOCHS: Final = 2
SAME: Final = 0.999


def calibrated(stand: Stand) -> str:
    """Calibrate a network of random weights, with stated errors; the profile stays in the evidence's folder."""
    path = _profile(stand)
    limits = ("--device", DEVICES[stand.kind], "--budget", "85s" if stand.is_gpu else "15s")
    if wrong := _slimsched("calibrate", "--model", stand.file.path, *limits, "--out", path.parent, "--allow-busy"):
        return wrong
    profile = read_profile(path, "--out")
    errors = {f"{error.metric}, {error.kind}, mean %": error.mean_abs_pct for error in profile.errors}
    power, timed = profile.power, profile.device.stamps.get("ways_timed", "not timed")
    facts = {"awake_w": power.awake_w, "awake_s": power.awake_s, "padded_sizes": profile.padded_sizes, "ways": timed}
    stand.tell({"profile": str(path), "points": len(profile.latency), **errors, **facts})
    return ""


def _slimsched(*arguments: object) -> str:
    """Run a command; returns what was wrong, or an empty text. Its output is in the log."""
    code = subprocess.run([*SLIMSCHED, *map(str, arguments)], cwd=ROOT, check=False).returncode
    return f"slimsched {arguments[0]} ended with {code}; evidence.log has its words" if code else ""


def _profile(stand: Stand) -> Path:
    """Return the path at which `calibrated` leaves the profile."""
    return (stand.out / "profiles").resolve() / f"{DEVICES[stand.kind].replace(':', '')}.yaml"


def validated(stand: Stand) -> str:
    """Validate simulation with that profile against executors: errors in per cent, next to the project's promises."""
    if not (profile := _profile(stand)).exists():
        raise CantTellError(f"no profile of E1 in {profile.parent}")
    folder = (stand.out / "validation").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = folder / "scenario-given.yaml"
    device = {"kind": stand.kind} if stand.is_gpu else {"cores": [*stand.device.cores]}
    scenario = {
        "schema": "slimsched.scenario/1",
        "name": "gpu-validation",
        "model": {
            "network": NETWORKS[stand.kind],
            "checkpoint": str(stand.file.path),
            "dataset": NOISE[stand.kind],
            "training": {"device": "cuda:0" if stand.is_gpu else "cpu"},  # also for the table
        },
        "cluster": {
            "servers": [{"name": "server", "device": device, "profile": str(profile)}],
            "greedy": {"preload": "all", "idle_unload_s": None},
        },
        "workload": {"kind": "poisson", "load": LOADS[0]},
        "duration_s": "2s",
        "warmup_s": "0.3s",
        "validate": {"routers": [*ROUTERS], "loads": [*LOADS], "go_on": True},
    }
    path.write_text(yaml.safe_dump(scenario))
    for command in (("model", "train"), ("validate",)):
        if wrong := _slimsched(*command, path, "--out", folder / "run"):
            return wrong
    document: ValidationDocument = json.loads((folder / "run" / "validation.json").read_text())
    wrong, numbers = told(document)
    stand.tell(numbers)
    return wrong


def told(document: ValidationDocument) -> tuple[str, Mapping[str, Any]]:
    """Evaluate each router at each load; nothing may be lost, and every run must have completed something."""
    numbers: dict[str, Any] = {f"promised_{name}_pct": pct for name, pct in PROMISED_PCT.items()}
    numbers["lost"] = sum(_lost(pair["executors"]) for pair in document["pairs"])
    for row in document["rows"]:
        name = f"{row['router']}_{row['load']:g}"
        executors = {measure: value["mean"] for measure, value in row["executors"].items()}
        numbers[f"{name}_mean_ms"] = _scaled(1e3, executors["latency_mean"])
        numbers[f"{name}_p99_ms"] = _scaled(1e3, executors["latency_p99"])
        numbers[f"{name}_energy_j_image"] = executors["energy_per_image"]
        numbers |= {f"{name}_{measure}_error_pct": row["error_pct"].get(measure) for measure in PROMISED_PCT}
        numbers |= {f"{name}_{measure}_inside": value for measure, value in row["coverage"].items()}
    barren = [row["router"] for row in document["rows"] if row["executors"]["latency_mean"]["mean"] is None]
    missing = len(LOADS) * len(ROUTERS) - len(document["rows"])
    wrong = [f"{numbers['lost']} have no end"] if numbers["lost"] else []
    wrong += [f"{', '.join(barren)} completed nothing"] if barren else []
    return "; ".join([*wrong, *([f"{missing} rows are missing"] if missing else [])]), numbers


def _scaled(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value


def _lost(result: Mapping[str, Any]) -> int:
    """Count images without an end, except in runs that end with a backlog on purpose, as saturated ones do."""
    images = result["images"]
    return int(images["arrived"] - images["completed"] - images["failed"]) if result["end"] == "drain" else 0


def quickstart(stand: Stand) -> str:
    """Run from nothing to a validation: a new user's first commands, with little of each stage."""
    scenario = yaml.safe_load(QUICKSTART.read_text())
    training = {"epochs": 3, "device": "cuda:0" if stand.is_gpu else "cpu"}
    scenario["model"] = {"network": "digit-pairs", "dataset": "digit-pairs", "training": training}
    scenario["calibration"] = {"budget": "25s", "allow_busy": True}
    scenario["tuning"]["decisions"] = 200_000
    routers = ("random", "tuned:fixed", "tuned:compass")
    scenario["compare"] = {"routers": [*routers], "seeds": [0]}  # a list written twice would be a YAML alias
    scenario["validate"] = {
        "routers": [*routers], "loads": [0.3], "duration_s": "2s", "warmup_s": "0.3s", "repeats": 1, "go_on": True
    }  # fmt: skip
    folder = (stand.out / "quickstart").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "scenario-given.yaml"
    path.write_text(yaml.safe_dump(scenario))
    if wrong := _slimsched("run", path, "--out", folder / "run"):
        return wrong
    real = [json.loads(path.read_text()) for path in sorted((folder / "run" / "executors").glob("*/result.json"))]
    lost = sum(map(_lost, real))
    numbers: dict[str, Any] = {"runs": len(real), "lost": lost}
    for row in real:
        numbers[f"{row['router']}_{row['throughput_img_s']:.0f}_img_s_p99_ms"] = 1e3 * row["latency_s"]["p99"]
    stand.tell(numbers)
    return "no run on executors" if not real else f"{lost} have no end" if lost else ""


def trained(stand: Stand) -> str:
    """Train two epochs, straight and interrupted in between: the same bits; and a table like the CPU's."""
    network, data = Network("digit-pairs"), load_dataset("digit-pairs")
    name = "cuda:0" if stand.is_gpu else "cpu"
    params = replace(recipe("digit-pairs", "digit-pairs"), epochs=EPOCHS, device=name, checkpoint_epochs=1)
    checkpoint = stand.out.resolve() / "checkpoint.safetensors"
    checkpoint.unlink(missing_ok=True)  # left by a check that was killed
    straight = train(network, data, params)

    def leave(report: EpochReport) -> None:
        raise InterruptedError

    with contextlib.suppress(InterruptedError):
        train(network, data, params, on_epoch=leave, checkpoint=checkpoint)
    resumed = train(network, data, params, checkpoint=checkpoint)
    checkpoint.unlink()
    weights, others = straight.state_dict(), resumed.state_dict()
    is_same = all(torch.equal(weights[key], others[key]) for key in weights)
    stand.tell({"same_bits": is_same})
    on_cpu, on_device = (evaluate(straight, data, device=device).correct for device in ("cpu", name))
    share = float((on_cpu == on_device).mean())
    wrong = [*([] if is_same else ["other bits when it was resumed"]), *([] if share >= SAME else ["another table"])]
    stand.tell({"table_as_the_cpu": share})
    return "; ".join(wrong)
