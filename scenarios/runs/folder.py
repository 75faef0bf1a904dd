"""The run folder: where everything of a run lies, written atomically, and which stages of it are done.

It knows which files there are, and neither their forms (`scenarios.runs.records`) nor what a metric says
(`scenarios.metrics.result`). A file is either whole or not there, so a run killed at any moment can go on.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from scenarios.files.documents import read_json, write_json

PACKAGES = ("slim-scheduler", "torch", "numpy", "scipy", "simpy", "pydantic", "pyarrow", "safetensors")
Value = TypeVar("Value")

# -------------------------------------------------------------------------------------------------------------- stages


@dataclass(frozen=True, slots=True)
class Stage:
    """Whether a stage has to run, and why, in words for the user."""

    name: str
    is_done: bool
    reason: str


class RunFolder:
    """One run's folder.

    ==============================  ==============================================================================
    file                            holds
    ==============================  ==============================================================================
    `scenario.yaml`                 the scenario as run
    `environment.json`              versions, devices, seeds
    `model.safetensors`             the network that the run trained
    `accuracy.json`                 its top-1 at every width tuple
    `calibration/`                  logs of calibrations, and profiles as they were calibrated
    `profiles/SERVER.yaml`          each server's profile, with what serving costs
    `router.safetensors`            the PPO router that the run trained
    `training/`                     what an interrupted training goes on from
    `training.json`                 the PPO training's scalars, a list of {"decisions": ..., name: value}
    `score.json`                    `slimsched.score/1`: the trained router on a run that training has not seen
    `simulation/ROUTER-seedN/`      `result.json` and the record of a simulated run (`records.write_run`)
    `hardware/ROUTER-seedN/`        the same of a run on real executors; of one of several loads or repeats,
                                    `ROUTER-load0.8-seedN-rep1` (`saturated` or `near` in the place of a load)
    `cores.json`                    the settings of the real runs' cores, for their replay
    `results.json`                  the results that were compared, a list of `slimsched.result/1`
    `comparison.json`               `slimsched.comparison/1`
    `validation.json`               `slimsched.validation/1`
    `report.html`                   all of it to look at
    `.stages/`                      a mark for each finished stage
    ==============================  ==============================================================================
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir(parents=True, exist_ok=True)

    def __truediv__(self, name: str) -> Path:
        """A path in it."""
        return self.path / name

    def __fspath__(self) -> str:
        """It can stand wherever a path does."""
        return str(self.path)

    def stage(self, name: str, fingerprint: str) -> Stage:
        """Whether a stage can be skipped: its outputs are whole, and its inputs are those that it ran with."""
        mark = self._mark(name)
        if not mark.exists():
            return Stage(name, False, "not done yet")
        found = read_json(mark)
        if found["inputs"] != fingerprint:
            return Stage(name, False, "its inputs have changed")
        missing = [output for output in found["outputs"] if not (self.path / output).exists()]
        if missing:
            return Stage(name, False, f"{missing[0]} is missing")
        return Stage(name, True, "done before")

    def finish(self, name: str, fingerprint: str, outputs: Sequence[Path]) -> None:
        """Mark a stage as done; its outputs must lie in the folder."""
        relative = [str(output.relative_to(self.path)) for output in outputs]
        absent = [output for output in relative if not (self.path / output).exists()]
        assert not absent, f"stage {name} did not write {absent}"
        write_json(self._mark(name), {"inputs": fingerprint, "outputs": relative})

    def run_stage(
        self, name: str, fingerprint: str, work: Callable[[], Sequence[Path]], say: Callable[[str], None]
    ) -> bool:
        """Do a stage's work unless it is done; says which. Returns whether it ran."""
        stage = self.stage(name, fingerprint)
        say(f"{name}: {'skipped, ' if stage.is_done else ''}{stage.reason}")
        if not stage.is_done:
            self.finish(name, fingerprint, work())
        return not stage.is_done

    def _mark(self, name: str) -> Path:
        return self.path / ".stages" / f"{name}.json"


# ---------------------------------------------------------------------------------------------------------- provenance


def environment(devices: Sequence[Mapping[str, Any]], seeds: Mapping[str, Any]) -> dict[str, Any]:
    """What the run ran on: versions, devices and seeds; nothing that names a person or a place."""
    return {
        "schema": "slimsched.environment/1",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": [dict(device) for device in devices],
        "seeds": dict(seeds),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
