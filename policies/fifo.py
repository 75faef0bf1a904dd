"""A first-in-first-out queue of items with a key: oldest first overall, and oldest first within each key."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice
from operator import itemgetter
from typing import Generic, TypeVar

Key = TypeVar("Key")

_Queue = tuple[deque[int], deque[int]]  # sequence numbers and items of a key; an emptied one is never used again


class KeyedFifo(Generic[Key]):
    """Items (integers) in arrival order, taken from the front of one key at a time; all operations are O(1) amortized.

    `by_age` is the exception: it sorts the keys, of which there are few. `waiting` is the number of all items.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._queues: dict[Key, _Queue] = {}
        self._order: deque[tuple[int, Key, _Queue]] = deque()  # of items pushed together, by the last one's number
        self._next = 0

    def __len__(self) -> int:
        return self.waiting

    def __contains__(self, key: Key) -> bool:
        return key in self._queues

    def push(self, key: Key, items: Collection[int]) -> None:
        """Append items at the tail."""
        if not items:
            return
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque(), deque()
        queue[0].extend(range(self._next, self._next + len(items)))
        queue[1].extend(items)
        self._next += len(items)
        self._order.append((self._next - 1, key, queue))
        self.waiting += len(items)

    def length(self, key: Key) -> int:
        """Return the number of waiting items of this key."""
        queue = self._queues.get(key)
        return len(queue[1]) if queue else 0

    def head(self) -> Key | None:
        """Return the key of the oldest item."""
        while self._order:
            last, key, queue = self._order[0]
            if _waits(last, queue):
                return key
            self._order.popleft()  # all of them left with an earlier group of their key
        return None

    def peek(self, key: Key, count: int) -> tuple[int, ...]:
        """Return up to `count` of the oldest items of a key without removing them."""
        queue = self._queues.get(key)
        return tuple(islice(queue[1], count)) if queue else ()

    def take(self, key: Key, count: int) -> tuple[int, ...]:
        """Remove and return up to `count` of the oldest items of a key."""
        queue = self._queues.get(key)
        if queue is None:
            return ()
        numbers, items = queue
        if count >= len(items):
            taken = tuple(items)
            numbers.clear()  # the order has it, too
            del self._queues[key]
        else:
            taken = tuple([items.popleft() for _ in range(count)])
            for _ in taken:
                numbers.popleft()
        self.waiting -= len(taken)
        if not self.waiting:
            self._order.clear()
        elif len(self._order) > 2 * self.waiting + 64:  # bounds memory if the head is never read
            self._order = deque(entry for entry in self._order if _waits(entry[0], entry[2]))
        return taken

    def remove(self, key: Key, doomed: Collection[int]) -> tuple[int, ...]:
        """Remove and return the items of a key that are in `doomed`; the others keep their places."""
        queue = self._queues.get(key)
        if queue is None:
            return ()
        entries = list(zip(*queue, strict=True))
        kept = [entry for entry in entries if entry[1] not in doomed]
        for place, column in enumerate(queue):
            column.clear()
            column.extend([entry[place] for entry in kept])
        if not kept:
            del self._queues[key]
        removed = tuple(item for _, item in entries if item in doomed)
        self.waiting -= len(removed)
        return removed

    def by_age(self) -> list[Key]:
        """Return the waiting keys, the one with the oldest item first."""
        queues = self._queues
        return sorted(queues, key=lambda key: queues[key][0][0]) if len(queues) > 1 else list(queues)

    def in_order(self) -> list[tuple[Key, int]]:
        """Return all items with their keys, the oldest first: pushed one by one, they make an equal queue."""
        queues = self._queues.items()
        numbered = [(number, key, item) for key, queue in queues for number, item in zip(*queue, strict=True)]
        return [(key, item) for _, key, item in sorted(numbered, key=itemgetter(0))]

    def __iter__(self) -> Iterator[Key]:
        """Return the waiting keys, in no guaranteed order."""
        return iter(tuple(self._queues))

    def clear(self) -> None:
        """Remove all items."""
        self._queues.clear()
        self._order.clear()
        self.waiting = 0


def _waits(last: int, queue: _Queue) -> bool:
    """Return whether items up to number `last` still wait: a key's items leave from the front."""
    return bool(queue[0]) and queue[0][0] <= last
