"""The version of this project that runs here, and its code: agents and router must have the same."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from kit.imports import OURS

_ROOT: Final = Path(__file__).resolve().parents[1]


def own_version() -> str:
    """Return the installed version; `unknown` if the project runs from its folder without installation."""
    try:
        return version("slim-scheduler")
    except PackageNotFoundError:
        return "unknown"


@cache
def code_here() -> str:
    """Return 16 hex digits that identify this project's code: they distinguish two states of one version."""
    digest = hashlib.sha256()
    for path in sorted(path for package in OURS for path in (_ROOT / package).rglob("*.py")):
        digest.update(f"{path.relative_to(_ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
