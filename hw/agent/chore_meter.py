"""An agent process's work on its device's cores besides passes, from a real run: CPU time by activity."""

from __future__ import annotations

import threading
import time  # noqa: TID251 - CPU time is what is measured
from collections.abc import Callable
from dataclasses import dataclass

from policies.records import ChoreCost, ChoreKind


@dataclass(slots=True)
class _Turn:
    """A thread's activities since its last turn."""

    began_ns: int
    came_ns: int = 0
    blocks: int = 0
    images: int = 0
    copies: int = 0
    copied_images: int = 0
    copies_ns: int = 0


class ChoreMeter:
    """Takes samples in an agent's threads; each reads its own CPU time only.

    A thread's CPU time in a turn that took blocks in is charged to these, except for copying; in a turn that only
    copied, to the copies. A turn of the main thread in which lanes' threads had taken everything is a wake-up in vain.
    Its other CPU time (its sensor, signs of life) is not charged.

    Args:
        now_ns: of the run.
    """

    def __init__(self, server: int, now_ns: Callable[[], int]) -> None:
        self.costs: list[ChoreCost] = []
        self._server = server
        self._now_ns = now_ns
        self._main = threading.get_ident()
        self._main_turn = _Turn(time.thread_time_ns())
        self._lane = threading.local()
        self._taken_by_lanes = 0

    def took(self, images: int) -> None:
        """Note that a block of this number of requests came in this turn."""
        turn = self._turn()
        if not turn.blocks:
            turn.came_ns = self._now_ns()
        turn.blocks += 1
        turn.images += images

    def copied(self, images: int, cpu_ns: int) -> None:
        """Note that activations of this number of requests were copied to another server."""
        turn = self._turn()
        turn.copies += 1
        turn.copied_images += images
        turn.copies_ns += cpu_ns

    def _turn(self) -> _Turn:
        if threading.get_ident() == self._main:
            return self._main_turn
        if not hasattr(self._lane, "turn"):
            self._lane.turn = _Turn(time.thread_time_ns())
        turn: _Turn = self._lane.turn
        return turn

    def end_turn(self) -> None:
        """Note that the main thread has nothing more to do."""
        turn, self._main_turn = self._main_turn, _Turn(time.thread_time_ns())
        taken_by_lanes, self._taken_by_lanes = self._taken_by_lanes, 0
        if taken_by_lanes and not turn.blocks and not turn.copies:
            self.costs.append(self._cost("woken", taken_by_lanes, 0, self._main_turn.began_ns - turn.began_ns))
        self._charge(turn, self._main_turn.began_ns)

    def end_lane_turn(self) -> None:
        """Note that a lane's thread has taken new messages, after it reported the end of a batch."""
        cpu_ns, turn = time.thread_time_ns(), self._turn()
        self._taken_by_lanes += turn.blocks + turn.copies
        self._charge(turn, cpu_ns)
        self._lane.turn = _Turn(cpu_ns)

    def _charge(self, turn: _Turn, ended_ns: int) -> None:
        spent_ns = ended_ns - turn.began_ns
        if turn.blocks:
            taken_ns = spent_ns - turn.copies_ns
            self.costs.append(ChoreCost(self._server, "taken", turn.came_ns, turn.blocks, turn.images, taken_ns))
        if turn.copies:
            copies_ns = turn.copies_ns if turn.blocks else spent_ns
            self.costs.append(self._cost("moved", turn.copies, turn.copied_images, copies_ns))

    def begin_end(self) -> None:
        """Note that a lane's thread begins to report the end of a batch."""
        self._lane.began_ns = time.thread_time_ns()

    def ended(self, images: int, pass_ns: int) -> None:
        """Note the end of that report, and the duration of the pass."""
        cpu_ns, lane = time.thread_time_ns(), self._lane
        turn = getattr(lane, "turn", None)
        if turn is not None:
            self.costs.append(self._cost("begun", 1, images, lane.began_ns - turn.began_ns - pass_ns))
        self.costs.append(self._cost("ended", 1, images, cpu_ns - lane.began_ns))
        lane.turn = _Turn(cpu_ns)

    def _cost(self, kind: ChoreKind, count: int, images: int, cpu_ns: int) -> ChoreCost:
        return ChoreCost(self._server, kind, self._now_ns(), count, images, cpu_ns)
