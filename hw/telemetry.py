"""What a device's sensors say, behind one small port, each field with where it came from. It decides nothing.

Backends: NVML (NVIDIA GPUs), RAPL (a whole CPU package's energy counter), modelled (CPU power from the share of time
that the servers' processes ran), absent. A field that a sensor cannot give is None, never a guess.
"""

from __future__ import annotations

import os
import time  # noqa: TID251 - a sensor reads real clocks
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from policies.vocabulary import Provenance

POWERCAP = Path("/sys/class/powercap")
CPU_IDLE_W_PER_CORE = 2.0  # assumptions, not measurements: `modelled` says so wherever they are used
CPU_TDP_W_PER_CORE = 15.0
_NVML_POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT: the board's power now, where it is known (Ampere and later)


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample.

    Attributes:
        power_w: of the device; None where nothing tells.
        utilization: share in [0, 1] of the time that the device was busy since the sample before; None likewise.
        vram_used_bytes: device memory in use; None likewise.
        provenance: of each field that is not None, by its name.
    """

    power_w: float | None
    utilization: float | None
    vram_used_bytes: int | None
    provenance: Mapping[str, Provenance]


class Sensor(Protocol):
    """One device's telemetry."""

    def sample(self) -> Reading:
        """Read now."""
        ...

    def energy_j(self) -> float | None:
        """A counter of joules from any origin, or None where there is none."""
        ...

    def describe(self) -> dict[str, str]:
        """For each of `power`, `utilization`, `vram` and `energy`: where it comes from, or why it is absent."""
        ...


class AbsentSensor:
    """No telemetry at all."""

    def sample(self) -> Reading:
        """Nothing."""
        return Reading(None, None, None, {})

    def energy_j(self) -> float | None:
        """Nothing."""
        return None

    def describe(self) -> dict[str, str]:
        """Everything is absent."""
        return dict.fromkeys(("power", "utilization", "vram", "energy"), "absent")


# ----------------------------------------------------------------------------------------------------------- CPU clocks


def process_cpu_s(pid: int) -> float:
    """CPU time that a process has used so far, in seconds; 0 for one that is gone.

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
    """The share of some cores that some processes used since the last question.

    Args:
        pids: the processes, or who knows them: one that comes later counts from its start.
        cores: how many cores they are pinned to.
    """

    def __init__(self, pids: Pids, cores: int) -> None:
        self._pids = pids if callable(pids) else lambda: pids
        self._cores = cores
        self._cpu_s = {pid: process_cpu_s(pid) for pid in self._pids()}
        self._at_ns = time.monotonic_ns()

    def take(self) -> float:
        """In [0, 1]."""
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
class ModelledCpuSensor:
    """CPU power from utilization: P = idle + (TDP - idle) x share of the cores that the processes used.

    Attributes:
        share: of the servers' processes.
        idle_w, tdp_w: of the pinned cores together; assumptions (15 W and 2 W a core by default).
        vram_used_bytes: asked at each sample.
    """

    share: CpuShare
    idle_w: float
    tdp_w: float
    vram_used_bytes: Callable[[], int]

    def sample(self) -> Reading:
        """Since the sample before."""
        utilization = self.share.take()
        provenance = {
            "power_w": Provenance.MODELLED,
            "utilization": Provenance.MEASURED,
            "vram_used_bytes": Provenance.MEASURED,
        }
        power_w = self.idle_w + (self.tdp_w - self.idle_w) * utilization
        return Reading(power_w, utilization, self.vram_used_bytes(), provenance)

    def energy_j(self) -> float | None:
        """There is no counter."""
        return None

    def describe(self) -> dict[str, str]:
        """Power is modelled."""
        return {
            "power": f"modelled ({self.idle_w:g} W idle to {self.tdp_w:g} W busy)",
            "utilization": "measured (CPU clocks of the server's processes)",
            "vram": "measured (bytes of loaded weights)",
            "energy": "absent",
        }


# ----------------------------------------------------------------------------------------------------------------- RAPL


class RaplCounter:
    """The energy of all CPU packages, from the kernel's powercap files (they wrap; this does not).

    Raises:
        OSError: the counters are not there, or not readable by this user.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones = sorted(zone for zone in root.glob("intel-rapl:*") if zone.name.count(":") == 1)
        if not self._zones:
            raise FileNotFoundError(f"no RAPL package under {root}")
        self._range_uj = [int((zone / "max_energy_range_uj").read_text()) for zone in self._zones]
        self._last_uj = [self._read(zone) for zone in self._zones]
        self._total_uj = 0

    @staticmethod
    def _read(zone: Path) -> int:
        return int((zone / "energy_uj").read_text())

    def energy_j(self) -> float:
        """Joules since this object was made; must be called more often than the counters wrap (minutes)."""
        now_uj = [self._read(zone) for zone in self._zones]
        for now, last, span in zip(now_uj, self._last_uj, self._range_uj, strict=True):
            self._total_uj += now - last if now >= last else now - last + span
        self._last_uj = now_uj
        return self._total_uj / 1e6


class RaplSensor:
    """CPU power from the packages' counters; for a device that is the whole CPU."""

    def __init__(self, counter: RaplCounter, share: CpuShare, vram_used_bytes: Callable[[], int]) -> None:
        self._counter = counter
        self._share = share
        self._vram_used_bytes = vram_used_bytes
        self._energy_j = counter.energy_j()
        self._at_ns = time.monotonic_ns()

    def sample(self) -> Reading:
        """Power is the counter's mean since the sample before."""
        energy_j, now_ns = self._counter.energy_j(), time.monotonic_ns()
        elapsed_s = (now_ns - self._at_ns) / 1e9
        power_w = (energy_j - self._energy_j) / elapsed_s if elapsed_s > 0 else None
        self._energy_j, self._at_ns = energy_j, now_ns
        provenance = dict.fromkeys(("power_w", "utilization", "vram_used_bytes"), Provenance.MEASURED)
        return Reading(power_w, self._share.take(), self._vram_used_bytes(), provenance)

    def energy_j(self) -> float | None:
        """The packages' counter."""
        return self._counter.energy_j()

    def describe(self) -> dict[str, str]:
        """Everything is measured."""
        return {
            "power": "measured (RAPL, whole packages)",
            "utilization": "measured (CPU clocks of the server's processes)",
            "vram": "measured (bytes of loaded weights)",
            "energy": "measured (RAPL counter)",
        }


# ----------------------------------------------------------------------------------------------------------------- NVML


def load_nvml() -> Any | None:
    """NVIDIA's management library, initialised; None where it or its driver is not there."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, no driver, no permission: all mean that there is no NVML here
        return None
    return pynvml


def nvml_handle(nvml: Any, index: int, visible: str | None = None) -> Any:
    """The NVML device behind a CUDA index.

    Args:
        index: as torch counts under CUDA_DEVICE_ORDER=PCI_BUS_ID, which the workers set.
        visible: CUDA_VISIBLE_DEVICES; the environment's by default.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    if not visible:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    name = visible.split(",")[index].strip()
    if name.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)


@dataclass
class NvmlSensor:
    """An NVIDIA GPU's own sensors; a field that the board refuses is absent, and `describe` says why.

    Attributes:
        nvml: the library (`load_nvml`), or anything that behaves like it.
        handle: of the device.
    """

    nvml: Any
    handle: Any
    _refused: dict[str, str] = field(default_factory=dict)

    def sample(self) -> Reading:
        """Power is the instant reading where the board has one, else the (averaged) default one."""
        power_w, utilization, vram = self._power_w(), self._utilization(), self._vram_bytes()
        given = {"power_w": power_w, "utilization": utilization, "vram_used_bytes": vram}
        provenance = {name: Provenance.POLLED for name, value in given.items() if value is not None}
        return Reading(power_w, utilization, vram, provenance)

    def energy_j(self) -> float | None:
        """The board's counter (Volta and later)."""
        millijoules = self._ask("energy", self.nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if millijoules is None else millijoules / 1e3

    def describe(self) -> dict[str, str]:
        """Asks each sensor once."""
        found = {
            "power": self._power_w(),
            "utilization": self._utilization(),
            "vram": self._vram_bytes(),
            "energy": self.energy_j(),
        }
        source = {"energy": "measured (NVML counter)"}
        return {
            name: source.get(name, "polled (NVML)") if value is not None else f"absent ({self._refused[name]})"
            for name, value in found.items()
        }

    def _ask(self, name: str, question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None (the reason is kept): boards, drivers and MIG refuse single fields."""
        try:
            return question(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            self._refused[name] = str(error)
            return None

    def _power_w(self) -> float | None:
        values = self._ask("power", self.nvml.nvmlDeviceGetFieldValues, [_NVML_POWER_INSTANT])
        if values and values[0].nvmlReturn == 0 and values[0].value.uiVal:
            return float(values[0].value.uiVal) / 1e3
        milliwatts = self._ask("power", self.nvml.nvmlDeviceGetPowerUsage)
        return None if milliwatts is None else milliwatts / 1e3

    def _utilization(self) -> float | None:
        rates = self._ask("utilization", self.nvml.nvmlDeviceGetUtilizationRates)
        return None if rates is None else rates.gpu / 100

    def _vram_bytes(self) -> int | None:
        memory = self._ask("vram", self.nvml.nvmlDeviceGetMemoryInfo)
        return None if memory is None else int(memory.used)


# --------------------------------------------------------------------------------------------------------- what is here


@dataclass(frozen=True, slots=True)
class DeviceDescription:
    """A device of this machine: `telemetry` says for each field whether it works, is modelled, or is absent."""

    name: str
    kind: str
    index: int
    cores: tuple[int, ...]
    vram_bytes: int
    telemetry: Mapping[str, str]


def usable_cores() -> tuple[int, ...]:
    """The cores that this process may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cpu_name() -> str:
    """The processor's model name, where the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    import platform

    return platform.processor() or platform.machine()


def cpu_sensor(
    pids: Pids,
    cores: Sequence[int],
    idle_w: float,
    tdp_w: float,
    vram_used_bytes: Callable[[], int],
    powercap: Path = POWERCAP,
) -> Sensor:
    """RAPL where it can be read and the cores are the whole machine (it cannot tell cores apart), else modelled."""
    share = CpuShare(pids, len(cores))
    if len(cores) == os.cpu_count():
        try:
            return RaplSensor(RaplCounter(powercap), share, vram_used_bytes)
        except OSError:
            pass
    return ModelledCpuSensor(share, idle_w, tdp_w, vram_used_bytes)


def available_devices(nvml: Any | None = None) -> list[DeviceDescription]:
    """Every GPU, then the CPU as one device; each sensor is asked once."""
    found = []
    library = load_nvml() if nvml is None else nvml
    if library is not None:
        found = [_describe_gpu(library, index) for index in range(library.nvmlDeviceGetCount())]
    cores = usable_cores()
    idle_w, tdp_w = CPU_IDLE_W_PER_CORE * len(cores), CPU_TDP_W_PER_CORE * len(cores)
    sensor = cpu_sensor((os.getpid(),), cores, idle_w, tdp_w, lambda: 0)
    memory = int(psutil.virtual_memory().total)
    return [*found, DeviceDescription(cpu_name(), "cpu", 0, cores, memory, sensor.describe())]


def _describe_gpu(nvml: Any, index: int) -> DeviceDescription:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = nvml.nvmlDeviceGetName(handle)
    text = name.decode() if isinstance(name, bytes) else str(name)
    try:
        vram_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        vram_bytes = 0
    return DeviceDescription(text, "cuda", index, (), vram_bytes, NvmlSensor(nvml, handle).describe())
