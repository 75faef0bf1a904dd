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
    RequestsReturned,
    RouterTimer,
    SendMicroBatch,
    ServerDown,
    ServerUp,
    TransferFailed,
    TransferFinished,
    WorkKey,
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


def test_a_masked_choice_is_our_own_mistake() -> None:
    fits = (((False, True), (True, True)),)
    core = RouterCore(RouterConfig(segments=2, widths=W, fits=fits))
    handle(core, ServerUp(0, 1), 0)
    arrive(core, 0, 1)
    decide = ask(core, 0)
    with pytest.raises(AssertionError, match="masked width"):
        handle(core, Decided(decide.decision, Choice(0, 0.5, 1)), 0)


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
    assert core.widths_before_last(1) == ()
    assert location(core, 1) == ROUTER


def test_request_cancelled_in_the_fifo_fails_at_once() -> None:
    """A request of the candidate micro-batch fails as well, and its decision is asked for again without it."""
    core = router()
    arrive(core, 0, 1, 2, 3)
    decide = ask(core, 0)
    commands = handle(core, RequestsCancelled((2, 9)), 1)
    assert commands == [RequestFailed(2, "cancelled", 0)]
    assert handle(core, Decided(decide.decision, Choice(0, 1.0, 4)), 2) == []
    assert send(core, 2, 0).micro_batch.requests == (1, 3)
    assert (core.failed, core.in_flight, core.fifo_length) == (1, 2, 0)


def test_request_cancelled_between_segments_frees_its_activations() -> None:
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


def test_request_cancelled_in_a_micro_batch_ends_after_its_segment() -> None:
    """The other requests of the micro-batch continue; after the last segment the cancelled one is completed."""
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


def test_cancelled_request_is_not_retried_after_the_server_went_down() -> None:
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


def test_micro_batch_on_a_path_counts_for_all_its_segments_until_it_returns() -> None:
    core = router(segments=3)
    arrive(core, 0, 1)
    decide = ask(core, 0)
    (command,) = handle(core, Decided(decide.decision, Choice(0, 0.5, 1, (1.0, 0.5))), 0)
    number = command.micro_batch.micro_batch
    handle(core, TransferFinished(number, ROUTER, 0, (1,)), 0)
    arrive(core, 1, 2)
    keys = [WorkKey(1, 0.5, 0.0), WorkKey(2, 1.0, 0.5), WorkKey(3, 0.5, 1.0)]
    view = ask(core, 1).view.servers[0]
    assert (view.outstanding, view.outstanding_requests) == (dict.fromkeys(keys, 1), 1)
    assert core.widths_before_last(1) == (0.5, 1.0)
    completed, finished = handle(core, RequestsReturned(0, 1, (1,), 3, 0.5, (True,)), 2)
    assert completed == RequestCompleted(1, (0.5, 1.0, 0.5), True, 0)
    assert finished.widths == ((0.5, 1.0, 0.5),)


def test_request_returned_early_goes_on_from_the_segment_that_it_has_passed() -> None:
    core = router(segments=3)
    arrive(core, 0, 1)
    decide = ask(core, 0)
    (command,) = handle(core, Decided(decide.decision, Choice(0, 0.5, 1, (1.0, 0.5))), 0)
    handle(core, TransferFinished(command.micro_batch.micro_batch, ROUTER, 0, (1,)), 0)
    handle(core, RequestsReturned(0, 1, (1,), 2, 1.0), 1)
    view = ask(core, 1).view
    assert (view.head.segment, view.head.previous_width, view.head.location) == (3, 1.0, 0)
    assert view.servers[0].outstanding == {}
