"""The ledger: the paper's energy, credits, and what a dead server counts."""

from __future__ import annotations

import pytest

from policies.interfaces import AccuracyPrior, RewardWeights
from policies.run_ledger import Ledger, ReportedPower
from policies.run_records import BatchTold
from policies.vocabulary import (
    Choice,
    ClusterView,
    Decide,
    Decided,
    HeadKey,
    MicroBatch,
    MicroBatchFinished,
    RequestArrived,
    RequestCompleted,
    RequestsReturned,
    RouterTimer,
    SendMicroBatch,
    ServerReport,
    ServerUp,
    TransferFinished,
    WorkKey,
)

S = 1_000_000_000


def report(server: int, now: int, power_w: float, utilization: float) -> ServerReport:
    return ServerReport(server, 1, now, now, 0, utilization, power_w, 0)


def ledger(gamma: float = 0.0, delta: float = 0.0) -> Ledger:
    weights = RewardWeights(alpha=0.0, beta=0.0, gamma=gamma, delta=delta)
    return Ledger(2, 2, weights, AccuracyPrior({(1.0, 1.0): 0.8}))


def test_reported_power_is_a_step_function_with_an_exact_integral() -> None:
    """Several reports at one instant make one step; any past time can be asked for."""
    power = ReportedPower(2)
    power.report(0, 100.0, 0)
    power.report(1, 50.0, 0)
    power.report(0, 200.0, 2 * S)
    assert power.energy_j(2 * S) == pytest.approx(150.0)
    assert power.energy_j(3 * S) == pytest.approx(275.0)
    assert power.energy_j(S) == pytest.approx(75.0)


def test_a_requests_energy_is_mean_reported_power_over_its_life() -> None:
    kept = ledger()
    kept.observe_router(report(0, 0, 100.0, 0.0), (), 0)
    kept.observe_router(report(1, 0, 200.0, 0.0), (), 0)
    kept.observe_router(RequestArrived(1), (), S)
    returned = RequestsReturned(0, 1, (1,), 2, 1.0, (True,))
    kept.observe_router(returned, (RequestCompleted(1, (1.0, 1.0), True, 2),), 3 * S)
    (record,) = kept.requests
    assert record.energy_j == pytest.approx(300.0)
    assert record.retries == 2


@pytest.mark.parametrize("arrived_ns", [3 * S, S])
def test_no_block_arrives_before_its_inputs_are_gathered(arrived_ns: int) -> None:
    """A server's own clock is known to within an error."""
    kept = ledger()
    view = ClusterView(S, HeadKey(1, 0.0, -1), 1, S, 1, 0, ())
    kept.observe_router(RequestArrived(5), (), S)
    kept.observe_router(RouterTimer(), (Decide(1, view),), S)
    sent = SendMicroBatch(MicroBatch(1, 1, 1, WorkKey(1, 1.0, 0.0), (5,)), ())
    kept.observe_router(Decided(1, Choice(1, 1.0, 1)), (sent,), S)
    kept.observe_router(TransferFinished(1, -1, 1, (5,)), (), 2 * S)
    kept.note_arrivals([(1, arrived_ns), (77, S)])
    ended = MicroBatchFinished(1, 1, 1, (5,), (S,), (4 * S,), ((1.0,),), (False,), (False,))
    kept.observe_router(RouterTimer(), (ended,), 4 * S)
    (micro_batch,) = kept.micro_batches
    assert micro_batch.arrived_ns == max(arrived_ns, 2 * S)


def test_no_stage_is_negative_where_a_servers_clock_is_ahead() -> None:
    """Its times may be later than the message that tells of them; stages add up all the same."""
    kept = ledger()
    view = ClusterView(S, HeadKey(1, 0.0, -1), 1, S, 1, 0, ())
    kept.observe_router(ServerUp(1, 1), (), 0)
    kept.observe_router(RequestArrived(5), (), S)
    kept.observe_router(RouterTimer(), (Decide(1, view),), S)
    sent = SendMicroBatch(MicroBatch(1, 1, 1, WorkKey(1, 1.0, 0.0), (5,)), ())
    kept.observe_router(Decided(1, Choice(1, 1.0, 1)), (sent,), S)
    ahead = 9 * S
    kept.note_batch(1, BatchTold(1, 1, 1, 1.0, 0.0, (5,), (), ahead, ahead, ahead, 0, ahead, (0, 0), ((1, ahead),)))
    kept.observe_router(RequestsReturned(1, 1, (5,), 1, 1.0, ()), (), 2 * S)
    kept.close(2 * S)
    (request,) = kept.requests
    assert min(request.stages_ns) >= 0
    assert sum(request.stages_ns) == S


def asked(kept: Ledger, decision: int, now: int, entered: int) -> None:
    view = ClusterView(now, HeadKey(1, 0.0, -1), 1, entered, 1, 0, ())
    kept.observe_router(RouterTimer(), (Decide(decision, view),), now)
