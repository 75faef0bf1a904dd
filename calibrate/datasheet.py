"""Profiles from published specifications, labelled `datasheet`, with the costs of one real host and GPUs' sensors.

Host costs (`MeasuredHost`): a datasheet has no data on the routing process. That process is the same for all GPUs, so
its costs were measured once, and are in every profile that `profile synth` creates (docs/profiles.md).

Latency (`forward_times`): a roofline above a launch floor; `docs/profiles.md` derives it and names the source of every
constant. One forward pass of a batch b of a key with MACs, bytes and kernels, on a GPU of M multiprocessors:

    work(b) = max(2 MACs b / (COMPUTE_SHARE x peak), bytes(b) / (MEMORY_SHARE x bandwidth))     all of the GPU at work
    fill(b) = min(1, tiles b / M)                              the share of the multiprocessors that get a tile
    busy(b) = max(2 MACs b / (COMPUTE_SHARE x peak x fill(b)), bytes(b) / (MEMORY_SHARE x bandwidth))
    L(b)    = (launch^q + busy(b)^q)^(1/q),  launch = kernels x LAUNCH_S      flat, then a bend, then linear
    k(b)    = (TDP - context idle) x work(b) / b                              so power is linear in images/s up to TDP
    u(b)    = min(1, (kernels x SHORTEST_KERNEL_S + busy(b)) / L(b))          any kernel running, as NVML counts

L is the latency, k the joules of an image above context idle, u the utilization. Differences between GPUs are published
data; the constants are the same for all GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from calibrate.measurement_plan import ELEMENT_BYTES, Key, KeyCost, ModelCosts, full_grid
from hw.telemetry import Timing
from hw.telemetry.nvml import UTILIZATION_WINDOW_S, timing_of
from kit import strict
from kit.errors import InputError, nearest
from kit.strict import StrictModel
from policies.vocabulary import Provenance
from sim.device_profile import (
    SCHEMA,
    Concurrency,
    DeviceInfo,
    DeviceMemory,
    HandoverTimes,
    InstanceCost,
    LatencyCurve,
    Power,
    Profile,
    RouterHost,
    SensorModel,
)

STAMP: Final = "router_host_and_handover"  # a profile's stamp: where another host's costs were measured


# ---------------------------------------------------------------------------------------------------- costs of one host


class MeasuredHost(StrictModel):
    """What one host was measured to cost.

    Attributes:
        measured: on what, when, and by which command; profiles repeat it.
        spread: how much single runs differed, in words.
    """

    schema_: Literal["slimsched.host/1"] = Field(alias="schema")
    measured: str
    spread: str
    router_host: RouterHost
    handover: HandoverTimes

    @classmethod
    def from_yaml(cls, text: str, source: str) -> MeasuredHost:
        """Parse YAML; raises `InputError` naming `source` and the key if it is invalid."""
        return strict.parse(cls, text, source)

    def to_yaml(self) -> str:
        """Return the text that `from_yaml` reads back."""
        return strict.dump(strict.plain(self))


# -------------------------------------------------------------------------------------------------------------- sensors


def gpu_sensor(timing: Timing, period_s: float, *, instant: bool) -> SensorModel:
    """Return the model of a sensor that is read every `period_s`.

    A GPU renews its reading at its own period, so it is half of that old on average, and half of its rise; it averages
    over the architecture's window.

    Args:
        instant: whether the board's instant reading is used.
    """
    return SensorModel(
        period_s=period_s,
        lag_s=round((timing.period_s + timing.rise_s) / 2, 6),
        power_window_s=max(period_s, timing.window_of(instant)),
        utilization_window_s=max(period_s, UTILIZATION_WINDOW_S),
    )


# ------------------------------------------------------------------------------- constants and published specifications


COMPUTE_SHARE = 0.45  # of the FP32 peak, reached by convolutions of these sizes
MEMORY_SHARE = 0.75  # of the peak bandwidth
LAUNCH_S = 8e-6  # the host's time for one kernel, in eager mode
SHORTEST_KERNEL_S = 2e-6
TILE_OUTPUTS = 1024  # of one image's feature map, computed by one multiprocessor: 32 x 32
SHARPNESS = 5.0  # q, of the bend between launch-bound and busy (the Zeus trace of a Quadro RTX 6000)
DISPATCH_S = 1.5e-4
CONTEXT_BYTES = 350_000_000
DISK_BYTES_S, HOST_BYTES_S = 5e8, 6e9
FIRST_LOAD_S = 5e-3
RELOAD_S = 1e-3
UNLOAD_S = 5e-4
ALPHA, BETA = 0.1, 1.0  # fair sharing, and a little contention for bandwidth
THROTTLE, PHI_MIN = 0.3, 0.7
OMITTED = "everything: derived from published figures, nothing was measured"
DIGITS = 5  # significant digits in a profile: more would be misleading

MemoryKind = Literal["HBM", "GDDR"]
# Shares of the TDP, drawn by an idle context (arXiv 2605.23918; the Zeus trace).
CONTEXT_SHARES: dict[MemoryKind, float] = {"HBM": 0.07, "GDDR": 0.18}


@dataclass(frozen=True, slots=True)
class Gpu:
    """Published specifications of a GPU.

    Attributes:
        tflop_s: peak FP32.
        gb_s, gb: bandwidth and size of its memory, in 10^9 bytes.
        architecture: NVIDIA's name, which decides the lag of its power sensor (`hw.telemetry`); empty: unknown.
        memory: its kind, which decides the power of an idle context.
    """

    name: str
    multiprocessors: int
    tflop_s: float
    gb_s: float
    gb: float
    tdp_w: float
    idle_w: float
    architecture: str
    memory: MemoryKind

    @property
    def key(self) -> str:
        """Its name in files and profiles: `RTX 2080 Ti` is `rtx-2080-ti`."""
        return re.sub(r"[^a-z0-9.]+", "-", re.sub(r" SXM.*", "", self.name).lower()).strip("-")

    @property
    def peak_flop_s(self) -> float:
        """Peak FP32 operations a second."""
        return self.tflop_s * 1e12

    @property
    def bandwidth_bytes_s(self) -> float:
        """Bandwidth of its memory."""
        return self.gb_s * 1e9

    @property
    def vram_bytes(self) -> int:
        """Size of its memory."""
        return round(self.gb * 1e9)

    @property
    def context_idle_w(self) -> float:
        """Power with an idle context."""
        return self.idle_w + CONTEXT_SHARES[self.memory] * self.tdp_w

    @property
    def sensor(self) -> SensorModel:
        """The instant reading, which serving prefers if a board has one, sampled at each update."""
        timing = timing_of(self.architecture)
        return gpu_sensor(timing, timing.period_s, instant=True)


_TABLE = (
    Gpu("GTX 980 Ti", 22, 6.06, 336, 6, 250, 10, "Maxwell", "GDDR"),
    Gpu("RTX 2080 Ti", 68, 13.45, 616, 11, 250, 15, "Turing", "GDDR"),
    Gpu("T4", 40, 8.1, 320, 16, 70, 10, "Turing", "GDDR"),
    Gpu("V100 SXM2", 80, 15.7, 900, 16, 300, 53.5, "Volta", "HBM"),
    Gpu("A10", 72, 31.2, 600, 24, 150, 17, "Ampere", "GDDR"),
    Gpu("A100 SXM", 108, 19.5, 2039, 80, 400, 56, "Ampere", "HBM"),
    Gpu("L4", 58, 30.3, 300, 24, 72, 16, "Ada", "GDDR"),
    Gpu("RTX 3090", 82, 35.6, 936, 24, 350, 30, "Ampere", "GDDR"),
    Gpu("RTX 4090", 128, 82.6, 1008, 24, 450, 30, "Ada", "GDDR"),
    Gpu("H100 SXM", 132, 67, 3350, 80, 700, 70, "Hopper", "HBM"),
    Gpu("H200", 132, 67, 4800, 141, 700, 77, "Hopper", "HBM"),
)
GPUS: dict[str, Gpu] = {gpu.key: gpu for gpu in _TABLE}


class DataSheet(StrictModel):
    """What is published of a GPU that is not in the table, as a user writes it into a file (YAML).

    Bounds are wide, and yet refuse a number in another unit: gigaflops, terabytes a second, megabytes.
    """

    schema_: Literal["slimsched.sheet/1"] = Field(alias="schema")
    name: str = Field(min_length=1, max_length=100, pattern="[A-Za-z0-9]")
    multiprocessors: Annotated[int, Field(ge=1, le=1024)]
    tflop_s: Annotated[float, Field(ge=0.05, le=2000)]
    gb_s: Annotated[float, Field(ge=5, le=100_000)]
    gb: Annotated[float, Field(ge=0.5, le=2000)]
    tdp_w: Annotated[float, Field(ge=1, le=5000)]
    memory: MemoryKind
    idle_w: Annotated[float, Field(ge=0, le=1000)] | None = None
    architecture: Literal["Maxwell", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"] | None = None

    @model_validator(mode="after")
    def _more_than_idle(self) -> Self:
        most_w = (1 - CONTEXT_SHARES[self.memory]) * self.tdp_w
        if self.idle_w is not None and self.idle_w >= most_w:
            problem = (
                f"idle_w ({self.idle_w:g}) must be below {most_w:g}: of tdp_w ({self.tdp_w:g}) the rest is what an"
            )
            raise ValueError(f"{problem} open context draws; leave idle_w out if it is not known")
        return self

    @classmethod
    def from_yaml(cls, text: str, source: str) -> DataSheet:
        """Parse YAML; raises `InputError` naming `source` and the key if it is invalid."""
        return strict.parse(cls, text, source)

    @property
    def gpu(self) -> Gpu:
        """The GPU as in the table; an unknown idle power is the table's median share of the TDP."""
        idle_w = self.idle_w if self.idle_w is not None else rounded(idle_share(self.memory) * self.tdp_w)
        figures = (self.multiprocessors, self.tflop_s, self.gb_s, self.gb, self.tdp_w, idle_w)
        return Gpu(self.name, *figures, architecture=self.architecture or "", memory=self.memory)


def idle_share(memory: MemoryKind) -> float:
    """Return idle power over TDP, the median of the table's GPUs with this kind of memory."""
    return median(gpu.idle_w / gpu.tdp_w for gpu in _TABLE if gpu.memory == memory)


def gpu_key(name: str) -> str | None:
    """Return the table's key of a GPU, however its name is spelled (`V100`, `NVIDIA GeForce RTX 2080 Ti`)."""
    plain = _plain(name)
    return next((key for key, gpu in GPUS.items() if plain in (_plain(key), _plain(gpu.name))), None)


def find_gpu(name: str) -> Gpu:
    """Find a GPU by name, however it is spelled (`RTX 2080 Ti`, `nvidia-rtx-2080-ti`).

    Raises:
        InputError: no such GPU in the table.
    """
    key = gpu_key(name)
    if key is None:
        similar = nearest(name.lower(), GPUS, same_numbers=True)
        problem = f"no published figures of {name!r}; {similar}; for a custom GPU give its sheet, SHEET.yaml"
        raise InputError("profile synth", "gpu", problem)
    return GPUS[key]


# ------------------------------------------------------------------------------------------------------------- profiles


def synthesize(gpu: Gpu, costs: ModelCosts, batch_limit: int = 128, *, host: MeasuredHost | None = None) -> Profile:
    """Derive a profile of a GPU running a model from the GPU's published figures.

    Args:
        host: costs of routing decisions, and of the ways to its server; if it is None, the profile has neither.

    Raises:
        InputError: the batch limit is below 1.
    """
    if batch_limit < 1:
        raise InputError("profile synth", "batch_limit", f"must be at least 1, found {batch_limit}")
    stamps = {"source": "datasheet"}
    if host is not None:
        stamps[STAMP] = f"measured on {host.measured}"
    return Profile(
        schema=SCHEMA,
        name=f"{gpu.key}-{costs.info.name}",
        provenance=Provenance.DATASHEET,
        device=DeviceInfo(kind="cuda", name=gpu.name, vram_bytes=gpu.vram_bytes, stamps=stamps),
        model=costs.info,
        execution={"dtype": "float32", "mode": "eager"},
        dispatch_s=DISPATCH_S,
        router_host=None if host is None else host.router_host,
        handover=None if host is None else host.handover,
        latency=tuple(_curve(gpu, key, costs, batch_limit) for key in sorted(costs.keys)),
        memory=DeviceMemory(context_bytes=CONTEXT_BYTES, instances=_instances(costs, batch_limit)),
        concurrency=Concurrency(alpha=ALPHA, beta=BETA, provenance=Provenance.DATASHEET),
        power=Power(
            bare_idle_w=gpu.idle_w,
            context_idle_w=rounded(gpu.context_idle_w),
            cap_w=gpu.tdp_w,
            throttle=THROTTLE,
            phi_min=PHI_MIN,
            provenance=Provenance.DATASHEET,
        ),
        sensor=gpu.sensor,
        omitted=(OMITTED if host is None else f"{OMITTED} but router_host and handover, which are of another host",),
    )


@dataclass(frozen=True, slots=True)
class ForwardTimes:
    """Modelled time of one forward pass, in seconds; the module's docstring has the equations.

    Attributes:
        launch_s: host time to launch its kernels.
        work_s: if every multiprocessor worked all the time.
        busy_s: with only the multiprocessors that have a tile.
    """

    launch_s: float
    work_s: float
    busy_s: float

    @property
    def latency_s(self) -> float:
        """Latency: launching and computing overlap, except for a bend at which they take equally long."""
        longest = max(self.launch_s, self.busy_s)
        ratio = min(self.launch_s, self.busy_s) / longest
        return float(longest * (1.0 + ratio**SHARPNESS) ** (1.0 / SHARPNESS))


def forward_times(gpu: Gpu, cost: KeyCost, outputs: float, batch: int) -> ForwardTimes:
    """Return the times of a batch, if a kernel computes `outputs` of one image."""
    compute_s = 2 * cost.macs * batch / (COMPUTE_SHARE * gpu.peak_flop_s)
    memory_s = cost.batch_bytes(batch) / (MEMORY_SHARE * gpu.bandwidth_bytes_s)
    fill = min(1.0, batch * outputs / TILE_OUTPUTS / gpu.multiprocessors)
    return ForwardTimes(cost.kernels * LAUNCH_S, max(compute_s, memory_s), max(compute_s / fill, memory_s))


def rounded(value: float) -> float:
    """Round to `DIGITS` significant digits, which keeps the order of any two numbers."""
    return float(f"{value:.{DIGITS}g}")


def _curve(gpu: Gpu, key: Key, costs: ModelCosts, batch_limit: int) -> LatencyCurve:
    segment, width, previous_width = key
    cost, outputs = costs.keys[key], _outputs(costs, segment, width)
    batches = full_grid(batch_limit)
    passes = [forward_times(gpu, cost, outputs, batch) for batch in batches]
    kernels_s = cost.kernels * SHORTEST_KERNEL_S
    latency_s = tuple(rounded(each.latency_s) for each in passes)
    range_w = gpu.tdp_w - gpu.context_idle_w
    moved_s = [cost.batch_bytes(batch) / gpu.bandwidth_bytes_s for batch in batches]

    def shares(spent_s: Iterable[float]) -> tuple[float, ...]:
        return tuple(rounded(min(1.0, spent / total)) for spent, total in zip(spent_s, latency_s, strict=True))

    return LatencyCurve(
        segment=segment,
        width=width,
        previous_width=previous_width,
        batches=batches,
        mean_s=latency_s,
        p50_s=latency_s,
        utilization=shares(kernels_s + each.busy_s for each in passes),
        sm_utilization=shares(each.work_s for each in passes),
        energy_j_per_image=tuple(
            rounded(range_w * times.work_s / size) for size, times in zip(batches, passes, strict=True)
        ),
        host_share=shares(each.launch_s for each in passes),
        bandwidth_share=shares(moved_s),
    )


def _outputs(costs: ModelCosts, segment: int, width: float) -> float:
    """Return the elements that a kernel of this width reads or writes, on average, with the narrowest input."""
    narrowest = min(key for key in costs.keys if key[:2] == (segment, width))
    return costs.keys[narrowest].moved_bytes / ELEMENT_BYTES / costs.keys[narrowest].kernels


def _instances(costs: ModelCosts, batch_limit: int) -> tuple[InstanceCost, ...]:
    return tuple(
        InstanceCost(
            segment=segment,
            width=width,
            vram_bytes=weights + _workspace_bytes(costs, segment, width, batch_limit),
            load_s=rounded(FIRST_LOAD_S + weights / DISK_BYTES_S),
            reload_s=rounded(RELOAD_S + weights / HOST_BYTES_S),
            unload_s=UNLOAD_S,
        )
        for (segment, width), weights in sorted(costs.instance_bytes.items())
    )


def _workspace_bytes(costs: ModelCosts, segment: int, width: float, batch_limit: int) -> int:
    """Return the bytes of feature maps alive at once: about two of those that a batch at the limit writes."""
    key = max(key for key in costs.keys if key[:2] == (segment, width))
    return 2 * batch_limit * costs.keys[key].moved_bytes * 3 // costs.keys[key].kernels


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|[^a-z0-9]", "", name.lower())
