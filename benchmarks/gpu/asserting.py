"""A network that breaks its device where an image says so: an index beyond a tensor, which a GPU finds out too late."""

from __future__ import annotations

import torch
from torch import Tensor

from hw.networks.slimmable import Weights
from hw.networks.slimresnet import PRESETS, SlimResNet

BREAKS = 777.0


class AssertingNet(SlimResNet):
    """The shipped network of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(PRESETS[name])

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        """As the shipped one's; an image of `BREAKS` asks for an element that is not there."""
        beyond = (x.amax() >= BREAKS).long().reshape(1) * 1_000_000  # one without dimensions is looked at by the host
        return super().run_segment(segment, weights, x) + torch.zeros(1, device=x.device, dtype=x.dtype)[beyond]
