"""A device's sensors behind one small port, each field with its provenance. It decides nothing.

Backends: NVML (NVIDIA GPUs), RAPL (a whole CPU package's energy counter), modelled (CPU power from the share of time
that the servers' processes ran), absent. Each is asked what it supports before it is used. A field that a sensor
cannot give is None, never a guess.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hw.host_resources import machine_bytes, usable_cores
from hw.telemetry.background_load import BackgroundWatch, CoreWatch, GpuWatch, Used, ended_children
from hw.telemetry.nvml import (
    NvmlSensor,
    RefusedError,
    Timing,
    device_label,
    free_vram_bytes,
    handle_of,
    load_nvml,
    nvml_device_facts,
    nvml_handle,
    used_vram_bytes,
    visible_gpus,
)
from hw.telemetry.sensors import (
    CPU_IDLE_W_PER_CORE,
    CPU_TDP_W_PER_CORE,
    POWERCAP,
    CpuShare,
    Details,
    ModelledCpuSensor,
    Pids,
    RaplCounter,
    RaplSensor,
    Reading,
    Sensor,
    Support,
    cpu_name,
    process_cpu_s,
    why_no_counter,
)


@dataclass(frozen=True, slots=True)
class DeviceDescription:
    """A device of this machine.

    Attributes:
        telemetry: for each field whether and how it works, or why not.
        facts: driver, clocks, temperature, mode and the like, as far as they are known.
        problem: why it can't be used, in words; empty if it can.
    """

    name: str
    kind: str
    index: int
    cores: tuple[int, ...]
    vram_bytes: int
    telemetry: Mapping[str, str]
    facts: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def state(self) -> str:
        """The device's description, or why it can't be used."""
        if self.problem:
            return f"can't be used: {self.problem}"
        memory = f"{self.vram_bytes / 1e9:.1f} GB" if self.vram_bytes else "memory unknown"  # the host's
        return f"{self.name}, {memory}"


def cpu_sensor(
    pids: Pids,
    cores: Sequence[int],
    idle_w: float,
    tdp_w: float,
    vram_used_bytes: Callable[[], int],
    powercap: Path = POWERCAP,
) -> Sensor:
    """Return RAPL if readable and the cores are the whole machine (it can't report cores apart), otherwise modelled."""
    share = CpuShare(pids, len(cores))
    machine_cores = os.cpu_count()
    if len(cores) == machine_cores:
        try:
            return RaplSensor(RaplCounter(powercap), share, vram_used_bytes)
        except OSError as error:
            reason = why_no_counter(error)
    else:
        reason = f"RAPL counts whole packages, this device has {len(cores)} of {machine_cores} cores"
    return ModelledCpuSensor(share, idle_w, tdp_w, vram_used_bytes, reason)


def available_devices(nvml: Any | None = None) -> list[DeviceDescription]:
    """Return every GPU that CUDA shows, then the CPU as one device; each sensor is asked once."""
    library = load_nvml() if nvml is None else nvml
    devices = [] if library is None else _gpus(library)
    cores = usable_cores()
    idle_w, tdp_w = CPU_IDLE_W_PER_CORE * len(cores), CPU_TDP_W_PER_CORE * len(cores)
    sensor = cpu_sensor((os.getpid(),), cores, idle_w, tdp_w, lambda: 0)
    memory = machine_bytes()
    return [*devices, DeviceDescription(cpu_name(), "cpu", 0, cores, memory, sensor.describe())]


def unusable_devices(devices: Sequence[DeviceDescription]) -> list[str]:
    """Return a warning for each device that can't be used."""
    return [f"warning: {device.kind}:{device.index} {device.state}" for device in devices if device.problem]


def _gpus(nvml: Any) -> list[DeviceDescription]:
    """Return the GPUs; a lost one has its problem alone, and so has the first if NVML can't even count them."""
    try:
        return [_describe_gpu(nvml, index, name) for index, name in enumerate(visible_gpus(nvml))]
    except RefusedError as refused:
        return [_unusable(0, f"NVML can't count the GPUs ({refused})")]


def _unusable(index: int, problem: str) -> DeviceDescription:
    return DeviceDescription("GPU", "cuda", index, (), 0, {}, problem=problem)


def _describe_gpu(nvml: Any, index: int, name: str) -> DeviceDescription:
    try:
        handle = handle_of(nvml, name)
    except RefusedError as refused:
        return _unusable(index, str(refused))
    _, vram_bytes = free_vram_bytes(nvml, handle)
    reported, facts = NvmlSensor(nvml, handle).describe(), nvml_device_facts(nvml, handle)
    return DeviceDescription(device_label(nvml, handle), "cuda", index, (), vram_bytes, reported, facts)


__all__ = [
    "CPU_IDLE_W_PER_CORE",
    "CPU_TDP_W_PER_CORE",
    "BackgroundWatch",
    "CoreWatch",
    "CpuShare",
    "Details",
    "DeviceDescription",
    "GpuWatch",
    "ModelledCpuSensor",
    "NvmlSensor",
    "Pids",
    "RaplCounter",
    "RaplSensor",
    "Reading",
    "Sensor",
    "Support",
    "Timing",
    "Used",
    "available_devices",
    "cpu_name",
    "cpu_sensor",
    "device_label",
    "ended_children",
    "load_nvml",
    "nvml_device_facts",
    "nvml_handle",
    "process_cpu_s",
    "unusable_devices",
    "usable_cores",
    "used_vram_bytes",
]
