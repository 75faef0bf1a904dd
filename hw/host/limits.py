"""What this process may use of its machine: its affinity and its container's limits count, not what is built in."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

CGROUPS: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")


def usable_cores() -> tuple[int, ...]:
    """The cores that this process may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def allow_descriptors(wanted: int) -> None:
    """Let this process open so many, or as many as it may ask for. Often 1,024 are allowed at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def core_count() -> int:
    """How many cores this process may keep busy: those that it may run on, or as many as its CPU quotas pay for.

    A part of a core counts as one.
    """
    count = len(usable_cores())
    for group in _groups("cpu"):
        quota = " ".join(_text(group / name) for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")).split()
        if quota and quota[0].isdigit():  # `max` and -1 are none
            count = min(count, math.ceil(int(quota[0]) / int(quota[1])))
    return max(1, count)


def machine_bytes() -> int:
    """The machine's memory, or its container's where that is less."""
    limits = [_text(group / name) for group in _groups("memory") for name in ("memory.max", "memory.limit_in_bytes")]
    return min([int(psutil.virtual_memory().total), *(int(limit) for limit in limits if limit.strip().isdigit())])


def _groups(controller: str) -> Iterator[Path]:
    """This process's control group and those above it, of cgroup v2 and v1; a container may see the topmost alone."""
    for line in _text(MEMBERSHIP).splitlines():  # `0::/path` of v2, `4:cpu,cpuacct:/path` of v1
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = CGROUPS / controller if controllers else CGROUPS
            group = root / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # no such limit on this system
        return ""
