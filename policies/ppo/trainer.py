"""Training: collects rewarded decisions, updates the policy, and stores a checkpoint. It uses no simulator.

A protocol provides the decisions. The policy is fixed while a batch is collected, and so is the share of exploration.
The same seed gives the same weights, whatever the number of threads that decide.

A checkpoint is written between updates. Resuming from one continues with the very weights, optimizer, counters and
stream; episodes restart (decisions still without a reward are lost), each with the seed of its next episode. So a
resumed run is a valid one, but equals the uninterrupted run only if its clusters have no state.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from kit import checkpoint
from kit.chance import derived_seed, stream
from kit.errors import InputError, WorkError
from kit.jit import Singles
from policies.ppo.experience import Experience, joined
from policies.ppo.knobs import PPOKnobs
from policies.ppo.layout import Layout
from policies.ppo.learner import Learner
from policies.ppo.network import PolicyNetwork
from policies.ppo.router import CHECKPOINT, PPORouter, header, policy_weights
from policies.ppo.spec import PolicySpec
from policies.ppo.steps import moments_of, put_state
from policies.reward import RewardTerms

_MAY_CHANGE = {"decisions", "checkpoint_every"}  # knobs that a resumed run may change
_OPTIMIZER = "optimizer."

Log = Callable[[int, Mapping[str, float]], None]
"""A function called after every update with the decisions so far and the scalars."""


class Rollouts(Protocol):
    """Many clusters, each in a separate episode; episode e has the seed `derived_seed(seed, f"ppo:episode:{e}")`."""

    @property
    def decisions(self) -> int:
        """Number of decisions made since the beginning."""
        ...

    @property
    def episodes(self) -> int:
        """The number of the next episode."""
        ...

    @property
    def waiting(self) -> int:
        """Number of decisions whose reward is to come."""
        ...

    @property
    def forgotten(self) -> int:
        """Number of decisions whose episode ended before their reward came, since the beginning."""
        ...

    def collect(self, weights: Singles, eps: float, decisions: int) -> Experience:
        """Let all clusters together make about `decisions` decisions; returns those with a reward, in a fixed order.

        Args:
            weights: the row that `Layout` packs.
            eps: the share of uniform exploration in the server head.
            decisions: their approximate number.
        """
        ...

    def take_terms(self) -> RewardTerms | None:
        """Return means of the rewards' terms since the last call; None if there were none."""
        ...


@dataclass(slots=True)
class Progress:
    """The counters in a checkpoint."""

    decisions: int = 0
    updates: int = 0
    episodes: int = 0


class TrainingLoop(ABC):
    """Training for `knobs.decisions` decisions, over all clusters together; `run` is its loop.

    Args:
        knobs: Eq. 5 and Eq. 8-13.
        seed: of weights, minibatches and episodes.
    """

    def __init__(self, knobs: PPOKnobs, seed: int) -> None:
        self.knobs, self.seed = knobs, seed
        self.progress = Progress()
        self._minibatches = stream(seed, "ppo:minibatches")

    def run(self, log: Log | None = None, checkpoint_dir: Path | None = None, resume: bool = False) -> None:
        """Run all of it, from the start or from the folder's checkpoint.

        Raises:
            InputError: the checkpoint to resume from is of another training run.
            WorkError: no decision is made, or training diverges.
        """
        path = checkpoint_dir / CHECKPOINT if checkpoint_dir is not None else None
        if resume and path is not None and path.is_file():
            self.restore(path)
        while self.progress.decisions < self.knobs.decisions:
            scalars = self.iterate()
            if scalars is not None and log is not None:
                log(self.progress.decisions, scalars)
            if scalars is not None and path is not None and self.progress.updates % self.knobs.checkpoint_every == 0:
                self.save(path)
        if path is not None:
            self.save(path)

    @abstractmethod
    def iterate(self) -> dict[str, float] | None:
        """Decide until an update is due and make it; returns the log's scalars, or None if the decisions ran out
        before."""

    @abstractmethod
    def header(self) -> dict[str, str]:
        """Return the header of the router's file."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the learner's other state, as plain data."""

    @abstractmethod
    def tensors(self) -> tuple[checkpoint.Tensors, checkpoint.Tensors]:
        """Return the policy's tensors, and the optimizer's."""

    @abstractmethod
    def put(self, weights: checkpoint.Tensors, moments: checkpoint.Tensors, state: Mapping[str, Any]) -> None:
        """Restore the results of `tensors` and `state`."""

    @abstractmethod
    def differences(self, metadata: Mapping[str, str]) -> list[str]:
        """Return the names of the settings that differ in a checkpoint's header."""

    def save(self, path: Path) -> None:
        """Write everything that `restore` needs; the router alone can be read from it, too."""
        weights, moments = self.tensors()
        tensors = {checkpoint.POLICY + name: value for name, value in weights.items()}
        tensors |= {_OPTIMIZER + name: value for name, value in moments.items()}
        training = {
            "knobs": asdict(self.knobs),
            "seed": self.seed,
            "progress": asdict(self.progress),
            "minibatches": self._minibatches.bit_generator.state,
            "state": self.state(),
        }
        checkpoint.write(path, tensors, self.header() | {"training": json.dumps(training)})

    def restore(self, path: Path) -> None:
        """Continue from a file of `save`; `InputError` if it is of another training run."""
        tensors, metadata = checkpoint.read(path)
        if "training" not in metadata:
            raise InputError(str(path), "", "this is a router alone; training resumes from its own checkpoint")
        moments = {name.removeprefix(_OPTIMIZER): each for name, each in tensors.items() if name.startswith(_OPTIMIZER)}
        try:
            training = json.loads(metadata["training"])
            self._require_same(path, metadata, training)
            self.put(policy_weights(tensors), moments, training["state"])
            self.progress = Progress(**training["progress"])
            self._minibatches.bit_generator.state = training["minibatches"]
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"not a checkpoint of this version, or damaged ({error!r:.300}); remove it to begin anew"
            raise InputError(str(path), "", problem) from error

    def _require_same(self, path: Path, metadata: Mapping[str, str], training: Mapping[str, Any]) -> None:
        mine = {name: value for name, value in asdict(self.knobs).items() if name not in _MAY_CHANGE}
        theirs = training["knobs"] | {"hidden": tuple(training["knobs"]["hidden"])}
        differ = [name for name, value in mine.items() if theirs.get(name) != value]
        if training["seed"] != self.seed:
            differ.append("seed")
        differ += self.differences(metadata)
        if differ:
            remedy = "resume with the settings it was begun with, or start anew in another folder"
            raise InputError(str(path), "", f"begun with another {', '.join(differ)}; {remedy}")


class Trainer(TrainingLoop):
    """Training of the paper's policy.

    Args:
        begin: creates the clusters from the number of their first episode, 0 unless a run is resumed.
        knobs, seed: as in `TrainingLoop`.
        spec: the router's shape.
        deterministic: the router's mode.
    """

    def __init__(
        self,
        begin: Callable[[int], Rollouts],
        knobs: PPOKnobs,
        seed: int,
        spec: PolicySpec,
        deterministic: bool = False,
    ) -> None:
        super().__init__(knobs, seed)
        self.spec, self.deterministic = spec, deterministic
        network = PolicyNetwork(spec, knobs.hidden, derived_seed(seed, "ppo:weights"))
        self.learner = Learner(Layout.of(spec, knobs.hidden), knobs, network)
        self._begin = begin
        self._rollouts: Rollouts | None = None
        self._forgotten = 0

    def iterate(self) -> dict[str, float] | None:
        """Decide until an update is due and make it; returns the log's scalars, or None if the decisions ran out
        before."""
        if self._rollouts is None:
            self._rollouts = self._begin(self.progress.episodes)
        rollouts = self._rollouts
        parts = []
        complete = 0
        while complete < self.knobs.batch:
            left = self.knobs.decisions - self.progress.decisions
            if left <= 0:
                return None
            parts.append(self._collect(rollouts, min(left, self.knobs.batch - complete)))
            complete += len(parts[-1])
        return self._update(rollouts, joined(parts))

    def _collect(self, rollouts: Rollouts, decisions: int) -> Experience:
        before = rollouts.decisions
        part = rollouts.collect(self.learner.weights(), self.knobs.eps(self.progress.decisions), decisions)
        if rollouts.decisions == before:
            raise WorkError("no cluster made a decision: there is nothing to learn from")
        self.progress.decisions += rollouts.decisions - before
        self.progress.episodes = rollouts.episodes
        return part

    def _update(self, rollouts: Rollouts, experience: Experience) -> dict[str, float]:
        stats = self.learner.update(experience, self._minibatches)
        self.progress.updates += 1
        terms, forgotten = rollouts.take_terms(), rollouts.forgotten - self._forgotten
        self._forgotten = rollouts.forgotten
        names = () if terms is None else terms.__struct_fields__
        return {
            "reward/mean": float(experience.reward.mean()),
            **{f"reward/{name}": float(getattr(terms, name)) for name in names},
            **stats.scalars,
            "eps": self.knobs.eps(self.progress.decisions),
            "episodes": float(self.progress.episodes),
            "decisions/waiting": float(rollouts.waiting),
            "decisions/forgotten": float(forgotten),
        }

    # ------------------------------------------------------------------------------------------------------ keeping

    def router(self) -> PPORouter:
        """Return the present policy as a router."""
        return PPORouter(self.spec, self.tensors()[0], deterministic=self.deterministic)

    def header(self) -> dict[str, str]:
        """See `TrainingLoop`."""
        return header(self.spec, self.deterministic)

    def state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def tensors(self) -> tuple[checkpoint.Tensors, checkpoint.Tensors]:
        """See `TrainingLoop`."""
        return self.learner.tensors(), moments_of(self.learner.network, self.learner.optimizer)

    def put(self, weights: checkpoint.Tensors, moments: checkpoint.Tensors, state: Mapping[str, Any]) -> None:
        """See `TrainingLoop`."""
        put_state(self.learner.network, self.learner.optimizer, weights, moments)

    def differences(self, metadata: Mapping[str, str]) -> list[str]:
        """See `TrainingLoop`."""
        theirs = PolicySpec.from_json(metadata["spec"])
        differ = ["holds_s"] if theirs.holds_s != self.spec.holds_s else []
        if replace(theirs, holds_s=self.spec.holds_s) != self.spec:
            differ.append("cluster")
        return differ
