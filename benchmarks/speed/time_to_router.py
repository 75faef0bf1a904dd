"""From nothing to a router: seconds until it does as well as `sticky` with a fixed tuple of at least its accuracy.

Three unequal servers on 10 GbE under bursts (MMPP, 2.5 times the rate a fifth of the time, half a second each), at 0.8
of the estimated capacity. The router draws its choices, as it was trained to. Every few updates it is scored on runs
that no training saw; the rival is the quickest of the five cheapest tuples that are as accurate as the router, on the
same runs. The clock runs from before numba is imported; scoring counts, too.

    python -m benchmarks.speed.time_to_router --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import time  # noqa: TID251 - it measures

BEGAN = time.monotonic()

import numpy as np  # noqa: E402

from kit import workload  # noqa: E402
from kit.chance import stream  # noqa: E402
from policies.interfaces import RoutingPolicy  # noqa: E402
from policies.names import make_router  # noqa: E402
from policies.ppo.compiled_trainer import CompiledTrainer  # noqa: E402
from policies.ppo.knobs import PPOKnobs  # noqa: E402
from policies.ppo.spec import PolicySpec  # noqa: E402
from policies.reward import RewardWeights  # noqa: E402
from policies.rules.context import RouterContext  # noqa: E402
from policies.rules.costs import tuple_cost_s  # noqa: E402
from scenarios.world.build import estimated_capacity_img_s  # noqa: E402
from sim.cluster import ClusterSpec, RunSpec  # noqa: E402
from sim.compiled.rollout import Rollouts  # noqa: E402
from sim.compiled.simulation import CompiledSimulation  # noqa: E402
from sim.costs import ProfileCosts  # noqa: E402
from tests import worlds  # noqa: E402

LOAD, HELD_OUT, SCORED_S, EVERY = 0.8, (101, 102, 103), 20.0, 10
KNOBS = PPOKnobs(decisions=3_000_000, batch=16_384, minibatch=2048, learning_rate=1e-3, eps_decay=1_500_000)


class Race:
    """The scenario, and what is scored on it."""

    def __init__(self) -> None:
        profiles = [worlds.profile(f"p{speed}", speed=speed) for speed in (1.0, 0.7, 0.4)]
        self.cluster: ClusterSpec = worlds.cluster(profiles, weights=RewardWeights(alpha=1.0, beta=20.0))
        servers = self.cluster.servers
        costs = ProfileCosts(
            self.cluster.devices, [s.knobs.batch_limit for s in servers], [s.attachment for s in servers]
        )
        limits_w = tuple(profile.power.cap_w for profile in profiles)
        self.context = RouterContext(self.cluster.router, costs, self.cluster.prior, limits_w)
        self.spec = PolicySpec.of(self.cluster.router, limits_w)
        self.rate_img_s = LOAD * estimated_capacity_img_s(self.cluster, costs)

    def run_of(self, seed: int, seconds: float, scale: float = 1.0, **changes: object) -> RunSpec:
        """One run of bursts."""
        arrivals_ns = workload.mmpp(self.rate_img_s * scale, 2.5, 0.2, 0.5, seconds, stream(seed, "arrivals"))
        return worlds.run(self.cluster, arrivals_ns / 1e9, seconds, seed=seed, **changes)

    def episode(self, seed: int) -> RunSpec:
        """One to train on, at a rate of its own."""
        return self.run_of(seed, 10.0, float(stream(seed, "load").uniform(0.6, 1.2)), detail=False, end="cut")

    def score(self, router: RoutingPolicy) -> tuple[float, float]:
        """Mean latency in milliseconds, and accuracy, over the held-out runs."""
        latencies, right = [], []
        for seed in HELD_OUT:
            run = self.run_of(seed, SCORED_S, detail=False)
            record = CompiledSimulation(self.cluster, run).run(router, stream(seed, "race"))
            done = [request for request in record.requests if request.status == "completed"]
            latencies += [(request.finished_ns - request.arrived_ns) / 1e6 for request in done]
            right += [request.correct for request in done]
        return float(np.mean(latencies)), float(np.mean(right))

    def rival(self, accuracy: float) -> tuple[str, float, float]:
        """The quickest fixed tuple of at least this accuracy under `sticky`: (name, latency in ms, accuracy)."""
        able = [widths for widths, top1 in self.context.prior.top1.items() if top1 >= accuracy]
        cheapest = sorted(able, key=lambda widths: tuple_cost_s(self.context, widths))[:5]
        names = ["fixed:" + ",".join(map(str, widths)) for widths in cheapest]
        return min(((name, *self.score(make_router(name, self.context))) for name in names), key=lambda each: each[1])


def race(course: Race, seed: int, began_s: float) -> None:
    """Train with one seed, and tell each score until the rival is beaten."""
    trainer = CompiledTrainer(
        lambda first: Rollouts(
            course.cluster, course.episode, course.spec, KNOBS.hidden, seed, threads=2, first_episode=first
        ),
        KNOBS,
        seed,
        course.spec,
    )
    while trainer.progress.decisions < KNOBS.decisions:
        trainer.iterate()
        if trainer.progress.updates % EVERY:
            continue
        latency_ms, accuracy = course.score(trainer.router())
        name, rival_ms, rival_accuracy = course.rival(accuracy)
        print(
            f"seed {seed}: {time.monotonic() - began_s:5.1f} s, {trainer.progress.decisions:8,} decisions: "
            f"{latency_ms:.1f} ms at {100 * accuracy:.2f} %; {name} {rival_ms:.1f} ms at {100 * rival_accuracy:.2f} %",
            flush=True,
        )
        if latency_ms <= rival_ms:
            return


def main() -> None:
    """Race once a seed; the first one's time includes imports and compiling (or loading what was compiled)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    began_s = BEGAN
    for seed in parser.parse_args().seeds:
        race(Race(), seed, began_s)
        began_s = time.monotonic()


if __name__ == "__main__":
    main()
