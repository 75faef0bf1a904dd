"""A management library without a GPU: the module-level names of `pynvml` over a simulated board and its own clock.

The board's true power follows its load through a first-order rise. What is read of it lags and averages as measured on
real boards (arXiv 2312.02741): a reading is renewed at a period and averages over a window before that; the energy
counter grows in steps. Structures, constants and exceptions are the real library's.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

from calibrate.power_meter import Watched
from hw.telemetry import Sensor

STEP_S = 0.001


@dataclass(frozen=True)
class Make:
    """An architecture's sensors; windows and periods in seconds, None where the board has no such reading."""

    architecture: str
    period_s: float
    window_s: float
    instant_s: float | None
    average_s: float | None
    counter_period_s: float | None
    gpm: bool = False


MAXWELL = Make("MAXWELL", 0.1, 0.345, None, None, None)
VOLTA = Make("VOLTA", 0.02, 0.02, None, None, 0.02)
TURING = Make("TURING", 0.1, 0.1, None, None, 0.1)
AMPERE = Make("AMPERE", 0.1, 1.0, 0.025, 1.0, 0.1)
HOPPER = Make("HOPPER", 0.1, 1.0, 0.025, 1.0, 0.1, gpm=True)


@dataclass
class FakeNvmlDevice:
    """A GPU: set `load` (a share of its range of power), `advance` its clock, and read it through `FakeNvml`.

    Attributes:
        awake_w, fall_s: what it draws when nothing runs but clocks are still up, for so long after a load.
        call_s: how long each call takes.
        refused: an NVML function or constant of a field, and the error code that it gives.
        enforced_w: the limit that clips, where it is another than the one that was set.
        counts: False if the energy counter stands still.
        power_mw: what a power reading makes of the milliwatts that it would show.
        used_pct: what each process that computes now has of the multiprocessors' time.
    """

    make: Make = HOPPER
    name: str | bytes = "NVIDIA Imaginary 1"
    uuid: str = ""
    idle_w: float = 60.0
    busy_w: float = 400.0
    limit_w: float = 500.0
    enforced_w: float | None = None
    compute_mode: int = 0
    rise_s: float = 0.05
    mig: bool = False
    counts: bool = True
    awake_w: float | None = None
    fall_s: float = 0.0
    call_s: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)
    power_mw: Callable[[float], float] = lambda milliwatts: milliwatts
    processes: list[int] = field(default_factory=list)
    process_bytes: dict[int, int | None] = field(default_factory=dict)
    of_mps: list[Any] = field(default_factory=list)
    vram_used_bytes: int = 1 << 30
    used_pct: dict[int, int] = field(default_factory=dict)
    load: float = 0.0
    lost: bool = False

    def __post_init__(self) -> None:
        self._power_w = self.idle_w
        self._energy_j = [0.0]  # at each step since the driver was loaded
        self._busy_s = [0.0]
        self._loaded_s = -math.inf  # when it last ran something
        self._counted_from_j = 0.0
        self.advance(3.0)  # the driver was there before

    @property
    def now_s(self) -> float:
        return (len(self._energy_j) - 1) * STEP_S

    def now_ns(self) -> int:
        return round(self.now_s * 1e9)

    def advance(self, seconds: float) -> None:
        kept = math.exp(-STEP_S / self.rise_s)
        for _ in range(round(seconds / STEP_S)):
            self._loaded_s = self.now_s if self.load else self._loaded_s
            wanted_w = self._rest_w() + self.load * (self.busy_w - self._rest_w())
            self._power_w = wanted_w + (self._power_w - wanted_w) * kept
            self._energy_j.append(self._energy_j[-1] + self._power_w * STEP_S)
            self._busy_s.append(self._busy_s[-1] + (STEP_S if self.load else 0.0))

    @property
    def is_awake(self) -> bool:
        return bool(self.load) or self.now_s - self._loaded_s < self.fall_s

    def sm_clock_mhz(self) -> int:
        return 1500 if self.is_awake or not self.fall_s else 345

    def load_driver_again(self) -> None:
        self._counted_from_j = self._energy_j[-1]

    def _rest_w(self) -> float:
        return self.awake_w if self.awake_w is not None and self.is_awake else self.idle_w

    def mean_w(self, window_s: float) -> float:
        """Of the last whole window before the last renewal of the reading."""
        return self._mean(self._energy_j, window_s)

    def busy_share(self) -> float:
        return self._mean(self._busy_s, 1.0)

    def counter_mj(self) -> int:
        assert self.make.counter_period_s is not None
        at = self._renewed(self.make.counter_period_s)
        return int(max(0.0, self._energy_j[at] - self._counted_from_j) * 1000 * self.counts)

    def _mean(self, integral: list[float], window_s: float) -> float:
        end = self._renewed(self.make.period_s)
        begin = max(0, end - max(1, round(window_s / STEP_S)))
        return (integral[end] - integral[begin]) / ((end - begin) * STEP_S)

    def _renewed(self, period_s: float) -> int:
        steps = round(period_s / STEP_S)
        return (len(self._energy_j) - 1) // steps * steps


@dataclass(frozen=True)
class Handle:
    """A device handle; a MIG instance's where `instance` is set."""

    nvml_device: FakeNvmlDevice
    instance: int | None = None


class FakeNvml:
    """What `import pynvml` gives, for these boards.

    Args:
        missing: functions that the driver's library lacks (NVMLError_FunctionNotFound).
        unnamed: names that an old Python binding lacks (AttributeError).
        init_error: what the library shows when it is opened.
    """

    def __init__(
        self,
        *nvml_devices: FakeNvmlDevice,
        missing: tuple[str, ...] = (),
        unnamed: tuple[str, ...] = (),
        init_error: int = pynvml.NVML_SUCCESS,
    ) -> None:
        self.nvml_devices = nvml_devices
        self._init_error = init_error
        self.missing, self.unnamed = missing, unnamed
        self._buffers: dict[int, tuple[float, float]] = {}  # GPM samples, by address

    def __getattribute__(self, name: str) -> Any:
        if name.startswith(("_", "nvml_devices", "missing", "unnamed")):
            return object.__getattribute__(self, name)
        if name in self.unnamed:
            raise AttributeError(name)
        if name in self.missing:
            return self._not_found
        try:
            return object.__getattribute__(self, name)
        except AttributeError:
            value = getattr(pynvml, name)
            if callable(value) and name.startswith("nvml"):
                raise NotImplementedError(f"{name} is not simulated") from None
            return value

    @staticmethod
    def _not_found(*_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    def _require(self, handle: Handle, name: str, supported: bool = True) -> FakeNvmlDevice:
        nvml_device = handle.nvml_device
        if nvml_device.call_s:
            nvml_device.advance(nvml_device.call_s)
        if nvml_device.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        if name in nvml_device.refused:
            raise pynvml.NVMLError(nvml_device.refused[name])
        if not supported:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return nvml_device

    def nvmlInit(self) -> None:
        if self._init_error:
            raise pynvml.NVMLError(self._init_error)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "999.10"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12040

    def nvmlDeviceGetCount(self) -> int:
        return len(self.nvml_devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        if not 0 <= index < len(self.nvml_devices):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        self._require(found := Handle(self.nvml_devices[index]), "nvmlDeviceGetHandleByIndex")
        return found

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle:
        kind, _, number = uuid.partition("-")
        if found := [nvml_device for nvml_device in self.nvml_devices if nvml_device.uuid == uuid]:
            return Handle(found[0])
        if not number.isdigit() or int(number) >= len(self.nvml_devices):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return Handle(self.nvml_devices[int(number)], 7 if kind == "MIG" else None)

    def nvmlDeviceGetUUID(self, handle: Handle) -> str:
        return self._require(handle, "nvmlDeviceGetUUID").uuid

    def nvmlDeviceGetName(self, handle: Handle) -> str:
        name = self._require(handle, "nvmlDeviceGetName").name
        return name if isinstance(name, str) else name.decode()  # as pynvml does

    def nvmlDeviceGetArchitecture(self, handle: Handle) -> int:
        nvml_device = self._require(handle, "nvmlDeviceGetArchitecture")
        return int(getattr(pynvml, f"NVML_DEVICE_ARCH_{nvml_device.make.architecture}"))

    def nvmlDeviceGetMigMode(self, handle: Handle) -> list[int]:
        nvml_device = self._require(
            handle, "nvmlDeviceGetMigMode", handle.nvml_device.make.architecture in ("AMPERE", "HOPPER")
        )
        return [int(nvml_device.mig), int(nvml_device.mig)]

    def nvmlDeviceIsMigDeviceHandle(self, handle: Handle) -> ctypes.c_uint:
        self._require(handle, "nvmlDeviceIsMigDeviceHandle")
        return ctypes.c_uint(handle.instance is not None)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Handle) -> Handle:
        return Handle(self._require(handle, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle"))

    def nvmlDeviceGetGpuInstanceId(self, handle: Handle) -> int:
        self._require(handle, "nvmlDeviceGetGpuInstanceId", handle.instance is not None)
        return handle.instance or 0

    def nvmlDeviceGetPowerUsage(self, handle: Handle) -> int:
        nvml_device = self._require(handle, "nvmlDeviceGetPowerUsage", handle.instance is None)
        return int(nvml_device.power_mw(nvml_device.mean_w(nvml_device.make.window_s) * 1000))

    def nvmlDeviceGetPowerManagementLimit(self, handle: Handle) -> int:
        return round(self._require(handle, "nvmlDeviceGetPowerManagementLimit").limit_w * 1000)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Handle) -> int:
        nvml_device = self._require(handle, "nvmlDeviceGetEnforcedPowerLimit")
        return round((nvml_device.limit_w if nvml_device.enforced_w is None else nvml_device.enforced_w) * 1000)

    def nvmlDeviceGetComputeMode(self, handle: Handle) -> int:
        return self._require(handle, "nvmlDeviceGetComputeMode").compute_mode

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Handle) -> int:
        supported = handle.nvml_device.make.counter_period_s is not None and handle.instance is None
        return self._require(handle, "nvmlDeviceGetTotalEnergyConsumption", supported).counter_mj()

    def nvmlDeviceGetFieldValues(self, handle: Handle, fields: list[int]) -> Any:
        nvml_device = self._require(handle, "nvmlDeviceGetFieldValues")
        windows = {
            pynvml.NVML_FI_DEV_POWER_INSTANT: ("NVML_FI_DEV_POWER_INSTANT", nvml_device.make.instant_s),
            pynvml.NVML_FI_DEV_POWER_AVERAGE: ("NVML_FI_DEV_POWER_AVERAGE", nvml_device.make.average_s),
        }
        values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for value, number in zip(values, fields, strict=True):
            name, window_s = windows[number]
            value.fieldId = number
            if name in nvml_device.refused or window_s is None or handle.instance is not None:
                value.nvmlReturn = nvml_device.refused.get(name, pynvml.NVML_ERROR_NOT_SUPPORTED)
                value.value.uiVal = 0xDEAD  # undefined, says the reference, where nvmlReturn is not a success
            else:
                value.value.uiVal = int(nvml_device.power_mw(nvml_device.mean_w(window_s) * 1000))
        return values

    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> Any:
        supported = handle.instance is None and not handle.nvml_device.mig
        nvml_device = self._require(handle, "nvmlDeviceGetUtilizationRates", supported)
        return SimpleNamespace(gpu=round(100 * nvml_device.busy_share()), memory=5)

    def nvmlDeviceGetMemoryInfo(self, handle: Handle) -> Any:
        used = self._require(handle, "nvmlDeviceGetMemoryInfo").vram_used_bytes
        return SimpleNamespace(total=8 << 30, used=used, free=(8 << 30) - used)

    def nvmlDeviceGetClockInfo(self, handle: Handle, kind: int) -> int:
        nvml_device = self._require(handle, "nvmlDeviceGetClockInfo")
        return {pynvml.NVML_CLOCK_SM: nvml_device.sm_clock_mhz(), pynvml.NVML_CLOCK_MEM: 2600}[kind]

    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        self._require(handle, "nvmlDeviceGetTemperature")
        return 41

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Handle) -> int:
        nvml_device = self._require(handle, "nvmlDeviceGetCurrentClocksEventReasons")
        return int(
            pynvml.nvmlClocksEventReasonGpuIdle if not nvml_device.load else pynvml.nvmlClocksEventReasonSwPowerCap
        )

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Handle) -> int:
        return self.nvmlDeviceGetCurrentClocksEventReasons(handle)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> list[Any]:
        if "nvmlDeviceGetComputeRunningProcesses_v3" in self.missing:
            raise pynvml.NVMLLibraryMismatchError("Unversioned function called and the versions do not match")
        nvml_device = self._require(handle, "nvmlDeviceGetComputeRunningProcesses")
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=nvml_device.process_bytes.get(pid, 1 << 20))
            for pid in nvml_device.processes
        ]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Handle) -> list[Any]:
        return self._require(handle, "nvmlDeviceGetMPSComputeRunningProcesses").of_mps

    def nvmlDeviceGetProcessUtilization(self, handle: Handle, since_us: int) -> list[Any]:
        nvml_device = self._require(
            handle, "nvmlDeviceGetProcessUtilization", handle.instance is None and not handle.nvml_device.mig
        )
        now_us = round(nvml_device.now_s * 1e6)
        if not nvml_device.used_pct or now_us <= since_us:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        found = [SimpleNamespace(pid=pid, timeStamp=now_us, smUtil=used) for pid, used in nvml_device.used_pct.items()]
        return [*found, SimpleNamespace(pid=0, timeStamp=0, smUtil=100)]  # some drivers fill up like this

    # --------------------------------------------------------------------------------------------------------- GPM

    def nvmlGpmQueryDeviceSupport(self, handle: Handle) -> Any:
        nvml_device = self._require(handle, "nvmlGpmQueryDeviceSupport")
        return SimpleNamespace(isSupportedDevice=int(nvml_device.make.gpm))

    def nvmlGpmSampleAlloc(self) -> Any:
        address = 0x1000 * (len(self._buffers) + 1)
        self._buffers[address] = (math.nan, math.nan)
        return ctypes.cast(address, pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        del self._buffers[_address(sample)]

    def nvmlGpmSampleGet(self, handle: Handle, sample: Any) -> Any:
        nvml_device = self._require(handle, "nvmlGpmSampleGet", not handle.nvml_device.mig)
        self._buffers[_address(sample)] = (nvml_device.now_s, nvml_device._busy_s[-1])
        return sample

    def nvmlGpmMigSampleGet(self, handle: Handle, instance: int, sample: Any) -> Any:
        assert handle.instance is None, "the whole GPU is asked for one of its instances"
        assert instance == 7
        nvml_device = self._require(handle, "nvmlGpmMigSampleGet")
        self._buffers[_address(sample)] = (nvml_device.now_s, nvml_device._busy_s[-1])
        return sample

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        assert request.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        (begin_s, busy_before), (end_s, busy) = (
            self._buffers[_address(request.sample1)],
            self._buffers[_address(request.sample2)],
        )
        shares = {
            pynvml.NVML_GPM_METRIC_SM_UTIL: 0.8,
            pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: 0.3,
            pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 0.1,
        }
        for metric in request.metrics[: request.numMetrics]:
            metric.nvmlReturn = pynvml.NVML_SUCCESS
            metric.value = 100 * shares[metric.metricId] * (busy - busy_before) / (end_s - begin_s)
        return request


def _address(sample: Any) -> int:
    return int(ctypes.cast(sample, ctypes.c_void_p).value or 0)


def seen_over(nvml_device: FakeNvmlDevice, sensor: Sensor, seconds: float, period_s: float = 0.02) -> list[Watched]:
    """Looks at every period while the board's clock goes on."""
    looks = []
    for _ in range(round(seconds / period_s)):
        nvml_device.advance(period_s)
        energy_j, at_s = sensor.energy_j(), nvml_device.now_s
        looks.append(Watched(at_s, sensor.sample(), energy_j))
    return looks
