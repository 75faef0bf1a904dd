"""Waiting as an action: what begins a batching delay, what ends it, and that nobody waits for longer than the limit."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest

from policies.router_queue import MAX_BATCHING_DELAYS, RATE_ARRIVALS, BatchingDelays, note_arrival
from policies.vocabulary import BatchingDelay, BatchingDelayBegun, BatchingDelayRule, Delayed
from tests.policies.test_router import arrive, ask, back, handle, router, send

LIMIT = 1000


def batching_delay(core: Any, now: int, requests: int = 4, wait_ns: int = 100) -> BatchingDelayBegun | None:
    """Ask, and answer with a batching delay."""
    decide = ask(core, now)
    begun = handle(core, Delayed(decide.decision, BatchingDelay(requests, wait_ns)), now)
    return begun[0] if begun else None


def holding(**changes: Any) -> Any:
    return router(**{"max_batching_delay_ns": LIMIT, **changes})


def test_a_decision_sees_how_long_it_may_hold() -> None:
    """Not at all without a limit, as many as the largest group, or too often."""
    core = router()
    arrive(core, 0, 1)
    assert ask(core, 0).view.batching_delay_left_ns == 0
    core = holding()
    arrive(core, 0, 1, 2, 3, 4)
    assert ask(core, 0).view.batching_delay_left_ns == 0
    core = holding()
    arrive(core, 0, 1)
    for number in range(MAX_BATCHING_DELAYS):
        assert batching_delay(core, number, wait_ns=1) is not None
    decide = ask(core, MAX_BATCHING_DELAYS)
    assert decide.view.batching_delay_left_ns == 0
    with pytest.raises(AssertionError, match="may not be delayed"):
        handle(core, Delayed(decide.decision, BatchingDelay(2, 1)), MAX_BATCHING_DELAYS)


@pytest.mark.parametrize("wrong", [BatchingDelay(1, 5), BatchingDelay(5, 5), BatchingDelay(2, 0)])
def test_a_hold_waits_for_more_than_there_are_and_no_more_than_a_group(wrong: BatchingDelay) -> None:
    core = holding()
    arrive(core, 0, 1)
    decide = ask(core, 0)
    with pytest.raises(AssertionError, match="no such batching delay"):
        handle(core, Delayed(decide.decision, wrong), 0)


def test_a_rule_holds_until_as_many_wait_as_arrive_within_a_time() -> None:
    """At the rate over the last arrivals: many while it is high, none once it has fallen; by segment."""
    core, every_ns = holding(max_batching_delay_ns=10**9, outstanding_micro_batches=1000), 10**6
    core.handle(BatchingDelayRule((1, 1), (10**9, 10**9), (4 * every_ns, 0)), 0)
    sizes = []
    for now in range(every_ns, 403 * every_ns, every_ns):  # 402 arrivals, of which the last is held
        arrive(core, now, now)
        if core.next_wake_ns == now:
            micro_batch = send(core, now, 0)
            sizes.append(len(micro_batch.micro_batch.requests))
    assert sizes == [1] + [4] * 100, "of the first nothing is known yet"
    back(core, now, micro_batch)
    assert core.next_wake_ns == now, "before the second segment nobody waits"
    send(core, now, 0)
    later = now + 10**9
    send(core, later, 0)  # who was held
    arrive(core, later, later)
    assert core.next_wake_ns == later, "about one a second: nobody else is waited for"


def test_the_rate_follows_the_last_arrivals_at_any_speed() -> None:
    """After a change 1/e of the old mean time between two is left when `RATE_ARRIVALS` have come."""
    for every_ns in (100, 10**6, 10**9):
        seen = BatchingDelays[int](1, 1)
        for count in range(1, 100):
            note_arrival(seen, count * every_ns)
        assert seen.rate == pytest.approx(1 / every_ns)
        for count in range(1, 1 + RATE_ARRIVALS):
            note_arrival(seen, 99 * every_ns + 9 * count * every_ns)
        assert 1 / seen.rate == pytest.approx((9 - 8 * exp(-1)) * every_ns, rel=0.02)
    for _ in range(2000):
        note_arrival(seen, seen.arrived_ns)
    assert seen.rate == 1.0, "many at once"


@pytest.mark.parametrize(("every_ns", "requests"), [(60, 1), (40, 2), (15, 4), (5, 4)])
def test_a_rule_waits_for_no_more_requests_than_its_time_brings(every_ns: int, requests: int) -> None:
    """A batch queue of a rule that waits 50 ns for four: one request in 60 ns is not waited for."""
    core = holding(outstanding_micro_batches=1000)
    core.handle(BatchingDelayRule((4, 4), (50, 50)), 0)
    sizes = []
    for now in range(every_ns, 403 * every_ns, every_ns):
        arrive(core, now, now)
        if core.next_wake_ns == now:
            sizes.append(len(send(core, now, 0).micro_batch.requests))
    assert sizes[:2] == [1, requests], "of the first nothing is known yet"
    assert set(sizes[1:]) == {requests}
