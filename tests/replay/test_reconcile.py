"""The logs of a run must agree on every micro-batch; each way in which they can't is told, with its log and step."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from policies.faults import WORKER_DIED, Crash, Fault, Hang, Outage
from policies.replay import Account, Books, Fate, replay_run
from policies.run_records import LoggedStep, RunRecord, WorkerLog
from policies.vocabulary import (
    NS_PER_S,
    MicroBatchArrived,
    RequestsReturned,
    ReturnRequests,
    SendMicroBatch,
    ServerDown,
    TimerFired,
    TransferFailed,
)
from tests import tiny
from tests.laws.test_conservation import RULES, Watched, fault_plans
from tests.replay.logs import Logs, apart

MS = 1_000_000
SPEC = replace(tiny.cluster(), supervision=RULES)
PARAMS = [server.params for server in SPEC.servers]


def _simulated(faults: tuple[Fault, ...] = (), *, seed: int = 0, end: str = "drain", rate: float = 150) -> RunRecord:
    plan = tiny.run(
        SPEC, tiny.poisson_s(rate, 0.3, seed), 0.3, faults=faults, seed=seed, keep_log=True, end=end,
        drain_limit_ns=120 * NS_PER_S,
    )  # fmt: skip
    return Watched(SPEC, plan).run(tiny.Uniform(), np.random.default_rng(seed))


def _logs(faults: tuple[Fault, ...] = (), *, seed: int = 0, end: str = "drain") -> Logs:
    return apart(_simulated(faults, seed=seed, end=end).log)


def _account(logs: Logs) -> Account:
    books = Books()
    for _ in books.router(logs.router):
        pass
    for each in logs.incarnations:
        about = {"server": each.server, "incarnation": each.incarnation, "heard": each.heard}
        for _ in books.server_incarnation(each.steps, **about, ended=each.ended):
            pass
    return books.close()


WELL = _logs()
DEADLY = _logs((Crash(0, 100 * MS), Outage(1, 150 * MS, 200 * MS), Hang(2, 60 * MS)))


# -------------------------------------------------------------------------------------------------------- what is well


def test_logs_of_a_run_without_faults_agree_and_replay() -> None:
    assert replay_run(WELL.router, WELL.incarnations, SPEC.router, PARAMS) == []
    micro_batches = _account(WELL).micro_batches
    assert sum(micro_batches.values()) == micro_batches[Fate.RETURNED] > 20


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(fault_plans(3), st.integers(0, 20), st.sampled_from(["drain", "cut"]))
def test_logs_of_a_run_with_any_faults_agree(faults: tuple[Fault, ...], seed: int, end: str) -> None:
    """A killed incarnation's log may lack all that the router had not received."""
    logs = _logs(faults, seed=seed, end=end)
    sent = sum(isinstance(command, SendMicroBatch) for step in logs.router for command in step.commands)
    cut = [replace(each, steps=each.steps[: each.heard]) if each.ended else each for each in logs.incarnations]
    for each in (logs, replace(logs, incarnations=tuple(cut))):
        account = _account(each)
        assert account.violations == ()
        assert sum(account.micro_batches.values()) == sent


def test_blocks_are_lost_with_a_life_or_under_way_at_a_cut() -> None:
    micro_batches = _account(DEADLY).micro_batches
    assert micro_batches[Fate.LOST] > 0
    assert not micro_batches[Fate.UNDER_WAY]
    cut = _account(_logs(end="cut"))
    assert cut.micro_batches[Fate.UNDER_WAY] > 0
    assert cut.violations == ()


def test_messages_sent_after_a_cut_need_not_be_received() -> None:
    """Only the last messages of an incarnation may be missing at the router; an earlier one may not."""
    logs = _logs(end="cut")
    at = max(n for n, step in enumerate(logs.router) if isinstance(step.event, RequestsReturned))
    event = logs.router[at].event
    assert isinstance(event, RequestsReturned)
    incarnations = tuple(replace(each, heard=len(each.steps)) for each in logs.incarnations)
    assert _account(Logs((*logs.router[:at], *logs.router[at + 1 :]), incarnations)).violations == ()
    first = _first(logs.router, RequestsReturned)
    found = _account(Logs((*logs.router[:first], *logs.router[first + 1 :]), incarnations)).violations
    assert any("the router did not receive it" in str(each) for each in found)


def test_messages_received_from_a_killed_incarnation_must_be_in_the_routers_log() -> None:
    """The last answers, of a step that the router had received, are missing in its log."""
    which, incarnation = next((n, each) for n, each in enumerate(DEADLY.incarnations) if each.ended and each.heard > 10)
    place = (incarnation.server, incarnation.incarnation)
    answers = [
        number
        for number, step in enumerate(DEADLY.router)
        if isinstance(step.event, RequestsReturned) and (step.event.server, step.event.incarnation) == place
    ]
    router = (*DEADLY.router[: answers[-1]], *DEADLY.router[answers[-1] + 1 :])
    for heard, is_told in ((incarnation.heard - 1, False), (incarnation.heard + 1, True)):
        incarnations = (
            *DEADLY.incarnations[:which],
            replace(incarnation, heard=heard),
            *DEADLY.incarnations[which + 1 :],
        )
        found = [str(each) for each in _account(Logs(router, incarnations)).violations]
        assert (
            any(f"{incarnation.server}, incarnation 1, step {incarnation.heard - 1}: request" in each for each in found)
            == is_told
        )


def test_stale_words_change_nothing() -> None:
    """What a dead incarnation said too late, and a failed transfer of a micro-batch that has ended."""
    down = next(n for n, step in enumerate(DEADLY.router) if isinstance(step.event, ServerDown))
    event = DEADLY.router[down].event
    assert isinstance(event, ServerDown)
    which, incarnation = next(
        (n, each) for n, each in enumerate(DEADLY.incarnations) if (each.server, each.incarnation) == (event.server, 1)
    )
    lost = next(
        command.micro_batch
        for step in reversed(DEADLY.router[:down])
        for command in step.commands
        if isinstance(command, SendMicroBatch) and command.micro_batch.server == event.server
    )
    said = LoggedStep(
        9, f"server:{event.server}", TimerFired(), (ReturnRequests(1, lost.requests, lost.key.segment, 0.5),)
    )
    heard = RequestsReturned(event.server, 1, lost.requests, lost.key.segment, 0.5)
    late = [
        replace(DEADLY.router[down], event=word, commands=())
        for word in (heard, TransferFailed(lost.micro_batch, 0, event.server, lost.requests, "server_down"))
    ]
    arrived = LoggedStep(8, said.core, MicroBatchArrived(lost), ())
    steps = (
        incarnation.steps
        if any(step.event == arrived.event for step in incarnation.steps)
        else (*incarnation.steps, arrived)
    )
    incarnations = (
        *DEADLY.incarnations[:which],
        replace(incarnation, steps=(*steps, said)),
        *DEADLY.incarnations[which + 1 :],
    )
    sent_again = next(
        number
        for number, step in enumerate(DEADLY.router)
        for command in step.commands
        if number > down
        and isinstance(command, SendMicroBatch)
        and set(command.micro_batch.requests) & set(lost.requests)
    )
    router = (*DEADLY.router[: sent_again + 1], *late, *DEADLY.router[sent_again + 1 :])
    account = _account(Logs(router, incarnations))
    assert account.violations == ()
    assert account.micro_batches == _account(DEADLY).micro_batches
    cut = DEADLY.router[: sent_again + 1]  # nothing of what it sent has been answered
    again = next(sent.micro_batch.requests for sent in cut[-1].commands if isinstance(sent, SendMicroBatch))
    stale = replace(cut[-1], event=RequestsReturned(event.server, 1, again, lost.key.segment, 0.5), commands=())
    assert _account(Logs((*cut, stale), incarnations)).micro_batches == _account(Logs(cut, incarnations)).micro_batches


def test_simulated_words_may_overtake_each_other() -> None:
    """Of two that were said, the second is heard and the first is not when the run is cut."""
    log = _simulated(end="cut", rate=2000).log
    words = [(number, word) for number, step in enumerate(log) for word in (step.event, *step.commands)]
    sent_at = {
        request: n for n, word in words if isinstance(word, SendMicroBatch) for request in word.micro_batch.requests
    }
    returns = [(n, word) for n, word in words if isinstance(word, RequestsReturned) and word.segment < 4]
    at = next(  # of requests that wait in the FIFO to the end
        number
        for number, word in returns
        if all(sent_at[request] < number for request in word.requests)
        and any(later > number and other.server == word.server for later, other in returns)
    )
    books = Books()
    for _ in books.whole((*log[:at], *log[at + 1 :])):
        pass
    assert books.close().violations == ()


# -------------------------------------------------------------------------------------------------------- what is wrong


def _first(steps: tuple[LoggedStep, ...], kind: type) -> int:
    """The first step from the tenth on whose event or command is of a kind."""
    found = [n for n, step in enumerate(steps) if any(type(word) is kind for word in (step.event, *step.commands))]
    return next(number for number in found if number >= 10)


def _with_router(logs: Logs, at: int, *steps: LoggedStep) -> Logs:
    return replace(logs, router=(*logs.router[:at], *steps, *logs.router[at + 1 :]))


def _with_incarnation(logs: Logs, **changes: Any) -> Logs:
    return replace(logs, incarnations=(replace(logs.incarnations[0], **changes), *logs.incarnations[1:]))


def _without_steps_of(kind: type) -> Callable[[Logs], Logs]:
    def broken(logs: Logs) -> Logs:
        steps = logs.incarnations[0].steps
        at = _first(steps, kind)
        return _with_incarnation(logs, steps=(*steps[:at], *steps[at + 1 :]), heard=logs.incarnations[0].heard - 1)

    return broken


def _unheard(logs: Logs) -> Logs:
    return _with_router(logs, _first(logs.router, RequestsReturned))


def _heard_twice(logs: Logs) -> Logs:
    at = _first(logs.router, RequestsReturned)
    return _with_router(logs, at, logs.router[at], logs.router[at])


def _heard_otherwise(**changes: Any) -> Callable[[Logs], Logs]:
    def broken(logs: Logs) -> Logs:
        at = _first(logs.router, RequestsReturned)
        step = logs.router[at]
        return _with_router(logs, at, replace(step, event=structs.replace(step.event, **changes)))

    return broken


def _heard_from_elsewhere(logs: Logs) -> Logs:
    event = logs.router[_first(logs.router, RequestsReturned)].event
    assert isinstance(event, RequestsReturned)
    return _heard_otherwise(server=(event.server + 1) % 3)(logs)


def _never_sent(logs: Logs) -> Logs:
    at = _first(logs.router, SendMicroBatch)
    return _with_router(logs, at, replace(logs.router[at], commands=()))


def _arrived_twice(logs: Logs) -> Logs:
    steps = logs.incarnations[0].steps
    at = _first(steps, MicroBatchArrived)
    return _with_incarnation(logs, steps=(*steps[: at + 1], replace(steps[at], commands=()), *steps[at + 1 :]))


def _said_too_late(logs: Logs) -> Logs:
    """After all that was heard of, by an incarnation that lives on, in a run that ends with no request in flight."""
    last = WorkerLog(0, 1, (LoggedStep(9, "server:0", TimerFired(), (ReturnRequests(1, (0,), 1, 0.5),)),), 0)
    return _with_incarnation(logs, steps=(*logs.incarnations[0].steps, *last.steps))


def _other_segment(logs: Logs) -> Logs:
    steps = logs.incarnations[0].steps
    at = _first(steps, ReturnRequests)
    command = steps[at].commands[0]
    assert isinstance(command, ReturnRequests)
    other = structs.replace(command, segment=command.segment % 4 + 1)
    changed = replace(steps[at], commands=(other, *steps[at].commands[1:]))
    return _with_incarnation(logs, steps=(*steps[:at], changed, *steps[at + 1 :]))


def _failed_unsent(logs: Logs) -> Logs:
    at = _first(logs.router, SendMicroBatch)
    failed = replace(logs.router[at], event=TransferFailed(10**6, 0, 1, (0,), "no_room"), commands=())
    return _with_router(logs, at, logs.router[at], failed)


def _without_incarnation(logs: Logs) -> Logs:
    return replace(logs, incarnations=logs.incarnations[1:])


def _with_another_incarnation(logs: Logs) -> Logs:
    return replace(logs, incarnations=(*logs.incarnations, WorkerLog(0, 7, (), 0)))


def _with_an_incarnation_twice(logs: Logs) -> Logs:
    return replace(logs, incarnations=(logs.incarnations[0], *logs.incarnations))


def _with_steps_of_another(logs: Logs) -> Logs:
    return _with_incarnation(logs, steps=(*logs.incarnations[0].steps, logs.incarnations[1].steps[0]))


def _with_servers_in_the_routers(logs: Logs) -> Logs:
    return replace(logs, router=(*logs.router, logs.incarnations[1].steps[0]))


@pytest.mark.parametrize(
    "broken, told",
    [
        (_without_steps_of(ReturnRequests), r"router, step \d+: request.* of micro-batch.* returned .* in whose"),
        (
            lambda logs: _with_incarnation(logs, steps=logs.incarnations[0].steps[:40]),
            "ends after 40 steps, and the router had",
        ),
        (lambda logs: _with_incarnation(logs, steps=()), "ends after 0 steps, and the router had received"),
        (_unheard, r"server:\d, incarnation 1, step \d+: request.* of micro-batch.* the router did not receive it"),
        (_heard_twice, r"router, step \d+: request.* in whose log that is not"),
        (_heard_otherwise(width=0.3), r"router, step \d+: request.* at width 0.3 by server:\d, incarnation 1, in"),
        (_heard_otherwise(segment=9), r"router, step \d+: request.* returned from segment 9 .* in whose log that"),
        (_heard_from_elsewhere, r"router, step \d+: request.* in whose log that is not"),
        (_heard_otherwise(requests=(10**6,)), r"router, step \d+: request 1000000 returned .* in whose log that"),
        (_never_sent, r"server:\d, incarnation 1, step \d+: micro-batch \d+ arrived, which the router never sent"),
        (_arrived_twice, r"server:0, incarnation 1, step \d+: micro-batch \d+ arrived twice"),
        (_said_too_late, r"server:0, incarnation 1, step \d+: request 0 returned .* the router did not receive it"),
        (_other_segment, r"router, step \d+: request.* by server:0, incarnation 1, in whose log that is not"),
        (_failed_unsent, r"router, step \d+: a transfer failed of micro-batch 1000000, which was never"),
        (_without_incarnation, "server:0, incarnation 1: it has no log, and by the router's log it served"),
        (_with_another_incarnation, "server:0, incarnation 7: it has a log, and the router's log does not mention it"),
        (_with_an_incarnation_twice, "server:0, incarnation 1: there are two of it"),
        (_with_steps_of_another, r"server:0, incarnation 1, step \d+: is of server:1"),
        (_with_servers_in_the_routers, r"router, step \d+: is of server:1, whose incarnations have separate logs"),
        (lambda logs: _with_incarnation(logs, ended=WORKER_DIED), "by its note: worker_died; by the router's log"),
    ],
)  # fmt: skip
def test_logs_that_disagree_are_reported_with_the_log_and_the_step(broken: Callable[[Logs], Logs], told: str) -> None:
    found = [str(each) for each in _account(broken(WELL)).violations]
    assert any(re.search(told, each) for each in found), found[:5]


def test_a_death_that_the_router_does_not_know_is_told() -> None:
    ended = [each.ended for each in DEADLY.incarnations]
    assert "" in ended[:-1]
    first = next(number for number, each in enumerate(ended) if each)
    incarnations = [
        *DEADLY.incarnations[:first],
        replace(DEADLY.incarnations[first], ended=""),
        *DEADLY.incarnations[first + 1 :],
    ]
    (found,) = _account(replace(DEADLY, incarnations=tuple(incarnations))).violations
    assert re.search("by its note: with the run; by the router's log: (planned|worker_)", str(found))


def test_a_replayed_run_tells_both() -> None:
    """Where a core answers otherwise, and what that does to the books."""
    broken = _never_sent(WELL)
    found = replay_run(broken.router, broken.incarnations, SPEC.router, PARAMS)
    assert found[0].startswith(f"router, step {_first(WELL.router, SendMicroBatch)}: LoggedStep(")
    assert len(found) > 1
