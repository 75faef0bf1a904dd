"""What a run's results were made with: of each stage the versions, devices and seed, in its run folder."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from hw.host.limits import core_count
from hw.version import code_here
from kit.documents import read_json, write_json
from kit.errors import InputError
from scenarios.runs.folder import RunFolder

SCHEMA: Final = "slimsched.environment/2"
ENVIRONMENT_FILE: Final = "environment.json"
PRODUCT: Final = "slim-scheduler"
PACKAGES: Final = (
    PRODUCT, "torch", "numpy", "numba", "scipy", "scikit-learn", "simpy", "pydantic", "pyarrow", "safetensors",
)  # fmt: skip


def environment(devices: Sequence[Mapping[str, Any]], seeds: Mapping[str, Any]) -> dict[str, Any]:
    """Describe what is here now: versions, devices and seeds; nothing that names a person or a place."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": core_count(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "code": code_here(),
        "devices": [dict(device) for device in devices],
        "seeds": dict(seeds),
    }


def version_of(package: str) -> str | None:
    """Return the installed version; None if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def environments(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """Return, by stage, what it was made with; nothing of a file that is missing or damaged."""
    try:
        document = read_json(folder / ENVIRONMENT_FILE)
    except InputError:
        return {}
    if (
        not isinstance(document, dict)
        or document.get("schema") != SCHEMA
        or not isinstance(document.get("stages"), dict)
    ):
        return {}
    return {stage: its for stage, its in document["stages"].items() if isinstance(its, dict)}


def note_environment(folder: RunFolder, stage: str, facts: Mapping[str, Any]) -> None:
    """Record what a stage was made with, instead of what it was made with before."""
    stages = {**environments(folder), stage: dict(facts)}
    write_json(folder / ENVIRONMENT_FILE, {"schema": SCHEMA, "stages": stages})
