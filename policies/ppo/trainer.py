"""Training: steps environments in lockstep, gives rewards to their decisions, and updates. It knows no simulator.

Environments come through a protocol. The same seed and environments give the same weights on the same versions and
machine. `compiled_trainer` is its fast twin: the same rules for decisions that compiled code made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from kit.chance import derived_seed
from kit.checkpoint import Tensors
from kit.errors import WorkError
from policies.observation import masks
from policies.ppo.acting import act
from policies.ppo.buffer import TransitionBuffer
from policies.ppo.knobs import PPOKnobs
from policies.ppo.network import PolicyNetwork
from policies.ppo.router import PPORouter
from policies.ppo.spec import PolicySpec
from policies.ppo.training import CHECKPOINT, MOMENTS, Log, TrainingRun, scalars_of
from policies.ppo.update import update
from policies.reward import RewardTerms
from policies.vocabulary import Choice, ClusterView, Decide, Hold

__all__ = ["CHECKPOINT", "TensorBoardLog", "Trainer", "TrainingEnvironment", "train"]


class TrainingEnvironment(Protocol):
    """One cluster to train on. Decision ids are unique within an episode."""

    def reset(self, seed: int) -> None:
        """Begin a new episode."""
        ...

    def advance(self) -> Decide | None:
        """Run to the next decision; None at the episode's end."""
        ...

    def decide(self, choice: Choice | Hold) -> None:
        """Answer it."""
        ...

    def take_credits(self) -> Sequence[tuple[int, RewardTerms | float]]:
        """(decision, reward) of the blocks that have ended since the last call."""
        ...


def train(
    environments: Sequence[TrainingEnvironment],
    knobs: PPOKnobs,
    seed: int,
    spec: PolicySpec,
    *,
    log: Log | None = None,
    checkpoint_dir: Path | None = None,
    resume: bool = False,
    deterministic: bool = False,
) -> PPORouter:
    """Train a router for `knobs.decisions` decisions, over all environments together.

    Args:
        environments: all of the spec's shape; reset here.
        knobs: Eq. 5 and Eq. 8-13.
        seed: of weights, draws, minibatches and episodes.
        spec: the shape.
        log: called after every update with the decisions so far and the scalars (`TensorBoardLog` is one).
        checkpoint_dir: where `checkpoint.safetensors` is kept up to date; none is written without it.
        resume: continue from that file, where there is one.
        deterministic: the mode that the router is given.

    Raises:
        InputError: the checkpoint to resume from is of another training run.
        WorkError: an episode brings no decision, or training diverges.
    """
    if not environments:
        raise ValueError("training needs at least one environment")
    with _one_thread():
        return Trainer(environments, knobs, seed, spec, deterministic).run(log, checkpoint_dir, resume)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices this small are slower on two threads, many times so when cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(slots=True)
class _Meter:
    """What has been seen since the last update."""

    terms: list[RewardTerms] = field(default_factory=list)
    forgotten: int = 0

    def scalars(self) -> dict[str, float]:
        """Means of the reward's parts, where rewards came in parts."""
        if not self.terms:
            return {}
        names = RewardTerms.__struct_fields__
        return {f"reward/{name}": sum(getattr(t, name) for t in self.terms) / len(self.terms) for name in names}


class Trainer(TrainingRun):
    """The state of one training run; `train` is its loop."""

    def __init__(
        self,
        environments: Sequence[TrainingEnvironment],
        knobs: PPOKnobs,
        seed: int,
        spec: PolicySpec,
        deterministic: bool = False,
    ) -> None:
        super().__init__(knobs, seed, spec, deterministic, ("draws", "minibatches"))
        self.environments = tuple(environments)
        self.network = PolicyNetwork(spec, knobs.hidden, derived_seed(seed, "ppo:weights"))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=knobs.learning_rate, eps=1e-5)
        self._buffer = TransitionBuffer(spec, len(self.environments))
        self._meter = _Meter()
        self._started = False
        self._eyes = spec.observation
        self._waits = spec.waits
        count, (servers, widths, *_) = len(self.environments), spec.head_sizes
        self._observation = np.zeros((count, spec.observation.size), np.float32)
        self._server_mask = np.zeros((count, servers), np.bool_)
        self._width_mask = np.zeros((count, servers, widths), np.bool_)
        self._hold_mask = np.zeros((count, self._waits.choices), np.bool_)

    # ----------------------------------------------------------------------------------------------------- learning

    def iterate(self) -> dict[str, float] | None:
        """Decide until an update is due and make it; None where the decisions ran out before."""
        if not self._started:
            for environment in self.environments:
                self._reset(environment)
            self._started = True
        while self._buffer.complete < self.knobs.batch:
            if self.progress.decisions >= self.knobs.decisions:
                return None
            self.decide_once()
        return self._update()

    def decide_once(self) -> None:
        """One decision in every environment, by one forward pass for all."""
        asked = [self._next_question(index) for index in range(len(self.environments))]
        for index, (observation, question) in enumerate(zip(self._observation, asked, strict=True)):
            observation[:] = self._eyes.observe(question.view)
            self._server_mask[index], self._width_mask[index] = masks(question.view)
            self._hold_mask[index] = self._waits.mask(question.view)
        with torch.inference_mode():
            logits, value = (output.numpy() for output in self.network(torch.from_numpy(self._observation)))
        eps = self.knobs.eps(self.progress.decisions)
        sizes = self.spec.head_sizes
        uniforms = self._rngs["draws"].random((len(asked), len(sizes)))
        acted = act(logits, sizes, self._server_mask, self._width_mask, eps, uniforms, self._hold_mask)
        seen = (self._observation, self._server_mask, self._width_mask)
        answers = [
            self.spec.answer(*each) for each in zip(acted.actions.tolist(), (q.view for q in asked), strict=True)
        ]
        decisions = [(each.decision, images_of(answer, each.view)) for answer, each in zip(answers, asked, strict=True)]
        self._buffer.add(decisions, *seen, acted, eps, value, self._hold_mask)
        for environment, answer in zip(self.environments, answers, strict=True):
            environment.decide(answer)
        self.progress.decisions += len(asked)

    def _next_question(self, index: int) -> Decide:
        """Run one environment to its next decision, into a new episode if need be."""
        environment = self.environments[index]
        for _ in range(2):
            question = environment.advance()
            self._collect(index)
            if question is not None:
                return question
            self._meter.forgotten += self._buffer.forget(index)
            self._reset(environment)
        raise WorkError("an episode ended without a single decision: there is nothing to learn from")

    def _reset(self, environment: TrainingEnvironment) -> None:
        environment.reset(derived_seed(self.seed, f"ppo:episode:{self.progress.episodes}"))
        self.progress.episodes += 1

    def _collect(self, index: int) -> None:
        for decision, reward in self.environments[index].take_credits():
            if isinstance(reward, RewardTerms):
                self._meter.terms.append(reward)
                reward = reward.total
            self._buffer.credit(index, decision, reward)

    def _update(self) -> dict[str, float]:
        experience = self._buffer.take()
        rng = self._rngs["minibatches"]
        stats = update(self.network, self.optimizer, experience, self.spec.head_sizes, self.knobs, rng)
        self.progress.updates += 1
        meter, self._meter = self._meter, _Meter()
        return {
            "reward/mean": float(experience.reward.mean()),
            **meter.scalars(),
            **scalars_of(stats),
            "eps": self.knobs.eps(self.progress.decisions),
            "episodes": float(self.progress.episodes),
            "decisions/waiting": float(self._buffer.waiting),
            "decisions/forgotten": float(meter.forgotten),
        }

    # ------------------------------------------------------------------------------------------------------ keeping

    def _weights(self) -> Tensors:
        return {name: value.numpy().copy() for name, value in self.network.state_dict().items()}

    def _moments(self) -> Tensors:
        return {
            f"{moment}.{name}": value.numpy().copy()
            for name, parameter in self.network.named_parameters()
            for moment, value in self.optimizer.state.get(parameter, {}).items()
        }

    def _put(self, weights: Tensors, moments: Tensors) -> None:
        self.network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
        for name, parameter in self.network.named_parameters():
            found = {moment: moments.get(f"{moment}.{name}") for moment in MOMENTS}
            state = {moment: torch.from_numpy(value) for moment, value in found.items() if value is not None}
            if state:
                self.optimizer.state[parameter] = state


def images_of(answer: Choice | Hold, view: ClusterView) -> int:
    """In the block that an answer makes; a hold is paid what its oldest image's block is."""
    return min(answer.group, view.candidates) if isinstance(answer, Choice) else 1


class TensorBoardLog:
    """A `Log` that writes event files; give it to `train`, and `close` it at the end."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # only who logs pays for the import

        self._writer = SummaryWriter(str(folder))

    def __call__(self, decisions: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars at this count of decisions."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, decisions)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
