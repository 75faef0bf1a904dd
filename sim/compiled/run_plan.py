"""Runs whose router is a plan (`policies.compiled`): nothing of them is Python but their beginning and their end."""

from __future__ import annotations

from typing import Final

import numpy as np

from kit.errors import WorkError
from kit.jit import Ints
from policies.compiled.layout import Plan
from policies.compiled.milp import Replan
from policies.compiled.sheet import blank_sheet
from sim.compiled.codes import ENDED, NO_CURVE, NO_TUPLE, NONE
from sim.compiled.decide import NEEDS_DRAWS, NEEDS_PLAN, run_cluster
from sim.compiled.errors import problem_of
from sim.compiled.program import addressed
from sim.compiled.run import RunRow

Answer = tuple[int, int, int]
NO_ANSWER: Final[Answer] = (NONE, NONE, NONE)
NO_PLAN: Final = np.zeros(Plan.size, np.int64)  # its width rule is OUTSIDE
NO_SHEET: Final = np.zeros(1, np.int64)
_DRAWN = 1 << 14  # numbers at a time


def run_to_end(
    run: RunRow, plan: Ints, rng: np.random.Generator, replan: Replan | None = None, answer: Answer = NO_ANSWER
) -> None:
    """Let a plan make every decision of a run.

    Args:
        run: before its first decision, or at any later one.
        plan: what `policies.compiled` made; its memory is written to.
        rng: the router's own stream; it ends as if each number had been drawn when it was needed.
        replan: what to call with (plan, sheet) when the plan asks for it.
        answer: (server, width, group) for the decision that is asked for, where it is made already.

    Raises:
        WorkError: the run came to what was never measured.
    """
    sheet = blank_sheet(run.program.servers)
    numbers = _Numbers(plan, rng)
    try:
        while (status := run_cluster(run.row, run.shape.parameters, plan, sheet, *answer)) != ENDED:
            answer = NO_ANSWER
            if status == NEEDS_DRAWS:
                numbers.draw()
            elif status == NEEDS_PLAN and replan is not None:
                replan(plan, sheet)
            elif status in (NO_CURVE, NO_TUPLE):
                raise WorkError(problem_of(status))
            else:
                run.grow(status)
    finally:
        numbers.give_back()


class _Numbers:
    """Uniform numbers for a plan, drawn ahead of their use."""

    def __init__(self, plan: Ints, rng: np.random.Generator) -> None:
        self._plan, self._rng = Plan(plan), rng
        self._before = rng.bit_generator.state
        self._drawn = np.zeros(0)
        self._used = 0
        self._plan.draw = self._plan.draws = 0

    def draw(self) -> None:
        """Some more."""
        plan, used = self._plan, self._plan.draw
        self._used += used
        self._drawn = np.concatenate([self._drawn[used:], self._rng.random(_DRAWN)])
        plan.draw, plan.draws, plan.uniforms_at = 0, len(self._drawn), addressed(self._drawn)

    def give_back(self) -> None:
        """Wind the generator to where it would be without what was not used."""
        left = self._used + self._plan.draw
        self._plan.draw = self._plan.draws = 0
        self._rng.bit_generator.state = self._before
        while left > 0:
            left -= len(self._rng.random(min(left, _DRAWN)))
