"""Rewarded decisions: the training data of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from policies.observation import Bools, Floats
from policies.ppo.spec import PolicySpec


@dataclass(frozen=True, slots=True)
class Experience:
    """B rewarded decisions.

    Attributes:
        observation: (B, 2 + 3N) float32.
        server_mask: (B, N) bool.
        width_mask: (B, W) bool, of the chosen server.
        actions: (B, 3) int64 indices of server, width and group; (B, 4) with that of the hold, if any.
        log_prob: (B,) Eq. 6 at sampling.
        eps: (B,) the exploration share at sampling.
        value: (B,) V_old(s).
        reward: (B,) R.
        images: (B,) in the decision's block; 1 for a hold, whose reward is that of its oldest image.
        hold_mask: (B, 1 + H) bool; (B, 0) if the policy may not hold.
    """

    observation: Floats
    server_mask: Bools
    width_mask: Bools
    actions: npt.NDArray[np.int64]
    log_prob: Floats
    eps: Floats
    value: Floats
    reward: Floats
    images: Floats
    hold_mask: Bools

    def __len__(self) -> int:
        return len(self.reward)

    def rows(self, rows: npt.NDArray[np.int64]) -> Experience:
        """Return a copy of these rows, in this order."""
        return Experience(*(getattr(self, field.name)[rows] for field in fields(self)))


def empty(spec: PolicySpec, capacity: int) -> Experience:
    """Return this number of rows of zeros."""
    servers, widths, _, *holds = spec.head_sizes
    return Experience(
        observation=np.zeros((capacity, spec.observation.size), np.float32),
        server_mask=np.zeros((capacity, servers), np.bool_),
        width_mask=np.zeros((capacity, widths), np.bool_),
        actions=np.zeros((capacity, len(spec.head_sizes)), np.int64),
        hold_mask=np.zeros((capacity, sum(holds)), np.bool_),
        **{name: np.zeros(capacity, np.float32) for name in ("log_prob", "eps", "value", "reward", "images")},
    )


def joined(parts: Sequence[Experience]) -> Experience:
    """Return all rows of one part or more, in order."""
    return Experience(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Experience)))
