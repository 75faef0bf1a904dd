"""The rules for the width. A width that a server can't hold becomes the next narrower one held, or else its
narrowest."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np

from policies.rules.context import drawn, is_up
from policies.vocabulary import ClusterView


@cache
def held_width(widths: tuple[float, ...], held: tuple[bool, ...], wanted: float) -> float:
    """Return the widest held width that isn't above `wanted`, or otherwise the narrowest held one. `widths` ascend."""
    can = [width for width, holds in zip(widths, held, strict=True) if holds]
    return max((width for width in can if width <= wanted), default=can[0])


@dataclass(frozen=True, slots=True)
class RandomWidth:
    """A uniform choice of the widths that the server can hold."""

    widths: tuple[float, ...]

    def __call__(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        """Return the width for the view's candidate block on that server."""
        can = [width for width, holds in zip(self.widths, view.servers[server].widths, strict=True) if holds]
        return can[drawn(len(can), rng)]


@dataclass(frozen=True, slots=True)
class FixedWidths:
    """One width tuple for every request; or, in `by_class`, one for each class."""

    widths: tuple[float, ...]
    tuple_: tuple[float, ...]
    by_class: tuple[tuple[float, ...], ...] = ()

    def __call__(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        """Return the width for the view's candidate block on that server."""
        wanted = self.by_class[view.head.service_class] if self.by_class else self.tuple_
        return held_width(self.widths, view.servers[server].widths, wanted[view.head.segment - 1])


def requests_per_server(view: ClusterView) -> float:
    """Return the number of requests inside, for each server that is up."""
    outstanding = sum(each.outstanding_requests for each in view.servers)
    return (view.fifo_length + outstanding) / max(1, sum(is_up(each) for each in view.servers))


@dataclass(slots=True)
class Ladder:
    """Width tuples by load: each threshold that the load exceeds is one rung down.

    The load is (FIFO length + outstanding requests) per server that is up; a request takes its segment's width from the
    present rung, so it may pass segments on different rungs. With hysteresis the ladder stays on a lower rung until the
    load is down to a share of the threshold; it has one rung for the whole cluster, for each class.

    Attributes:
        rungs: width tuples, the most accurate first; by class.
        thresholds: of the load, ascending, one fewer than rungs; a class with fewer rungs uses the first ones.
        hysteresis: a share in [0, 1); a rung is left upwards at its threshold times (1 - hysteresis).
        at: by class, the present rung. Repeated calls at the same load do not change it.
    """

    widths: tuple[float, ...]
    rungs: tuple[tuple[tuple[float, ...], ...], ...]
    thresholds: tuple[float, ...]
    hysteresis: float = 0.0
    at: list[int] = field(default_factory=lambda: [0])

    def __call__(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        """Return the width for the view's candidate block on that server."""
        return self.width_at(self.rung_of(view), view, server)

    def rung_of(self, view: ClusterView, scale: float = 1.0) -> int:
        """Return the number of thresholds that the load, multiplied by `scale`, exceeds, with hysteresis."""
        load, of = requests_per_server(view) * scale, view.head.service_class
        thresholds = self.thresholds[: len(self.rungs[of]) - 1]
        down = sum(load > threshold for threshold in thresholds)
        stay = sum(load > threshold * (1 - self.hysteresis) for threshold in thresholds)
        self.at[of] = rung = max(down, min(self.at[of], stay))
        return rung

    def width_at(self, rung: int, view: ClusterView, server: int) -> float:
        """Return the width of that rung for the view's candidate block on that server."""
        wanted = self.rungs[view.head.service_class][rung][view.head.segment - 1]
        return held_width(self.widths, view.servers[server].widths, wanted)
