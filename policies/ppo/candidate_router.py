"""`ppo` as a file and as a router: Compass with a network that was trained by gradients.

It fits every cluster, whatever its servers, segments and widths: nothing in it is of a size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from kit import checkpoint, strict
from kit.errors import InputError
from policies.interfaces import RouterConfig, RoutingPolicy
from policies.rules.candidates import CandidateNetwork
from policies.rules.compass import CompassRule
from policies.rules.context import RouterContext
from policies.rules.controlled import ControlSpec

KIND: Final = "ppo"


@dataclass(frozen=True, slots=True)
class CandidateSpec:
    """A trained `ppo`.

    Attributes:
        rule: what its network adds to.
        tensors: the network's, by torch's names.

    Raises `KeyError` or `ValueError` where they are none of such a network.
    """

    rule: CompassRule
    tensors: Mapping[str, npt.NDArray[Any]]
    network: CandidateNetwork = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", CandidateNetwork.of(self.tensors))

    @property
    def control(self) -> ControlSpec | None:
        """That it keeps goals, if it does."""
        return self.rule.control

    def check(self, config: RouterConfig, source: str = "router", key: str = "") -> None:
        """See `RouterSpec`."""
        self.rule.check(config, source, key)

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
        """See `RouterSpec`."""
        return self.rule.make(context, source, key, self.network)

    def save(self, path: Path, made_by: Mapping[str, Any] | None = None) -> None:
        """Write its file, atomically; `made_by`: what more is told of how it came about."""
        tensors = {checkpoint.POLICY + name: value for name, value in self.tensors.items()}
        origin = {**self.rule.made_by, **(made_by or {})}
        checkpoint.write(path, tensors, self.header | {"made_by": json.dumps(origin)})

    @property
    def header(self) -> dict[str, str]:
        """What its file says of itself."""
        rule = self.rule.to_dict()
        return {"kind": KIND, "made_by": json.dumps(rule.pop("made_by", {})), "rule": json.dumps(rule)}

    @classmethod
    def of(cls, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str], source: str) -> CandidateSpec:
        """From what a file holds; raises `InputError`, which names it, where that is no such router."""
        prefix = checkpoint.POLICY
        weights = {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}
        try:
            raw = json.loads(metadata["rule"])
            given = {key: value for key, value in raw.items() if key not in ("schema", "kind")}
            rule = strict.validate(CompassRule, given, source)
            return cls(rule.model_copy(update={"made_by": json.loads(metadata.get("made_by", "{}"))}), weights)
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            problem = f"not a router of this version, or damaged ({error!r:.300}); train it again"
            raise InputError(source, "", problem) from error
