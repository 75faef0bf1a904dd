"""What may lie in a run folder, by name, and which command makes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kit.files import TEMPORARY
from policies.registry import TUNED
from scenarios.files.made_routers import MADE_KINDS, made_file, score_file, training_file

OWN: Final = ".slimsched"  # the folder's mark: its lock, and the manifest of what was made in it
DOOR: Final = f"{OWN}/operator"  # while servers are up: see `scenarios.runs.door`
STAGES: Final = ".stages"
ENDING: Final = ".damaged"  # of what was found in the place of what had been made
FILES: Final = {
    "scenario.yaml": "compare",
    "environment.json": "compare",
    "model.safetensors": "model train",
    "accuracy.json": "model evaluate",
    **{name(kind): "train" for kind in MADE_KINDS for name in (made_file, score_file, training_file)},
    "results.json": "compare",
    "comparison.json": "compare",
    "cores.json": "validate",
    "validation.json": "validate",
    "report.html": "report",
}
FOLDERS: Final = {
    OWN: "run",
    STAGES: "run",
    "calibration": "run",
    "decisions": "run",
    "profiles": "run",
    "training": "train",
    "simulation": "compare",
    "hardware": "validate",
}
COMMAND_OF: Final = {  # of a stage, where it is not its name
    "model": "model train",
    "accuracy": "model evaluate",
    "serving": "run",
    "records": "compare",
    **{f"train-{kind}": "train" for kind in TUNED},
}
_RECORD = r"(result|timeline|lives)\.json|(requests|blocks|batches|telemetry)\.parquet|events[^/]*\.jsonl\.gz"
_TRAINED = r"(checkpoint\.safetensors|scores\.jsonl|scalars\.json|events\.out\.tfevents\.[^/]+)"  # last TensorBoard's
_DEEPER = re.compile(
    rf"""{re.escape(OWN)}/(lock|manifest\.jsonl|operator/(servers\.json|drain-\d+))
    | \.stages/[^/]+\.json | calibration/[^/]+\.(yaml|jsonl)
    | calibration/served/[^/]+\.yaml | profiles/[^/]+\.yaml | decisions/[^/]+\.json
    | training/(model-[0-9a-f]+\.safetensors|(model-)?[0-9a-f]+/{_TRAINED})
    | (simulation|hardware)/[^/]+-seed\d+[^/]*/({_RECORD})""",
    re.VERBOSE,
)
_FORMER_TEMPORARY = re.compile(r"(.*/)?\.([^/]+)\.\d+\.tmp")  # as they were named once
_ASIDE = re.compile(rf"{re.escape(ENDING)}(-\d+)?$")


def fits(name: str) -> bool:
    """Whether a file of that name (its path in the folder) is one that a run makes."""
    name = _ASIDE.sub("", name)
    return name in FILES or _DEEPER.fullmatch(name) is not None


def is_temporary(name: str) -> bool:
    """Whether a file is what a write that was killed has left."""
    former = _FORMER_TEMPORARY.fullmatch(name)
    is_former = former is not None and fits(f"{former[1] or ''}{former[2]}")
    return is_former or TEMPORARY.fullmatch(name.rpartition("/")[2]) is not None


def command_of(name: str, made_by: str | None) -> str:
    """The command that makes a file again; what nobody is known to have made, by its name."""
    if made_by not in (None, "run") and not made_by.startswith(("calibrate-", "emulate-", "decide-")):
        return COMMAND_OF.get(made_by, made_by)
    return FILES.get(name) or FOLDERS.get(name.partition("/")[0], "run")


def manifest_of(folder: Path) -> Path:
    """The list of what was made in a folder."""
    return folder / OWN / "manifest.jsonl"


def walk(folder: Path) -> Iterator[Path]:
    """Every file below a folder, links among them, which are not followed; those of the folder itself first."""
    deeper = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            deeper.append(path)
        else:
            yield path
    for path in deeper:
        yield from walk(path)
