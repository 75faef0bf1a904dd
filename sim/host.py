"""The router's process as a server: it does one thing at a time, in the order of arrival.

Decisions and the messages that return requests cost it a part for each block (or message) and a part for each image. So
its capacity is limited, and work that arrives while it is busy is queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

from kit.chance import derived_seed, hashed
from policies.vocabulary import nanoseconds
from sim.profile import PAUSES_S, RouterHost, WorkCost, pause_number

DECISIONS, RETURNS = "decision", "returned"  # names of its costs' random streams: `derived_seed(seed, name)`


@dataclass(frozen=True, slots=True)
class HostTable:
    """A host's costs in nanoseconds: `(block + image * images)` times one of `spread`, or times 1 if that is empty.

    Attributes:
        decision, returned: (block, image) of a decision, and of a message that returns requests.
        sent_permille: the part of a decision's cost until its block is sent; the rest is bookkeeping.
        received_permille: the part of a message's cost until its requests are back; the rest is bookkeeping.
        after_pause: see `sim.profile.RouterHost`; preceded by 1, for no pause.
        devices: the devices on whose cores the router's process runs; empty if it has a separate core.
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
        """Build the table from a profile; without jitter every cost is its mean."""
        shares = round(1000 * host.sent_share), round(1000 * host.received_share)
        table = cls(_in_ns(host.decision), _in_ns(host.returned), host.spread if jitter else (), *shares)
        return table if host.after_pause is None else replace(table, after_pause=(1.0, *host.after_pause))

    def cost_ns(self, cost: tuple[int, int], images: int, drawn: int, pause_ns: int) -> int:
        """Return one cost, after a pause; `drawn` is a large random number."""
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
        """Return when the process would get a core."""
        ...

    def occupy(self, work_ns: int, *, waits: bool) -> tuple[int, int]:
        """Occupy a core for this much work, perhaps after a wait; returns start and end."""
        ...


class SimulatedHost:
    """One run's host; it is free again at `free_ns`. Without a table decisions and messages cost it nothing.

    Args:
        cores: the cores of the devices that it shares; none if it has a separate core.
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
            decision_ns: the policy's time, which is added.
        """
        if self.table is None:
            return now_ns + decision_ns
        drawn = hashed(self._decision_salt, server, decision)
        cost_ns = self.table.cost_ns(self.table.decision, images, drawn, now_ns - self.free_ns)
        begun_ns = self._work(decision_ns + cost_ns, now_ns)
        return min(self.free_ns, begun_ns + decision_ns + cost_ns * self.table.sent_permille // 1000)

    def hear(self, server: int, message: int, images: int, now_ns: int) -> int:
        """Process a message that has arrived; returns when its requests are back. `table` is not None."""
        assert self.table is not None, "a host without costs hears at once"
        drawn, before_ns = hashed(self._returned_salt, server, message), self.free_ns
        cost_ns = self.table.cost_ns(self.table.returned, images, drawn, now_ns - before_ns)
        begun_ns = max(self._work(cost_ns, now_ns), before_ns)
        return min(self.free_ns, begun_ns + cost_ns * self.table.received_permille // 1000)

    def _work(self, work_ns: int, now_ns: int) -> int:
        """Do work after all queued work; returns when it begins.

        It delays no other process while some core is free: the operating system moves it there. Otherwise a host that
        has slept waits for the core that is free first, the first of equal ones; a busy host stays.
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
