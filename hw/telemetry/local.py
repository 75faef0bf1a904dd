"""What is here: the devices of this machine, each with its sensor and what that sensor supports."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hw.telemetry.cpu import (
    CPU_IDLE_W_PER_CORE,
    CPU_TDP_W_PER_CORE,
    CpuShare,
    ModelledCpuSensor,
    Pids,
    cpu_name,
    usable_cores,
)
from hw.telemetry.nvml import NvmlSensor, board_facts, device_label, load_nvml
from hw.telemetry.port import Sensor
from hw.telemetry.rapl import POWERCAP, RaplCounter, RaplSensor, why_no_counter


@dataclass(frozen=True, slots=True)
class DeviceDescription:
    """A device of this machine.

    Attributes:
        telemetry: for each field whether and how it works, or why not.
        facts: driver, clocks, temperature, mode and the like, as far as they are known.
    """

    name: str
    kind: str
    index: int
    cores: tuple[int, ...]
    vram_bytes: int
    telemetry: Mapping[str, str]
    facts: Mapping[str, str] = field(default_factory=dict)


def cpu_sensor(
    pids: Pids,
    cores: Sequence[int],
    idle_w: float,
    tdp_w: float,
    vram_used_bytes: Callable[[], int],
    powercap: Path = POWERCAP,
) -> Sensor:
    """RAPL where it can be read and the cores are the whole machine (it cannot report cores apart), else modelled."""
    share = CpuShare(pids, len(cores))
    every = os.cpu_count()
    if len(cores) == every:
        try:
            return RaplSensor(RaplCounter(powercap), share, vram_used_bytes)
        except OSError as error:
            reason = why_no_counter(error)
    else:
        reason = f"RAPL counts whole packages, this device has {len(cores)} of {every} cores"
    return ModelledCpuSensor(share, idle_w, tdp_w, vram_used_bytes, reason)


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
    try:
        vram_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        vram_bytes = 0
    reported, facts = NvmlSensor(nvml, handle).describe(), board_facts(nvml, handle)
    return DeviceDescription(device_label(nvml, handle), "cuda", index, (), vram_bytes, reported, facts)
