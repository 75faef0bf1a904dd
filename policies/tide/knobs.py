"""What Tide learns, by name: where the search begins, how far it looks, and which groups of it can be switched off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from policies.errors import nearest

KIND: Final = "tide"  # what a file of it says of itself

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Knob:
    """One learned number: its name, its switch, where it begins and how far the search looks at first."""

    name: str
    switch: str
    start: float
    spread: float


_PRICE: Final = (
    Knob("price", "level", -6.8, 0.6),  # the logarithm's level, with nobody waiting
    Knob("queue_2", "queue", 0.8, 0.25),  # of log(1 + requests inside per server that is up / 2)
    Knob("queue_16", "queue", 0.8, 0.25),
    Knob("queue_128", "queue", 0.8, 0.25),
    Knob("backlog_1ms", "backlog", 0.8, 0.25),  # of log(1 + expected work per server that is up / 1 ms)
    Knob("rising", "rates", 0.0, 0.15),  # of log(arrivals over 50 ms / over 500 ms)
    Knob("risen", "rates", 0.0, 0.15),  # of log(over 500 ms / over 5 s)
    Knob("load", "rates", 0.0, 0.2),  # of log(over 500 ms / capacity of what is up)
    Knob("overload", "rates", 0.0, 0.2),  # of what that is above 1
    Knob("load_now", "rates", 0.5, 0.2),  # of (over 50 ms / capacity)
    Knob("waited_1ms", "waited", 0.1, 0.1),  # of log(1 + what the oldest has waited / 1 ms)
)
_REST: Final = (
    Knob("transfer", "placement", 1.2, 0.4),  # weight of a transfer's expected time
    Knob("batch", "placement", 2.5, 0.7),  # weight of the block's own time
    Knob("move_ms", "placement", 1.2, 0.5),  # what leaving a place costs beside that
    Knob("slowness", "pace", 0.1, 0.15),  # how far to believe that a server is slower than its profile
    Knob("share", "group", 1.0, 0.1),  # of the candidates, in one block
    Knob("share_backlog", "group", 0.0, 0.03),
    Knob("delay", "delay", 0.1, 0.1),  # what a block's own time counts beside its images' share of full batches
    Knob("hold", "hold", -2.0, 1.2),  # the logarithm of what a change of width must gain, in tenths of a point
    Knob("own_cost", "own_cost", 0.5, 0.2),  # what a width costs on the placed server rather than on average
)
SWITCHES: Final = (*dict.fromkeys(knob.switch for knob in (*_PRICE, *_REST)), "worth")
PRICES: Final = len(_PRICE)
OTHERS: Final = PRICES + len(_REST)  # from here on, worths


def knobs(segments: int, widths: int) -> tuple[Knob, ...]:
    """All of them; the last ones stretch what each step to a wider width is worth, segment by segment."""
    worth = [Knob(f"worth_{s}_{w}", "worth", 0.0, 0.3) for s in range(1, segments + 1) for w in range(1, widths)]
    return (*_PRICE, *_REST, *worth)


def start(segments: int, widths: int) -> Reals:
    """Where the search begins: a ladder without rungs, the more waits the dearer; shortest delay; all in one block."""
    return np.array([knob.start for knob in knobs(segments, widths)])


def spread(segments: int, widths: int, without: tuple[str, ...] = ()) -> Reals:
    """How far the search looks at first; 0 for what is switched off.

    Raises:
        ValueError: no such switch.
    """
    for switch in without:
        if switch not in SWITCHES:
            raise ValueError(f"no switch {switch!r}; {nearest(switch, SWITCHES)}")
    return np.array([0.0 if knob.switch in without else knob.spread for knob in knobs(segments, widths)])
