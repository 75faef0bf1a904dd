"""Each fault, and when what follows from it happens."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from policies.faults import (
    PLANNED,
    WORKER_DIED,
    WORKER_HUNG,
    Crash,
    Fault,
    Hang,
    Outage,
    Poison,
    Slowness,
    Squeeze,
    Supervision,
)
from policies.run_records import Downtime, RunRecord
from policies.vocabulary import (
    BatchFailed,
    BatchFinished,
    BatchStarted,
    Choice,
    InstanceLoaded,
    LoadInstance,
    RunBatch,
    ServerDown,
    ServerUp,
    TelemetrySampled,
    TransferFailed,
    TransferFinished,
    UnloadInstance,
)
from sim.device_profile import Link
from sim.host_and_network import Attachment
from sim.simulated_cluster import ClusterSpec, Simulation
from sim.simulated_device import parts_that_fit
from tests import tiny

MS = 1_000_000
RULES = Supervision(
    hang_ns=300 * MS,
    backoff_ns=100 * MS,
    backoff_limit_ns=250 * MS,
    stable_ns=2_000 * MS,
    start_ns=40 * MS,
)


class ToServer:
    """Everything to one server, at one width, in the largest groups."""

    def __init__(self, server: int = 0) -> None:
        self.server = server

    def choose(self, view: Any, rng: np.random.Generator) -> Choice:
        valid = [index for index, state in enumerate(view.servers) if state.valid]
        return Choice(self.server if self.server in valid else valid[0], 1.0, 32)


def cluster(servers: int = 1, **changes: Any) -> ClusterSpec:
    profile = changes.pop("profile", {})
    profiles = [tiny.profile(f"p{i}", **profile) for i in range(servers)]
    greedy = {"idle_unload_ns": None, **changes.pop("greedy", {})}
    return dataclasses.replace(tiny.cluster(profiles, jitter=False, greedy=greedy, **changes), supervision=RULES)


def simulate(
    spec: ClusterSpec, *faults: Fault, arrivals: Any = (0.0,), horizon_s: float = 4.0, server: int = 0, **changes: Any
) -> RunRecord:
    run = tiny.run(spec, arrivals, horizon_s, faults=faults, keep_log=True, **changes)
    return Simulation(spec, run).run(ToServer(server), np.random.default_rng(0))


def events(record: RunRecord, kind: type, core: str = "server:0") -> list[tuple[int, Any]]:
    return [(step.now_ns, step.event) for step in record.log if step.core == core and isinstance(step.event, kind)]


def commands(record: RunRecord, kind: type, core: str = "server:0") -> list[Any]:
    return [c for step in record.log if step.core == core for c in step.commands if isinstance(c, kind)]


def downs(record: RunRecord) -> list[tuple[float, float | None, str]]:
    """When the only server went down and was back, in ms, and why."""
    assert all(down.server == 0 and down.is_planned for down in record.downtimes)
    return [(d.down_ns / MS, None if d.up_ns is None else d.up_ns / MS, d.reason) for d in record.downtimes]


def test_a_crashed_worker_is_back_after_its_back_off_and_its_start() -> None:
    """Deaths in a row double the wait up to its limit; once it was up for long enough the row starts from scratch."""
    times = [500, 700, 1100, 1500, 4000]
    record = simulate(cluster(), *(Crash(0, at * MS) for at in times), horizon_s=6.0)
    waits = [100, 200, 250, 250, 100]
    assert record.downtimes == tuple(
        Downtime(0, at * MS, (at + wait + 40) * MS, WORKER_DIED) for at, wait in zip(times, waits, strict=True)
    )
    assert [(now, down.reason) for now, down in events(record, ServerDown)] == [
        (at * MS, "worker_died") for at in times
    ]
    incarnations = [up.incarnation for _, up in events(record, ServerUp)]
    assert incarnations == list(range(1, len(times) + 2))


def test_what_is_down_can_neither_crash_nor_hang() -> None:
    """The second crash and the hang fall into the first one's restart, and cost no more."""
    record = simulate(cluster(), Crash(0, 500 * MS), Crash(0, 510 * MS), Hang(0, 520 * MS), Crash(0, 1000 * MS))
    assert downs(record) == [(500, 640, WORKER_DIED), (1000, 1240, WORKER_DIED)]


def test_a_hang_is_noticed_after_its_time_and_nothing_comes_from_the_server_until_then() -> None:
    """No batch ends, no reading arrives; then it is killed and started again like a crashed one."""
    arrivals = np.arange(0, 2, 0.01)
    record = simulate(cluster(), Hang(0, 500 * MS), Hang(0, 600 * MS), arrivals=arrivals)
    assert [(now, down.reason) for now, down in events(record, ServerDown)] == [(800 * MS, "worker_hung")]
    assert downs(record) == [(800, 940, WORKER_HUNG)]
    for kind in (BatchStarted, BatchFinished, TelemetrySampled, InstanceLoaded):
        during = [now for now, _ in events(record, kind) if 500 * MS < now <= 940 * MS]
        assert during == [], kind
        assert any(now < 500 * MS for now, _ in events(record, kind))
    assert {r.status for r in record.requests} == {"completed"}


@pytest.mark.parametrize(
    "profile, begins, ends",
    [
        ({"load_s": 0.3}, LoadInstance, InstanceLoaded),
        ({"load_s": 0.05, "dispatch_s": 0.3}, RunBatch, BatchStarted),
        ({"load_s": 0.05, "base_s": 0.3}, RunBatch, BatchFinished),
    ],
)
def test_what_a_worker_was_doing_when_it_hung_never_ends(profile: dict[str, float], begins: type, ends: type) -> None:
    """Its load, the way to its forward pass, and the pass itself; all of it would have ended before it is noticed."""
    record = simulate(cluster(profile=profile), Hang(0, 200 * MS))
    first_incarnation = [step for step in record.log if step.core == "server:0" and step.now_ns < 500 * MS]
    assert any(isinstance(command, begins) for step in first_incarnation for command in step.commands)
    assert not any(isinstance(step.event, ends) for step in first_incarnation)
    assert events(record, ends) != []


def test_what_was_on_its_way_from_a_crashed_server_is_lost() -> None:
    """Its activations died with it: the request starts again."""

    class Onwards:
        def choose(self, view: Any, rng: np.random.Generator) -> Choice:
            return Choice(1 if view.head.segment > 1 or not view.servers[0].valid else 0, 1.0, 32)

    spec = cluster(2)
    link = Link(latency_s=0.2, bandwidth_bytes_s=1e9)
    servers = tuple(dataclasses.replace(s, attachment=Attachment(s.name, link)) for s in spec.servers)
    run = tiny.run(spec, [0.0], 4.0, faults=(Crash(0, 300 * MS),), keep_log=True)
    record = Simulation(dataclasses.replace(spec, servers=servers), run).run(Onwards(), np.random.default_rng(0))
    (request,) = record.requests
    assert [sent.segment for core in ("server:0", "server:1") for sent in commands(record, RunBatch, core)] == [
        *(1,),
        *(1, 2, 3, 4),
    ]
    assert (request.status, request.retries, request.servers) == ("completed", 1, (1, 1, 1, 1))


def test_a_hung_server_draws_power_as_it_did_when_it_ran() -> None:
    """The batch that stands still costs what it cost while it moved, until the process is killed."""
    spec = cluster(profile={"base_s": 1.0, "per_image_s": 0.1}, greedy={"preload": ((1, 1.0),)})
    record = simulate(spec, Hang(0, 500 * MS), horizon_s=0.8, end="cut")
    started_ns = events(record, BatchStarted)[0][0]
    running_w = spec.devices[0].keys[1, 1.0, 0.0].power_mw[1] / 1000
    expected_j = 30.0 * 0.8 + running_w * (800 * MS - started_ns) / 1e9
    assert record.devices[0].energy_j == pytest.approx(expected_j, rel=1e-9)


def test_a_hung_server_can_be_killed_before_it_is_noticed() -> None:
    """A crash ends the hang; the next incarnation is not killed for the last one's."""
    record = simulate(cluster(), Hang(0, 500 * MS), Crash(0, 600 * MS))
    assert [(now, down.reason) for now, down in events(record, ServerDown)] == [(600 * MS, "worker_died")]
    assert downs(record) == [(600, 740, WORKER_DIED)]


class ThereAndOver:
    """Second segments to server 1 while it is up, the rest to server 0."""

    def choose(self, view: Any, rng: np.random.Generator) -> Choice:
        return Choice(1 if view.head.segment == 2 and view.servers[1].valid else 0, 1.0, 32)


def test_what_moves_to_a_hung_server_arrives_and_dies_with_it() -> None:
    """Its source writes into its memory, so it counts as there; its batch never runs, and the image starts again."""
    spec = cluster(2)
    run = tiny.run(spec, [0.0], 4.0, faults=(Hang(1, 0),), keep_log=True)
    record = Simulation(spec, run).run(ThereAndOver(), np.random.default_rng(0))
    (request,) = record.requests
    assert (request.status, request.retries) == ("completed", 1)
    moved = [
        now for now, event in events(record, TransferFinished, "router") if (event.source, event.destination) == (0, 1)
    ]
    assert len(moved) == 1
    assert moved[0] < RULES.hang_ns
    assert events(record, BatchStarted, "server:1") == []
    first_segments = [c for c in commands(record, RunBatch) if c.segment == 1]
    assert len(first_segments) == 2  # before, and again
    assert request.servers == (0, 0, 0, 0)


def test_nothing_leaves_a_hung_server() -> None:
    """It hangs while it sends: the transfer ends nowhere, and fails with the server's death."""

    class Back:
        def choose(self, view: Any, rng: np.random.Generator) -> Choice:
            return Choice(1 if view.head.segment == 1 and view.servers[1].valid else 0, 1.0, 32)

    spec = cluster(2)
    link = Link(latency_s=0.2, bandwidth_bytes_s=1e9)
    servers = tuple(dataclasses.replace(s, attachment=Attachment(s.name, link)) for s in spec.servers)
    run = tiny.run(spec, [0.0], 4.0, faults=(Hang(1, 300 * MS),), keep_log=True)
    record = Simulation(dataclasses.replace(spec, servers=servers), run).run(Back(), np.random.default_rng(0))
    moved = events(record, TransferFinished, "router")
    assert [event for _, event in moved if event.source == 1] == []
    assert [now for now, _ in events(record, TransferFailed, "router")] == [600 * MS]
    assert record.requests[0].status == "completed"


def test_a_planned_outage_keeps_a_crashed_worker_out_until_its_end() -> None:
    """Its supervision would have brought it back within the outage; and `never` means never.

    The outage itself is a death of the row.
    """
    record = simulate(cluster(), Crash(0, 500 * MS), Outage(0, 550 * MS, 2000 * MS))
    assert downs(record) == [(500, 2000, WORKER_DIED)]
    record = simulate(cluster(), Crash(0, 500 * MS), Outage(0, 550 * MS, None))
    assert downs(record) == [(500, None, WORKER_DIED)]
    record = simulate(cluster(), Outage(0, 500 * MS, 600 * MS), Crash(0, 700 * MS))
    assert downs(record) == [(500, 600, PLANNED), (700, 940, WORKER_DIED)]


def test_a_short_outage_does_not_bring_a_crashed_worker_back_before_its_restart() -> None:
    """Whichever ends last brings it up, and only that; then a new death has a wait of its own."""
    record = simulate(cluster(), Crash(0, 500 * MS), Outage(0, 510 * MS, 520 * MS), Crash(0, 530 * MS))
    assert downs(record) == [(500, 640, WORKER_DIED)]
    record = simulate(cluster(), Crash(0, 500 * MS), Outage(0, 510 * MS, 640 * MS), Crash(0, 640 * MS))
    assert downs(record) == [(500, 640, WORKER_DIED), (640, 880, WORKER_DIED)]


def test_at_one_instant_what_ends_comes_before_what_begins() -> None:
    """In whatever order they are planned: two adjacent slow spans, the later one first."""
    spans = [Slowness(0, 200 * MS, 400 * MS, 3.0), Slowness(0, 100 * MS, 200 * MS, 2.0)]
    record = simulate(cluster(), *spans, horizon_s=1.0)
    factors = [
        (step.now_ns // MS, getattr(step.event, "factor", 1.0))
        for step in record.log
        if "Straggler" in type(step.event).__name__ and step.core == "server:0"
    ]
    assert factors == [(100, 2.0), (200, 1.0), (200, 3.0), (400, 1.0)]


def test_batches_are_halved_until_they_fit() -> None:
    """The larger half first; with no room nothing runs."""
    assert parts_that_fit(7, 7) == (7,)
    assert parts_that_fit(7, 4) == (4, 3)
    assert parts_that_fit(7, 3) == (2, 2, 3)
    assert parts_that_fit(5, 1) == (1,) * 5
    assert parts_that_fit(5, 0) == ()


def test_a_squeezed_batch_takes_the_sum_of_its_parts() -> None:
    """Thirteen images where four fit: (4, 3) and (3, 3), one after the other; outside the span, as one."""
    spec = cluster(greedy={"preload": ((1, 1.0),)}, profile={"segments": 1})
    arrivals = [0.1] * 13 + [0.6] * 13
    record = simulate(spec, Squeeze(0, 0, 500 * MS, 4), arrivals=arrivals)
    latency_ns = spec.devices[0].keys[1, 1.0, 0.0].latency_ns
    squeezed, whole = (b.ended_ns - b.started_ns for b in record.batches)
    assert squeezed == latency_ns[4] + 3 * latency_ns[3]
    assert whole == latency_ns[13]


def test_where_no_image_fits_batches_fail_as_they_start_and_their_instance_goes() -> None:
    """The loads back off; after the retries what waits is rejected, and with memory back all is well."""
    spec = cluster(profile={"dispatch_s": 0.001})
    record = simulate(spec, Squeeze(0, 0, 700 * MS, 0), arrivals=[0.0, 1.0])
    failures = events(record, BatchFailed)
    assert {failed.reason for _, failed in failures} == {"out_of_memory"}
    assert [now for now, _ in failures] == [event.started_ns for _, event in events(record, BatchStarted)][
        : len(failures)
    ]
    assert len(commands(record, UnloadInstance)) == len(failures) == 4
    assert len(commands(record, LoadInstance)) == 4 + 4
    by_id = sorted(record.requests, key=lambda r: r.request)
    assert [(r.status, r.reason, r.retries) for r in by_id] == [("failed", "out_of_memory", 4), ("completed", "", 0)]


def test_exactly_the_poisoned_fail_for_want_of_a_label() -> None:
    """At the last segment, after all retries; their companions in the batch are served."""
    doomed = frozenset({3, 4, 17})
    record = simulate(cluster(), Poison(doomed), arrivals=[0.0] * 20)
    failed = {r.request: (r.reason, r.retries, len(r.widths)) for r in record.requests if r.status == "failed"}
    assert failed == dict.fromkeys(doomed, ("no_prediction", 4, 3))
    assert {r.retries for r in record.requests if r.status == "completed"} == {0}
    (mixed,) = [event for _, event in events(record, BatchFinished) if event.failed]
    assert (mixed.failed, mixed.reason) == (tuple(sorted(doomed)), "no_prediction")
    # of them alone nothing is left
    assert {event.reason for _, event in events(record, BatchFailed)} == {"no_prediction"}
    assert record.servers[0].images == 4 * 20 - 3


@pytest.mark.parametrize("out_s, ended_s", [((0.5, 1.0), 4.0), ((5.0, 6.0), 6.0)])
def test_where_no_server_ever_comes_back_nobody_waits_for_the_drain(out_s: tuple[float, float], ended_s: float) -> None:
    """Arrivals go on to the horizon; then, or when the last server goes, the run is over."""
    faults = [Outage(server, round(at_s * 1e9), None) for server, at_s in enumerate(out_s)]
    arrivals = np.arange(0, 4, 0.01)
    record = simulate(cluster(2, profile={"base_s": 0.9}), *faults, arrivals=arrivals)
    assert record.ended_ns == round(ended_s * 1e9)
    assert len(record.requests) == len(arrivals)
    assert "in_flight" in {r.status for r in record.requests}


def test_while_one_server_may_come_back_the_drain_goes_on() -> None:
    """One is out for good, the other's outage ends after the horizon."""
    faults = [Outage(0, 500 * MS, None), Outage(1, 500 * MS, 9000 * MS)]
    record = simulate(cluster(2), *faults, arrivals=np.arange(0, 4, 0.01))
    assert record.ended_ns > 9000 * MS
    assert {r.status for r in record.requests} == {"completed"}
