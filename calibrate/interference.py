"""Detection of other programs on a device before it is measured: their use would be attributed to the device."""

from __future__ import annotations

import os
import time  # noqa: TID251 - a share of real time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from hw.telemetry import CoreWatch, Sensor, Used, process_cpu_s
from hw.telemetry.background import NOTABLE, STRONG, Clock, CoreTimes, counted_times
from kit.errors import InputError
from policies.vocabulary import NS_PER_S

LOOK_S = 0.5
LOOKS = 5
MAX_NAMED = 3  # programs named in a message


@dataclass(frozen=True, slots=True)
class Interference:
    """Use of a device by other programs.

    Attributes:
        share: share of the device's time, in [0, 1], including `stolen`; None if unknown.
        processes: number of other processes that have the device open; None likewise.
        place: the observed part of the machine, if it is not the whole device; for display.
        users: the programs that use it most, as far as known; for display.
        stolen: share taken by a virtual machine's host, as far as known.
    """

    share: float | None
    processes: tuple[int, ...] | None = None
    place: str = ""
    users: tuple[str, ...] = ()
    stolen: float = 0.0

    def __str__(self) -> str:
        share = "an unknown share" if self.share is None else f"{100 * (self.share - self.stolen):.0f} %"
        listed = ", ".join(map(str, self.processes or ()))
        stolen = f", this virtual machine's host {100 * self.stolen:.0f} %" if self.stolen > NOTABLE else ""
        return f"other programs use {share} of the device{f' (processes {listed})' if listed else ''}{stolen}"

    @property
    def details(self) -> str:
        """Place and users, as far as known: for display, not for a profile that is passed on."""
        most = f"most of it by {', '.join(self.users)}" if self.users else ""
        return "; ".join(text for text in (self.place, most) if text)

    @property
    def notable(self) -> bool:
        """Whether to warn the user."""
        return bool(self.processes) or (self.share is not None and self.share > NOTABLE)

    @property
    def is_busy(self) -> bool:
        """Whether others use so much that measurements would be invalid."""
        return self.share is not None and self.share > STRONG

    @property
    def warning(self) -> str:
        """The warning: what disturbs the measurement, and what to do; the same for all kinds of devices."""
        problem = f"{self}{f' ({self.details})' if self.details else ''}"
        if not self.is_busy:
            return f"{problem}: what is measured may be theirs, too"
        return f"{problem}, more than {100 * STRONG:.0f} %: what is measured would be theirs, too; stop them"


def require_quiet(device: str, interference: Interference, allow_busy: bool) -> None:
    """Raise `InputError` if others use so much of the device that measurements would be invalid."""
    if interference.is_busy and not allow_busy:
        remedy = "or allow it (--allow-busy, in a scenario calibration.allow_busy) and the profile says so"
        raise InputError("calibrate", device, f"{interference.warning}, {remedy}")


@dataclass(frozen=True, slots=True)
class Process:
    """A running program: its CPU time so far, and its last core."""

    name: str
    used_s: float
    core: int


Running = Callable[[], Mapping[int, Process]]  # by process id


def running() -> Mapping[int, Process]:
    """Return all processes that may be inspected."""
    processes = {}
    for process in psutil.process_iter(["name", "cpu_times", "cpu_num"]):
        name, times, core = (process.info[key] for key in ("name", "cpu_times", "cpu_num"))
        if times is not None and core is not None:
            processes[process.pid] = Process(name or "?", times.user + times.system, core)
    return processes


def on_cores(
    cores: Sequence[int],
    wait: Callable[[float], None] = time.sleep,
    core_times: CoreTimes = counted_times,
    clock: Clock = time.monotonic_ns,
    processes: Running = running,
) -> Interference:
    """Measure others' use of some cores over half a second, without this process and its children."""
    pids = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    before, began_ns = processes(), clock()
    watch = CoreWatch([cores], lambda: {pid: Used(process_cpu_s(pid)) for pid in pids}, core_times, clock)
    wait(LOOK_S)
    load, elapsed_s = watch.take(), (clock() - began_ns) / NS_PER_S
    here = {pid: process for pid, process in processes().items() if process.core in cores and pid not in pids}
    place, users = f"core{'s' if len(cores) > 1 else ''} {', '.join(map(str, cores))}", _most(before, here, elapsed_s)
    if load is None:
        return Interference(None, place=place, users=users)
    return Interference(load.share, place=place, users=users, stolen=load.stolen)


def _most(before: Mapping[int, Process], after: Mapping[int, Process], elapsed_s: float) -> tuple[str, ...]:
    """Return the largest users, in shares of a core; processes started in between are left out."""
    shares = {pid: (after[pid].used_s - before[pid].used_s) / elapsed_s for pid in after if pid in before}
    largest = sorted(shares, key=lambda pid: -shares[pid])[:MAX_NAMED]
    return tuple(f"{after[pid].name} ({pid}) {100 * shares[pid]:.0f} %" for pid in largest if shares[pid] > NOTABLE)


def on_gpu(sensor: Sensor, processes: Sequence[int] | None, wait: Callable[[float], None] = time.sleep) -> Interference:
    """Measure others' use of a GPU that this process has not opened yet.

    Args:
        processes: other processes with a context on it; None if unknown.
    """
    shares = []
    for _ in range(LOOKS):
        wait(LOOK_S / LOOKS)
        share = sensor.sample().utilization
        shares += [] if share is None else [share]
    mean = sum(shares) / len(shares) if shares else None
    return Interference(mean, None if processes is None else tuple(processes))
