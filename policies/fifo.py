"""A first-in-first-out queue whose items carry a key: oldest first overall, and oldest first within each key."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key")


class KeyedFifo(Generic[Key]):
    """Items (integers) in arrival order, taken from the front of one key at a time; all operations are O(1) amortized.

    `by_age` is the exception: it sorts the keys, of which there are few.
    """

    def __init__(self) -> None:
        self._queues: dict[Key, deque[tuple[int, int]]] = {}
        self._order: deque[tuple[int, Key]] = deque()
        self._next = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, key: Key) -> bool:
        return key in self._queues

    def push(self, key: Key, items: Iterable[int]) -> None:
        """Append items at the tail."""
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
        for item in items:
            queue.append((self._next, item))
            self._order.append((self._next, key))
            self._next += 1
            self._length += 1
        if not queue:
            del self._queues[key]

    def length(self, key: Key) -> int:
        """How many items of this key wait."""
        queue = self._queues.get(key)
        return len(queue) if queue else 0

    def head(self) -> Key | None:
        """The key of the oldest item."""
        while self._order:
            sequence, key = self._order[0]
            queue = self._queues.get(key)
            if queue is not None and queue[0][0] == sequence:
                return key
            self._order.popleft()  # was taken with an earlier group of its key
        return None

    def peek(self, key: Key, count: int) -> tuple[int, ...]:
        """Up to `count` of the oldest items of a key, left in place."""
        queue = self._queues.get(key, ())
        return tuple(item for (_, item), _ in zip(queue, range(count), strict=False))

    def take(self, key: Key, count: int) -> tuple[int, ...]:
        """Remove and return up to `count` of the oldest items of a key."""
        queue = self._queues.get(key)
        if queue is None:
            return ()
        taken = tuple(queue.popleft()[1] for _ in range(min(count, len(queue))))
        if not queue:
            del self._queues[key]
        self._length -= len(taken)
        if len(self._order) > 2 * self._length + 64:  # who never asks for the head must not keep every item for ever
            self._order = deque(entry for entry in self._order if self._waits(*entry))
        return taken

    def _waits(self, sequence: int, key: Key) -> bool:
        """Items of a key leave from the front: those from its first on still wait."""
        queue = self._queues.get(key)
        return queue is not None and queue[0][0] <= sequence

    def remove(self, key: Key, doomed: Collection[int]) -> tuple[int, ...]:
        """Remove and return the items of a key that are in `doomed`; the others keep their places."""
        queue = self._queues.get(key, ())
        kept = deque(entry for entry in queue if entry[1] not in doomed)
        removed = tuple(item for _, item in queue if item in doomed)
        if kept:
            self._queues[key] = kept
        else:
            self._queues.pop(key, None)
        self._length -= len(removed)
        return removed

    def by_age(self) -> list[Key]:
        """The keys that wait, the one with the oldest item first."""
        queues = self._queues
        return sorted(queues, key=lambda key: queues[key][0][0]) if len(queues) > 1 else list(queues)

    def __iter__(self) -> Iterator[Key]:
        """The keys that wait, in no promised order."""
        return iter(tuple(self._queues))

    def clear(self) -> None:
        """Forget everything."""
        self._queues.clear()
        self._order.clear()
        self._length = 0
