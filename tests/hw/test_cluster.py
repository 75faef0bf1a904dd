"""The real cluster end to end: conservation, true labels, replay, real deaths, repeated runs; on any carrier."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import time  # noqa: TID251 - real runs are on a real clock
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from hw.clock import RunClock
from hw.cluster import HardwareCluster
from hw.device import DeviceSpec
from hw.memory_port import Memory
from hw.messages import Sample
from hw.networks import ModelFile
from hw.router_loop import Progress, Routing, own_cores
from hw.run_devices import devices_of
from hw.run_spec import HardwareRun
from hw.server import HardwareServer, RemoteServer
from hw.slimresnet import SlimResNet
from hw.telemetry import usable_cores
from hw.torch_lanes import TorchLanes
from policies.errors import InputError
from policies.faults import WORKER_DIED, Crash, Supervision
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
    ServerDown,
    ServerUp,
    TelemetrySampled,
)
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
    """Arrivals are stamped with their plan or later, records nest in time, and no event is before the one before it."""
    planned = _run(model).arrivals_ns
    for request in record.requests:
        assert planned[request.request] <= request.arrived_ns < request.finished_ns <= record.ended_ns
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


class Killer(Wanderer):
    """Stops a server's process in mid-run, and kills it as soon as it has all the blocks that it may have.

    It decides in the router's own thread: what happens when does not depend on how busy the machine is.
    """

    STOPPED_AT = 60  # decisions

    def __init__(self, server: int, pid: int) -> None:
        super().__init__(WIDTHS)
        self.server, self.pid = server, pid
        self.decisions = 0
        self.has_killed = False

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        self.decisions += 1
        if self.decisions == self.STOPPED_AT:
            os.kill(self.pid, signal.SIGSTOP)
        if self.decisions > self.STOPPED_AT and not self.has_killed and self._is_last_chance(view):
            os.kill(self.pid, signal.SIGKILL)
            self.has_killed = True
        return super().choose(view, rng)

    def _is_last_chance(self, view: ClusterView) -> bool:
        """It has all its blocks; or the other will have, which may all wait for activations from the stopped one."""
        other = view.servers[1 - self.server]
        return not view.servers[self.server].valid or other.outstanding_blocks + 1 >= router(2).outstanding_blocks


def test_a_worker_that_dies_costs_no_request(path: Path, model: SlimResNet) -> None:
    """A server killed in mid-run: the router hears of it, the others finish everything, the record says so.

    It is stopped first, so that transfers from it and to it are certainly under way when it dies; and it is not
    started again before the run ends. On a busy machine an agent may say nothing for seconds, the stopped one as well
    as the other: here nobody is taken for hung, so that only its end ends it.
    """
    run = dataclasses.replace(_run(model, 0.7, 1000.0), drain_limit_ns=600 * NS_PER_S)
    never_ns = 3600 * NS_PER_S
    only_death = Supervision(hang_ns=never_ns, stuck_ns=never_ns, backoff_ns=never_ns, backoff_limit_ns=never_ns)
    with HardwareCluster(ModelFile(path), _servers(), sensor_period_s=0.05, supervision=only_death) as running:
        killer = Killer(1, running.slots[1].agent.pid)
        found = running.run(run, router(2), _routing(killer))
    assert killer.has_killed
    _require_conservation(found)
    downs = [step for step in found.log if isinstance(step.event, ServerDown)]
    assert len(downs) == 1
    assert [(life.server, bool(life.ended)) for life in found.agent_logs] == [(0, False), (1, True)]
    assert replay_run(found.log, found.agent_logs, router(2), [knobs()] * 2) == []
    assert {request.status for request in found.requests} == {"completed"}
    assert all(request.correct for request in found.requests)
    assert any(request.retries for request in found.requests)  # what was there, or on its way there
    assert {block.server for block in found.blocks if block.snapshot_ns > downs[0].now_ns} == {0}


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


def test_a_late_arrival_keeps_its_time() -> None:
    """What was due while the router was busy is stamped with its own time, unless something later was handled."""
    clock = RunClock(time.monotonic_ns)
    assert clock.now_ns() == 0
    assert clock.due_ns(500) == 500
    assert clock.due_ns(400) == 500
    clock.start(time.monotonic_ns())
    assert clock.now_ns() >= 500


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


# ------------------------------------------------------------------------------------------------------ any carrier

DRIFT = 5e-5
AHEAD_NS = 10**15


def _far() -> Memory:
    """Agents of other hosts: one clock is far ahead, one is behind and goes faster; no memory is shared."""
    return Memory(
        [
            lambda: time.monotonic_ns() + AHEAD_NS,
            lambda: round(time.monotonic_ns() * (1 + DRIFT)) - AHEAD_NS // 1000,
        ]
    )


@pytest.fixture(scope="module")
def far(path: Path) -> Iterator[HardwareCluster]:
    servers = [
        dataclasses.replace(server, device=DeviceSpec(channels_last=False)) for server in _servers()
    ]  # the agents' threads stay where this process is
    with HardwareCluster(ModelFile(path), servers, sensor_period_s=0.05, warm_batches=(1, 4), carrier=_far()) as found:
        yield found


def test_on_another_carrier_a_run_comes_to_the_same(far: HardwareCluster, record: RunRecord, model: SlimResNet) -> None:
    """The same requests with the same labels, each once; activations that really moved; logs that agree."""
    found = _carry_out(far, _run(model))
    _require_conservation(found)
    assert [_fates(found), _fates(record)] == [_fates(record)] * 2
    assert {fate[1:] for fate in _fates(found)} == {("completed", True, WIDTHS)}
    assert sum(request.moved for request in found.requests) > len(found.requests) / 2
    assert replay_run(found.log, found.agent_logs, router(2), [knobs()] * 2) == []


def _fates(record: RunRecord) -> list[tuple[int, str, bool, tuple[float, ...]]]:
    return sorted((each.request, each.status, each.correct, each.widths) for each in record.requests)


def test_times_of_another_clock_are_brought_into_those_of_the_run(far: HardwareCluster, model: SlimResNet) -> None:
    """Whatever an agent's clock shows: its stamps lie between the router's own, but for an error of the offset."""
    run = _run(model)
    found = _carry_out(far, run)
    wrong_ns = [slot.agent.offset.error_ns for slot in far.slots]
    assert 0 < max(wrong_ns) < NS_PER_S / 10
    offsets_ns = [slot.agent.offset.offset_ns for slot in far.slots]
    assert abs(offsets_ns[0] - AHEAD_NS) <= wrong_ns[0]
    allowed_ns = 2 * max(wrong_ns) + round(DRIFT * found.ended_ns) + NS_PER_S // 100
    for batch in found.batches:
        assert batch.commanded_ns <= batch.started_ns + allowed_ns
        assert batch.started_ns <= batch.forward_ended_ns <= batch.ended_ns + allowed_ns
        assert -allowed_ns <= batch.commanded_ns < batch.ended_ns <= found.ended_ns + allowed_ns
    for block in found.blocks:
        assert block.snapshot_ns <= block.sent_ns <= block.arrived_ns <= block.ended_ns + allowed_ns
    for life in found.agent_logs:
        times = [step.now_ns for step in life.steps]
        assert times == sorted(times)
        assert times[-1] <= found.ended_ns + allowed_ns


def test_an_agent_of_another_carrier_that_dies_is_replaced(far: HardwareCluster, model: SlimResNet) -> None:
    """Its requests are tried elsewhere, and the next one's clock is asked for before it serves."""
    run = dataclasses.replace(_run(model, 1.5), faults=(Crash(0, NS_PER_S // 2),))
    found = _carry_out(far, run)
    _require_conservation(found)
    assert {request.status for request in found.requests} == {"completed"}
    assert all(request.correct for request in found.requests)
    assert [(down.server, down.reason) for down in found.downtimes] == [(0, WORKER_DIED)]
    assert found.downtimes[0].up_ns is not None
    lives = [(life.server, life.epoch, life.ended) for life in found.agent_logs]
    assert lives == [(0, 1, WORKER_DIED), (0, 2, ""), (1, 1, "")]
    assert abs(far.slots[0].agent.offset.offset_ns - AHEAD_NS) <= far.slots[0].agent.offset.error_ns
    assert replay_run(found.log, found.agent_logs, router(2), [knobs()] * 2) == []


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
