"""Laws of draining, on any cluster and under any load: it loses nothing, tries nothing again, and stops nobody."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.replay import replay_run
from policies.run_records import LoggedStep
from policies.vocabulary import NS_PER_S, RequestArrived, RouterEvent, SendMicroBatch, ServerDraining
from sim.simulated_cluster import ClusterSpec, RunSpec
from tests import tiny
from tests.laws.test_conservation import Watched

DrainRequest = tuple[int, int, bool]
"""(with whose arrival it comes, the server, whether it is to be drained)."""


class Drained(Watched):
    """A simulated cluster whose operator operator requests something with an arrival; nothing else of it knows of
    draining."""

    def __init__(self, cluster: ClusterSpec, run: RunSpec, operator_requests: list[DrainRequest]) -> None:
        self._operator_requests = operator_requests
        super().__init__(cluster, run)

    def _tell_router(self, event: RouterEvent) -> None:
        if isinstance(event, RequestArrived):
            for number, server, is_draining in self._operator_requests:
                if number == event.request:
                    super()._tell_router(ServerDraining(server, is_draining))
        super()._tell_router(event)


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2), st.booleans()), max_size=8),
    st.sampled_from(["location", "any"]),
    st.integers(1, 3),
    st.sampled_from([0, 30_000_000]),
    st.sampled_from([0, 100_000]),
    st.integers(0, 20),
)
def test_requests_complete_at_the_first_attempt_under_any_draining(
    operator_requests: list[DrainRequest],
    micro_batch_key: str,
    outstanding_micro_batches: int,
    max_batching_delay_ns: int,
    decision_ns: int,
    seed: int,
) -> None:
    """No micro-batch goes to a drained server while another one is not, and each drained one is empty in the end."""
    ways = {"there_s": 1e-3, "back_s": 2e-2}
    spec = tiny.cluster(
        [tiny.profile(f"p{index}", handover=ways) for index in range(3)],
        router={
            "micro_batch_key": micro_batch_key,
            "outstanding_micro_batches": outstanding_micro_batches,
            "max_batching_delay_ns": max_batching_delay_ns,
        },
        decision_ns=decision_ns,
    )
    arrivals = tiny.poisson_s(100, 0.4, seed)
    run = tiny.run(spec, arrivals, 0.4, drain_limit_ns=120 * NS_PER_S, seed=seed, keep_log=True)
    simulation = Drained(spec, run, operator_requests)
    record = simulation.run(tiny.Uniform(), np.random.default_rng(seed))
    assert [request.status for request in record.requests] == ["completed"] * len(arrivals)
    assert {request.retries for request in record.requests} == {0}
    assert all(simulation.router.is_empty(server) for server in range(3))
    _require_spared(record.log)
    assert replay_run(record.log, (), spec.router, [server.params for server in spec.servers]) == []


def _require_spared(log: tuple[LoggedStep, ...]) -> None:
    drained: set[int] = set()
    for step in log:
        match step.event:
            case ServerDraining(server, is_draining):
                (drained.add if is_draining else drained.discard)(server)
        sent = {command.micro_batch.server for command in step.commands if isinstance(command, SendMicroBatch)}
        assert len(drained) == 3 or not sent & drained
