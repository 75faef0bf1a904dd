"""A device whose speed comes and goes: how slow, how often, how long, and the same again for the same seed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from sim.device_profile import Slowdown
from sim.device_tables import DeviceTables, compile_tables
from sim.event_queue import EventQueue
from sim.simulated_device import RunningBatch, SimulatedDevice
from sim.simulated_server import SharedDevice
from tests import tiny

SLOWDOWN = {"slow_factor": 1.5, "slow_share": 0.4, "mean_slow_s": 0.1, "provenance": "measured"}


def tables(jitter: bool = True, **changes: Any) -> DeviceTables:
    return compile_tables(tiny.profile(batches=(1, 8), **changes), 8, jitter=jitter)


def test_a_slow_device_does_everything_slower_at_the_same_power() -> None:
    """Half done, then half as long again for the rest; another tenant's work is not on our meter."""
    device = SimulatedDevice(tables())
    table = device.tables.keys[1, 1.0, 0.0]
    solo_ns = table.latency_ns[8]
    batch = RunningBatch(0, 1, table, 8, float(solo_ns))
    device.start(batch, 0)
    power_mw = device.power_mw
    device.set_slowdown(1.5, solo_ns // 2)
    assert batch.end_ns == pytest.approx(solo_ns * 1.25, abs=4)
    assert device.power_mw == power_mw
    device.set_slowdown(1.0, solo_ns)
    assert batch.end_ns == pytest.approx(solo_ns + (0.5 - 0.5 / 1.5) * solo_ns, abs=4)


class Spells(SimulatedDevice):
    """Writes down when its slowdown changes."""

    def __init__(self, compiled: DeviceTables) -> None:
        super().__init__(compiled)
        self.changes: list[tuple[int, float]] = []

    def set_slowdown(self, factor: float, now_ns: int) -> None:
        self.changes.append((now_ns, factor))
        super().set_slowdown(factor, now_ns)


def spells(salt: int, changes: int) -> list[tuple[int, float]]:
    event_queue = EventQueue()
    device_model = Spells(tables(slowdown=SLOWDOWN))
    device = SharedDevice(device_model, event_queue)
    event_queue.process(device.sampled_slowdown(salt))
    while len(device_model.changes) < changes:
        event_queue.step()
    return device_model.changes


def test_spells_last_and_come_as_the_profile_says() -> None:
    """Over many: their share of the time, their mean length, one state after the other; the same for the same salt."""
    times, factors = np.asarray(spells(3, 10_000)).T
    lasted_s, slow = np.diff(times) / 1e9, factors[:-1] == 1.5
    assert lasted_s[slow].sum() / lasted_s.sum() == pytest.approx(0.4, abs=0.02)
    assert lasted_s[slow].mean() == pytest.approx(0.1, rel=0.04)
    assert np.std(lasted_s[slow]) == pytest.approx(0.1, rel=0.05)  # exponential
    assert np.all(slow[1:] != slow[:-1])
    assert spells(3, 50) == spells(3, 50)
    assert spells(3, 50) != spells(4, 50)
    starts_slow = [spells(salt, 1)[0][1] == 1.5 for salt in range(200)]
    assert np.mean(starts_slow) == pytest.approx(0.4, abs=0.1)


def test_without_jitter_a_device_has_its_mean_slowdown() -> None:
    """Everything takes as much longer as it does on average, and nothing is drawn."""
    steady, slowed = tables(jitter=False), tables(jitter=False, slowdown=SLOWDOWN)
    assert slowed.slowdown is None
    assert Slowdown.model_validate_json(json.dumps(SLOWDOWN)).mean_factor == pytest.approx(1.2)
    ratio = slowed.keys[1, 1.0, 0.0].latency_ns[8] / steady.keys[1, 1.0, 0.0].latency_ns[8]
    assert ratio == pytest.approx(1.2, rel=1e-6)
    assert tables().slowdown is None


def test_a_replayed_slowdown_does_not_count_the_mean_slowdown_again() -> None:
    """Without jitter the tables hold the mean slowdown already: at full speed a batch takes its full speed's time."""
    slowed, steady = tables(jitter=False, slowdown=SLOWDOWN), tables(jitter=False)
    event_queue, device_model = EventQueue(), SimulatedDevice(slowed)
    event_queue.process(SharedDevice(device_model, event_queue).followed_slowdown([(0, 1.0)]))
    event_queue.run(until=1)
    table = slowed.keys[1, 1.0, 0.0]
    batch = RunningBatch(0, 1, table, 8, float(table.latency_ns[8]))
    device_model.start(batch, 0)
    assert batch.end_ns == pytest.approx(steady.keys[1, 1.0, 0.0].latency_ns[8], rel=1e-6)


def test_slow_spells_lengthen_queues_more_than_their_mean() -> None:
    """At the same mean speed, spells make worse tails than a device that is always a little slow."""
    p99_s = []
    heavy = {**SLOWDOWN, "slow_factor": 3.0, "slow_share": 0.2, "mean_slow_s": 0.5}
    for slowdown, speed in ((heavy, 1.0), (None, 1 / 1.4)):
        profiles = [tiny.profile("a", speed=speed, slowdown=slowdown, load_s=0.0)]
        spec = tiny.cluster(profiles, greedy={"idle_unload_ns": None})
        runs = [tiny.run(spec, tiny.poisson_s(100, 10.0, seed), 10.0, seed=seed) for seed in range(2)]
        found = [r.finished_ns - r.arrived_ns for run in runs for r in tiny.simulate(spec, run)[1].requests]
        p99_s.append(np.quantile(found, 0.99) / 1e9)
    assert p99_s[0] > 1.5 * p99_s[1]


def test_time_beyond_what_was_measured_together_is_counted() -> None:
    """Two batches at once are within the profile's range, three are extrapolated."""
    ranges = [{"metric": "slow-down under concurrency", "quantity": "batches at once", "low": 1, "high": 2}]
    device = SimulatedDevice(tables(ranges=ranges))
    table = device.tables.keys[1, 1.0, 0.0]
    for number in (1, 2, 3):
        device.start(RunningBatch(0, number, table, 8, 1e12), number * 1000)
    device.advance(10_000)
    assert device.extrapolated_ns(10_000) == 7000
    assert device.extrapolated_ns(12_000) == 9000  # three still run
    assert device.tables.most_processes == float("inf")  # this one promises nothing
    two = {"metric": "slow-down across processes", "quantity": "processes at once", "low": 1, "high": 2}
    stated = {"metric": "solo latency", "kind": "held out", "median_abs_pct": 1.0, "mean_abs_pct": 1.0}
    errors = [{**stated, "p90_abs_pct": 1.0, "max_abs_pct": 1.0, "points": 9}]
    measured = SimulatedDevice(tables(ranges=[{**ranges[0], "high": 8}, two], provenance="measured", errors=errors))
    for server in (0, 1, 2):
        measured.start(RunningBatch(server, 1, table, 8, 1e12), server * 1000)
    measured.advance(10_000)
    assert measured.extrapolated_ns(10_000) == 8000
    assert tables(provenance="measured", errors=errors).most_at_once == 1
