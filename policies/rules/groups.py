"""The rules for the number of waiting requests in one block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.rules.context import drawn
from policies.vocabulary import ClusterView


@dataclass(frozen=True, slots=True)
class LargestGroup:
    """All candidates, up to the largest of these groups: the default."""

    groups: tuple[int, ...]

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the group size for the view's candidate block."""
        return self.groups[-1]


@dataclass(frozen=True, slots=True)
class RandomGroup:
    """A uniform choice of the group sizes: the paper's baseline."""

    groups: tuple[int, ...]

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the group size for the view's candidate block."""
        return self.groups[drawn(len(self.groups), rng)]
