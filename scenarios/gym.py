"""Registers the simulated cluster with Gymnasium: `gymnasium.make("SlimCluster-v0", scenario="scenarios/...yaml")`."""

from __future__ import annotations

from pathlib import Path

import gymnasium

from policies.observation import ObservationSpec
from scenarios.compose import World
from sim.cluster import Simulation
from sim.env import SlimClusterEnv

ID = "SlimCluster-v0"


def register() -> None:
    """Gymnasium's plugin hook (an entry point of this distribution)."""
    if ID not in gymnasium.registry:
        gymnasium.register(ID, entry_point="scenarios.gym:make_env")


def make_env(scenario: str | Path, duration_s: float | None = None) -> SlimClusterEnv:
    """An environment for a scenario whose servers all have profiles and whose accuracy is known.

    Raises:
        InputError: the scenario needs something measured first; `slimsched run` does that.
    """
    from scenarios.materials import load_world

    return world_env(load_world(Path(scenario)), duration_s)


def world_env(world: World, duration_s: float | None = None) -> SlimClusterEnv:
    """An environment for a world; each episode is one run of `duration_s` (the training horizon by default)."""
    horizon_s = duration_s or world.scenario.training.horizon_s

    def simulate(seed: int) -> Simulation:
        return world.simulation(world.run_spec(seed, duration_s=horizon_s, detail=False, end="cut"))

    return SlimClusterEnv(simulate, ObservationSpec(tuple(profile.power.cap_w for profile in world.profiles)))


register()
