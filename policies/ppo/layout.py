"""The layout of a network's weights in one row of float32, as kernels need it. This module computes nothing with
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kit.jit import Ints, Singles
from policies.ppo.spec import RELU, PolicySpec
from policies.ppo.vectors import LANES

TILE: Final = 32  # decisions that pass the network together: their activations stay in the first cache

# Indices into `Layout.sizes`: of the network, then STRIDE numbers for each layer.
SERVERS: Final = 0
WIDTHS: Final = 1
GROUPS: Final = 2
OBSERVED: Final = 3  # 2 + 3N
LAYERS: Final = 4
OUTPUT: Final = 5  # the offset of the last layer's outputs in the scratch memory
HOLDS: Final = 6  # 1 + H, or 0 if the policy may not hold
RECTIFIED: Final = 7  # whether hidden layers are rectified (ReLU), otherwise tanh
FIRST: Final = 8

STRIDE: Final = 6
INPUTS: Final = 0  # padded: rows of the weights
OUTPUTS: Final = 1  # padded: columns of the weights
WEIGHT: Final = 2  # their offset in the row of weights
BIAS: Final = 3
SOURCE: Final = 4  # the offset of a tile's inputs and outputs in the scratch memory
TARGET: Final = 5


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a network with the shape of `PolicyNetwork`: heads and value are one last layer, in this order.

    A layer's weights are (inputs, outputs) row-major, followed by its biases. Outputs are padded to a multiple of
    `LANES`; the padding is 0, has no gradient and stays 0.

    Attributes:
        observed: 2 + 3N, the length of an observation.
        head_sizes: (N, W, G), or (N, W, G, 1 + H).
        hidden: the sizes of the shared layers.
        is_rectified: whether they have ReLU instead of tanh.
    """

    observed: int
    head_sizes: tuple[int, ...]
    hidden: tuple[int, ...]
    is_rectified: bool = False

    @classmethod
    def of(cls, spec: PolicySpec, hidden: tuple[int, ...]) -> Layout:
        """Return the layout for a router's shape."""
        return cls(spec.observation.size, spec.head_sizes, hidden, spec.activation == RELU)

    @property
    def parameters(self) -> int:
        """Length of the row of weights, padding included."""
        return self._layers()[-1][BIAS] + self._layers()[-1][OUTPUTS]

    @property
    def scratch(self) -> int:
        """Length of the scratch memory for a kernel's call: a tile's activations."""
        return self._layers()[-1][TARGET] + TILE * self._layers()[-1][OUTPUTS]

    def sizes(self) -> Ints:
        """Return the shape for the kernels: (FIRST + STRIDE layers,) int64."""
        layers = self._layers()
        heads, holds = self.head_sizes[:3], sum(self.head_sizes[3:])
        head = [*heads, self.observed, len(layers), layers[-1][TARGET], holds, int(self.is_rectified)]
        return np.array([*head, *(number for layer in layers for number in layer)], np.int64)

    def _layers(self) -> list[tuple[int, ...]]:
        """Return (inputs, outputs, weight, bias, source, target) of each layer."""
        outputs = [_padded(size, LANES) for size in (*self.hidden, sum(self.head_sizes) + 1)]
        sizes = [_padded(self.observed, 4), *outputs]
        shapes = list(pairwise(sizes))
        weights = accumulate(((a + 1) * b for a, b in shapes), initial=0)
        places = pairwise(accumulate((TILE * size for size in sizes), initial=0))
        return [(a, b, at, at + a * b, *ends) for (a, b), at, ends in zip(shapes, weights, places, strict=False)]

    # ------------------------------------------------------------------------------------------------------ weights

    def pack(self, tensors: Mapping[str, npt.NDArray[Any]]) -> Singles:
        """Pack tensors of `PolicyNetwork`'s names into one row; 0 without a value head, `KeyError` for others."""
        row = np.zeros(self.parameters, np.float32)
        for name, place in self._places(row):
            if name in tensors or not name.startswith("value."):
                place[...] = tensors[name].T
        return row

    def _places(self, row: Singles) -> Iterator[tuple[str, Singles]]:
        """Yield each tensor's name and its part of the row: (inputs, outputs) of a weight, (outputs,) of a bias."""
        inputs = (self.observed, *self.hidden)
        logits = sum(self.head_sizes)
        spans = [[(f"trunk.{i}", 0, size)] for i, size in enumerate(self.hidden)]
        spans.append([("heads", 0, logits), ("value", logits, logits + 1)])
        for size, (a, b, weight, bias, *_), parts in zip(inputs, self._layers(), spans, strict=True):
            matrix = row[weight : weight + a * b].reshape(a, b)
            for name, start, stop in parts:
                yield f"{name}.weight", matrix[:size, start:stop]
                yield f"{name}.bias", row[bias + start : bias + stop]


def _padded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
