"""A ladder that keeps a floor of accuracy: its thresholds rise and fall together (`policies.floor_control`)."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Annotated

import numpy as np
from pydantic import Field

from policies.errors import InputError
from policies.floor_control import AT_BOTH, AT_NARROWEST, AT_WIDEST, FOLLOW, FREE, FloorControl
from policies.interfaces import MOST_TUPLES, RouterConfig
from policies.rules.widths import Ladder
from policies.strict import StrictModel
from policies.vocabulary import ClusterView


class ControlSpec(StrictModel):
    """That a router controls, and the floor that it keeps: without one it is what the operator asks for."""

    floor: Annotated[float, Field(ge=0, le=1)] | None = None

    def make(self, config: RouterConfig, source: str, key: str, most: float) -> FloorControl:
        """A fresh controller that shifts towards accuracy by no more than `most`.

        Raises:
            InputError: the router's core knows no accuracies.
        """
        if not config.top1:
            problem = f"the core has no accuracy table: it knows those of up to {MOST_TUPLES} width tuples"
            raise InputError(source, f"{key}.control" if key else "control", f"{problem}; leave `control` out")
        return FloorControl(FOLLOW if self.floor is None else self.floor, most)


@dataclass(frozen=True, slots=True)
class ControlledLadder:
    """`Ladder`, of whose load only so much counts as the floor allows."""

    ladder: Ladder
    control: FloorControl

    @property
    def widths(self) -> tuple[float, ...]:
        """The width set."""
        return self.ladder.widths

    def __call__(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        """The width for the view's candidate block on that server."""
        rung = self.ladder.rung_of(view, exp(-self.control.step(view)))
        self.control.end = end_of_ladder(rung, len(self.ladder.thresholds) + 1)
        return self.ladder.width_at(rung, view, server)

    def set_floor(self, floor: float | None) -> None:
        """Keep this from now on, whatever the operator's schedule says; 0 for no floor, None for the schedule's."""
        self.control.floor = FOLLOW if floor is None else floor


def end_of_ladder(rung: int, count: int) -> int:
    """Where a rung is on the ladder: at an end from which the thresholds can't lead further, or between."""
    if count == 1:
        return AT_BOTH
    if rung == 0:
        return AT_WIDEST
    return AT_NARROWEST if rung == count - 1 else FREE
