"""A profile compiled for simulation: one row for each integer batch size; and the expected costs that routers use.

`compile_tables` computes all logarithms, powers and interpolations once; the tables are immutable.

`ProfileCosts` gives the expected costs from the tables (`policies.interfaces.CostModel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Literal

import numpy as np

from kit.errors import InputError
from policies.interfaces import Alike
from policies.vocabulary import NS_PER_S, Provenance, WorkKey, nanoseconds
from sim.device_model import Sharing, crowding, demand, interpolate_linear, latency_table_s
from sim.device_profile import (
    AT_ONCE,
    PAUSES_S,
    PROCESSES,
    BusyServing,
    CpuWork,
    HandoverTimes,
    LatencyCurve,
    Profile,
    WorkCost,
)
from sim.host_and_network import Attachment, Interconnect

# --------------------------------------------------------------------------------------------------------------- tables


BatchKey = tuple[int, float, float]  # (segment, width, previous width)
UtilMetric = Literal["nvml", "sm"]

SLOWDOWN_QUANTILES = 256
CROWDING_LIMIT_PERMILLE = 64_000  # total demand up to which crowding is tabulated: 64 saturating batches at once


@dataclass(frozen=True, slots=True)
class KeyTable:
    """One (segment, width, previous width); every tuple is indexed by the batch size on the device, 0 unused.

    Attributes:
        latency_ns: time on an idle device with jitter off (the mean).
        typical_ns: the base that `jitter` multiplies: the median; the mean if its quantiles are of served passes.
        demand_permille, host_permille, busy_permille: d, h and u of the device model.
        bandwidth: m.
        power_mw: solo power above context idle, k b / L.
        jitter: for each size quantiles of sample / `typical_ns`; empty if the profile has none.
    """

    latency_ns: tuple[int, ...]
    typical_ns: tuple[int, ...]
    demand_permille: tuple[int, ...]
    host_permille: tuple[int, ...]
    busy_permille: tuple[int, ...]
    bandwidth: tuple[float, ...]
    power_mw: tuple[float, ...]
    jitter: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class SlowdownTable:
    """The variation of a device's speed: quantiles of the duration of each state, in equal parts."""

    slow_factor: float
    full_ns: tuple[int, ...]
    slow_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InstanceTable:
    """The costs of one (segment, width): memory, load and unload."""

    vram_bytes: int
    load_ns: int
    reload_ns: int
    unload_ns: int


@dataclass(frozen=True, slots=True)
class CpuWorkTable:
    """CPU time, in nanoseconds: (of a micro-batch or batch, of each of its images). See `sim.device_profile.CpuWork`.

    `taken` is indexed by the number of the pause since the last pass. See `sim.device_profile.CpuWork` for the slice.
    """

    taken: tuple[tuple[int, int], ...]
    moved: tuple[int, int]
    begun: tuple[int, int]
    ended: tuple[int, int]
    slice_ns: int = 0


@dataclass(frozen=True, slots=True)
class DeviceTables:
    """A device in the form for simulation.

    Attributes:
        crowding: [x] is `sim.device_model.crowding` at a total of x permille; `crowding_across` the same across
        processes. hosted: see `sim.device_model.Sharing`.
        mean_slowdown: the mean slow-down of slow spells in the latencies; 1 if these are drawn.
        most_at_once, most_processes: largest numbers of batches, and processes, at once in the profile's measurements;
            slow-downs beyond are extrapolated.
        dispatch_ns: from a command until its pass begins.
        there_ns, back_ns: the handover to the server and back.
        busy_dispatch_ns, busy_there_ns, busy_back_ns: the same while some pass runs on the device.
        extra_ns: addition to a pass by the number of the pause before it.
        awake_mw, awake_ns: the device's power above idle while nothing runs, and its duration after the last pass.
        cpu_work: work of a server's process on the device's cores besides passes; none on a GPU.
        beside_load: the factor on times of passes while an instance is loaded on the device.
        fetch_ns: lower bound of the time to get activations of another server.
        cpu_work_mw, cpu_work_permille: power and utilization of the device during CPU work, if no pass runs.
    """

    name: str
    profile: Profile
    batch_limit: int
    keys: dict[BatchKey, KeyTable]
    instances: dict[tuple[int, float], InstanceTable]
    slowdown: SlowdownTable | None
    mean_slowdown: float
    alpha: float
    crowding: tuple[float, ...]
    crowding_across: tuple[float, ...]
    hosted: bool
    most_at_once: float
    most_processes: float
    dispatch_ns: int
    there_ns: int
    back_ns: int
    busy_dispatch_ns: int
    busy_there_ns: int
    busy_back_ns: int
    context_idle_mw: float
    awake_mw: float
    awake_ns: int
    cap_mw: float
    throttle: float
    phi_min: float
    period_ns: int
    lag_ns: int
    power_window: int  # in periods
    utilization_window: int  # in periods
    padded_sizes: tuple[int, ...]
    extra_ns: tuple[int, ...] = (0,) * (len(PAUSES_S) + 1)
    cpu_work: CpuWorkTable | None = None
    fetch_ns: int = 0
    cpu_work_mw: float = 0.0
    cpu_work_permille: int = 0
    beside_load: float = 1.0


# ---------------------------------------------------------------------------------------------------------- compilation


def compile_tables(
    profile: Profile, batch_limit: int, *, jitter: bool = True, util_metric: UtilMetric = "nvml"
) -> DeviceTables:
    """Compile a profile for batches up to `batch_limit`.

    Raises:
        InputError: the limit is beyond the profile's range, or it lacks the requested utilization.
    """
    return _compiled(_Same(profile), batch_limit, jitter, util_metric)


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A profile compared by identity: its text was read once, and comparing all its numbers is slow."""

    profile: Profile

    def __hash__(self) -> int:
        return id(self.profile)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.profile is other.profile


@lru_cache(maxsize=64)
def _compiled(same: _Same, batch_limit: int, jitter: bool, util_metric: UtilMetric) -> DeviceTables:
    profile = same.profile
    if batch_limit > profile.batch_limit:
        raise InputError(
            f"profile {profile.name}",
            "latency",
            f"covers batches up to {profile.batch_limit}, the batch limit is {batch_limit}; lower `batch_limit` or "
            "calibrate with larger batches",
        )
    curves = {(curve.segment, curve.width, curve.previous_width): curve for curve in profile.latency}
    power = profile.power
    sensor = profile.sensor
    sharing = sharing_of(profile)
    handover = profile.handover or HandoverTimes(there_s=0.0, back_s=0.0)
    busy = profile.busy_serving or BusyServing(
        dispatch_s=profile.dispatch_s, there_s=handover.there_s, back_s=handover.back_s
    )
    cpu_work = profile.cpu_work
    idle_w = power.context_idle_w
    core_share = 1 / cores_of(profile)
    return DeviceTables(
        name=profile.name,
        profile=profile,
        batch_limit=batch_limit,
        keys={key: _key_table(curve, batch_limit, jitter, util_metric, profile) for key, curve in curves.items()},
        instances={
            (cost.segment, cost.width): InstanceTable(
                cost.vram_bytes, nanoseconds(cost.load_s), nanoseconds(cost.reload_s), nanoseconds(cost.unload_s)
            )
            for cost in profile.memory.instances
        },
        slowdown=_slowdown_table(profile) if jitter else None,
        mean_slowdown=mean_slowdown_of(profile, jitter),
        alpha=sharing.alpha,
        crowding=_crowding(sharing.beta),
        crowding_across=_crowding(sharing.across_beta),
        hosted=sharing.hosted,
        most_at_once=_most(profile, AT_ONCE),
        most_processes=_most(profile, PROCESSES),
        dispatch_ns=nanoseconds(profile.dispatch_s),
        there_ns=nanoseconds(handover.there_s),
        back_ns=nanoseconds(handover.back_s),
        busy_dispatch_ns=nanoseconds(busy.dispatch_s),
        busy_there_ns=nanoseconds(busy.there_s),
        busy_back_ns=nanoseconds(busy.back_s),
        extra_ns=_in_ns((0.0, *(profile.extra_after_pause_s or (0.0,) * len(PAUSES_S)))),
        cpu_work=None if cpu_work is None else _cpu_work_table(cpu_work),
        fetch_ns=nanoseconds(profile.fetch_s),
        cpu_work_mw=0.0 if cpu_work is None else 1000 * (idle_w + core_share * (power.cap_w - idle_w)),
        cpu_work_permille=0 if cpu_work is None else round(1000 * core_share),
        context_idle_mw=power.context_idle_w * 1000,
        awake_mw=power.awake_surplus_w * 1000,
        awake_ns=nanoseconds(power.awake_s) if power.awake_surplus_w > 0 else 0,
        cap_mw=power.cap_w * 1000,
        throttle=power.throttle,
        phi_min=power.phi_min,
        period_ns=nanoseconds(sensor.period_s),
        lag_ns=nanoseconds(sensor.lag_s),
        power_window=max(1, round(sensor.power_window_s / sensor.period_s)),
        utilization_window=max(1, round(sensor.utilization_window_s / sensor.period_s)),
        beside_load=profile.beside_load,
        padded_sizes=padded_sizes(profile, batch_limit),
    )


def cores_of(profile: Profile) -> int:
    """Return the cores of a CPU device; 1 for any other."""
    cores = profile.execution.get("cores", "any")
    return len(cores.split(",")) if cores != "any" else int(profile.device.stamps.get("cpu_cores", "1"))


def _cpu_work_table(cpu_work: CpuWork) -> CpuWorkTable:
    def in_ns(cost: WorkCost) -> tuple[int, int]:
        return nanoseconds(cost.micro_batch_s), nanoseconds(cost.image_s)

    micro_batch_ns, image_ns = in_ns(cpu_work.taken)
    factors = (1.0, *cpu_work.taken_after_pause)
    taken = tuple((round(factor * micro_batch_ns), round(factor * image_ns)) for factor in factors)
    costs_ns = in_ns(cpu_work.moved), in_ns(cpu_work.begun), in_ns(cpu_work.ended)
    return CpuWorkTable(taken, *costs_ns, nanoseconds(cpu_work.slice_s))


def _in_ns(durations_s: Sequence[float]) -> tuple[int, ...]:
    return tuple(map(nanoseconds, durations_s))


def sharing_of(profile: Profile) -> Sharing:
    """Return the parameters of the device's sharing."""
    sharing = profile.concurrency
    across_beta = sharing.beta if sharing.across_beta is None else sharing.across_beta
    return Sharing(sharing.alpha, sharing.beta, across_beta, profile.device.kind == "cpu")


def _most(profile: Profile, quantity: str) -> float:
    """Return the numbers measured together; unlimited for a data sheet (all assumption) and an emulated device
    (exact)."""
    numbers = [measured.high for measured in profile.ranges if measured.quantity == quantity]
    is_assumed = profile.provenance in (Provenance.DATASHEET, Provenance.EMULATED)
    return max(numbers) if numbers else inf if is_assumed else 1


@lru_cache(maxsize=64)
def _crowding(beta: float) -> tuple[float, ...]:
    return tuple(crowding(x / 1000, beta) for x in range(CROWDING_LIMIT_PERMILLE + 1))


def padded_sizes(profile: Profile, batch_limit: int) -> tuple[int, ...]:
    """Return the batch sizes on the device for a server with this limit; empty if any size is allowed.

    Raises:
        InputError: the limit is not one of the profile's sizes.
    """
    sizes = profile.padded_sizes
    if sizes and batch_limit not in sizes:
        problem = f"a batch limit of {batch_limit} is none of the sizes that this device is given"
        raise InputError(f"profile {profile.name}", "padded_sizes", f"{problem}; give one of {list(sizes)}")
    return tuple(size for size in sizes if size <= batch_limit)


def demands(latency_s: Sequence[float]) -> list[float]:
    """Return d at every integer batch size from 1, of a key with these latencies (index = batch in both, [0] is
    unused)."""
    peak_rate_img_s = max(b / latency_s[b] for b in range(1, len(latency_s)))
    return [0.0, *(demand(b, float(latency_s[b]), peak_rate_img_s) for b in range(1, len(latency_s)))]


def mean_slowdown_of(profile: Profile, jitter: bool) -> float:
    """Return the factor on times in the tables relative to full speed: the average if nothing is drawn."""
    return 1.0 if jitter or profile.slowdown is None else profile.slowdown.mean_factor


def _slowdown_table(profile: Profile) -> SlowdownTable | None:
    slowdown = profile.slowdown
    if slowdown is None or slowdown.slow_share == 0 or slowdown.slow_factor == 1:
        return None
    mean_full_s = slowdown.mean_slow_s * (1 - slowdown.slow_share) / slowdown.slow_share
    shares = (np.arange(SLOWDOWN_QUANTILES) + 0.5) / SLOWDOWN_QUANTILES
    exponential = -np.log1p(-shares)
    exponential /= exponential.mean()

    def durations(mean_s: float) -> tuple[int, ...]:
        return tuple(nanoseconds(float(mean_s * share)) for share in exponential)

    return SlowdownTable(slowdown.slow_factor, durations(mean_full_s), durations(slowdown.mean_slow_s))


def _key_table(curve: LatencyCurve, limit: int, jitter: bool, util_metric: UtilMetric, profile: Profile) -> KeyTable:
    utilization = curve.utilization if util_metric == "nvml" else curve.sm_utilization
    if not utilization:
        raise InputError(
            f"profile {profile.name}", "latency.sm_utilization", "not measured here; use util_metric: nvml"
        )
    solo_s = latency_table_s(curve.batches, curve.mean_s, limit)
    whole_s = latency_table_s(curve.batches, curve.mean_s, curve.batches[-1])  # demand uses all measured sizes
    times, extra_s = 1 + profile.served_extra_share, profile.served_extra_s
    extra_s += profile.served_extra_per_byte_s * profile.weights_bytes(curve.segment, curve.width)
    mean_s = mean_slowdown_of(profile, jitter) * (times * solo_s + extra_s)
    typical_s = times * (solo_s if profile.served_ratios else latency_table_s(curve.batches, curve.p50_s, limit))
    sizes = range(1, limit + 1)

    def along(values: tuple[float, ...]) -> list[float]:
        return [interpolate_linear(curve.batches, values, b) for b in sizes]

    def permille(shares: list[float]) -> tuple[int, ...]:
        return tuple(round(1000 * share) for share in shares)

    joules = along(curve.energy_j_per_image)
    # An executor's work around a pass occupies a CPU's cores as the pass does, while a GPU waits.
    power_s = solo_s if profile.device.kind == "cpu" else mean_s
    return KeyTable(
        latency_ns=(0, *(nanoseconds(mean_s[b]) for b in sizes)),
        typical_ns=(0, *(nanoseconds(typical_s[b] + extra_s) for b in sizes)),
        demand_permille=permille(demands(whole_s.tolist())[: limit + 1]),
        host_permille=permille([0.0, *along(curve.host_share)]),
        busy_permille=permille([0.0, *along(utilization)]),
        bandwidth=(0.0, *along(curve.bandwidth_share)),
        power_mw=(0.0, *(1000 * k * b / float(power_s[b]) for k, b in zip(joules, sizes, strict=True))),
        jitter=_jitter_rows(curve, limit, profile) if jitter else (),
    )


def _jitter_rows(curve: LatencyCurve, limit: int, profile: Profile) -> tuple[tuple[float, ...], ...]:
    """Return, for every size, the quantiles of served passes, or those of the nearest measured size (larger of two)."""
    if profile.served_ratios:
        return (profile.served_ratios,) * (limit + 1)
    if not curve.jitter:
        return ()
    nearest = [
        min(range(len(curve.batches)), key=lambda i: (abs(curve.batches[i] - b), -curve.batches[i]))
        for b in range(limit + 1)
    ]
    return tuple(curve.jitter[i] for i in nearest)


# ------------------------------------------------------------------------------------------------------- expected costs


class ProfileCosts:
    """The costs on otherwise idle devices.

    Args:
        devices: for each server, the tables of its device.
        batch_limits: for each server, its batch limit.
        attachments: for each server, its connection to the network.

    Attributes:
        alike: servers with the very same tables of their devices, the same batch limit and the same links.
    """

    def __init__(
        self, devices: Sequence[DeviceTables], batch_limits: Sequence[int], attachments: Sequence[Attachment]
    ) -> None:
        self._devices = tuple(devices)
        self._batch_limits = tuple(batch_limits)
        self._network = Interconnect(tuple(attachments))
        models = [item.profile.model for item in devices]
        sizes = [(model.input_bytes, model.widths, model.activation_bytes) for model in models]
        self.alike = Alike.of(
            devices=zip(map(id, devices), batch_limits, strict=True),
            links=[(item.link, item.uplink, size) for item, size in zip(attachments, sizes, strict=True)],
            racks=[item.rack for item in attachments],
        )
        self._handovers_ns = [item.there_ns + item.back_ns for item in self._devices]

    def batch_s(self, server: int, key: WorkKey, batch: int) -> float:
        """Return the time until a batch is back: handover, dispatch, solo latency; above the limit, several batches in
        a row."""
        whole, rest = divmod(batch, self._batch_limits[server])
        total_ns = self._handovers_ns[server] + whole * self._batch_ns(server, key, self._batch_limits[server])
        return (total_ns + (self._batch_ns(server, key, rest) if rest else 0)) / NS_PER_S

    def image_s(self, server: int, key: WorkKey) -> float:
        """Return one image's share of a full batch."""
        limit = self._batch_limits[server]
        return self._batch_ns(server, key, limit) / limit / NS_PER_S

    def energy_j(self, server: int, key: WorkKey) -> float:
        """Return one image's share of a full batch's energy above idle; the effect of a power cap is left out."""
        table, limit = self._table(server, key), self._batch_limits[server]
        padded = self._padded(server, limit)
        return table.power_mw[padded] / 1000 * (table.latency_ns[padded] / NS_PER_S) / limit

    def transfer_s(self, source: int, server: int, segment: int, previous_width: float, images: int) -> float:
        """Return the transfer time on a free medium; 0 if the inputs are there already."""
        if source == server:
            return 0.0
        moved_bytes = images * input_bytes(self._devices[server], segment, previous_width)
        return self._network.duration_s(source, server, moved_bytes)

    def uplink_s(self, source: int, server: int, segment: int, previous_width: float) -> float:
        """Return the time of one image's transfer on the uplink of the server's rack; 0 if it uses none."""
        return self._network.uplink_s(source, server, input_bytes(self._devices[server], segment, previous_width))

    def _batch_ns(self, server: int, key: WorkKey, batch: int) -> int:
        padded = self._padded(server, batch)
        return self._devices[server].dispatch_ns + self._table(server, key).latency_ns[padded]

    def _table(self, server: int, key: WorkKey) -> KeyTable:
        return self._devices[server].keys[key.segment, key.width, key.previous_width]

    def _padded(self, server: int, batch: int) -> int:
        return next((size for size in self._devices[server].padded_sizes if size >= batch), batch)


def input_bytes(tables: DeviceTables, segment: int, previous_width: float) -> int:
    """Return the bytes of one request's input to a segment: its image, or the activations of the previous segment."""
    model = tables.profile.model
    if segment == 1:
        return model.input_bytes
    return model.activation_bytes[segment - 2][model.widths.index(previous_width)]
