"""The common parts of both learners: the clipped objective, a gradient step, and Adam's state by torch's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from kit.checkpoint import Tensors
from kit.errors import WorkError

_MOMENTS: Final = ("step", "exp_avg", "exp_avg_sq")  # of one parameter


@dataclass(frozen=True, slots=True)
class Surrogate:
    """PPO's clipped objective for some decisions, all (B,).

    Attributes:
        gain: the objective, to be maximized.
        kl: Schulman's estimator, ratio - 1 - log ratio: never negative, of low variance.
        clipped: 1 if the ratio was clipped, otherwise 0.
    """

    gain: Tensor
    kl: Tensor
    clipped: Tensor

    @classmethod
    def of(cls, log_ratio: Tensor, advantage: Tensor, clip: float) -> Surrogate:
        """Compute the objective from the logarithm of new over old probability."""
        ratio = log_ratio.exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
        return cls(gain, (ratio - 1 - log_ratio).detach(), ((ratio - 1).abs() > clip).float())


def gradient_step(
    network: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, max_norm: float, remedy: str
) -> float:
    """Make one step down the loss; returns the gradient's norm. `WorkError` if that isn't finite: nothing has
    changed."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    norm = float(nn.utils.clip_grad_norm_(network.parameters(), max_norm))
    if not np.isfinite(norm):
        raise WorkError(f"training diverged: the gradient is not finite; lower {remedy}")
    optimizer.step()
    return norm


def moments_of(network: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """Return Adam's state, `MOMENT.PARAMETER`; empty before the first step."""
    return {
        f"{moment}.{name}": optimizer.state[parameter][moment].numpy().copy()
        for name, parameter in network.named_parameters()
        for moment in _MOMENTS
        if moment in optimizer.state[parameter]
    }


def put_state(
    network: nn.Module, optimizer: torch.optim.Optimizer, weights: Tensors, moments: Mapping[str, np.ndarray]
) -> None:
    """Restore weights, and the result of `moments_of`."""
    network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    for name, parameter in network.named_parameters():
        known = {moment: moments[f"{moment}.{name}"] for moment in _MOMENTS if f"{moment}.{name}" in moments}
        optimizer.state[parameter] = {moment: torch.from_numpy(value) for moment, value in known.items()}
