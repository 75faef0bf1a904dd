"""The router's core, rule by rule: FIFO, blocks, back-pressure, credit, faults."""

from __future__ import annotations

from typing import Any

import pytest

from policies.interfaces import RouterConfig
from policies.router_core import RouterCore
from policies.vocabulary import (
    ROUTER,
    Choice,
    Decide,
    Decided,
    MicroBatchFinished,
    ReleaseActivations,
    RequestArrived,
    RequestCompleted,
    RequestFailed,
    RequestsCancelled,
    RequestsRejected,
    RequestsReturned,
    Residency,
    RouterTimer,
    SendMicroBatch,
    ServerDown,
    ServerReport,
    ServerUp,
    TransferFailed,
    TransferFinished,
)

W = (0.5, 1.0)


def router(servers: int = 2, segments: int = 2, **changes: Any) -> RouterCore:
    fits = tuple(tuple((True, True) for _ in range(segments)) for _ in range(servers))
    core = RouterCore(
        RouterConfig(**{"segments": segments, "widths": W, "fits": fits, "micro_batch_sizes": (1, 2, 4), **changes})
    )
    for server in range(servers):
        core.handle(ServerUp(server, 1), 0)
    return core


def handle(core: RouterCore, event: Any, now: int) -> list[Any]:
    """`core.handle` with commands that a test may take apart."""
    return list(core.handle(event, now))


def location(core: RouterCore, request: int) -> int:
    """Where its activations are."""
    return core._requests[request].location


def arrive(core: RouterCore, now: int, *requests: int) -> None:
    for request in requests:
        handle(core, RequestArrived(request), now)


def ask(core: RouterCore, now: int) -> Decide:
    (decide,) = handle(core, RouterTimer(), now)
    assert isinstance(decide, Decide)
    return decide


def send(core: RouterCore, now: int, server: int, width: float = 1.0, micro_batch_size: int = 4) -> SendMicroBatch:
    """Ask, answer, and let the transfers end."""
    decide = ask(core, now)
    (command,) = handle(core, Decided(decide.decision, Choice(server, width, micro_batch_size)), now)
    assert isinstance(command, SendMicroBatch)
    for source, requests in command.moves:
        handle(core, TransferFinished(command.micro_batch.micro_batch, source, server, requests), now)
    return command


def back(core: RouterCore, now: int, micro_batch: SendMicroBatch, *requests: int, **told: Any) -> list[Any]:
    b = micro_batch.micro_batch
    members = requests or b.requests
    return handle(core, RequestsReturned(b.server, b.incarnation, members, b.key.segment, b.key.width, **told), now)


def test_a_request_passes_every_segment_and_completes_once() -> None:
    """Widths grow by one a segment; the last return completes it."""
    core = router()
    arrive(core, 0, 7)
    back(core, 10, send(core, 0, 0, 0.5))
    assert core.widths_of(7) == (0.5,)
    assert location(core, 7) == 0
    commands = back(core, 20, send(core, 10, 0, 1.0), correct=(True,))
    assert RequestCompleted(7, (0.5, 1.0), True, 0) in commands
    assert (core.arrived, core.completed, core.failed, core.in_flight) == (1, 1, 0, 0)


def test_the_decision_is_asked_for_once_and_only_when_somebody_waits() -> None:
    """One decision at a time; the timer is wanted at once."""
    core = router()
    assert core.next_wake_ns is None
    arrive(core, 5, 1)
    assert core.next_wake_ns == 5
    ask(core, 5)
    arrive(core, 6, 2)
    assert core.next_wake_ns is None


def test_the_candidate_block_is_frozen_at_the_snapshot() -> None:
    """Who arrives during the decision is not in its micro-batch, however large it may be."""
    core = router()
    arrive(core, 0, 1, 2)
    decide = ask(core, 0)
    assert decide.view.candidates == 2
    arrive(core, 1, 3)
    (sent,) = handle(core, Decided(decide.decision, Choice(0, 1.0, 4)), 2)
    assert sent.micro_batch.requests == (1, 2)
    assert core.fifo_length == 1


def test_members_beyond_the_group_keep_their_place() -> None:
    """The micro-batch takes the oldest; the others are still ahead of later arrivals."""
    core = router()
    arrive(core, 0, 1, 2, 3)
    assert send(core, 0, 0, micro_batch_size=1).micro_batch.requests == (1,)
    arrive(core, 1, 4)
    assert send(core, 1, 1, micro_batch_size=2).micro_batch.requests == (2, 3)


def test_a_block_shares_segment_previous_width_and_location() -> None:
    """micro_batch_key: location. The head's key decides; others wait behind it."""
    core = router(outstanding_micro_batches=9)
    arrive(core, 0, 1, 2, 3)
    one = send(core, 0, 0, 0.5, micro_batch_size=1)
    two = send(core, 0, 1, 0.5, micro_batch_size=1)
    three = send(core, 0, 1, 1.0, micro_batch_size=1)
    for micro_batch in (one, two, three):
        back(core, 1, micro_batch)
    assert send(core, 1, 0).micro_batch.requests == (1,)
    assert send(core, 1, 1).micro_batch.requests == (2,)
    assert send(core, 1, 1).micro_batch.requests == (3,)


def test_a_block_may_mix_locations_when_asked_to() -> None:
    """micro_batch_key: any. The moves are grouped by source."""
    core = router(micro_batch_key="any", outstanding_micro_batches=9)
    arrive(core, 0, 1, 2)
    for micro_batch in [send(core, 0, 0, micro_batch_size=1), send(core, 0, 1, micro_batch_size=1)]:
        back(core, 1, micro_batch)
    micro_batch = send(core, 1, 0)
    assert micro_batch.micro_batch.requests == (1, 2)
    assert micro_batch.moves == ((1, (2,)),)


def test_staying_put_moves_nothing_and_new_requests_move_their_image() -> None:
    """Locality."""
    core = router()
    arrive(core, 0, 1)
    first = send(core, 0, 0)
    assert first.moves == ((ROUTER, (1,)),)
    back(core, 1, first)
    assert send(core, 1, 0).moves == ()


def test_no_server_has_more_blocks_than_its_cap_and_the_router_waits() -> None:
    """Back-pressure: with every server at the cap nothing is asked; a micro-batch's end asks again."""
    core = router(servers=1, outstanding_micro_batches=1)
    arrive(core, 0, 1, 2)
    micro_batch = send(core, 0, 0, micro_batch_size=1)
    assert handle(core, RouterTimer(), 1) == []
    assert core.next_wake_ns is None
    back(core, 2, micro_batch)
    assert core.next_wake_ns == 2


def test_a_server_at_its_cap_is_masked_and_its_books_are_in_the_view() -> None:
    """q_i counts what was sent and has not returned."""
    core = router(outstanding_micro_batches=1)
    arrive(core, 0, 1, 2, 3)
    micro_batch = send(core, 0, 0, 0.5, micro_batch_size=2)
    handle(core, ServerReport(1, 1, 0, 1, 5, 0.5, 99.0, 7), 1)
    view = ask(core, 1).view
    assert [server.valid for server in view.servers] == [False, True]
    assert view.servers[0].outstanding_requests == 2
    assert dict(view.servers[0].outstanding) == {micro_batch.micro_batch.key: 2}
    assert (view.servers[1].power_w, view.servers[1].utilization) == (99.0, 0.5)


def test_a_view_shows_what_was_last_heard_of_instances_and_what_has_been_asked_for_since() -> None:
    """Of the head's segment alone: by returns, then by reports; a new incarnation has nothing."""
    core = router(outstanding_micro_batches=9)
    arrive(core, 0, 1, 2, 3)
    first = send(core, 0, 0, 0.5, micro_batch_size=1)
    second = send(core, 0, 0, 1.0, micro_batch_size=1)
    assert _residency(core, 0) == [(NEITHER, (True, True)), (NEITHER, NEITHER)]
    handle(core, Decided(3, Choice(1, 1.0, 1)), 1)
    back(core, 2, first, residency=Residency(loaded=0b1001, loading=0b10))  # 0.5 and, of segment 2, 1.0; 1.0
    handle(core, ServerReport(1, 1, 2, 3, 0, 0.5, 99.0, 7, Residency(loaded=0b100)), 3)
    assert _residency(core, 3) == [((False, True), NEITHER), ((True, False), NEITHER)]  # before segment 2
    handle(core, Decided(4, Choice(1, 1.0, 1)), 4)
    back(core, 5, second, residency=Residency())
    assert _residency(core, 5) == [(NEITHER, NEITHER), ((True, False), (False, True))]
    handle(core, ServerDown(0, 1, "process_died"), 6)
    handle(core, ServerUp(0, 2), 6)
    handle(core, ServerReport(0, 1, 2, 7, 0, 0.5, 99.0, 7, Residency(loaded=0b1111)), 7)  # of the incarnation before
    assert core._servers[0].residency == Residency()


NEITHER = (False, False)


def _residency(core: RouterCore, now: int) -> list[tuple[tuple[bool, ...], tuple[bool, ...]]]:
    """What a view shows as loaded, and as loading."""
    return [(server.loaded, server.loading) for server in ask(core, now).view.servers]


def test_a_block_ends_with_its_last_member_and_carries_every_ones_times() -> None:
    """A micro-batch may be split over batches; the credit's latencies start at each one's FIFO entry."""
    core = router(segments=1)
    handle(core, RequestArrived(1), 0)
    handle(core, RequestArrived(2), 5)
    micro_batch = send(core, 10, 0)
    assert not any(isinstance(c, MicroBatchFinished) for c in back(core, 20, micro_batch, 2, correct=(False,)))
    (finished,) = [c for c in back(core, 30, micro_batch, 1, correct=(True,)) if isinstance(c, MicroBatchFinished)]
    assert finished.requests == (1, 2)
    assert finished.entered_ns == (0, 5)
    assert finished.ended_ns == (30, 20)
    assert finished.correct == (True, False)


def test_a_rejected_request_is_tried_again_and_given_up_after_the_last_retry() -> None:
    """Its activations at the server are released."""
    core = router(max_retries=1)
    arrive(core, 0, 1)
    micro_batch = send(core, 0, 0)
    handle(core, RequestsRejected(0, 1, (1,), "bad_input"), 1)
    assert core.fifo_length == 1
    micro_batch = send(core, 1, 1)
    commands = handle(core, RequestsRejected(1, 1, micro_batch.micro_batch.requests, "bad_input"), 2)
    assert RequestFailed(1, "bad_input", 2) in commands
    assert ReleaseActivations(1, (1,)) in commands
    assert (core.failed, core.in_flight) == (1, 0)


def test_a_servers_death_restarts_those_whose_activations_it_had() -> None:
    """Those queued there, those in the FIFO with activations there; not those elsewhere."""
    core = router(segments=3, outstanding_micro_batches=9)
    arrive(core, 0, 1, 2, 3)
    first, second, third = (send(core, 0, server, micro_batch_size=1) for server in (0, 0, 1))
    for micro_batch in (first, second, third):
        back(core, 1, micro_batch)
    # request 1 at server 0; 2 waits with activations there; 3 has them at 1
    running = send(core, 2, 0, micro_batch_size=1)
    assert running.micro_batch.requests == (1,)
    commands = handle(core, ServerDown(0, 1, "killed"), 3)
    assert [c.failed for c in commands if isinstance(c, MicroBatchFinished)] == [(True,)]
    assert core.widths_of(1) == core.widths_of(2) == ()
    assert location(core, 1) == location(core, 2) == ROUTER
    assert core.widths_of(3) == (1.0,)
    assert core.fifo_length == 3
    view = ask(core, 3).view
    assert [server.valid for server in view.servers] == [False, True]


def test_stale_returns_change_nothing_and_a_new_incarnation_starts_empty() -> None:
    """Exactly-once: what a dead server sends late is refused."""
    core = router()
    arrive(core, 0, 1)
    micro_batch = send(core, 0, 0)
    handle(core, ServerDown(0, 1, "killed"), 1)
    handle(core, ServerUp(0, 2), 2)
    assert back(core, 3, micro_batch) == []
    assert core.widths_of(1) == ()
    assert ask(core, 3).view.servers[0].outstanding_requests == 0


def test_a_death_during_the_decision_sends_nothing_and_asks_anew() -> None:
    """The answer came too late."""
    core = router()
    arrive(core, 0, 1)
    decide = ask(core, 0)
    handle(core, ServerDown(1, 1, "killed"), 1)
    assert handle(core, Decided(decide.decision, Choice(1, 1.0, 1)), 2) == []
    assert core.next_wake_ns == 2


def test_a_failed_transfer_keeps_what_its_source_holds() -> None:
    """The requests go back to the FIFO with their widths, unless the source is what died."""
    core = router()
    arrive(core, 0, 1)
    back(core, 1, send(core, 0, 0))
    decide = ask(core, 1)
    (sent,) = handle(core, Decided(decide.decision, Choice(1, 1.0, 1)), 1)
    handle(core, TransferFailed(sent.micro_batch.micro_batch, 0, 1, (1,), "lost"), 2)
    assert core.widths_of(1) == (1.0,)
    assert location(core, 1) == 0


def test_expired_requests_are_shed_at_the_head_when_asked_to() -> None:
    """shed_expired gives up those whose deadline has passed; a later one is served."""
    core = router(shed_expired=True)
    handle(core, RequestArrived(1, deadline_ns=10), 0)
    handle(core, RequestArrived(2, deadline_ns=99), 0)
    commands = handle(core, RouterTimer(), 10)
    assert RequestFailed(1, "deadline", 0) in commands
    assert send_after(core, commands).micro_batch.requests == (2,)


def send_after(core: RouterCore, commands: list[Any]) -> SendMicroBatch:
    (decide,) = [c for c in commands if isinstance(c, Decide)]
    (sent,) = handle(core, Decided(decide.decision, Choice(0, 1.0, 4)), 11)
    assert isinstance(sent, SendMicroBatch)
    return sent


def test_a_masked_choice_is_our_own_mistake() -> None:
    """Policies must keep to the mask; the core refuses loudly."""
    fits = (((False, True), (True, True)),)
    core = RouterCore(RouterConfig(segments=2, widths=W, fits=fits))
    handle(core, ServerUp(0, 1), 0)
    arrive(core, 0, 1)
    decide = ask(core, 0)
    with pytest.raises(AssertionError, match="masked width"):
        handle(core, Decided(decide.decision, Choice(0, 0.5, 1)), 0)


def test_expired_requests_are_shed_though_no_server_can_take_them() -> None:
    """With every server down the router wakes at the head's deadline."""
    core = router(servers=1, shed_expired=True)
    handle(core, ServerDown(0, 1, "killed"), 0)
    handle(core, RequestArrived(1, deadline_ns=50), 1)
    assert handle(core, RouterTimer(), 1) == []
    assert core.next_wake_ns == 50
    assert handle(core, RouterTimer(), 50) == [RequestFailed(1, "deadline", 0)]


def test_a_shed_that_leaves_nobody_does_not_keep_the_router_from_asking() -> None:
    """Everyone who waited has expired while a decision was under way; free servers take whoever comes next."""
    core = router(shed_expired=True)
    arrive(core, 0, 1)
    handle(core, RequestArrived(2, 5), 0)
    send(core, 10, 0, micro_batch_size=1)
    assert [type(c).__name__ for c in handle(core, RouterTimer(), 10)] == ["RequestFailed"]
    handle(core, RequestArrived(3, 100), 20)
    assert core.next_wake_ns == 20
    assert isinstance(ask(core, 20), Decide)


def test_a_head_that_no_free_server_can_hold_does_not_block_the_others() -> None:
    """Its turn comes with the server that can; meanwhile the oldest key that is servable is asked about."""
    fits = (((True, True), (True, True)), ((True, True), (False, False)))  # server 1 can't hold segment 2
    core = router(fits=fits, outstanding_micro_batches=1)
    arrive(core, 0, 1, 2)
    back(core, 1, send(core, 0, 0, micro_batch_size=1))  # request 2 is ahead of request 1's second segment
    send(core, 1, 0, micro_batch_size=1)  # server 0 is at its cap with request 2
    arrive(core, 2, 3)
    view = ask(core, 2).view
    assert view.head.segment == 1
    assert [server.valid for server in view.servers] == [False, True]


def test_activations_of_a_former_incarnation_are_lost_though_the_server_is_back() -> None:
    """A transfer from it that fails after its rebirth restarts its requests."""
    core = router()
    arrive(core, 0, 1)
    back(core, 1, send(core, 0, 0))
    decide = ask(core, 1)
    (sent,) = handle(core, Decided(decide.decision, Choice(1, 1.0, 1)), 1)
    handle(core, ServerDown(0, 1, "killed"), 2)
    handle(core, ServerUp(0, 2), 2)
    handle(core, TransferFailed(sent.micro_batch.micro_batch, 0, 1, (1,), "server_down"), 2)
    assert core.widths_of(1) == ()
    assert location(core, 1) == ROUTER


def reject(core: RouterCore, now: int, micro_batch: SendMicroBatch, reason: str = "no_prediction") -> list[Any]:
    b = micro_batch.micro_batch
    return handle(core, RequestsRejected(b.server, b.incarnation, b.requests, reason), now)


def test_what_is_tried_a_third_time_goes_alone() -> None:
    """A request that breaks its micro-batch can't fail the same others each time; before, they stay together."""
    core = router(outstanding_micro_batches=9)
    arrive(core, 0, 1, 2)
    for now in (0, 1):
        together = send(core, now, 0)
        assert together.micro_batch.requests == (1, 2)
        reject(core, now + 1, together)
    arrive(core, 3, 3, 4)
    view = ask(core, 3).view
    assert (view.candidates, view.fifo_length) == (1, 4)
    (first,) = handle(core, Decided(3, Choice(0, 1.0, 4)), 3)
    assert first.micro_batch.requests == (1,)
    assert send(core, 3, 1).micro_batch.requests == (2,)
    assert send(core, 3, 1).micro_batch.requests == (3, 4)
    back(core, 4, first)
    assert send(core, 4, 0).micro_batch.requests == (1,)  # at the next segment, too


def test_a_death_takes_those_that_go_alone_from_the_fifo_as_well() -> None:
    """Their activations were at the dead server; their lines are their own."""
    core = router(outstanding_micro_batches=9, max_retries=9)
    arrive(core, 0, 1, 2)
    micro_batches = [send(core, 0, 0)]
    back(core, 1, micro_batches[0])
    for now in (1, 2):
        reject(core, now + 1, send(core, now, 0))
    assert core.fifo_length == 2
    handle(core, ServerDown(0, 1, "worker_died"), 5)
    assert core.fifo_length == 2
    assert core.widths_of(1) == core.widths_of(2) == ()
    assert [send(core, 6, 1).micro_batch.requests for _ in range(2)] == [(1,), (2,)]


def test_who_is_cancelled_in_the_fifo_is_given_up_at_once() -> None:
    """Those of the candidate micro-batch as well; the decision about it is asked for again, without them."""
    core = router()
    arrive(core, 0, 1, 2, 3)
    decide = ask(core, 0)
    commands = handle(core, RequestsCancelled((2, 9)), 1)
    assert commands == [RequestFailed(2, "cancelled", 0)]
    assert handle(core, Decided(decide.decision, Choice(0, 1.0, 4)), 2) == []
    assert send(core, 2, 0).micro_batch.requests == (1, 3)
    assert (core.failed, core.in_flight, core.fifo_length) == (1, 2, 0)


def test_who_is_cancelled_between_segments_frees_its_activations() -> None:
    core = router()
    arrive(core, 0, 1, 2)
    back(core, 1, send(core, 0, 0))
    commands = handle(core, RequestsCancelled((1, 2)), 2)
    assert commands == [
        command
        for request in (1, 2)
        for command in (RequestFailed(request, "cancelled", 0), ReleaseActivations(0, (request,)))
    ]
    assert core.is_empty(0)
    assert core.next_wake_ns is None


def test_who_is_cancelled_in_a_block_passes_its_segment_and_no_other() -> None:
    """The micro-batch ends, with credit; its other members go on. At the last segment the answer is there, and told."""
    core = router()
    arrive(core, 0, 1, 2)
    micro_batch = send(core, 0, 0)
    assert handle(core, RequestsCancelled((1,)), 1) == []
    failed, released, finished = back(core, 2, micro_batch)
    assert (failed, released) == (RequestFailed(1, "cancelled", 0), ReleaseActivations(0, (1,)))
    assert isinstance(finished, MicroBatchFinished)
    assert finished.requests == (1, 2)
    last = send(core, 2, 0)
    assert last.micro_batch.requests == (2,)
    assert handle(core, RequestsCancelled((2,)), 3) == []
    assert RequestCompleted(2, (1.0, 1.0), False, 0) in back(core, 4, last)
    assert (core.completed, core.failed, core.in_flight) == (1, 1, 0)


def test_who_is_cancelled_is_not_tried_again() -> None:
    core = router()
    arrive(core, 0, 1, 2)
    micro_batch = send(core, 0, 0)
    handle(core, RequestsCancelled((2,)), 1)
    commands = handle(core, ServerDown(0, 1, "worker_died"), 2)
    assert [command for command in commands if isinstance(command, RequestFailed)] == [RequestFailed(2, "cancelled", 1)]
    assert send(core, 3, 1).micro_batch.requests == (1,)
    assert micro_batch.micro_batch.requests == (1, 2)


@pytest.mark.parametrize("again", [False, True], ids=["while it waits", "in another micro-batch"])
def test_a_late_transfer_of_an_earlier_block_moves_nobody(again: bool) -> None:
    """The server died as the request was on its way there, and tells of the transfer's end late."""
    core = router()
    arrive(core, 0, 7)
    back(core, 1, send(core, 0, 0))
    decide = ask(core, 1)
    (sent,) = handle(core, Decided(decide.decision, Choice(1, 1.0, 1)), 2)
    assert sent.moves == ((0, (7,)),)
    handle(core, ServerDown(1, 1, "died"), 3)
    handle(core, ServerUp(1, 2), 3)
    if again:
        assert send(core, 4, 0).moves == ()
    handle(core, TransferFinished(sent.micro_batch.micro_batch, 0, 1, (7,)), 5)
    assert location(core, 7) == 0
    if not again:
        assert send(core, 6, 0).moves == ()
