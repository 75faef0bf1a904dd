"""Training on decisions that compiled code made: the rules of `trainer`, for many times as many decisions.

Whoever makes the decisions comes through a protocol. The policy stands still while a batch is collected, and so does
the share of exploration. The same seed gives the same weights, whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Protocol

import numpy as np

from kit.chance import derived_seed
from kit.checkpoint import Tensors
from kit.errors import WorkError
from kit.jit import Singles
from policies.ppo.buffer import Experience
from policies.ppo.compiled_update import CompiledLearner
from policies.ppo.knobs import PPOKnobs
from policies.ppo.layout import Layout
from policies.ppo.network import PolicyNetwork
from policies.ppo.spec import PolicySpec
from policies.ppo.training import TrainingRun, scalars_of
from policies.reward import RewardTerms


class Rollouts(Protocol):
    """Many clusters, each in an episode of its own; episode e has the seed `derived_seed(seed, f"ppo:episode:{e}")`."""

    @property
    def decisions(self) -> int:
        """Made since the beginning."""
        ...

    @property
    def episodes(self) -> int:
        """The number of the next episode."""
        ...

    @property
    def waiting(self) -> int:
        """Decisions whose reward is to come."""
        ...

    @property
    def forgotten(self) -> int:
        """Decisions whose episode ended before their reward came, since the beginning."""
        ...

    def collect(self, weights: Singles, eps: float, decisions: int) -> Experience:
        """Let all clusters together make about so many decisions; those whose reward has come, in a fixed order.

        Args:
            weights: as `Layout` packs them.
            eps: the share of uniform exploration in the server head.
            decisions: how many.
        """
        ...

    def take_terms(self) -> RewardTerms | None:
        """Means of the rewards' terms since the last call; None where there were none."""
        ...


class CompiledTrainer(TrainingRun):
    """Trains a router for `knobs.decisions` decisions, over all clusters together; `run` is its loop.

    Args:
        begin: makes the clusters; it is given the number of their first episode, 0 unless a run is resumed.
        knobs, seed, spec, deterministic: as in `trainer.train`.
        threads: that learn, 1 or 2.
    """

    def __init__(
        self,
        begin: Callable[[int], Rollouts],
        knobs: PPOKnobs,
        seed: int,
        spec: PolicySpec,
        deterministic: bool = False,
        threads: int = 2,
    ) -> None:
        super().__init__(knobs, seed, spec, deterministic, ("minibatches",))
        network = PolicyNetwork(spec, knobs.hidden, derived_seed(seed, "ppo:weights"))  # `trainer` begins with the same
        tensors = {name: value.numpy() for name, value in network.state_dict().items()}
        self.learner = CompiledLearner(Layout.of(spec, knobs.hidden), knobs, tensors, threads)
        self._begin = begin
        self._rollouts: Rollouts | None = None
        self._forgotten = 0

    def iterate(self) -> dict[str, float] | None:
        """Decide until an update is due and make it; None where the decisions ran out before."""
        if self._rollouts is None:
            self._rollouts = self._begin(self.progress.episodes)
        rollouts, parts, complete = self._rollouts, [], 0
        while complete < self.knobs.batch:
            left = self.knobs.decisions - self.progress.decisions
            if left <= 0:
                return None
            parts.append(self._collect(rollouts, min(left, self.knobs.batch - complete)))
            complete += len(parts[-1])
        return self._update(rollouts, _joined(parts))

    def _collect(self, rollouts: Rollouts, decisions: int) -> Experience:
        before = rollouts.decisions
        found = rollouts.collect(self.learner.weights, self.knobs.eps(self.progress.decisions), decisions)
        if rollouts.decisions == before:
            raise WorkError("no cluster made a decision: there is nothing to learn from")
        self.progress.decisions += rollouts.decisions - before
        self.progress.episodes = rollouts.episodes
        return found

    def _update(self, rollouts: Rollouts, experience: Experience) -> dict[str, float]:
        stats = self.learner.update(experience, self._rngs["minibatches"])
        self.progress.updates += 1
        terms, forgotten = rollouts.take_terms(), rollouts.forgotten - self._forgotten
        self._forgotten = rollouts.forgotten
        names = () if terms is None else terms.__struct_fields__
        return {
            "reward/mean": float(experience.reward.mean()),
            **{f"reward/{name}": float(getattr(terms, name)) for name in names},
            **scalars_of(stats),
            "eps": self.knobs.eps(self.progress.decisions),
            "episodes": float(self.progress.episodes),
            "decisions/waiting": float(rollouts.waiting),
            "decisions/forgotten": float(forgotten),
        }

    # ------------------------------------------------------------------------------------------------------ keeping

    def _weights(self) -> Tensors:
        return self.learner.layout.unpack(self.learner.weights)

    def _moments(self) -> Tensors:
        return self.learner.moments()

    def _put(self, weights: Tensors, moments: Tensors) -> None:
        self.learner.put(weights, moments)


def _joined(parts: list[Experience]) -> Experience:
    """All rows, in order."""
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(Experience)]
    return Experience(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
