"""Routers trained or tuned in simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kit.errors import InputError
from scenarios.files.made_routers import PPO, made_kinds
from scenarios.tasks.asked import (
    Asked,
    Listener,
    announcing_compilation,
    begin_job,
    job_of,
    spread,
    tell_overload,
)

if TYPE_CHECKING:
    from scenarios.learn.tune import Tuned
    from scenarios.learn.tuning import Tuning
    from scenarios.metrics.result import Score, Simulator
    from scenarios.world.world import World


class Made(NamedTuple):
    """A router that was trained: its kind, its file, and what it was scored."""

    kind: str
    path: Path
    score: Score


def train(asked: Asked, decisions: int | None, seed: int | None, engine: Simulator) -> list[Made]:
    """Train the routers that the scenario's own run makes; PPO where it names none.

    Args:
        decisions: how many each is trained for; the scenario's where it is None, as is `seed`.

    Raises:
        InputError: too few decisions, or something is missing.
        UnsupportedScenario: the engine can't do what the scenario asks for.
        FloorError: no setting of a kind keeps the accuracy that is asked for.
    """
    from scenarios.job.router import make_routers
    from scenarios.runs.engines import require_memory

    scenario = asked.scenario
    kinds = made_kinds((*scenario.compare.routers, *scenario.validate_.routers)) or (PPO,)
    if decisions is not None:
        asked = _with_decisions(asked, decisions, kinds)
    if seed is not None:
        asked = replace(asked, scenario=asked.scenario.model_copy(update={"seed": seed}))
    job = job_of(asked)
    with job.folder.opened(asked.path), announcing_compilation(asked.output, (PPO,), engine):
        world = begin_job(job)
        require_memory(world, engine)  # of the runs that score them
        tell_overload(asked.output, world)
        scores = make_routers(job, world, engine, kinds)
    return [Made(kind, job.made(kind), score) for kind, score in scores.items()]


def _with_decisions(asked: Asked, decisions: int, kinds: Sequence[str]) -> Asked:
    """For gradients and for direct search."""
    batch = asked.scenario.training.batch
    if PPO in kinds and decisions < batch:
        raise InputError("--decisions", "", f"{decisions} is less than training.batch ({batch}): not one update")
    return asked.with_section("training", decisions=decisions).with_section("tuning", decisions=decisions)


def tune(wanted: Tuning, world: World, output: Listener, ray: str | None = None) -> tuple[Tuned, dict[str, Any]]:
    """Tune a rule for a world, and write its file; returns what was found and is reported.

    Raises:
        InputError: something wanted is wrong.
        FloorError: no setting keeps the accuracy.
    """
    from scenarios.learn.course import MOST_THREADS
    from scenarios.learn.tuning import tune_router

    tell_overload(output, world)
    with announcing_compilation(output, (), "compiled"), spread(ray, None, lambda: MOST_THREADS) as jobs:
        return tune_router(wanted, world, quiet=output.quiet, say=output.remark, jobs=jobs)
