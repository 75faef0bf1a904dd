"""Workers that Ray starts on three nodes of one machine: the same runs, deaths of workers and nodes, and joining."""

from __future__ import annotations

import dataclasses
import threading
import time  # noqa: TID251 - real runs are on a real clock
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from hw.device_settings import DeviceSpec
from hw.networks.architectures import SlimResNet
from hw.networks.network_files import ModelFile
from hw.router.local_cluster import HardwareCluster
from hw.router.ray_cluster import RayCluster, joined
from hw.router.ray_workers import RayHosts, RayWorker
from hw.router.router_loop import Routing, RunProgress
from hw.router.run_requests import HardwareRun
from hw.router.server_port import HardwareServer
from hw.worker.lanes import WorkerSpec
from hw.worker.torch_outfit import TorchOutfit
from policies.faults import WORKER_DIED, WORKER_HUNG, Crash, Hang, Supervision
from policies.interfaces import AccuracyPrior, RewardWeights
from policies.replay import replay_run
from policies.run_records import RunRecord
from policies.vocabulary import NS_PER_S
from tests.hw.frontends import IMAGES, open_frontend
from tests.hw.tiny import Wanderer, params, router, true_run
from tests.ray_nodes import RAY_HOSTS, RayNodes

pytestmark = [pytest.mark.workers, pytest.mark.ray]

WIDTHS = (1.0, 0.5, 1.0)
PRIOR = AccuracyPrior({(1.0,) * 3: 0.9})
RULES = Supervision(hang_ns=2 * NS_PER_S, backoff_ns=NS_PER_S // 10, backoff_limit_ns=NS_PER_S)


@pytest.fixture(scope="module")
def cluster(ray_hosts: RayNodes) -> Iterator[RayCluster]:
    with joined(ray_hosts.address, "cluster", "address") as found:
        yield found


@pytest.fixture(scope="module")
def served(cluster: RayCluster, path: Path) -> Iterator[HardwareCluster]:
    servers = [
        HardwareServer(host, DeviceSpec(channels_last=False), params(), 1.0, 2.0, sensor_period_s=0.05)
        for host in RAY_HOSTS
    ]
    carrier = RayHosts(cluster, RAY_HOSTS, path)
    with HardwareCluster(ModelFile(path), servers, warm_batches=(1, 4), supervision=RULES, carrier=carrier) as opened:
        yield opened


def carry_out(served: HardwareCluster, run: HardwareRun, during: threading.Thread | None = None) -> RunRecord:
    routing = Routing(Wanderer(WIDTHS), np.random.default_rng(1), RewardWeights(), PRIOR)

    def begin(_: RunProgress) -> None:
        if during is not None and during.ident is None:
            during.start()

    try:
        return served.run(run, router(3), routing, begin)
    finally:
        if during is not None and during.ident is not None:
            during.join()


def require_all_right(record: RunRecord) -> None:
    """None is lost, none comes twice, every label is the model's own, and the logs replay."""
    assert len({request.request for request in record.requests}) == len(record.requests)
    assert {request.status for request in record.requests} == {"completed"}
    assert all(request.correct and request.widths == WIDTHS for request in record.requests)
    assert replay_run(record.log, record.worker_logs, router(3), [params()] * 3) == []


def test_a_run_comes_to_the_same_and_clocks_are_told(served: HardwareCluster, model: SlimResNet) -> None:
    """Activations move between hosts. All is one machine, so an offset that is right is 0 to within its error."""
    record = carry_out(served, true_run(model, WIDTHS, 2.0))
    require_all_right(record)
    assert sum(request.moved for request in record.requests) > len(record.requests) / 2
    assert [clock.server for clock in record.clocks] == [0, 1, 2]
    for clock in record.clocks:
        assert 0 < clock.error_ns < NS_PER_S // 20
        assert abs(clock.offset_ns) <= clock.error_ns
        assert not clock.jumps


def test_clients_are_answered_by_servers_of_several_hosts(served: HardwareCluster, model: SlimResNet) -> None:
    """Images travel to where they are asked for, and labels and scores back."""
    with open_frontend(served) as frontend:
        status, _, answer = frontend.infer(IMAGES)
        assert status == 200
        outputs = {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in answer["outputs"]}
        assert np.allclose(outputs["scores"], model(IMAGES, WIDTHS).detach().numpy(), atol=1e-4)
        assert sum(server.images > 0 for server in frontend.stats.servers) > 1


def test_workers_that_die_or_hang_are_replaced(served: HardwareCluster, model: SlimResNet) -> None:
    """On their hosts, under another address; what they had is served elsewhere."""
    faults = (Crash(0, NS_PER_S), Hang(1, 2 * NS_PER_S))
    for seconds in (12.0, 48.0, 192.0):  # a busy machine may take a minute to start a successor
        before = [slot.worker.address for slot in served.slots]
        run = dataclasses.replace(true_run(model, WIDTHS, seconds, 60.0), faults=faults)
        record = carry_out(served, run)
        require_all_right(record)
        assert sorted((down.server, down.reason) for down in record.downtimes) == [(0, WORKER_DIED), (1, WORKER_HUNG)]
        if all(down.up_ns is not None for down in record.downtimes):
            break
    assert all(down.up_ns is not None for down in record.downtimes)
    after = [slot.worker.address for slot in served.slots]
    assert (after[0] != before[0], after[1] != before[1], after[2] != before[2]) == (True, True, False)
    lost = next(log for log in record.worker_logs if log.server == 0 and log.ended)
    assert len(lost.steps) >= lost.heard > 0  # it has come here before the worker was killed


@pytest.mark.release
@pytest.mark.timeout(900)
def test_a_node_that_dies_under_load_loses_nothing_and_serves_again_when_it_joins(
    ray_hosts: RayNodes, served: HardwareCluster, model: SlimResNet
) -> None:
    """All its processes at once. Ray takes it for alive for longer than its successor needs to join; we do not wait for
    that."""
    joined_s: list[float] = []

    def lose_and_join() -> None:
        time.sleep(1.0)
        ray_hosts.kill("gamma")
        ray_hosts.add("gamma")
        joined_s.append(time.monotonic())

    began_s = time.monotonic()
    run = true_run(model, WIDTHS, 45.0 * ray_hosts.slowness, 40.0)
    record = carry_out(served, run, threading.Thread(target=lose_and_join))
    require_all_right(record)
    assert [(down.server, down.reason) for down in record.downtimes] == [(2, WORKER_DIED)]
    up_ns = record.downtimes[0].up_ns
    assert up_ns is not None, "it serves again"
    origin_s = joined_s[0] - began_s  # a little more than in the run's own time
    assert up_ns / NS_PER_S - origin_s < 20.0 * ray_hosts.slowness
    assert any(batch.server == 2 and batch.started_ns > up_ns for batch in record.batches)


def test_no_worker_is_left_when_the_cluster_is_closed(cluster: RayCluster, path: Path) -> None:
    server = HardwareServer("beta", DeviceSpec(channels_last=False), params(), 1.0, 2.0)
    with HardwareCluster(ModelFile(path), [server], carrier=RayHosts(cluster, ["beta"], path)) as opened:
        pid = opened.slots[0].worker.pid
        assert Path(f"/proc/{pid}").exists()
    until_s = time.monotonic() + 10.0
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until_s, "it lives on"
        time.sleep(0.05)


def test_an_worker_whose_host_is_not_there_keeps_nobody(cluster: RayCluster, path: Path) -> None:
    carrier = RayHosts(cluster, ["nowhere"], path)
    carrier.arenas(1, 4096)
    absent = cast(RayWorker, carrier.start(0, WorkerSpec("absent", TorchOutfit(DeviceSpec(), ModelFile(path), (), 0))))
    assert not absent.ended.is_set()
    began_s = time.monotonic()
    absent.close()
    carrier.close()
    assert time.monotonic() - began_s < 5.0
    assert absent.ended.is_set()
