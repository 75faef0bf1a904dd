"""Replay of a run's log through fresh cores: same events and times, same decisions, or the step where they part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from policies.errors import InputError
from policies.greedy import GreedyKnobs, GreedyScheduler
from policies.interfaces import RouterConfig
from policies.records import LoggedStep
from policies.router import RouterCore


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step at which a fresh core answered otherwise."""

    step: int
    logged: LoggedStep
    replayed: tuple[Any, ...]


def replay(log: Iterable[LoggedStep], router: RouterConfig, servers: Sequence[GreedyKnobs]) -> Divergence | None:
    """Give every logged event to fresh cores; None when every command comes out as logged.

    Raises:
        InputError: the log speaks of a server that the cluster does not have.
    """
    cores: dict[str, RouterCore | GreedyScheduler] = {"router": RouterCore(router)}
    cores |= {f"server:{index}": GreedyScheduler(knobs, index) for index, knobs in enumerate(servers)}
    for number, step in enumerate(log):
        if step.core not in cores:
            problem = f"{step.core} is not one of {', '.join(cores)}; replay with the settings that the run had"
            raise InputError("event log", f"step {number}", problem)
        core: Any = cores[step.core]
        commands = tuple(core.handle(step.event, step.now_ns))
        if commands != step.commands:
            return Divergence(number, step, commands)
    return None
