"""A user's network: two linear segments on 8x8 digits, whose activations are plain vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hw.networks.slimmable import ModelSpec, Shape, SlimmableModel, Weights


class DigitsPerceptron(SlimmableModel):
    """Pixels to `features`, features to ten classes; the features are what is slimmed."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features
        self.hidden = nn.Parameter(torch.randn(features, 64) / 8)
        self.shift = nn.Parameter(torch.zeros(features))
        self.head = nn.Parameter(torch.randn(10, features) / features**0.5)

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(segments=2, widths=(0.5, 1.0), input_shape=(1, 8, 8), classes=10)

    def weight_shapes(self, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
        if segment == 1:
            channels = round(self.features * width)
            return {"hidden": (channels, 64), "shift": (channels,)}
        return {"head": (10, round(self.features * previous_width))}

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        if segment == 1:
            return torch.relu(x.flatten(1) @ weights["hidden"].T + weights["shift"])
        return x @ weights["head"].T


class Fragile(DigitsPerceptron):
    """Keeps every rule, and fails on more than a few images."""

    def __init__(self) -> None:
        super().__init__(8)

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        if len(x) > 10:
            raise RuntimeError("too large a batch")
        return super().run_segment(segment, weights, x)
