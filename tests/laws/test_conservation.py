"""Laws that hold in any scenario, at any moment and after any fault."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.faults import Crash, Fault, Hang, Outage, Poison, Slowness, Squeeze, Supervision
from policies.replay import replay_run
from policies.run_records import STAGES
from policies.vocabulary import NS_PER_S, BatchingDelayRule, RouterEvent
from sim.device_profile import Link
from sim.fault_injection import poisoned_requests
from sim.host_and_network import HostTable
from sim.simulated_cluster import ClusterSpec, RunSpec, Simulation
from tests import tiny

MS = 1_000_000
RULES = Supervision(hang_ns=30 * MS, backoff_ns=10 * MS, backoff_limit_ns=60 * MS, stable_ns=200 * MS, start_ns=15 * MS)
REASONS = {"server_down", "no_prediction", "out_of_memory", "deadline", "instance_too_large"}


@dataclass(frozen=True, repr=False)
class Scenario:
    """What a law is tried on; its `text` is short enough to read when the law breaks."""

    cluster: ClusterSpec
    run: RunSpec
    text: str

    def __repr__(self) -> str:
        return self.text


def fault_of(kind: str, server: int, start_ns: int) -> Fault:
    """One fault of a kind; those that span some time do so for a while."""
    match kind:
        case "crash":
            return Crash(server, start_ns)
        case "hang":
            return Hang(server, start_ns)
        case "outage":
            return Outage(server, start_ns, start_ns + 100 * MS)
        case "death":
            return Outage(server, start_ns, None)
        case "squeeze":
            return Squeeze(server, start_ns, start_ns + 200 * MS, 2)
        case "no memory":
            return Squeeze(server, start_ns, start_ns + 200 * MS, 0)
        case "slow":
            return Slowness(server, start_ns, start_ns + 200 * MS, 3.0)
    raise AssertionError(kind)


@st.composite
def fault_plans(draw: st.DrawFn, servers: int, *, for_ever: bool = True) -> tuple[Fault, ...]:
    """Up to four faults a server, of any kinds, and poison; `for_ever`: a server may die for good."""
    kinds = ["crash", "hang", "outage", "squeeze", "no memory", "slow", *(["death"] if for_ever else [])]
    event = st.tuples(
        st.sampled_from(kinds), st.integers(0, servers - 1), st.integers(0, 50).map(lambda t: t * 10 * MS)
    )
    faults = [fault_of(*planned) for planned in draw(st.lists(event, max_size=4 * servers))]
    poisoned = draw(st.frozensets(st.integers(0, 60), max_size=8))
    return (*faults, Poison(poisoned)) if poisoned else tuple(faults)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """One to four servers, calm or overloaded, tight or ample memory, faults or none, drained or cut."""
    count = draw(st.integers(1, 4))
    profiles = [
        tiny.profile(
            f"p{i}",
            speed=draw(st.sampled_from([0.3, 1.0, 2.0])),
            dispatch_s=draw(st.sampled_from([0.0, 1e-4])),
            alpha=draw(st.sampled_from([0.0, 0.5])),
            beta=draw(st.sampled_from([1.0, 1.3])),
            handover=draw(st.sampled_from([None, {"there_s": 1e-3, "back_s": 2e-2}])),
        )
        for i in range(count)
    ]
    greedy = {
        "vram_cap_bytes": draw(st.sampled_from([320_000_000, 600_000_000, 4_000_000_000])),
        "head_of_line": draw(st.sampled_from(["skip", "skip", "wait"])),
        "served_width": draw(st.sampled_from(["requested", "instance"])),
        "utilization_block": draw(st.sampled_from([0.3, 0.95])),
        "idle_unload_ns": draw(st.sampled_from([20_000_000, 5_000_000_000])),
        "skip_limit_ns": draw(st.sampled_from([0, 50_000_000])),
        "scale_trigger": draw(st.sampled_from([2, 64])),
    }
    router = {
        "micro_batch_key": draw(st.sampled_from(["location", "any"])),
        "outstanding_micro_batches": draw(st.integers(1, 3)),
        "shed_expired": draw(st.booleans()),
        "max_batching_delay_ns": draw(st.sampled_from([0, 30_000_000, 2_000_000])),
    }
    link = draw(st.sampled_from(["wifi5", "10gbe", "loopback"]))
    spec = tiny.cluster(
        profiles, greedy=greedy, router=router, link=link, decision_ns=draw(st.sampled_from([0, 100_000]))
    )
    host = draw(st.sampled_from([None, HostTable((20_000, 3000), (400_000, 1000), (0.2, 0.8, 2.0))]))
    spec = with_loss(replace(spec, supervision=RULES, host=host), draw(st.sampled_from([0.0, 0.2])))
    horizon_s = 0.6
    arrivals = tiny.poisson_s(draw(st.sampled_from([20, 150, 600])), horizon_s, draw(st.integers(0, 99)))
    if draw(st.booleans()):
        arrivals = np.round(arrivals, 2)  # many arrivals at one instant
    faults = draw(fault_plans(count))
    run = tiny.run(
        spec,
        arrivals,
        horizon_s,
        end=draw(st.sampled_from(["drain", "cut"])),
        drain_limit_ns=2 * NS_PER_S,
        faults=faults,
        deadlines_ns=(draw(st.sampled_from([None, 300_000_000])),),
        keep_log=True,
    )
    text = f"Scenario({count=}, {host=}, {greedy=}, {router=}, {link=}, {arrivals=}, {faults=}, {run.end=}, "
    text += f"{run.deadlines_ns=})"
    return Scenario(spec, run, text)


def with_loss(spec: ClusterSpec, loss: float) -> ClusterSpec:
    """The same cluster on links that lose packets."""

    def lossy(link: Link) -> Link:
        return link.model_copy(update={"loss": loss})

    servers = tuple(
        replace(server, attachment=replace(server.attachment, link=lossy(server.attachment.link)))
        for server in spec.servers
    )
    return replace(spec, servers=servers)


class Watched(Simulation):
    """Checks the router's counts after every event, and integrates what is in flight."""

    def __init__(self, cluster: ClusterSpec, run: RunSpec) -> None:
        self.in_flight_ns, self.changed_ns, self.level = 0, 0, 0
        super().__init__(cluster, run)

    def _tell_router(self, event: RouterEvent) -> None:
        self.in_flight_ns += self.level * (self.now_ns - self.changed_ns)
        self.changed_ns = self.now_ns
        super()._tell_router(event)
        router = self.router
        self.level = router.in_flight
        assert router.arrived == router.completed + router.failed + router.in_flight
        in_micro_batches = sum(state.requests for state in router._servers)
        assert router.in_flight == router.fifo_length + in_micro_batches
        assert all(entry.delayed_ns <= router.config.max_batching_delay_ns for entry in router._requests.values())
        for server, state in zip(self.servers, router._servers, strict=True):
            assert state.micro_batches <= self.cluster.router.outstanding_micro_batches
            running = server.scheduler._batches.values()
            assert server.scheduler.running_requests == sum(len(batch.requests) for batch in running)
            memory = server.scheduler.memory
            assert memory.used_bytes <= memory.cap_bytes
            held = sum(server.spec.params.instance_bytes[i.segment, i.width] for i in server.scheduler.instances)
            assert memory.used_bytes == memory.context_bytes + held


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(scenarios())
def test_conservation_memory_little_and_energy(scenario: Scenario) -> None:
    """arrived = completed + in flight + failed, each once; VRAM within its cap; Little's law; bounds on energy."""
    spec, run = scenario.cluster, scenario.run
    simulation = Watched(spec, run)
    simulation.set_batching_delay_rule(BatchingDelayRule((4, 2, 4, 1), (20_000_000, 1_000_000, 5_000_000, 0)))
    record = simulation.run(tiny.Uniform(), np.random.default_rng(0))

    assert sorted(r.request for r in record.requests) == list(range(sum(run.arrivals_ns <= record.ended_ns)))
    for r in record.requests:
        assert r.arrived_ns == run.arrivals_ns[r.request] <= r.finished_ns <= record.ended_ns
        assert (len(r.widths) == len(r.servers) == 4) or r.status != "completed"
        assert r.reason in REASONS if r.status == "failed" else not r.reason
    poisoned = poisoned_requests(run.faults)
    assert not poisoned & {r.request for r in record.requests if r.status == "completed"}
    assert {r.request for r in record.requests if r.reason == "no_prediction"} <= poisoned
    for down in record.downtimes:
        assert 0 <= down.server < len(spec.servers)
        assert down.down_ns <= (record.ended_ns if down.up_ns is None else down.up_ns) <= record.ended_ns

    # Little's law, between two independent counts: the router's count over time, and the ledger's journeys.
    lives_ns = sum(r.finished_ns - r.arrived_ns for r in record.requests)
    still_ns = simulation.level * (record.ended_ns - simulation.changed_ns)
    assert simulation.in_flight_ns + still_ns == lives_ns

    for index, device in enumerate(record.devices):
        assert device.energy_j >= device.context_idle_w * record.ended_ns / NS_PER_S * (1 - 1e-9)
        assert device.energy_j <= spec.devices[index].cap_mw / 1000 * record.ended_ns / NS_PER_S * (1 + 1e-9)


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(scenarios())
def test_causality_and_fifo_within_a_key(scenario: Scenario) -> None:
    """A micro-batch is asked for, sent, arrives and ends in that order; no request of a key overtakes another at a
    server.

    The stages of a completed request add up to its latency, and only who was tried again has lost time.
    """
    spec, run = scenario.cluster, scenario.run
    _, record = tiny.simulate(spec, run)
    for micro_batch in record.micro_batches:
        decided_ns = micro_batch.snapshot_ns + spec.decision_ns
        assert decided_ns == micro_batch.sent_ns if spec.host is None else decided_ns <= micro_batch.sent_ns
        assert micro_batch.sent_ns <= micro_batch.arrived_ns <= micro_batch.ended_ns or micro_batch.arrived_ns == 0
    for batch in record.batches:
        assert batch.commanded_ns <= batch.started_ns <= batch.ended_ns
        assert batch.size <= spec.servers[batch.server].params.batch_limit
    assert_fifo(record.log)
    for request in record.requests:
        life_ns, lost_ns = request.finished_ns - request.arrived_ns, request.stages_ns[STAGES.index("lost")]
        assert min(request.stages_ns) >= 0
        assert sum(request.stages_ns) <= life_ns
        assert sum(request.stages_ns) == life_ns or request.status != "completed"
        assert request.retries or request.status == "in_flight" or not lost_ns


def assert_fifo(log: tuple[Any, ...]) -> None:
    """Requests of a key leave a server's queue in the order in which they entered it."""
    queues: dict[tuple[str, Any], list[tuple[float, int]]] = {}
    for step in log:
        name = type(step.event).__name__
        if name == "ServerDown" and step.core != "router":
            queues = {key: waiting for key, waiting in queues.items() if key[0] != step.core}
        if name == "MicroBatchArrived" and not any(type(c).__name__ == "RejectRequests" for c in step.commands):
            micro_batch = step.event.micro_batch
            queues.setdefault((step.core, (micro_batch.key.segment, micro_batch.key.previous_width)), []).extend(
                (micro_batch.key.width, r) for r in micro_batch.requests
            )
        for command in step.commands:
            if type(command).__name__ == "RunBatch":
                waiting = queues[step.core, (command.segment, command.previous_width)]
                width = next(w for w, r in waiting if r == command.requests[0])
                same_key = [r for w, r in waiting if w == width]
                assert tuple(same_key[: len(command.requests)]) == command.requests
                for request in command.requests:
                    waiting.remove((width, request))


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(fault_plans(3, for_ever=False), st.integers(0, 20), st.sampled_from([0.0, 0.3]), st.booleans())
def test_requests_of_a_run_with_any_faults_end_and_its_log_replays(
    faults: tuple[Fault, ...], seed: int, loss: float, shared_medium: bool
) -> None:
    """After transient faults each request is completed or failed for a named reason, and the log fits."""
    ways = {"there_s": 1e-3, "back_s": 2e-2}
    profiles = [tiny.profile(f"p{index}", handover=ways) for index in range(3)]
    spec = with_loss(tiny.cluster(profiles, shared_medium=shared_medium), loss)
    spec = replace(spec, supervision=RULES, host=HostTable((20_000, 3000), (400_000, 1000)))
    arrivals = tiny.poisson_s(100, 0.5, seed)
    run = tiny.run(spec, arrivals, 0.5, faults=faults, drain_limit_ns=120 * NS_PER_S, seed=seed, keep_log=True)
    record = Watched(spec, run).run(tiny.Uniform(), np.random.default_rng(seed))
    assert {r.status for r in record.requests} <= {"completed", "failed"}
    assert {r.reason for r in record.requests if r.status == "failed"} <= REASONS
    assert sorted(r.request for r in record.requests) == list(range(len(arrivals)))
    poisoned = poisoned_requests(faults) & set(range(len(arrivals)))
    assert poisoned <= {r.request for r in record.requests if r.status == "failed"}
    if not any(isinstance(fault, Crash | Hang | Outage | Squeeze) for fault in faults):
        assert poisoned == {r.request for r in record.requests if r.status == "failed"}
    assert replay_run(record.log, (), spec.router, [server.params for server in spec.servers]) == []


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([310_000_000, 450_000_000, 4_000_000_000]),
    st.sampled_from([0.05, 0.95]),
    st.sampled_from([0, 30_000_000]),
    st.sampled_from([None, 50_000_000]),
    st.integers(0, 20),
)
def test_without_faults_everything_ends(
    vram_cap_bytes: int, utilization_block: float, skip_limit_ns: int, idle_unload_ns: int | None, seed: int
) -> None:
    """Liveness: under tight memory, any U_blk and without idle unloads, nobody starves (head_of_line: skip)."""
    greedy = {
        "vram_cap_bytes": vram_cap_bytes,
        "utilization_block": utilization_block,
        "skip_limit_ns": skip_limit_ns,
        "idle_unload_ns": idle_unload_ns,
    }
    spec = tiny.cluster(greedy=greedy)
    run = tiny.run(spec, tiny.poisson_s(60, 0.5, seed), 0.5, drain_limit_ns=120 * NS_PER_S)
    _, record = tiny.simulate(spec, run, seed)
    assert {r.status for r in record.requests} == {"completed"}
