"""A slimmable perceptron of one's own: three segments, and the hidden features are what is slimmed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hw.networks.slimmable import ModelSpec, Shape, SlimmableModel, Weights


class Perceptron(SlimmableModel):
    """16 x 16 pixels to `features`, to as many again, to eight classes; a width takes the first features of a layer."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features
        self.first = nn.Parameter(torch.randn(features, 256) / 16)
        self.second = nn.Parameter(torch.randn(features, features) / features**0.5)
        self.last = nn.Parameter(torch.randn(8, features) / features**0.5)

    @property
    def spec(self) -> ModelSpec:
        """Segments, widths, images and classes."""
        return ModelSpec(segments=3, widths=(0.25, 0.5, 1.0), input_shape=(1, 16, 16), classes=8)

    def weight_shapes(self, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
        """The leading slices that take part."""
        outputs, inputs = round(self.features * width), round(self.features * previous_width)
        if segment == 1:
            return {"first": (outputs, 256)}
        return {"second": (outputs, inputs)} if segment == 2 else {"last": (8, inputs)}

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        """A matrix product, and a ReLU where more follows."""
        if segment == 3:
            return x @ weights["last"].T
        return torch.relu(x.flatten(1) @ weights["first" if segment == 1 else "second"].T)
