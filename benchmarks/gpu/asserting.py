"""A network that breaks its device on request of an image: an index beyond a tensor, which a GPU detects too late."""

from __future__ import annotations

import torch
from torch import Tensor

from hw.networks.architectures import SLIMRESNETS, SlimResNet
from hw.networks.slimmable import Weights

BREAKS = 777.0


class AssertingNet(SlimResNet):
    """The built-in network of this name, with the fault."""

    def __init__(self, name: str) -> None:
        super().__init__(SLIMRESNETS[name])

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        """Run a segment as the built-in network does; an image of `BREAKS` accesses an element that does not exist."""
        beyond = (x.amax() >= BREAKS).long().reshape(1) * 1_000_000  # the host would check one without dimensions
        return super().run_segment(segment, weights, x) + torch.zeros(1, device=x.device, dtype=x.dtype)[beyond]
