"""Nests of widths: neighbouring widths that share weights.

An instance serves narrower widths of its nest, and a request stays in one. All widths of a slimmable network are one
nest; each network of a family is a separate nest; each of several models has its nests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product

Widths = tuple[float, ...]


@lru_cache(maxsize=64)
def nests_of(widths: Widths, nests: tuple[int, ...]) -> tuple[Widths, ...]:
    """Return the widths of each nest, ascending; `nests` has their number in each, and if it is empty there is one
    nest.

    Raises:
        ValueError: the nests do not add up to the width set.
    """
    if sum(nests) != len(widths) and nests:
        raise ValueError(f"nests of {list(nests)} widths do not make up {len(widths)}")
    found, rest = list[Widths](), widths
    for count in nests or (len(widths),):
        found.append(rest[:count])
        rest = rest[count:]
    return tuple(found)


@lru_cache(maxsize=64)
def nest_by_width(widths: Widths, nests: tuple[int, ...]) -> Mapping[float, Widths]:
    """Return, for each width, the widths of its nest."""
    return {width: nest for nest in nests_of(widths, nests) for width in nest}


def tuples_within(groups: Sequence[Widths], segments: int) -> list[Widths]:
    """Return every complete width tuple within one of these groups of widths, ascending."""
    return [widths for group in groups for widths in product(group, repeat=segments)]
