"""This project's PPO: clusters, policy and learner compiled."""

from __future__ import annotations

import time  # noqa: TID251 - it measures
from collections.abc import Callable
from dataclasses import replace

from policies.ppo.compiled_trainer import CompiledTrainer
from sim.batch.rollout import Rollouts
from tests.bench.sb3.bursty import KNOBS, Snapshot, cluster, plan, policy_spec


def learn(
    seconds: float, seed: int, each: Callable[[Snapshot], None], *, batch: int, minibatch: int, clusters: int
) -> None:
    """Learn for so long on two cores; `each` gets the router at the start and after every update."""
    knobs, spec = replace(KNOBS, batch=batch, minibatch=minibatch), policy_spec()
    begun_s = time.perf_counter()

    def begin(first_episode: int) -> Rollouts:
        return Rollouts(
            cluster(), plan, spec, knobs.hidden, seed, clusters=clusters, threads=2, first_episode=first_episode
        )

    trainer = CompiledTrainer(begin, knobs, seed, spec, threads=2)
    while (now_s := time.perf_counter() - begun_s) < seconds:
        each(Snapshot(now_s, trainer.progress.decisions, trainer.router()))
        trainer.iterate()
    each(Snapshot(time.perf_counter() - begun_s, trainer.progress.decisions, trainer.router()))
