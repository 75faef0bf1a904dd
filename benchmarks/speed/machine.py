"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path


def machine() -> str:
    """The processor, how many of its cores, and what runs on it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    versions = ", ".join(f"{each} {version(each)}" for each in ("numpy", "numba", "simpy", "gymnasium", "torch"))
    name = names[0] if names else platform.machine()
    return f"{name}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}"
