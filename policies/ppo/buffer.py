"""Decisions that wait for their reward. It learns nothing; only rewarded decisions leave it for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from policies.observation import Bools, Floats
from policies.ppo.acting import Acted
from policies.ppo.spec import PolicySpec


@dataclass(frozen=True, slots=True)
class Experience:
    """B rewarded decisions.

    Attributes:
        observation: (B, 2 + 3N) float32.
        server_mask: (B, N) bool.
        width_mask: (B, W) bool, of the chosen server.
        actions: (B, 3) int64 indices of server, width and group; (B, 4) with that of the hold, if any.
        log_prob: (B,) Eq. 6 when it was drawn.
        eps: (B,) the exploration share it was drawn with.
        value: (B,) V_old(s).
        reward: (B,) R.
        images: (B,) in the block that was decided about; 1 of a hold, whose reward is that of its oldest image.
        hold_mask: (B, 1 + H) bool; (B, 0) where the policy may not hold.
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

    def rows(self, rows: npt.NDArray[np.int64] | Sequence[int]) -> Experience:
        """A copy of these rows, in this order."""
        return Experience(*(getattr(self, field.name)[rows] for field in fields(self)))


def empty(spec: PolicySpec, capacity: int) -> Experience:
    """So many rows of zeros."""
    servers, widths, _, *holds = spec.head_sizes
    return Experience(
        observation=np.zeros((capacity, spec.observation.size), np.float32),
        server_mask=np.zeros((capacity, servers), np.bool_),
        width_mask=np.zeros((capacity, widths), np.bool_),
        actions=np.zeros((capacity, len(spec.head_sizes)), np.int64),
        hold_mask=np.zeros((capacity, sum(holds)), np.bool_),
        **{name: np.zeros(capacity, np.float32) for name in ("log_prob", "eps", "value", "reward", "images")},
    )


class TransitionBuffer:
    """Decisions by environment and decision id, from the choice to the reward.

    Args:
        spec: the shapes.
        environments: how many; decision ids are each one's own.
        capacity: rows to begin with; it grows.
    """

    def __init__(self, spec: PolicySpec, environments: int, capacity: int = 4096) -> None:
        self._rows = empty(spec, capacity)
        self._spec = spec
        self._free = list(range(capacity))[::-1]
        self._waiting: list[dict[int, int]] = [{} for _ in range(environments)]
        self._complete: list[int] = []

    @property
    def complete(self) -> int:
        """Decisions that have their reward."""
        return len(self._complete)

    @property
    def waiting(self) -> int:
        """Decisions that have none yet."""
        return sum(map(len, self._waiting))

    def add(
        self,
        decisions: Sequence[tuple[int, int]],
        observation: Floats,
        server_mask: Bools,
        width_mask: Bools,
        acted: Acted,
        eps: float,
        value: Floats,
        hold_mask: Bools,
    ) -> None:
        """One decision of every environment, in their order, each with the images in its block.

        `width_mask` is (E, N, W).
        """
        while len(self._free) < len(decisions):
            self._grow()
        rows = [self._free.pop() for _ in decisions]
        store = self._rows
        store.observation[rows] = observation
        store.server_mask[rows] = server_mask
        store.width_mask[rows] = width_mask[np.arange(len(rows)), acted.actions[:, 0]]
        store.actions[rows] = acted.actions
        store.log_prob[rows] = acted.log_prob
        store.eps[rows] = eps
        store.value[rows] = value
        store.hold_mask[rows] = hold_mask
        for waiting, (decision, images), row in zip(self._waiting, decisions, rows, strict=True):
            store.images[row] = images
            waiting[decision] = row

    def credit(self, environment: int, decision: int, reward: float) -> None:
        """The reward of a decision has come; `KeyError` for one that isn't waiting."""
        row = self._waiting[environment].pop(decision)
        self._rows.reward[row] = reward
        self._complete.append(row)

    def forget(self, environment: int) -> int:
        """Drop an environment's decisions that wait (its episode is over); returns how many."""
        waiting = self._waiting[environment]
        dropped = len(waiting)
        self._free += waiting.values()
        waiting.clear()
        return dropped

    def take(self) -> Experience:
        """All that have their reward, in the order of their rewards; they leave the buffer."""
        taken = self._rows.rows(self._complete)
        self._free += self._complete
        self._complete = []
        return taken

    def _grow(self) -> None:
        old, size = self._rows, len(self._rows)
        new = empty(self._spec, size)
        names = [field.name for field in fields(Experience)]
        self._rows = Experience(*(np.concatenate([getattr(old, name), getattr(new, name)]) for name in names))
        self._free = list(range(size, 2 * size))[::-1] + self._free
