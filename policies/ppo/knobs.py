"""The settings of training (Eq. 5, Eq. 8-13), independent of the cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PPOKnobs:
    """Settings of one training run.

    Attributes:
        decisions: number of decisions to train for, over all environments.
        batch: the smallest number of rewarded decisions for an update.
        minibatch: decisions for each gradient step.
        epochs: K, passes over a batch.
        hidden: the sizes of the shared layers.
        learning_rate: Adam's.
        clip: the ratio is clipped to 1 +- this value.
        value_weight: c_v.
        entropy_weight: c_H.
        max_grad_norm: gradients are scaled down to this 2-norm.
        eps_max: the share of uniform exploration in the server head at the start.
        eps_min: the same from `eps_decay` decisions on.
        eps_decay: T_dec, decisions over which it falls linearly.
        checkpoint_every: updates between checkpoints.
    """

    decisions: int = 200_000
    batch: int = 2048
    minibatch: int = 512
    epochs: int = 3
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 3e-4
    clip: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    max_grad_norm: float = 0.5
    eps_max: float = 0.3
    eps_min: float = 0.02
    eps_decay: int = 100_000
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        counts = ("decisions", "batch", "minibatch", "epochs", "eps_decay", "checkpoint_every")
        small = [name for name in counts if getattr(self, name) < 1]
        rates = ("learning_rate", "clip", "max_grad_norm")
        small += [name for name in rates if not getattr(self, name) > 0]
        if small or not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"must be positive: {', '.join(small) or 'hidden'}")
        if self.batch < 2:
            raise ValueError(f"batch must be at least 2, or there is nothing to normalize over: {self.batch}")
        if not 0 <= self.eps_min <= self.eps_max <= 1:
            raise ValueError(f"0 <= eps_min <= eps_max <= 1 must hold: {self.eps_min}, {self.eps_max}")
        if min(self.value_weight, self.entropy_weight) < 0:
            raise ValueError("value_weight and entropy_weight must not be negative")

    def eps(self, decisions: int) -> float:
        """Return eps_t of Eq. 5 after this number of decisions."""
        share = min(1.0, decisions / self.eps_decay)
        return self.eps_max + (self.eps_min - self.eps_max) * share
