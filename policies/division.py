"""A cluster that is divided among several routers: who owns which server, to whom a request goes, and who takes what
another one can't.

Each server trusts one router at a time, its owner. Every router's core knows all servers; those of others are down to
it. So a router that dies leaves its servers to others as servers that come up. It knows no clock and sends nothing:
both worlds carry the words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from kit.chance import hashed_share

ROUTERS: Final = "routers"  # the name of what requests are dealt by: `derived_seed(seed, ROUTERS)`


@dataclass(frozen=True, slots=True)
class Division:
    """How a cluster is divided.

    Attributes:
        count: R, how many routers there are.
        groups: servers that stay together (they share a device, or a medium), by index; each server is in one.
        rates: what each server can do, images a second; a device's stands at one of its servers, the others have 0.
        handover_at: a router in whose FIFO so many images wait hands an arriving one to another; None: never.
        told_every_ns: how often a router tells the others how many wait.
        deaths: (router, when in ns) of those that are killed.
    """

    count: int
    groups: tuple[tuple[int, ...], ...]
    rates: tuple[float, ...]
    handover_at: int | None
    told_every_ns: int
    deaths: tuple[tuple[int, int], ...] = ()


class Territory:
    """Who owns which server now, and to whom requests are dealt.

    Attributes:
        owner: of each server.
        alive: the routers that live, ascending.
        shares: of each router in what arrives, by what its servers could do at the start.
    """

    def __init__(self, division: Division, salt: int) -> None:
        self.owner = [0] * len(division.rates)
        self.alive = list(range(division.count))
        self._division = division
        self._salt = salt
        self._deal(division.groups)
        owned = [0.0] * division.count
        for router, rate in zip(self.owner, division.rates, strict=True):
            owned[router] += rate
        self.shares = [each / sum(owned) for each in owned]
        self._edges = [*accumulate(self.shares)][:-1]

    def _deal(self, groups: Sequence[tuple[int, ...]]) -> None:
        """The fastest group first, each to the living router whose servers do least (the lowest of equal ones)."""
        rates, dealt = self._division.rates, {server for group in groups for server in group}
        owned = [0.0] * self._division.count
        for server, router in enumerate(self.owner):
            owned[router] += rates[server] * (server not in dealt)
        for group in sorted(groups, key=lambda group: -sum(rates[server] for server in group)):
            router = min(self.alive, key=lambda each: owned[each])
            owned[router] += sum(rates[server] for server in group)
            for server in group:
                self.owner[server] = router

    def bury(self, router: int) -> None:
        """It has died: the others get its servers. Some router must be left."""
        self.alive.remove(router)
        self._deal([group for group in self._division.groups if self.owner[group[0]] == router])

    def router_of(self, request: int) -> int:
        """To whom a request is dealt now; who lives keeps what it was dealt before."""
        attempt = 0
        while (router := self._drawn(request, attempt)) not in self.alive:
            attempt += 1
        return router

    def _drawn(self, request: int, attempt: int) -> int:
        return bisect_right(self._edges, hashed_share(self._salt, request, attempt))


class Neighbours:
    """What a router knows of how many images wait at the others (`RouterCore.burden`): as old as their last words.

    Args:
        own: its own number.
    """

    def __init__(self, division: Division, territory: Territory, own: int) -> None:
        self._handover_at = division.handover_at
        self._territory = territory
        self._own = own
        self._waiting = [0.0] * division.count

    def hear(self, router: int, waiting: float) -> None:
        """Another one's word."""
        self._waiting[router] = waiting

    def receiver(self, waiting: float) -> int | None:
        """Who takes an image that arrives here, where so many wait: by its share the least burdened. None: it stays."""
        if self._handover_at is None or waiting < self._handover_at:
            return None
        others = [each for each in self._territory.alive if each != self._own]
        if not others:
            return None
        shares = self._territory.shares
        best = min(others, key=lambda each: self._waiting[each] / shares[each])
        if self._waiting[best] / shares[best] >= waiting / shares[self._own]:
            return None
        self._waiting[best] += 1  # until its next word
        return best
