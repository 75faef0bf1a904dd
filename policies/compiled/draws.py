"""The random numbers of a plan: it reads them from memory, so they are drawn in advance."""

from __future__ import annotations

from typing import Final

import numpy as np

from kit.jit import Ints
from policies.compiled.layout import Plan

_DRAWN: Final = 1 << 14  # numbers at a time


class Draws:
    """Uniform numbers for a plan, drawn in advance."""

    def __init__(self, plan: Ints, rng: np.random.Generator) -> None:
        self._plan, self._rng = Plan(plan), rng
        self._before = rng.bit_generator.state
        self._drawn = np.zeros(0)
        self._used = 0
        self._plan.draw = self._plan.draws = 0

    def draw(self) -> None:
        """Draw more numbers."""
        plan, used = self._plan, self._plan.draw
        self._used += used
        self._drawn = np.concatenate([self._drawn[used:], self._rng.random(_DRAWN)])
        plan.draw, plan.draws, plan.uniforms_at = 0, len(self._drawn), int(self._drawn.ctypes.data)

    def give_back(self) -> None:
        """Rewind the generator to its state without the unused numbers."""
        left = self._used + self._plan.draw
        self._plan.draw = self._plan.draws = 0
        self._rng.bit_generator.state = self._before
        while left > 0:
            left -= len(self._rng.random(min(left, _DRAWN)))
