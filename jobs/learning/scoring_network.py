"""The network that scores each waiting job separately, in numpy: eight numbers in, one out (8-32-16-8-1, ReLU)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.policies.chosen_queueing import NAMES, VERSION, WAIT, Choosing, Inputs, View
from jobs.policies.named_policies import CHOICE, JobPolicy
from kit import checkpoint
from kit.errors import InputError
from kit.random_streams import stream

HIDDEN: Final = (32, 16, 8)
SIZES: Final = (len(NAMES), *HIDDEN, 1)
Weights = Mapping[str, NDArray[Any]]


class JobNet:
    """Scores of jobs; a larger score makes a job's turn likelier.

    Args:
        weights: `I.weight` (outputs, inputs) and `I.bias` (outputs,) of the layers I = 0, 1, ..., float32.

    Raises:
        ValueError: the shapes differ.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = dict(weights)
        expected: dict[str, tuple[int, ...]] = {f"{i}.weight": sizes[::-1] for i, sizes in enumerate(pairwise(SIZES))}
        expected |= {f"{i}.bias": (outputs,) for i, outputs in enumerate(SIZES[1:])}
        shapes = {name: value.shape for name, value in weights.items()}
        if shapes != expected or any(value.dtype != np.float32 for value in weights.values()):
            raise ValueError(f"weights of shapes {shapes} are not a network of {SIZES} in float32")
        self._layers = [
            (np.ascontiguousarray(weights[f"{i}.weight"].T), weights[f"{i}.bias"]) for i in range(len(SIZES) - 1)
        ]

    def scores(self, rows: Inputs) -> NDArray[np.float32]:
        """Map (n, 8) rows to (n,) scores."""
        hidden: NDArray[np.float32] = rows
        for weight, bias in self._layers[:-1]:
            hidden = np.maximum(hidden @ weight + bias, 0)
        weight, bias = self._layers[-1]
        return np.asarray((hidden @ weight + bias)[:, 0])


def fresh_weights(sizes: tuple[int, ...], seed: int, name: str) -> dict[str, NDArray[np.float32]]:
    """Return weights of an untrained network: Glorot uniform (Glorot and Bengio 2010), as in TensorFlow; no bias."""
    rng, weights = stream(seed, f"jobs:weights:{name}"), {}
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        most = (6 / (inputs + outputs)) ** 0.5
        weights[f"{i}.weight"] = rng.uniform(-most, most, (outputs, inputs)).astype(np.float32)
        weights[f"{i}.bias"] = np.zeros(outputs, np.float32)
    return weights


# ------------------------------------------------------------------------------------------------------------- choosers
# Choosers that sample by a network's scores, and the decisions that they record during training.


POOLED: Final = 2 * len(NAMES) + 1  # numbers that describe a queue of any length
_MANY: Final = 128  # waiting jobs


class Decision(NamedTuple):
    """One choice of an episode.

    Attributes:
        rows: (choices, 8) float32: the possible choices; waiting comes last, if it is possible.
        choice: its row.
        log_prob: log-probability of the choice.
        at_ns: its time.
        pooled: (17,) summary of the queue, with all its jobs.
    """

    rows: Inputs
    choice: int
    log_prob: float
    at_ns: int
    pooled: Inputs


class NetChooser:
    """Chooser that samples by softmax over the scores of possible choices; takes the likeliest without an `rng`."""

    def __init__(self, net: JobNet, rng: np.random.Generator | None, memory: list[Decision] | None = None) -> None:
        self._net = net
        self._rng = rng
        self._memory = memory

    def __call__(self, view: View) -> int:
        """Return a row of the view, or `WAIT`."""
        rows = view.inputs
        may = rows[view.may]
        choices = np.concatenate([may, waiting_row(rows)]) if view.can_wait else may
        scores = self._net.scores(choices).astype(np.float64)
        odds = np.exp(scores - scores.max())
        if self._rng is None:
            row = int(odds.argmax())
        else:
            summed = odds.cumsum()
            row = min(int(np.searchsorted(summed, self._rng.random() * summed[-1], side="right")), len(odds) - 1)
        if self._memory is not None:
            log_prob = float(np.log(odds[row] / odds.sum()))
            self._memory.append(Decision(choices, row, log_prob, view.now_ns, pooled(rows)))
        return WAIT if row == len(may) else int(view.may.nonzero()[0][row])


def waiting_row(rows: Inputs) -> Inputs:
    """Return (1, 8) the choice to wait, as a job: as old as the oldest, without GPUs or end, in the first field."""
    return np.array([[rows[:, 0].max(), 0.0, 0.0, rows[0, 3], rows[0, 4], 0.0, 0.0, 1.0]], np.float32)


def pooled(rows: Inputs) -> Inputs:
    """Summarize (n, 8) rows as (17,) means, maxima and the count."""
    many = np.log1p(len(rows)) / np.log1p(_MANY)
    return np.concatenate([rows.mean(axis=0), rows.max(axis=0), [many]]).astype(np.float32)


# ---------------------------------------------------------------------------------------------------------------- files
# Learned policies as files: safetensors with a description in the header, and a checksum over both.


SCHEMA: Final = "slimsched.joblearned/2"
RLTUNE: Final = "rltune"
ACTOR: Final = "actor."


@dataclass(frozen=True, slots=True)
class LearnedSpec:
    """Description in a learned policy's file.

    Attributes:
        base, estimate: the order of visible jobs, and that order's estimate of run times.
        trace: the name of the trace that it was trained on.
        features: the version of the network's inputs.
        is_sampled: whether it samples its choices, as in training, or takes the likeliest.

    Raises:
        InputError: the features are of another version.
    """

    base: str = "fifo"
    estimate: str = "none"
    trace: str = ""
    features: str = VERSION
    is_sampled: bool = True

    def __post_init__(self) -> None:
        if self.features != VERSION:
            problem = f"the network sees {self.features!r:.60}, and this version shows {VERSION}: train it again"
            raise InputError("policy", "features", problem)

    @property
    def policy(self) -> JobPolicy:
        """The policy around the network."""
        return JobPolicy(self.base, CHOICE, placement="lowest", estimate=self.estimate, learned=RLTUNE)


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """A learned policy: its description and its network."""

    spec: LearnedSpec
    net: JobNet

    def content(self) -> dict[str, Any]:
        """Return all that its choices depend on, as plain numbers and words."""
        return {**asdict(self.spec), **{name: value.tolist() for name, value in self.net.weights.items()}}

    def choosing(self, seed: int) -> Choosing:
        """Return the chooser of one run; random draws come from a stream of this seed."""
        rng = stream(seed, f"jobs:{RLTUNE}") if self.spec.is_sampled else None
        return Choosing(NetChooser(self.net, rng), lambda view: self.net.scores(view.inputs))


def at_random(rng: np.random.Generator, view: View) -> int:
    """Return a uniformly random row among the view's jobs that may be chosen."""
    return int(rng.choice(view.may.nonzero()[0]))


@dataclass(frozen=True, slots=True, eq=False)
class NamedPolicy:
    """A policy, and its displayed name: with `oracle` in it if it uses true run times.

    Attributes:
        learned: the learned chooser, if any; a policy that needs one and has none chooses at random.
    """

    name: str
    policy: JobPolicy
    learned: Learned | None = None

    def choosing(self, seed: int) -> Choosing | None:
        """Return the chooser of one run."""
        if self.learned is not None:
            return self.learned.choosing(seed)
        return Choosing(partial(at_random, stream(seed, "jobs:random"))) if self.policy.learned else None


def write_learned(path: Path, learned: Learned, more: checkpoint.Tensors, header: Mapping[str, str]) -> None:
    """Write the file completely or not at all.

    Args:
        more: what training needs to resume, in addition to the deciding network.
        header: additional entries of the header.
    """
    tensors = {ACTOR + name: value for name, value in learned.net.weights.items()}
    checkpoint.write(path, {**tensors, **more}, {**header, "spec": json.dumps(asdict(learned.spec))}, SCHEMA)


def read_learned(path: Path) -> tuple[Learned, checkpoint.Tensors, dict[str, str]]:
    """Read the policy, all tensors of the file, and its header.

    Raises:
        InputError: it is missing, damaged, not a policy, or of another version.
    """
    tensors, header = checkpoint.read(path, SCHEMA, "such a file is what training of a job policy wrote")
    weights = {name.removeprefix(ACTOR): value for name, value in tensors.items() if name.startswith(ACTOR)}
    try:
        keys: dict[str, Any] = json.loads(header["spec"])
        learned = Learned(LearnedSpec(**keys), JobNet(weights))
        assert learned.spec.policy
    except InputError as error:
        raise InputError(str(path), error.key, error.problem) from None
    except (KeyError, TypeError, ValueError) as error:
        problem = f"not a learned job policy of this version, or damaged ({error!r:.300}); train it again"
        raise InputError(str(path), "", problem) from error
    return learned, tensors, header
