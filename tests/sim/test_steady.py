"""A device under load: the chain against queueing theory and against the device model run event by event."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policies.vocabulary import NS_PER_S
from sim.device_tables import DeviceTables, compile_tables
from sim.simulated_device import (
    AT_ONCE,
    LOADS,
    RunningBatch,
    SimulatedDevice,
    SteadyPoint,
    knee,
    shared_device,
    steady_points,
)
from tests import tiny

KEY = (1, 1.0, 0.0)
BATCH = 32
NO_CAP: dict[str, Any] = {"bare_idle_w": 10.0, "context_idle_w": 30.0, "cap_w": 1e6, "provenance": "datasheet"}


def tables(*, utilization: float = 1.0, **changes: Any) -> DeviceTables:
    """One saturating batch size: demand 1; `utilization` of the device by it alone."""
    profile = tiny.profile(segments=1, batches=(BATCH,), **{"power": NO_CAP, **changes})
    curves = tuple(curve.model_copy(update={"utilization": (utilization,)}) for curve in profile.latency)
    return compile_tables(profile.model_copy(update={"latency": curves}), BATCH)


def small_batches(**changes: Any) -> DeviceTables:
    """Batches of 1 that take a tenth of the device each: latency is flat until ten run."""
    changes = {"base_s": 1e-2, "per_image_s": 1e-3, **changes}
    profile = tiny.profile(segments=1, batches=(1, 100), **{"power": NO_CAP, **changes})
    shares = {"utilization": (0.1, 1.0), "host_share": (0.0, 0.0), "bandwidth_share": (0.0, 0.0)}
    curves = tuple(curve.model_copy(update=shares) for curve in profile.latency)
    return compile_tables(profile.model_copy(update={"latency": curves}), 100)


def curve(device: DeviceTables, batch: int, at_once: int = AT_ONCE) -> list[SteadyPoint]:
    return steady_points(shared_device(device, KEY, batch, at_once), LOADS)


def test_device_with_one_saturating_batch_is_a_processor_sharing_queue() -> None:
    """M/G/1-PS: utilization is the load, latency L / (1 - load), dynamic power the load's share of the full one."""
    device = tables()
    solo_s = device.keys[KEY].latency_ns[BATCH] / NS_PER_S
    full_w = device.keys[KEY].power_mw[BATCH] / 1000
    for point in curve(device, BATCH):
        assert point.utilization == pytest.approx(point.load, rel=1e-6)
        assert point.latency_s == pytest.approx(solo_s / (1 - point.load), rel=1e-6)
        assert point.power_w == pytest.approx(30 + point.load * full_w, rel=1e-6)
        assert point.energy_j == pytest.approx(point.power_w * point.latency_s)


def test_the_knee_of_processor_sharing_is_where_theory_has_it() -> None:
    """1 / (1 - U) up to U = 0.99 lies farthest below its chord at 1 - U = sqrt(0.01 x (1 - U0))."""
    bend = knee(curve(tables(), BATCH))
    assert bend is not None
    assert bend.utilization == pytest.approx(1 - (0.01 * 0.98) ** 0.5, abs=0.01)


def test_the_knee_comes_of_saturation_and_of_nothing_else() -> None:
    """Small batches on one device: with crowding a knee between 85 and 100 %; without, at the same rates, none."""
    crowded, free = small_batches(), small_batches(beta=0.0)
    shared = shared_device(crowded, KEY, 1, 64)
    points = steady_points(shared, LOADS)
    bend = knee(points)
    assert bend is not None
    assert 0.85 < bend.utilization < 1.0
    idle = points[0].latency_s
    assert bend.latency_s > 1.5 * idle
    assert all(point.latency_s < 1.3 * idle for point in points if point.utilization < 0.7)
    alone = shared_device(free, KEY, 1, 64)
    same_rates = [point.rate_batches_s / alone.capacity_batches_s for point in points]
    without = steady_points(alone, same_rates)
    assert knee(without) is None
    assert all(point.latency_s == pytest.approx(idle, rel=1e-3) for point in without)


def test_the_power_cap_alone_bends_latency_and_no_further_than_its_clocks_fall() -> None:
    """Without crowding, a cap that binds at half load slows batches down from there on, to 1 / phi_min at most."""
    joules_w = small_batches().keys[KEY].power_mw[1] / 1000
    cap: dict[str, Any] = {**NO_CAP, "cap_w": 30 + 5 * joules_w, "throttle": 2.0, "phi_min": 0.5}
    capped = small_batches(beta=0.0, power=cap)
    shared = shared_device(capped, KEY, 1, 64)
    slow_downs = np.arange(1, 65) * shared.rate_batches_s[1] / shared.rate_batches_s[1:]
    assert slow_downs[:5] == pytest.approx(1.0)
    assert (np.diff(slow_downs[4:8]) > 0).all()
    assert slow_downs[-1] == pytest.approx(2.0)
    assert shared.power_w.max() == pytest.approx(cap["cap_w"])
    unthrottled = shared_device(small_batches(beta=0.0, power={**cap, "throttle": 0.0}), KEY, 1, 64)
    assert unthrottled.rate_batches_s == pytest.approx(np.arange(65) * shared.rate_batches_s[1])


def test_a_lower_cap_brings_the_knee_to_a_lower_rate() -> None:
    """Saturation and a cap: the same latency is reached at fewer batches a second."""
    joules_w = small_batches().keys[KEY].power_mw[1] / 1000
    cap: dict[str, Any] = {**NO_CAP, "cap_w": 30 + 5 * joules_w, "throttle": 1.0, "phi_min": 0.5}
    free, capped = knee(curve(small_batches(), 1, 64)), knee(curve(small_batches(power=cap), 1, 64))
    assert free is not None
    assert capped is not None
    assert capped.rate_batches_s < 0.8 * free.rate_batches_s


def test_a_busier_share_moves_the_knee_along_utilization() -> None:
    """Where kernels of one batch keep half the device busy, two saturate it: U = E[min(1, n / 2)], by hand."""
    for point in curve(tables(utilization=0.5), BATCH):
        by_hand = point.load**2 + 0.5 * (1 - point.load) * point.load
        assert point.utilization == pytest.approx(by_hand, abs=1e-6)


def test_the_chain_is_the_device_model_run_event_by_event() -> None:
    """Poisson arrivals of equal batches on the very device: mean latency, utilization and power agree."""
    device = small_batches(alpha=0.05, power={**NO_CAP, "cap_w": 36.0, "throttle": 0.5, "phi_min": 0.5})
    point = steady_points(shared_device(device, KEY, 1, 60), [0.8])[0]
    latency_s, utilization, power_w = _played(device, point.rate_batches_s, 20_000)
    assert latency_s == pytest.approx(point.latency_s, rel=0.03)
    assert utilization == pytest.approx(point.utilization, rel=0.02)
    assert power_w == pytest.approx(point.power_w, rel=0.02)


def _played(tables: DeviceTables, rate_s: float, batches: int) -> tuple[float, float, float]:
    gaps_ns = np.random.default_rng(0).exponential(NS_PER_S / rate_s, batches)
    arrivals = [int(t) for t in np.cumsum(gaps_ns)]
    device, table, waited_ns = SimulatedDevice(tables), tables.keys[KEY], 0
    index = now_ns = 0
    while index < batches or device.running:
        first = device.next_end()
        if first is not None and (index == batches or first.end_ns <= arrivals[index]):
            now_ns = first.end_ns
            device.finish(0, first.batch, now_ns)
            waited_ns += now_ns - arrivals[first.batch]
        else:
            now_ns = arrivals[index]
            device.start(RunningBatch(0, index, table, 1, float(table.latency_ns[1])), now_ns)
            index += 1
    seconds = now_ns / NS_PER_S
    return (
        waited_ns / batches / NS_PER_S,
        device.busy_ms(now_ns) / 1000 / seconds,
        device.energy_mj(now_ns) / 1000 / seconds,
    )


def test_no_steady_state_at_capacity() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        steady_points(shared_device(tables(), KEY, BATCH), [1.0])
