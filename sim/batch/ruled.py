"""Runs whose router is a plan (`policies.fast`): nothing of them is Python but their beginning and their end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from policies.errors import WorkError
from policies.fast.layout import ITS_SIZE, PLAN_DRAW, PLAN_DRAWS, PLAN_UNIFORMS_AT, SEEN_SERVERS
from policies.jit import Ints
from sim.batch.deciding import NEEDS_DRAWS, NEEDS_PLAN, run_by_rule
from sim.batch.layout import ENDED, NO_CURVE, NO_TUPLE
from sim.batch.program import addressed
from sim.batch.simulation import RunRow, problem_of

_DRAWN = 1 << 14  # numbers at a time
Replan = Callable[[Ints, Ints], None]


def run_to_end(run: RunRow, plan: Ints, rng: np.random.Generator, replan: Replan | None = None) -> None:
    """Let a plan make every decision of a run.

    Args:
        run: before its first decision.
        plan: what `policies.fast.plan` made; its memory is written to.
        rng: the router's own stream; more is drawn from it than is used.
        replan: what to call with (plan, sheet) when the plan asks for it.

    Raises:
        WorkError: the run came to what was never measured.
    """
    servers = run.program.servers
    sheet = np.zeros(SEEN_SERVERS + servers * ITS_SIZE, np.int64)
    uniforms = np.zeros(0)
    while True:
        status = run_by_rule(run.row, run.shape.parameters, plan, sheet)
        if status == ENDED:
            return
        if status == NEEDS_DRAWS:
            uniforms = np.concatenate([uniforms[plan[PLAN_DRAW] :], rng.random(_DRAWN)])
            plan[PLAN_DRAW], plan[PLAN_DRAWS], plan[PLAN_UNIFORMS_AT] = 0, len(uniforms), addressed(uniforms)
        elif status == NEEDS_PLAN and replan is not None:
            replan(plan, sheet)
        elif status in (NO_CURVE, NO_TUPLE):
            raise WorkError(problem_of(status))
        else:
            run.grow(status)
