"""The shared network: one MLP, categorical heads (server, width, group; hold) and a value. It has no masks."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from policies.ppo.spec import PolicySpec


class PolicyNetwork(nn.Module):
    """A network from observation (B, 2 + 3N) to logits (B, L), the heads next to each other, and value (B,).

    L is the sum of `PolicySpec.head_sizes`: N + W + G, and 1 + H if the policy may hold.

    Args:
        spec: the sizes of observation and heads.
        hidden: the sizes of the shared tanh layers.
        seed: seed of the weights: orthogonal, the heads' scaled by 0.01 so that training starts near uniform.
    """

    def __init__(self, spec: PolicySpec, hidden: tuple[int, ...], seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        sizes = (spec.observation.size, *hidden)
        self.trunk = nn.ModuleList([_linear(a, b, 2**0.5, generator) for a, b in pairwise(sizes)])
        self.heads = _linear(hidden[-1], sum(spec.head_sizes), 0.01, generator)
        self.value = _linear(hidden[-1], 1, 1.0, generator)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, 2 + 3N) to (B, L), (B,)."""
        hidden = observation
        for layer in self.trunk:
            hidden = torch.tanh(layer(hidden))
        return self.heads(hidden), self.value(hidden).squeeze(-1)


def _linear(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Linear:
    """Return orthogonal weights without the global generator, so that no other draws shift."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
