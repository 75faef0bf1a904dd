"""A device with running batches that share it, its steady state under a stream of equal batches, and its sensor.

`SimulatedDevice` integrates power and busy time exactly (both are constant between changes), and computes the next end
of a batch. It has no queue and no scheduler; `sim.simulated_server` drives it.

Steady state (`shared_device`, `steady_points`): batches come as a Poisson stream and share a `SimulatedDevice`, which
computes the slow-down of each batch, the power and the utilization with n running batches. Service of a shared device
depends on n alone, so the number running is a birth-death chain whatever the distribution of the batches' times
(processor sharing with state-dependent rates is insensitive: Cohen 1979, `The multiple phase service network with
generalized processor sharing`), and the means are exact sums, without random draws. Batches beyond `at_once` wait, and
the device works as it does with `at_once` batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil

import msgspec
import numpy as np
import numpy.typing as npt

from kit.random_streams import hashed
from policies.vocabulary import NS_PER_S
from sim.device_model import clock_ratio, contention, total_load
from sim.device_profile import pause_number
from sim.device_tables import CROWDING_LIMIT_PERMILLE, BatchKey, DeviceTables, KeyTable, SlowdownTable

# ----------------------------------------------------------------------------------------------------------- the device


_FIRST = 1 << 32  # above all numbers of changes


class RunningBatch(msgspec.Struct):
    """One batch on the device: `work_ns` is its remaining solo time, `end_ns` its end at the present rate.

    A `frozen` one never ends (it waits for the kill), but occupies the device and draws power as if it ran.
    """

    server: int
    batch: int
    table: KeyTable
    size: int
    work_ns: float
    factor: float = 1.0
    slow_down: float = 1.0
    end_ns: int = 0
    frozen: bool = False


class SimulatedDevice:
    """Processor sharing with saturation, bandwidth contention and a power cap (`sim.device_model` has the equations).

    Attributes:
        cpu_work_from_ns, cpu_work_until_ns: start and end of the processes' last CPU work there.
    """

    def __init__(self, tables: DeviceTables) -> None:
        self.tables = tables
        self.running: dict[tuple[int, int], RunningBatch] = {}
        self.power_mw = tables.context_idle_mw
        self.busy_permille = 0
        self._slowdown = 1.0
        self.loading: set[tuple[int, int]] = set()
        self._is_extrapolated = False
        self._extrapolated_ns = 0
        self._energy_mw_ns = 0.0
        self._busy_permille_ns = 0
        self._updated_ns = 0
        self.cpu_work_until_ns = self.cpu_work_from_ns = 0
        self._paused_from_ns = 0
        self._passes_ended_ns = 0
        self._is_full = False
        self.waiting_ns: dict[tuple[int, int], int] = {}  # by batch that waits for a core: its duration

    def advance(self, now_ns: int) -> None:
        """Integrate over the time since the last change."""
        elapsed_ns = now_ns - self._updated_ns
        if elapsed_ns == 0:
            return
        if self._is_extrapolated:
            self._extrapolated_ns += elapsed_ns
        worked_ns = elapsed_ns - self._cpu_work_ns(now_ns)
        self._energy_mw_ns += self._drawn_mw_ns(now_ns)
        self._busy_permille_ns += self._kept_busy_permille_ns(now_ns)
        for running in self.running.values():
            running.work_ns -= worked_ns / running.slow_down
        self._updated_ns = now_ns

    def energy_mj(self, now_ns: int) -> float:
        """Return the energy until now, in millijoules (milliwatts times seconds)."""
        return (self._energy_mw_ns + self._drawn_mw_ns(now_ns)) / NS_PER_S

    def extrapolated_ns(self, now_ns: int) -> int:
        """Return the time until now with more batches at once than calibration measured."""
        return self._extrapolated_ns + (now_ns - self._updated_ns if self._is_extrapolated else 0)

    def busy_ms(self, now_ns: int) -> float:
        """Return the integral of utilization until now, in milliseconds (permille times seconds)."""
        return (self._busy_permille_ns + self._kept_busy_permille_ns(now_ns)) / NS_PER_S

    def _cpu_work_ns(self, now_ns: int) -> int:
        """Return how long passes were stopped since the last change."""
        return max(0, min(self.cpu_work_until_ns, now_ns) - max(self._paused_from_ns, self._updated_ns))

    def _drawn_mw_ns(self, now_ns: int) -> float:
        """Return the energy since the last change."""
        cpu_work_ns, cpu_work_mw = self._cpu_work_ns(now_ns), max(self.power_mw, self.tables.cpu_work_mw)
        drawn_mw_ns = self.power_mw * (now_ns - self._updated_ns - cpu_work_ns) + cpu_work_mw * cpu_work_ns
        return drawn_mw_ns + self.tables.awake_mw * self._awake_ns(now_ns)

    def _awake_ns(self, now_ns: int) -> int:
        """Return how long clocks stayed up without work since the last change."""
        if self.running or self._passes_ended_ns == 0:
            return 0
        return max(0, min(now_ns, self._passes_ended_ns + self.tables.awake_ns) - self._updated_ns)

    def _kept_busy_permille_ns(self, now_ns: int) -> int:
        """Return the integral of utilization since the last change."""
        cpu_work_ns, busy_permille = self._cpu_work_ns(now_ns), max(self.busy_permille, self.tables.cpu_work_permille)
        return self.busy_permille * (now_ns - self._updated_ns - cpu_work_ns) + busy_permille * cpu_work_ns

    def free_ns(self, now_ns: int, limit_ns: int, behind_ns: int = 0) -> int:
        """Return when a core is free without interrupting a pass, at most the limit.

        Args:
            behind_ns: work that goes first when the first pass has ended.
        """
        if not self._is_full or limit_ns <= now_ns:
            return now_ns
        first = self.next_end()
        return now_ns if first is None else min(limit_ns, max(now_ns, first.end_ns) + behind_ns)

    def cpu_work_end_ns(self, now_ns: int) -> int:
        """Return when the present CPU work ends; now, if there is none."""
        return max(now_ns, self.cpu_work_until_ns) if self._paused_from_ns <= now_ns else now_ns

    def do_cpu_work(self, work_ns: int, now_ns: int, from_ns: int) -> None:
        """Run a process' CPU work on the computing cores, one piece after the other; passes stop meanwhile. If it need
        not wait for other CPU work, it begins at `from_ns`."""
        self.advance(now_ns)
        if self.cpu_work_until_ns > now_ns:
            self.cpu_work_from_ns = self.cpu_work_until_ns
        else:
            self.cpu_work_from_ns = self._paused_from_ns = from_ns
        self.cpu_work_until_ns = self.cpu_work_from_ns + self.stretched_ns(work_ns)
        self._rerate(now_ns)

    def stretched_ns(self, work_ns: int) -> int:
        """Return the present duration of work on the device's cores."""
        return ceil(work_ns * self._slowdown)

    def pause(self, now_ns: int) -> int:
        """Return the number of the pause since the last pass here (`sim.device_profile.pause_number`)."""
        return 0 if self.running else pause_number(now_ns - self._passes_ended_ns)

    def start(self, batch: RunningBatch, now_ns: int) -> None:
        """Begin a batch's forward pass."""
        self.advance(now_ns)
        self.running[batch.server, batch.batch] = batch
        self._rerate(now_ns)

    def finish(self, server: int, batch: int, now_ns: int) -> None:
        """Remove a batch that has ended (or was killed)."""
        self.advance(now_ns)
        del self.running[server, batch]
        self._passes_ended_ns = now_ns
        self._rerate(now_ns)

    def kill(self, server: int, now_ns: int) -> None:
        """Remove a failed server's batches."""
        self.advance(now_ns)
        self.waiting_ns = {key: takes_ns for key, takes_ns in self.waiting_ns.items() if key[0] != server}
        self.loading = {key for key in self.loading if key[0] != server}
        remaining = {key: running for key, running in self.running.items() if key[0] != server}
        if len(remaining) < len(self.running):
            self.running, self._passes_ended_ns = remaining, now_ns
        self._rerate(now_ns)

    def freeze(self, server: int, now_ns: int) -> None:
        """Freeze the batches of a server that hangs."""
        self.advance(now_ns)
        for running in self.running.values():
            running.frozen = running.frozen or running.server == server

    def straggle(self, server: int, factor: float, now_ns: int) -> None:
        """Slow a server's batches down by `factor`, relative to the model."""
        self.advance(now_ns)
        for running in self.running.values():
            if running.server == server:
                running.factor = factor
        self._rerate(now_ns)

    def set_slowdown(self, factor: float, now_ns: int) -> None:
        """Set the device's slowdown: all times are multiplied by it from now on."""
        self.advance(now_ns)
        self._slowdown = factor
        self._rerate(now_ns)

    def begin_load(self, server: int, instance: int, now_ns: int) -> None:
        """Begin an instance's load: passes take `beside_load` times as long."""
        self.advance(now_ns)
        self.loading.add((server, instance))
        self._rerate(now_ns)

    def end_load(self, server: int, instance: int, now_ns: int) -> None:
        """End a load."""
        self.advance(now_ns)
        self.loading.discard((server, instance))
        self._rerate(now_ns)

    def next_end(self) -> RunningBatch | None:
        """Return the batch that ends first; ties go to the lower server, then the lower batch."""
        first: RunningBatch | None = None
        for running in self.running.values():
            if not running.frozen and (first is None or _ends_before(running, first)):
                first = running
        return first

    def _rerate(self, now_ns: int) -> None:
        """Compute every batch's slow-down and end, and the device's power and utilization, for the set that runs from
        now on."""
        if not self.running:
            self._is_full = False
            self._is_extrapolated = False
            self.power_mw = self.tables.context_idle_mw
            self.busy_permille = 0
            return
        tables, running = self.tables, self.running.values()
        demand = host = busy = 0
        bandwidth = 0.0  # added one by one: `sum` compensates floats from Python 3.12 on
        for batch in running:
            table, size = batch.table, batch.size
            demand += table.demand_permille[size]
            host += table.host_permille[size]
            busy += table.busy_permille[size]
            bandwidth += table.bandwidth[size]
        self._is_full = host + tables.cpu_work_permille > 1000
        servers = len({batch.server for batch in running}) if len(running) > 1 else 1
        is_across = servers > 1
        load = self._load_across() if is_across else max(demand, host)
        self._is_extrapolated = len(running) > tables.most_at_once or (is_across and servers > tables.most_processes)
        crowding = tables.crowding_across if is_across else tables.crowding
        common = crowding[min(load, CROWDING_LIMIT_PERMILLE)]
        uncapped_mw = tables.context_idle_mw
        for batch in running:
            table, size = batch.table, batch.size
            batch.slow_down = common * contention(tables.alpha, bandwidth - table.bandwidth[size]) * batch.factor
            uncapped_mw += table.power_mw[size] / batch.slow_down
        beside = tables.beside_load if self.loading else 1.0
        slowdown = self._slowdown * beside / clock_ratio(uncapped_mw, tables.cap_mw, tables.throttle, tables.phi_min)
        for batch in running:
            batch.slow_down *= slowdown
            batch.end_ns = self._end_ns(now_ns, max(0, ceil(batch.work_ns * batch.slow_down)))
        self.power_mw = min(tables.cap_mw, uncapped_mw)
        self.busy_permille = min(1000, busy)

    def _end_ns(self, now_ns: int, takes_ns: int) -> int:
        """Return when a pass of this duration ends: it stops during CPU work."""
        if now_ns >= self._paused_from_ns:
            return max(now_ns, self.cpu_work_until_ns) + takes_ns
        ends_ns = now_ns + takes_ns
        return ends_ns if ends_ns <= self._paused_from_ns else ends_ns + self.cpu_work_until_ns - self._paused_from_ns

    def _load_across(self) -> int:
        """Return x of a running set of several processes, in permille."""
        running = self.running.values()
        load, _ = total_load(
            [batch.table.demand_permille[batch.size] for batch in running],
            [batch.table.host_permille[batch.size] for batch in running],
            [batch.table.busy_permille[batch.size] for batch in running],
            [batch.server for batch in running],
            self.tables.hosted,
            1000,
        )
        return int(load)


def _ends_before(batch: RunningBatch, other: RunningBatch) -> bool:
    if batch.end_ns != other.end_ns:
        return batch.end_ns < other.end_ns
    return (batch.server, batch.batch) < (other.server, other.batch)


# ------------------------------------------------------------------------------------------------------------ durations


def solo_ns(table: KeyTable, size: int, salt: int, server: int, batch: int) -> int:
    """Return this very batch's solo time: the mean, or the median times a quantile drawn by hash."""
    if not table.jitter:
        return table.latency_ns[size]
    row = table.jitter[size]
    return ceil(table.typical_ns[size] * row[hashed(salt, server, batch) % len(row)])


def parts_that_fit(size: int, room: int) -> tuple[int, ...]:
    """Return the sizes of a batch's parts if `room` images fit at once: halves of halves, as on hardware.

    Empty if nothing fits.
    """
    if room < 1:
        return ()
    if size <= room:
        return (size,)
    larger = ceil(size / 2)
    return (*parts_that_fit(larger, room), *parts_that_fit(size - larger, room))


def sampled_spells(slowdown: SlowdownTable, salt: int) -> Iterator[tuple[int, float]]:
    """Yield (when, the factor on all times from then on), without end; `salt` is of the hash that draws.

    It starts at 0 in either state, with the stationary probabilities.
    """
    full_ns, slow_ns = sum(slowdown.full_ns), sum(slowdown.slow_ns)
    is_slow = hashed(salt, _FIRST, _FIRST) % (full_ns + slow_ns) < slow_ns
    at_ns = 0
    for number in count():
        yield at_ns, slowdown.slow_factor if is_slow else 1.0
        durations_ns = slowdown.slow_ns if is_slow else slowdown.full_ns
        at_ns += durations_ns[hashed(salt, int(is_slow), number) % len(durations_ns)]
        is_slow = not is_slow


# ----------------------------------------------------------------------------------------------------- the steady state


AT_ONCE = 8
LOADS = (*(percent / 100 for percent in (*range(2, 90, 4), *range(90, 99))), 0.985, 0.99)
FLAT = 0.01  # a latency that rises less than this over all loads has no knee

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SteadyPoint:
    """Means over time, or over batches, at one rate.

    Attributes:
        load: the rate as a share of the largest that the device can sustain.
        latency_s: from a batch's arrival at the device to its end.
        energy_j: the paper's E of a batch: mean power x mean latency.
    """

    load: float
    rate_batches_s: float
    utilization: float
    latency_s: float
    power_w: float

    @property
    def energy_j(self) -> float:
        """Mean power x mean latency."""
        return self.power_w * self.latency_s


@dataclass(frozen=True, slots=True)
class SteadyDevice:
    """A device with 0, 1, ... n equal batches running; every array is indexed by their number.

    Attributes:
        rate_batches_s: completed batches per second.
    """

    rate_batches_s: Floats
    utilization: Floats
    power_w: Floats

    @property
    def capacity_batches_s(self) -> float:
        """The sustained rate for any number of waiting batches."""
        return float(self.rate_batches_s[-1])


def shared_device(tables: DeviceTables, key: BatchKey, batch: int, at_once: int = AT_ONCE) -> SteadyDevice:
    """Start equal batches on an idle device, one after the other, and record its state with each number of them."""
    device, table = SimulatedDevice(tables), tables.keys[key]
    rates = [0.0]
    busy = [device.busy_permille]
    power_mw = [device.power_mw]
    for number in range(1, at_once + 1):
        latest = RunningBatch(0, number, table, batch, float(table.latency_ns[batch]))
        device.start(latest, 0)
        rates.append(number * NS_PER_S / (table.latency_ns[batch] * latest.slow_down))
        busy.append(device.busy_permille)
        power_mw.append(device.power_mw)
    return SteadyDevice(np.asarray(rates), np.asarray(busy) / 1000, np.asarray(power_mw) / 1000)


def steady_points(device: SteadyDevice, loads: Sequence[float]) -> list[SteadyPoint]:
    """Return the steady state at each load.

    Raises:
        ValueError: a load is not within (0, 1), so no steady state exists.
    """
    if not all(0 < load < 1 for load in loads):
        raise ValueError(f"a steady load must be between 0 and 1: {list(loads)}")
    return [_steady_point(device, load) for load in loads]


def _steady_point(device: SteadyDevice, load: float) -> SteadyPoint:
    """Return the means at a load: state n has weight prod(arrival rate / rate k, k = 1 .. n); beyond the last state the
    weights fall by `load`."""
    arriving_s = load * device.capacity_batches_s
    weights = np.concatenate([[1.0], np.cumprod(arriving_s / device.rate_batches_s[1:])])
    numbers = np.arange(len(weights), dtype=np.float64)
    # The last state includes all beyond it: sums of load^i and of i load^i.
    numbers[-1] += load / (1 - load)
    weights[-1] /= 1 - load
    shares = weights / weights.sum()
    return SteadyPoint(
        load=load,
        rate_batches_s=arriving_s,
        utilization=float(shares @ device.utilization),
        latency_s=float(shares @ numbers) / arriving_s,  # Little's law
        power_w=float(shares @ device.power_w),
    )


def knee(points: Sequence[SteadyPoint]) -> SteadyPoint | None:
    """Return the knee of latency over utilization: farthest below the chord from the first point to the last.

    None if it does not rise. (Satopaa et al. 2011, `Finding a "Kneedle" in a Haystack`; the last point affects it, so
    compare knees of the same loads only.)
    """
    shares = np.asarray([point.utilization for point in points])
    latency_s = np.asarray([point.latency_s for point in points])
    if latency_s[-1] <= latency_s[0] * (1 + FLAT) or shares[-1] <= shares[0]:
        return None
    below = (shares - shares[0]) / np.ptp(shares) - (latency_s - latency_s[0]) / np.ptp(latency_s)
    return points[int(np.argmax(below))]


# ----------------------------------------------------------------------------------------------------------- the sensor


class WindowedSensor:
    """Averages of power and utilization over whole periods up to the latest; before the first the device was idle."""

    def __init__(self, device: SimulatedDevice) -> None:
        tables = device.tables
        self._device = device
        self._period_ns = tables.period_ns
        self._windows = (tables.power_window, tables.utilization_window)
        self._readings: deque[tuple[int, float, float]] = deque(maxlen=max(self._windows) + 1)

    def read(self, now_ns: int) -> tuple[float, float]:
        """Return (power_w, utilization) now."""
        device = self._device
        self._readings.append((now_ns, device.energy_mj(now_ns), device.busy_ms(now_ns)))
        power_window, utilization_window = self._windows
        idle_w = device.tables.context_idle_mw / 1000
        return self._average(1, power_window, idle_w), self._average(2, utilization_window, 0.0)

    def _average(self, column: int, window: int, idle: float) -> float:
        """Return an average over the last `window` periods; both integrals are in thousandths times seconds."""
        latest, earlier = self._readings[-1], self._readings[max(0, len(self._readings) - 1 - window)]
        elapsed_ns = latest[0] - earlier[0]
        idle_ns = max(0, window * self._period_ns - elapsed_ns)
        return ((latest[column] - earlier[column]) * 1e6 + idle * idle_ns) / (elapsed_ns + idle_ns)

    def restart(self) -> None:
        """Reset to a new server without a past."""
        self._readings.clear()
