"""Writes a view on a sheet, for compiled routers outside of the compiled engine."""

from __future__ import annotations

import numpy as np

from policies.compiled.layout import *
from policies.compiled.plan import cost_tables, work_keys
from policies.interfaces import CostModel, RouterConfig
from policies.jit import Ints
from policies.vocabulary import IMAGE, ClusterView


class Sheet:
    """One router's sheet. Not for two threads at once.

    Args:
        config: the router core's settings.
        costs: expected costs; what is outstanding is told in nanoseconds of them.
    """

    def __init__(self, config: RouterConfig, costs: CostModel) -> None:
        self.row: Ints = np.zeros(SEEN_SERVERS + config.servers * ITS_SIZE, np.int64)
        image_ns = cost_tables(config, costs)[0].tolist()
        self._image_ns = [dict(zip(work_keys(config), row, strict=True)) for row in image_ns]
        self._code = {width: number for number, width in enumerate((IMAGE, *config.widths))}
        self._reals = self.row.view(np.float64)

    def write(self, view: ClusterView) -> Ints:
        """What the view shows, as `sim.compiled.decide.write_sheet` writes it."""
        head = view.head
        seen = [view.now_ns, head.segment - 1, self._code[head.previous_width], head.location, view.candidates]
        seen += [view.head_entered_ns, view.fifo_length, view.completed]
        power, at = [], SEEN_SERVERS
        for server, image_ns in zip(view.servers, self._image_ns, strict=True):
            holds = sum(1 << number for number, can in enumerate(server.widths) if can)
            work_ns = sum(count * image_ns[key] for key, count in server.outstanding.items())
            seen += [holds if server.valid else 0, holds, server.outstanding_requests, server.outstanding_blocks]
            seen += [work_ns, 0, 0]
            power.append((at, server.utilization, server.power_w))
            at += ITS_SIZE
        self.row[:] = seen
        for at, utilization, power_w in power:
            self._reals[at + ITS_UTILIZATION], self._reals[at + ITS_POWER] = utilization, power_w
        return self.row
