"""The router that Tide's knobs make for a cluster, and its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import exp
from pathlib import Path
from typing import Any, Final

import numpy as np

from policies.compiled.control import Control, control_row
from policies.compiled.decide import choose_once
from policies.compiled.layout import NONE, Plan
from policies.compiled.plan import PlanRow, cost_tables, exists, work_keys
from policies.compiled.rules import TIDE
from policies.compiled.sheet import SheetWriter
from policies.compiled.tide import Knobs, Memory, Remembered
from policies.goal_control import GoalControl, Steered
from policies.jit import Ints
from policies.ppo import checkpoint
from policies.rules.context import RouterContext
from policies.rules.controlled import ControlSpec
from policies.rules.costs import middle_widths, worth_of_steps
from policies.rules.holding import HoldSpec
from policies.rules.specs import POINT
from policies.tide.knobs import KIND, OTHERS, PRICES, Reals, knobs
from policies.vocabulary import Choice, ClusterView

GUARD_ON_S, GUARD_OFF_S = 0.25, 0.05  # backlog at which the fallback takes over, and gives back
RATES_S: Final = (0.05, 0.5, 5.0)  # times over which arrivals are averaged
SPEED_S: Final = 0.5  # the same for a server's slowdown
_NS = 1e9


class TideRouter(Steered):
    """Tide for one cluster. It remembers arrivals and slowdowns, so it serves one run, in one thread.

    Args:
        values: (K,) what was learned, in the order of `knobs.knobs`.
        context: the cluster's settings, costs and accuracies.
        control: keeps goals by shifting the price, and weighs energy; None leaves the price alone.
        guarded: hand over to the narrowest width and least work while the backlog is beyond `GUARD_ON_S`.

    Raises:
        ValueError: another number of values than the network's segments and widths ask for.
    """

    def __init__(
        self, values: Reals, context: RouterContext, *, guarded: bool = True, control: GoalControl | None = None
    ) -> None:
        config = context.config
        self.values = np.array(values, np.float64)
        wanted = len(knobs(config.segments, len(config.widths)))
        if self.values.shape != (wanted,):
            raise ValueError(f"{self.values.shape} values; {wanted} are learned for this network")
        self.context, self._guarded, self._control = context, guarded, control
        self.row = self.plan()
        self._plan = Plan(self.row)
        self._sheet = SheetWriter(config, context.costs)

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Decide for the view's candidate block; nothing is drawn."""
        choose_once(self.row, self._sheet.write(view))
        plan = self._plan
        return Choice(plan.server, self.context.config.widths[plan.width], plan.group)

    @property
    def control(self) -> Control | None:
        """Where its goals are set."""
        at = self._plan.width_rule.control_at
        return Control(self._plan, at) if at else None

    @property
    def handovers(self) -> int:
        """How often the guard has handed over to the fallback rule."""
        return Memory(self._plan, self._plan.memory_at).handovers

    @property
    def guarded_decisions(self) -> int:
        """How many decisions the fallback rule has made."""
        return Memory(self._plan, self._plan.memory_at).guarded

    def plan(self) -> Ints:
        """A fresh plan for compiled code (`policies.compiled`)."""
        config, x = self.context.config, self.values
        transfer, batch, move_ms, slowness, share, share_backlog, delay, hold, coming, own = x[PRICES:OTHERS].tolist()
        plan = PlanRow(config, self.context.costs)
        plan.add_costs()
        worth, cost, capacity, unit_s, waiting_s = self._tables(x[OTHERS:], min(max(own, 0.0), 1.0))
        its = Knobs.blank()
        its.price.numbers[:] = x[:PRICES].view(np.int64)
        its.transfer, its.batch, its.move_s = max(transfer, 0.0), max(batch, 0.0), move_ms / 1e3
        its.slowness, its.share, its.share_load = min(max(slowness, 0.0), 1.0), share, share_backlog
        its.hold = exp(min(hold, 10.0)) / 1e3
        its.coming = max(coming, 0.0)
        its.delay = max(delay, 0.0) / unit_s
        its.worth_at, its.cost_at, its.capacity_at = map(plan.add, (worth, cost, capacity))
        its.tau_fast_s, its.tau_mid_s, its.tau_slow_s = RATES_S
        its.tau_speed_s, its.waiting_s = SPEED_S, waiting_s
        its.guard_on_s, its.guard_off_s = GUARD_ON_S if self._guarded else np.inf, GUARD_OFF_S
        if self._control is not None:
            its.energy_at = plan.add(self._energy())
        plan.head.width_rule.rule, plan.head.knobs_at = TIDE, plan.add(its.numbers)
        seen = np.zeros(Memory.size + config.servers * Remembered.size, np.int64)
        no_width = np.full(config.servers * config.segments, NONE, np.int64)
        plan.head.memory_at = plan.add(np.concatenate([seen, no_width]))
        if self._control is not None:
            plan.head.width_rule.control_at = plan.add(control_row(self._control))
        return plan.row()

    def _energy(self) -> Reals:
        """(N, keys) what an image's joules cost there at a weight of one, in accuracy; its next segment's included."""
        config, keys = self.context.config, work_keys(self.context.config)
        rows = [
            [self.context.costs.energy_j(server, key) if exists(key) else 0.0 for key in keys]
            for server in range(config.servers)
        ]
        widths = len(config.widths)
        image = np.array(rows).reshape(config.servers, config.segments, widths, widths + 1)
        return POINT * (image + _ahead(image.mean(axis=0))[None, :, :, None])

    def _tables(self, stretch: Reals, own: float) -> tuple[Reals, Reals, Reals, float, float]:
        """Worth (S, W), cost (N, keys), capacity (N,) in images/s; a unit of cost, and what one waiting is, in s."""
        config = self.context.config
        servers, segments, widths = config.servers, config.segments, len(config.widths)
        image = cost_tables(config, self.context.costs)[0].reshape(servers, segments, widths, widths + 1) / _NS
        mean = image.mean(axis=0)
        full_s = _path_s(image, (widths - 1,) * segments)
        unit_s = full_s.mean()
        cost = (own * image + (1 - own) * mean + _ahead(mean)[None, :, :, None]) / unit_s
        steps = worth_of_steps(self.context) * np.exp(stretch.reshape(segments, widths - 1))
        worth = np.hstack([np.zeros((segments, 1)), np.cumsum(steps, axis=1)])
        middle = middle_widths(config)
        middle_s = _path_s(image, tuple(config.widths.index(width) for width in middle))
        return worth, cost, 1.0 / middle_s, float(unit_s), float(middle_s.mean()) / segments

    # ------------------------------------------------------------------------------------------------------- files

    def save(
        self,
        path: Path,
        made_by: Mapping[str, Any],
        hold: HoldSpec | None = None,
        control: ControlSpec | None = None,
    ) -> None:
        """Write it, atomically, for `TideSpec.read`, with what is held back for it and the goals that it keeps.

        `made_by` says how it came.
        """
        config = self.context.config
        names = [knob.name for knob in knobs(config.segments, len(config.widths))]
        header = {
            "kind": KIND,
            "names": json.dumps(names),
            "widths": json.dumps(config.widths),
            "segments": str(config.segments),
            "made_by": json.dumps(dict(made_by)),
        }
        if hold is not None:
            header["hold"] = hold.model_dump_json()
        if control is not None:
            header["control"] = control.model_dump_json()
        checkpoint.write(path, {"tide.values": self.values}, header)


def _ahead(mean: Reals) -> Reals:
    """(S, W) what a wider output costs in the next segment, of (S, W, W + 1) what an image costs."""
    segments, widths, _ = mean.shape
    ahead = np.zeros((segments, widths))
    ahead[:-1] = mean[1:, :, 1:].mean(axis=1) - mean[1:, :, 1:2].mean(axis=1)
    return ahead


def _path_s(image: Reals, widths: tuple[int, ...]) -> Reals:
    """(N,) seconds of one image through all segments at these widths, in full batches."""
    before = (0, *(width + 1 for width in widths))
    total: Reals = np.zeros(len(image))
    for segment, (width, previous) in enumerate(zip(widths, before, strict=False)):
        total = total + image[:, segment, width, previous]
    return total
