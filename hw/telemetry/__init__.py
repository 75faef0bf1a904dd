"""A device's sensors behind one small port, each field with its provenance. It decides nothing.

Backends: NVML (NVIDIA GPUs), RAPL (a whole CPU package's energy counter), modelled (CPU power from the share of time
that the servers' processes ran), absent. Each is asked what it supports before it is used. A field that a sensor
cannot give is None, never a guess.
"""

from hw.host.limits import usable_cores
from hw.telemetry.background import BackgroundWatch, CoreWatch, GpuWatch, Used, ended_children
from hw.telemetry.cpu import (
    CPU_IDLE_W_PER_CORE,
    CPU_TDP_W_PER_CORE,
    CpuShare,
    ModelledCpuSensor,
    Pids,
    cpu_name,
    process_cpu_s,
)
from hw.telemetry.local import DeviceDescription, available_devices, cpu_sensor, unusable_devices
from hw.telemetry.nvml import (
    NvmlSensor,
    Timing,
    board_facts,
    device_label,
    load_nvml,
    nvml_handle,
    used_vram_bytes,
)
from hw.telemetry.port import Details, Reading, Sensor, Support
from hw.telemetry.rapl import RaplCounter, RaplSensor

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
    "board_facts",
    "cpu_name",
    "cpu_sensor",
    "device_label",
    "ended_children",
    "load_nvml",
    "nvml_handle",
    "process_cpu_s",
    "unusable_devices",
    "usable_cores",
    "used_vram_bytes",
]
