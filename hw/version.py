"""Which version of this project runs here, and by what code: agents and router must be of one."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from kit.imports import OURS

_ROOT: Final = Path(__file__).resolve().parents[1]


def own_version() -> str:
    """As it is installed; `unknown` where it runs from its folder and nobody has installed it."""
    try:
        return version("slim-scheduler")
    except PackageNotFoundError:
        return "unknown"


@cache
def code_here() -> str:
    """16 hex digits that name this project's own code: they tell two states of one version apart, here or elsewhere."""
    digest = hashlib.sha256()
    for path in sorted(path for package in OURS for path in (_ROOT / package).rglob("*.py")):
        digest.update(f"{path.relative_to(_ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
