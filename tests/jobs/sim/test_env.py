"""The Gymnasium environment of training jobs keeps Gymnasium's rules and ours."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from jobs.policies.choices import Choosing
from jobs.policies.cluster import NodeGroup
from jobs.policies.policy import JobPolicy, policy_of
from jobs.sim.env import JobClusterEnv
from jobs.sim.jobs import NodeOutage
from jobs.sim.world import JobRun, JobSimulation, JobWorld
from jobs.trace import JobTrace
from kit.chance import stream

WORLD = JobWorld((NodeGroup(2, 4),))


def drawn(seed: int) -> JobTrace:
    rng = stream(seed, "jobs")
    return JobTrace.of(np.sort(rng.integers(0, 500, 40)), rng.integers(1, 200, 40), rng.choice([1, 2, 4, 8], 40))


def make_env() -> JobClusterEnv:
    policy = JobPolicy("fifo", "choice", placement="lowest", learned="told")

    def simulate(seed: int, choosing: Choosing) -> JobSimulation:
        return JobSimulation(WORLD, JobRun(drawn(seed), policy, choosing=choosing))

    return JobClusterEnv(simulate)


def test_passes_gymnasiums_own_checker() -> None:
    check_env(make_env(), skip_render_check=True)


def test_the_first_that_may_be_chosen_is_first_fit_and_rewards_are_minus_the_mean_completion_time() -> None:
    env = make_env()
    _, info = env.reset(seed=5)
    total, is_over = 0.0, False
    while not is_over:
        _, reward, is_over, _, info = env.step(np.int64(info["action_mask"].argmax()))
        total += reward
    assert env._simulation is not None
    record = env._simulation.record()
    same = JobSimulation(WORLD, JobRun(env._simulation.spec.jobs, policy_of("fifo-first-fit-lowest"))).run()
    assert record.start_ns.tolist() == same.start_ns.tolist()
    assert total == pytest.approx(-record.jct_s.mean() / 3600)


def test_where_all_that_are_seen_are_masked_the_first_that_fits_is_started() -> None:
    """One of two nodes is down at first: of 128 that want both nobody fits, the one behind them does."""
    these = JobTrace.of([0] * 129, [5] * 129, [8] * 128 + [1])
    world = JobWorld((NodeGroup(2, 4),), outages=(NodeOutage(0, 1000 * 10**9, 1),))
    policy = JobPolicy("fifo", "choice", placement="lowest", learned="told")
    env = JobClusterEnv(lambda _, choosing: JobSimulation(world, JobRun(these, policy, choosing=choosing)))
    _, info = env.reset(seed=0)
    assert not info["action_mask"].any()
    info = env.step(np.int64(128))[4]
    assert (info["replaced"], info["time_s"]) == (True, 1000)
    assert env._simulation is not None
    assert env._simulation.record().start_ns.tolist()[-1] == 0


def test_what_is_masked_is_replaced_and_said_so() -> None:
    env = make_env()
    _, info = env.reset(seed=1)
    masked = int((info["action_mask"] == 0).argmax())
    assert env.step(np.int64(masked))[4]["replaced"]
    with pytest.raises(ValueError, match="allowed are"):
        env.step(np.int64(129))
