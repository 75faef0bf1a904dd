"""The device model: sharing, saturation, the power cap, and exact integrals."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.device_model import BatchLoad, Sharing, clock_ratio, crowding, slow_downs
from sim.device_profile import Profile
from sim.device_tables import DeviceTables, compile_tables
from sim.simulated_device import RunningBatch, SimulatedDevice, WindowedSensor
from tests import tiny

MS = 1_000_000


def tables(**changes: object) -> DeviceTables:
    return compile_tables(tiny.profile(batches=(1, 8), **changes), 8)  # type: ignore[arg-type]


def start(device: SimulatedDevice, now_ns: int, number: int, size: int = 8, factor: float = 1.0) -> RunningBatch:
    table = device.tables.keys[1, 1.0, 0.0]
    batch = RunningBatch(0, number, table, size, float(table.latency_ns[size]), factor)
    device.start(batch, now_ns)
    return batch


def test_alone_a_batch_takes_its_solo_time() -> None:
    device = SimulatedDevice(tables())
    assert start(device, 0, 1).end_ns == device.tables.keys[1, 1.0, 0.0].latency_ns[8]


def test_two_saturating_batches_share_the_device_and_speed_up_again_when_one_ends() -> None:
    """Processor sharing: the second starts halfway through the first; both ends follow by hand."""
    device = SimulatedDevice(tables())
    solo_ns = device.tables.keys[1, 1.0, 0.0].latency_ns[8]
    first = start(device, 0, 1)
    second = start(device, solo_ns // 2, 2)
    assert first.end_ns == pytest.approx(solo_ns * 1.5, abs=2)
    device.finish(0, 1, first.end_ns)
    assert second.end_ns == pytest.approx(solo_ns * 2, abs=4)
    assert device.next_end() is second


def test_a_pass_beside_a_load_is_slower_until_the_last_load_ends() -> None:
    """By the profile's factor, however many instances are loaded; a server that dies loads nothing any more."""
    device = SimulatedDevice(tables(beside_load=3.0))
    solo_ns = device.tables.keys[1, 1.0, 0.0].latency_ns[8]
    batch = start(device, 0, 1)
    device.begin_load(0, 7, 0)
    device.begin_load(1, 7, 0)
    assert batch.end_ns == 3 * solo_ns
    device.end_load(0, 7, solo_ns)
    assert batch.end_ns == 3 * solo_ns
    device.kill(1, solo_ns * 3 // 2)  # half of the work is done
    assert batch.end_ns == pytest.approx(2 * solo_ns, abs=2)


def test_small_batches_overlap_freely_until_demand_or_host_saturates() -> None:
    """Crowding begins where the sum of demands (or of host shares) passes 1."""
    device = SimulatedDevice(tables())
    table = device.tables.keys[1, 1.0, 0.0]
    demand = table.demand_permille[1] / 1000
    count = int(1 / max(demand, 0.3))
    batches = [start(device, 0, number, size=1) for number in range(count)]
    assert all(batch.slow_down == 1.0 for batch in batches)
    more = [start(device, 0, count + number, size=1) for number in range(3)]
    assert all(batch.slow_down > 1.0 for batch in more)


def test_bandwidth_contention_counts_the_others_only() -> None:
    batches = [BatchLoad(0.1, 0.0, 0.0, moved) for moved in (0.4, 0.1)]
    assert slow_downs(batches, Sharing(1.0, 1.0, 1.0, hosted=False)) == [pytest.approx(1.1), pytest.approx(1.4)]


def test_a_gpu_runs_one_process_at_a_time_and_a_cpu_its_threads() -> None:
    """Three batches that fill little but keep a GPU busy: one process overlaps them, two take turns; threads of a CPU
    share its cores, whoever they belong to."""
    small = [BatchLoad(0.2, 0.3, 0.9, 0.0, process) for process in (0, 0, 1)]
    one_process = [replace(batch, process=0) for batch in small]
    gpu, cpu = Sharing(0.0, 1.0, 1.0, hosted=False), Sharing(0.0, 1.0, 1.0, hosted=True)
    assert slow_downs(one_process, gpu) == [1.0] * 3
    assert slow_downs(small, gpu) == pytest.approx([1.9] * 3)  # one process is busy all the time, the other 0.9 of it
    assert slow_downs([replace(batch, host=1.0) for batch in small], cpu) == pytest.approx([3.0] * 3)
    assert slow_downs(small, replace(gpu, across_beta=2.0)) == pytest.approx([1.9**2] * 3)
    assert slow_downs(one_process, replace(gpu, across_beta=2.0)) == [1.0] * 3


def test_above_the_power_cap_clocks_fall_and_power_stays_at_the_cap() -> None:
    power = {
        "bare_idle_w": 10.0,
        "context_idle_w": 30.0,
        "cap_w": 40.0,
        "throttle": 0.5,
        "phi_min": 0.6,
        "provenance": "datasheet",
    }
    device = SimulatedDevice(tables(power=power))
    batch = start(device, 0, 1)
    table = device.tables.keys[1, 1.0, 0.0]
    uncapped_w = 30.0 + table.power_mw[8] / 1000
    assert uncapped_w > 40.0
    assert device.power_mw == 40_000
    assert batch.slow_down == pytest.approx(1 / max(0.6, 1 - 0.5 * (uncapped_w / 40 - 1)))
    assert clock_ratio(40.0, 40.0, 0.5, 0.6) == 1.0


def test_a_straggler_is_slower_by_its_factor_from_the_moment_it_starts() -> None:
    """Half done, then three times slower: the rest takes three times as long."""
    device = SimulatedDevice(tables())
    solo_ns = device.tables.keys[1, 1.0, 0.0].latency_ns[8]
    batch = start(device, 0, 1)
    device.straggle(0, 3.0, solo_ns // 2)
    assert batch.end_ns == pytest.approx(solo_ns * 2, abs=4)


@given(st.floats(0, 5), st.floats(0, 5), st.floats(1, 2))
def test_crowding_is_monotone_and_free_up_to_saturation(first: float, second: float, beta: float) -> None:
    """More demand never speeds anything up; at or below 1 nothing slows down."""
    low, high = sorted((first, second))
    assert crowding(low, beta) <= crowding(high, beta)
    assert crowding(min(low, 1.0), beta) == 1.0


def test_energy_and_busy_time_are_the_integrals_of_power_and_utilization() -> None:
    """Piecewise constant: idle, then one batch, then idle; and an unfinished interval counts, too."""
    device = SimulatedDevice(tables())
    table = device.tables.keys[1, 1.0, 0.0]
    batch = start(device, 5 * MS, 1)
    device.finish(0, 1, batch.end_ns)
    run_s = (batch.end_ns - 5 * MS) / 1e9
    until_ns = batch.end_ns + 7 * MS
    expected_mj = 30_000 * until_ns / 1e9 + table.power_mw[8] * run_s
    assert device.energy_mj(until_ns) == pytest.approx(expected_mj)
    assert device.busy_ms(until_ns) == pytest.approx(table.busy_permille[8] * run_s)


def test_the_sensor_averages_over_its_windows_and_never_reads_the_present() -> None:
    device = SimulatedDevice(dataclasses.replace(tables(), period_ns=20 * MS, power_window=1, utilization_window=2))
    sensor = WindowedSensor(device)
    assert sensor.read(0) == (30.0, 0.0)  # before its first reading it was idle
    start(device, 10 * MS, 1)
    running_mw, busy = device.power_mw, device.busy_permille
    device.finish(0, 1, 15 * MS)
    power_w, utilization = sensor.read(20 * MS)
    assert power_w == pytest.approx((30_000 * 15 + running_mw * 5) / 20 / 1000)
    assert utilization == pytest.approx(busy * 5 / 40 / 1000)  # of two periods, the first of which was before
    power_w, utilization = sensor.read(40 * MS)
    assert power_w == pytest.approx(30.0)
    assert utilization == pytest.approx(busy * 5 / 40 / 1000)


def test_clocks_stay_up_for_a_while_after_the_last_pass() -> None:
    """That draws more than idle: for as long as that lasts, until the next pass, and never before the first one."""
    device = SimulatedDevice(dataclasses.replace(tables(), awake_mw=20_000.0, awake_ns=3 * MS))
    table = device.tables.keys[1, 1.0, 0.0]

    def dynamic_mj(now_ns: int) -> float:
        return device.energy_mj(now_ns) - 30_000 * now_ns / 1e9

    assert dynamic_mj(5 * MS) == 0.0
    first = start(device, 5 * MS, 1)
    run_s = (first.end_ns - 5 * MS) / 1e9
    assert dynamic_mj(first.end_ns) == pytest.approx(table.power_mw[8] * run_s)
    device.finish(0, 1, first.end_ns)
    for later_ns, awake_ns in ((MS, MS), (3 * MS, 3 * MS), (50 * MS, 3 * MS)):
        expected_mj = table.power_mw[8] * run_s + 20_000 * awake_ns / 1e9
        assert dynamic_mj(first.end_ns + later_ns) == pytest.approx(expected_mj)
    second = start(device, first.end_ns + MS, 2)  # before they have fallen
    assert dynamic_mj(second.end_ns) == pytest.approx(2 * table.power_mw[8] * run_s + 20_000 * MS / 1e9)


def test_only_a_profile_that_knows_it_has_such_a_state() -> None:
    found = tables()
    assert (found.awake_mw, found.awake_ns) == (0.0, 0)
    power = found.profile.power.model_dump()
    known = compile_tables(tiny.profile(batches=(1, 8), power={**power, "awake_w": 45.0, "awake_s": 2.5}), 8)
    assert (known.awake_mw, known.awake_ns) == (15_000.0, 2_500 * MS)
    for each in (found.profile, known.profile):
        assert Profile.from_yaml(each.to_yaml(), "here").power == each.power
        assert ("awake" in each.to_yaml()) == (each.power.awake_w is not None)
    with pytest.raises(ValueError, match="awake_w"):
        tiny.profile(batches=(1, 8), power={**power, "awake_w": 1.0})
