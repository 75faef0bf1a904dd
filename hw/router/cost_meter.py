"""The costs of the router's process and the port, from a real run: CPU time by activity, and undelayed transits.

Waiting is in neither: a thread's CPU time does not advance meanwhile, and a handover counts only if nothing else was in
transit and its receiver was idle. So a simulation may add its own waiting.
"""

from __future__ import annotations

import time  # noqa: TID251 - CPU time is what is measured

from msgspec.structs import replace

from policies.records import Handover, RouterCost


class CostMeter:
    """Takes samples in a router's loop.

    CPU time that belongs to no decision and no message (arrivals, the ledger, the loop itself) goes to the decisions of
    the same turn; in a turn without any, to the messages that began it. A turn with neither (a look at the clock, a
    ping) is charged to neither.
    """

    def __init__(self) -> None:
        self.costs: list[RouterCost] = []
        self.handovers: list[Handover] = []
        self._at_ns = time.thread_time_ns()
        self._open: list[tuple[int, int, int, int]] = []  # (images, CPU time, until it was made, pause) of this turn
        self._pause_ns = 0
        self._made_ns = self._decoded_ns = 0
        self._rest_ns = 0
        self._has_heard = False
        self._handed_ns: dict[int, int] = {}

    def _lap_ns(self) -> int:
        now_ns = time.thread_time_ns()
        lap_ns, self._at_ns = now_ns - self._at_ns, now_ns
        return lap_ns

    def waited(self, looked_ns: int, pause_ns: int) -> None:
        """Note the end of a wait of `pause_ns`, and the CPU time of its polling, which does not count as work."""
        self._at_ns += looked_ns
        self._pause_ns += pause_ns

    def _take_pause_ns(self) -> int:
        """Return the last pause, once: the first activity after a wait bears the cold caches."""
        pause_ns, self._pause_ns = self._pause_ns, 0
        return pause_ns

    def decoded(self) -> None:
        """Note that messages are decoded; next the core receives them."""
        self._decoded_ns = max(0, self._lap_ns())

    def heard(self, messages: int, images: int) -> None:
        """Note how many messages with requests the core received since `decoded`; none: it was something else."""
        cpu_ns = self._decoded_ns + max(0, self._lap_ns())
        if messages:
            self._has_heard = True
            cost = RouterCost("returned", messages, images, cpu_ns, self._decoded_ns, self._take_pause_ns())
            self.costs.append(cost)
        else:
            self._rest_ns += cpu_ns

    def begin_decision(self) -> None:
        """Begin a decision, which lasts until `decided`."""
        self._rest_ns += self._lap_ns()
        self._made_ns = 0

    def made(self) -> None:
        """Note that the policy has answered: the block is ready to be sent."""
        self._made_ns = self._lap_ns()

    def decided(self, images: int) -> None:
        """Note that a block of this size was sent; of none: the decision had no effect."""
        cpu_ns = self._made_ns + self._lap_ns()
        if images:
            self._open.append((images, cpu_ns, self._made_ns, self._take_pause_ns()))
        else:
            self._rest_ns += cpu_ns

    def end_turn(self) -> None:
        """Distribute the turn's other CPU time."""
        self._rest_ns += self._lap_ns()
        if self._open:
            share_ns = self._rest_ns // len(self._open)
            self.costs += [
                RouterCost("decision", 1, images, cpu_ns + share_ns, made_ns, pause_ns)
                for images, cpu_ns, made_ns, pause_ns in self._open
            ]
            self._open.clear()
        elif self._has_heard:
            last = self.costs[-1]
            self.costs[-1] = replace(last, cpu_ns=last.cpu_ns + self._rest_ns)
        self._rest_ns = 0
        self._has_heard = False

    def handed(self, block: int, now_ns: int) -> None:
        """Note that a block was handed over to an agent."""
        self._handed_ns[block] = now_ns

    def arrived(self, server: int, block: int, arrived_ns: int) -> None:
        """Note that it has arrived there."""
        if (handed_ns := self._handed_ns.pop(block, None)) is not None:
            self.handovers.append(Handover(server, True, handed_ns, max(0, arrived_ns - handed_ns)))

    def came_back(self, server: int, returned_ns: int, heard_ns: int) -> None:
        """Note that a message found the router waiting for it."""
        self.handovers.append(Handover(server, False, returned_ns, max(0, heard_ns - returned_ns)))
