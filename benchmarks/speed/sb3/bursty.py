"""What both learn: three unequal servers under bursts, and how well a router does there."""

from __future__ import annotations

import time  # noqa: TID251 - it measures
from dataclasses import dataclass

import numpy as np

from kit import workload
from kit.chance import stream
from policies.interfaces import RoutingPolicy
from policies.observation import ObservationSpec
from policies.ppo import PPOKnobs
from policies.ppo.router import PPORouter
from policies.ppo.spec import PolicySpec
from policies.reward import RewardWeights
from sim.accuracy import BernoulliCorrectness
from sim.cluster import ClusterSpec, RunSpec, Simulation
from sim.env import SlimClusterEnv
from tests import worlds

RATE_IMG_S = 400.0  # at full width a sixth of what the cluster can do in full batches; in a burst half of it
HELD_OUT = (1_000_001, 1_000_002, 1_000_003)
KNOBS = PPOKnobs(decisions=1 << 40)  # it ends by the clock


@dataclass(frozen=True)
class Snapshot:
    """A router as it was after so many seconds of training, and of all its threads' processor time."""

    seconds: float
    cpu_s: float
    decisions: int
    router: PPORouter


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._begun = time.perf_counter(), time.process_time()

    def snapshot(self, decisions: int, router: PPORouter) -> Snapshot:
        """A router, and the time now."""
        seconds, cpu_s = self._begun
        return Snapshot(time.perf_counter() - seconds, time.process_time() - cpu_s, decisions, router)


def cluster() -> ClusterSpec:
    """Three servers of speeds 1, 0.7 and 0.4; a second of latency costs as much as five images' labels."""
    return worlds.cluster(weights=RewardWeights(beta=5.0))


def plan(seed: int, horizon_s: float = 5.0, end: str = "cut") -> RunSpec:
    """Bursts of three times the mean rate, a fifth of the time, half a second each."""
    arrivals = workload.mmpp(RATE_IMG_S, 3.0, 0.2, 0.5, horizon_s, stream(seed, "arrivals"))
    return RunSpec(
        arrivals_ns=arrivals,
        horizon_ns=round(horizon_s * 1e9),
        correctness=BernoulliCorrectness(worlds.prior(), 1),
        end="drain" if end == "drain" else "cut",
        seed=seed,
        detail=False,
    )


def policy_spec() -> PolicySpec:
    """The shape of its routers."""
    spec = cluster()
    return PolicySpec.of(spec.router, tuple(tables.profile.power.cap_w for tables in spec.devices))


def make_env() -> SlimClusterEnv:
    """The single environment, on the SimPy model."""
    spec = cluster()
    limits = ObservationSpec(tuple(tables.profile.power.cap_w for tables in spec.devices))
    return SlimClusterEnv(lambda seed: Simulation(spec, plan(seed)), limits)


def mean_reward(router: RoutingPolicy) -> float:
    """A decision's mean reward over the held-out runs on the SimPy model; all decisions of a run count."""
    rewards: list[float] = []
    spec = cluster()
    for seed in HELD_OUT:
        simulation, rng = Simulation(spec, plan(seed, end="drain")), np.random.default_rng(seed)
        while (asked := simulation.advance()) is not None:
            simulation.decide(router.choose(asked.view, rng))
            rewards += [terms.total for _, terms in simulation.take_credits()]
        rewards += [terms.total for _, terms in simulation.take_credits()]
    return float(np.mean(rewards))
