"""Decisions a second through the whole of PPO: three unequal servers, 64 clusters, two threads.

python -m benchmarks.speed.training --batch 16384 --minibatch 2048
"""

from __future__ import annotations

import argparse
import time  # noqa: TID251 - it measures

from policies.ppo.spec import PolicySpec
from scenarios.files.scenario_keys import TrainingSection
from scenarios.learn.ppo import Trainer
from sim.compiled.rollout import Rollouts
from sim.simulated_cluster import RunSpec
from tests import tiny


def main() -> None:
    """Train for a while after a first update, which compiles what is not compiled yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--minibatch", type=int, default=2048)
    parser.add_argument("--decisions", type=int, default=2_500_000)
    options = parser.parse_args()
    cluster = tiny.cluster([tiny.profile(f"p{i}", speed=1.0 - 0.2 * i, per_image_s=5e-5) for i in range(3)])
    spec = PolicySpec.of(cluster.router, (250.0,) * 3)
    params = TrainingSection(decisions=options.decisions, batch=options.batch, minibatch=options.minibatch)

    def episode(seed: int) -> RunSpec:
        return tiny.run(cluster, tiny.poisson_s(600, 10, seed), 10, detail=False, end="cut", seed=seed)

    def begin(first: int) -> Rollouts:
        return Rollouts(cluster, episode, spec, params.hidden, 0, threads=2, first_episode=first)

    trainer = Trainer(begin, spec, params, 0)
    trainer.iterate()
    before = trainer.progress["decisions"]
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    while trainer.progress["decisions"] < params.decisions:
        trainer.iterate()
    decisions = trainer.progress["decisions"] - before
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    print(f"{decisions / wall_s:,.0f} decisions a second, {decisions / cpu_s:,.0f} a CPU-second")


if __name__ == "__main__":
    main()
