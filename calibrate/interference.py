"""Whether other programs use a device before it is measured: what they take would be taken for the device's own."""

from __future__ import annotations

import os
import time  # noqa: TID251 - a share of real time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from hw.telemetry import Sensor, process_cpu_s
from policies.errors import InputError
from policies.vocabulary import NS_PER_S

NOTABLE = 0.05  # a share of the device that a profile's reader should know of
STRONG = 0.30  # one that makes a measurement worthless
LOOK_S = 0.5
LOOKS = 5


@dataclass(frozen=True, slots=True)
class Interference:
    """What others do on a device.

    Attributes:
        share: of the device's time, in [0, 1]; None where nothing tells.
        processes: of others that have the device open; None likewise.
    """

    share: float | None
    processes: tuple[int, ...] | None = None

    def __str__(self) -> str:
        share = "an unknown share" if self.share is None else f"{100 * self.share:.0f} %"
        listed = ", ".join(map(str, self.processes or ()))
        return f"other programs use {share} of the device{f' (processes {listed})' if listed else ''}"

    @property
    def notable(self) -> bool:
        """Whether the user should know."""
        return bool(self.processes) or (self.share is not None and self.share > NOTABLE)


def require_quiet(device: str, found: Interference, allow_busy: bool) -> None:
    """Raise `InputError` where others use so much of the device that its figures would be theirs too."""
    if found.share is not None and found.share > STRONG and not allow_busy:
        problem = f"{found}, more than {100 * STRONG:.0f} %: its figures would be theirs too"
        remedy = "stop them, or allow it (--allow-busy, in a scenario calibration.allow_busy) and the profile says so"
        raise InputError("calibrate", device, f"{problem}; {remedy}")


CoreTimes = Callable[[], Sequence[Any]]  # for each core a named tuple of seconds, as psutil gives it
Clock = Callable[[], int]


def on_cores(
    cores: Sequence[int],
    wait: Callable[[float], None] = time.sleep,
    core_times: CoreTimes = lambda: psutil.cpu_times(percpu=True),
    clock: Clock = time.monotonic_ns,
) -> Interference:
    """What others use of some cores, over half a second; what this process and its children use does not count."""
    own = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]

    def used_s() -> tuple[float, float, float]:
        everywhere = core_times()
        busy_s = sum(_busy_s(everywhere[core]) for core in cores)
        return clock() / NS_PER_S, busy_s, sum(process_cpu_s(pid) for pid in own)

    began_s, busy_before_s, own_before_s = used_s()
    wait(LOOK_S)
    ended_s, busy_s, own_s = used_s()
    foreign_s = busy_s - busy_before_s - (own_s - own_before_s)
    return Interference(min(1.0, max(0.0, foreign_s / ((ended_s - began_s) * len(cores)))))


def _busy_s(times: Any) -> float:
    """Of one core; a guest's time is part of its user's, and a stolen core is busy for others."""
    return float(sum(value for name, value in times._asdict().items() if name not in _NOT_BUSY))


_NOT_BUSY = frozenset({"idle", "iowait", "guest", "guest_nice"})


def on_gpu(sensor: Sensor, processes: Sequence[int] | None, wait: Callable[[float], None] = time.sleep) -> Interference:
    """What others use of a GPU that this process has not opened yet.

    Args:
        processes: of others with a context on it; None where nothing tells.
    """
    shares = []
    for _ in range(LOOKS):
        wait(LOOK_S / LOOKS)
        share = sensor.sample().utilization
        shares += [] if share is None else [share]
    mean = sum(shares) / len(shares) if shares else None
    return Interference(mean, None if processes is None else tuple(processes))
