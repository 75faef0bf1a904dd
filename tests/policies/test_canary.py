"""Two versions of the weights, as the router's core has them: each request keeps to the servers of one."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from policies.router_core import RouterCore
from policies.vocabulary import (
    CANARY,
    STABLE,
    GoalSet,
    ModelChanged,
    RequestArrived,
    RequestCompleted,
    ServerDown,
    ServerDraining,
    ServerUp,
)
from tests.policies.test_router import ask, back, handle, router, send

FIRST, SECOND = (0.9,) * 4, (0.5,) * 4


def trial() -> RouterCore:
    """The second of two servers is the canary's."""
    core = router(accuracies=FIRST)
    handle(core, GoalSet(0.8), 0)
    handle(core, ModelChanged(FIRST, (1,), SECOND), 0)
    return core


def arrive(core: RouterCore, now: int, *versions: int) -> None:
    """Request i is drawn for version i."""
    for request, version in enumerate(versions):
        handle(core, RequestArrived(request, version=version), now)


def serve(core: RouterCore, now: int, server: int) -> list[RequestCompleted]:
    """The oldest requests pass both segments there."""
    back(core, now, send(core, now, server))
    commands = back(core, now, send(core, now, server))
    return [command for command in commands if isinstance(command, RequestCompleted)]


def valid(core: RouterCore, now: int) -> list[bool]:
    """Of each server, as the next decision sees it; nothing is sent."""
    return [server.valid for server in ask(core, now).view.servers]


def test_requests_of_two_versions_share_no_micro_batch_and_no_server() -> None:
    core = trial()
    arrive(core, 1, STABLE, CANARY, STABLE)
    assert send(core, 1, 0).micro_batch.requests == (0, 2)
    decide = ask(core, 1)
    assert decide.view.head.version == CANARY
    assert [server.valid for server in decide.view.servers] == [False, True]


def test_a_completed_request_names_its_version_and_counts_by_its_table() -> None:
    """A version's view has the goals of all, and its own sums."""
    core = trial()
    arrive(core, 1, CANARY)
    assert [each.version for each in serve(core, 1, 1)] == [CANARY]
    arrive(core, 2, CANARY)
    view = ask(core, 2).view
    assert (view.goal_floor, view.accuracy_sum, view.completed - view.others_completed) == (0.8, 0.5, 1)
    core = trial()
    arrive(core, 1, CANARY)
    serve(core, 1, 1)
    arrive(core, 2, STABLE)
    view = ask(core, 2).view
    assert (view.goal_floor, view.accuracy_sum, view.completed - view.others_completed) == (0.8, 0.0, 0)


@pytest.mark.parametrize("begins", [False, True])
def test_the_stable_version_serves_from_the_start_if_the_canarys_server_dies(begins: bool) -> None:
    """Requests that arrive later, too, until the server is back."""
    core = trial()
    arrive(core, 1, CANARY)
    if begins:
        back(core, 1, send(core, 1, 1))
    handle(core, ServerDown(1, 1, "died"), 2)
    assert [(each.request, each.version) for each in serve(core, 2, 0)] == [(0, STABLE)]
    handle(core, RequestArrived(1, version=CANARY), 3)
    handle(core, ServerUp(1, 2), 4)
    assert valid(core, 4) == [True, False]  # it was drawn for the canary, but the stable version has it now
    core = trial()
    handle(core, ServerDown(1, 1, "died"), 2)
    handle(core, ServerUp(1, 2), 3)
    arrive(core, 4, CANARY)
    assert valid(core, 4) == [False, True]


def test_the_canary_serves_all_if_every_other_server_is_down() -> None:
    core = trial()
    arrive(core, 1, STABLE)
    handle(core, ServerDown(0, 1, "died"), 2)
    assert [each.version for each in serve(core, 2, 1)] == [CANARY]


def test_a_drained_canary_finishes_what_it_has_begun_and_gets_nothing_else() -> None:
    core = trial()
    arrive(core, 1, CANARY)
    sent = send(core, 1, 1)
    handle(core, RequestArrived(1, version=CANARY), 1)
    handle(core, ServerDraining(1, True), 2)
    assert not core.is_needed(1)
    assert send(core, 2, 0).micro_batch.requests == (1,)
    back(core, 3, sent)
    assert not core.is_empty(1)
    assert valid(core, 3) == [False, True]


def test_end_of_the_canary_leaves_one_version_with_the_new_accuracies() -> None:
    core = trial()
    arrive(core, 1, CANARY)
    serve(core, 1, 1)
    handle(core, ModelChanged(SECOND), 2)
    arrive(core, 3, CANARY)
    assert valid(core, 3) == [True, True]
    core = trial()
    arrive(core, 1, CANARY)
    serve(core, 1, 1)
    handle(core, ModelChanged(FIRST, (1,), SECOND), 2)
    arrive(core, 3, CANARY)
    assert ask(core, 3).view.accuracy_sum == 0.0  # another canary has served nothing
    core = trial()
    handle(core, ModelChanged(SECOND), 2)
    arrive(core, 3, STABLE)
    assert [each.version for each in serve(core, 3, 1)] == [STABLE]
    arrive(core, 4, STABLE)
    assert ask(core, 4).view.accuracy_sum == 0.5


def test_a_core_that_resumes_has_the_canary() -> None:
    before, after = trial(), router(accuracies=FIRST)
    arrive(before, 1, CANARY, STABLE)
    after.resume(before.snapshot())
    assert after.handle(RequestArrived(2, version=CANARY), 2) == before.handle(RequestArrived(2, version=CANARY), 2)
    assert ask(after, 2) == ask(before, 2)
    assert [astuple(server) for server in after._servers] == [astuple(server) for server in before._servers]
