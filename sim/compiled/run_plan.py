"""Runs whose router is a plan (`policies.compiled`): only their beginning and their end are Python."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from kit.errors import WorkError
from kit.jit import Ints
from policies.compiled.draws import Draws
from policies.compiled.layout import Plan, blank_sheet
from policies.plan_of import CompiledRouter
from sim.compiled.codes import ENDED, NO_CURVE, NO_TUPLE, NONE
from sim.compiled.decide import NEEDS_DRAWS, NEEDS_PLAN, run_cluster
from sim.compiled.errors import problem_of
from sim.compiled.run import RunRow


class RouterAnswer(NamedTuple):
    """The answer to a pending decision: a server, a width by number and a group; or `HOLD`, the number of requests that
    ends it, and its longest time in ns."""

    server: int
    width: int
    group: int


NO_ANSWER: Final = RouterAnswer(NONE, NONE, NONE)
_NO_PLAN: Final = np.zeros(Plan.size, np.int64)  # its width rule is OUTSIDE
_NO_SHEET: Final = np.zeros(1, np.int64)


def go_on(run: RunRow, answer: RouterAnswer = NO_ANSWER, plan: Ints = _NO_PLAN, sheet: Ints = _NO_SHEET) -> int:
    """Run a cluster as far as possible, from the answer on; returns why it stops (`run_cluster`).

    Without a plan it stops at every decision.
    """
    return run_cluster(run.row, run.shape.parameters, plan, sheet, *answer)


def run_to_end(
    run: RunRow,
    planned: CompiledRouter,
    rng: np.random.Generator,
    answer: RouterAnswer = NO_ANSWER,
) -> None:
    """Let a plan make every decision of a run.

    Args:
        run: a run before its first decision, or at any later one.
        planned: the router's plan; its memory is updated.
        rng: the router's random stream; it ends as if each number had been drawn when needed.
        answer: answer to the pending decision, if already known.

    Raises:
        WorkError: the run reached an unmeasured key or tuple.
    """
    plan, sheet, replan = planned.row, blank_sheet(run.program.servers), planned.replan
    draws = Draws(plan, rng)
    try:
        while (status := go_on(run, answer, plan, sheet)) != ENDED:
            answer = NO_ANSWER
            if status == NEEDS_DRAWS:
                draws.draw()
            elif status == NEEDS_PLAN and replan is not None:
                replan(plan, sheet)
            elif status in (NO_CURVE, NO_TUPLE):
                raise WorkError(problem_of(status))
            else:
                run.grow(status)
    finally:
        draws.give_back()
