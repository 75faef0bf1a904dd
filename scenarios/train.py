"""Trains a router in simulation: many simulated clusters with random loads, one learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from policies.chance import stream
from policies.ppo.knobs import PPOKnobs
from policies.ppo.router import PPORouter
from policies.ppo.spec import PolicySpec
from policies.ppo.trainer import TensorBoardLog, train
from policies.reward import RewardTerms
from policies.vocabulary import Choice, Decide
from scenarios.compose import World
from sim.cluster import Simulation


class SimulatedEpisodes:
    """A training environment: each episode is a run at a rate drawn from `training.load_range`.

    The run is cut at its horizon, so that an episode that blew up costs no more than any other.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._simulation: Simulation | None = None

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        training = self._world.scenario.training
        scale = float(stream(seed, "load").uniform(*training.load_range))
        run = self._world.run_spec(seed, duration_s=training.horizon_s, scale=scale, detail=False, end="cut")
        self._simulation = self._world.simulation(run)

    def _current(self) -> Simulation:
        assert self._simulation is not None, "reset comes first"
        return self._simulation

    def advance(self) -> Decide | None:
        """Run to the next decision; None at the episode's end."""
        return self._current().advance()

    def decide(self, choice: Choice) -> None:
        """Answer it."""
        self._current().decide(choice)

    def take_credits(self) -> Sequence[tuple[int, RewardTerms | float]]:
        """Rewards of the blocks that have ended."""
        return self._current().take_credits()


def knobs_of(world: World, decisions: int | None = None) -> PPOKnobs:
    """The scenario's training settings, with another number of decisions if one is given."""
    given = world.scenario.training
    known = {name: getattr(given, name) for name in PPOKnobs.__dataclass_fields__}
    return PPOKnobs(**{**known, **({"decisions": decisions} if decisions is not None else {})})


def train_world(
    world: World,
    folder: Path,
    *,
    seed: int,
    decisions: int | None = None,
    resume: bool = True,
    on_progress: Callable[[int, Mapping[str, float]], None] | None = None,
) -> PPORouter:
    """Train for a world. `folder` gets the checkpoint and a TensorBoard log; `on_progress` gets decisions and scalars.

    Raises:
        InputError: the folder's checkpoint is of another training run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    board = TensorBoardLog(folder)

    def log(done: int, scalars: Mapping[str, float]) -> None:
        board(done, scalars)
        if on_progress is not None:
            on_progress(done, scalars)

    spec = PolicySpec.of(world.cluster.router, tuple(profile.power.cap_w for profile in world.profiles))
    try:
        return train(
            [SimulatedEpisodes(world) for _ in range(world.scenario.training.environments)],
            knobs_of(world, decisions),
            seed,
            spec,
            log=log,
            checkpoint_dir=folder,
            resume=resume,
            deterministic=world.scenario.training.deterministic,
        )
    finally:
        board.close()
