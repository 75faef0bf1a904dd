"""In how many ways a gang of GPUs can lie on a pool's nodes, as RLTune counts them.

Nodes with equally many free GPUs are alike: only how many of each kind are used makes two ways different, and how many
GPUs on each. All kinds of a way but the last are used up (Dongare et al., arXiv 2512.10271; the authors' code).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

SEVERAL: Final = 2  # more are not told apart
Use = tuple[int, tuple[int, ...]]  # of nodes with so many free GPUs: GPUs taken of each, descending


@lru_cache(1 << 16)
def ways(counts: tuple[int, ...], gpus: int) -> tuple[int, int]:
    """Ways on the fewest nodes (0, 1, `SEVERAL` or more), and 1 if there is one on a node more that fragments no more.

    Args:
        counts: (node size + 1,) how many nodes have 0, 1, ... free GPUs.
    """
    fewest = -(-gpus // (len(counts) - 1))
    fewest_ways = _some(uses(counts, gpus, fewest), SEVERAL)
    return fewest_ways, _some(uses(counts, gpus, fewest + 1, keeps_whole=True), 1)


def _some(found: Iterator[tuple[Use, ...]], most: int) -> int:
    many = 0
    for _ in found:
        many += 1
        if many == most:
            break
    return many


def uses(counts: tuple[int, ...], gpus: int, nodes: int, keeps_whole: bool = False) -> Iterator[tuple[Use, ...]]:
    """All ways on exactly so many nodes.

    Args:
        keeps_whole: leave out those that use a part of a whole node: only they add a partly used one.
    """
    yield from _from(counts, len(counts) - 1, gpus, nodes, keeps_whole)


def _from(counts: tuple[int, ...], free: int, gpus: int, nodes: int, keeps_whole: bool) -> Iterator[tuple[Use, ...]]:
    """On nodes with at most so many free GPUs."""
    if free * nodes < gpus or nodes > gpus:
        return
    for many in range(1, min(counts[free], nodes) + 1):
        left = gpus - many * free
        if left > 0:
            for rest in _from(counts, free - 1, left, nodes - many, keeps_whole):
                yield ((free, (free,) * many), *rest)
        elif many == nodes and not (left < 0 and keeps_whole and free == len(counts) - 1):
            yield from (((free, parts),) for parts in _parts(gpus, many, free))
    yield from _from(counts, free - 1, gpus, nodes, keeps_whole)


def _parts(gpus: int, nodes: int, most: int) -> Iterator[tuple[int, ...]]:
    """So many GPUs over nodes, at least one and at most `most` on each, descending."""
    if nodes == 1:
        if 1 <= gpus <= most:
            yield (gpus,)
        return
    for first in range(min(most, gpus - nodes + 1), -(-gpus // nodes) - 1, -1):
        for rest in _parts(gpus - first, nodes - 1, first):
            yield (first, *rest)
