"""The working set of each server: the instances that its memory holds together.

An instance serves every narrower width of its nest, so a working set has one instance of each segment for a slimmable
network, and some members of a family. A router within each server's working set needs no load after the first ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import inf

from policies.greedy import GreedyKnobs
from policies.nests import nests_of
from policies.rules.context import RouterContext, WorkingSet
from policies.rules.costs import corners, cost_at, path_ns, within

Widths = tuple[float, ...]
Limits = tuple[Widths | None, ...]
"""For each nest the widest instances held, one for each segment; None for none."""


def working_sets(context: RouterContext, servers: Sequence[GreedyKnobs], floor: float) -> tuple[WorkingSet, ...]:
    """Choose each server's working set: the one in which an accuracy of `floor` costs the least device time.

    A mix of two width tuples costs the weighted mean for the weighted mean accuracy. If no set reaches the floor, or it
    is 0, the most accurate set is taken, and of those the one with the fastest tuple. A server that holds no complete
    set is not limited, nor is one of several models.

    Args:
        context: its accuracy table and expected costs.
        servers: for each server, its instances' bytes and its memory.
        floor: of mean accuracy; 0 for none.

    Returns:
        (N, S, W) the widths of each server; empty if none is limited.
    """
    config, alike = context.config, context.costs.alike
    everything: WorkingSet = ((True,) * len(config.widths),) * config.segments
    known: dict[object, WorkingSet] = {}
    chosen = []
    for server, knobs in enumerate(servers):
        device = server if alike is None else alike.devices[server]
        kind = (device, knobs.vram_cap_bytes, knobs.context_bytes, knobs.nests, *knobs.instance_bytes.values())
        if kind not in known:
            found = None if config.models else _best_set(context, server, knobs, floor)
            known[kind] = everything if found is None else _masks(config.widths, knobs.nests, found)
        chosen.append(known[kind])
    return () if all(each == everything for each in chosen) else tuple(chosen)


def _masks(widths: Widths, nests: tuple[int, ...], limits: Limits) -> WorkingSet:
    def is_held(segment: int, width: float) -> bool:
        of = zip(nests_of(widths, nests), limits, strict=True)
        return any(width in nest and limit is not None and width <= limit[segment] for nest, limit in of)

    segments = len(next(limit for limit in limits if limit is not None))
    return tuple(tuple(is_held(segment, width) for width in widths) for segment in range(segments))


def _best_set(context: RouterContext, server: int, knobs: GreedyKnobs, floor: float) -> Limits | None:
    """Return a server's best set; None if no width tuple of the accuracy table fits."""
    top1, nests = context.prior.top1, nests_of(context.config.widths, knobs.nests)
    cost_ns: dict[Widths, float] = {widths: path_ns(context.costs, server, widths) for widths in top1}

    def front_of(limits: Limits) -> list[Widths]:
        held = _masks(context.config.widths, knobs.nests, limits)
        inside = {widths: cost_ns[widths] for widths in top1 if within(widths, held, context.config.widths)}
        return corners(top1, inside)

    def dearness(limits: Limits) -> tuple[float, float, float]:
        front = fronts[limits]
        at_floor = cost_at(floor, front, top1, cost_ns) if floor > 0.0 else inf
        return at_floor, -top1[front[0]], cost_ns[front[-1]]

    sets = _largest_sets(nests, context.config.segments, knobs)
    fronts = {limits: front for limits in sets if (front := front_of(limits))}
    return min(fronts, key=dearness, default=None)


def _largest_sets(nests: Sequence[Widths], segments: int, knobs: GreedyKnobs) -> Iterator[Limits]:
    """Yield the non-empty sets that fit and can't be extended."""
    for limits in product(*((None, *product(nest, repeat=segments)) for nest in nests)):
        if any(limits) and _fits(limits, knobs) and not any(_fits(more, knobs) for more in _wider(limits, nests)):
            yield limits


def _fits(limits: Limits, knobs: GreedyKnobs) -> bool:
    specs = [spec for limit in limits if limit is not None for spec in enumerate(limit, start=1)]
    needed = sum(knobs.instance_bytes.get(spec, inf) for spec in specs)
    return knobs.context_bytes + needed <= knobs.vram_cap_bytes


def _wider(limits: Limits, nests: Sequence[Widths]) -> Iterator[Limits]:
    """Yield the sets wider by one step, in one place."""
    segments = len(next(limit for limit in limits if limit is not None))
    for place, (limit, nest) in enumerate(zip(limits, nests, strict=True)):
        steps: list[Widths] = [(nest[0],) * segments] if limit is None else []
        for segment, width in enumerate(limit or ()):
            if width < nest[-1]:
                step = nest[nest.index(width) + 1]
                steps.append((*(limit or ())[:segment], step, *(limit or ())[segment + 1 :]))
        yield from ((*limits[:place], step, *limits[place + 1 :]) for step in steps)
