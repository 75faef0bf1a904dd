"""Routers that another library has learned on `SlimCluster-v0`, as files that are routers here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from kit import checkpoint
from kit.errors import InputError
from kit.files import writable_file
from policies.ppo.router import PPORouter
from policies.ppo.spec import RELU, TANH, PolicySpec
from scenarios.files.made_routers import ROUTER_SUFFIX
from scenarios.learn.train import spec_of
from scenarios.world.world import World

if TYPE_CHECKING:
    from torch import Tensor, nn

Layers = Sequence[tuple[npt.ArrayLike, npt.ArrayLike]]
"""Of a network, from its input: weights (outputs, inputs) and biases (outputs,), as `torch.nn.Linear` has them."""
PROVED: Final = 256  # observations on which a module and its file are held against each other
NEAR: Final = 1e-3  # of the largest logit: float32 adds in another order


def write_router(world: World, layers: Layers | nn.Sequential, path: Path, deterministic: bool) -> None:
    """Write a router's file for a world; `slimsched.save_router` describes what it takes.

    Raises:
        InputError: the network is not one for this world, or the file there is not a router.
    """
    if path.suffix != ROUTER_SUFFIX:
        raise InputError("out", "", f"{path}: the file of a learned router ends with {ROUTER_SUFFIX}")
    spec = spec_of(world)
    if isinstance(layers, Sequence):
        router = PPORouter(spec, _tensors(layers, spec), deterministic=deterministic)
    else:
        router = _of_module(layers, spec, deterministic)
    _require_a_router(writable_file(path))
    router.save(path)


# ------------------------------------------------------------------------------------------------------- of a module


def _of_module(given: nn.Sequential, spec: PolicySpec, deterministic: bool) -> PPORouter:
    """Return the router of a `torch.nn.Sequential`, whose own logits it must have.

    Raises:
        InputError: it is another module, or computes what a router's file can't hold.
    """
    import torch
    from torch import nn

    if not isinstance(given, nn.Sequential):
        problem = f"a {type(given).__name__}: give the torch.nn.Sequential that makes logits of an observation"
        raise InputError("layers", "", f"{problem}, or (weights, biases) of each layer")
    module = deepcopy(given).cpu().double().eval()
    kinds, parts = {nn.Tanh: TANH, nn.ReLU: RELU}, list(_flat(module))
    activations = {kinds[type(part)] for part in parts if type(part) in kinds}
    if len(activations) > 1:
        raise InputError("layers", "", "have Tanh and ReLU; a router has one of them after all layers but the last")
    seen = torch.as_tensor(_observations(spec), dtype=torch.float64)
    try:
        with torch.no_grad():
            layers = list(_folded(parts, tuple(kinds), seen.shape[1]))
            wanted = module(seen).numpy()
    except (RuntimeError, TypeError, ValueError) as error:
        first = next((part.in_features for part in parts if isinstance(part, nn.Linear)), seen.shape[1])
        why = f"{str(error).splitlines()[0]:.200}" if first == seen.shape[1] else f"the first Linear takes {first}"
        raise InputError("layers", "", f"do not take observations of {seen.shape[1]} numbers: {why}") from None
    spec = replace(spec, activation=next(iter(activations), TANH))
    router = PPORouter(spec, _tensors(layers, spec), deterministic=deterministic)
    logits = np.array([router.logits(each.numpy().astype(np.float32)) for each in seen])
    apart = float(np.abs(logits - wanted).max())
    if not apart <= NEAR * max(1.0, float(np.abs(wanted).max())):
        names = ", ".join(dict.fromkeys(type(part).__name__ for part in parts if type(part) not in (nn.Linear, *kinds)))
        problem = f"give other logits than a router of them, by up to {apart:.3g}"
        remedy = "a router has Linear, one of Tanh and ReLU after each but the last, and besides what is affine"
        raise InputError("layers", "", f"{problem}; {remedy} (input scaling, say); look at: {names or 'forward hooks'}")
    return router


def _flat(module: nn.Sequential) -> Iterator[nn.Module]:
    from torch import nn

    for part in module:
        yield from _flat(part) if isinstance(part, nn.Sequential) else (part,)


def _folded(parts: Sequence[nn.Module], kinds: tuple[type, ...], inputs: int) -> Iterator[tuple[Any, Any]]:
    """Fold modules between two activations into one layer, found by their outputs for zero and for each input alone."""
    import torch

    def layer(chain: Sequence[nn.Module], inputs: int) -> tuple[Tensor, Tensor]:
        values = torch.cat([torch.zeros(1, inputs), torch.eye(inputs)]).double()
        for part in chain:
            values = part(values)
        return (values[1:] - values[0]).T, values[0]

    chain = list[Any]()
    for part in parts:
        if isinstance(part, kinds):
            yield (folded := layer(chain, inputs))
            chain, inputs = [], len(folded[1])
        else:
            chain.append(part)
    yield layer(chain, inputs)


def _observations(spec: PolicySpec) -> npt.NDArray[np.float32]:
    """Return observations of idle and of full clusters (`policies.observation`), the same ones every time."""
    rng = np.random.default_rng(0)
    counts = np.log1p(10.0 ** rng.uniform(-1, 5, (PROVED, spec.observation.size)))
    shares = rng.random((PROVED, spec.observation.size))
    is_share = [place >= 2 and (place - 2) % 3 > 0 for place in range(spec.observation.size)]
    return np.where(is_share, shares, counts).astype(np.float32)


# --------------------------------------------------------------------------------------------------------- of layers


def _tensors(layers: Layers, spec: PolicySpec) -> checkpoint.Tensors:
    """Return tensors by the names of `PolicyNetwork`, as float32."""
    weights = [_plain(weight) for weight, _ in layers]
    biases = [_plain(bias) for _, bias in layers]
    sizes = [spec.observation.size, *(bias.size for bias in biases[:-1]), sum(spec.head_sizes)]
    wanted = [((b, a), (b,)) for a, b in pairwise(sizes)]
    if [(weight.shape, bias.shape) for weight, bias in zip(weights, biases, strict=True)] != wanted:
        shapes = ", ".join(f"{weight.shape} and {bias.shape}" for weight, bias in zip(weights, biases, strict=True))
        outputs = f"{sizes[-1]} outputs ({'+'.join(map(str, spec.head_sizes))})"
        wants = f"the first takes {sizes[0]} inputs, the last gives {outputs}, each takes what the one before gives"
        problem = f"weights and biases of shapes {shapes or 'none'}; {wants}, weights are (outputs, inputs)"
        raise InputError("layers", "", problem)
    if not all((np.abs(each) <= checkpoint.MOST).all() for each in (*weights, *biases)):
        raise InputError("layers", "", f"hold numbers that are not finite, or beyond {checkpoint.MOST:g}; train anew")
    names = [*(f"trunk.{index}" for index in range(len(layers) - 1)), "heads"]
    return {
        f"{name}.{part}": value
        for name, *values in zip(names, weights, biases, strict=True)
        for part, value in zip(("weight", "bias"), values, strict=True)
    }


def _plain(values: Any) -> npt.NDArray[np.float32]:
    """Return a tensor's present values, detached from learning."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, np.float32)


def _require_a_router(path: Path) -> None:
    """Raise `InputError` if a file would be replaced that is not a router."""
    if path.exists():
        try:
            checkpoint.read(path)
        except InputError:
            raise InputError("out", "", f"{path} is there, and is no router; name another file") from None
