"""The policy as a product of three categoricals (Eq. 2-6), with masks, for torch. It draws nothing (`acting` does)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MASKED = -1e9  # exp underflows to exactly 0, and 0 * MASKED is a harmless 0 in the entropy


class ProductPolicy(NamedTuple):
    """Log-probabilities of the three heads, unmixed: (B, N), (B, W) given the chosen server, (B, G)."""

    server: Tensor
    width: Tensor
    group: Tensor


def product_policy(
    logits: Tensor, sizes: tuple[int, int, int], server_mask: Tensor, width_mask: Tensor
) -> ProductPolicy:
    """Eq. 2-4, masked.

    Args:
        logits: (B, N + W + G).
        sizes: (N, W, G).
        server_mask: (B, N) bool.
        width_mask: (B, W) bool, of the server that was chosen.
    """
    server, width, group = torch.split(logits, list(sizes), dim=-1)
    return ProductPolicy(
        torch.log_softmax(server.masked_fill(~server_mask, MASKED), dim=-1),
        torch.log_softmax(width.masked_fill(~width_mask, MASKED), dim=-1),
        torch.log_softmax(group, dim=-1),
    )


def joint_log_prob(policy: ProductPolicy, server_mask: Tensor, actions: Tensor, eps: Tensor) -> Tensor:
    """Eq. 6, (B,): log pi~_srv + log pi_width + log pi_group, the server head mixed as in Eq. 5.

    Args:
        actions: (B, 3) indices of server, width and group.
        eps: (B,) the exploration share that each action was drawn with.
    """
    server, width, group = (head.gather(-1, actions[:, i : i + 1]).squeeze(-1) for i, head in enumerate(policy))
    uniform = torch.log(eps / server_mask.sum(dim=-1))
    chosen_valid = server_mask.gather(-1, actions[:, :1]).squeeze(-1)
    mixed = torch.logaddexp(torch.log1p(-eps) + server, uniform.masked_fill(~chosen_valid, -torch.inf))
    return mixed + width + group


def entropies(policy: ProductPolicy) -> Tensor:
    """(B, 3): each head's entropy, unmixed; the width's is that given the chosen server."""
    return torch.stack([-(head.exp() * head).sum(dim=-1) for head in policy], dim=-1)
