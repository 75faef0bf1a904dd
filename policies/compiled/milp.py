"""Where a plan needs Python: Proteus' programme is solved by HiGHS, by the very code that the readable router calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policies.compiled.layout import *
from policies.interfaces import RouterConfig
from policies.jit import Ints
from policies.rules.milp import Milp
from policies.vocabulary import IMAGE, ClusterView, HeadKey, ServerView

Replan = Callable[[Ints, Ints], None]


class MilpMemory:
    """What a `Milp` carries out, in its router and in its plan.

    Args:
        codes: for each of the router's tuples, its widths by number.
    """

    def __init__(self, router: Milp, config: RouterConfig, codes: Sequence[Sequence[int]]) -> None:
        self._router, self._config = router, config
        self._codes = np.array(codes, np.int64)

    def write(self, row: Ints) -> None:
        """Put what the router carries out, and has placed, into its plan."""
        router, servers, reals = self._router, self._config.servers, row.view(np.float64)
        widths, shares, placed = row[PLAN_RUNGS_AT], row[PLAN_SHARES_AT], row[PLAN_PLACED_AT]
        row[widths : widths + servers * self._config.segments] = self._codes[list(router.plan.choice)].ravel()
        reals[shares : shares + servers] = router.plan.shares
        row[placed : placed + servers] = router.placed
        row[PLAN_WAKE_NS] = router.since_ns + router.period_ns

    def replan(self, row: Ints, sheet: Ints) -> None:
        """The period is over: the router makes a new plan."""
        self._router.plan_anew(view_of(sheet, self._config))
        self.write(row)

    def keep(self, row: Ints) -> None:
        """Put what was placed into the router."""
        placed = row[PLAN_PLACED_AT]
        self._router.placed = row[placed : placed + self._config.servers].tolist()


def view_of(sheet: Ints, config: RouterConfig) -> ClusterView:
    """What a sheet shows, as a view: without work by key and bytes of memory, which are not on it."""
    found, reals = sheet.tolist(), sheet.view(np.float64)
    segment = found[SEEN_SEGMENT] + 1
    servers = tuple(
        ServerView(
            valid=found[at + ITS_CODE] != 0,
            widths=tuple(holds[segment - 1]),
            outstanding_requests=found[at + ITS_REQUESTS],
            outstanding_blocks=found[at + ITS_BLOCKS],
            outstanding={},
            utilization=float(reals[at + ITS_UTILIZATION]),
            power_w=float(reals[at + ITS_POWER]),
            vram_used_bytes=0,
        )
        for holds, at in zip(config.holds, range(SEEN_SERVERS, len(found), ITS_SIZE), strict=True)
    )
    head = HeadKey(segment, (IMAGE, *config.widths)[found[SEEN_PREVIOUS]], found[SEEN_LOCATION])
    return ClusterView(
        found[SEEN_NOW],
        head,
        found[SEEN_CANDIDATES],
        found[SEEN_ENTERED],
        found[SEEN_FIFO],
        found[SEEN_COMPLETED],
        servers,
    )
