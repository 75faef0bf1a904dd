"""Training runs of a world, whether `scenarios.learn.ppo` can train on them, and the score of what was learned.

A router is scored on both engines, on a run that training has not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Final

import numpy as np

from kit.chance import derived_seed, stream
from kit.errors import InputError, WorkError
from policies.interfaces import RoutingPolicy
from policies.ppo.spec import PolicySpec
from policies.records import RunRecord
from scenarios.files.spec import Scenario
from scenarios.metrics.result import Score, Simulator
from scenarios.runs.simulate import run_simulation
from scenarios.world.workloads import TraceSlice
from scenarios.world.world import World
from sim.cluster import RunSpec

_AS_IT_IS: Final = (1.0, 1.0)  # what the floor is to be kept at
SCORED_S = 60.0  # of arrivals after the warm-up, at most


def episode(world: World, seed: int, load_range: tuple[float, float]) -> RunSpec:
    """Return a run to train on, at a rate drawn from a range, in times of the workload's own.

    It is cut at its horizon, so that an episode that blew up costs no more than any other.
    """
    training = world.scenario.training
    scale = float(stream(seed, "load").uniform(*load_range))
    return world.run_spec(
        seed, duration_s=training.horizon_s, scale=scale, detail=False, end="cut", trace_slice=TraceSlice()
    )


def require_trainable(world: World) -> None:
    """Raise `InputError` if the compiled engine can't train for a world, or score what was learned."""
    from sim.compiled import UnsupportedScenario

    try:
        for run in (episode(world, 0, _AS_IT_IS), world.run_spec(0, duration_s=_scored_s(world))):
            world.simulation(run, "compiled")
    except UnsupportedScenario as error:
        problem = f"routers are trained on the compiled engine, which can't do {error.feature}"
        remedy = "shorten training.horizon_s, or train by yourself on the environment SlimCluster-v0"
        raise InputError(world.scenario.name, "", f"{problem}; {remedy}") from None


def require_one_class(scenario: Scenario) -> None:
    """Raise `InputError` if requests have classes: a router learned by gradients does not observe them."""
    if scenario.classes:
        problem = "ppo is trained without classes of requests; take compass, or tuned:compass"
        raise InputError(scenario.name, "classes", problem)


def spec_of(world: World) -> PolicySpec:
    """Return the shape of a router that is learned for a world."""
    limits_w = tuple(profile.power.cap_w for profile in world.profiles)
    return PolicySpec.of(world.cluster.router, limits_w, world.device_names, world.scenario.training.holds_s)


# --------------------------------------------------------------------------------------------------------- its score


def score_router(world: World, make: Callable[[], RoutingPolicy], name: str, seed: int) -> Score:
    """Score a router on both engines.

    Args:
        make: gives a fresh router for each run, because one may remember what it has seen.
        name: of the router; its run draws by it, too.
        seed: of the training.

    Raises:
        WorkError: the engines disagree, so that what was learned may be of another world.
    """
    held_out = derived_seed(seed, f"{name}:held-out")
    engines: tuple[Simulator, ...] = ("simpy", "compiled")
    (result, record), (_, compiled) = (
        run_simulation(world, make(), name, held_out, duration_s=_scored_s(world), engine=engine) for engine in engines
    )
    _require_same(record, compiled)
    rewards = [block.reward.total for block in record.blocks]
    return Score(
        schema="slimsched.score/1",
        router=name,
        seed=held_out,
        decisions=record.decisions,
        reward=float(np.mean(rewards)) if rewards else None,
        shares=result["shares"],
        latency_s=result["latency_s"]["mean"],
        accuracy=result["accuracy"],
        signatures=result["signatures"],
    )


def _scored_s(world: World) -> float:
    return min(world.scenario.duration_s, world.scenario.warmup_s + SCORED_S)


def _require_same(reference: RunRecord, compiled: RunRecord) -> None:
    names = [field.name for field in fields(RunRecord)]
    differ = [name for name in names if getattr(reference, name) != getattr(compiled, name)]
    if differ:
        problem = f"the engines disagree about the trained router's run ({', '.join(differ)}): this is a bug"
        raise WorkError(f"{problem}, please report it")
