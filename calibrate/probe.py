"""What a device is and says of itself: its stamps, its sensor, its idle power, its memory's bandwidth.

It changes no clock, no limit and no mode.
"""

from __future__ import annotations

import os
import platform
import time  # noqa: TID251 - bandwidth is bytes over real time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import psutil
import torch

from calibrate.datasheet import find_gpu
from calibrate.workers import mean_power, sampled
from hw.device import DeviceSpec
from hw.telemetry import NvmlSensor, cpu_name, cpu_sensor, load_nvml, nvml_handle
from hw.telemetry import Sensor as HardwareSensor
from policies.errors import InputError
from policies.vocabulary import NS_PER_S, Provenance
from sim.profile import DeviceInfo, Power, Sensor

COPY_BYTES = 64 << 20  # beyond any cache
COPIES = 4
NVML_WINDOW_S = 1.0  # of its utilization, and of its power where the board has no instant reading


@dataclass(frozen=True, slots=True)
class Probe:
    """A device before anything runs on it.

    Attributes:
        info: its name, memory and stamps.
        metered: whether the sensor really tells power (else it is modelled).
        bandwidth_bytes_s: of its memory: bytes read and written a second by a large copy.
    """

    info: DeviceInfo
    metered: bool
    bandwidth_bytes_s: float


def probe(spec: DeviceSpec) -> Probe:
    """Look at a device; takes well under a second on a CPU."""
    sensor = open_sensor(spec, ())
    metered = sensor.describe()["power"].startswith(("measured", "polled"))
    info = DeviceInfo(
        kind=spec.kind,
        name=device_name(spec),
        vram_bytes=spec.vram_bytes,
        stamps={**_machine(), **_gpu_stamps(spec), **{f"telemetry_{k}": v for k, v in sensor.describe().items()}},
    )
    bandwidth = _cuda_bandwidth_bytes_s(spec) if spec.kind == "cuda" else _cpu_bandwidth_bytes_s(spec.threads)
    return Probe(info, metered, bandwidth)


def device_name(spec: DeviceSpec) -> str:
    """The model name of the GPU or the processor."""
    return torch.cuda.get_device_name(spec.index) if spec.kind == "cuda" else cpu_name()


def open_sensor(spec: DeviceSpec, pids: tuple[int, ...]) -> HardwareSensor:
    """The device's sensor; on a CPU, utilization is that of these processes.

    Raises:
        InputError: a GPU, but no NVML to ask it.
    """
    if spec.kind == "cpu":
        return cpu_sensor(pids, spec.physical[1], spec.modelled_idle_w, spec.modelled_tdp_w, lambda: 0)
    nvml = load_nvml()
    if nvml is None:
        raise InputError("device", f"cuda:{spec.index}", "NVML cannot be loaded; install the NVIDIA driver's library")
    return NvmlSensor(nvml, nvml_handle(nvml, spec.index))


def idle_w(spec: DeviceSpec, found: Probe, duration_s: float) -> tuple[float, Provenance]:
    """Power of the device as it is now, over a while; the assumed one where no sensor tells."""
    if not found.metered:
        assumed = _assumed(spec, found.info.name)
        return assumed.idle_w, assumed.provenance
    with sampled(open_sensor(spec, ())) as take:
        time.sleep(duration_s)
        power = mean_power(take(), duration_s / 4)
    return power.power_w, power.provenance


def power_model(
    spec: DeviceSpec, found: Probe, bare: tuple[float, Provenance], context: tuple[float, Provenance]
) -> Power:
    """Idle powers as they were seen, and the cap: the board's limit, or the assumed TDP."""
    cap_w, cap_provenance = _cap(spec, found)
    bare_w, context_w = min(bare[0], context[0]), context[0]  # a noisy sensor may see less under a context
    return Power(
        bare_idle_w=bare_w,
        context_idle_w=context_w,
        cap_w=max(cap_w, context_w),
        provenance=Provenance.weakest(bare[1], context[1], cap_provenance),
    )


def sensor_model(spec: DeviceSpec, period_s: float) -> Sensor:
    """What the simulator makes of the sensor, sampled every `period_s`.

    A modelled CPU sensor averages over its own period; NVML's utilization is over up to a second, and its power is
    the instant reading where the board has one.
    """
    window_s = period_s if spec.kind == "cpu" else max(period_s, NVML_WINDOW_S)
    return Sensor(period_s=period_s, lag_s=0.0, power_window_s=period_s, utilization_window_s=window_s)


# ---------------------------------------------------------------------------------------------------------- stamps


def _machine() -> dict[str, str]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cpu": cpu_name(),
        "cpu_cores": str(os.cpu_count()),
        "memory_bytes": str(psutil.virtual_memory().total),
    }


def _gpu_stamps(spec: DeviceSpec) -> dict[str, str]:
    """Driver, clocks, temperature and limits, as far as NVML tells them."""
    nvml = load_nvml() if spec.kind == "cuda" else None
    if nvml is None:
        return {}
    handle = nvml_handle(nvml, spec.index)
    questions = {
        "driver": lambda: nvml.nvmlSystemGetDriverVersion(),
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "power_limit_mw": lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle),
        "mig_mode": lambda: nvml.nvmlDeviceGetMigMode(handle)[0],
    }
    answers = {name: _answer(nvml, question) for name, question in questions.items()}
    return {
        "cuda": str(torch.version.cuda),
        **{name: str(value) for name, value in answers.items() if value is not None},
    }


def _answer(nvml: Any, question: Any) -> Any:
    try:
        return question()
    except nvml.NVMLError:
        return None


# ----------------------------------------------------------------------------------------------------------- power


def _cap(spec: DeviceSpec, found: Probe) -> tuple[float, Provenance]:
    limit_mw = found.info.stamps.get("power_limit_mw")
    if limit_mw is not None:
        return float(limit_mw) / 1e3, Provenance.MEASURED
    assumed = _assumed(spec, found.info.name)
    return assumed.tdp_w, assumed.provenance


@dataclass(frozen=True, slots=True)
class _Assumed:
    """Powers where nothing measures them."""

    idle_w: float
    tdp_w: float
    provenance: Provenance


def _assumed(spec: DeviceSpec, name: str) -> _Assumed:
    if spec.kind == "cpu":
        return _Assumed(spec.modelled_idle_w, spec.modelled_tdp_w, Provenance.MODELLED)
    if spec.idle_w is not None and spec.tdp_w is not None:
        return _Assumed(spec.idle_w, spec.tdp_w, Provenance.MODELLED)
    gpu = find_gpu(name)
    return _Assumed(gpu.idle_w, gpu.tdp_w, Provenance.DATASHEET)


# -------------------------------------------------------------------------------------------------------- bandwidth


def _cpu_bandwidth_bytes_s(threads: int) -> float:
    """The best of a few large copies by as many threads as the device has."""
    sources = [np.ones(COPY_BYTES // threads, dtype=np.uint8) for _ in range(threads)]
    targets = [np.zeros_like(source) for source in sources]
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(COPIES):
            begin_ns = time.monotonic_ns()
            list(pool.map(np.copyto, targets, sources))
            seconds.append((time.monotonic_ns() - begin_ns) / NS_PER_S)
    return 2 * sum(source.nbytes for source in sources) / min(seconds)


def _cuda_bandwidth_bytes_s(spec: DeviceSpec) -> float:
    """The best of a few large copies inside the GPU's memory."""
    device = torch.device("cuda", spec.index)
    source = torch.ones(4 * COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    seconds = []
    for _ in range(COPIES + 1):
        torch.cuda.synchronize(device)
        begin_ns = time.monotonic_ns()
        target.copy_(source)
        torch.cuda.synchronize(device)
        seconds.append((time.monotonic_ns() - begin_ns) / NS_PER_S)
    return 2 * source.nbytes / min(seconds)
