"""Profiles from published specifications, labelled `datasheet`: shapes to experiment with, no promise of accuracy.

The model is a roofline above a launch floor, one forward pass of a batch b of a key with MACs, bytes and kernels:

    roofline(b) = max(2 MACs b / (COMPUTE_SHARE x peak), bytes(b) / (MEMORY_SHARE x bandwidth))
    L(b)        = max(kernels x LAUNCH_S, roofline(b))        flat while launches bound it, then linear
    k(b)        = (TDP - context idle) x roofline(b) / b      so power is linear in images/s, and TDP at saturation
    u(b)        = min(1, (kernels x SHORTEST_KERNEL_S + roofline(b)) / L(b))      any kernel running, as NVML counts

Its constants are assumptions of this project, the same for every GPU; what differs between GPUs is published.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from calibrate.costs import Key, KeyCost, ModelCosts
from calibrate.plan import full_grid
from policies.errors import InputError, nearest
from policies.vocabulary import Provenance
from sim.profile import (
    SCHEMA,
    Concurrency,
    DeviceInfo,
    InstanceCost,
    LatencyCurve,
    Memory,
    Power,
    Profile,
    Sensor,
)

COMPUTE_SHARE = 0.45  # of the FP32 peak, by convolutions of these sizes
MEMORY_SHARE = 0.75  # of the peak bandwidth
LAUNCH_S = 8e-6  # the host's time for one kernel, in eager mode
SHORTEST_KERNEL_S = 2e-6
DISPATCH_S = 1.5e-4
CONTEXT_BYTES = 350_000_000
CONTEXT_SHARE_W = 0.05  # of the TDP, drawn by a context that does nothing
DISK_BYTES_S, HOST_BYTES_S = 5e8, 6e9
FIRST_LOAD_S, RELOAD_S, UNLOAD_S = 5e-3, 1e-3, 5e-4
ALPHA, BETA = 0.1, 1.0  # fair sharing, and a little contention for bandwidth
THROTTLE, PHI_MIN = 0.3, 0.7

# Sensor period and power window in seconds by architecture (arXiv 2312.02741).
_MAXWELL, _VOLTA, _TURING, _LATER = (0.1, 0.345), (0.02, 0.02), (0.1, 0.1), (0.1, 1.0)
UTILIZATION_WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """What is published of a GPU.

    Attributes:
        peak_flop_s: FP32.
        sensor_s: (period, window) of its power sensor.
    """

    name: str
    multiprocessors: int
    peak_flop_s: float
    bandwidth_bytes_s: float
    vram_bytes: int
    tdp_w: float
    idle_w: float
    sensor_s: tuple[float, float]


def _gpu(
    name: str, sms: int, tflop_s: float, gb_s: float, gb: int, tdp_w: float, idle_w: float, sensor: tuple[float, float]
) -> Gpu:
    return Gpu(name, sms, tflop_s * 1e12, gb_s * 1e9, gb * 10**9, tdp_w, idle_w, sensor)


_TABLE = (
    _gpu("GTX 980 Ti", 22, 6.06, 336, 6, 250, 10, _MAXWELL),
    _gpu("RTX 2080 Ti", 68, 13.45, 616, 11, 250, 15, _TURING),
    _gpu("T4", 40, 8.1, 320, 16, 70, 10, _TURING),
    _gpu("V100 SXM2", 80, 15.7, 900, 16, 300, 53.5, _VOLTA),
    _gpu("A10", 72, 31.2, 600, 24, 150, 17, _LATER),
    _gpu("A100 SXM", 108, 19.5, 2039, 80, 400, 56, _LATER),
    _gpu("L4", 58, 30.3, 300, 24, 72, 16, _LATER),
    _gpu("RTX 3090", 82, 35.6, 936, 24, 350, 30, _LATER),
    _gpu("RTX 4090", 128, 82.6, 1008, 24, 450, 30, _LATER),
    _gpu("H100 SXM", 132, 67, 3350, 80, 700, 70, _LATER),
    _gpu("H200", 132, 67, 4800, 141, 700, 77, _LATER),
)
GPUS: dict[str, Gpu] = {gpu.name.lower().replace(" ", "-"): gpu for gpu in _TABLE}


def find_gpu(name: str) -> Gpu:
    """A GPU by name, however it is spelled (`RTX 2080 Ti`, `nvidia-rtx-2080-ti`).

    Raises:
        InputError: no such GPU in the table.
    """
    wanted = _plain(name)
    for gpu in GPUS.values():
        if _plain(gpu.name) == wanted:
            return gpu
    raise InputError("profile synth", "gpu", f"no published figures of {name!r}; {nearest(name.lower(), GPUS)}")


def synthesize(gpu_name: str, costs: ModelCosts, batch_limit: int = 128) -> Profile:
    """A profile of a GPU running a model, derived from the GPU's published figures.

    Raises:
        InputError: no such GPU in the table, or the batch limit is below 1.
    """
    gpu = find_gpu(gpu_name)
    if batch_limit < 1:
        raise InputError("profile synth", "batch_limit", f"must be at least 1, found {batch_limit}")
    period_s, window_s = gpu.sensor_s
    context_idle_w = gpu.idle_w + CONTEXT_SHARE_W * gpu.tdp_w
    return Profile(
        schema=SCHEMA,
        name=f"{gpu.name.lower().replace(' ', '-')}-{costs.info.name}",
        provenance=Provenance.DATASHEET,
        device=DeviceInfo(kind="cuda", name=gpu.name, vram_bytes=gpu.vram_bytes, stamps={"source": "datasheet"}),
        model=costs.info,
        execution={"dtype": "float32", "mode": "eager"},
        dispatch_s=DISPATCH_S,
        latency=tuple(_curve(gpu, key, costs.keys[key], batch_limit, context_idle_w) for key in sorted(costs.keys)),
        memory=Memory(context_bytes=CONTEXT_BYTES, instances=_instances(costs, batch_limit)),
        concurrency=Concurrency(alpha=ALPHA, beta=BETA, provenance=Provenance.DATASHEET),
        power=Power(
            bare_idle_w=gpu.idle_w,
            context_idle_w=context_idle_w,
            cap_w=gpu.tdp_w,
            throttle=THROTTLE,
            phi_min=PHI_MIN,
            provenance=Provenance.DATASHEET,
        ),
        sensor=Sensor(period_s=period_s, lag_s=0.0, power_window_s=window_s, utilization_window_s=UTILIZATION_WINDOW_S),
        omitted=("everything: derived from published figures, nothing was measured",),
    )


def roofline_s(gpu: Gpu, cost: KeyCost, batch: int) -> float:
    """How long a batch keeps the arithmetic or the memory busy, whichever is longer."""
    compute_s = 2 * cost.macs * batch / (COMPUTE_SHARE * gpu.peak_flop_s)
    return max(compute_s, cost.batch_bytes(batch) / (MEMORY_SHARE * gpu.bandwidth_bytes_s))


def _curve(gpu: Gpu, key: Key, cost: KeyCost, batch_limit: int, context_idle_w: float) -> LatencyCurve:
    segment, width, previous_width = key
    batches = full_grid(batch_limit)
    work_s = [roofline_s(gpu, cost, batch) for batch in batches]
    launch_s = cost.kernels * LAUNCH_S
    latency_s = tuple(max(launch_s, work) for work in work_s)
    each = list(zip(batches, work_s, latency_s, strict=True))
    range_w = gpu.tdp_w - context_idle_w
    moved_s = [cost.batch_bytes(batch) / gpu.bandwidth_bytes_s for batch in batches]
    return LatencyCurve(
        segment=segment,
        width=width,
        previous_width=previous_width,
        batches=batches,
        mean_s=latency_s,
        p50_s=latency_s,
        utilization=tuple(min(1.0, (cost.kernels * SHORTEST_KERNEL_S + work) / total) for _, work, total in each),
        sm_utilization=tuple(min(1.0, work / total) for _, work, total in each),
        energy_j_per_image=tuple(range_w * work / batch for batch, work, _ in each),
        host_share=tuple(min(1.0, launch_s / total) for total in latency_s),
        bandwidth_share=tuple(min(1.0, moved / total) for moved, total in zip(moved_s, latency_s, strict=True)),
    )


def _instances(costs: ModelCosts, batch_limit: int) -> tuple[InstanceCost, ...]:
    return tuple(
        InstanceCost(
            segment=segment,
            width=width,
            vram_bytes=weights + _workspace_bytes(costs, segment, width, batch_limit),
            load_s=FIRST_LOAD_S + weights / DISK_BYTES_S,
            reload_s=RELOAD_S + weights / HOST_BYTES_S,
            unload_s=UNLOAD_S,
        )
        for (segment, width), weights in sorted(costs.instance_bytes.items())
    )


def _workspace_bytes(costs: ModelCosts, segment: int, width: float, batch_limit: int) -> int:
    """Feature maps alive at once: about two of those that a batch at the limit writes."""
    key = max(key for key in costs.keys if key[:2] == (segment, width))
    return 2 * batch_limit * costs.keys[key].moved_bytes * 3 // costs.keys[key].kernels


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|[^a-z0-9]", "", name.lower())
