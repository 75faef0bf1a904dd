"""What Tide learns, by name: where the search begins, how far it looks, and which groups of it can be switched off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from policies.errors import nearest

KIND: Final = "tide"  # what a file of it says of itself
UNTUNED: Final = "tide-untuned"  # by name: with the numbers that its search begins with

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Knob:
    """One learned number: name and switch, where the search begins, how far it looks at first; what it is if off."""

    name: str
    switch: str
    start: float
    spread: float
    off: float = 0.0


_ALWAYS: Final = "always"  # no switch: without its price there is no Tide
_PRICE: Final = (
    Knob("price", _ALWAYS, -6.8, 0.6),  # the logarithm's level, with nobody waiting
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
    Knob("transfer", "placement", 1.2, 0.4, 1.0),  # weight of a transfer's expected time
    Knob("batch", "placement", 2.5, 0.7, 1.0),  # weight of the block's own time
    Knob("move_ms", "placement", 3.0, 0.8),  # what leaving a place costs beside that
    Knob("slowness", "slowdown", 0.1, 0.15),  # how far to believe that a server is slower than its profile
    Knob("share", "group", 1.0, 0.1, 1.0),  # of the candidates, in one block
    Knob("share_backlog", "group", 0.0, 0.03),
    Knob("delay", "delay", 0.1, 0.1),  # what a block's own time counts beside its images' share of full batches
    Knob("hold", "hold", -2.0, 1.2, -20.0),  # the logarithm of what a change of width must gain, in tenths of a point
    Knob("coming", "coming", 0.5, 0.2),  # weight of the work that will come back to a place, in scores of places
    Knob("own_cost", "own_cost", 0.5, 0.2),  # what a width costs on the placed server rather than on average
)
SWITCHES: Final = (*dict.fromkeys(knob.switch for knob in (*_PRICE, *_REST) if knob.switch != _ALWAYS), "worth")
PRICES: Final = len(_PRICE)
OTHERS: Final = PRICES + len(_REST)  # from here on, worths


def knobs(segments: int, widths: int) -> tuple[Knob, ...]:
    """All of them; the last ones stretch what each step to a wider width is worth, segment by segment."""
    worth = [Knob(f"worth_{s}_{w}", "worth", 0.0, 0.3) for s in range(1, segments + 1) for w in range(1, widths)]
    return (*_PRICE, *_REST, *worth)


def start(segments: int, widths: int, without: tuple[str, ...] = ()) -> Reals:
    """Where the search begins: numbers that are good on `main-mmpp-10g`, but for what is switched off.

    Raises:
        ValueError: no such switch.
    """
    return np.array([knob.off if _is_off(knob, without) else knob.start for knob in knobs(segments, widths)])


def spread(segments: int, widths: int, without: tuple[str, ...] = ()) -> Reals:
    """How far the search looks at first; 0 for what is switched off.

    Raises:
        ValueError: no such switch.
    """
    return np.array([0.0 if _is_off(knob, without) else knob.spread for knob in knobs(segments, widths)])


def _is_off(knob: Knob, without: tuple[str, ...]) -> bool:
    for switch in without:
        if switch not in SWITCHES:
            raise ValueError(f"no switch {switch!r}; {nearest(switch, SWITCHES)}")
    return knob.switch in without
