"""What every training run has: counters, a log, and a checkpoint that it resumes from. It knows no way of learning.

All chance is from streams named after the training seed. A checkpoint is written between updates. Resuming from one
continues with the very weights, optimizer, counters and streams; episodes begin anew (decisions that were still waiting
for a reward are lost), each with the seed that its next episode would have had. So a resumed run is a valid one, but
not the run that was interrupted, unless its environments have no state of their own.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit import checkpoint
from kit.chance import stream
from kit.errors import InputError
from policies.ppo.knobs import PPOKnobs
from policies.ppo.router import PPORouter, header, policy_weights
from policies.ppo.spec import PolicySpec

if TYPE_CHECKING:
    from policies.ppo.update import UpdateStats

CHECKPOINT = "checkpoint.safetensors"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # Adam's state of one parameter, by torch's names
_MAY_CHANGE = {"decisions", "checkpoint_every"}  # knobs that a resumed run may have otherwise
_OPTIMIZER = "optimizer."

Log = Callable[[int, Mapping[str, float]], None]


@dataclass(slots=True)
class Progress:
    """Counters that a checkpoint keeps."""

    decisions: int = 0
    updates: int = 0
    episodes: int = 0


class TrainingRun(ABC):
    """A run of `knobs.decisions` decisions; how it decides and learns is its own.

    Args:
        knobs: Eq. 5 and Eq. 8-13.
        seed: of all its streams.
        spec: the router's shape.
        deterministic: the mode that the router is given.
        streams: names of the streams that it draws from.
    """

    def __init__(
        self, knobs: PPOKnobs, seed: int, spec: PolicySpec, deterministic: bool, streams: tuple[str, ...]
    ) -> None:
        self.knobs, self.seed, self.spec, self.deterministic = knobs, seed, spec, deterministic
        self.progress = Progress()
        self._rngs = {name: stream(seed, f"ppo:{name}") for name in streams}

    @abstractmethod
    def iterate(self) -> dict[str, float] | None:
        """Decide until an update is due and make it; the log's scalars, or None where the decisions ran out before."""

    @abstractmethod
    def _weights(self) -> checkpoint.Tensors:
        """The network's tensors under their own names."""

    @abstractmethod
    def _moments(self) -> checkpoint.Tensors:
        """Adam's state, `MOMENT.NAME` for each moment of each tensor; empty before the first step."""

    @abstractmethod
    def _put(self, weights: checkpoint.Tensors, moments: checkpoint.Tensors) -> None:
        """Take over what these two gave."""

    def run(self, log: Log | None = None, checkpoint_dir: Path | None = None, resume: bool = False) -> PPORouter:
        """All of it, from the start or from the folder's checkpoint.

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
        return self.router()

    def router(self) -> PPORouter:
        """The policy as it is now."""
        return PPORouter(self.spec, self._weights(), deterministic=self.deterministic)

    def save(self, path: Path) -> None:
        """Everything that `restore` needs; the router alone can be read from it, too (`PPORouter.load`)."""
        tensors = {checkpoint.POLICY + name: value for name, value in self._weights().items()}
        tensors |= {_OPTIMIZER + name: value for name, value in self._moments().items()}
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
        moments = {name.removeprefix(_OPTIMIZER): each for name, each in tensors.items() if name.startswith(_OPTIMIZER)}
        try:
            training = json.loads(metadata["training"])
            self._require_same(path, metadata["spec"], training)
            self._put(policy_weights(tensors), moments)
            self.progress = Progress(**training["progress"])
            for name in self._rngs.keys() & training["streams"].keys():
                self._rngs[name].bit_generator.state = training["streams"][name]
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            problem = f"not a checkpoint of this version, or damaged ({error!r:.300}); remove it to begin anew"
            raise InputError(str(path), "", problem) from error

    def _require_same(self, path: Path, spec: str, training: Mapping[str, Any]) -> None:
        mine = {name: value for name, value in asdict(self.knobs).items() if name not in _MAY_CHANGE}
        theirs = training["knobs"] | {"hidden": tuple(training["knobs"]["hidden"])}
        differ = [name for name, value in mine.items() if theirs.get(name) != value]
        differ += ["seed"] * (training["seed"] != self.seed)
        theirs_of = PolicySpec.from_json(spec)
        differ += ["holds_s"] * (theirs_of.holds_s != self.spec.holds_s)
        differ += ["cluster"] * (replace(theirs_of, holds_s=self.spec.holds_s) != self.spec)
        if differ:
            remedy = "resume with the settings it was begun with, or start anew in another folder"
            raise InputError(str(path), "", f"begun with another {', '.join(differ)}; {remedy}")


def scalars_of(stats: UpdateStats) -> dict[str, float]:
    """An update's figures under the log's names."""
    names = {
        "policy_loss": "loss/policy",
        "value_loss": "loss/value",
        "entropy_server": "entropy/server",
        "entropy_width": "entropy/width",
        "entropy_group": "entropy/group",
        "entropy_hold": "entropy/hold",
    }
    return {names.get(name, f"update/{name}"): value for name, value in asdict(stats).items() if value is not None}
