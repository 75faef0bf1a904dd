"""A trained router that decides, without exploration (eps = 0). It doesn't learn.

One compiled code (`policies.ppo.kernels`) decides wherever a stored router decides: otherwise near-ties would differ
between executors and simulation. `PPORouter.logits` computes the network in numpy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import structs

from kit import checkpoint
from kit.errors import InputError
from policies.interfaces import RouterConfig
from policies.observation import Floats
from policies.ppo.spec import RELU, PolicySpec
from policies.vocabulary import BatchingDelay, Choice, ClusterView

if TYPE_CHECKING:
    from policies.ppo.kernels import CompiledRouter

CHECKPOINT: Final = "checkpoint.safetensors"  # a training's, which contains a router, too


class PPORouter:
    """The policy of Eq. 2-4 with given weights.

    Args:
        spec: the shape.
        weights: `trunk.I.weight`, `trunk.I.bias`, `heads.weight`, `heads.bias` (others are ignored), float32.
        deterministic: take the most probable of each head; otherwise sample from it, as in training. (The most probable
            choices of a policy trained to sample can send everything to one server.)

    Raises `ValueError` if the weights are not of the spec's shape.
    """

    def __init__(
        self, spec: PolicySpec, weights: Mapping[str, npt.NDArray[Any]], *, deterministic: bool = False
    ) -> None:
        self.spec = spec
        self.deterministic = deterministic
        self._weights = {name: value for name, value in weights.items() if name.startswith(("trunk.", "heads."))}
        self._observation = spec.observation
        self._layers = [_layer(self._weights, f"trunk.{layer}") for layer in range((len(self._weights) - 2) // 2)]
        self._heads = _layer(self._weights, "heads")
        self._require_chain()
        self._compiled: CompiledRouter | None = None

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | BatchingDelay:
        """Decide; draws a number for each head from `rng` unless deterministic."""
        if len(view.servers) != self.spec.servers:
            problem = f"trained for {self.spec.servers} servers, asked about {len(view.servers)}"
            raise InputError("router", "", f"{problem}; train a router for this cluster")
        return (self._compiled or self.compiled()).choose(view, rng, self.deterministic)

    def compiled(self) -> CompiledRouter:
        """Return the compiled policy, ready to decide: compiled, or loaded from the cache.

        Otherwise the first decision would take that long: call this before a timed one.
        """
        if self._compiled is None:
            from policies.ppo.kernels import CompiledRouter  # late: reading a file alone needs no numba

            hidden = tuple(bias.size for _, bias in self._layers)
            self._compiled = CompiledRouter(self.spec, hidden, self._weights)
        return self._compiled

    def logits(self, observation: Floats) -> Floats:
        """Map (2 + 3N,) to (L,): the heads next to each other."""
        hidden = observation
        for weight, bias in self._layers:
            hidden = hidden @ weight + bias
            hidden = np.maximum(hidden, 0) if self.spec.activation == RELU else np.tanh(hidden)
        weight, bias = self._heads
        return np.asarray(hidden @ weight + bias)

    # ------------------------------------------------------------------------------------------------------- files

    def save(self, path: str | Path, made_by: Mapping[str, Any] | None = None) -> None:
        """Write weights, shape and mode, atomically; `made_by`: its origin, which no decision depends on."""
        tensors = {checkpoint.POLICY + name: value for name, value in self._weights.items()}
        metadata = {} if made_by is None else {"made_by": json.dumps(made_by)}
        checkpoint.write(Path(path), tensors, header(self.spec, self.deterministic) | metadata)

    @classmethod
    def load(
        cls,
        path: str | Path,
        config: RouterConfig | None = None,
        *,
        deterministic: bool | None = None,
        devices: Sequence[str] = (),
    ) -> PPORouter:
        """Read a router, or the router in a training checkpoint.

        Args:
            path: a file from `save` or training.
            config: its cluster; `InputError` names the differences.
            deterministic: overrides the stored mode.
            devices: the names of that cluster's devices, if known.
        """
        router = cls.of(*checkpoint.read(Path(path)), str(path), deterministic=deterministic)
        if config is not None:
            router.spec.require(config, str(path), devices)
        return router

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, npt.NDArray[Any]],
        metadata: Mapping[str, str],
        source: str,
        *,
        deterministic: bool | None = None,
    ) -> PPORouter:
        """Build a router from a file's content; raises `InputError`, which names the file, if it isn't a router."""
        try:
            spec = PolicySpec.from_json(metadata["spec"])
            mode = metadata["deterministic"] == "true" if deterministic is None else deterministic
            return cls(spec, policy_weights(tensors), deterministic=mode)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InputError(source, "", f"not a router of this version, or damaged ({error!r:.300})") from error

    def _require_chain(self) -> None:
        wrong = [name for name, value in self._weights.items() if value.dtype.kind != "f"]
        wrong += [name for name, value in self._weights.items() if value.ndim != 1 + name.endswith(".weight")]
        if wrong:
            raise ValueError(f"{wrong[0][:100]} is not a matrix (of a weight) or row (of a bias) of numbers")
        sizes = [self.spec.observation.size, *(bias.size for _, bias in self._layers), sum(self.spec.head_sizes)]
        shapes = [weight.shape for weight, _ in (*self._layers, self._heads)]
        if shapes != list(pairwise(sizes)) or self._heads[1].size != sizes[-1]:
            raise ValueError(f"weights of shapes {shapes} are not a router of {sizes}")


class EndlessRouter:
    """A `PPORouter` in an endless run: it counts completed requests in stretches as long as its training runs.

    Otherwise c_done of Eq. 1 would soon exceed all values of training.

    Args:
        stretch_ns: the length of a training run.
    """

    def __init__(self, router: PPORouter, stretch_ns: int) -> None:
        self._router, self._stretch_ns = router, stretch_ns
        self._until_ns = self._before = 0

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | BatchingDelay:
        """See `RoutingPolicy`."""
        if view.now_ns >= self._until_ns:
            self._until_ns = view.now_ns + self._stretch_ns - view.now_ns % self._stretch_ns
            self._before = view.completed
        return self._router.choose(structs.replace(view, completed=view.completed - self._before), rng)


def header(spec: PolicySpec, deterministic: bool) -> dict[str, str]:
    """Return the header of a router's file."""
    return {"spec": spec.to_json(), "deterministic": "true" if deterministic else "false"}


def policy_weights(tensors: Mapping[str, npt.NDArray[Any]]) -> checkpoint.Tensors:
    """Return the network's tensors of a file, under their names."""
    prefix = checkpoint.POLICY
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _layer(weights: Mapping[str, npt.NDArray[Any]], name: str) -> tuple[Floats, Floats]:
    """Transpose to (inputs, outputs) and (outputs,): torch stores the transpose."""
    return np.ascontiguousarray(weights[f"{name}.weight"].T), weights[f"{name}.bias"]
