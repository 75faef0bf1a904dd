"""This project's PPO: clusters, policy and learner compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchmarks.speed.sb3.bursty import KNOBS, Clock, Snapshot, cluster, plan, policy_spec
from policies.ppo.compiled_trainer import CompiledTrainer
from sim.compiled.rollout import Rollouts


def learn(
    seconds: float, seed: int, each: Callable[[Snapshot], None], *, batch: int, minibatch: int, clusters: int
) -> None:
    """Learn for so long on two cores; `each` gets the router at the start and after every update."""
    knobs, spec = replace(KNOBS, batch=batch, minibatch=minibatch), policy_spec()
    clock = Clock()

    def begin(first_episode: int) -> Rollouts:
        return Rollouts(
            cluster(), plan, spec, knobs.hidden, seed, clusters=clusters, threads=2, first_episode=first_episode
        )

    trainer = CompiledTrainer(begin, knobs, seed, spec, threads=2)
    while True:
        seen = clock.snapshot(trainer.progress.decisions, trainer.router())
        each(seen)
        if seen.seconds >= seconds:
            return
        trainer.iterate()
