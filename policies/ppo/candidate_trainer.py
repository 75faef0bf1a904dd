"""Training of `ppo`: clusters run through decisions, the learner updates on all of them, and so on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kit import checkpoint
from kit.errors import WorkError
from policies.ppo.candidate_experience import CandidateExperience
from policies.ppo.candidate_learner import CandidateLearner
from policies.ppo.candidate_router import CandidateSpec
from policies.ppo.steps import moments_of, put_state
from policies.ppo.trainer import TrainingLoop
from policies.rules.candidates import CandidateNetwork
from policies.rules.compass import CompassRule


class CandidateRollouts(Protocol):
    """Many clusters, each in an episode of its own (`sim.compiled.candidate_rollout`)."""

    decisions: int

    @property
    def episodes(self) -> int:
        """The number of the next episode."""
        ...

    def collect(self, network: CandidateNetwork, decisions: int) -> CandidateExperience:
        """Let all clusters together make about so many decisions."""
        ...


class CandidateTrainer(TrainingLoop):
    """Of `ppo`.

    Args:
        begin: makes the clusters for the policy as it is at first; it is given the number of their first episode.
        rule: what the network adds to.
        learner: of its knobs.
        seed: of minibatches and episodes.
    """

    def __init__(
        self,
        begin: Callable[[int, CandidateSpec], CandidateRollouts],
        rule: CompassRule,
        learner: CandidateLearner,
        seed: int,
    ) -> None:
        super().__init__(learner.knobs, seed)
        self.rule, self.learner = rule, learner
        self._begin = begin
        self._rollouts: CandidateRollouts | None = None

    def iterate(self) -> dict[str, float] | None:
        """See `TrainingLoop`; the last batch may be a smaller one."""
        if self._rollouts is None:
            self._rollouts = self._begin(self.progress.episodes, self.spec())
        rollouts, before = self._rollouts, self._rollouts.decisions
        wanted = min(self.knobs.batch, self.knobs.decisions - self.progress.decisions)
        experience = rollouts.collect(self.learner.policy.network(), wanted)
        if rollouts.decisions == before:
            raise WorkError("no cluster made a decision: there is nothing to learn from")
        left = 1.0 - self.progress.decisions / self.knobs.decisions
        self.progress.decisions += rollouts.decisions - before
        self.progress.episodes = rollouts.episodes
        scalars = self.learner.update(experience, self._minibatches, left)
        self.progress.updates += 1
        return {**scalars, "episodes": float(self.progress.episodes)}

    def spec(self) -> CandidateSpec:
        """The router as it is now."""
        return CandidateSpec(self.rule, self.learner.policy.network_tensors())

    def header(self) -> dict[str, str]:
        """See `TrainingLoop`."""
        return self.spec().header

    def state(self) -> dict[str, Any]:
        """Its counter, the running average, and the price of accuracy."""
        return {
            "average": self.learner.average,
            "updates": self.learner.updates,
            "multiplier": self.learner.multiplier.state,
        }

    def tensors(self) -> tuple[checkpoint.Tensors, checkpoint.Tensors]:
        """See `TrainingLoop`."""
        return self.learner.policy.tensors(), moments_of(self.learner.policy, self.learner.optimizer)

    def put(self, weights: checkpoint.Tensors, moments: checkpoint.Tensors, state: Mapping[str, Any]) -> None:
        """See `TrainingLoop`."""
        put_state(self.learner.policy, self.learner.optimizer, weights, moments)
        self.learner.average, self.learner.updates = state["average"], state["updates"]
        self.learner.multiplier.state = tuple(state["multiplier"])

    def differences(self, metadata: Mapping[str, str]) -> list[str]:
        """See `TrainingLoop`."""
        return ["rule"] * (metadata["rule"] != self.header()["rule"])
