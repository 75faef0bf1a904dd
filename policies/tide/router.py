"""The router that Tide's knobs make for a cluster, and its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from math import exp
from pathlib import Path
from typing import Any, Final

import numpy as np

from policies.compiled import tide
from policies.compiled.decide import choose_once
from policies.compiled.layout import (
    PLAN_GROUP,
    PLAN_KNOBS_AT,
    PLAN_MEMORY_AT,
    PLAN_SERVER,
    PLAN_WIDTH,
    PLAN_WIDTH_RULE,
    TIDE,
)
from policies.compiled.plan import Plan, cost_tables
from policies.compiled.sheet import Sheet
from policies.jit import Ints
from policies.ppo import checkpoint
from policies.rules.context import RouterContext
from policies.rules.costs import tuple_cost_s
from policies.tide.knobs import KIND, OTHERS, PRICES, Reals, knobs
from policies.vocabulary import Choice, ClusterView

GUARD_ON_S, GUARD_OFF_S = 0.25, 0.05  # backlog at which the fallback takes over, and gives back
RATES_S: Final = (0.05, 0.5, 5.0)  # times over which arrivals are averaged
PACE_S: Final = 0.5  # the same for a server's pace
_LEAST_WORTH = 1e-5  # of a step to a wider width, where the table has a wider one that is worse
_EFFICIENT = 0.002  # so much less accuracy than one no dearer, and a tuple counts for a third
_NS = 1e9


class TideRouter:
    """Tide for one cluster. It remembers arrivals and paces, so it serves one run, in one thread.

    Args:
        values: (K,) what was learned, in the order of `knobs.knobs`.
        context: the cluster's settings, costs and accuracies.
        guarded: hand over to the narrowest width and least work while the backlog is beyond `GUARD_ON_S`.

    Raises:
        ValueError: another number of values than the network's segments and widths ask for.
    """

    def __init__(self, values: Reals, context: RouterContext, *, guarded: bool = True) -> None:
        config = context.config
        self.values = np.array(values, np.float64)
        wanted = len(knobs(config.segments, len(config.widths)))
        if self.values.shape != (wanted,):
            raise ValueError(f"{self.values.shape} values; {wanted} are learned for this network")
        self._context, self._guarded = context, guarded
        self._row = self.plan()
        self._reals = self._row.view(np.float64)
        self._sheet = Sheet(config, context.costs)

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Decide for the view's candidate block; nothing is drawn."""
        choose_once(self._row, self._sheet.write(view))
        widths = self._context.config.widths
        return Choice(int(self._row[PLAN_SERVER]), widths[self._row[PLAN_WIDTH]], int(self._row[PLAN_GROUP]))

    @property
    def handovers(self) -> int:
        """How often the guard has handed over to the fallback rule."""
        return int(self._reals[self._row[PLAN_MEMORY_AT] + tide.E_HANDOVERS])

    @property
    def guarded_decisions(self) -> int:
        """How many decisions the fallback rule has made."""
        return int(self._reals[self._row[PLAN_MEMORY_AT] + tide.E_GUARDED])

    def plan(self) -> Ints:
        """A fresh plan for compiled code (`policies.compiled`)."""
        config, x = self._context.config, self.values
        transfer, batch, move_ms, slowness, share, share_backlog, delay, hold, coming, own = x[PRICES:OTHERS].tolist()
        plan = Plan(config, self._context.costs)
        plan.add_costs()
        worth, cost, capacity, unit_s, waiting_s = self._tables(x[OTHERS:], min(max(own, 0.0), 1.0))
        row = np.zeros(tide.T_SIZE)
        row[:PRICES] = x[:PRICES]
        row[tide.T_TRANSFER], row[tide.T_BATCH], row[tide.T_MOVE_S] = max(transfer, 0.0), max(batch, 0.0), move_ms / 1e3
        row[tide.T_SLOWNESS], row[tide.T_SHARE], row[tide.T_SHARE_LOAD] = (
            min(max(slowness, 0.0), 1.0),
            share,
            share_backlog,
        )
        row[tide.T_HOLD] = exp(min(hold, 10.0)) / 1e3
        row[tide.T_COMING] = max(coming, 0.0)
        row[tide.T_DELAY] = max(delay, 0.0) / unit_s
        row[tide.T_WORTH_AT], row[tide.T_COST_AT], row[tide.T_CAPACITY_AT] = map(plan.add, (worth, cost, capacity))
        row[[tide.T_TAU_FAST, tide.T_TAU_MID, tide.T_TAU_SLOW]] = RATES_S
        row[tide.T_TAU_SPEED], row[tide.T_WAITING_S] = PACE_S, waiting_s
        row[tide.T_GUARD_ON_S] = GUARD_ON_S if self._guarded else np.inf
        row[tide.T_GUARD_OFF_S] = GUARD_OFF_S
        plan.head[PLAN_WIDTH_RULE], plan.head[PLAN_KNOBS_AT] = TIDE, plan.add(row)
        seen = np.zeros(tide.E_SERVERS + config.servers * tide.F_SIZE)
        no_width = np.full(config.servers * config.segments, -1.0)
        plan.head[PLAN_MEMORY_AT] = plan.add(np.concatenate([seen, no_width]))
        return plan.row()

    def _tables(self, stretch: Reals, own: float) -> tuple[Reals, Reals, Reals, float, float]:
        """Worth (S, W), cost (N, keys), capacity (N,) in images/s; a unit of cost, and what one waiting is, in s."""
        config = self._context.config
        servers, segments, widths = config.servers, config.segments, len(config.widths)
        image = cost_tables(config, self._context.costs)[0].reshape(servers, segments, widths, widths + 1) / _NS
        mean = image.mean(axis=0)
        full_s = _path_s(image, (widths - 1,) * segments)
        ahead = np.zeros((segments, widths))  # a wider output makes the next segment dearer
        ahead[:-1] = mean[1:, :, 1:].mean(axis=1) - mean[1:, :, 1:2].mean(axis=1)
        unit_s = full_s.mean()
        cost = (own * image + (1 - own) * mean + ahead[None, :, :, None]) / unit_s
        steps = worth_of_steps(self._context) * np.exp(stretch.reshape(segments, widths - 1))
        worth = np.hstack([np.zeros((segments, 1)), np.cumsum(steps, axis=1)])
        middle = tuple(min(widths - 1, s + s // 3) * (widths > 1) for s in range(segments))  # cheap ones, then full
        middle_s = _path_s(image, middle)
        return worth, cost, 1.0 / middle_s, float(unit_s), float(middle_s.mean()) / segments

    # ------------------------------------------------------------------------------------------------------- files

    def save(self, path: Path, made_by: Mapping[str, Any]) -> None:
        """Write it, atomically, for `TideSpec.read`; `made_by` says how it came about."""
        config = self._context.config
        names = [knob.name for knob in knobs(config.segments, len(config.widths))]
        header = {
            "kind": KIND,
            "names": json.dumps(names),
            "widths": json.dumps(config.widths),
            "segments": str(config.segments),
            "made_by": json.dumps(dict(made_by)),
        }
        checkpoint.write(path, {"tide.values": self.values}, header)


def worth_of_steps(context: RouterContext) -> Reals:
    """(S, W - 1) what each step to a wider width adds to the accuracy, if segments only add up.

    A least-squares fit, in which a tuple counts for less the more accuracy one that is no dearer has.
    """
    config = context.config
    segments, widths = config.segments, len(config.widths)
    codes = np.array(list(product(range(widths), repeat=segments)))
    top1 = np.array([context.prior(tuple(config.widths[w] for w in code)) for code in codes])
    steps = (codes[:, :, None] >= np.arange(1, widths)).reshape(len(codes), -1).astype(np.float64)
    cost_s = np.array([tuple_cost_s(context, tuple(config.widths[w] for w in code)) for code in codes])
    lacks = np.array([top1[cost_s <= its_s].max() - its for its_s, its in zip(cost_s, top1, strict=True)])
    weight: Reals = np.sqrt(np.exp(-lacks / _EFFICIENT))[:, None]
    terms = np.hstack([np.ones((len(codes), 1)), steps])
    found = np.linalg.lstsq(weight * terms, weight[:, 0] * top1, rcond=None)[0]
    worth: Reals = np.maximum(found[1:].reshape(segments, widths - 1), _LEAST_WORTH)
    return worth


def _path_s(image: Reals, widths: tuple[int, ...]) -> Reals:
    """(N,) seconds of one image through all segments at these widths, in full batches."""
    before = (0, *(width + 1 for width in widths))
    total: Reals = np.zeros(len(image))
    for segment, (width, previous) in enumerate(zip(widths, before, strict=False)):
        total = total + image[:, segment, width, previous]
    return total
