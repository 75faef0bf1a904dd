"""Each fault, and when what follows from it happens."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from policies.faults import PLANNED, WORKER_DIED, WORKER_HUNG, Crash, Fault, Hang, Outage, Poison, Squeeze, Supervision
from policies.run_records import Downtime, RunRecord
from policies.vocabulary import (
    BatchFailed,
    BatchFinished,
    BatchStarted,
    Choice,
    InstanceLoaded,
    ServerDown,
    ServerUp,
    TelemetrySampled,
)
from sim.simulated_cluster import ClusterSpec, Simulation
from sim.simulated_device import parts_that_fit
from tests import tiny

MS = 1_000_000
RULES = Supervision(
    hang_ns=300 * MS, backoff_ns=100 * MS, backoff_limit_ns=250 * MS, stable_ns=2_000 * MS, start_ns=40 * MS
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


def test_a_hung_server_draws_power_as_it_did_when_it_ran() -> None:
    """The batch that stands still costs what it cost while it moved, until the process is killed."""
    spec = cluster(profile={"base_s": 1.0, "per_image_s": 0.1}, greedy={"preload": ((1, 1.0),)})
    record = simulate(spec, Hang(0, 500 * MS), horizon_s=0.8, end="cut")
    started_ns = events(record, BatchStarted)[0][0]
    running_w = spec.devices[0].keys[1, 1.0, 0.0].power_mw[1] / 1000
    expected_j = 30.0 * 0.8 + running_w * (800 * MS - started_ns) / 1e9
    assert record.devices[0].energy_j == pytest.approx(expected_j, rel=1e-9)


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


def test_batches_are_halved_until_they_fit() -> None:
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
