"""Registers the simulated cluster with Gymnasium: `gymnasium.make("SlimCluster-v0", scenario="scenarios/...yaml")`.

`gymnasium.make_vec("SlimCluster-v0", num_envs=64, scenario=...)` makes many of them on the compiled engine (with
`vectorization_mode="sync"`, one by one on the reference); they observe and are paid the same, bit for bit.

A cluster of training jobs is `gymnasium.make("JobCluster-v0", scenario="....yaml")`, for a scenario of
`slimsched jobs`: an episode is a window of its trace, a step says whose turn it is (`sim.jobs.env`).

Importing this module registers it (`gymnasium.make("scenarios.gym:SlimCluster-v0", ...)` does both); it opens nothing
heavy until an environment is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium

if TYPE_CHECKING:
    from scenarios.metrics.result import Simulator
    from scenarios.world.world import World
    from sim.cluster import RunSpec
    from sim.compiled.env import SlimClusterVectorEnv
    from sim.env import Run, SlimClusterEnv
    from sim.jobs.env import JobClusterEnv

ID = "SlimCluster-v0"
JOBS_ID = "JobCluster-v0"


def make_env(
    scenario: str | Path, duration_s: float | None = None, engine: Simulator = "simpy", holds_s: Sequence[float] = ()
) -> SlimClusterEnv:
    """An environment for a scenario whose profiles and accuracy are known (a run folder may hold them).

    With `holds_s` an action may be to wait (`SlimClusterEnv`); the scenario's `router.hold_limit_s` must be as long.

    Raises:
        InputError: the scenario needs something measured first; `slimsched run` does that. Or it needs what the
            compiled engine can't do.
    """
    from scenarios.world.materials import load_world

    return world_env(load_world(Path(scenario)), duration_s, engine, holds_s)


def world_env(
    world: World, duration_s: float | None = None, engine: Simulator = "simpy", holds_s: Sequence[float] = ()
) -> SlimClusterEnv:
    """An environment for a world; each episode is one run of `duration_s` (the training horizon by default).

    On either engine observations and rewards are the same, bit for bit.
    """
    from policies.observation import ObservationSpec
    from sim.env import SlimClusterEnv

    def simulate(seed: int) -> Run:
        return world.simulation(_episode(world, duration_s, seed), engine)

    limits_w = tuple(profile.power.cap_w for profile in world.profiles)
    return SlimClusterEnv(simulate, ObservationSpec(limits_w), holds_s)


def make_vector_env(
    scenario: str | Path, num_envs: int = 1, duration_s: float | None = None, holds_s: Sequence[float] = ()
) -> SlimClusterVectorEnv:
    """Environments on the compiled engine, stepped together.

    Raises:
        InputError: the scenario needs something measured first, or something that the compiled engine can't do.
    """
    from scenarios.world.materials import load_world
    from sim.compiled.env import SlimClusterVectorEnv

    world = load_world(Path(scenario))
    return SlimClusterVectorEnv(world.cluster, lambda seed: _episode(world, duration_s, seed), num_envs, holds_s)


def _episode(world: World, duration_s: float | None, seed: int) -> RunSpec:
    from scenarios.world.workloads import Excerpt

    horizon_s = duration_s or world.scenario.training.horizon_s
    return world.run_spec(seed, duration_s=horizon_s, detail=False, end="cut", excerpt=Excerpt())


def make_job_env(
    scenario: str | Path, length: int = 256, warm: int = 0, order: str = "fifo", may_stall: bool = False
) -> JobClusterEnv:
    """An environment for a scenario of training jobs; its policies are not looked at.

    Args:
        length: jobs of an episode.
        warm: earlier jobs that are run before them, and chosen among as well.
        order: of the slots; one that needs no estimate.
        may_stall: whoever is chosen has the cluster wait for it (RLTune's way); else only who fits may be chosen.

    Raises:
        InputError: the scenario is none, or its trace too short.
    """
    from policies.jobs.policy import JobPolicy
    from scenarios.training_jobs.case import read_case, read_scenario
    from scenarios.training_jobs.learning.windows import Windows
    from sim.jobs.env import JobClusterEnv

    case = read_case(read_scenario(Path(scenario)), str(scenario))
    windows = Windows(case.jobs, case.world, warm, len(case.jobs) - length, length, warm)
    policy = JobPolicy(order, "stall" if may_stall else "choice", placement="lowest", learned="gymnasium")
    return JobClusterEnv(
        lambda seed, choosing: windows.simulation(int(windows.drawn(1, seed, "gym")[0]), policy, choosing)
    )


if JOBS_ID not in gymnasium.registry:
    gymnasium.register(JOBS_ID, entry_point="scenarios.gym:make_job_env")
if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point="scenarios.gym:make_env", vector_entry_point="scenarios.gym:make_vector_env")
