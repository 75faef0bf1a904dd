"""Draining, as the router's core has it: no new micro-batch goes there, what is there goes on, and nobody is stuck by
it."""

from __future__ import annotations

import pytest

from policies.router_core import RouterCore
from policies.vocabulary import (
    BatchingDelay,
    Choice,
    Decided,
    Delayed,
    RequestCompleted,
    RouterTimer,
    ServerDown,
    ServerDraining,
    ServerUp,
)
from tests.policies.test_router import arrive, ask, back, handle, router, send


def valid(core: RouterCore, now: int) -> list[bool]:
    """Of each server, as the next decision sees it; nothing is sent."""
    return [server.valid for server in ask(core, now).view.servers]


@pytest.mark.parametrize("micro_batch_key", ["location", "any"])
def test_request_on_a_drained_server_finishes_its_segment_and_moves_with_the_next(micro_batch_key: str) -> None:
    """The server gets no new micro-batch, and the activations are moved without a retry."""
    core = router(micro_batch_key=micro_batch_key)
    arrive(core, 0, 1)
    sent = send(core, 0, 0)
    handle(core, ServerDraining(0, True), 1)
    assert not core.is_empty(0)
    back(core, 2, sent)
    assert not core.is_empty(0)  # its activations wait there
    decide = ask(core, 3)
    assert [server.valid for server in decide.view.servers] == [False, True]
    (moved,) = handle(core, Decided(decide.decision, Choice(1, 1.0, 1)), 3)
    assert moved.moves == ((0, (1,)),)
    assert not core.is_empty(0)  # they are on their way, and still there
    commands = back(core, 4, moved, correct=(True,))
    assert RequestCompleted(1, (1.0, 1.0), True, 0) in commands
    assert core.is_empty(0)


def test_a_block_on_its_way_counts_although_its_inputs_are_elsewhere() -> None:
    core = router()
    arrive(core, 0, 1)
    decide = ask(core, 0)
    handle(core, Decided(decide.decision, Choice(0, 1.0, 1)), 0)
    assert (core.is_empty(0), core.is_empty(1)) == (False, True)


def test_a_server_that_is_returned_gets_blocks_again_and_wakes_who_waits() -> None:
    core = router(outstanding_micro_batches=1)
    handle(core, ServerDraining(0, True), 0)
    arrive(core, 0, 1, 2)
    send(core, 0, 1, micro_batch_size=1)
    assert handle(core, RouterTimer(), 1) == []  # the other one is busy: no reason to break the operator request
    assert core.next_wake_ns is None
    handle(core, ServerDraining(0, False), 5)
    assert core.next_wake_ns == 5
    assert valid(core, 5) == [True, False]


def test_drain_request_outlives_the_death_of_its_server() -> None:
    core = router()
    handle(core, ServerDraining(0, True), 0)
    handle(core, ServerDown(0, 1, "died"), 1)
    handle(core, ServerUp(0, 2), 2)
    arrive(core, 3, 1)
    assert valid(core, 3) == [False, True]


@pytest.mark.parametrize("is_asleep", [False, True])
def test_drained_server_serves_if_no_other_server_is_up(is_asleep: bool) -> None:
    """Draining never lets requests wait for ever, and applies again once another server is back."""
    core = router(outstanding_micro_batches=2)
    handle(core, ServerDraining(0, True), 0)
    arrive(core, 0, 1, 2, 3, 4)
    send(core, 0, 1, micro_batch_size=1)
    if is_asleep:
        send(core, 0, 1, micro_batch_size=1)
        assert handle(core, RouterTimer(), 1) == []
    handle(core, ServerDown(1, 1, "died"), 2)
    assert core.next_wake_ns == 2
    assert send(core, 2, 0, micro_batch_size=1).micro_batch.requests == (3 if is_asleep else 2,)
    handle(core, ServerUp(1, 2), 4)
    assert valid(core, 4) == [False, True]


def test_a_segment_that_no_other_server_can_hold_is_served_by_the_drained_one() -> None:
    fits = (((True, True), (True, True)), ((True, True), (False, False)))  # server 1 can't hold segment 2
    core = router(fits=fits)
    handle(core, ServerDraining(0, True), 0)
    arrive(core, 0, 1)
    decide = ask(core, 0)
    assert [server.valid for server in decide.view.servers] == [False, True]
    (sent,) = handle(core, Decided(decide.decision, Choice(1, 1.0, 1)), 0)
    back(core, 1, sent)
    assert valid(core, 1) == [True, False]


@pytest.mark.parametrize("is_draining", [True, False])
def test_holds_end_when_servers_change(is_draining: bool) -> None:
    """Whoever waits for company waits for a cluster that is another one now."""
    core = router(max_batching_delay_ns=1000)
    arrive(core, 0, 1)
    decide = ask(core, 0)
    handle(core, Delayed(decide.decision, BatchingDelay(4, 500)), 0)
    assert core.next_wake_ns == 500
    handle(core, ServerDraining(0, is_draining), 10)
    assert core.next_wake_ns == 10


def test_whether_it_is_needed_is_known_before_anybody_waits() -> None:
    fits = (((True, True), (True, True)), ((True, True), (True, False)), ((False, False), (True, True)))
    core = router(servers=3, fits=fits)
    assert core.is_needed(0)
    for server in (0, 2):
        handle(core, ServerDraining(server, True), 0)
    assert [core.is_needed(server) for server in range(3)] == [False, True, False]
    handle(core, ServerDown(1, 1, "died"), 1)
    assert [core.is_needed(0), core.is_needed(2)] == [True, True]
    handle(core, ServerDraining(2, False), 2)
    assert core.is_needed(0)  # the third can't hold segment 1
