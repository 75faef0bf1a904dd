"""What a run's own processes take of the host: which cores they compete for, and which of them count."""

from __future__ import annotations

from typing import Literal

import pytest

from benchmarks.speed import hollow
from hw.device_settings import DeviceSpec
from hw.router.local_cluster import HardwareCluster
from hw.router.router_loop import RunProgress
from hw.router.run_meters import Taker, cpu_use
from hw.worker.emulated_lanes import EmulatedDevice
from policies.run_records import CpuUse, RunRecord

SECOND = 10**9
Worker = tuple[DeviceSpec | EmulatedDevice, int]


def emulated(busy_s: float, *cores: int) -> Worker:
    return EmulatedDevice("", b"", "toy", cores=cores), round(busy_s * SECOND)


def real(kind: Literal["cpu", "cuda"], busy_s: float, *cores: int) -> Worker:
    return DeviceSpec(kind, cores=cores), round(busy_s * SECOND)


def use(router_s: float, *workers: Worker, router_cores: tuple[int, ...] = (), cores: int = 2) -> CpuUse:
    """Of a run of ten seconds."""
    return cpu_use(Taker(round(router_s * SECOND), frozenset(router_cores)), workers, range(cores), 10 * SECOND)


def test_a_thread_has_one_core_however_many_there_are() -> None:
    """A router that is always busy is the bottleneck on a host of any size, and so is a worker."""
    found = use(9.5, emulated(1.0), emulated(2.0), cores=64)
    assert (found.router, found.worker, found.share) == (0.95, 0.2, 0.95)
    assert found.cores == pytest.approx(12.5 / 640)
    assert use(1.0, emulated(9.9), emulated(2.0), cores=64).share == 0.99


def test_the_fullest_cores_count_and_not_the_mean() -> None:
    """Three workers on the last core, the router on the first: half of the host is idle, and they starve."""
    found = use(1.0, *[emulated(3.2, 1) for _ in range(3)], router_cores=(0,))
    assert found.cores == pytest.approx(0.96)


def test_load_of_an_unpinned_router_is_not_added_to_the_core_of_a_pinned_worker() -> None:
    assert use(6.0, emulated(9.0, 1)).cores == pytest.approx(0.9)
    assert use(6.0, emulated(3.0, 1)).cores == pytest.approx(0.45)


def test_threads_that_spin_are_no_bottleneck_by_themselves() -> None:
    """A worker of a GPU waits for it with a busy thread; together with others it does take their cores."""
    found = use(1.0, real("cuda", 11.0))
    assert found.worker == 0.0
    assert found.cores == pytest.approx(0.6)


def run(cluster: HardwareCluster, told: list[RunProgress]) -> tuple[CpuUse, RunRecord]:
    config, routing = hollow.routing("sticky", 2, (1,))
    record = cluster.run(hollow.MicroBatchLoad(1, 400.0, 1.0).run((3, 32, 32)), config, routing, told.append)
    assert record.cpu is not None
    return record.cpu, record


@pytest.mark.workers
def test_a_run_tells_what_its_processes_took() -> None:
    """The router's thread and the workers' processes; and how much it is so far."""
    servers, told = hollow.servers(hollow.devices(2)), list[RunProgress]()
    with hollow.HollowCluster(hollow.served((3, 32, 32)), servers) as cluster:
        found, record = run(cluster, told)
    assert found.router == pytest.approx(record.router_busy_ns / record.ended_ns)
    assert found.worker == pytest.approx(max(record.workers_busy_ns) / record.ended_ns)
    assert [each.busy_ns for each in told] == sorted(each.busy_ns for each in told)
    assert 0 < told[-1].busy_ns <= record.router_busy_ns
