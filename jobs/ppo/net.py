"""The network that scores each waiting job by itself, in numpy: seven numbers in, one out (7-32-16-8-1, ReLU)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.policies.sight import NAMES, Seen
from kit.chance import stream

HIDDEN: Final = (32, 16, 8)
SIZES: Final = (len(NAMES), *HIDDEN, 1)
Weights = Mapping[str, NDArray[Any]]


class JobNet:
    """Scores of jobs; the larger, the likelier a job's turn.

    Args:
        weights: `I.weight` (outputs, inputs) and `I.bias` (outputs,) of the layers I = 0, 1, ..., float32.

    Raises:
        ValueError: they are of other shapes.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = dict(weights)
        expected: dict[str, tuple[int, ...]] = {f"{i}.weight": (b, a) for i, (a, b) in enumerate(pairwise(SIZES))}
        expected |= {f"{i}.bias": (b,) for i, b in enumerate(SIZES[1:])}
        found = {name: value.shape for name, value in weights.items()}
        if found != expected or any(value.dtype != np.float32 for value in weights.values()):
            raise ValueError(f"weights of shapes {found} are no network of {SIZES} in float32")
        self._layers = [
            (np.ascontiguousarray(weights[f"{i}.weight"].T), weights[f"{i}.bias"]) for i in range(len(SIZES) - 1)
        ]

    def scores(self, rows: Seen) -> NDArray[np.float32]:
        """(n, 7) -> (n,)."""
        hidden: NDArray[np.float32] = rows
        for weight, bias in self._layers[:-1]:
            hidden = np.maximum(hidden @ weight + bias, 0)
        weight, bias = self._layers[-1]
        return np.asarray((hidden @ weight + bias)[:, 0])


def fresh_weights(sizes: tuple[int, ...], seed: int, name: str) -> dict[str, NDArray[np.float32]]:
    """Of an untrained network: uniform as Glorot and Bengio (2010) have it, which is TensorFlow's way; no bias."""
    rng, weights = stream(seed, f"jobs:weights:{name}"), {}
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        most = (6 / (inputs + outputs)) ** 0.5
        weights[f"{i}.weight"] = rng.uniform(-most, most, (outputs, inputs)).astype(np.float32)
        weights[f"{i}.bias"] = np.zeros(outputs, np.float32)
    return weights
