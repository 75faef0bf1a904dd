"""What was learned as a file: safetensors with what it is in the header, and a checksum over both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from jobs.policies import sight
from jobs.policies.choices import Choosing
from jobs.policies.policy import JobPolicy
from jobs.ppo.choosers import NetChooser
from jobs.ppo.net import JobNet
from kit import checkpoint
from kit.chance import stream
from kit.errors import InputError, nearest

SCHEMA: Final = "slimsched.joblearned/1"
FAITHFUL: Final = "rltune-faithful"
FIXED: Final = "rltune-fixed"
KINDS: Final[Mapping[str, str]] = {FAITHFUL: "stall", FIXED: "choice"}  # and how each one's choice is asked for
ACTOR: Final = "actor."
_MADE_BY: Final = "such a file is what training of a job policy wrote"


@dataclass(frozen=True, slots=True)
class LearnedSpec:
    """What a file says of itself.

    Attributes:
        kind: one of `KINDS`.
        base, estimate: the order of those that are seen, with what that order knows of run times.
        trace: the name of the trace that it was trained on.
        features: the version of what the network sees.
        is_drawn: whether it draws its choices, as it was trained, or takes the likeliest.
        queueing: how its choice is asked for; empty for its kind's way.

    Raises:
        InputError: for a kind that there is not, or features of another version.
    """

    kind: str
    base: str = "fifo"
    estimate: str = "none"
    trace: str = ""
    features: str = sight.VERSION
    is_drawn: bool = True
    queueing: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError("policy", "kind", f"{self.kind!r:.60} is no learned policy: {nearest(self.kind, KINDS)}")
        if self.features != sight.VERSION:
            problem = f"the network sees {self.features!r:.60}, and this version shows {sight.VERSION}: train it again"
            raise InputError("policy", "features", problem)

    @property
    def policy(self) -> JobPolicy:
        """The words around the network."""
        queueing = self.queueing or KINDS[self.kind]
        return JobPolicy(self.base, queueing, placement="lowest", estimate=self.estimate, learned=self.kind)


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """A learned policy."""

    spec: LearnedSpec
    net: JobNet

    def content(self) -> dict[str, Any]:
        """All that its choices rest on, as plain numbers and words."""
        return {**asdict(self.spec), **{name: value.tolist() for name, value in self.net.weights.items()}}

    def choosing(self, seed: int) -> Choosing:
        """Who chooses in one run; draws come from a stream of this seed."""
        rng = stream(seed, f"jobs:{self.spec.kind}") if self.spec.is_drawn else None
        return Choosing(NetChooser(self.net, rng), lambda view: self.net.scores(sight.seen(view)))


def write_learned(path: Path, learned: Learned, more: checkpoint.Tensors, header: Mapping[str, str]) -> None:
    """Whole or not at all.

    Args:
        more: what training needs to go on, beside the network that decides.
        header: more of what the file says of itself.
    """
    tensors = {ACTOR + name: value for name, value in learned.net.weights.items()}
    checkpoint.write(path, {**tensors, **more}, {**header, "spec": json.dumps(asdict(learned.spec))}, SCHEMA)


def read_learned(path: Path) -> tuple[Learned, checkpoint.Tensors, dict[str, str]]:
    """The policy, all tensors of the file, and its header.

    Raises:
        InputError: it is missing, damaged, none, or of another version.
    """
    tensors, header = checkpoint.read(path, SCHEMA, _MADE_BY)
    weights = {name.removeprefix(ACTOR): value for name, value in tensors.items() if name.startswith(ACTOR)}
    try:
        found: dict[str, Any] = json.loads(header["spec"])
        spec = LearnedSpec(**found)
        learned = Learned(spec, JobNet(weights))
        assert spec.policy.learned == spec.kind
    except InputError as error:
        raise InputError(str(path), error.key, error.problem) from None
    except (KeyError, TypeError, ValueError) as error:
        problem = f"not a learned job policy of this version, or damaged ({error!r:.300}); train it again"
        raise InputError(str(path), "", problem) from error
    return learned, tensors, header
