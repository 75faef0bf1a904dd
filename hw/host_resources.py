"""This process's machine: usable cores and memory, the cores' speed, and collections of garbage."""

from __future__ import annotations

import gc
import math
import os
import resource
import time  # noqa: TID251 - it is a clock of sorts
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

import psutil

CGROUPS: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")


def usable_cores() -> tuple[int, ...]:
    """Return the cores that this process may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def allow_descriptors(count: int) -> None:
    """Let this process open this number of descriptors, or its maximum if that is less. The default is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


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


_PERIOD_NS = 20_000_000  # a reading takes 0.15 to 0.22 ms: 1 % of a worker's time, if it is busy


class Reference:
    """A fixed piece of arithmetic that touches no memory: its CPU time measures the core's present speed.

    A virtual machine's core may be half of a physical one: while another tenant computes on the other half, everything
    takes half as long again, and no counter of the guest shows it. One call into C that keeps the interpreter's lock:
    other threads can neither get in between nor cool its caches.


    Attributes:
        spent_ns: CPU time in all.
    """

    def __init__(self) -> None:
        self._items = range(4000)
        self.spent_ns = 0

    def cpu_ns(self) -> int:
        """Return the shorter time of two: the first one finds cold caches after a pass, and one may be interrupted."""
        return min(self._once(), self._once())

    def _once(self) -> int:
        begin_ns = time.thread_time_ns()
        sum(self._items)
        took_ns = time.thread_time_ns() - begin_ns
        self.spent_ns += took_ns
        return took_ns


class SpeedMeter:
    """Reads the reference now and then, between the batches that a worker serves; by its clock."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._reference = Reference()
        self._due_ns = 0
        self._reading: tuple[int, float] = (0, 0.0)

    def look(self) -> None:
        """Read, if it is time to."""
        now_ns = self._clock_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _PERIOD_NS
            self._reading = (now_ns, self._reference.cpu_ns() / 1e9)

    def take(self) -> tuple[int, float]:
        """Return the last reading, once: when, and how many seconds; (0, 0.0) if there is none."""
        reading, self._reading = self._reading, (0, 0.0)
        return reading


class CollectionMeter:
    """Counts within its `with` block.

    Attributes:
        count: collections, of any generation.
        total_ns: their duration.
    """

    def __init__(self) -> None:
        self.count = self.total_ns = 0
        self._began_ns = 0

    def __enter__(self) -> Self:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, _: object) -> None:
        if phase == "start":
            self._began_ns = time.monotonic_ns()
        else:
            self.count += 1
            self.total_ns += time.monotonic_ns() - self._began_ns
