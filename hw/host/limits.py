"""This process's limits on its machine: its affinity and its container's limits count, not the hardware."""

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
    """Return the cores that this process may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def allow_descriptors(wanted: int) -> None:
    """Let this process open this number of descriptors, or its maximum if that is less. The default is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def core_count() -> int:
    """Return how many cores this process may keep busy: those that it may run on, or fewer by its CPU quotas.

    A part of a core counts as one.
    """
    count = len(usable_cores())
    for group in _groups("cpu"):
        quota = " ".join(_text(group / name) for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")).split()
        if quota and quota[0].isdigit():  # `max` and -1 are none
            count = min(count, math.ceil(int(quota[0]) / int(quota[1])))
    return max(1, count)


def machine_bytes() -> int:
    """Return the machine's memory, or its container's if that is less."""
    limits = [_text(group / name) for group in _groups("memory") for name in ("memory.max", "memory.limit_in_bytes")]
    return min([int(psutil.virtual_memory().total), *(int(limit) for limit in limits if limit.strip().isdigit())])


def _groups(controller: str) -> Iterator[Path]:
    """Yield this process's control group and its ancestors, of cgroup v2 and v1; a container may see one only."""
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
