"""Which widths nest: neighbouring ones that share weights.

An instance serves narrower widths of its nest, and a request stays in one. All widths of a slimmable network are one
nest; each network of a family is a nest of its own; of several models each has its own nests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product

Widths = tuple[float, ...]


@lru_cache(maxsize=64)
def nests_of(widths: Widths, nests: tuple[int, ...]) -> tuple[Widths, ...]:
    """The widths of each nest, where `nests` says how many each has, ascending; all are one where it is empty.

    Raises:
        ValueError: they do not make up the width set.
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
    """For each width, those of its nest."""
    return {width: nest for nest in nests_of(widths, nests) for width in nest}


def tuples_within(groups: Sequence[Widths], segments: int) -> list[Widths]:
    """Every complete width tuple that stays in one of these groups of widths, ascending."""
    return [widths for group in groups for widths in product(group, repeat=segments)]
