"""Checks of the device's identity, its sensor's readings, and the cost of a context."""

from __future__ import annotations

import contextlib
import time  # noqa: TID251 - calls are timed
from collections.abc import Callable
from typing import Final

import numpy as np
import torch

from benchmarks.gpu.stand import Stand
from hw.router.local_workers import start_workers
from hw.telemetry import GpuWatch, cpu_name, load_nvml, nvml_handle, usable_cores
from hw.telemetry.nvml import NvmlSensor, nvml_device_facts
from hw.worker.cuda import unserved
from hw.worker.torch_outfit import torch_workers

APART: Final = 0.05
CALLS: Final = 100
COUNTER_LOOKS_S: Final = 2.0


def what_it_is(stand: Stand) -> str:
    """Report versions, and whether this torch computes there."""
    if not stand.is_gpu:
        stand.tell({"cpu": cpu_name(), "cores": len(usable_cores())})
        return ""
    capability, built_for = torch.cuda.get_device_capability(0), torch.cuda.get_arch_list()
    nvml = load_nvml()
    facts = {} if nvml is None else nvml_device_facts(nvml, nvml_handle(nvml, 0))
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    stand.tell({"capability": capability, "built_for": built_for, "cudnn": cudnn, **facts})
    return unserved(capability, built_for)


def calls(stand: Stand) -> str:
    """Measure the time of each reading, p50 and p99, and the update rate of the energy counter."""
    stand.require_gpu("NVML")
    nvml = load_nvml()
    if nvml is None:
        return "NVML is missing"
    handle = nvml_handle(nvml, 0)
    sensor, watch = NvmlSensor(nvml, handle), GpuWatch(nvml, handle, tuple)
    stand.tell(sensor.describe())
    reads = {"sample": sensor.sample, "energy": sensor.energy_j, "details": sensor.details, "watch": watch.look}
    for name, read in reads.items():  # a worker's thread waits for the first two, the router's for the last
        stand.tell(_timed_ms(name, read))
    changed_s = list[float]()
    before, end_s = sensor.energy_j(), time.monotonic() + COUNTER_LOOKS_S
    while time.monotonic() < end_s:
        if (now := sensor.energy_j()) != before:
            changed_s.append(time.monotonic())
            before = now
    steps_s = np.diff(changed_s)
    stand.tell({"counter_step_s": float(np.median(steps_s)) if len(steps_s) else None})
    return ""


def _timed_ms(name: str, read: Callable[[], object]) -> dict[str, float]:
    took_ms = list[float]()
    for _ in range(CALLS):
        began_ns = time.monotonic_ns()
        read()
        took_ms.append((time.monotonic_ns() - began_ns) / 1e6)
    return {f"{name}_p50_ms": float(np.median(took_ms)), f"{name}_p99_ms": float(np.quantile(took_ms, 0.99))}


def contexts(stand: Stand) -> str:
    """Measure contexts as reported by workers: one alone, then three that start simultaneously."""
    stand.require_gpu("a context")
    used: dict[str, list[int]] = {}
    for name, count in {"alone": 1, "side_by_side": 3}.items():
        devices = [(f"worker{number}", stand.device) for number in range(count)]
        with contextlib.ExitStack() as stack:
            specs = stack.enter_context(torch_workers(devices, stand.file))
            workers = stack.enter_context(start_workers(specs))
            used[f"{name}_bytes"] = [worker.wait_until_ready().context_bytes for worker in workers]
        stand.tell(used)
    (alone,), beside = used["alone_bytes"], used["side_by_side_bytes"]
    is_apart = any(abs(each - alone) > APART * alone for each in beside)
    return "they differ" if is_apart or not alone else ""
