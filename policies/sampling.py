"""A sample of the servers for each decision in a large cluster, so that its cost does not depend on the cluster's size.

Half of them are the servers where a block ended last: they are likely to have little work, and fast ones are more often
among them (as in join-idle-queue: Lu et al. 2011). The others are drawn at random: the best of a few is nearly the best
of all (power of d choices: Mitzenmacher 2001). A draw is a hash of the decision's number, so it is the same in both
engines, on executors and in a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kit.chance import derived_seed, hashed

SALT: Final = derived_seed(0, "sampled servers")
TRIES: Final = 2  # draws for each server wanted: one may be drawn twice, or take no block


def sampled_servers(
    decision: int, location: int, freed: Iterable[int], can_take: Callable[[int], bool], servers: int, samples: int
) -> tuple[int, ...]:
    """Return the location of the candidates' activations (0 or more; if negative, no server) and others that can take
    the block.

    Empty if none of these can: then all are examined, as they are if there are no more than `samples`.

    Args:
        freed: servers where blocks ended, the last one first.
    """
    if not 0 < samples < servers:
        return ()
    sample = [location] if location >= 0 else []
    any_can = location >= 0 and can_take(location)
    for server in freed:
        if len(sample) > samples // 2:
            break
        if server not in sample and can_take(server):
            sample.append(server)
            any_can = True
    for draw in range(TRIES * samples):
        if len(sample) == samples:
            break
        server = hashed(SALT, decision, draw) % servers
        if server not in sample and can_take(server):
            sample.append(server)
            any_can = True
    return tuple(sample) if any_can else ()
