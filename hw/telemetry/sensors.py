"""What a sensor supports and reads, and the sensors of CPUs: RAPL's energy counters, or power modelled from clocks."""

from __future__ import annotations

import platform
import time  # noqa: TID251 - a sensor reads real clocks
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from policies.vocabulary import Provenance


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a sensor reports a field.

    Attributes:
        provenance: of the field's values; None if the sensor does not report it.
        how: by which means it is reported, or why it is not, with the remedy if there is one; may be empty.
    """

    provenance: Provenance | None
    how: str = ""

    def __str__(self) -> str:
        kind = self.provenance.value if self.provenance else "absent"
        return f"{kind} ({self.how})" if self.how else kind


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample.

    Attributes:
        power_w: of the device; None if no sensor reports it.
        utilization: share in [0, 1] of the time that the device was busy since the previous sample; None likewise.
        vram_used_bytes: device memory in use; None likewise.
        provenance: of each field that is not None, by its name.
        lost: the device is gone (fallen off the bus, driver dead): nothing will be reported any more.
    """

    power_w: float | None
    utilization: float | None
    vram_used_bytes: int | None
    provenance: Mapping[str, Provenance]
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Details:
    """Calibration's readings in addition to `Reading`; too slow for a scheduler's period. None if not reported.

    Attributes:
        power_average_w: the reading that the board itself averages, mostly over a second.
        sm_utilization, sm_occupancy, dram_bandwidth: shares in [0, 1] since the previous details: of the
            multiprocessors with work, of their warps in use, of the memory's peak bandwidth.
        sm_clock_mhz, temperature_c: now.
        throttling: why the clocks are lower than they could be; empty if they are not.
    """

    power_average_w: float | None = None
    sm_utilization: float | None = None
    sm_occupancy: float | None = None
    dram_bandwidth: float | None = None
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttling: tuple[str, ...] | None = None


class Sensor:
    """One device's telemetry; this one has none at all."""

    def supports(self) -> Mapping[str, Support]:
        """Return how `power`, `utilization`, `vram`, `energy` and any other fields are reported, or why not."""
        return dict.fromkeys(("power", "utilization", "vram", "energy"), Support(None))

    def sample(self) -> Reading:
        """Read now."""
        return Reading(None, None, None, {})

    def details(self) -> Details:
        """Read the details now."""
        return Details()

    def energy_j(self) -> float | None:
        """Return a counter of joules from any origin, or None if there is none."""
        return None

    def describe(self) -> dict[str, str]:
        """Return `supports` in words, for people and for stamps."""
        return {name: str(support) for name, support in self.supports().items()}


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
        cpu_s = {pid: process_cpu_s(pid) for pid in self._pids()}
        # a clock that vanished with its process adds nothing
        used_s = sum(max(0.0, total_s - self._cpu_s.get(pid, 0.0)) for pid, total_s in cpu_s.items())
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


POWERCAP = Path("/sys/class/powercap")


class RaplCounter:
    """The energy of all CPU packages, from the kernel's powercap files (they wrap; this does not).

    Raises:
        OSError: the counters are not there, or not readable by this user (`PermissionError`).
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones = sorted(zone for zone in root.glob("intel-rapl:*") if _is_package(zone))
        if not self._zones:
            raise FileNotFoundError(f"no RAPL package under {root}")
        self._range_uj = [int((zone / "max_energy_range_uj").read_text()) for zone in self._zones]
        self._last_uj = [self._read(zone) for zone in self._zones]
        self._total_uj = 0

    @staticmethod
    def _read(zone: Path) -> int:
        return int((zone / "energy_uj").read_text())

    def energy_j(self) -> float:
        """Return the joules since this object was made; must be called more often than the counters wrap (minutes)."""
        now_uj = [self._read(zone) for zone in self._zones]
        for now, last, span in zip(now_uj, self._last_uj, self._range_uj, strict=True):
            self._total_uj += now - last if now >= last else now - last + span
        self._last_uj = now_uj
        return self._total_uj / 1e6


def _is_package(zone: Path) -> bool:
    """Return whether it is a package: its parts (`:0:0`) and the whole platform (`psys`) would count twice."""
    if zone.name.count(":") != 1:
        return False
    try:
        return (zone / "name").read_text().startswith("package")
    except FileNotFoundError:
        return True


def why_no_counter(error: OSError) -> str:
    """Return why `RaplCounter` could not be made, with the remedy."""
    if isinstance(error, PermissionError):
        return (
            "RAPL's counter may be read by administrators only; remedy: "
            f"sudo chmod a+r {POWERCAP}/intel-rapl:*/energy_uj, until the next boot"
        )
    return str(error)


class RaplSensor(Sensor):
    """CPU power from the packages' counters; for a device that is the whole CPU."""

    def __init__(self, counter: RaplCounter, share: CpuShare, vram_used_bytes: Callable[[], int]) -> None:
        self._counter = counter
        self._share = share
        self._vram_used_bytes = vram_used_bytes
        self._energy_j = counter.energy_j()
        self._at_ns = time.monotonic_ns()

    def supports(self) -> Mapping[str, Support]:
        """Return that everything is measured."""
        return {
            "power": Support(Provenance.MEASURED, "RAPL, whole packages"),
            "utilization": Support(Provenance.MEASURED, "CPU clocks of the server's processes"),
            "vram": Support(Provenance.MEASURED, "bytes of loaded weights"),
            "energy": Support(Provenance.MEASURED, "RAPL counter"),
        }

    def sample(self) -> Reading:
        """Read now; power is the counter's mean since the previous sample."""
        energy_j, now_ns = self.energy_j(), time.monotonic_ns()
        provenance = dict.fromkeys(("power_w", "utilization", "vram_used_bytes"), Provenance.MEASURED)
        power_w = None
        elapsed_s = (now_ns - self._at_ns) / 1e9
        if energy_j is None or elapsed_s <= 0:
            del provenance["power_w"]
        else:
            power_w = (energy_j - self._energy_j) / elapsed_s
            self._energy_j, self._at_ns = energy_j, now_ns
        return Reading(power_w, self._share.take(), self._vram_used_bytes(), provenance)

    def energy_j(self) -> float | None:
        """Return the packages' counter; None while it cannot be read."""
        try:
            return self._counter.energy_j()
        except (OSError, ValueError):
            return None
