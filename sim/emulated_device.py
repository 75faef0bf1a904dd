"""The simulator's model of one server's device, driven by a real clock.

A process that emulates a device builds it from bytes and asks it when a pass ends. It is `sim.simulated_device` under
`sim.simulated_server`'s rules: dispatch, jitter, halves if memory is short, slow spells, a sensor that averages and
lags. Times are inputs, in nanoseconds from any origin, and never decrease.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from heapq import heappop, heappush

import msgspec

from kit.random_streams import derived_seed
from policies.faults import Impairment
from policies.vocabulary import Provenance
from sim.device_profile import InstanceCost, LatencyCurve, Profile
from sim.device_tables import BatchKey, UtilMetric, compile_tables
from sim.simulated_device import RunningBatch, SimulatedDevice, parts_that_fit, sampled_spells, solo_ns
from sim.simulated_server import JITTER

FACTORY = "sim.emulated_device:device_model"
_ONLY = 0  # the server on the device
_MAX_PAST = 1 << 10  # entries; then entries that no window reaches are dropped
_START, _END, _SPELL = range(3)  # the order at one instant, as in `sim.event_queue`


class Emulation(msgspec.Struct, frozen=True):
    """The parameters of a device model.

    Attributes:
        profile: text of the profile of the emulated device (`emulated`).
        batch_limit, jitter, util_metric: see `sim.device_tables.compile_tables`.
        seed: seed of jitter and slow spells, as a run's.
        server: index of the server and of its device in those draws.
    """

    profile: str
    batch_limit: int
    jitter: bool = True
    util_metric: UtilMetric = "nvml"
    seed: int = 0
    server: int = _ONLY


def to_bytes(emulation: Emulation) -> bytes:
    """Return the parameters as `device_model` reads them."""
    return msgspec.msgpack.encode(emulation)


def device_model(data: bytes) -> DeviceModel:
    """Return an idle device; raises `InputError` for an invalid profile."""
    return DeviceModel(msgspec.msgpack.decode(data, type=Emulation))


def emulated(profile: Profile, slowdown: float = 1.0) -> Profile:
    """Return the profile of a device emulated after this one, `slowdown` times as slow.

    Every pass, load and unload takes `slowdown` times as long; an emulated profile is named by its total slowdown. The
    device's power, its utilization and its sensor's averaging stay, so that an image takes `slowdown` times the energy.
    """
    of_emulation = {"provenance": Provenance.EMULATED}
    slow = profile.slowdown
    return profile.model_copy(
        update={
            **of_emulation,
            "checksum": None,
            "errors": (),  # those of the measured device: this one is exact by definition
            "ranges": (),
            "omitted": (),
            "device": profile.device.model_copy(
                update={"emulated_slowdown": (profile.device.emulated_slowdown or 1.0) * slowdown}
            ),
            "served_extra_s": profile.served_extra_s * slowdown,
            "served_extra_per_byte_s": profile.served_extra_per_byte_s * slowdown,
            "beside_load": 1.0,  # these four were of a host: the emulating host has its own
            "extra_after_pause_s": None,
            "busy_serving": None,
            "cpu_work": None,
            "latency": tuple(_slower_curve(curve, slowdown) for curve in profile.latency),
            "memory": profile.memory.model_copy(
                update={"instances": tuple(_slower_instance(cost, slowdown) for cost in profile.memory.instances)}
            ),
            "concurrency": profile.concurrency.model_copy(update=of_emulation),
            "power": profile.power.model_copy(update=of_emulation),
            "slowdown": None if slow is None else slow.model_copy(update=of_emulation),
        }
    )


def _slower_curve(curve: LatencyCurve, slowdown: float) -> LatencyCurve:
    names = ("mean_s", "p50_s", "p95_s", "p99_s", "energy_j_per_image")
    return curve.model_copy(update={name: tuple(value * slowdown for value in getattr(curve, name)) for name in names})


def _slower_instance(cost: InstanceCost, slowdown: float) -> InstanceCost:
    names = ("load_s", "reload_s", "unload_s")
    return cost.model_copy(update={name: getattr(cost, name) * slowdown for name in names})


class _Planned(msgspec.Struct, frozen=True, order=True):
    """A pass that begins at a planned time."""

    at_ns: int
    batch: int
    key: BatchKey
    images: int
    padded: int


class _Integrals(msgspec.Struct, frozen=True):
    """Energy in millijoules and utilization in permille times seconds, both totals until `at_ns`."""

    at_ns: int
    energy_mj: float
    busy_ms: float


class DeviceModel:
    """The device model behind `hw.worker.emulated_lanes`. Times increase from call to call."""

    def __init__(self, emulation: Emulation) -> None:
        profile = Profile.from_yaml(emulation.profile, "the profile of an emulated device")
        self._tables = compile_tables(
            profile, emulation.batch_limit, jitter=emulation.jitter, util_metric=emulation.util_metric
        )
        self._model = profile.model
        self._server = emulation.server
        self._seed = emulation.seed
        self._runs = 0
        self.segments = profile.model.segments
        self.context_bytes = profile.memory.context_bytes
        self.vram_bytes = profile.device.vram_bytes
        self.dispatch_ns = self._tables.dispatch_ns
        self._set_off(0, self._seed)

    def reset(self, now_ns: int) -> None:
        """Reset to an idle device without impairments and a sensor without a past. The first run draws as a simulation
        does, each later one differently: repeats of one trace differ by more than the host's noise."""
        self._runs += 1
        self._set_off(now_ns, self._seed if self._runs == 1 else derived_seed(self._seed, f"run:{self._runs}"))

    def _set_off(self, now_ns: int, seed: int) -> None:
        self._jitter_salt = derived_seed(seed, JITTER)
        spells_salt = derived_seed(seed, f"pace:{self._server}")
        self._device_model = SimulatedDevice(self._tables)
        self._origin_ns = now_ns
        self._starts: list[_Planned] = []
        self._began_ns: dict[int, int] = {}
        self._impairment = Impairment()
        self._spells: Iterator[tuple[int, float]] = iter(())
        if self._tables.slowdown is not None:
            self._spells = sampled_spells(self._tables.slowdown, spells_salt)
        self._spell = next(self._spells, None)
        self._past = [_Integrals(0, 0.0, 0.0)]

    # ------------------------------------------------------------------------------------------------------- passes

    def start(self, batch: int, key: BatchKey, images: int, padded: int, at_ns: int) -> None:
        """Plan a pass, now or later.

        Args:
            key: (segment, width, previous width).
            padded: the padded batch size on the device, at least `images`; a batch in parts is not padded.
        """
        heappush(self._starts, _Planned(at_ns - self._origin_ns, batch, key, images, padded))

    def impair(self, impairment: Impairment, now_ns: int) -> None:
        """Set an impairment: running batches become slow at once, later ones run in parts."""
        self._impairment = impairment
        self._device_model.straggle(_ONLY, impairment.slow_factor, now_ns - self._origin_ns)
        self._remember(now_ns - self._origin_ns)

    def advance(self, now_ns: int) -> list[tuple[int, int, int, bool]]:
        """Process everything due by now, each at its own time.

        A device does not wait for its observer: the remaining passes speed up from the model's end of another on, not
        from its detection.

        Returns:
            (batch, when it began, when it ended, whether it fitted into memory) in the order of their ends.
        """
        ended: list[tuple[int, int, int, bool]] = []
        until_ns = now_ns - self._origin_ns
        while (due := self._due()) is not None and due[0] <= until_ns:
            at_ns, kind = due
            if kind == _START:
                planned = heappop(self._starts)
                if not self._begin(planned):
                    ended.append((planned.batch, self._origin_ns + at_ns, self._origin_ns + at_ns, False))
                    continue
            elif kind == _END:
                ended.append(self._end(at_ns))
            else:
                assert self._spell is not None, "it was due"
                self._device_model.set_slowdown(self._spell[1], at_ns)
                self._spell = next(self._spells, None)
            self._remember(at_ns)
        return ended

    @property
    def next_ns(self) -> int | None:
        """The time at which `advance` has something to do whose result is awaited."""
        due = self._due() if self._starts or self._device_model.running else None
        return None if due is None else self._origin_ns + due[0]

    def _due(self) -> tuple[int, int] | None:
        """Return the next (when, what)."""
        due = []
        if self._starts:
            due.append((self._starts[0].at_ns, _START))
        if (running := self._device_model.next_end()) is not None:
            due.append((running.end_ns, _END))
        if self._spell is not None:
            due.append((self._spell[0], _SPELL))
        return min(due, default=None)

    def _begin(self, planned: _Planned) -> bool:
        table, room = self._tables.keys[planned.key], self._impairment.room_images
        sizes: tuple[int, ...] = (planned.padded,)
        if room is not None and planned.images > room:
            sizes = parts_that_fit(planned.images, room)
        if not sizes:
            return False
        work_ns = sum(solo_ns(table, size, self._jitter_salt, self._server, planned.batch) for size in sizes)
        self._began_ns[planned.batch] = planned.at_ns
        running = RunningBatch(_ONLY, planned.batch, table, sizes[0], work_ns, self._impairment.slow_factor)
        self._device_model.start(running, planned.at_ns)
        return True

    def _end(self, at_ns: int) -> tuple[int, int, int, bool]:
        running = self._device_model.next_end()
        assert running is not None, "its end was due"
        self._device_model.finish(_ONLY, running.batch, at_ns)
        return running.batch, self._origin_ns + self._began_ns.pop(running.batch), self._origin_ns + at_ns, True

    # ------------------------------------------------------------------------------------------- instances and sizes

    def load_ns(self, segment: int, width: float, from_disk: bool) -> int:
        """Return a load's duration."""
        cost = self._tables.instances[segment, width]
        return cost.load_ns if from_disk else cost.reload_ns

    def unload_ns(self, segment: int, width: float) -> int:
        """Return an unload's duration."""
        return self._tables.instances[segment, width].unload_ns

    def instance_bytes(self, segment: int, width: float) -> int:
        """Return the device memory of an instance."""
        return self._tables.instances[segment, width].vram_bytes

    def output_bytes(self, segment: int, width: float) -> int:
        """Return the bytes of one image's activations after a segment."""
        return self._model.activation_bytes[segment - 1][self._model.widths.index(width)]

    # ------------------------------------------------------------------------------------------------------- sensor

    def sample(self, now_ns: int) -> tuple[float, float]:
        """Return (power in watts, utilization) as a sensor reads them now: averages over its windows, as old as its
        lag.

        `advance` must have processed everything due by now.
        """
        tables, until_ns = self._tables, now_ns - self._origin_ns - self._tables.lag_ns
        self._remember(now_ns - self._origin_ns)
        power_w = self._average(until_ns, tables.power_window * tables.period_ns)[0]
        utilization = self._average(until_ns, tables.utilization_window * tables.period_ns)[1]
        return power_w, utilization

    def energy_j(self, now_ns: int) -> float:
        """Return the joules since `reset`."""
        return self._device_model.energy_mj(now_ns - self._origin_ns) / 1000

    def _remember(self, at_ns: int) -> None:
        if len(self._past) % _MAX_PAST == 0:
            tables = self._tables
            longest_ns = max(tables.power_window, tables.utilization_window) * tables.period_ns + tables.lag_ns
            del self._past[: max(0, self._place(at_ns - longest_ns) - 1)]
        self._past.append(_Integrals(at_ns, self._device_model.energy_mj(at_ns), self._device_model.busy_ms(at_ns)))

    def _average(self, until_ns: int, window_ns: int) -> tuple[float, float]:
        """Return averages of power and utilization; those of an idle device before it has a past."""
        if until_ns <= 0:
            return self._tables.context_idle_mw / 1000, 0.0
        first, last = self._integrals(max(0, until_ns - window_ns)), self._integrals(until_ns)
        scale = 1e6 / (last.at_ns - first.at_ns)  # thousandths times seconds over nanoseconds
        return (last.energy_mj - first.energy_mj) * scale, (last.busy_ms - first.busy_ms) * scale

    def _integrals(self, at_ns: int) -> _Integrals:
        """Return the integrals at any time of the kept past: power and utilization are constant between two of its
        entries."""
        after = self._place(at_ns)
        earlier, later = self._past[max(0, after - 1)], self._past[after]
        share = 1.0 if later.at_ns == earlier.at_ns else (at_ns - earlier.at_ns) / (later.at_ns - earlier.at_ns)
        return _Integrals(
            at_ns,
            earlier.energy_mj + share * (later.energy_mj - earlier.energy_mj),
            earlier.busy_ms + share * (later.busy_ms - earlier.busy_ms),
        )

    def _place(self, at_ns: int) -> int:
        """Return the index of the first entry of the past that isn't earlier."""
        return bisect_left(self._past, at_ns, key=lambda entry: entry.at_ns)
