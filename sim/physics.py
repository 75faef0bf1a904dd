"""A device at work: batches that share it, each with its remaining solo work, re-rated at every start and finish.

It integrates power and busy time exactly (both are constant between changes), and says when the next batch will end.
It knows no queue and no scheduler; `sim.server` drives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import ceil

import msgspec

from kit.chance import hashed
from policies.vocabulary import NS_PER_S
from sim.device import clock_ratio, contention, total_load
from sim.profile import pause_number
from sim.tables import CROWDING_LIMIT_PERMILLE, DeviceTables, KeyTable, SlowdownTable

_FIRST = 1 << 32  # no number of a change


class RunningBatch(msgspec.Struct):
    """One batch on the device: `work_ns` is what is left of its solo time, `end_ns` when it will end as things are.

    A `frozen` one never ends (it waits to be killed), but occupies the device and draws power as if it ran.
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
    """Processor sharing with saturation, bandwidth contention and a power cap (`sim.device` has the equations).

    Attributes:
        chores_from_ns, chores_until_ns: when the last thing begins, and ends, that processes do there besides passes.
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
        self.chores_until_ns = self.chores_from_ns = 0
        self._paused_from_ns = 0
        self._passes_ended_ns = 0
        self._is_full = False
        self.waiting_ns: dict[tuple[int, int], int] = {}  # of the batches that wait for a core: how long each takes

    def advance(self, now_ns: int) -> None:
        """Account for the time since the last change."""
        elapsed_ns = now_ns - self._updated_ns
        if elapsed_ns == 0:
            return
        if self._is_extrapolated:
            self._extrapolated_ns += elapsed_ns
        worked_ns = elapsed_ns - self._chores_ns(now_ns)
        self._energy_mw_ns += self._drawn_mw_ns(now_ns)
        self._busy_permille_ns += self._kept_busy_permille_ns(now_ns)
        for running in self.running.values():
            running.work_ns -= worked_ns / running.slow_down
        self._updated_ns = now_ns

    def energy_mj(self, now_ns: int) -> float:
        """Energy drawn until now, in millijoules (milliwatts times seconds)."""
        return (self._energy_mw_ns + self._drawn_mw_ns(now_ns)) / NS_PER_S

    def extrapolated_ns(self, now_ns: int) -> int:
        """Time until now with more batches at once than calibration measured."""
        return self._extrapolated_ns + (now_ns - self._updated_ns if self._is_extrapolated else 0)

    def busy_ms(self, now_ns: int) -> float:
        """The integral of utilization until now, in milliseconds (permille times seconds)."""
        return (self._busy_permille_ns + self._kept_busy_permille_ns(now_ns)) / NS_PER_S

    def _chores_ns(self, now_ns: int) -> int:
        """Of the time since the last change, how long passes stood still."""
        return max(0, min(self.chores_until_ns, now_ns) - max(self._paused_from_ns, self._updated_ns))

    def _drawn_mw_ns(self, now_ns: int) -> float:
        """Energy since the last change."""
        chores_ns, chores_mw = self._chores_ns(now_ns), max(self.power_mw, self.tables.chores_mw)
        drawn_mw_ns = self.power_mw * (now_ns - self._updated_ns - chores_ns) + chores_mw * chores_ns
        return drawn_mw_ns + self.tables.awake_mw * self._awake_ns(now_ns)

    def _awake_ns(self, now_ns: int) -> int:
        """Of the time since the last change, how long clocks stayed up although nothing ran."""
        if self.running or self._passes_ended_ns == 0:
            return 0
        return max(0, min(now_ns, self._passes_ended_ns + self.tables.awake_ns) - self._updated_ns)

    def _kept_busy_permille_ns(self, now_ns: int) -> int:
        """The integral of utilization since the last change."""
        chores_ns, busy_permille = self._chores_ns(now_ns), max(self.busy_permille, self.tables.chores_permille)
        return self.busy_permille * (now_ns - self._updated_ns - chores_ns) + busy_permille * chores_ns

    def free_ns(self, now_ns: int, limit_ns: int, behind_ns: int = 0) -> int:
        """When a core is free, if no pass is interrupted; but no later than the limit.

        Args:
            behind_ns: what goes first when the pass that ends first has ended.
        """
        if not self._is_full or limit_ns <= now_ns:
            return now_ns
        first = self.next_end()
        return now_ns if first is None else min(limit_ns, max(now_ns, first.end_ns) + behind_ns)

    def chores_end_ns(self, now_ns: int) -> int:
        """When those end that are done now; now, where none are."""
        return max(now_ns, self.chores_until_ns) if self._paused_from_ns <= now_ns else now_ns

    def do_chore(self, work_ns: int, now_ns: int, from_ns: int) -> None:
        """A process does something besides its passes on the cores that compute: one chore after the other, and passes
        stand still meanwhile. Where it need not wait for other chores, it begins at `from_ns`."""
        self.advance(now_ns)
        if self.chores_until_ns > now_ns:
            self.chores_from_ns = self.chores_until_ns
        else:
            self.chores_from_ns = self._paused_from_ns = from_ns
        self.chores_until_ns = self.chores_from_ns + self.stretched_ns(work_ns)
        self._rerate(now_ns)

    def stretched_ns(self, work_ns: int) -> int:
        """How long something takes now that is done on the device's own cores."""
        return ceil(work_ns * self._slowdown)

    def pause(self, now_ns: int) -> int:
        """The number of the pause since a pass has run here (`sim.profile.pause_number`)."""
        return 0 if self.running else pause_number(now_ns - self._passes_ended_ns)

    def start(self, batch: RunningBatch, now_ns: int) -> None:
        """A batch begins its forward pass."""
        self.advance(now_ns)
        self.running[batch.server, batch.batch] = batch
        self._rerate(now_ns)

    def finish(self, server: int, batch: int, now_ns: int) -> None:
        """A batch has ended (or was killed)."""
        self.advance(now_ns)
        del self.running[server, batch]
        self._passes_ended_ns = now_ns
        self._rerate(now_ns)

    def kill(self, server: int, now_ns: int) -> None:
        """A server died: its batches are gone."""
        self.advance(now_ns)
        self.waiting_ns = {key: takes_ns for key, takes_ns in self.waiting_ns.items() if key[0] != server}
        self.loading = {key for key in self.loading if key[0] != server}
        left = {key: running for key, running in self.running.items() if key[0] != server}
        if len(left) < len(self.running):
            self.running, self._passes_ended_ns = left, now_ns
        self._rerate(now_ns)

    def freeze(self, server: int, now_ns: int) -> None:
        """A server hangs: its batches stop where they are."""
        self.advance(now_ns)
        for running in self.running.values():
            running.frozen = running.frozen or running.server == server

    def straggle(self, server: int, factor: float, now_ns: int) -> None:
        """A server's batches run `factor` times slower than the model says."""
        self.advance(now_ns)
        for running in self.running.values():
            if running.server == server:
                running.factor = factor
        self._rerate(now_ns)

    def set_slowdown(self, factor: float, now_ns: int) -> None:
        """From now on everything takes so many times as long."""
        self.advance(now_ns)
        self._slowdown = factor
        self._rerate(now_ns)

    def begin_load(self, server: int, instance: int, now_ns: int) -> None:
        """An instance is being loaded from now on: passes take `beside_load` times as long."""
        self.advance(now_ns)
        self.loading.add((server, instance))
        self._rerate(now_ns)

    def end_load(self, server: int, instance: int, now_ns: int) -> None:
        """It is loaded."""
        self.advance(now_ns)
        self.loading.discard((server, instance))
        self._rerate(now_ns)

    def next_end(self) -> RunningBatch | None:
        """The batch that ends first; ties go to the lower server, then the lower batch."""
        first: RunningBatch | None = None
        for running in self.running.values():
            if not running.frozen and (first is None or _ends_before(running, first)):
                first = running
        return first

    def _rerate(self, now_ns: int) -> None:
        """Every batch's slow-down, end, and the device's power and utilization, for the set that runs from now on."""
        if not self.running:
            self._is_full = False
            self._is_extrapolated = False
            self.power_mw = self.tables.context_idle_mw
            self.busy_permille = 0
            return
        tables, running = self.tables, self.running.values()
        demand = host = busy = 0
        bandwidth = 0.0  # added one by one: `sum` compensates floats from Python 3.12 on
        for r in running:
            table, size = r.table, r.size
            demand += table.demand_permille[size]
            host += table.host_permille[size]
            busy += table.busy_permille[size]
            bandwidth += table.bandwidth[size]
        self._is_full = host + tables.chores_permille > 1000
        servers = len({r.server for r in running}) if len(running) > 1 else 1
        is_across = servers > 1
        load = self._load_across() if is_across else max(demand, host)
        self._is_extrapolated = len(running) > tables.most_at_once or (is_across and servers > tables.most_processes)
        crowding = tables.crowding_across if is_across else tables.crowding
        common = crowding[min(load, CROWDING_LIMIT_PERMILLE)]
        uncapped_mw = tables.context_idle_mw
        for r in running:
            table, size = r.table, r.size
            r.slow_down = common * contention(tables.alpha, bandwidth - table.bandwidth[size]) * r.factor
            uncapped_mw += table.power_mw[size] / r.slow_down
        beside = tables.beside_load if self.loading else 1.0
        slowdown = self._slowdown * beside / clock_ratio(uncapped_mw, tables.cap_mw, tables.throttle, tables.phi_min)
        for r in running:
            r.slow_down *= slowdown
            r.end_ns = self._end_ns(now_ns, max(0, ceil(r.work_ns * r.slow_down)))
        self.power_mw = min(tables.cap_mw, uncapped_mw)
        self.busy_permille = min(1000, busy)

    def _end_ns(self, now_ns: int, takes_ns: int) -> int:
        """When a pass that takes so long ends: it stands still during chores."""
        if now_ns >= self._paused_from_ns:
            return max(now_ns, self.chores_until_ns) + takes_ns
        ends_ns = now_ns + takes_ns
        return ends_ns if ends_ns <= self._paused_from_ns else ends_ns + self.chores_until_ns - self._paused_from_ns

    def _load_across(self) -> int:
        """x of a running set of several processes, in permille."""
        running = self.running.values()
        load, _ = total_load(
            [r.table.demand_permille[r.size] for r in running],
            [r.table.host_permille[r.size] for r in running],
            [r.table.busy_permille[r.size] for r in running],
            [r.server for r in running],
            self.tables.hosted,
            1000,
        )
        return int(load)


def _ends_before(one: RunningBatch, other: RunningBatch) -> bool:
    if one.end_ns != other.end_ns:
        return one.end_ns < other.end_ns
    return (one.server, one.batch) < (other.server, other.batch)


def solo_ns(table: KeyTable, size: int, salt: int, server: int, batch: int) -> int:
    """Solo time of this very batch: the mean, or the median times a quantile drawn by hash."""
    if not table.jitter:
        return table.latency_ns[size]
    row = table.jitter[size]
    return ceil(table.typical_ns[size] * row[hashed(salt, server, batch) % len(row)])


def dispatch_ns(tables: DeviceTables, is_busy: bool, salt: int, server: int, batch: int) -> int:
    """From this very batch's command until its pass begins: the mean, or a quantile drawn by hash."""
    quantiles_ns = tables.busy_dispatches_ns if is_busy and tables.busy_dispatches_ns else tables.dispatches_ns
    return quantiles_ns[hashed(salt, server, batch) % len(quantiles_ns)] if quantiles_ns else tables.dispatch_ns


def parts_that_fit(size: int, room: int) -> tuple[int, ...]:
    """The sizes that a batch runs in where `room` images fit at once: halves of halves, as the hardware tries them.

    Empty where nothing fits.
    """
    if room < 1:
        return ()
    if size <= room:
        return (size,)
    larger = ceil(size / 2)
    return (*parts_that_fit(larger, room), *parts_that_fit(size - larger, room))


def sampled_spells(slowdown: SlowdownTable, salt: int) -> Iterator[tuple[int, float]]:
    """(when, how many times as long things take from then on), without end; `salt` is of the hash that draws.

    It starts at 0 in either state, as it would be found at any time.
    """
    full_ns, slow_ns = sum(slowdown.full_ns), sum(slowdown.slow_ns)
    is_slow = hashed(salt, _FIRST, _FIRST) % (full_ns + slow_ns) < slow_ns
    at_ns = 0
    for number in count():
        yield at_ns, slowdown.slow_factor if is_slow else 1.0
        durations_ns = slowdown.slow_ns if is_slow else slowdown.full_ns
        at_ns += durations_ns[hashed(salt, int(is_slow), number) % len(durations_ns)]
        is_slow = not is_slow
