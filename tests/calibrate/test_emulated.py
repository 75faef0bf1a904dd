"""The end-to-end test of calibration: a device whose truth is known is measured by the clock, and found again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from calibrate.calibration import CalibrationRequest, Played
from calibrate.costs import costs_of
from calibrate.emulated import bandwidth_of
from calibrate.session import calibrate
from hw.agent.emulated import EmulatedDevice
from hw.networks.slimresnet import SlimResNet
from policies.vocabulary import Provenance
from sim.emulation import FACTORY, Emulation, emulated, to_bytes
from sim.profile import Profile
from sim.tables import compile_tables
from tests import worlds
from tests.hw.worlds import TINY

pytestmark = [pytest.mark.workers, pytest.mark.slow]

BATCH_LIMIT = 8
SENSOR = {"period_s": 0.02, "lag_s": 0.01, "power_window_s": 0.02, "utilization_window_s": 0.1}


@pytest.fixture(scope="module")
def played() -> Played:
    """A GPU of three segments and two widths, ten times as slow as its profile says: passes of 4 ms and more.

    What an image takes of energy goes with its arithmetic, 100 W in the most costly batch.
    """
    costs = costs_of(SlimResNet(TINY), "tiny", "0")
    toy = worlds.profile(
        segments=TINY.segments,
        widths=TINY.widths,
        batches=(1, 2, 4, 8),
        base_s=6e-4,
        load_s=0.002,
        dispatch_s=1e-3,
        beta=1.1,
        model=costs.info.model_dump(),
        device={"kind": "cuda", "name": "toy", "vram_bytes": 8_000_000_000},
        sensor=SENSOR,
    )
    keys = {(c.segment, c.width, c.previous_width): c for c in toy.latency}
    joules = 100 / max(8 * cost.macs / keys[key].mean_s[-1] for key, cost in costs.keys.items())
    curves = [
        curve.model_copy(update={"energy_j_per_image": (joules * costs.keys[key].macs,) * len(curve.batches)})
        for key, curve in keys.items()
    ]
    return Played(emulated(toy.model_copy(update={"latency": tuple(curves)}), 10.0), costs)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibration") / "toy.jsonl"


@pytest.fixture(scope="module")
def found(played: Played, log: Path) -> Profile:
    device = EmulatedDevice(FACTORY, to_bytes(Emulation(played.profile.to_yaml(), BATCH_LIMIT)), "toy x10", 10.0)
    return calibrate(CalibrationRequest(None, device, 25.0, BATCH_LIMIT, log, name="toy", played=played))


def test_solo_latencies_are_found(played: Played, found: Profile) -> None:
    """The medians of its points; what other programs of this machine add to single passes is in the means."""
    truth = compile_tables(played.profile, BATCH_LIMIT)
    errors = [
        p50_s * 1e9 / truth.keys[curve.segment, curve.width, curve.previous_width].latency_ns[batch] - 1
        for curve in found.latency
        for batch, p50_s in zip(curve.batches, curve.p50_s, strict=True)
    ]
    assert len(found.latency) == len(played.profile.latency)
    assert np.median(np.abs(errors)) < 0.05


def test_nothing_ends_before_its_time(played: Played, found: Profile, log: Path) -> None:
    """By what was measured; curves may lie on a surface between the points, and so below some of them."""
    truth = compile_tables(played.profile, BATCH_LIMIT)
    records = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    solos = [record for record in records if record["result"]["kind"] == "SoloResult"]
    assert len(solos) > len(found.latency)
    for record in solos:
        point = re.search(r"(\d+)/([\d.]+)/([\d.]+)/(\d+)", record["step"])
        assert point is not None, record["step"]
        segment, width, previous_width, batch = point.groups()
        expected_ns = truth.keys[int(segment), float(width), float(previous_width)].latency_ns[int(batch)]
        assert np.median(record["result"]["samples"]["values"]) * 1e9 > 0.999 * expected_ns, record["step"]


def test_what_it_costs_to_share_it_is_found(played: Played, found: Profile) -> None:
    """About: half a core less for a while, and a set takes longer."""
    assert 0.7 < found.concurrency.beta < 1.8  # 1.1
    assert found.concurrency.across_beta is None  # one process has it for itself


def test_loads_and_dispatches_are_found(played: Played, found: Profile) -> None:
    """Never too short; most of them hardly longer, whatever else this machine does."""
    by_instance = {(cost.segment, cost.width): cost for cost in played.profile.memory.instances}
    pairs = [(cost, by_instance[cost.segment, cost.width]) for cost in found.memory.instances]
    assert all(cost.vram_bytes == truth.vram_bytes for cost, truth in pairs)
    for name in ("load_s", "reload_s", "unload_s"):
        longer = [getattr(cost, name) / getattr(truth, name) for cost, truth in pairs]
        assert min(longer) >= 1
        assert np.median(longer) < 2
    assert found.memory.context_bytes == played.profile.memory.context_bytes
    assert played.profile.dispatch_s <= found.dispatch_s < 10 * played.profile.dispatch_s
    assert found.link is not None


def test_watts_are_found(played: Played, found: Profile) -> None:
    """Of the batches that draw most of all."""
    truth, other = compile_tables(played.profile, BATCH_LIMIT), compile_tables(found, BATCH_LIMIT)
    most = sorted(truth.keys, key=lambda key: truth.keys[key].power_mw[8])[-4:]
    errors = [other.keys[key].power_mw[8] / truth.keys[key].power_mw[8] - 1 for key in most]
    assert np.median(np.abs(errors)) < 0.25
    assert (found.power.context_idle_w, found.power.cap_w) == (30.0, 250.0)


def test_nobody_takes_it_for_a_measured_device(found: Profile) -> None:
    assert {found.provenance, found.power.provenance, found.concurrency.provenance} == {Provenance.EMULATED}
    assert found.origin == "emulated x10"
    assert found.device.stamps["source"].startswith("emulated after")
    assert Profile.from_yaml(found.to_yaml(), "found.yaml") == found.model_copy(update={"checksum": None})
    assert found.errors


def test_shares_of_bandwidth_say_what_they_are_shares_of(played: Played) -> None:
    """Whatever the slowdown: a device that is slowed down moves fewer bytes, and has fewer to share."""
    tenth = Played(emulated(played.profile, 1.0), played.costs)
    assert bandwidth_of(tenth) == pytest.approx(bandwidth_of(played))
    slower = Played(emulated(played.profile, 2.0), played.costs)
    assert bandwidth_of(slower) == pytest.approx(bandwidth_of(played) / 2)
