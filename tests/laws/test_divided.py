"""Laws of a cluster that several routers divide: nothing is lost, nothing comes twice, and one router is as before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from policies.division import Division, Territory
from policies.faults import Fault, Outage
from policies.records import STAGES, RequestRecord
from policies.vocabulary import NS_PER_S, HoldRule, RouterEvent
from sim.cluster import ClusterSpec, RunSpec, Simulation
from sim.divided import DividedSimulation
from sim.host import HostTable
from sim.profile import Link
from tests import worlds
from tests.laws.test_conservation import REASONS, RULES, fault_plans

MS = 1_000_000
LINK = Link(latency_s=2e-3, bandwidth_bytes_s=1e8, loss=0.2)
UNEQUAL = (2.0, 1.0, 0.7, 0.4, 0.4)


def cluster(count: int = 5, **router: Any) -> ClusterSpec:
    """Unequal servers, whose messages take their time."""
    ways = {"there_s": [1e-5, 2e-3], "back_s": [0.0, 4e-3]}
    profiles = [worlds.profile(f"p{index}", speed=UNEQUAL[index], handover=ways) for index in range(count)]
    return replace(worlds.cluster(profiles, router=router), supervision=RULES)


def division(count: int, servers: int = 5, handover_at: int | None = None, **changes: Any) -> Division:
    """Each server a group of its own."""
    groups = tuple((server,) for server in range(servers))
    return Division(count, groups, UNEQUAL[:servers], handover_at, 10 * MS, **changes)


class Watched(DividedSimulation):
    """Counts, after every event, who has each request."""

    def _tell_router(self, event: RouterEvent) -> None:
        super()._tell_router(event)
        held = [request for place in self.territory.alive for request in self.routers[place].requests]
        assert len(held) == len(set(held))
        assert self._in_flight == self._under_way + len(held)
        for place in self.territory.alive:
            for server, state in enumerate(self.routers[place]._servers):
                assert not state.up or self.territory.owner[server] == place


def test_one_router_is_as_before() -> None:
    """Bit for bit, whatever else."""
    spec = replace(cluster(max_batching_delay_ns=5 * MS), host=HostTable((20_000, 3000), (40_000, 1000), (0.2, 2.0)))
    run = worlds.run(spec, worlds.poisson_s(400, 0.5), 0.5, faults=(Outage(1, 100 * MS, 200 * MS),), keep_log=True)
    records = []
    for simulation in (Simulation(spec, run), DividedSimulation(spec, run, division(1), LINK)):
        simulation.set_hold_rule(HoldRule((4, 2, 4, 1), (20_000_000, 1_000_000, 5_000_000, 0)))
        records.append(simulation.run(worlds.Uniform(), np.random.default_rng(0)))
    assert records[0] == records[1]


def test_each_part_is_a_cluster_of_its_own() -> None:
    """Without hand-over a router does what one would alone whose other servers are out, for whom it is dealt."""
    spec = worlds.cluster([worlds.profile(f"p{index}", speed=speed) for index, speed in enumerate(UNEQUAL)])
    run = worlds.run(spec, worlds.poisson_s(300, 0.5), 0.5)
    simulation = DividedSimulation(spec, run, division(2), LINK)
    record = simulation.run(worlds.Uniform(), np.random.default_rng(0))
    rng = np.random.default_rng(0)
    streams = (rng, *rng.spawn(1))
    for place, its_rng in enumerate(streams):
        territory = simulation.territory
        its_own = [request for request in range(len(run.arrivals_ns)) if territory.router_of(request) == place]
        others = tuple(Outage(server, 0, None) for server, owner in enumerate(territory.owner) if owner != place)
        alone = replace(run, arrivals_ns=run.arrivals_ns[its_own], faults=others)
        expected = Simulation(spec, alone).run(worlds.Uniform(), its_rng)
        mine = {r.request: r for r in record.requests}
        for r in expected.requests:
            assert replace_number(mine[its_own[r.request]], r) == r
    assert min(np.bincount([territory.router_of(request) for request in range(len(run.arrivals_ns))])) > 50


def replace_number(request: RequestRecord, like: RequestRecord) -> RequestRecord:
    """As its router alone would have it: with another number, drawn labels, and the power of its servers alone."""
    return structs.replace(request, request=like.request, correct=like.correct, energy_j=like.energy_j)


@st.composite
def deaths(draw: st.DrawFn, count: int) -> tuple[tuple[int, int], ...]:
    """Some routers die; one lives."""
    killed = draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count - 1))
    return tuple((router, draw(st.integers(0, 50)) * 10 * MS) for router in killed)


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_whatever_goes_wrong_every_image_ends_once(data: st.DataObject) -> None:
    """Servers and routers die, words and hand-overs are lost: each image has one record, whose stages are its life."""
    count = data.draw(st.integers(2, 4), "routers")
    faults: tuple[Fault, ...] = data.draw(fault_plans(5, for_ever=False), "faults")
    host = data.draw(st.sampled_from([None, HostTable((20_000, 3000), (400_000, 1000))]), "host")
    spec = replace(cluster(max_batching_delay_ns=data.draw(st.sampled_from([0, 5 * MS]))), host=host)
    arrivals = worlds.poisson_s(data.draw(st.sampled_from([50, 300])), 0.5, data.draw(st.integers(0, 20), "seed"))
    run = worlds.run(spec, arrivals, 0.5, faults=faults, drain_limit_ns=200 * NS_PER_S)
    handover_at = data.draw(st.sampled_from([None, 1, 20]), "handover_at")
    parts = division(count, handover_at=handover_at, deaths=data.draw(deaths(count), "deaths"))
    simulation = Watched(spec, run, parts, LINK)
    record = simulation.run(worlds.Uniform(), np.random.default_rng(0))
    assert sorted(r.request for r in record.requests) == list(range(len(arrivals)))
    assert {r.status for r in record.requests} <= {"completed", "failed"}
    assert {r.reason for r in record.requests if r.status == "failed"} <= REASONS
    for r in record.requests:
        assert r.arrived_ns == run.arrivals_ns[r.request] <= r.finished_ns
        assert sum(r.stages_ns) == r.finished_ns - r.arrived_ns or r.status == "failed"
    assert simulation.handed_over == 0 or handover_at is not None


def test_a_killed_router_leaves_servers_and_requests_to_the_others() -> None:
    """All complete; its servers serve again under another; what it had in flight has lost time, and no other."""
    spec = cluster()
    run = worlds.run(spec, worlds.poisson_s(300, 1.0), 1.0)
    at_ns = 400 * MS
    simulation = Watched(spec, run, division(2, deaths=((0, at_ns),)), LINK)
    before = Territory(division(2), 0).owner
    record = simulation.run(worlds.Uniform(), np.random.default_rng(0))
    assert {r.status for r in record.requests} == {"completed"}
    assert simulation.territory.owner == [1] * 5
    his = {server for server, owner in enumerate(before) if owner == 0}
    assert {down.server for down in record.downtimes} == his
    assert {batch.server for batch in record.batches if batch.commanded_ns > at_ns} == set(range(5))
    lost = STAGES.index("lost")
    for r in record.requests:
        is_struck = r.arrived_ns <= at_ns <= r.finished_ns
        assert is_struck or not r.stages_ns[lost]
    assert any(r.stages_ns[lost] for r in record.requests)


@pytest.mark.parametrize("handover_at", [None, 4])
def test_a_full_router_hands_over(handover_at: int | None) -> None:
    """A router none of whose servers is up serves nobody; the other one serves all, where images are handed over."""
    spec = cluster(2)
    owner = Territory(division(2, 2), 0).owner
    out = Outage(owner.index(0), 0, None)
    run = worlds.run(spec, worlds.poisson_s(100, 0.5), 0.5, faults=(out,), drain_limit_ns=NS_PER_S)
    simulation = Watched(spec, run, division(2, 2, handover_at), LINK)
    record = simulation.run(worlds.Uniform(), np.random.default_rng(0))
    left = sum(r.status == "in_flight" for r in record.requests)
    assert left == 0 if handover_at else left > 20
    assert all(each.arrived_ns == run.arrivals_ns[each.request] for each in record.requests)
    assert (simulation.handed_over > 20) == (handover_at is not None)


def test_servers_are_dealt_by_what_they_can_do_and_requests_by_what_a_router_has() -> None:
    """The greedy rule of longest first; shares within the noise of a hash; who lives keeps what it was dealt."""
    territory = Territory(division(2), 7)
    assert territory.owner == [0, 1, 1, 1, 0]  # 2.4 and 2.1
    assert territory.shares == pytest.approx([2.4 / 4.5, 2.1 / 4.5])
    before = [territory.router_of(request) for request in range(20_000)]
    assert np.mean(before) == pytest.approx(2.1 / 4.5, abs=4 * 0.5 / np.sqrt(20_000))
    three = Territory(division(3), 7)
    dealt = [three.router_of(request) for request in range(2_000)]
    three.bury(1)
    after = [three.router_of(request) for request in range(2_000)]
    assert all(new == old or old == 1 for new, old in zip(after, dealt, strict=True))
    assert {new for new, old in zip(after, dealt, strict=True) if old == 1} == {0, 2}
    assert set(three.owner) == {0, 2}


def test_a_run_can_be_made_again() -> None:
    """The same spec, seed and policy: the same record."""

    def record(run: RunSpec) -> Any:
        parts = division(3, handover_at=2, deaths=((1, 200 * MS),))
        return DividedSimulation(cluster(), run, parts, LINK).run(worlds.Uniform(), np.random.default_rng(0))

    run = worlds.run(cluster(), worlds.poisson_s(600, 0.5), 0.5)
    assert record(run) == record(run)
    assert record(run) != record(replace(run, seed=1))
