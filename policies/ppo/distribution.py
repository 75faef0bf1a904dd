"""The policy as a product of three categoricals (Eq. 2-6), with masks, for torch. It draws nothing (`acting` does).

Where the policy may hold there is a fourth, over 1 + H outcomes (`policies.waits`). It is one more factor of the
product, independent of the others: server, width and group are drawn and scored in a decision to hold, too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MASKED = -1e9  # exp underflows to exactly 0, and 0 * MASKED is a harmless 0 in the entropy


class ProductPolicy(NamedTuple):
    """Log-probabilities of each head, unmixed: (B, N), (B, W) given the chosen server, (B, G), (B, 1 + H) if any."""

    server: Tensor
    width: Tensor
    group: Tensor
    hold: Tensor | None = None

    @property
    def heads(self) -> list[Tensor]:
        """Three, or four."""
        return [head for head in self if head is not None]


def product_policy(
    logits: Tensor,
    sizes: tuple[int, ...],
    server_mask: Tensor,
    width_mask: Tensor,
    hold_mask: Tensor | None = None,
) -> ProductPolicy:
    """Eq. 2-4, masked.

    Args:
        logits: (B, L).
        sizes: (N, W, G), or (N, W, G, 1 + H).
        server_mask: (B, N) bool.
        width_mask: (B, W) bool, of the server that was chosen.
        hold_mask: (B, 1 + H) bool, where there is a fourth head.
    """
    server, width, group, *rest = torch.split(logits, list(sizes), dim=-1)
    hold = None
    if rest:
        assert hold_mask is not None, "a policy that may hold needs to know when"
        hold = torch.log_softmax(rest[0].masked_fill(~hold_mask, MASKED), dim=-1)
    return ProductPolicy(
        torch.log_softmax(server.masked_fill(~server_mask, MASKED), dim=-1),
        torch.log_softmax(width.masked_fill(~width_mask, MASKED), dim=-1),
        torch.log_softmax(group, dim=-1),
        hold,
    )


def joint_log_prob(policy: ProductPolicy, server_mask: Tensor, actions: Tensor, eps: Tensor) -> Tensor:
    """Eq. 6, (B,): log pi~_srv + log pi_width + log pi_group (+ log pi_hold), the server head mixed as in Eq. 5.

    Args:
        actions: (B, 3) indices of server, width and group; (B, 4) with that of the hold.
        eps: (B,) the exploration share that each action was drawn with.
    """
    server, *others = (head.gather(-1, actions[:, i : i + 1]).squeeze(-1) for i, head in enumerate(policy.heads))
    uniform = torch.log(eps / server_mask.sum(dim=-1))
    chosen_valid = server_mask.gather(-1, actions[:, :1]).squeeze(-1)
    mixed = torch.logaddexp(torch.log1p(-eps) + server, uniform.masked_fill(~chosen_valid, -torch.inf))
    for head in others:
        mixed = mixed + head
    return mixed


def entropies(policy: ProductPolicy) -> Tensor:
    """(B, 3), or (B, 4): each head's entropy, unmixed; the width's is that given the chosen server."""
    return torch.stack([-(head.exp() * head).sum(dim=-1) for head in policy.heads], dim=-1)
