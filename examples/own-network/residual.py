"""A slimmable convolutional network of one's own: three segments, each a residual block with GroupNorm."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hw.networks.slimmable import ModelSpec, Shape, SlimmableModel, Weights

GROUP = 4  # channels that are normalized together, at every width


class Residual(SlimmableModel):
    """16 x 16 pixels to eight classes; a width takes the first channels of each convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        for segment in (1, 2, 3):
            for name, shape in self.weight_shapes(segment, 1.0, 1.0).items():
                self.register_parameter(name, nn.Parameter(initial(name, shape)))

    @property
    def spec(self) -> ModelSpec:
        """Segments, widths, images and classes."""
        return ModelSpec(segments=3, widths=(0.25, 0.5, 1.0), input_shape=(1, 16, 16), classes=8)

    def weight_shapes(self, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
        """The leading slices that take part: a micro-batch's inputs are as wide as the segment before was run."""
        outputs = round(self.channels * width)
        inputs = 1 if segment == 1 else round(self.channels * previous_width)
        shapes: dict[str, Shape] = {f"skip{segment}": (outputs, inputs, 1, 1)}
        for name, before in ((f"first{segment}", inputs), (f"second{segment}", outputs)):
            shapes |= {name: (outputs, before, 3, 3), f"{name}_scale": (outputs,), f"{name}_shift": (outputs,)}
        return shapes if segment < 3 else {**shapes, "head": (8, outputs)}

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        """Two convolutions beside a short cut, and their sum; from the second segment on with a stride of two."""
        stride = 1 if segment == 1 else 2

        def normed(name: str, x: Tensor, stride: int) -> Tensor:
            kernel, x = weights[name], F.conv2d(x, weights[name], stride=stride, padding=1)
            return F.group_norm(x, len(kernel) // GROUP, weights[f"{name}_scale"], weights[f"{name}_shift"])

        inner = torch.relu(normed(f"first{segment}", x, stride))
        skipped = F.conv2d(x, weights[f"skip{segment}"], stride=stride)
        x = torch.relu(normed(f"second{segment}", inner, 1) + skipped)
        return x if segment < 3 else x.mean((2, 3)) @ weights["head"].T


def initial(name: str, shape: Shape) -> Tensor:
    """As torch begins with convolutions; a norm begins without effect."""
    if len(shape) == 1:
        return torch.ones(shape) if name.endswith("_scale") else torch.zeros(shape)
    return nn.init.kaiming_normal_(torch.empty(shape), nonlinearity="relu")
