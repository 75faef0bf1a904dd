"""A ladder that keeps goals: its thresholds move together (`policies.goal_control`)."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Annotated, Final

import numpy as np
from pydantic import Field

from kit.errors import InputError
from kit.strict import StrictModel
from policies.goal_control import FOLLOW, MAX_SHIFT, MAX_WEIGHT, GoalControl, Steered, end_of_dial
from policies.interfaces import MAX_TUPLES, RouterConfig
from policies.rules.widths import Ladder
from policies.vocabulary import FOLLOW_NS, ClusterView, nanoseconds

LONGEST_LIMIT_S: Final = 1e7  # as in scenarios


class ControlSpec(StrictModel):
    """That a router controls, and goals of its own: each that it has not is what the operator asks for.

    Attributes:
        floor: of mean accuracy; 0 for none.
        p99_limit_s: of the p99 latency; 0 for none.
        energy_weight: what a joule an image costs, in points of accuracy; only Compass heeds it.
    """

    floor: Annotated[float, Field(ge=0, le=1)] | None = None
    p99_limit_s: Annotated[float, Field(ge=0, le=LONGEST_LIMIT_S)] | None = None
    energy_weight: Annotated[float, Field(ge=0, le=MAX_WEIGHT)] | None = None

    def make(self, config: RouterConfig, source: str, key: str, most: float, *, weighs: bool = False) -> GoalControl:
        """Create a controller that shifts towards accuracy by at most `most`, of a router that `weighs` energy.

        It has one controller for each class.

        Raises:
            InputError: the router's core has no accuracy table; no width tuple reaches the floor; the router can't use
                an energy weight.
        """
        key = f"{key}.control" if key else "control"
        if not config.top1:
            problem = f"the core has no accuracy table: it knows those of up to {MAX_TUPLES} width tuples"
            raise InputError(source, key, f"{problem}; leave `control` out")
        if self.energy_weight is not None and not weighs:
            problem = f"is {self.energy_weight:g}, but this kind knows no energy; leave it out, or take compass"
            raise InputError(source, f"{key}.energy_weight", problem)
        best = max(config.top1)
        if self.floor is not None and self.floor > best:
            problem = f"no width tuple is as accurate as {self.floor:g}; the best has {best:.4f}: name at most that"
            raise InputError(source, f"{key}.floor", problem)
        first, *others = [
            GoalControl(
                floor=FOLLOW if self.floor is None else self.floor,
                most=MAX_SHIFT if config.carried_img_s else most,  # without admission nothing else bounds the queue
                limit_ns=FOLLOW_NS if self.p99_limit_s is None else nanoseconds(self.p99_limit_s),
                energy_weight=FOLLOW if self.energy_weight is None else self.energy_weight,
                best=best,
                weighs=weighs,
            )
            for _ in range(config.class_count)
        ]
        first.others = tuple(others)
        return first


@dataclass(frozen=True, slots=True)
class ControlledLadder(Steered):
    """A `Ladder` for a load scaled by the goals."""

    ladder: Ladder
    control: GoalControl

    @property
    def widths(self) -> tuple[float, ...]:
        """The width set."""
        return self.ladder.widths

    def __call__(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        """Return the width for the view's candidate block on that server."""
        control = self.control.of(view)
        rung = self.ladder.rung_of(view, exp(-control.step(view)))
        control.end = end_of_dial(rung, len(self.ladder.rungs[view.head.service_class]))
        return self.ladder.width_at(rung, view, server)
