"""The real cluster end to end: conservation, true labels, replay, real deaths, repeated runs; on any carrier."""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from hw.agent.torch_lanes import TorchLanes
from hw.device import DeviceSpec
from hw.networks.registry import ModelFile
from hw.networks.slimresnet import SlimResNet
from hw.router.cluster import HardwareCluster
from hw.router.loop import Progress, Routing, own_cores
from hw.router.run_devices import devices_of
from hw.router.run_spec import HardwareRun
from hw.router.server import HardwareServer, RemoteServer
from hw.telemetry import usable_cores
from hw.transport.messages import Sample
from kit.errors import InputError
from policies.interfaces import top1_of
from policies.records import RunRecord
from policies.replay import replay_run
from policies.reward import AccuracyPrior, RewardWeights
from policies.vocabulary import (
    NS_PER_S,
    Choice,
    ClusterView,
    Decide,
    GoalSet,
    Held,
    Hold,
    HoldRule,
    InstanceLoaded,
    LoadInstance,
    OwnLimit,
    RequestArrived,
    ServerUp,
    TelemetrySampled,
)
from tests.hw.memory_port import Memory
from tests.hw.worlds import TINY, Wanderer, device, knobs, router, true_run

pytestmark = pytest.mark.workers

WIDTHS = (1.0, 0.5, 1.0)
PRIOR = AccuracyPrior({(1.0,) * 3: 0.9})


def _servers(count: int = 2) -> list[HardwareServer]:
    return [HardwareServer(f"server{i}", device(i), knobs(), 1.0, 2.0) for i in range(count)]


@pytest.fixture(scope="module")
def cluster(path: Path) -> Iterator[HardwareCluster]:
    with HardwareCluster(ModelFile(path), _servers(), sensor_period_s=0.05, warm_batches=(1, 4)) as running:
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


def test_every_request_ends_once_and_right(record: RunRecord) -> None:
    """arrived = completed + in flight + failed; moved between servers, every label is that of the model's `forward`."""
    _require_conservation(record)
    assert {request.status for request in record.requests} == {"completed"}
    assert all(request.correct and request.widths == WIDTHS for request in record.requests)
    assert sum(request.moved for request in record.requests) > len(record.requests) / 2
    assert sum(server.images for server in record.servers) == 3 * len(record.requests)


def test_goals_come_at_their_times_and_are_seen(cluster: HardwareCluster, model: SlimResNet) -> None:
    """Views show them, what the table says of whom the router has completed, and who was late; the log replays."""
    goals = ((0, GoalSet(0.7, 1)), (300_000_000, GoalSet(0.8, energy_weight=2.0)))
    config = router(len(cluster.servers))
    config = dataclasses.replace(config, top1=top1_of(config, PRIOR))
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
    knobs = [server.knobs for server in cluster.servers]
    assert replay_run(record.log, record.agent_logs, config, knobs) == []


def test_a_routers_own_limit_is_told_to_its_core(cluster: HardwareCluster, model: SlimResNet) -> None:
    """From the start, in place of the operator's."""
    policy = Wanderer()
    policy.p99_limit_ns = 1  # type: ignore[attr-defined]
    record = cluster.run(_run(model, 0.3), router(len(cluster.servers)), _routing(policy))
    told = [step.event for step in record.log if isinstance(step.event, OwnLimit)]
    views = [command.view for step in record.log for command in step.commands if isinstance(command, Decide)]
    assert told == [OwnLimit(1)]
    assert views[-1].late == views[-1].completed > 0


def test_times_are_in_order(record: RunRecord, model: SlimResNet) -> None:
    """Arrivals count from when they were due, records nest in time, and no event is before the one before it."""
    planned = _run(model).arrivals_ns
    for request in record.requests:
        assert planned[request.request] == request.arrived_ns < request.finished_ns <= record.ended_ns
    for block in record.blocks:
        assert block.snapshot_ns <= block.sent_ns <= block.arrived_ns <= block.ended_ns
    for batch in record.batches:
        assert batch.commanded_ns <= batch.started_ns <= batch.ended_ns
    for steps in (record.log, *(life.steps for life in record.agent_logs)):
        times = [step.now_ns for step in steps]
        assert times == sorted(times)


def test_the_clock_starts_when_the_preloads_are_done(record: RunRecord) -> None:
    """As `docs/scenario-keys.md` says: in real runs no image waits for them."""
    steps = [step for life in record.agent_logs for step in life.steps]
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


def test_what_others_took_meanwhile_is_in_the_record(record: RunRecord) -> None:
    """How much it was is known to nobody here."""
    assert record.foreign_load is not None
    assert 0.0 <= record.foreign_load.programs <= 1.0


def test_a_cpu_server_reads_its_cores_slowdown(record: RunRecord) -> None:
    """Now and then, between its batches: no more often than every 20 ms, and each reading some tens of microseconds."""
    for server in range(2):
        times, reads_s = zip(*((at, read_s) for s, at, read_s in record.references if s == server), strict=True)
        assert len(times) >= 3
        assert max(times) <= record.ended_ns
        assert len(times) <= record.ended_ns / 20e6 + 1
        assert all(1e-6 < read_s < 1e-2 for read_s in reads_s)


def test_the_logs_replay_through_fresh_cores(record: RunRecord) -> None:
    """Same events and times, same commands, each log by itself; and together they account for every block."""
    assert [(life.server, life.epoch, life.ended) for life in record.agent_logs] == [(0, 1, ""), (1, 1, "")]
    assert all(life.heard == len(life.steps) for life in record.agent_logs)
    assert replay_run(record.log, record.agent_logs, router(2), [knobs()] * 2) == []


def test_telemetry_comes_at_its_period(record: RunRecord) -> None:
    """Each server is sampled about every period, energy and busy time are integrals within physical bounds."""
    for server, life in enumerate(record.agent_logs):
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
    overload = dataclasses.replace(_run(model, 0.3, 20_000.0), end="cut")
    progress: list[Progress] = []
    cut = cluster.run(overload, router(2), _routing(), on_progress=progress.append)
    _require_conservation(cut)
    assert "in_flight" in {request.status for request in cut.requests}
    assert progress[-1].in_flight > 0
    again = _carry_out(cluster, _run(model, 0.3))
    _require_conservation(again)
    assert {request.status for request in again.requests} == {"completed"}
    assert all(request.correct for request in again.requests)


def test_a_drained_run_leaves_no_activations(cluster: HardwareCluster, model: SlimResNet) -> None:
    """Every copy is released when it has moved on or is labelled: the agents' stores are empty at the end."""
    _carry_out(cluster, _run(model, 0.3))
    assert [slot.agent.prepare(index, keep_log=False) for index, slot in enumerate(cluster.slots)] == [0, 0]


def test_a_first_load_comes_from_disk_and_a_reload_from_memory(
    path: Path, model: SlimResNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle instances are unloaded at once, so that each is loaded again: only its first load opens the file."""
    restless = dataclasses.replace(knobs(preload=False), idle_unload_ns=1)
    servers = [dataclasses.replace(_servers(1)[0], knobs=restless)]
    loads: list[tuple[tuple[int, float], bool]] = []
    load = TorchLanes.load

    def watched(lanes: TorchLanes, instance: int, segment: int, width: float, from_disk: bool) -> None:
        loads.append(((segment, width), from_disk))
        load(lanes, instance, segment, width, from_disk)

    monkeypatch.setattr(TorchLanes, "load", watched)
    with HardwareCluster(ModelFile(path), servers, carrier=Memory()) as running:
        record = _carry_out(running, _run(model, 0.5, 20.0))
    assert all(request.correct for request in record.requests)
    first = {spec: position for position, (spec, _) in reversed(list(enumerate(loads)))}
    assert len(loads) > len(first)
    assert [from_disk for _, from_disk in loads] == [first[spec] == i for i, (spec, _) in enumerate(loads)]


def test_the_driver_keeps_to_the_cores_that_no_worker_has() -> None:
    """None are its own where an agent may run anywhere, or where all are taken."""
    cores = usable_cores()
    pinned, free = HardwareServer("pinned", device(0), knobs(), 0.0, 0.0), DeviceSpec()
    assert own_cores([pinned]) == cores[1:]
    assert own_cores([pinned, dataclasses.replace(pinned, device=free)]) == ()
    assert own_cores([dataclasses.replace(pinned, device=DeviceSpec(cores=cores))]) == ()


def test_looking_out_for_answers_is_no_work(path: Path, model: SlimResNet) -> None:
    """With a core to itself the router looks on while batches run, and is back on all cores after the run."""
    if len(usable_cores()) < 2:
        pytest.skip("needs a core for the router beside the agent's")
    before = os.sched_getaffinity(0)
    with HardwareCluster(ModelFile(path), _servers(1)) as running:
        record = _carry_out(running, _run(model, 0.5, 100.0))
    assert os.sched_getaffinity(0) == before
    assert 0 < record.router_busy_ns < record.ended_ns


def test_what_does_not_fit_is_refused(cluster: HardwareCluster, path: Path, model: SlimResNet) -> None:
    """Widths, images and routers of another model are the user's error, before anything runs."""
    other = dataclasses.replace(_servers()[0], knobs=dataclasses.replace(knobs(False), widths=(0.25, 1.0)))
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

    def tell(_: Progress) -> None:
        enabled.append(gc.isenabled())

    cluster.run(_run(model, seconds=0.5), router(2), _routing(), tell)
    assert enabled
    assert not any(enabled)
    assert gc.isenabled()


@pytest.mark.parametrize("trusted", [True, False])
def test_a_counter_that_calibration_distrusts_is_not_integrated(trusted: bool) -> None:
    """One that runs half as fast again: its joules where it is trusted, else the power that was read, over time."""
    server = HardwareServer("gpu", DeviceSpec(kind="cuda"), knobs(), 1.0, 2.0, trusts_counter=trusted)
    (gpu,) = devices_of([server])
    reader = Reader()
    gpu.settle([cast(RemoteServer, reader)], NS_PER_S, 0)
    assert reader.asked == [(NS_PER_S, (7,))]
    for tick in range(21):
        gpu.heard(Sample(tick * NS_PER_S, 100.0, 0.5, 4711.0 + 150.0 * tick))
    assert gpu.energy_j == pytest.approx(20 * (150.0 if trusted else 100.0))
    assert gpu.busy_s == pytest.approx(10.0)


class Reader:
    """A server of which only the sensor counts."""

    index, is_up = 0, True

    def __init__(self) -> None:
        self.slot = self.agent = self
        self.pid = 7
        self.asked: list[tuple[int, tuple[int, ...]]] = []

    def sense(self, period_ns: int, pids: tuple[int, ...]) -> None:
        self.asked.append((period_ns, pids))


def test_when_a_reader_dies_another_takes_its_place() -> None:
    """Two servers on one device: its energy is counted on, by the new one's counter; it idles while nobody is up."""
    spec = HardwareServer("s", DeviceSpec(), knobs(), 3.0, 5.0)
    (shared,) = devices_of([spec, dataclasses.replace(spec, name="t")])
    first, second = Reader(), Reader()
    second.index, second.pid = 1, 8
    both = cast(list[RemoteServer], [first, second])

    def settle(now_ns: int) -> None:
        shared.settle(both, NS_PER_S, now_ns)

    settle(0)
    assert (first.asked, second.asked) == ([(NS_PER_S, (7, 8))], [(0, (7, 8))])
    shared.heard(Sample(0, None, 1.0, 100.0))
    shared.heard(Sample(NS_PER_S, None, 1.0, 120.0))
    first.is_up = False
    settle(NS_PER_S)
    assert second.asked[-1] == (NS_PER_S, (8,))
    shared.heard(Sample(2 * NS_PER_S, 7.0, 0.0, 9000.0))  # its counter has another origin
    shared.heard(Sample(3 * NS_PER_S, 7.0, 0.0, 9011.0))
    assert shared.energy_j == pytest.approx(20.0 + 7.0 + 11.0)
    second.is_up = False
    settle(3 * NS_PER_S)
    shared.close(5 * NS_PER_S)
    assert shared.energy_j == pytest.approx(38.0 + 2 * 3.0)
    assert shared.busy_s == pytest.approx(1.0)


class Waiter(Wanderer):
    """Holds every second of those that may be held; the core holds those before segment 2 by itself."""

    def __init__(self) -> None:
        super().__init__(WIDTHS)
        self.held, self.hold = 0, HoldRule((1, 4, 1), (0, 20_000_000, 0))

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | Hold:  # type: ignore[override]
        if view.hold_left_ns > 0 and rng.random() < 0.5:
            self.held += 1
            return Hold(view.candidates + 1, 5_000_000)
        return super().choose(view, rng)


def test_real_requests_are_held_and_the_log_replays(cluster: HardwareCluster, model: SlimResNet) -> None:
    """By decisions and by a rule: all are served, right, and the core does the same again by its log."""
    waiter, config = Waiter(), router(len(cluster.servers))
    config = dataclasses.replace(config, hold_limit_ns=50_000_000)
    routing = Routing(waiter, np.random.default_rng(1), RewardWeights(), PRIOR)
    record = cluster.run(_run(model), config, routing)
    _require_conservation(record)
    assert {request.status for request in record.requests} == {"completed"}
    assert all(request.correct for request in record.requests)
    events = [step.event for step in record.log]
    assert sum(isinstance(event, Held) for event in events) == waiter.held > 0
    assert sum(isinstance(event, HoldRule) for event in events) == 1
    assert replay_run(record.log, record.agent_logs, config, [knobs()] * 2) == []
