"""Routers that another library has learned on `SlimCluster-v0`, as files that are routers here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kit import checkpoint
from kit.errors import InputError
from policies.ppo.router import PPORouter
from policies.ppo.spec import PolicySpec
from scenarios.files.made_routers import ROUTER_SUFFIX
from scenarios.learn.train import spec_of
from scenarios.terminal.places import writable_file
from scenarios.world.world import World

Layers = Sequence[tuple[npt.ArrayLike, npt.ArrayLike]]
"""Of a network, from its input: weights (outputs, inputs) and biases (outputs,), as `torch.nn.Linear` has them."""


def write_router(world: World, layers: Layers, path: Path, deterministic: bool) -> None:
    """A router's file for a world; what it takes is told at `slimsched.save_router`.

    Raises:
        InputError: the network is not one for this world, or what lies there is no router.
    """
    if path.suffix != ROUTER_SUFFIX:
        raise InputError("out", "", f"{path}: the file of a learned router ends with {ROUTER_SUFFIX}")
    router = PPORouter(spec := spec_of(world), _tensors(layers, spec), deterministic=deterministic)
    _require_a_router(writable_file(path))
    router.save(path)


def _tensors(layers: Layers, spec: PolicySpec) -> checkpoint.Tensors:
    """By the names of `PolicyNetwork`, as float32."""
    weights = [np.asarray(weight, np.float32) for weight, _ in layers]
    biases = [np.asarray(bias, np.float32) for _, bias in layers]
    sizes = [spec.observation.size, *(bias.size for bias in biases[:-1]), sum(spec.head_sizes)]
    wanted = [((b, a), (b,)) for a, b in pairwise(sizes)]
    if [(weight.shape, bias.shape) for weight, bias in zip(weights, biases, strict=True)] != wanted:
        found = ", ".join(f"{weight.shape} and {bias.shape}" for weight, bias in zip(weights, biases, strict=True))
        outputs = f"{sizes[-1]} outputs ({'+'.join(map(str, spec.head_sizes))})"
        wants = f"the first takes {sizes[0]} inputs, the last gives {outputs}, each takes what the one before gives"
        problem = f"weights and biases of shapes {found or 'none'}; {wants}, weights are (outputs, inputs)"
        raise InputError("layers", "", problem)
    if not all((np.abs(each) <= checkpoint.MOST).all() for each in (*weights, *biases)):
        raise InputError("layers", "", f"hold numbers that are not finite, or beyond {checkpoint.MOST:g}; train anew")
    names = [*(f"trunk.{index}" for index in range(len(layers) - 1)), "heads"]
    return {
        f"{name}.{part}": value
        for name, *values in zip(names, weights, biases, strict=True)
        for part, value in zip(("weight", "bias"), values, strict=True)
    }


def _require_a_router(path: Path) -> None:
    """Raises `InputError` where a file would be replaced that is no router."""
    if path.exists():
        try:
            checkpoint.read(path)
        except InputError:
            raise InputError("out", "", f"{path} is there, and is no router; name another file") from None
