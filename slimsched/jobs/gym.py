"""A cluster of training jobs as a Gymnasium environment, for a scenario of `slimsched jobs`.

`gymnasium.make("slimsched.gym:JobCluster-v0", scenario="....yaml")` makes one: an episode is a window of its trace, a
step says whose turn it is (`jobs.sim.env`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import gymnasium

from scenarios.gym import require_undrawn, require_whole

if TYPE_CHECKING:
    from jobs.learning.training import Windows
    from jobs.policies.choices import Choosing
    from jobs.policies.policy import JobPolicy
    from jobs.sim.env import JobClusterEnv
    from jobs.sim.world import JobSimulation

JOBS_ID: Final = "JobCluster-v0"


def make_job_env(
    scenario: str | Path,
    length: int = 256,
    warm: int = 0,
    order: str = "fifo",
    render_mode: str | None = None,
) -> JobClusterEnv:
    """An environment for a scenario of training jobs; its policies are not looked at.

    Args:
        length: jobs of an episode.
        warm: earlier jobs that are run before them, and chosen among as well.
        order: of the slots; one that needs no estimate.

    Raises:
        InputError: the scenario is none, its trace too short, or an argument is none that is allowed.
    """

    from jobs.case import read_case, read_scenario
    from jobs.learning.training import Windows
    from jobs.policies.policy import CHOICE, JobPolicy
    from jobs.sim.env import JobClusterEnv
    from slimsched.jobs.profiles import profile_images_s

    require_undrawn(JOBS_ID, render_mode)
    require_whole(JOBS_ID, "length", length, 1)
    require_whole(JOBS_ID, "warm", warm, 0)
    case = read_case(read_scenario(Path(scenario)), str(scenario), profile_images_s)
    windows = Windows(case.jobs, case.world, warm, len(case.jobs) - length, length, warm)
    policy = JobPolicy(order, CHOICE, placement="lowest", learned="gymnasium")
    return JobClusterEnv(partial(_window, windows, policy))


def _window(windows: Windows, policy: JobPolicy, seed: int, choosing: Choosing) -> JobSimulation:
    return windows.simulation(int(windows.drawn(1, seed, "gym")[0]), policy, choosing)


if JOBS_ID not in gymnasium.registry:
    gymnasium.register(JOBS_ID, entry_point="slimsched.jobs.gym:make_job_env")
