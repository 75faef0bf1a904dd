"""A lookahead of a few micro-batches: each choice is evaluated by the ends of its micro-batch and of the next ones.

This is model-predictive control with a minimal model, from expected costs and without learning: the known state of the
cluster is rolled out for every choice, and only the first step is executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, log
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from policies.goal_control import MAX_STRETCH, GoalControl, Steered, end_of_dial
from policies.interfaces import CostModel
from policies.rules.rule_context import (
    RouterContext,
    batch_ns,
    default_target_s,
    is_up,
    outstanding_ns,
    path_ns,
    transfer_ns,
    worth_of_steps,
)
from policies.rules.rule_params import POINT, Above0, From0, Reals, RuleSpec, Space
from policies.rules.rule_parts import ControlSpec, valid_servers
from policies.vocabulary import NS_PER_S, Choice, ClusterView, WorkKey


@dataclass(slots=True)
class Lookahead(Steered):
    """The choice of server and width with the least mean latency of this and the next micro-batches, less the
    accuracy's worth.

    The micro-batch ends after the server's outstanding work, the transfer and its batch. The next work is the images
    that wait, and those expected within the horizon at the rate seen, at each of their segments. It is split into equal
    lots, `micro_batches` for each server that is up, placed one after the other at the server that ends each first, at
    the mean cost of the same width: a width taken now would be taken next, too. Ties go to the first server, and to its
    narrowest width.

    Attributes:
        micro_batch_sizes: the sizes to choose from; always the largest.
        image_ns: (servers, widths) an image's mean expected time at a segment, all of them at this width.
        worth_ns: (segments, widths) the latency that the width's accuracy there is worth, relative to the narrowest.
        horizon_s: the time for which arrivals are predicted, and over which their rate is averaged.
        weight: weight of a coming image, relative to a candidate.
        micro_batches: number of lots of coming work, for each server that is up.
        control: keeps goals: it moves the worth.
        rate_img_s, arrived, seen_ns: the rate seen, the arrivals until the last decision, and its time.
    """

    costs: CostModel
    widths: tuple[float, ...]
    micro_batch_sizes: tuple[int, ...]
    image_ns: tuple[tuple[int, ...], ...]
    worth_ns: tuple[tuple[int, ...], ...]
    horizon_s: float
    weight: float
    micro_batches: int
    control: GoalControl | None = None
    rate_img_s: float = 0.0
    arrived: int = 0
    seen_ns: int = 0

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Decide for the view's candidate micro-batch; draws no random numbers."""
        self._remember(view)
        images = min(self.micro_batch_sizes[-1], view.candidates)
        arriving = int(self.rate_img_s * self.horizon_s * len(self.worth_ns))
        count = self.micro_batches * sum(is_up(server) for server in view.servers)
        lots = in_lots(max(0, view.fifo_length - images) + arriving, count)
        busy_ns = [outstanding_ns(self.costs, view, index) for index in range(len(view.servers))]
        choices = [
            (index, width)
            for index in valid_servers(view)
            for width in range(len(self.widths))
            if view.servers[index].widths[width]
        ]
        control = None if self.control is None else self.control.of(view)
        scale = 1.0 if control is None else exp(control.step(view))
        server, width = min(choices, key=lambda choice: self._cost_ns(view, choice, busy_ns, images, lots, scale))
        if control is not None:
            widths = [each for _, each in choices]  # widths that no server can take are not part of its dial
            control.end = end_of_dial(max(widths) - width, max(widths) - min(widths) + 1)
        return Choice(server, self.widths[width], self.micro_batch_sizes[-1])

    def _remember(self, view: ClusterView) -> None:
        arrived = view.completed + view.fifo_length + sum(server.outstanding_requests for server in view.servers)
        passed_s = (view.now_ns - self.seen_ns) / NS_PER_S
        came = max(0, arrived - self.arrived)  # fewer if some have failed
        self.rate_img_s += (came - self.rate_img_s * passed_s) / (self.horizon_s + passed_s)
        self.arrived, self.seen_ns = arrived, view.now_ns

    def _cost_ns(
        self,
        view: ClusterView,
        choice: tuple[int, int],
        work_ns: Sequence[int],
        images: int,
        lots: Sequence[int],
        scale: float,
    ) -> float:
        server, width = choice
        key = WorkKey(view.head.segment, self.widths[width], view.head.previous_width)
        busy_ns = list(work_ns)
        busy_ns[server] += transfer_ns(self.costs, view, server) + batch_ns(self.costs, server, key, images)
        total_ns, weighed = images * (busy_ns[server] * 1.0), images * 1.0
        for lot in lots:
            ends_ns = {
                index: busy_ns[index] + lot * self.image_ns[index][width]
                for index, other in enumerate(view.servers)
                if is_up(other)
            }
            first = min(ends_ns, key=lambda index: ends_ns[index])
            busy_ns[first] = ends_ns[first]
            total_ns += self.weight * lot * (busy_ns[first] * 1.0)
            weighed += self.weight * lot
        return total_ns / weighed - self.worth_ns[view.head.segment - 1][width] * scale


def in_lots(images: int, count: int) -> list[int]:
    """Return `count` lots, equal except for the last ones, which get the rest."""
    size = (images + count - 1) // count
    return [max(0, min(size, images - number * size)) for number in range(count)]


class LookaheadRule(RuleSpec):
    """The best of the next few micro-batches (`Lookahead`). It places itself.

    Attributes:
        worth_s: the latency that a point of accuracy (0.01) is worth; a hundredth of the latency target that `slackfit`
            assumes if it is not given.
        horizon_s: for how long arrivals are foreseen, and over how long their rate is averaged.
        weight: what an image that comes next counts, in times of a candidate.
        micro_batches: in how many lots candidates are examined, for each server that is up.
        control: that it keeps goals, for which its worth moves; fixed if not given.
    """

    KIND: ClassVar[str] = "lookahead"

    worth_s: Above0 | None = None
    horizon_s: Annotated[float, Field(gt=0, le=60)] = 0.01
    weight: From0 = 1.0
    micro_batches: Annotated[int, Field(ge=1, le=8)] = 1
    control: ControlSpec | None = None

    @classmethod
    def space(cls, context: RouterContext, floor: float) -> Space:
        """Return the space of logarithms of the worth (more is more accurate), of the horizon and of the weight."""

        def rule(values: Reals) -> LookaheadRule:
            return cls(worth_s=exp(values[0]), horizon_s=min(60.0, exp(values[1])), weight=exp(values[2]))

        first = np.array([log(_default_worth_s(context)), log(0.01), 0.0])
        return Space("LookaheadSpace", first, np.array([1.5, 1.0, 1.0]), rule)

    def dialled(self, by: float, context: RouterContext) -> LookaheadRule:
        """See `RuleSpec`."""
        worth_s = self.worth_s or _default_worth_s(context)
        return self.model_copy(update={"worth_s": worth_s * exp(by), "control": None})

    def chooser(self, context: RouterContext, source: str = "router", key: str = "") -> Lookahead:
        """See `RuleSpec`."""
        config, costs = context.config, context.costs
        worth_s = _default_worth_s(context) if self.worth_s is None else self.worth_s
        of_model = [worth_of_steps(context, widths).tolist() for widths in config.model_widths]
        accuracy = [
            [value for steps in of_models for value in (0.0, *accumulate(steps))]
            for of_models in zip(*of_model, strict=True)
        ]
        image_ns = tuple(
            tuple(path_ns(costs, server, (width,) * config.segments) // config.segments for width in config.widths)
            for server in range(config.servers)
        )
        return Lookahead(
            costs=costs,
            widths=config.widths,
            micro_batch_sizes=self.micro_batch_sizes(config, source, key),
            image_ns=image_ns,
            worth_ns=tuple(tuple(round(worth_s * NS_PER_S * value / POINT) for value in row) for row in accuracy),
            horizon_s=self.horizon_s,
            weight=self.weight,
            micro_batches=self.micro_batches,
            control=None if self.control is None else self.control.make(config, source, key, MAX_STRETCH),
        )


def _default_worth_s(context: RouterContext) -> float:
    return default_target_s(context) / 100
