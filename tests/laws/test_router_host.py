"""The router's process and the ways to it: queueing theory first, then by hand what each of them costs an image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policies.run_records import STAGES, RunRecord
from policies.vocabulary import (
    Choice,
)
from sim.compiled.compiled_simulation import CompiledSimulation
from sim.device_tables import ProfileCosts
from sim.host_and_network import HostTable
from sim.simulated_cluster import ClusterSpec, Simulation
from tests import tiny

US, MS = 1000, 1_000_000
HANDOVER = {"there_s": 3e-5, "back_s": 5e-5}


class Alone:
    """Every image in a micro-batch of its own, full width, all servers in turn."""

    def __init__(self, micro_batch_size: int = 1) -> None:
        self.micro_batch_size, self.next = micro_batch_size, 0

    def choose(self, view: Any, rng: np.random.Generator) -> Choice:
        valid = [index for index, server in enumerate(view.servers) if server.valid]
        self.next += 1
        return Choice(valid[self.next % len(valid)], 1.0, self.micro_batch_size)


def quick(host: HostTable | None = None, servers: int = 1, decision_ns: int = 0, **profile: Any) -> ClusterSpec:
    """Servers that are never short of anything: hardly any time in the pass, everything loaded, no link to speak of."""
    made = {"segments": 1, "base_s": 1e-7, "per_image_s": 1e-9, "beta": 0.0, "load_s": 0.0, **profile}
    profiles = [tiny.profile(f"p{index}", **made) for index in range(servers)]
    router = {"outstanding_micro_batches": 10_000}
    greedy = {"idle_unload_ns": None, "scale_trigger": 1000}
    spec = tiny.cluster(profiles, router=router, greedy=greedy, link="loopback", decision_ns=decision_ns)
    return replace(spec, host=host)


def simulate(
    spec: ClusterSpec,
    arrivals: Any,
    horizon_s: float,
    micro_batch_size: int = 1,
    engine: Any = Simulation,
    **changes: Any,
) -> RunRecord:
    run = tiny.run(spec, arrivals, horizon_s, **changes)
    record: RunRecord = engine(spec, run).run(Alone(micro_batch_size), np.random.default_rng(0))
    return record


def in_stage(record: RunRecord, stage: str) -> list[int]:
    return [request.stages_ns[STAGES.index(stage)] for request in record.requests if request.status == "completed"]


# -------------------------------------------------------------------- theory: on the quick engine, whose bits are alike


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_images_wait_for_the_host_as_in_an_m_d_1_queue(load: float) -> None:
    """A host that needs D for each decision, Poisson arrivals: a mean wait of load D / (2 (1 - load))."""
    cost_ns, decision_ns = 800 * US, 200 * US  # the policy's time and the host's make D = 1 ms
    spec = quick(HostTable(decision=(cost_ns, 0), returned=(0, 0)), decision_ns=decision_ns)
    means_ms = []
    for seed in range(10):
        record = simulate(spec, tiny.poisson_s(load * 1000, 8.0, seed), 8.0, engine=CompiledSimulation)
        means_ms.append(np.mean(in_stage(record, "router_wait")) / MS)
    expected_ms = load / (2 * (1 - load))
    half_ms = 3.25 * np.std(means_ms, ddof=1) / np.sqrt(len(means_ms))  # a 99 % interval of ten runs
    assert half_ms < 0.1 * expected_ms
    assert abs(np.mean(means_ms) - expected_ms) <= half_ms


def test_books_that_are_kept_after_a_block_has_gone_delay_the_next_one_alone() -> None:
    """A quarter of the host's cost stands before the micro-batch's departure; who comes next waits for all of it."""
    arrivals_s = tiny.poisson_s(600.0, 4.0)
    whole, quarter = (
        simulate(quick(HostTable(decision=(MS, 0), returned=(0, 0), sent_permille=permille)), arrivals_s, 4.0)
        for permille in (1000, 250)
    )
    assert in_stage(quarter, "router_wait") == in_stage(whole, "router_wait")
    assert set(in_stage(whole, "decision")) == {MS}
    assert set(in_stage(quarter, "decision")) == {MS // 4}


def test_books_that_are_kept_after_a_return_delay_the_next_one_alone() -> None:
    """A fifth of the host's cost stands before an image is back; who comes next waits for all of it."""
    arrivals_s = tiny.poisson_s(600.0, 4.0)
    whole, fifth = (
        simulate(quick(HostTable(decision=(0, 0), returned=(MS, 0), received_permille=permille)), arrivals_s, 4.0)
        for permille in (1000, 200)
    )
    latency_ns = [
        np.array([request.finished_ns - request.arrived_ns for request in run.requests]) for run in (whole, fifth)
    ]
    assert set(latency_ns[0] - latency_ns[1]) == {MS - MS // 5}
    assert max(in_stage(fifth, "handover")) > 2 * MS  # somebody waited for all of another's


def test_spread_costs_wait_longer_by_pollaczek_and_khinchine() -> None:
    """The same mean, but costs that differ: the wait grows by (1 + c^2), c^2 = 1 where each is nothing or twice D."""
    means_ms = []
    for spread in ((), (0.0, 2.0)):
        spec = quick(HostTable(decision=(MS, 0), returned=(0, 0), spread=spread))
        record = simulate(spec, tiny.poisson_s(500.0, 40.0), 40.0, engine=CompiledSimulation)
        means_ms.append(np.mean(in_stage(record, "router_wait")) / MS)
    assert means_ms == pytest.approx([0.5, 1.0], rel=0.12)


@pytest.mark.parametrize("micro_batch_size", [1, 8])
def test_a_host_carries_what_its_costs_allow(micro_batch_size: int) -> None:
    """Overloaded, it sends and receives one micro-batch after the other: a part for each, and one for an image."""
    host = HostTable(decision=(30 * US, 5 * US), returned=(20 * US, 3 * US))
    record = simulate(quick(host), np.zeros(8000), 0.0, micro_batch_size)
    image_ns = (50 * US) / micro_batch_size + 8 * US
    assert record.ended_ns == pytest.approx(8000 * image_ns, rel=0.01)


# ------------------------------------------------------------------------------------------------------------ by hand


def test_each_stage_of_an_image_that_meets_nobody() -> None:
    """The host's costs and the ways there and back; what the policy takes comes on top of what was measured."""
    host = HostTable(decision=(40 * US, 2 * US), returned=(25 * US, US))
    spec = quick(host, decision_ns=70 * US, handover=HANDOVER, dispatch_s=3e-4)
    record = simulate(spec, [0.1], 0.2)
    found = dict(zip(STAGES, record.requests[0].stages_ns, strict=True))
    link_ns = record.micro_batches[0].arrived_ns - record.micro_batches[0].sent_ns - 30 * US
    assert found["decision"] == (70 + 42) * US
    assert found["transfer"] == link_ns
    assert found["handover"] == (30 + 50 + 26) * US
    assert found["dispatch"] == 300 * US
    assert sum(found.values()) == record.requests[0].finished_ns - record.requests[0].arrived_ns


def test_expected_costs_know_the_way_there_and_back_but_not_as_work() -> None:
    """A micro-batch's delay has them in it; an image's share of a busy server has not."""
    near, far = (tiny.cluster([tiny.profile(handover=ways)]) for ways in (None, HANDOVER))
    costs = [
        ProfileCosts(spec.devices, [32], [server.attachment for server in spec.servers]) for spec in (near, far)
    ]  # fmt: skip
    key = next(iter(near.devices[0].keys))
    work = tiny.work_key(*key)
    assert costs[1].batch_s(0, work, 40) - costs[0].batch_s(0, work, 40) == pytest.approx(8e-5)
    assert costs[1].image_s(0, work) == costs[0].image_s(0, work)


# ------------------------------------------------------------------------------------------------------------- faults
