"""Checks of power: three idles, the fall of clocks, and loops at several duties by every available reading."""

from __future__ import annotations

import contextlib
import os
import time  # noqa: TID251 - it looks for a while
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch

from benchmarks.gpu.serving import points
from benchmarks.gpu.stand import Stand
from calibrate.power_meter import Watched, fall_s, is_flat, sampled, wait_until_flat
from hw.device_settings import local_devices
from hw.router.local_workers import start_workers
from hw.telemetry import load_nvml, nvml_handle
from hw.telemetry.nvml import NvmlSensor
from hw.transport.messages import Benchmark, Point
from hw.worker.torch_outfit import alone, torch_workers

LOOK_S: Final = 3.0
FALL_S: Final = 8.0
RISE_S: Final = 1.0
STEADY: Final = 0.03
DUTIES: Final = (0.01, 0.1, 0.5)


def _sensor(stand: Stand) -> NvmlSensor:
    stand.require_gpu("NVML")
    nvml = load_nvml()
    if nvml is None:
        raise RuntimeError("NVML is missing")
    return NvmlSensor(nvml, nvml_handle(nvml, 0))


def no_context(stand: Stand) -> str:
    """Check that detecting devices in the router's process opens no context."""
    nvml = load_nvml()
    if not stand.is_gpu or nvml is None:
        devices = local_devices()
        stand.tell({"devices": len(devices)})
        return "it opened CUDA" if _has_opened() else ""
    handle = nvml_handle(nvml, 0)
    before = nvml.nvmlDeviceGetMemoryInfo(handle).used
    devices = local_devices()
    after = nvml.nvmlDeviceGetMemoryInfo(handle).used
    pids = [each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle) if each.pid == os.getpid()]
    stand.tell({"devices": len(devices), "grown_bytes": int(after - before), "is_listed": bool(pids)})
    return "it has a context" if pids or (_has_opened() and after - before > (64 << 20)) else ""


def _has_opened() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def idles(stand: Stand) -> str:
    """Measure idle power before any context, with one, with three, and after a load until clocks have fallen."""
    sensor, context_w = _sensor(stand), dict[int, float]()
    waited_s = wait_until_flat(sensor)
    bare = _mean_w(_looks(sensor, LOOK_S))
    stand.tell({"waited_s": waited_s, "bare_w": bare})
    for count in (1, 3):
        devices = [(f"worker{number}", stand.device) for number in range(count)]
        with contextlib.ExitStack() as stack:
            specs = stack.enter_context(torch_workers(devices, stand.file))
            for worker in stack.enter_context(start_workers(specs)):
                worker.wait_until_ready()
            wait_until_flat(sensor)
            looks = _looks(sensor, LOOK_S)
            context_w[count] = _mean_w(looks)
            stand.tell({f"contexts_{count}_w": context_w[count], f"flat_{count}": is_flat(looks)})
    alone(stand.instances(graphs=True), Benchmark(points(stand, (32,))[0], 5, 2, 3.0))
    fall = _looks(sensor, FALL_S)
    after_w = _mean_w([look for look in fall if 1.0 <= look.at_s - fall[0].at_s <= 1.5])
    clocks = [look.details.sm_clock_mhz for look in fall if look.details.sm_clock_mhz is not None]
    clocks_mhz = f"{clocks[0]} ... {clocks[-1]}" if clocks else "not reported"
    stand.tell({"fall_s": fall_s(fall, RISE_S), "after_1_s_w": after_w, "clocks_mhz": clocks_mhz})
    return "less power with a context than without" if context_w[1] < (1 - STEADY) * bare else ""


def loops(stand: Stand) -> str:
    """Measure power, polled and counted, SM share and clocks of loops, by batch and by duty."""
    sensor, wrong = _sensor(stand), list[str]()
    for point in points(stand, (1, 8, 32, 128)):
        wrong += _one(stand, sensor, point, 0.0, f"batch_{point.batch}")
    (point,) = points(stand, (32,))
    pass_s = float(np.median(alone(stand.instances(graphs=True), Benchmark(point, 5, 20, 0.0)).samples_s))
    for duty in DUTIES:
        _one(stand, sensor, point, (1 / duty - 1) * pass_s, f"duty_{duty:g}")
    return ", ".join(wrong)


def _one(stand: Stand, sensor: NvmlSensor, point: Point, pause_s: float, name: str) -> list[str]:
    with sampled(sensor) as take:
        alone(stand.instances(graphs=True), Benchmark(point, 5, 2, LOOK_S + RISE_S, pause_s))
        looks = take()
    steady = [look for look in looks if look.at_s >= looks[0].at_s + RISE_S]
    polled_w, counted_w = _mean_w(steady), _counted_w(steady)
    details = [look.details for look in steady if look.details.sm_clock_mhz is not None]
    numbers: dict[str, Any] = {f"{name}_w": [polled_w, counted_w]}
    if details:
        numbers[f"{name}_clock_mhz"] = float(np.mean([each.sm_clock_mhz or 0 for each in details]))
        numbers[f"{name}_sm_share"] = float(np.mean([each.sm_utilization or 0.0 for each in details]))
        reasons = {reason for each in details for reason in each.throttling or ()}
        numbers[f"{name}_throttling"] = ", ".join(sorted(reasons))
    stand.tell(numbers)
    is_apart = pause_s == 0 and counted_w is not None and abs(counted_w / polled_w - 1) > STEADY
    return [f"{name}: the counter differs from the polled mean"] if is_apart else []


def _looks(sensor: NvmlSensor, seconds: float) -> list[Watched]:
    with sampled(sensor) as take:
        time.sleep(seconds)
        return take()


def _mean_w(looks: Sequence[Watched]) -> float:
    return float(np.mean([look.reading.power_w for look in looks if look.reading.power_w is not None]))


def _counted_w(looks: Sequence[Watched]) -> float | None:
    readings = [(look.at_s, look.energy_j) for look in looks if look.energy_j is not None]
    steps = [after for before, after in pairwise(readings) if after[1] != before[1]]
    if len(steps) < 2:
        return None
    return (steps[-1][1] - steps[0][1]) / (steps[-1][0] - steps[0][0])
