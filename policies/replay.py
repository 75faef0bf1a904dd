"""Replay of a run's logs through fresh cores: same events and times, same decisions, or the step at which they
differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kit.errors import InputError
from policies.greedy import GreedyKnobs, GreedyScheduler
from policies.interfaces import RouterConfig
from policies.reconcile import Books
from policies.records import AgentLog, LoggedStep
from policies.router import RouterCore


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step at which a fresh core gave another answer."""

    step: int
    logged: LoggedStep
    replayed: tuple[Any, ...]


def replay(log: Iterable[LoggedStep], router: RouterConfig, servers: Sequence[GreedyKnobs]) -> Divergence | None:
    """Give every logged event to fresh cores; returns None if every command is as logged.

    Raises:
        InputError: the log names a server that the cluster does not have.
    """
    cores: dict[str, RouterCore | GreedyScheduler] = {"router": RouterCore(router)}
    cores |= {f"server:{index}": GreedyScheduler(knobs, index) for index, knobs in enumerate(servers)}
    return replay_through(cores, log)


def replay_through(cores: Mapping[str, Any], log: Iterable[LoggedStep]) -> Divergence | None:
    """Replay through these cores, by name, which continue from their state."""
    for number, step in enumerate(log):
        if step.core not in cores:
            problem = f"{step.core} is not one of {', '.join(cores)}; replay with the settings that the run had"
            raise InputError("event log", f"step {number}", problem)
        commands = tuple(cores[step.core].handle(step.event, step.now_ns))
        if commands != step.commands:
            return Divergence(number, step, commands)
    return None


def replay_run(
    log: Sequence[LoggedStep], agent_logs: Sequence[AgentLog], router: RouterConfig, servers: Sequence[GreedyKnobs]
) -> list[str]:
    """Replay each log of a run (see `policies.records.RunRecord`) alone, then compare the logs.

    Returns:
        The problems, one line each: where each log differs from fresh cores, and where the logs disagree on a block.
    """
    books = Books()
    wrong: list[str] = []
    parts = {"router": books.router(log) if agent_logs else books.whole(log)}
    for each in agent_logs:
        parts[f"server:{each.server}, epoch {each.epoch}"] = books.server_epoch(
            each.steps, server=each.server, epoch=each.epoch, heard=each.heard, ended=each.ended
        )
    for name, steps in parts.items():
        divergence = replay(steps, router, servers)
        for _ in steps:  # later steps are bookkeeping
            pass
        if divergence is not None:
            wrong.append(f"{name}, step {divergence.step}: {divergence.logged} is now {list(divergence.replayed)}")
    return [*wrong, *map(str, books.close().violations)]
