"""Registers the simulated cluster with Gymnasium: `gymnasium.make("SlimCluster-v0", scenario="scenarios/...yaml")`.

Importing this module registers it (`gymnasium.make("scenarios.gym:SlimCluster-v0", ...)` does both); it opens nothing
heavy until an environment is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium

if TYPE_CHECKING:
    from scenarios.compose import World
    from sim.cluster import Simulation
    from sim.env import SlimClusterEnv

ID = "SlimCluster-v0"


def make_env(scenario: str | Path, duration_s: float | None = None) -> SlimClusterEnv:
    """An environment for a scenario whose profiles and accuracy are known (a run folder may hold them).

    Raises:
        InputError: the scenario needs something measured first; `slimsched run` does that.
    """
    from scenarios.materials import load_world

    return world_env(load_world(Path(scenario)), duration_s)


def world_env(world: World, duration_s: float | None = None) -> SlimClusterEnv:
    """An environment for a world; each episode is one run of `duration_s` (the training horizon by default)."""
    from policies.observation import ObservationSpec
    from sim.env import SlimClusterEnv

    horizon_s = duration_s or world.scenario.training.horizon_s

    def simulate(seed: int) -> Simulation:
        return world.simulation(world.run_spec(seed, duration_s=horizon_s, detail=False, end="cut"))

    return SlimClusterEnv(simulate, ObservationSpec(tuple(profile.power.cap_w for profile in world.profiles)))


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point="scenarios.gym:make_env")
