"""The router's process as a server of its own: it does one thing at a time, in the order in which things come.

Decisions and the messages that bring requests back cost it a part a block (or message) and a part an image. So what it
can carry is limited, and who comes while it is busy waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

from kit.chance import derived_seed, hashed
from policies.vocabulary import nanoseconds
from sim.profile import PAUSES_S, RouterHost, WorkCost, pause_number

DECISIONS, RETURNS = "decision", "returned"  # the names of what its costs are drawn by: `derived_seed(seed, name)`


@dataclass(frozen=True, slots=True)
class HostTable:
    """What a host costs, in nanoseconds: `(block + image * images)` times one of `spread`, itself where that is empty.

    Attributes:
        decision, returned: (block, image) of a decision, and of a message that brings requests back.
        sent_permille: of a decision's cost, how much has passed when its block is sent; the rest keeps the books.
        received_permille: of a message's cost, how much has passed when its requests are back; likewise.
        after_pause: see `sim.profile.RouterHost`; led by 1, for no pause.
        devices: on whose cores the router's process runs; empty if it has one of its own.
    """

    decision: tuple[int, int]
    returned: tuple[int, int]
    spread: tuple[float, ...] = ()
    sent_permille: int = 1000
    received_permille: int = 1000
    after_pause: tuple[float, ...] = (1.0,) * (len(PAUSES_S) + 1)
    devices: tuple[int, ...] = ()

    @classmethod
    def of(cls, host: RouterHost, *, jitter: bool = True) -> HostTable:
        """From a profile; without jitter every cost is its mean."""
        shares = round(1000 * host.sent_share), round(1000 * host.received_share)
        table = cls(_in_ns(host.decision), _in_ns(host.returned), host.spread if jitter else (), *shares)
        return table if host.after_pause is None else replace(table, after_pause=(1.0, *host.after_pause))

    def cost_ns(self, cost: tuple[int, int], images: int, drawn: int, pause_ns: int) -> int:
        """One cost, after a pause; `drawn` is a large random number."""
        block_ns, image_ns = cost
        factor = self.after_pause[pause_number(pause_ns)]
        if self.spread:
            factor *= self.spread[drawn % len(self.spread)]
        return ceil((block_ns + image_ns * images) * factor)


def _in_ns(cost: WorkCost) -> tuple[int, int]:
    return nanoseconds(cost.block_s), nanoseconds(cost.image_s)


class Core(Protocol):
    """A device's cores, on which the router's process runs, too."""

    def free_ns(self) -> int:
        """When it would get one."""
        ...

    def occupy(self, work_ns: int, *, waits: bool) -> tuple[int, int]:
        """From when until when it has one, for so much work; it may have to wait for it."""
        ...


class SimulatedHost:
    """One run's host; it is free again at `free_ns`. Without a table decisions and messages cost it nothing.

    Args:
        cores: of the devices that it shares cores with; none if it has one of its own.
    """

    def __init__(self, table: HostTable | None, seed: int, cores: Sequence[Core] = ()) -> None:
        self.table = table
        self.free_ns = 0
        self._cores = cores
        self._core: Core | None = None
        self._decision_salt = derived_seed(seed, DECISIONS)
        self._returned_salt = derived_seed(seed, RETURNS)

    def decide(self, server: int, decision: int, images: int, decision_ns: int, now_ns: int) -> int:
        """Begin a decision on a free host; returns when its block is sent.

        Args:
            decision_ns: the policy's own time, which comes on top.
        """
        if self.table is None:
            return now_ns + decision_ns
        drawn = hashed(self._decision_salt, server, decision)
        cost_ns = self.table.cost_ns(self.table.decision, images, drawn, now_ns - self.free_ns)
        begun_ns = self._work(decision_ns + cost_ns, now_ns)
        return min(self.free_ns, begun_ns + decision_ns + cost_ns * self.table.sent_permille // 1000)

    def hear(self, server: int, message: int, images: int, now_ns: int) -> int:
        """A message has arrived; returns when its requests are back. `table` is not None."""
        assert self.table is not None, "a host without costs hears at once"
        drawn, before_ns = hashed(self._returned_salt, server, message), self.free_ns
        cost_ns = self.table.cost_ns(self.table.returned, images, drawn, now_ns - before_ns)
        begun_ns = max(self._work(cost_ns, now_ns), before_ns)
        return min(self.free_ns, begun_ns + cost_ns * self.table.received_permille // 1000)

    def _work(self, work_ns: int, now_ns: int) -> int:
        """Do something after all that is to be done; returns when it begins.

        It holds nobody up while some core is free: the operating system moves it there. Else who has slept takes the
        core that is free first, the first of equal ones, and waits for it; who works stays.
        """
        free_ns = [core.free_ns() for core in self._cores]
        if not free_ns or min(free_ns) <= now_ns:
            begun_ns = max(now_ns, self.free_ns)
            self.free_ns = begun_ns + work_ns
            return begun_ns
        has_slept = self._core is None or self.free_ns < now_ns
        if has_slept:
            self._core = self._cores[free_ns.index(min(free_ns))]
        assert self._core is not None, "just taken"
        begun_ns, ended_ns = self._core.occupy(work_ns, waits=has_slept)
        self.free_ns = max(self.free_ns, ended_ns)
        return begun_ns
