"""Trains a router in simulation: many simulated clusters with random loads, one learner; then scores what it learned.

On the compiled engine clusters, policy and learner are compiled; on the reference the learner is torch's. Either way
the router is scored on the reference, on a run that training has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np

from hw.host.limits import core_count
from kit.chance import derived_seed, stream
from kit.errors import WorkError
from policies.interfaces import RoutingPolicy
from policies.ppo.knobs import PPOKnobs
from policies.ppo.router import PPORouter
from policies.ppo.spec import PolicySpec
from policies.ppo.trainer import TensorBoardLog, train
from policies.records import RunRecord
from policies.reward import RewardTerms
from policies.vocabulary import Choice, Decide, Hold
from scenarios.metrics.result import Score, Simulator
from scenarios.runs.simulate import run_simulation
from scenarios.world.workloads import Excerpt
from scenarios.world.world import World
from sim.cluster import RunSpec, Simulation

Log = Callable[[int, Mapping[str, float]], None]
MOST_THREADS = 2  # the learner takes no more
SCORED_S = 60.0  # of arrivals after the warm-up, at most


def episode(world: World, seed: int) -> RunSpec:
    """A run to train on, at a rate drawn from `training.load_range`.

    It is cut at its horizon, so that an episode that blew up costs no more than any other.
    """
    training = world.scenario.training
    scale = float(stream(seed, "load").uniform(*training.load_range))
    return world.run_spec(seed, duration_s=training.horizon_s, scale=scale, detail=False, end="cut", excerpt=Excerpt())


class SimulatedEpisodes:
    """A training environment of the reference."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._simulation: Simulation | None = None

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        self._simulation = Simulation(self._world.cluster, episode(self._world, seed))

    def _current(self) -> Simulation:
        assert self._simulation is not None, "reset comes first"
        return self._simulation

    def advance(self) -> Decide | None:
        """Run to the next decision; None at the episode's end."""
        return self._current().advance()

    def decide(self, choice: Choice | Hold) -> None:
        """Answer it."""
        self._current().decide(choice)

    def take_credits(self) -> Sequence[tuple[int, RewardTerms | float]]:
        """Rewards of the blocks that have ended."""
        return self._current().take_credits()


def ppo_knobs_of(world: World, decisions: int | None = None) -> PPOKnobs:
    """The scenario's training settings, with another number of decisions if one is given."""
    given = world.scenario.training
    known = {name: getattr(given, name) for name in PPOKnobs.__dataclass_fields__}
    return PPOKnobs(**{**known, **({"decisions": decisions} if decisions is not None else {})})


def require_compiled(world: World) -> None:
    """Raises `UnsupportedScenario` where the compiled engine can't train for a world, or score what was learned."""
    for run in (episode(world, 0), world.run_spec(0, duration_s=_scored_s(world))):
        world.simulation(run, "compiled")


def train_world(
    world: World,
    folder: Path,
    *,
    seed: int,
    decisions: int | None = None,
    resume: bool = True,
    engine: Simulator = "simpy",
    on_progress: Callable[[int, Mapping[str, float]], None] | None = None,
) -> PPORouter:
    """Train for a world. `folder` gets the checkpoint and a TensorBoard log; `on_progress` gets decisions and scalars.

    Raises:
        InputError: the folder's checkpoint is of another training run.
        UnsupportedScenario: the compiled engine can't do what the scenario asks for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    board = TensorBoardLog(folder)

    def log(done: int, scalars: Mapping[str, float]) -> None:
        board(done, scalars)
        if on_progress is not None:
            on_progress(done, scalars)

    learn = _train_compiled if engine == "compiled" else _train_in_torch
    try:
        return learn(world, ppo_knobs_of(world, decisions), seed, folder, log, resume)
    finally:
        board.close()


def spec_of(world: World) -> PolicySpec:
    """The shape of a router that is learned for a world."""
    limits_w = tuple(profile.power.cap_w for profile in world.profiles)
    return PolicySpec.of(world.cluster.router, limits_w, world.device_names, world.scenario.training.holds_s)


def _train_in_torch(world: World, knobs: PPOKnobs, seed: int, folder: Path, log: Log, resume: bool) -> PPORouter:
    return train(
        [SimulatedEpisodes(world) for _ in range(world.scenario.training.environments)],
        knobs,
        seed,
        spec_of(world),
        log=log,
        checkpoint_dir=folder,
        resume=resume,
        deterministic=world.scenario.training.deterministic,
    )


def _train_compiled(world: World, knobs: PPOKnobs, seed: int, folder: Path, log: Log, resume: bool) -> PPORouter:
    from policies.ppo.compiled_trainer import CompiledTrainer  # they need numba
    from sim.compiled.rollout import Rollouts

    spec, threads = spec_of(world), min(core_count(), MOST_THREADS)

    def begin(first_episode: int) -> Rollouts:
        return Rollouts(
            world.cluster,
            partial(episode, world),
            spec,
            knobs.hidden,
            seed,
            clusters=world.scenario.training.environments,
            threads=threads,
            first_episode=first_episode,
        )

    trainer = CompiledTrainer(begin, knobs, seed, spec, world.scenario.training.deterministic, threads)
    return trainer.run(log, folder, resume)


# --------------------------------------------------------------------------------------------------------- its score


def score_router(world: World, make: Callable[[], RoutingPolicy], name: str, seed: int, trained_on: Simulator) -> Score:
    """Score a router on the reference, and on the compiled engine too where it was trained there.

    Args:
        make: gives a fresh router for each run, for one may remember what it has seen.
        name: of the router; its run draws by it, too.
        seed: of the training.

    Raises:
        WorkError: the engines disagree, so that what was learned may be of another world.
    """
    held_out = derived_seed(seed, f"{name}:held-out")
    engines: list[Simulator] = ["simpy", "compiled"] if trained_on == "compiled" else ["simpy"]
    made = [
        run_simulation(world, make(), name, held_out, duration_s=_scored_s(world), engine=engine) for engine in engines
    ]
    (result, record), *others = made
    for _, other in others:
        _require_same(record, other)
    rewards = [block.reward.total for block in record.blocks]
    return Score(
        schema="slimsched.score/1",
        router=name,
        trained_on=trained_on,
        engines=engines,
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
        raise WorkError(f"{problem}, please report it; --engine simpy trains on the reference")
