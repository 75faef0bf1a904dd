"""What happens when: a heap of appointments by time, by their order within the instant, by when they were made."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any, Final

ARRIVAL: Final = 0
LAST: Final = 1 << 62


class Agenda:
    """Time is `now_ns`, integer nanoseconds."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._heap: list[tuple[int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._made = count()

    @property
    def next_ns(self) -> float:
        """The time of the next event; infinity when there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    @property
    def is_instant_over(self) -> bool:
        """Whether nothing more happens at the present time."""
        return self.next_ns > self.now_ns

    def at(self, when_ns: int, order: int, act: Callable[..., None], *arguments: Any) -> None:
        """Call `act` at a time; of one instant's the smallest `order` first: `ARRIVAL`, a rank, or `LAST`."""
        heapq.heappush(self._heap, (when_ns, order, next(self._made), act, arguments))

    def step(self) -> None:
        """Go to the next event and let it happen."""
        self.now_ns, _, _, act, arguments = heapq.heappop(self._heap)
        act(*arguments)
