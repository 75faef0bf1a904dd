"""The real cluster end to end: conservation, true labels, replay, repeated runs, a death; nothing is left behind."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import psutil
import pytest
import torch

from hw.device_settings import DeviceSpec
from hw.networks.architectures import SlimResNet
from hw.networks.datasets import Pixels
from hw.networks.network_files import ModelFile
from hw.router.local_cluster import HardwareCluster
from hw.router.router_loop import Routing, RunProgress, own_cores
from hw.router.run_requests import HardwareRun
from hw.router.server_port import HardwareServer
from hw.router.worker_handles import WorkerHandle
from hw.telemetry import usable_cores
from hw.worker.lanes import WorkerSpec
from kit.errors import InputError
from policies.faults import WORKER_DIED, Crash, Supervision
from policies.interfaces import AccuracyPrior, RewardWeights, accuracies_of
from policies.replay import replay_run
from policies.run_records import RunRecord
from policies.vocabulary import (
    NS_PER_S,
    BatchFinished,
    Decide,
    GoalSet,
    InstanceLoaded,
    LoadInstance,
    RequestArrived,
    ServerUp,
    TelemetrySampled,
)
from tests.hw.tiny import TINY, Wanderer, device, params, router, true_run

pytestmark = pytest.mark.workers

WIDTHS = (1.0, 0.5, 1.0)
PRIOR = AccuracyPrior({(1.0,) * 3: 0.9})


def _servers(count: int = 2) -> list[HardwareServer]:
    return [HardwareServer(f"server{i}", device(i), params(), 1.0, 2.0, sensor_period_s=0.05) for i in range(count)]


@pytest.fixture(scope="module")
def cluster(path: Path) -> Iterator[HardwareCluster]:
    with HardwareCluster(ModelFile(path), _servers(), warm_batches=(1, 4)) as running:
        yield running


def _run(model: SlimResNet, seconds: float = 1.0, rate: float = 150.0) -> HardwareRun:
    return true_run(model, WIDTHS, seconds, rate)


def _carry_out(cluster: HardwareCluster, run: HardwareRun) -> RunRecord:
    return cluster.run(run, router(len(cluster.servers)), _routing())


def _routing(policy: Wanderer | None = None) -> Routing:
    return Routing(policy or Wanderer(WIDTHS), np.random.default_rng(1), RewardWeights(), PRIOR)


def _require_conservation(record: RunRecord) -> None:
    requests = [request.request for request in record.requests]
    arrived = [step.event.request for step in record.log if isinstance(step.event, RequestArrived)]
    assert sorted(requests) == sorted(arrived)


@pytest.fixture(scope="module")
def record(cluster: HardwareCluster, model: SlimResNet) -> RunRecord:
    return _carry_out(cluster, _run(model))


class WarmthCarrier:
    """Workers that do nothing but note which sizes they are to warm up, and when they are waited for."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, tuple[int, ...]]] = []

    def arenas(self, count: int, size_bytes: int) -> tuple[()]:
        return ()

    def arenas_of(self, worker: int) -> tuple[()]:
        return ()

    def start(self, worker: int, spec: WorkerSpec) -> WorkerHandle:
        found = MagicMock(WorkerHandle, is_warm=False, is_warming=False)

        def begin(sizes: tuple[int, ...]) -> None:
            found.is_warming = True
            self.notes.append((spec.name, sizes))

        found.begin_warming.side_effect = begin
        found.end_warming.side_effect = lambda: self.notes.append((spec.name, ()))
        return found

    def close(self) -> None:
        """Nothing is left."""


def test_an_worker_of_a_gpu_warms_nothing_by_itself(path: Path) -> None:
    """Its instances do, each in its own thread; a CPU's kernels are the process's. All others warm up at once."""
    servers = [*_servers(2), HardwareServer("gpu", DeviceSpec("cuda"), params(), 1.0, 2.0)]
    carrier = WarmthCarrier()
    with HardwareCluster(ModelFile(path), servers, warm_batches=(1, 4), carrier=carrier) as running:
        begun, ended = [(f"server{index}", (1, 4)) for index in (0, 1)], [(f"server{index}", ()) for index in (0, 1)]
        assert carrier.notes == begun + ended
        assert [slot.warm_batches for slot in running.slots] == [(1, 4), (1, 4), ()]


def test_cluster_without_waits_starts_before_its_workers_are_ready(path: Path) -> None:
    carrier = WarmthCarrier()
    with HardwareCluster(ModelFile(path), _servers(1), warm_batches=(1,), carrier=carrier, waits=False):
        assert carrier.notes == []


def test_every_request_ends_once_and_right(record: RunRecord) -> None:
    """arrived = completed + in flight + failed; moved between servers, every label is that of the model's `forward`."""
    _require_conservation(record)
    assert {request.status for request in record.requests} == {"completed"}
    assert all(request.correct and request.widths == WIDTHS for request in record.requests)
    assert sum(request.moved for request in record.requests) > len(record.requests) / 2
    assert sum(server.images for server in record.servers) == 3 * len(record.requests)
    assert all(server.loads >= TINY.segments and server.vram_peak_bytes > 0 for server in record.servers)
    assert min(record.workers_busy_ns) > 0


def test_images_that_are_bytes_are_shown_as_floats_would_be(cluster: HardwareCluster, model: SlimResNet) -> None:
    """All from the last to the first: each answer is that of its own image."""
    run, rng = _run(model), np.random.default_rng(0)
    mean, deviation = np.full((2, 1, 1, 1), [[[[120]]], [[[70]]]], np.float32)
    images = Pixels(rng.integers(0, 256, (50, 1, 8, 8), np.uint8), mean, deviation)
    labels = model(torch.from_numpy(np.asarray(images)), WIDTHS).argmax(1).numpy().astype(np.int64)
    assert len(set(labels.tolist())) > 2
    shown = dataclasses.replace(run, images=images, labels=labels, shown=np.arange(49, -1, -1))
    found = _carry_out(cluster, shown).requests
    assert len(found) == len(run.arrivals_ns)
    assert all(request.correct for request in found)


def test_goals_come_at_their_times_and_are_seen(cluster: HardwareCluster, model: SlimResNet) -> None:
    """Views show them, what the table says of whom the router has completed, and who was late; the log replays."""
    goals = ((0, GoalSet(0.7, 1)), (300_000_000, GoalSet(0.8, energy_weight=2.0)))
    config = router(len(cluster.servers))
    config = dataclasses.replace(config, accuracies=accuracies_of(config, PRIOR))
    record = cluster.run(dataclasses.replace(_run(model, 0.6), goals=goals), config, _routing())
    told = [(step.now_ns, step.event) for step in record.log if isinstance(step.event, GoalSet)]
    assert [goal for _, goal in told] == [goal for _, goal in goals]
    assert all(0 <= now_ns - at_ns < NS_PER_S // 10 for (now_ns, _), (at_ns, _) in zip(told, goals, strict=True))
    views = [command.view for step in record.log for command in step.commands if isinstance(command, Decide)]
    seen = {(view.goal_floor, view.goal_limit_ns, view.goal_energy_weight) for view in views}
    assert seen == {(0.7, 1, 0.0), (0.8, 0, 2.0)}
    assert all(view.late == view.completed for view in views if view.goal_limit_ns)
    assert 0 < views[-1].late < views[-1].completed
    assert all(view.accuracy_sum == pytest.approx(0.9 * view.completed) for view in views)
    params = [server.params for server in cluster.servers]
    assert replay_run(record.log, record.worker_logs, config, params) == []


def test_times_are_in_order(record: RunRecord, model: SlimResNet) -> None:
    """Arrivals count from when they were due, records nest in time, and no event is before the one before it."""
    planned = _run(model).arrivals_ns
    for request in record.requests:
        assert planned[request.request] == request.arrived_ns < request.finished_ns <= record.ended_ns
    for micro_batch in record.micro_batches:
        assert micro_batch.snapshot_ns <= micro_batch.sent_ns <= micro_batch.arrived_ns <= micro_batch.ended_ns
    for batch in record.batches:
        assert batch.commanded_ns <= batch.started_ns <= batch.ended_ns
    for steps in (record.log, *(life.steps for life in record.worker_logs)):
        times = [step.now_ns for step in steps]
        assert times == sorted(times)


def test_the_clock_starts_when_the_preloads_are_done(record: RunRecord) -> None:
    """As `docs/scenario-keys.md` says: in real runs no image waits for them."""
    steps = [step for life in record.worker_logs for step in life.steps]
    loaded_ns = {(s.core, s.event.instance): s.now_ns for s in steps if isinstance(s.event, InstanceLoaded)}
    preloads = [
        (step.core, command.instance)
        for step in steps
        if isinstance(step.event, ServerUp)
        for command in step.commands
        if isinstance(command, LoadInstance)
    ]
    assert len(preloads) == 2 * TINY.segments
    assert [loaded_ns[preload] for preload in preloads] == [0] * len(preloads)


def test_the_logs_replay_through_fresh_cores(record: RunRecord) -> None:
    """Same events and times, same commands, each log by itself; and together they account for every micro-batch."""
    assert [(life.server, life.incarnation, life.ended) for life in record.worker_logs] == [(0, 1, ""), (1, 1, "")]
    assert all(life.heard == len(life.steps) for life in record.worker_logs)
    assert replay_run(record.log, record.worker_logs, router(2), [params()] * 2) == []


def test_telemetry_comes_at_its_period(record: RunRecord) -> None:
    """Each server is sampled about every period, energy and busy time are integrals within physical bounds."""
    for server, life in enumerate(record.worker_logs):
        samples = [step.event for step in life.steps if isinstance(step.event, TelemetrySampled)]
        points = [point for point in record.telemetry if point.server == server]
        assert 5 <= len(points) <= len(samples) <= len(points) + 1  # the last one is read when the run is over
        told = [(sample.sampled_ns, sample.queue_length) for sample in samples]
        assert [(point.sampled_ns, point.queue_length) for point in points] == told[: len(points)]
        assert all(0 <= point.utilization <= 1 and point.power_w > 0 for point in points)
    seconds = record.ended_ns / NS_PER_S
    for each, totals in zip(record.servers, record.devices, strict=True):
        assert 0 < each.busy_s <= seconds
        assert 2.0 * seconds * 0.9 <= totals.energy_j <= 15.0 * seconds * 1.1


def test_runs_repeat_on_one_cluster(cluster: HardwareCluster, model: SlimResNet) -> None:
    """A run cut off with work in flight leaves nothing to the next one, and both conserve requests."""
    overload = dataclasses.replace(_run(model, 0.6, 20_000.0), end="cut")
    progress: list[RunProgress] = []
    cut = cluster.run(overload, router(2), _routing(), on_progress=progress.append)
    _require_conservation(cut)
    assert "in_flight" in {request.status for request in cut.requests}
    assert progress[-1].in_flight > 0
    again = _carry_out(cluster, _run(model, 0.3))
    _require_conservation(again)
    assert {request.status for request in again.requests} == {"completed"}
    assert all(request.correct for request in again.requests)


def test_the_driver_keeps_to_the_cores_that_no_worker_has() -> None:
    """None are its own where a worker may run anywhere, or where all are taken."""
    cores = usable_cores()
    pinned, free = HardwareServer("pinned", device(0), params(), 0.0, 0.0), DeviceSpec()
    assert own_cores([pinned]) == cores[1:]
    assert own_cores([pinned, dataclasses.replace(pinned, device=free)]) == ()
    assert own_cores([dataclasses.replace(pinned, device=DeviceSpec(cores=cores))]) == ()


def test_run_that_does_not_fit_the_model_is_refused(cluster: HardwareCluster, path: Path, model: SlimResNet) -> None:
    """Widths, images and routers of another model are the user's error, before anything runs."""
    other = dataclasses.replace(_servers()[0], params=dataclasses.replace(params(False), widths=(0.25, 1.0)))
    with pytest.raises(InputError, match="widths"):
        HardwareCluster(ModelFile(path), [other])
    run = _run(model)
    with pytest.raises(InputError, match="shape"):
        _carry_out(cluster, dataclasses.replace(run, images=np.zeros((50, 3, 8, 8), np.float32)))
    with pytest.raises(InputError, match="servers"):
        cluster.run(run, router(3), _routing())
    with pytest.raises(ValueError, match="ascend"):
        dataclasses.replace(run, arrivals_ns=np.array([2, 1]))
    assert TINY.segments == router(1).segments


def test_no_garbage_collection_stops_the_router_during_a_run(cluster: HardwareCluster, model: SlimResNet) -> None:
    """A collection over a heap with torch in it takes up to 0.25 s: none in a run, and they go on after it."""
    enabled: list[bool] = []

    def tell(_: RunProgress) -> None:
        enabled.append(gc.isenabled())

    cluster.run(_run(model, seconds=0.5), router(2), _routing(), tell)
    assert enabled
    assert not any(enabled)
    assert gc.isenabled()


def test_a_killed_worker_comes_back_under_a_new_incarnation(path: Path, model: SlimResNet) -> None:
    """The only server is killed: noticed at once, back after the back-off, and everybody who waited completes."""
    rules, said = Supervision(hang_ns=NS_PER_S, backoff_ns=NS_PER_S // 20), list[str]()
    run = dataclasses.replace(_run(model, 0.5), faults=(Crash(0, NS_PER_S // 4),))
    with HardwareCluster(ModelFile(path), _servers(1), supervision=rules) as cluster:
        record = cluster.run(run, router(1), _routing(), say=said.append)
    _require_conservation(record)
    assert {(request.status, bool(request.correct)) for request in record.requests} == {("completed", True)}
    (down,) = record.downtimes
    assert (down.server, down.reason, down.is_planned) == (0, WORKER_DIED, True)
    assert down.up_ns is not None
    assert down.up_ns - down.down_ns > rules.backoff_ns
    down_s, up_s, after_s = (f"{ns / NS_PER_S:.2f} s" for ns in (down.down_ns, down.up_ns, down.up_ns - down.down_ns))
    assert said == [
        f"server0: its worker died at {down_s}, as planned; a new worker starts in 0.05 s",
        f"server0: serves again since {up_s}, after {after_s}",
    ]
    assert [(life.incarnation, life.ended) for life in record.worker_logs] == [(1, WORKER_DIED), (2, "")]
    assert any(isinstance(step.event, BatchFinished) for step in record.worker_logs[1].steps)
    assert replay_run(record.log, record.worker_logs, router(1), [params()]) == []


# --------------------------------------------------------------------------------------------- nothing is left behind


_SERVE = """
import time
if __name__ == "__main__":  # workers read this file, too
    from hw.router.local_cluster import HardwareCluster
    from hw.router.run_requests import ServedNetwork
    from hw.router.server_port import HardwareServer
    from policies.greedy_scheduler import GreedyParams
    from tests.hw.test_emulated_cluster import device, profile
    of = profile()
    params = GreedyParams(of.model.widths, {}, 0, 8, 1 << 30)
    servers = [HardwareServer(f"server{i}", device(of), params, 1.0, 2.0) for i in range(2)]
    served = ServedNetwork.of_sizes(of.model.widths, of.model.input_bytes, of.model.activation_bytes)
    with HardwareCluster(served, servers) as cluster:
        print(*[slot.worker.pid for slot in cluster.slots], flush=True)
        time.sleep(60)
"""


def _named_memory(family: list[psutil.Process]) -> set[Path]:
    """Files in shared memory that these have mapped: others on this machine may be at work with theirs."""
    mapped = {Path(region.path) for process in family for region in process.memory_maps()}
    return {path for path in mapped if path.parent == Path("/dev/shm")}


@pytest.mark.usefixtures("usual_interrupts")
@pytest.mark.parametrize("victim", ["stopped", "helpers"])
def test_killed_cluster_leaves_no_process_and_no_shared_memory(victim: str, tmp_path: Path) -> None:
    """SIGKILL ends the router next to a stopped worker, or a worker and Python's resource tracker."""
    script = tmp_path / "serve.py"
    script.write_text(_SERVE, encoding="utf-8")
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    head = psutil.Process(parent.pid)
    family = head.children(recursive=True)
    memory = _named_memory([head, *family])
    assert len(pids) == 2
    assert set(pids) < {process.pid for process in family}
    helpers = [process.pid for process in family if process.pid not in pids[1:]]  # a worker, and what Python started
    kills = {"router": [parent.pid], "stopped": [parent.pid], "helpers": helpers, "interrupt": []}
    if victim == "stopped":
        os.kill(pids[0], signal.SIGSTOP)  # it will not see the end of its pipe
    for pid in kills[victim]:
        os.kill(pid, signal.SIGKILL)
    if parent.pid not in kills[victim]:
        os.kill(parent.pid, signal.SIGINT)
    parent.wait(60.0)
    parent.stdout.close()
    _, alive = psutil.wait_procs(family, timeout=60.0)
    assert not alive
    assert not [path for path in memory if path.exists()]
