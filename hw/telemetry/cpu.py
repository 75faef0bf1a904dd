"""A CPU device's sensor without a power counter: CPU clocks are measured, and power is modelled from them."""

from __future__ import annotations

import platform
import time  # noqa: TID251 - a sensor reads real clocks
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from hw.telemetry.port import Reading, Sensor, Support
from policies.vocabulary import Provenance

CPU_IDLE_W_PER_CORE = 2.0  # assumptions, not measurements: wherever they are used, the provenance is `modelled`
CPU_TDP_W_PER_CORE = 15.0


def cpu_name() -> str:
    """Return the processor's model name, if the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def process_cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used so far, in seconds; 0 for one that is gone.

    Linux gives every process a clock of nanosecond resolution; psutil (10 ms) is the fall-back.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of that process: linux/posix-timers.h
    except (OSError, AttributeError, OverflowError):
        pass
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


Pids = Sequence[int] | Callable[[], Sequence[int]]


class CpuShare:
    """The share of some cores that some processes used since the last `take`.

    Args:
        pids: the processes, or a function that returns them: one that comes later counts from its start.
        cores: how many cores they are pinned to.
    """

    def __init__(self, pids: Pids, cores: int) -> None:
        self._pids = pids if callable(pids) else lambda: pids
        self._cores = cores
        self._cpu_s = {pid: process_cpu_s(pid) for pid in self._pids()}
        self._at_ns = time.monotonic_ns()

    def take(self) -> float:
        """Return the share, in [0, 1]."""
        used_s, cpu_s = 0.0, {pid: process_cpu_s(pid) for pid in self._pids()}
        for pid, total_s in cpu_s.items():
            used_s += max(
                0.0, total_s - self._cpu_s.get(pid, 0.0)
            )  # a clock that vanished with its process adds nothing
        now_ns = time.monotonic_ns()
        elapsed_s = (now_ns - self._at_ns) / 1e9
        self._cpu_s, self._at_ns = cpu_s, now_ns
        return min(1.0, used_s / (elapsed_s * self._cores)) if elapsed_s > 0 else 0.0


@dataclass
class ModelledCpuSensor(Sensor):
    """CPU power from utilization: P = idle + (TDP - idle) x share of the cores that the processes used.

    Attributes:
        share: of the servers' processes.
        idle_w, tdp_w: of the pinned cores together; assumptions (15 W and 2 W a core by default).
        vram_used_bytes: asked at each sample.
        no_counter: why an energy counter is absent, in words.
    """

    share: CpuShare
    idle_w: float
    tdp_w: float
    vram_used_bytes: Callable[[], int]
    no_counter: str = ""

    def supports(self) -> Mapping[str, Support]:
        """Return that power is modelled."""
        return {
            "power": Support(Provenance.MODELLED, f"{self.idle_w:g} W idle to {self.tdp_w:g} W busy"),
            "utilization": Support(Provenance.MEASURED, "CPU clocks of the server's processes"),
            "vram": Support(Provenance.MEASURED, "bytes of loaded weights"),
            "energy": Support(None, self.no_counter),
        }

    def sample(self) -> Reading:
        """Return a reading since the previous sample."""
        utilization = self.share.take()
        provenance = {
            "power_w": Provenance.MODELLED,
            "utilization": Provenance.MEASURED,
            "vram_used_bytes": Provenance.MEASURED,
        }
        power_w = self.idle_w + (self.tdp_w - self.idle_w) * utilization
        return Reading(power_w, utilization, self.vram_used_bytes(), provenance)
