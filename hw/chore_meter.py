"""What an agent's process does on its device's cores besides passes, from a real run: CPU time by what was done."""

from __future__ import annotations

import threading
import time  # noqa: TID251 - CPU time is what is measured
from collections.abc import Callable

from policies.records import ChoreCost, ChoreKind


class ChoreMeter:
    """Takes samples in an agent's threads; each looks at its own CPU time only.

    What the main thread does in a turn that took blocks in is charged to these, but for the copying; in a turn that only
    copied, to the copies; in other turns (sensor, signs of life) to nobody.

    Args:
        now_ns: of the run.
    """

    def __init__(self, server: int, now_ns: Callable[[], int]) -> None:
        self.costs: list[ChoreCost] = []
        self._server = server
        self._now_ns = now_ns
        self._turn_ns = time.thread_time_ns()
        self._blocks = self._images = 0
        self._copies = self._copied_images = self._copies_ns = 0
        self._came_ns = 0
        self._lane = threading.local()

    def took(self, images: int) -> None:
        """A block of so many came in this turn."""
        if not self._blocks:
            self._came_ns = self._now_ns()
        self._blocks += 1
        self._images += images

    def copied(self, images: int, cpu_ns: int) -> None:
        """Activations of so many were copied to another server."""
        self._copies += 1
        self._copied_images += images
        self._copies_ns += cpu_ns

    def end_turn(self) -> None:
        """The main thread has nothing more to do."""
        cpu_ns = time.thread_time_ns()
        spent_ns = cpu_ns - self._turn_ns
        if self._blocks:
            taken_ns = spent_ns - self._copies_ns
            self.costs.append(ChoreCost(self._server, "taken", self._came_ns, self._blocks, self._images, taken_ns))
        if self._copies:
            copies_ns = self._copies_ns if self._blocks else spent_ns
            self.costs.append(self._cost("moved", self._copies, self._copied_images, copies_ns))
        self._turn_ns = cpu_ns
        self._blocks = self._images = self._copies = self._copied_images = self._copies_ns = 0

    def begin_end(self) -> None:
        """A lane's thread tells the end of a batch."""
        self._lane.began_ns = time.thread_time_ns()

    def ended(self, images: int, pass_ns: int) -> None:
        """It has; the pass took so long."""
        cpu_ns, lane = time.thread_time_ns(), self._lane
        before_ns = lane.began_ns - lane.last_ns - pass_ns if hasattr(lane, "last_ns") else None
        self.costs.append(self._cost("ended", 1, images, cpu_ns - lane.began_ns))
        if before_ns is not None:
            self.costs.append(self._cost("begun", 1, images, before_ns))
        lane.last_ns = cpu_ns

    def _cost(self, kind: ChoreKind, count: int, images: int, cpu_ns: int) -> ChoreCost:
        return ChoreCost(self._server, kind, self._now_ns(), count, images, cpu_ns)
