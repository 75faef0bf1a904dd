"""Waiting as an action: what begins a batching delay, what ends it, and that nobody waits for longer than the limit."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest

from policies.router_queue import MAX_BATCHING_DELAYS, RATE_ARRIVALS, BatchingDelays, note_arrival
from policies.vocabulary import (
    ArrivalsEnded,
    BatchingDelay,
    BatchingDelayBegun,
    BatchingDelayRule,
    Choice,
    Decided,
    Delayed,
    RequestArrived,
    RequestFailed,
    RouterTimer,
    ServerDown,
    ServerUp,
)
from tests.policies.test_router import arrive, ask, back, handle, router, send

LIMIT = 1000


def batching_delay(core: Any, now: int, requests: int = 4, wait_ns: int = 100) -> BatchingDelayBegun | None:
    """Ask, and answer with a batching delay."""
    decide = ask(core, now)
    begun = handle(core, Delayed(decide.decision, BatchingDelay(requests, wait_ns)), now)
    return begun[0] if begun else None


def holding(**changes: Any) -> Any:
    return router(**{"max_batching_delay_ns": LIMIT, **changes})


def test_a_hold_ends_when_enough_wait() -> None:
    """They stay in the FIFO; the decision that follows sees all of them."""
    core = holding()
    arrive(core, 0, 1)
    assert batching_delay(core, 0) == BatchingDelayBegun(1, 1, 0, 100)
    assert core.next_wake_ns == 100
    arrive(core, 10, 2, 3)
    assert (core.next_wake_ns, core.fifo_length) == (100, 3)
    arrive(core, 20, 4)
    assert core.next_wake_ns == 20
    assert ask(core, 20).view.candidates == 4


def test_a_hold_ends_with_its_time_and_the_decision_is_asked_for_anew() -> None:
    """Not a moment sooner."""
    core = holding()
    arrive(core, 0, 1)
    batching_delay(core, 0)
    assert handle(core, RouterTimer(), 99) == []
    assert ask(core, 100).view.candidates == 1


def test_only_the_line_is_held_back() -> None:
    """A request of another segment goes ahead of the FIFO's head."""
    core = holding()
    arrive(core, 0, 1)
    micro_batch = send(core, 0, 0)
    arrive(core, 1, 2)
    batching_delay(core, 1)
    back(core, 5, micro_batch)
    assert core.next_wake_ns == 5
    assert ask(core, 5).view.head.segment == 2


def test_a_request_is_held_no_longer_than_the_limit_in_all() -> None:
    """Over segments; a request that joins a batch queue brings what is left to it."""
    core = holding()
    arrive(core, 0, 1)
    assert batching_delay(core, 0, wait_ns=700) == BatchingDelayBegun(1, 1, 0, 700)
    micro_batch = send(core, 700, 0)
    back(core, 800, micro_batch)
    decide = ask(core, 800)
    assert decide.view.batching_delay_left_ns == LIMIT - 700
    (begun,) = handle(core, Delayed(decide.decision, BatchingDelay(2, 10_000)), 800)
    assert begun.until_ns == 1100
    assert ask(core, 1100).view.batching_delay_left_ns == 0


def test_whoever_joins_a_held_line_brings_what_is_left_to_it() -> None:
    """One that has been held before ends the batching delay sooner, and is charged from when it joined."""
    core = holding(segments=3)
    arrive(core, 0, 1)
    batching_delay(core, 0, wait_ns=900)
    first = send(core, 900, 0)
    arrive(core, 900, 2)
    second = send(core, 900, 0)
    back(core, 1000, second)
    assert batching_delay(core, 1000, wait_ns=500) == BatchingDelayBegun(4, 2, 1000, 1500)
    back(core, 1010, first)
    assert core.next_wake_ns == 1110
    assert ask(core, 1110).view.batching_delay_left_ns == 0


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
    with pytest.raises(AssertionError, match="may not be held"):
        handle(core, Delayed(decide.decision, BatchingDelay(2, 1)), MAX_BATCHING_DELAYS)


@pytest.mark.parametrize("wrong", [BatchingDelay(1, 5), BatchingDelay(5, 5), BatchingDelay(2, 0)])
def test_a_hold_waits_for_more_than_there_are_and_no_more_than_a_group(wrong: BatchingDelay) -> None:
    """Else it would end where it began."""
    core = holding()
    arrive(core, 0, 1)
    decide = ask(core, 0)
    with pytest.raises(AssertionError, match="no such batching delay"):
        handle(core, Delayed(decide.decision, wrong), 0)


def test_a_hold_that_is_full_when_it_is_answered_is_none() -> None:
    """The question is asked again."""
    core = holding()
    arrive(core, 0, 1)
    decide = ask(core, 0)
    arrive(core, 5, 2)
    assert handle(core, Delayed(decide.decision, BatchingDelay(2, 50)), 6) == []
    assert ask(core, 6).view.candidates == 2


@pytest.mark.parametrize("event", [ServerUp(1, 2), ServerDown(1, 1, "crash"), ArrivalsEnded()])
def test_a_hold_ends_when_a_server_goes_or_comes_and_when_arrivals_end(event: Any) -> None:
    """After the end of arrivals nobody is held any more."""
    core = holding()
    arrive(core, 0, 1)
    batching_delay(core, 0)
    handle(core, event, 10)
    assert core.next_wake_ns == 10
    assert (ask(core, 10).view.batching_delay_left_ns > 0) == (not isinstance(event, ArrivalsEnded))


def test_a_hold_ends_at_a_deadline() -> None:
    """Whose it is may be shed then; without `shed` it is asked about."""
    core = holding(shed_expired=True)
    handle(core, RequestArrived(1, 60), 0)
    assert batching_delay(core, 0) == BatchingDelayBegun(1, 1, 0, 60)
    assert core.next_wake_ns == 60
    (failed,) = handle(core, RouterTimer(), 60)
    assert isinstance(failed, RequestFailed)
    assert core.next_wake_ns is None


def test_what_is_held_keeps_nobody_asleep() -> None:
    """All servers were at their cap at the last look; a batching delay's end looks again."""
    core = holding(outstanding_micro_batches=1, servers=1)
    arrive(core, 0, 1)
    batching_delay(core, 0)
    core.handle(ServerDown(0, 1, "crash"), 1)
    assert handle(core, RouterTimer(), 1) == []
    core.handle(ServerUp(0, 2), 2)
    assert core.next_wake_ns == 2


def test_a_rule_holds_lines_that_begin_without_a_decision() -> None:
    """Until so many wait or the time is over; what a micro-batch leaves of those who waited is not held."""
    core = holding()
    core.handle(BatchingDelayRule((3, 1), (50, 50)), 0)
    arrive(core, 0, 1)
    assert core.next_wake_ns == 50
    arrive(core, 10, 2, 3)
    assert core.next_wake_ns == 10
    send(core, 10, 0, micro_batch_size=2)
    assert core.next_wake_ns == 10
    micro_batch = send(core, 10, 0)
    arrive(core, 20, 4)
    assert core.next_wake_ns == 70
    back(core, 30, micro_batch)  # the second segment's lines are not held
    assert core.next_wake_ns == 30


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


def test_a_line_begins_anew_with_those_who_come_while_all_that_were_in_it_are_decided_on() -> None:
    """As it does on a driver of one thread, which hears of them when the micro-batch has left."""
    core = holding()
    core.handle(BatchingDelayRule((3, 3), (50, 50)), 0)
    arrive(core, 0, 1)
    decide = ask(core, 50)
    arrive(core, 55, 2)
    handle(core, Decided(decide.decision, Choice(0, 1.0, 4)), 60)
    assert core.next_wake_ns == 110
    arrive(core, 70, 3, 4)
    assert core.next_wake_ns == 70, "enough wait"
    decide = ask(core, 70)
    arrive(core, 75, 5, 6, 7)
    handle(core, Decided(decide.decision, Choice(0, 1.0, 4)), 80)
    assert core.next_wake_ns == 80, "enough have come already"
    decide = ask(core, 80)
    arrive(core, 85, 8)
    handle(core, Decided(decide.decision, Choice(1, 1.0, 2)), 90)
    assert core.next_wake_ns == 90, "the oldest of them had been there"


def test_a_rule_holds_nobody_longer_than_the_limit() -> None:
    """Its time is cut; a rule that holds nobody changes nothing."""
    core = holding(max_batching_delay_ns=30)
    core.handle(BatchingDelayRule((4, 4), (50, 50)), 0)
    arrive(core, 0, 1)
    assert core.next_wake_ns == 30
    core = holding()
    core.handle(BatchingDelayRule((1, 4), (50, 0)), 0)
    arrive(core, 0, 1)
    assert core.next_wake_ns == 0


def test_what_goes_alone_is_held_by_nobody() -> None:
    """It shares no micro-batch: there is nobody to wait for."""
    core = holding(servers=1)
    core.handle(BatchingDelayRule((4, 4), (50, 50)), 0)
    arrive(core, 0, 1)
    for incarnation in (1, 2):
        send(core, 50 * incarnation, 0)
        core.handle(ServerDown(0, incarnation, "crash"), 50 * incarnation)
        core.handle(ServerUp(0, incarnation + 1), 50 * incarnation)
    assert core.next_wake_ns == 100
    decide = ask(core, 100)
    assert decide.view.batching_delay_left_ns == 0
    assert handle(core, Decided(decide.decision, Choice(0, 1.0, 4)), 100)
