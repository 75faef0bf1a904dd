"""Keeps a floor of mean accuracy: an integral controller that shifts a router's dial by what was served so far.

A router never sees a label, but it sees what the accuracy table says of the width tuples that it completed
(`ClusterView.accuracy_sum`). Their mean deficit below the floor, over a horizon that forgets, moves the dial at once
(`GAIN`), and what of it stays, moves it for good (`GAIN_PER_S`); so a deficit is not only ended but made up for. The
dial's shift is a logarithm: of Tide's price, and of all of a ladder's thresholds. What it remembers is bounded, and
where the dial can't follow it is left alone. Compiled: `policies.compiled.control`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from policies.vocabulary import NS_PER_S, ClusterView

HORIZON_S: Final = 30.0  # three windows of `scenarios.metrics.service`: bursts are made up for, overloads forgotten
FEW: Final = 200.0  # images that count as served at the floor before the first one: a few tell little
MOST_DEFICIT: Final = 0.01  # more is forgotten at once: else a long overload would be paid for by drowning after it
GAIN: Final = 500.0  # shift for each unit of the mean deficit (a tenth of a point: 0.5)
GAIN_PER_S: Final = 40.0  # the same, a second
MOST_SHIFT: Final = 8.0  # either way: a price beyond leaves nothing but the widest, or the narrowest
MOST_STRETCH: Final = 3.0  # of thresholds upwards: a ladder has no guard; queues 20 times as long are the most
LONGEST_S: Final = 1.0  # a pause between two decisions counts for no more
FOLLOW: Final = -1.0  # in place of a floor: what the operator asks for
FREE, AT_WIDEST, AT_NARROWEST, AT_BOTH = range(4)  # where the last decision was on its dial; at both: it had none


@dataclass(slots=True)
class FloorControl:
    """One router's controller. It remembers, so it serves one run.

    Attributes:
        most: how far it may shift towards accuracy.
        floor: to keep; `FOLLOW` for the view's `goal_floor`, 0 for none.
        end: where the router's last decision was on its dial; it is the router that says so.
        shift: of the dial, towards accuracy above 0.
    """

    floor: float = FOLLOW
    most: float = MOST_SHIFT
    now_ns: int = 0
    completed: int = 0
    accuracy_sum: float = 0.0
    images: float = 0.0
    debt: float = 0.0
    bias: float = 0.0
    shift: float = 0.0
    end: int = FREE

    def step(self, view: ClusterView) -> float:
        """The shift for a decision; asked again at that decision it is the same."""
        passed_s = (view.now_ns - self.now_ns) / NS_PER_S
        came, gained = view.completed - self.completed, view.accuracy_sum - self.accuracy_sum
        self.now_ns, self.completed, self.accuracy_sum = view.now_ns, view.completed, view.accuracy_sum
        floor = view.goal_floor if self.floor < 0.0 else self.floor
        if floor <= 0.0:
            self.images = self.debt = self.bias = self.shift = 0.0
            return 0.0
        keep = HORIZON_S / (HORIZON_S + passed_s)
        self.images = self.images * keep + came
        self.debt = self.debt * keep + (floor * came - gained)
        known = self.images + FEW
        deficit = min(MOST_DEFICIT, max(-MOST_DEFICIT, self.debt / known))
        self.debt = deficit * known
        if not self._is_at_end(deficit):
            moved = self.bias + GAIN_PER_S * deficit * min(passed_s, LONGEST_S)
            self.bias = min(self.most, max(-MOST_SHIFT, moved))
        self.shift = min(self.most, max(-MOST_SHIFT, self.bias + GAIN * deficit))
        return self.shift

    def _is_at_end(self, deficit: float) -> bool:
        """Whether the dial could not follow, so that moving it further would only have to be undone."""
        return (
            self.end == AT_BOTH or (self.end == AT_WIDEST and deficit > 0) or (self.end == AT_NARROWEST and deficit < 0)
        )
