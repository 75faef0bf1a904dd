"""NVIDIA GPUs through NVML, which may lack anything: sensors, utilization, and a board's description.

Queries: every query of a device goes through `NvmlDevice.ask`, which turns the ways in which NVML refuses into one
exception with the reason and the remedy. The module changes no clock, no limit and no mode.

`Timing`: architectures differ (arXiv 2312.02741) in how often a power reading is renewed, what it averages over, how
slowly it rises, and whether there is an energy counter.
"""

from __future__ import annotations

import contextlib
import os
import time  # noqa: TID251 - a sensor reads real clocks
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

from hw.telemetry.sensors import Details, Reading, Sensor, Support
from kit.errors import InputError
from policies.vocabulary import Provenance

_NO_PERMISSION, _FUNCTION_NOT_FOUND = 4, 13  # NVML_ERROR_..., as in nvml.h
_LOST = frozenset({15, 16, 28})  # GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND
_REMEDIES = {
    _NO_PERMISSION: "only administrators may read this here: run as one, or ask for access to the device",
    _FUNCTION_NOT_FOUND: "the driver is too old for it: a newer driver may have it",
}


class RefusedError(Exception):
    """A query that NVML does not answer: the reason, with the remedy.

    Attributes:
        lost: because the device is gone.
    """

    def __init__(self, reason: str, lost: bool = False) -> None:
        super().__init__(reason)
        self.lost = lost


@dataclass(frozen=True)
class NvmlDevice:
    """One device behind the library.

    Attributes:
        nvml: the library, as `pynvml` shows it.
        handle: of the device.
    """

    nvml: Any
    handle: Any

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call an NVML function of the device (its first argument); raises `RefusedError` if that fails."""
        return self.call(function, self.handle, *arguments)

    def call(self, function: str, *arguments: Any) -> Any:
        """Call an NVML function; raises `RefusedError` if that fails."""
        question = self.constant(function)
        try:
            return question(*arguments)
        except self.nvml.NVMLError as error:
            raise refusal(error.value, str(error)) from None
        except UnicodeDecodeError:
            raise RefusedError(f"{function} answers with odd bytes") from None
        except Exception as error:  # pynvml's NVMLLibraryMismatchError is not an NVMLError
            if type(error).__name__ != "NVMLLibraryMismatchError":
                raise
            raise refusal(_FUNCTION_NOT_FOUND, "Function Not Found") from None

    def constant(self, name: str) -> Any:
        """Return the library's constant of a name; an old library may lack it."""
        try:
            return getattr(self.nvml, name)
        except AttributeError:
            raise RefusedError(
                f"the installed nvidia-ml-py lacks {name}; remedy: pip install -U nvidia-ml-py"
            ) from None

    def field(self, name: str) -> int:
        """Return a field by its name, as an unsigned number."""
        value = self.ask("nvmlDeviceGetFieldValues", [self.constant(name)])[0]
        if value.nvmlReturn != 0:
            raise refusal(value.nvmlReturn, str(self.nvml.NVMLError(value.nvmlReturn)))
        return int(value.value.uiVal)


def refusal(code: int, text: str) -> RefusedError:
    """Return NVML's error, with the remedy if there is one."""
    remedy = _REMEDIES.get(code)
    return RefusedError(f"{text}; {remedy}" if remedy else text, lost=code in _LOST)


# ----------------------------------------------------------------------------------------------- shares between samples


METRICS = {
    "sm_utilization": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "dram_bandwidth": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
_APART_NS = 100_000_000  # the least time between two samples, by NVML's reference


class Gpm:
    """Shares between the two latest samples that are far enough apart (Hopper and later).

    Raises:
        RefusedError: the device, the driver or the library has no GPM.
    """

    def __init__(
        self, nvml_device: NvmlDevice, parent: NvmlDevice, instance: int | None, monotonic_ns: Callable[[], int]
    ) -> None:
        """Take the whole GPU as `parent`; `instance` is the MIG instance of it that is meant."""
        self._nvml_device = parent
        self._instance = instance
        self._monotonic_ns = monotonic_ns
        self._metrics = {name: nvml_device.constant(constant) for name, constant in METRICS.items()}
        if not parent.ask("nvmlGpmQueryDeviceSupport").isSupportedDevice:
            raise RefusedError("GPM needs a Hopper GPU or a later one")
        self._older, self._newer = self._buffer(), self._buffer()
        self._look(self._newer)
        self._at_ns = monotonic_ns()
        self._shares: dict[str, float] = {}

    def shares(self) -> Mapping[str, float]:
        """Return shares in [0, 1] by name; the previous ones right after a sample; empty before two samples."""
        now_ns = self._monotonic_ns()
        if now_ns - self._at_ns > _APART_NS:
            self._older, self._newer = self._newer, self._older
            self._at_ns = now_ns
            self._look(self._newer)
            self._shares = self._between()
        return self._shares

    def _buffer(self) -> Any:
        """Allocate a sample, which is freed with this object."""
        buffer = self._nvml_device.call("nvmlGpmSampleAlloc")
        weakref.finalize(self, _free, self._nvml_device, buffer)
        return buffer

    def _look(self, buffer: Any) -> None:
        if self._instance is None:
            self._nvml_device.ask("nvmlGpmSampleGet", buffer)
        else:
            self._nvml_device.ask("nvmlGpmMigSampleGet", self._instance, buffer)

    def _between(self) -> dict[str, float]:
        request = self._nvml_device.constant("c_nvmlGpmMetricsGet_t")()
        request.version = self._nvml_device.constant("NVML_GPM_METRICS_GET_VERSION")
        request.numMetrics = len(self._metrics)
        request.sample1, request.sample2 = self._older, self._newer
        for position, metric in enumerate(self._metrics.values()):
            request.metrics[position].metricId = metric
        self._nvml_device.call("nvmlGpmMetricsGet", request)
        answers = zip(self._metrics, request.metrics, strict=False)
        return {name: answer.value / 100 for name, answer in answers if answer.nvmlReturn == 0}


def _free(nvml_device: NvmlDevice, buffer: Any) -> None:
    with contextlib.suppress(RefusedError):  # the device, or the library, may be gone
        nvml_device.call("nvmlGpmSampleFree", buffer)


# -------------------------------------------------------------------------------------------------------------- sensors


_ARCHITECTURES = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell", "Rubin")
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_NOT_OF_AN_INSTANCE = ("power", "power_average", "utilization", "energy")
UTILIZATION_WINDOW_S = 1.0  # 1/6 s to 1 s, by product
_THROTTLING = ("SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")


@dataclass(frozen=True, slots=True)
class Timing:
    """The lag of an architecture's power sensor.

    Attributes:
        period_s: between two new readings.
        window_s: that the default reading averages over.
        instant_window_s: that the instant reading averages over, if there is one.
        rise_s: until a reading has followed a step of the true power, beyond the window.
    """

    period_s: float
    window_s: float
    instant_window_s: float
    rise_s: float = 0.0

    def window_of(self, instant: bool) -> float:
        """Return the averaging window of the reading that is used."""
        return self.instant_window_s if instant else self.window_s


_LATER = Timing(0.1, 1.0, 0.1)
TIMINGS = {
    "Maxwell": Timing(0.1, 0.1, 0.1, 0.345),
    "Volta": Timing(0.02, 0.02, 0.02),
    "Turing": Timing(0.1, 0.1, 0.1),
    **dict.fromkeys(("Ampere", "Ada", "Hopper", "Blackwell"), _LATER),
}
SLOWEST = Timing(0.1, 1.0, 0.1, 0.345)  # for an architecture without measurements, so that enough is dropped


def timing_of(architecture: str) -> Timing:
    """Return the measured timing; the slowest of all if the architecture was not measured."""
    return TIMINGS.get(architecture, SLOWEST)


def open_library() -> Any:
    """Return NVIDIA's management library, initialised.

    Raises:
        RefusedError: the library or the driver is missing, or this user may not use it.
    """
    try:
        import pynvml
    except ImportError:
        raise RefusedError("nvidia-ml-py is not installed; remedy: pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise refusal(error.value, f"{error}; the NVIDIA driver and its library must be installed") from None
    except Exception as error:  # of the dynamic linker, for instance
        raise RefusedError(str(error)) from None
    return pynvml


def load_nvml() -> Any | None:
    """Return NVIDIA's management library, initialised; None if it or its driver is not installed."""
    return _answer(open_library)


def visible_gpus(nvml: Any) -> list[str]:
    """Return the GPUs that CUDA shows, each by NVML's number or its UUID; their places are CUDA's indices.

    CUDA_VISIBLE_DEVICES applies as far as it names devices: CUDA stops at a -1, say.

    Raises:
        RefusedError: NVML can't count them.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(index) for index in range(_count(nvml))]
    names = (name.strip() for name in visible.split(","))
    return list(takewhile(lambda name: name.isdigit() or name.startswith(("GPU-", "MIG-")), names))


def _count(nvml: Any) -> int:
    return int(NvmlDevice(nvml, None).call("nvmlDeviceGetCount"))


def handle_of(nvml: Any, name: str) -> Any:
    """Return the device of a number or UUID; raises `RefusedError` if NVML does not give it."""
    if name.isdigit():
        return NvmlDevice(nvml, None).call("nvmlDeviceGetHandleByIndex", int(name))
    try:
        return NvmlDevice(nvml, None).call("nvmlDeviceGetHandleByUUID", name)
    except RefusedError:  # CUDA takes the beginning of a UUID, too
        handles = [_answer(partial(handle_of, nvml, str(index))) for index in range(_count(nvml))]
        matches = [handle for handle in handles if handle is not None and _uuid_of(nvml, handle).startswith(name)]
        if len(matches) != 1:
            raise
        return matches[0]


def _uuid_of(nvml: Any, handle: Any) -> str:
    return _text(_answer(lambda: NvmlDevice(nvml, handle).ask("nvmlDeviceGetUUID")) or "")


def nvml_handle(nvml: Any, index: int) -> Any:
    """Return the NVML device behind a CUDA index.

    Args:
        index: as torch counts under CUDA_DEVICE_ORDER=PCI_BUS_ID, which the workers set.

    Raises:
        InputError: the device does not exist.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = None if visible is None else visible_gpus(nvml)
    try:
        return handle_of(nvml, str(index) if names is None else names[index])
    except IndexError:
        problem = f"CUDA_VISIBLE_DEVICES={visible} shows {len(names or ())} devices; choose one of them or change it"
    except RefusedError as refused:
        problem = f"NVML has no such device ({refused}); `slimsched list devices` lists those that are here"
    raise InputError("device", f"cuda:{index}", problem)


def device_label(nvml: Any, handle: Any) -> str:
    """Return the product's name; `GPU` if NVML does not report it."""
    name = _answer(lambda: NvmlDevice(nvml, handle).ask("nvmlDeviceGetName"))
    return "GPU" if name is None else _text(name)


def used_vram_bytes(nvml: Any, handle: Any) -> int:
    """Return the memory in use on the device, by any process; 0 if NVML does not report it."""
    memory = _answer(lambda: NvmlDevice(nvml, handle).ask("nvmlDeviceGetMemoryInfo"))
    return 0 if memory is None else int(memory.used)


def free_vram_bytes(nvml: Any, handle: Any) -> tuple[int, int]:
    """Return (free, all) memory of the device; zeros if NVML does not report it."""
    memory = _answer(lambda: NvmlDevice(nvml, handle).ask("nvmlDeviceGetMemoryInfo"))
    return (0, 0) if memory is None else (int(memory.free), int(memory.total))


class NvmlSensor(Sensor):
    """An NVIDIA GPU's own sensors; each is asked once whether it answers, and only those that do are read.

    Args:
        nvml: the library (`load_nvml`), or anything that behaves like it.
        handle: of the device.
        monotonic_ns: a clock, for shares between two samples.

    Attributes:
        architecture: by NVIDIA's name (`Hopper`), or `unknown`.
        timing: of the power reading.
    """

    def __init__(self, nvml: Any, handle: Any, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._nvml_device = NvmlDevice(nvml, handle)
        self._monotonic_ns = monotonic_ns
        self._readers: dict[str, Callable[[], Any]] = {}
        self._supported: dict[str, Support] | None = None
        self._lost = False
        self.architecture = architecture_of(self._nvml_device)
        self.timing = timing_of(self.architecture)

    def supports(self) -> Mapping[str, Support]:
        """Ask each sensor once."""
        if self._supported is None:
            self._supported = {name: self._choose(name, candidates) for name, candidates in self._candidates().items()}
            self._supported |= self._gpm_support()
        return self._supported

    def sample(self) -> Reading:
        """Read now; power is the instant reading if the board has one, otherwise the default one."""
        power_w, utilization, vram = (self._read(name) for name in ("power", "utilization", "vram"))
        values = {"power_w": power_w, "utilization": utilization, "vram_used_bytes": vram}
        provenance = {name: Provenance.POLLED for name, value in values.items() if value is not None}
        return Reading(power_w, utilization, vram, provenance, self._lost)

    def details(self) -> Details:
        """Read averages, clocks, temperature, and the multiprocessors' shares if the board supports GPM."""
        shares = self._read("gpm") or {}
        return Details(
            power_average_w=self._read("power_average"),
            sm_utilization=shares.get("sm_utilization"),
            sm_occupancy=shares.get("sm_occupancy"),
            dram_bandwidth=shares.get("dram_bandwidth"),
            sm_clock_mhz=self._read("clocks"),
            temperature_c=self._read("temperature"),
            throttling=self._read("throttling"),
        )

    def energy_j(self) -> float | None:
        """Return the board's counter (Volta and later)."""
        return self._read("energy")  # type: ignore[no-any-return]

    @property
    def instant(self) -> bool:
        """Whether `sample` gives the board's instant power."""
        return "instant" in self.supports()["power"].how

    def _read(self, name: str) -> Any:
        """Return the value, or None: never supported, or not this time."""
        self.supports()
        reader = self._readers.get(name)
        if reader is None:
            return None
        try:
            return reader()
        except RefusedError as refused:
            self._lost = self._lost or refused.lost
            return None

    def _choose(self, name: str, candidates: Sequence[tuple[str, Callable[[], Any]]]) -> Support:
        """Return the first candidate that answers, or why the last one does not."""
        reason = ""
        for how, reader in candidates:
            try:
                reader()
            except RefusedError as refused:
                reason, self._lost = str(refused), self._lost or refused.lost
                continue
            self._readers[name] = reader
            scope = (
                ", of the whole GPU: MIG is on" if name in _NOT_OF_AN_INSTANCE and _under_mig(self._nvml_device) else ""
            )
            return Support(Provenance.MEASURED if name == "energy" else Provenance.POLLED, how + scope)
        if name in _NOT_OF_AN_INSTANCE and _under_mig(self._nvml_device):
            reason += "; NVML does not report it under MIG"
        return Support(None, reason)

    def _candidates(self) -> dict[str, list[tuple[str, Callable[[], Any]]]]:
        is_measured = self.architecture in TIMINGS
        window = f"{self.timing.window_s:g} s" if is_measured else "an unknown time"
        nvml_device, utilization = self._nvml_device, "NVML, share of the time that any kernel ran"
        default = (f"NVML, averaged over {window}", partial(_default_w, nvml_device))
        instant = ("NVML, instant", partial(_field_w, nvml_device, "NVML_FI_DEV_POWER_INSTANT"))
        average = ("NVML, averaged over 1 s", partial(_field_w, nvml_device, "NVML_FI_DEV_POWER_AVERAGE"))
        return {
            "power": [instant, default],
            "power_average": [average, default],
            "utilization": [(utilization, partial(_utilization, nvml_device))],
            "vram": [("NVML", lambda: int(nvml_device.ask("nvmlDeviceGetMemoryInfo").used))],
            "energy": [("NVML counter", lambda: nvml_device.ask("nvmlDeviceGetTotalEnergyConsumption") / 1e3)],
            "clocks": [("NVML", partial(_clock_mhz, nvml_device, "NVML_CLOCK_SM"))],
            "temperature": [("NVML", partial(_temperature_c, nvml_device))],
            "throttling": [("NVML", partial(_throttling, nvml_device))],
        }

    def _gpm_support(self) -> dict[str, Support]:
        try:
            gpm = Gpm(self._nvml_device, *_gpu_of(self._nvml_device), self._monotonic_ns)
        except RefusedError as refused:
            self._lost = self._lost or refused.lost
            return dict.fromkeys(METRICS, Support(None, str(refused)))
        self._readers["gpm"] = gpm.shares
        return dict.fromkeys(METRICS, Support(Provenance.POLLED, "NVML GPM"))


# ------------------------------------------------------------------------------------------------- of a board itself


def nvml_device_facts(nvml: Any, handle: Any) -> dict[str, str]:
    """Return architecture, driver, clocks, temperature, limits and mode, as far as NVML reports them."""
    nvml_device = NvmlDevice(nvml, handle)
    questions: dict[str, Callable[[], Any]] = {
        "architecture": lambda: architecture_of(nvml_device),
        "driver": lambda: _text(nvml_device.call("nvmlSystemGetDriverVersion")),
        "sm_clock_mhz": partial(_clock_mhz, nvml_device, "NVML_CLOCK_SM"),
        "memory_clock_mhz": partial(_clock_mhz, nvml_device, "NVML_CLOCK_MEM"),
        "temperature_c": partial(_temperature_c, nvml_device),
        "power_limit_mw": partial(_power_limit_mw, nvml_device),
        "compute_mode": lambda: _COMPUTE_MODES.get(nvml_device.ask("nvmlDeviceGetComputeMode"), "unknown"),
        "mig_mode": lambda: nvml_device.ask("nvmlDeviceGetMigMode")[0],
        "mig_instance": lambda: _gpu_of(nvml_device)[1],
        "mps": lambda: "in use" if nvml_device.ask("nvmlDeviceGetMPSComputeRunningProcesses") else "not in use",
        "throttling": lambda: ", ".join(_throttling(nvml_device)) or "none",
    }
    return {name: str(value) for name, question in questions.items() if (value := _answer(question)) is not None}


def architecture_of(nvml_device: NvmlDevice) -> str:
    """Return NVIDIA's name of it, or `unknown`."""
    number = _answer(lambda: nvml_device.ask("nvmlDeviceGetArchitecture"))
    names = {
        _answer(partial(nvml_device.constant, f"NVML_DEVICE_ARCH_{name.upper()}")): name for name in _ARCHITECTURES
    }
    return "unknown" if number is None else names.get(number, "unknown")


def other_processes(nvml: Any, handle: Any, own: Sequence[int]) -> list[int] | None:
    """Return the processes with a compute context on the device, without `own`; None if NVML does not report them."""
    processes = _answer(lambda: NvmlDevice(nvml, handle).ask("nvmlDeviceGetComputeRunningProcesses"))
    return None if processes is None else [process.pid for process in processes if process.pid not in own]


def process_vram_bytes(nvml: Any, handle: Any, pid: int) -> int | None:
    """Return a process's memory on the device; None if NVML does not report the process, or its memory."""
    processes = _answer(lambda: NvmlDevice(nvml, handle).ask("nvmlDeviceGetComputeRunningProcesses")) or ()
    used_bytes = [process.usedGpuMemory for process in processes if process.pid == pid]
    return int(used_bytes[0]) if used_bytes and used_bytes[0] is not None else None


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """The share of the multiprocessors' time that a process had over the last interval, and the time of the sample."""

    pid: int
    share: float
    at_us: int


def process_shares(nvml: Any, handle: Any, since_us: int) -> list[ProcessShare]:
    """Return the shares of every process that used the device since then; empty if NVML does not report them."""
    samples = _answer(lambda: NvmlDevice(nvml, handle).ask("nvmlDeviceGetProcessUtilization", since_us))
    return [
        ProcessShare(sample.pid, sample.smUtil / 100, sample.timeStamp)
        for sample in samples or ()
        # of a process that has just ended the share may be garbage, and some drivers fill up with zeros
        if sample.smUtil <= 100 and sample.timeStamp > since_us
    ]


def _answer(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except RefusedError:
        return None


def _gpu_of(nvml_device: NvmlDevice) -> tuple[NvmlDevice, int | None]:
    """Return the whole GPU, and which MIG instance of it the device is, if it is one."""
    flag = _answer(lambda: nvml_device.ask("nvmlDeviceIsMigDeviceHandle"))
    if not getattr(flag, "value", flag):  # pynvml gives this one as a ctypes number
        return nvml_device, None
    parent = nvml_device.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
    return NvmlDevice(nvml_device.nvml, parent), int(nvml_device.ask("nvmlDeviceGetGpuInstanceId"))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _field_w(nvml_device: NvmlDevice, name: str) -> float:
    milliwatts = nvml_device.field(name)
    if not milliwatts:
        raise RefusedError(f"{name} reads 0")  # some drivers' value for unknown
    return milliwatts / 1e3


def _default_w(nvml_device: NvmlDevice) -> float:
    return float(nvml_device.ask("nvmlDeviceGetPowerUsage")) / 1e3


def _utilization(nvml_device: NvmlDevice) -> float:
    return float(nvml_device.ask("nvmlDeviceGetUtilizationRates").gpu) / 100


def _power_limit_mw(nvml_device: NvmlDevice) -> int:
    """Return the limit that clips the board's power: of several limits the least."""
    try:
        return int(nvml_device.ask("nvmlDeviceGetEnforcedPowerLimit"))
    except RefusedError:
        return int(nvml_device.ask("nvmlDeviceGetPowerManagementLimit"))


def _under_mig(nvml_device: NvmlDevice) -> bool:
    return (
        bool(_answer(lambda: nvml_device.ask("nvmlDeviceGetMigMode")[0]))
        or _answer(lambda: _gpu_of(nvml_device)[1]) is not None
    )


def _clock_mhz(nvml_device: NvmlDevice, constant: str) -> int:
    return int(nvml_device.ask("nvmlDeviceGetClockInfo", nvml_device.constant(constant)))


def _temperature_c(nvml_device: NvmlDevice) -> int:
    return int(nvml_device.ask("nvmlDeviceGetTemperature", nvml_device.constant("NVML_TEMPERATURE_GPU")))


def _throttling(nvml_device: NvmlDevice) -> tuple[str, ...]:
    """Return the reasons that slow a busy device; newer drivers call them event reasons."""
    try:
        bits = nvml_device.ask("nvmlDeviceGetCurrentClocksEventReasons")
    except RefusedError:
        bits = nvml_device.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return tuple(name for name in _THROTTLING if bits & nvml_device.constant(f"nvmlClocksThrottleReason{name}"))
