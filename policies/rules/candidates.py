"""What `ppo` adds to Compass: a small network that scores every (server, width) alike, so any number of them may come.

Its inputs are dimensionless, and stand in one row: what is so for the whole decision (`SETTING` numbers), then `SERVER`
numbers for each server, then `WIDTH` for each of its widths. A candidate's preference is

    network(setting, its server, its width) - sharpness x log(1 + (its cost - the least cost) / SOFTNESS)

and the largest is chosen. While the network's last layer is 0 that is Compass' choice, whatever the sharpness. The
logarithm lets training try what costs much more: else no other width than that which the price asks for would be tried.

Both engines write the inputs by the plain functions here. They add products in one order, so they decide alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log1p
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]

SETTING: Final = 10
SERVER: Final = 5
WIDTH: Final = 4
SOFTNESS: Final = 0.05  # units
FEW: Final = 8.0  # requests: from here on counts matter by their logarithm
SHAPES: Final = {"setting": SETTING, "server": SERVER, "width": WIDTH}  # of inputs, by the first layers' names


def inputs_of(servers: int, widths: int) -> int:
    """How many numbers a network is told of a decision."""
    return SETTING + servers * (SERVER + widths * WIDTH)


def write_setting(
    out: Reals, at: int, load: float, fifo: int, candidates: float, age: float, price: float, place: float
) -> None:
    """What is so for the whole decision, but for the rates; `price` is a logarithm, `place` 0 to 1 of the segments."""
    out[at] = log1p(load / FEW)
    out[at + 1] = log1p(fifo / FEW)
    out[at + 2] = candidates
    out[at + 3] = age
    out[at + 4] = price / 4.0
    out[at + 5] = place
    out[at + 6] = 1.0 if place == 0.0 else 0.0


def write_server(
    out: Reals, at: int, work: float, slow: float, to_come: float, transfer: float, is_here: float
) -> None:
    """Of a server; times in units."""
    out[at] = log1p(work)
    out[at + 1] = log1p(to_come)
    out[at + 2] = log1p(transfer)
    out[at + 3] = slow - 1.0
    out[at + 4] = is_here


def write_width(out: Reals, at: int, batch: float, load: float, steps: float, share: float) -> None:
    """Of a width there; `steps` from the one that the price asks for, above 0 upwards; `share` 0 to 1 of the widths."""
    out[at] = log1p(batch)
    out[at + 1] = log1p(load)
    out[at + 2] = steps / 4.0
    out[at + 3] = share


def reluctance(cost: float, least: float) -> float:
    """How much dearer than the cheapest a candidate is, by the logarithm."""
    return log1p((cost - least) / SOFTNESS)


@dataclass(frozen=True, slots=True, eq=False)
class CandidateNetwork:
    """The reference, in numpy; `policies.compiled.compass` is its twin.

    Attributes:
        layers: of each part of the inputs (inputs, H).
        bias: (H,) of them together.
        last: (H,) from the hidden layer to the preference.
        sharpness: how much a cost counts; 0 for one that began from scratch.
    """

    layers: Mapping[str, Reals]
    bias: Reals
    last: Reals
    sharpness: float

    @classmethod
    def of(cls, tensors: Mapping[str, npt.NDArray[Any]]) -> CandidateNetwork:
        """From tensors as torch has them; raises `KeyError` or `ValueError` where they are none of such a network."""
        layers = {name: np.array(tensors[f"{name}.weight"].T, np.float64, order="C") for name in SHAPES}
        bias, last = (np.array(tensors[name], np.float64) for name in ("setting.bias", "last.weight"))
        sharpness = np.array(tensors["sharpness"], np.float64)
        shapes = [*(layer.shape for layer in layers.values()), bias.shape, last.shape, sharpness.shape]
        wanted = [*((inputs, bias.size) for inputs in SHAPES.values()), (bias.size,), (1, bias.size), (1,)]
        if shapes != wanted:
            raise ValueError(f"weights of shapes {shapes}; wanted are {wanted}")
        return cls(layers, bias, last[0], float(sharpness[0]))

    @property
    def numbers(self) -> Reals:
        """All weights in a row, as compiled code reads them."""
        return np.concatenate([self.bias, *(layer.ravel() for layer in self.layers.values()), self.last])

    def scores(self, seen: Reals, servers: int, widths: int) -> Reals:
        """(N, W) what the network says of each candidate; every sum in one order."""
        first, second = SETTING, SETTING + SERVER * servers
        hidden = _add(self.bias, seen[:first], self.layers["setting"])
        hidden = _add(hidden, seen[first:second].reshape(servers, SERVER), self.layers["server"])
        hidden = _add(hidden[:, None], seen[second:].reshape(servers, widths, WIDTH), self.layers["width"])
        scores: Reals = np.cumsum(np.maximum(hidden, 0.0) * self.last, axis=-1)[..., -1]
        return scores


def _add(start: Reals, inputs: Reals, layer: Reals) -> Reals:
    """`start` (..., H), and after it product by product: (..., K) inputs on a (K, H) layer."""
    for number, weights in enumerate(layer):
        start = start + inputs[..., number, None] * weights
    return start
