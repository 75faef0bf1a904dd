"""Writes a view on a sheet, for compiled routers outside of the compiled engine."""

from __future__ import annotations

from typing import Final

import numpy as np

from kit.jit import Ints
from policies.compiled.layout import SeenServer, Sheet
from policies.compiled.plan import cost_tables, work_keys
from policies.interfaces import CostModel, RouterConfig
from policies.vocabulary import IMAGE, ClusterView

_SHEET: Final = Sheet.size


def blank_sheet(servers: int) -> Ints:
    """A sheet for so many servers."""
    return np.zeros(_SHEET + servers * SeenServer.size, np.int64)


class SheetWriter:
    """One router's sheet. Not for two threads at once.

    Args:
        config: the router core's settings.
        costs: expected costs; what is outstanding is told in nanoseconds of them.
    """

    def __init__(self, config: RouterConfig, costs: CostModel) -> None:
        self.row = blank_sheet(config.servers)
        image_ns = cost_tables(config, costs)[0].tolist()
        self._image_ns = [dict(zip(work_keys(config), row, strict=True)) for row in image_ns]
        self._code = {width: number for number, width in enumerate((IMAGE, *config.widths))}
        self._head, self._seen = self.row[:_SHEET].view(Sheet.dtype), self.row[_SHEET:].view(SeenServer.dtype)

    def write(self, view: ClusterView) -> Ints:
        """What the view shows, as `sim.compiled.decide.write_sheet` writes it."""
        head = view.head
        self._head[0] = (
            view.now_ns, head.segment - 1, self._code[head.previous_width], head.location, view.candidates,
            view.head_entered_ns, view.fifo_length, view.completed, view.hold_left_ns,
            view.accuracy_sum, view.goal_floor, view.late, view.goal_limit_ns, view.goal_energy_weight,
        )  # fmt: skip
        for index, (server, image_ns) in enumerate(zip(view.servers, self._image_ns, strict=True)):
            holds = sum(1 << number for number, can in enumerate(server.widths) if can)
            work_ns = sum(count * image_ns[key] for key, count in server.outstanding.items())
            self._seen[index] = (
                holds if server.valid else 0, holds, server.outstanding_requests, server.outstanding_blocks, work_ns,
                server.utilization, server.power_w,
            )  # fmt: skip
        return self.row
