"""A run's logs as real executors keep them: a simulated log taken apart into the router's and those of each
incarnation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.run_records import LoggedStep, WorkerLog
from policies.vocabulary import RejectRequests, RequestsRejected, RequestsReturned, ReturnRequests, ServerDown, ServerUp


@dataclass(frozen=True)
class Logs:
    router: tuple[LoggedStep, ...]
    incarnations: tuple[WorkerLog, ...]


def apart(log: Sequence[LoggedStep]) -> Logs:
    """What each would have written; who is killed writes nothing of it, and all that was heard was heard at once."""
    router = tuple(step for step in log if step.core == "router")
    ended = {(e.server, e.incarnation): e.reason for e in (step.event for step in router) if isinstance(e, ServerDown)}
    heard = [e for e in (step.event for step in router) if isinstance(e, RequestsReturned | RequestsRejected)]
    steps: dict[tuple[int, int], list[LoggedStep]] = {}
    current: dict[str, list[LoggedStep]] = {}
    for step in log:
        if step.core == "router":
            continue
        if isinstance(step.event, ServerUp):
            current[step.core] = steps[step.event.server, step.event.incarnation] = []
        if step.core in current and not isinstance(step.event, ServerDown):
            current[step.core].append(step)
        if isinstance(step.event, ServerDown):
            del current[step.core]
    return Logs(
        router,
        tuple(
            WorkerLog(
                server,
                incarnation,
                tuple(own),
                _heard(own, sum(_is_of(e, server, incarnation) for e in heard)),
                ended_as,
            )
            for (server, incarnation), own in sorted(steps.items())
            for ended_as in [ended.get((server, incarnation), "")]
        ),
    )


def _is_of(event: RequestsReturned | RequestsRejected, server: int, incarnation: int) -> bool:
    return (event.server, event.incarnation) == (server, incarnation)


def _heard(steps: Sequence[LoggedStep], answers: int) -> int:
    """The number of steps until so many answers were given."""
    for number, step in enumerate(steps):
        if answers <= 0:
            return number
        answers -= sum(isinstance(command, ReturnRequests | RejectRequests) for command in step.commands)
    return len(steps)
