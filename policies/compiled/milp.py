"""Plans that need Python: HiGHS solves Proteus' program, called by the same code as the readable router's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kit.jit import Ints
from policies.compiled.layout import Plan, SeenServer, Sheet
from policies.interfaces import RouterConfig
from policies.rules.milp import Milp
from policies.vocabulary import IMAGE, ClusterView, HeadKey, ServerView

Replan = Callable[[Ints, Ints], None]


class MilpMemory:
    """The state of a `Milp`, in its router and in its plan.

    Args:
        codes: for each of the router's tuples, its widths by number.
    """

    def __init__(self, router: Milp, config: RouterConfig, codes: Sequence[Sequence[int]]) -> None:
        self._router, self._config = router, config
        self._codes = np.array(codes, np.int64)

    def write(self, row: Ints) -> None:
        """Copy the router's tuples, shares and placed counts into its plan."""
        router, servers, reals, plan = self._router, self._config.servers, row.view(np.float64), Plan(row)
        widths_at = plan.width_rule.rungs_at
        row[widths_at : widths_at + servers * self._config.segments] = self._codes[list(router.plan.choice)].ravel()
        reals[plan.shares_at : plan.shares_at + servers] = router.plan.shares
        row[plan.placed_at : plan.placed_at + servers] = router.placed
        plan.wake_ns = router.since_ns + router.period_ns

    def replan(self, row: Ints, sheet: Ints) -> None:
        """Let the router make a new plan at the end of a period."""
        self._router.plan_anew(view_of(sheet, self._config))
        self.write(row)

    def keep(self, row: Ints) -> None:
        """Copy the placed counts into the router."""
        placed_at = Plan(row).placed_at
        self._router.placed = row[placed_at : placed_at + self._config.servers].tolist()


def view_of(sheet: Ints, config: RouterConfig) -> ClusterView:
    """Return a sheet as a view: without work by key, memory and instances, which a sheet lacks."""
    seen = Sheet(sheet)
    servers = tuple(
        ServerView(
            valid=code != 0,
            widths=tuple(holds[seen.segment]),
            outstanding_requests=requests,
            outstanding_blocks=blocks,
            outstanding={},
            utilization=utilization,
            power_w=power_w,
            vram_used_bytes=0,
            loaded=(),
            loading=(),
        )
        for holds, (code, _, requests, blocks, _, utilization, power_w) in zip(
            config.holds, sheet[Sheet.size : seen.samples_at].view(SeenServer.dtype).tolist(), strict=True
        )
    )
    head = HeadKey(seen.segment + 1, (IMAGE, *config.widths)[seen.previous_width], seen.location, seen.service_class)
    return ClusterView(seen.now_ns, head, seen.candidates, seen.entered_ns, seen.fifo_length, seen.completed, servers)
