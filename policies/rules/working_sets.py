"""Which instances each server's memory holds together: its working set, one instance a segment.

A wide instance serves every narrower width, so a router whose widths lie within the working set of each server needs
no load after the first ones. Where all full-width instances fit, that is no limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from policies.greedy import GreedyKnobs
from policies.rules.context import RouterContext
from policies.rules.costs import corners, full_widths, path_ns, within

Widths = tuple[float, ...]


def working_sets(context: RouterContext, servers: Sequence[GreedyKnobs], floor: float) -> tuple[Widths, ...]:
    """Choose each server's working set: that in which an accuracy of `floor` costs the least device time.

    Between two width tuples any mean accuracy costs what a mix of them does. Where no set reaches the floor, or it is
    0, the most accurate set is taken. A server that holds no set at all is not limited, nor is one of several models.

    Args:
        context: its accuracy table and expected costs.
        servers: of each server, its instances' bytes and its memory.
        floor: of mean accuracy; 0 for none.

    Returns:
        (N,) width tuples; empty where no server is limited.
    """
    full = full_widths(context.config)
    alike = context.costs.alike
    known: dict[object, Widths] = {}
    chosen = []
    for server, knobs in enumerate(servers):
        if context.config.models or fits(knobs, full):
            chosen.append(full)
            continue
        device = server if alike is None else alike.devices[server]
        kind = (device, knobs.vram_cap_bytes, knobs.context_bytes, *knobs.instance_bytes.values())
        if kind not in known:
            known[kind] = _best_set(context, server, knobs, floor) or full
        chosen.append(known[kind])
    return () if all(each == full for each in chosen) else tuple(chosen)


def fits(knobs: GreedyKnobs, widths: Widths) -> bool:
    """Whether a server's memory holds these instances together, one a segment."""
    needed = (knobs.instance_bytes.get(spec, inf) for spec in enumerate(widths, start=1))
    return knobs.context_bytes + sum(needed) <= knobs.vram_cap_bytes


def _best_set(context: RouterContext, server: int, knobs: GreedyKnobs, floor: float) -> Widths | None:
    """None where no width tuple of the accuracy table fits."""
    top1 = {widths: top1 for widths, top1 in context.prior.top1.items() if fits(knobs, widths)}
    cost_ns: dict[Widths, float] = {widths: path_ns(context.costs, server, widths) for widths in top1}
    largest = [widths for widths in top1 if not any(widths != other and within(widths, other) for other in top1)]

    def dearness(limit: Widths) -> tuple[float, float]:
        inside = {widths: cost_ns[widths] for widths in top1 if within(widths, limit)}
        return _cost_at(floor, corners(top1, inside), top1, cost_ns), -top1[limit]

    return min(largest, key=dearness, default=None)


def _cost_at(
    floor: float, front: Sequence[Widths], top1: Mapping[Widths, float], cost_ns: Mapping[Widths, float]
) -> float:
    """What a mean accuracy of `floor` costs, by a mix of two corners of a front, the most accurate first."""
    best = front[0]
    if top1[best] < floor or floor <= top1[front[-1]]:
        return inf
    for worse in front[1:]:
        if top1[worse] < floor:
            share = (floor - top1[worse]) / (top1[best] - top1[worse])
            return share * cost_ns[best] + (1 - share) * cost_ns[worse]
        best = worse
    return inf
