"""The price of a GPU-hour over time, as the bound has it: when more GPUs would have helped, and how much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from jobs.comparing import Bound
from scenarios.show.charts import COLORS, canvas, label_of
from slimsched.jobs.texts import DAY_S


def prices_chart(bounds: Sequence[Bound]) -> Figure:
    """A panel for each bound, a line for each pool of GPUs."""
    with canvas(8.0, 2.4 * len(bounds) + 0.5, rows=len(bounds), sharex=True, squeeze=False) as (figure, axes):
        for panel, bound in zip(axes[:, 0], bounds, strict=True):
            for pool, (name, prices) in enumerate(bound["prices"].items()):
                days = (bound["begins_s"] + np.arange(len(prices) + 1) * bound["cell_s"]) / DAY_S
                panel.stairs(prices, days, color=COLORS[pool % len(COLORS)], label=label_of(name), linewidth=1.0)
            panel.set_title(f"who {'may preempt' if bound['is_preemptive'] else 'does not preempt'}", loc="left")
            panel.set_ylabel("price of a GPU-hour, h")
            panel.set_ylim(bottom=0)
            if len(bound["prices"]) > 1:
                panel.legend(loc="upper right")
        axes[-1, 0].set_xlabel("time since the trace's start, days")
    return figure
