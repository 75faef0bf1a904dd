"""Training: steps environments in lockstep, gives rewards to their decisions, and updates. It knows no simulator.

Environments come through a protocol. All chance is from streams named after the training seed, so the same seed and
environments give the same weights on the same versions and machine.

A checkpoint is written between updates. Resuming from one continues with the very weights, optimizer, counters and
streams; the environments are reset (their decisions that were still waiting for a reward are lost), each with the
seed that its next episode would have had. So a resumed run is a valid one, but not the run that was interrupted,
unless its environments have no state of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from policies.chance import derived_seed, stream
from policies.errors import InputError, WorkError
from policies.observation import masks
from policies.ppo import checkpoint
from policies.ppo.acting import act
from policies.ppo.buffer import TransitionBuffer
from policies.ppo.knobs import PPOKnobs
from policies.ppo.network import PolicyNetwork
from policies.ppo.router import PPORouter, header, policy_weights
from policies.ppo.spec import PolicySpec
from policies.ppo.update import UpdateStats, update
from policies.reward import RewardTerms
from policies.vocabulary import Choice, Decide

CHECKPOINT = "checkpoint.safetensors"
_MAY_CHANGE = {"decisions", "checkpoint_every"}  # knobs that a resumed run may have otherwise
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # Adam's state of one parameter

Log = Callable[[int, Mapping[str, float]], None]


class TrainingEnvironment(Protocol):
    """One cluster to train on. Decision ids are unique within an episode."""

    def reset(self, seed: int) -> None:
        """Begin a new episode."""
        ...

    def advance(self) -> Decide | None:
        """Run to the next decision; None at the episode's end."""
        ...

    def decide(self, choice: Choice) -> None:
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
    path = checkpoint_dir / CHECKPOINT if checkpoint_dir is not None else None
    with _one_thread():
        trainer = Trainer(environments, knobs, seed, spec, deterministic)
        if resume and path is not None and path.is_file():
            trainer.restore(path)
        while trainer.progress.decisions < knobs.decisions:
            scalars = trainer.iterate()
            if scalars is not None and log is not None:
                log(trainer.progress.decisions, scalars)
            if scalars is not None and path is not None and trainer.progress.updates % knobs.checkpoint_every == 0:
                trainer.save(path)
        if path is not None:
            trainer.save(path)
        return trainer.router()


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
class Progress:
    """Counters that a checkpoint keeps."""

    decisions: int = 0
    updates: int = 0
    episodes: int = 0


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


class Trainer:
    """The state of one training run; `train` is its loop."""

    def __init__(
        self,
        environments: Sequence[TrainingEnvironment],
        knobs: PPOKnobs,
        seed: int,
        spec: PolicySpec,
        deterministic: bool = False,
    ) -> None:
        self.environments, self.knobs, self.seed, self.spec = tuple(environments), knobs, seed, spec
        self.deterministic = deterministic
        self.progress = Progress()
        self.network = PolicyNetwork(spec, knobs.hidden, derived_seed(seed, "ppo:weights"))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=knobs.learning_rate, eps=1e-5)
        self._rngs = {name: stream(seed, f"ppo:{name}") for name in ("draws", "minibatches")}
        self._buffer = TransitionBuffer(spec, len(self.environments))
        self._meter = _Meter()
        self._started = False
        self._eyes = spec.observation
        count, (servers, widths, _) = len(self.environments), spec.head_sizes
        self._observation = np.zeros((count, spec.observation.size), np.float32)
        self._server_mask = np.zeros((count, servers), np.bool_)
        self._width_mask = np.zeros((count, servers, widths), np.bool_)

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
        with torch.inference_mode():
            logits, value = (output.numpy() for output in self.network(torch.from_numpy(self._observation)))
        eps = self.knobs.eps(self.progress.decisions)
        uniforms = self._rngs["draws"].random((len(asked), 3))
        acted = act(logits, self.spec.head_sizes, self._server_mask, self._width_mask, eps, uniforms)
        decisions = [question.decision for question in asked]
        seen = (self._observation, self._server_mask, self._width_mask)
        self._buffer.add(decisions, *seen, acted, eps, value)
        for environment, (server, width, group) in zip(self.environments, acted.actions.tolist(), strict=True):
            environment.decide(Choice(server, self.spec.widths[width], self.spec.groups[group]))
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
            **_scalars(stats),
            "eps": self.knobs.eps(self.progress.decisions),
            "episodes": float(self.progress.episodes),
            "decisions/waiting": float(self._buffer.waiting),
            "decisions/forgotten": float(meter.forgotten),
        }

    # ------------------------------------------------------------------------------------------------------ keeping

    def router(self) -> PPORouter:
        """The policy as it is now."""
        return PPORouter(self.spec, self._weights(), deterministic=self.deterministic)

    def save(self, path: Path) -> None:
        """Everything that `restore` needs; the router alone can be read from it, too (`PPORouter.load`)."""
        tensors = {checkpoint.POLICY + name: value for name, value in self._weights().items()}
        for name, parameter in self.network.named_parameters():
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{moment}.{name}"] = value.numpy().copy()
        training = {
            "knobs": asdict(self.knobs),
            "seed": self.seed,
            "progress": asdict(self.progress),
            "streams": {name: rng.bit_generator.state for name, rng in self._rngs.items()},
        }
        checkpoint.write(path, tensors, header(self.spec, self.deterministic) | {"training": json.dumps(training)})

    def restore(self, path: Path) -> None:
        """Continue from what `save` wrote; `InputError` where that was another training run."""
        tensors, metadata = checkpoint.read(path)
        if "training" not in metadata:
            raise InputError(str(path), "", "this is a router alone; training resumes from its own checkpoint")
        training = json.loads(metadata["training"])
        self._require_same(path, metadata["spec"], training)
        weights = {name: torch.from_numpy(value) for name, value in policy_weights(tensors).items()}
        self.network.load_state_dict(weights)
        for name, parameter in self.network.named_parameters():
            found = {moment: tensors.get(f"optimizer.{moment}.{name}") for moment in _MOMENTS}
            state = {moment: torch.from_numpy(value) for moment, value in found.items() if value is not None}
            if state:
                self.optimizer.state[parameter] = state
        self.progress = Progress(**training["progress"])
        for name, state in training["streams"].items():
            self._rngs[name].bit_generator.state = state

    def _require_same(self, path: Path, spec: str, training: Mapping[str, Any]) -> None:
        mine = {name: value for name, value in asdict(self.knobs).items() if name not in _MAY_CHANGE}
        theirs = training["knobs"] | {"hidden": tuple(training["knobs"]["hidden"])}
        differ = [name for name, value in mine.items() if theirs.get(name) != value]
        differ += ["seed"] * (training["seed"] != self.seed)
        differ += ["cluster"] * (PolicySpec.from_json(spec) != self.spec)
        if differ:
            remedy = "resume with the settings it was begun with, or start anew in another folder"
            raise InputError(str(path), "", f"begun with another {', '.join(differ)}; {remedy}")

    def _weights(self) -> checkpoint.Tensors:
        return {name: value.numpy().copy() for name, value in self.network.state_dict().items()}


def _scalars(stats: UpdateStats) -> dict[str, float]:
    names = {
        "policy_loss": "loss/policy",
        "value_loss": "loss/value",
        "entropy_server": "entropy/server",
        "entropy_width": "entropy/width",
        "entropy_group": "entropy/group",
    }
    return {names.get(name, f"update/{name}"): value for name, value in asdict(stats).items()}


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
