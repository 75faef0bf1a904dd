"""The router's process and the ways to it: queueing theory first, then by hand what each of them costs an image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policies.faults import Crash, Hang, Supervision
from policies.run_records import STAGES, RunRecord
from policies.vocabulary import (
    NS_PER_S,
    BatchFinished,
    Choice,
    InstanceLoaded,
    MicroBatchArrived,
    RequestsReturned,
    ReturnRequests,
    SendMicroBatch,
    TimerFired,
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


# -------------------------------------------------------------------------------------------------------------- order


def test_nothing_is_overtaken_on_its_way() -> None:
    """Handovers of very different lengths: blocks come as they were handed over, messages as they were sent."""
    ways = {"there_s": 1e-4, "back_s": 4e-3}
    busy = {"dispatch_s": 0.0, "there_s": 4e-3, "back_s": 1e-4}
    spec = quick(None, servers=2, handover=ways, busy_serving=busy)
    record = simulate(spec, tiny.poisson_s(2000.0, 0.5), 0.5, keep_log=True)
    for server in range(2):
        steps = [step for step in record.log if step.core == f"server:{server}"]
        sent = [
            command.micro_batch.micro_batch
            for step in record.log
            for command in step.commands
            if isinstance(command, SendMicroBatch) and command.micro_batch.server == server
        ]
        micro_batches = [
            step.event.micro_batch.micro_batch for step in steps if isinstance(step.event, MicroBatchArrived)
        ]
        assert micro_batches == sent
        batches = [step.event.batch for step in steps if isinstance(step.event, BatchFinished)]
        left = [request for step in steps if isinstance(step.event, BatchFinished) for request in _passed(step)]
        back = [
            request
            for step in record.log
            if isinstance(step.event, RequestsReturned) and step.event.server == server
            for request in step.event.requests
        ]
        assert back == left
        assert len(batches) > 100
    ways_ns = [micro_batch.arrived_ns - micro_batch.sent_ns for micro_batch in record.micro_batches]
    assert min(ways_ns) < MS < 4 * MS < max(ways_ns)


def _passed(step: Any) -> tuple[int, ...]:
    returned = (command for command in step.commands if isinstance(command, ReturnRequests))
    return tuple(request for command in returned for request in command.requests)


# ------------------------------------------------------------------------------------------------------------- faults


RULES = Supervision(hang_ns=30 * MS, backoff_ns=10 * MS, start_ns=10 * MS)


def faulty(**profile: Any) -> ClusterSpec:
    greedy, router = {"idle_unload_ns": 20 * MS}, {"outstanding_micro_batches": 1000}
    spec = tiny.cluster([tiny.profile(**profile)], decision_ns=0, greedy=greedy, router=router)
    return replace(spec, supervision=RULES)


def test_what_is_on_its_way_back_when_its_server_dies_is_refused_and_run_again() -> None:
    """It was sent, and so it comes; but its incarnation is over, and its activations are gone."""
    way_s = 0.02
    spec = replace(faulty(handover={"there_s": 0.0, "back_s": way_s}), host=HostTable((0, 0), (MS, 0)))
    whole = simulate(spec, [0.0], 0.1)
    died_ns = whole.batches[1].ended_ns + 5 * MS  # its second segment's message is on its way
    record = simulate(spec, [0.0], 0.1, faults=(Crash(0, died_ns),), keep_log=True)
    (request,) = record.requests
    assert (request.status, request.retries, request.servers) == ("completed", 1, (0,) * 4)
    returned = [(step.now_ns, step.event) for step in record.log if isinstance(step.event, RequestsReturned)]
    assert [(event.incarnation, event.segment) for _, event in returned] == [
        (1, 1),
        (1, 2),
        *((2, s) for s in (1, 2, 3, 4)),
    ]
    stale_ns = returned[1][0]
    assert stale_ns == whole.batches[1].ended_ns + round(way_s * NS_PER_S) + MS
    assert died_ns < stale_ns
    assert request.stages_ns[STAGES.index("lost")] == died_ns
    assert sum(request.stages_ns) == request.finished_ns


def test_a_stale_message_leaves_the_records_of_a_request_alone() -> None:
    """It comes while the request has passed a segment again, elsewhere and at another width: that is what counts."""

    class Narrower:
        def choose(self, view: Any, rng: np.random.Generator) -> Choice:
            return Choice(0, 1.0, 1) if view.servers[0].valid else Choice(1, 0.25, 1)

    slow = tiny.profile("slow", handover={"there_s": 0.0, "back_s": 0.5})
    other = tiny.profile("other", handover={"there_s": 0.0, "back_s": 1.0}, load_s=0.0)
    spec = replace(tiny.cluster([slow, other], decision_ns=0), supervision=RULES)
    run = tiny.run(spec, [0.0], 1.2, faults=(Crash(0, 300 * MS),), end="cut")
    record = Simulation(replace(spec, supervision=replace(RULES, start_ns=9000 * MS)), run).run(
        Narrower(), np.random.default_rng(0)
    )
    (request,) = record.requests
    assert (request.status, request.servers, request.widths) == ("in_flight", (), ())
    assert sum(request.stages_ns) == request.stages_ns[STAGES.index("lost")] == 300 * MS


def test_what_is_on_its_way_to_a_server_that_dies_is_dropped() -> None:
    """The router took it back with the death; the next incarnation never hears of the micro-batch."""
    spec = faulty(handover={"there_s": 0.05, "back_s": 0.0})
    record = simulate(spec, [0.0], 0.1, faults=(Crash(0, 10 * MS),), keep_log=True)
    arrived = [step.event.micro_batch for step in record.log if isinstance(step.event, MicroBatchArrived)]
    assert [(micro_batch.incarnation, micro_batch.key.segment) for micro_batch in arrived] == [
        (2, 1),
        (2, 2),
        (2, 3),
        (2, 4),
    ]
    assert (record.requests[0].status, record.requests[0].retries) == ("completed", 1)


def test_a_hung_servers_scheduler_hangs_with_it() -> None:
    """No micro-batch, no load's end, no timer and no reading reaches it; who was sent there is tried again with its
    death."""
    spec = faulty(load_s=0.005)
    arrivals = np.arange(0.0, 0.2, 0.001)
    record = simulate(spec, arrivals, 0.3, faults=(Hang(0, 100 * MS),), keep_log=True)
    during = [step for step in record.log if step.core == "server:0" and 100 * MS < step.now_ns < 130 * MS]
    assert during == []
    sent = [
        command.micro_batch
        for step in record.log
        for command in step.commands
        if isinstance(command, SendMicroBatch) and 100 * MS < step.now_ns < 130 * MS
    ]
    assert sent != []
    assert {request.status for request in record.requests} == {"completed"}
    again = {request.request: request.retries for request in record.requests}
    assert all(again[request] == 1 for micro_batch in sent for request in micro_batch.requests)


def test_a_timer_that_comes_while_its_server_hangs_is_set_anew_in_the_next_life() -> None:
    """An idle instance of the new incarnation is unloaded in time, as in the first one."""
    spec = faulty(load_s=0.001)
    record = simulate(spec, [0.0, 0.5], 1.0, faults=(Hang(0, 15 * MS),), keep_log=True)
    rung_ns = [step.now_ns for step in record.log if isinstance(step.event, TimerFired)]
    assert not [now_ns for now_ns in rung_ns if 15 * MS <= now_ns < 500 * MS]
    assert [now_ns for now_ns in rung_ns if now_ns > 500 * MS]
    assert [step for step in record.log if isinstance(step.event, InstanceLoaded)]
