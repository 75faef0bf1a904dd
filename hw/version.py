"""Which version of this project runs here: agents and router must be of one."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """As it is installed; `unknown` where it runs from its folder and nobody has installed it."""
    try:
        return version("slim-scheduler")
    except PackageNotFoundError:
        return "unknown"
