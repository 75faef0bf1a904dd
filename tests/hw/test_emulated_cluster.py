"""Emulated servers as real processes: what they serve, and what goes wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from hw.router.local_cluster import HardwareCluster
from hw.router.router_loop import Routing
from hw.router.run_requests import HardwareRun, ServedNetwork
from hw.router.server_port import HardwareServer, RemoteServer
from hw.worker.emulated_lanes import EmulatedDevice
from policies.faults import Crash, Fault, Supervision
from policies.interfaces import RewardWeights
from policies.run_records import RunRecord
from policies.vocabulary import NS_PER_S
from sim.device_profile import Profile
from sim.emulated_device import FACTORY, Emulation, emulated, to_bytes
from tests import tiny

pytestmark = pytest.mark.workers

S = NS_PER_S
RULES = Supervision(hang_ns=S // 2, backoff_ns=S // 20, backoff_limit_ns=S // 2)


def profile(slowdown: float = 1.0, **changes: object) -> Profile:
    return emulated(tiny.profile(base_s=2e-3, per_image_s=1e-4, load_s=0.01, **changes), slowdown)  # type: ignore[arg-type]


def device(of: Profile) -> EmulatedDevice:
    return EmulatedDevice(FACTORY, to_bytes(Emulation(of.to_yaml(), 32)), of.device.name)


@pytest.fixture(scope="module")
def cluster() -> Iterator[HardwareCluster]:
    of, spec = profile(), tiny.cluster([profile(), profile()])
    model = of.model

    servers = [HardwareServer(s.name, device(of), s.params, 10.0, 30.0, sensor_period_s=0.05) for s in spec.servers]
    served = ServedNetwork.of_sizes(model.widths, model.input_bytes, model.activation_bytes)
    with HardwareCluster(served, servers, supervision=RULES) as opened:
        yield opened


def run(cluster: HardwareCluster, *faults: Fault, rate: float = 150, horizon_s: float = 2.0) -> RunRecord:
    spec = tiny.cluster([profile(), profile()])
    arrivals_ns = np.ceil(tiny.poisson_s(rate, horizon_s) * S).astype(np.int64)
    wanted = HardwareRun(
        arrivals_ns,
        np.zeros((1, *cluster.served.input_shape), np.float32),
        np.zeros(1, np.int64),
        round(horizon_s * S),
        faults=faults,
        is_correct=lambda request, widths: request % 3 == 0 and len(widths) == 4,
    )
    routing = Routing(tiny.Uniform(), np.random.default_rng(0), RewardWeights(), spec.prior)
    return cluster.run(wanted, spec.router, routing)


@pytest.fixture(scope="module")
def found(cluster: HardwareCluster) -> RunRecord:
    return run(cluster)


def test_labels_are_what_is_known_of_each_request(found: RunRecord) -> None:
    """Every image passes all segments, and no worker has said anything of its label."""
    assert {request.status for request in found.requests} == {"completed"}
    assert all(request.correct == (request.request % 3 == 0) for request in found.requests)
    assert all(len(request.widths) == 4 for request in found.requests)


def test_a_pass_takes_what_the_profile_says(found: RunRecord) -> None:
    """By the model's own times; a batch never ends before its model says so, and others only make it longer."""
    keys = {(c.segment, c.width, c.previous_width): c for c in profile().latency}
    assert len(found.batches) > 100
    for batch in found.batches:
        took_s = (batch.forward_ended_ns - batch.started_ns) / S
        curve = keys[batch.segment, batch.width, batch.previous_width]
        assert took_s >= curve.mean_s[0] - 1e-6
        assert batch.late_ns >= 0
        assert batch.ended_ns >= batch.forward_ended_ns


def test_sensor_reader_of_a_device_stays_the_same_when_another_server_dies(
    cluster: HardwareCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that starts from scratch loses what it has seen of its period."""
    told: list[int] = []
    sense = RemoteServer.sense

    def count(self: RemoteServer, period_ns: int, pids: tuple[int, ...]) -> None:
        told.append(self.index)
        sense(self, period_ns, pids)

    monkeypatch.setattr(RemoteServer, "sense", count)
    found = run(cluster, Crash(0, S // 2))
    assert [down.server for down in found.downtimes] == [0]
    assert told.count(1) == 1


def test_a_device_that_is_slow_on_purpose_is_not_stuck() -> None:
    """Its passes and loads take so many times as long, and so much more patience is due."""
    of, spec = profile(), tiny.cluster([profile(), profile()])
    devices = [replace(device(of), slowdown=slowdown) for slowdown in (1.0, 20.0)]
    served = ServedNetwork.of_sizes(of.model.widths, of.model.input_bytes, of.model.activation_bytes)
    servers = [HardwareServer(s.name, d, s.params, 10.0, 30.0) for s, d in zip(spec.servers, devices, strict=True)]
    opened = HardwareCluster(served, servers, supervision=RULES)
    patience_ns = [opened._service(index).supervision.stuck_ns for index in range(2)]
    assert patience_ns == [RULES.stuck_ns, 20 * RULES.stuck_ns]
