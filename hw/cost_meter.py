"""What the router's process and the port cost, from a real run: CPU time by what was done, and ways that met nobody.

Waiting is in neither: a thread's CPU time stands still meanwhile, and a handover counts only where nothing else was on
its way and who took it was idle. So a simulation may add its own waiting.
"""

from __future__ import annotations

import time  # noqa: TID251 - CPU time is what is measured

from policies.records import Handover, RouterCost


class CostMeter:
    """Takes samples while a router's loop goes round.

    What belongs to no decision and no message (arrivals, the ledger, the loop itself) goes to the decisions of the same
    turn; a turn without any (a look at the clock, a ping) is charged to nobody.
    """

    def __init__(self) -> None:
        self.costs: list[RouterCost] = []
        self.handovers: list[Handover] = []
        self._at_ns = time.thread_time_ns()
        self._open: list[tuple[int, int]] = []  # (images, CPU time) of the decisions of this turn
        self._rest_ns = 0
        self._handed_ns: dict[int, int] = {}

    def pause(self) -> None:
        """What comes now (until `resume`) is no work."""
        self._rest_ns += self._lap_ns()

    def resume(self) -> None:
        """Work goes on."""
        self._lap_ns()

    def _lap_ns(self) -> int:
        now_ns = time.thread_time_ns()
        lap_ns, self._at_ns = now_ns - self._at_ns, now_ns
        return lap_ns

    def heard(self, messages: int, images: int) -> None:
        """So many messages with requests were taken; with none it was something else."""
        lap_ns = self._lap_ns()
        if messages:
            self.costs.append(RouterCost("returned", messages, images, lap_ns))
        else:
            self._rest_ns += lap_ns

    def begin_decision(self) -> None:
        """Until `decided`."""
        self._rest_ns += self._lap_ns()

    def decided(self, images: int) -> None:
        """A block of so many was sent; of none, the decision came to nothing."""
        lap_ns = self._lap_ns()
        if images:
            self._open.append((images, lap_ns))
        else:
            self._rest_ns += lap_ns

    def end_turn(self) -> None:
        """The decisions of this turn bear what else there was."""
        self._rest_ns += self._lap_ns()
        if self._open:
            share_ns = self._rest_ns // len(self._open)
            self.costs += [
                RouterCost("decision", 1, images, cpu_ns + share_ns, sent_ns=cpu_ns) for images, cpu_ns in self._open
            ]
            self._open.clear()
        self._rest_ns = 0

    def handed(self, block: int, now_ns: int) -> None:
        """A block was sent to an agent that had nothing else."""
        self._handed_ns[block] = now_ns

    def arrived(self, server: int, block: int, arrived_ns: int) -> None:
        """It has come there."""
        if (handed_ns := self._handed_ns.pop(block, None)) is not None:
            self.handovers.append(Handover(server, True, max(0, arrived_ns - handed_ns)))

    def came_back(self, server: int, returned_ns: int, heard_ns: int) -> None:
        """A message found the router waiting for it."""
        self.handovers.append(Handover(server, False, max(0, heard_ns - returned_ns)))
