"""The queue of the router's core: batching delays, a FIFO with keys, samples of the servers, and admission.

Batching delays (`BatchingDelays`): a decision skips a delayed batch queue, whose requests stay in the FIFO.
`BatchingDelays` has no clock and no FIFO. `docs/theory-of-operation.md` describes what begins and ends a batching
delay.

Samples (`sampled_servers`): in a large cluster a decision examines a sample of the servers, so that its cost does not
depend on the cluster's size. Half of the sample are the servers where a micro-batch ended last: they are likely to have
little work, and fast servers are more often among them (as in join-idle-queue: Lu et al. 2011). The others are drawn at
random: the best of a few is nearly the best of all (power of d choices: Mitzenmacher 2001). A draw is a hash of the
decision's number, so it is the same in both engines, on executors and in a replay.

Admission (`has_room`, `note_end`): the core refuses requests that arrive while too many are inside, so that the
requests inside keep the p99 latency. By Little's law the number of images that fit is the number of completions within
the latency limit. The first value comes from the cost model; measurements then correct it: a late image reduces the
room and an image in time increases it, so that the share of late images converges to `AIM` under overload (a stochastic
approximation of a quantile, Robbins and Monro 1951). Of several classes the class with the lowest accuracy to keep is
refused first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from kit.random_streams import derived_seed, hashed
from policies.vocabulary import BatchingDelayRule

RATE_ARRIVALS: Final = 24  # arrivals that the mean gap is averaged over: independent of a cluster's speed
# by decisions, of one request before a micro-batch takes it: each costs a decision, and has a credit
MAX_BATCHING_DELAYS: Final = 3

QueueKey = TypeVar("QueueKey", bound=Hashable)


# ------------------------------------------------------------------------------------------------------ batching delays


class Holdable(Protocol):
    """A request's entry in the router's ledger, as far as batching delays go: `delayed_ns` is its total delay so
    far."""

    deadline_ns: int | None
    entered_ns: int
    delayed_ns: int


class Arrivals(Protocol):
    """The arrival rate per nanosecond, and the time of the last arrival."""

    rate: float
    arrived_ns: int


def note_arrival(arrivals: Arrivals, now_ns: int) -> None:
    """Count one more arrival; a plain function, as both engines compute it."""
    if arrivals.arrived_ns > 0:  # otherwise it is the first
        passed_ns = float(now_ns - arrivals.arrived_ns)
        gap_ns = 1.0 / arrivals.rate if arrivals.rate > 0.0 else passed_ns
        arrivals.rate = 1.0 / max(1.0, gap_ns + (passed_ns - gap_ns) / RATE_ARRIVALS)
    arrivals.arrived_ns = now_ns


class _BatchingDelay(msgspec.Struct):
    """One batch queue's delay: until the queue has `requests` requests, or until a time."""

    since_ns: int
    until_ns: int
    requests: int


class BatchingDelaysState(msgspec.Struct, Generic[QueueKey], frozen=True, array_like=True):
    """The complete state of a router's batching delays."""

    is_on: bool
    rule: BatchingDelayRule | None
    rate: float
    arrived_ns: int
    delayed: tuple[tuple[QueueKey, _BatchingDelay], ...]


class BatchingDelays(Generic[QueueKey]):
    """The batching delays of one router.

    Args:
        limit_ns: the longest total batching delay of a request; 0 for no batching delays.
        most: the size of the largest micro-batch, at which a batching delay ends.
    """

    def __init__(self, limit_ns: int, most: int) -> None:
        self.is_on = limit_ns > 0
        self._limit_ns, self._most = limit_ns, most
        self._rule: BatchingDelayRule | None = None
        self.rate, self.arrived_ns = 0.0, 0
        self._delayed: dict[QueueKey, _BatchingDelay] = {}

    def __contains__(self, queue_key: QueueKey) -> bool:
        return queue_key in self._delayed

    @property
    def queue_keys(self) -> tuple[QueueKey, ...]:
        """The delayed batch queues."""
        return tuple(self._delayed)

    @property
    def next_ns(self) -> int | None:
        """The end of the next batching delay that ends automatically."""
        # read at each arrival
        return min(batching_delay.until_ns for batching_delay in self._delayed.values()) if self._delayed else None

    def state(self) -> BatchingDelaysState[QueueKey]:
        """Return the state."""
        return BatchingDelaysState(self.is_on, self._rule, self.rate, self.arrived_ns, tuple(self._delayed.items()))

    def resume(self, state: BatchingDelaysState[QueueKey]) -> None:
        """Resume from a state."""
        self.is_on = state.is_on
        self._rule = state.rule
        self.rate = state.rate
        self.arrived_ns = state.arrived_ns
        self._delayed = dict(state.delayed)

    def set_rule(self, rule: BatchingDelayRule) -> None:
        """Set the rule for batching delays of batch queues that begin from now on."""
        self._rule = rule

    def left_ns(self, members: Iterable[Holdable], now_ns: int) -> int:
        """Return the longest batching delay of these from now on: the first request's remainder, at most until its
        deadline."""
        return max(0, min(self._last_ns(entry, now_ns) for entry in members) - now_ns) if self.is_on else 0

    def _last_ns(self, entry: Holdable, since_ns: int) -> int:
        last_ns = since_ns + self._limit_ns - entry.delayed_ns
        return last_ns if entry.deadline_ns is None else min(last_ns, entry.deadline_ns)

    def begin(self, queue_key: QueueKey, members: Iterable[Holdable], requests: int, wait_ns: int, now_ns: int) -> int:
        """Delay a batch queue that is not delayed; returns its latest end."""
        until_ns = now_ns + min(wait_ns, self.left_ns(members, now_ns))
        self._delayed[queue_key] = _BatchingDelay(now_ns, until_ns, min(requests, self._most))
        return until_ns

    def join(self, queue_key: QueueKey, entry: Holdable, segment: int, waiting: int, now_ns: int) -> bool:
        """Count a request that has entered a batch queue of `waiting` requests; returns whether that ends the queue's
        batching delay.

        The rule delays a batch queue that begins with it (`begin_by_rule`).
        """
        batching_delay = self._delayed.get(queue_key)
        if batching_delay is not None:
            batching_delay.until_ns = min(batching_delay.until_ns, self._last_ns(entry, now_ns))
            return waiting >= batching_delay.requests
        if waiting == 1:
            self.begin_by_rule(queue_key, (entry,), segment, now_ns)
        return False

    def begin_by_rule(self, queue_key: QueueKey, members: Sequence[Holdable], segment: int, now_ns: int) -> None:
        """Delay a batch queue that begins with these, its only requests, according to the rule.

        It waits for no more requests than the wait brings at the present rate: at a light load for none.
        """
        if self._rule is None:
            return
        requests, wait_ns = self._rule.requests[segment - 1], self._rule.wait_ns[segment - 1]
        if self._rule.arrivals_ns:
            requests = max(requests, int(min(self.rate * self._rule.arrivals_ns[segment - 1], self._most)))
        requests = min(requests, self._most, 1 + int(min(self.rate * wait_ns, self._most)))
        if len(members) < requests and wait_ns > 0:
            self.begin(queue_key, members, requests, wait_ns, now_ns)

    def end(self, queue_key: QueueKey, members: Iterable[Holdable], now_ns: int) -> None:
        """End a batch queue's delay: its members were delayed from its start, or their entry, until now or its end."""
        batching_delay = self._delayed.pop(queue_key)
        ended_ns = min(now_ns, batching_delay.until_ns)
        for entry in members:
            entry.delayed_ns += max(0, ended_ns - max(batching_delay.since_ns, entry.entered_ns))

    def due(self, now_ns: int) -> tuple[QueueKey, ...]:
        """Return the batch queues whose delay has reached its end."""
        return tuple(
            queue_key for queue_key, batching_delay in self._delayed.items() if batching_delay.until_ns <= now_ns
        )


# ------------------------------------------------------------------------------------------------------------- the FIFO


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
            self._order.popleft()  # all of them left with an earlier micro-batch of their key
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
            removed = tuple(items)
            numbers.clear()  # the order has it, too
            del self._queues[key]
        else:
            removed = tuple([items.popleft() for _ in range(count)])
            for _ in removed:
                numbers.popleft()
        self.waiting -= len(removed)
        if not self.waiting:
            self._order.clear()
        elif len(self._order) > 2 * self.waiting + 64:  # bounds memory if the head is never read
            self._order = deque(entry for entry in self._order if _waits(entry[0], entry[2]))
        return removed

    def remove(self, key: Key, doomed: Collection[int]) -> tuple[int, ...]:
        """Remove and return the items of a key that are in `doomed`; the others keep their places."""
        queue = self._queues.get(key)
        if queue is None:
            return ()
        entries = list(zip(*queue, strict=True))
        remaining = [entry for entry in entries if entry[1] not in doomed]
        for index, column in enumerate(queue):
            column.clear()
            column.extend([entry[index] for entry in remaining])
        if not remaining:
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


# ----------------------------------------------------------------------------------------------- samples of the servers


SALT: Final = derived_seed(0, "sampled servers")
TRIES: Final = 2  # draws for each server wanted: one may be drawn twice, or take no micro-batch


def sampled_servers(
    decision: int, location: int, freed: Iterable[int], can_take: Callable[[int], bool], servers: int, samples: int
) -> tuple[int, ...]:
    """Return the location of the candidates' activations (0 or more; if negative, no server) and others that can take
    the micro-batch.

    Empty if none of these can: then all are examined, as they are if there are no more than `samples`.

    Args:
        freed: servers where micro-batches ended, the last one first.
    """
    if not 0 < samples < servers:
        return ()
    sample = [location] if location >= 0 else []
    any_can = location >= 0 and can_take(location)
    for server in freed:
        if len(sample) > samples // 2:
            break
        if server not in sample and can_take(server):
            sample.append(server)
            any_can = True
    for draw in range(TRIES * samples):
        if len(sample) == samples:
            break
        server = hashed(SALT, decision, draw) % servers
        if server not in sample and can_take(server):
            sample.append(server)
            any_can = True
    return tuple(sample) if any_can else ()


# ------------------------------------------------------------------------------------------------------------ admission


REFUSED: Final = "refused"
AIM: Final = 0.005  # share of late images
STEP: Final = 0.5  # of the logarithm of the room, if a full room of images is late
LEAST: Final = 0.1  # of the cost model's number: images late at that are not late because of others
MOST: Final = 4.0
RESERVED: Final = 0.2  # of the room, reserved for the class with the highest accuracy to keep


class Room(Protocol):
    """The number of images that fit within the limit by the cost model, 0 for no bound, and its measured scale."""

    images: float
    scale: float


def has_room(room: Room, inside: int, rank: float) -> bool:
    """Return whether one more may enter; `rank` is 0 for the class that is refused last, 1 for the first."""
    return room.images <= 0.0 or inside < room.images * room.scale * (1.0 - RESERVED * rank)


def note_end(room: Room, inside: int, is_late: bool) -> None:
    """Note that an image has ended, with `inside` images inside before."""
    if room.images > 0.0:
        step = STEP / max(1.0, room.images)
        if is_late:
            room.scale = max(LEAST, room.scale * (1.0 - step))
        elif 2.0 * inside >= room.images * room.scale:
            room.scale = min(MOST, room.scale * (1.0 + step * AIM))
