"""Time and sockets that are not there: an event queue, and streams of bytes between two ends."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

import numpy as np

FIRST_DESCRIPTOR = 1 << 20  # none of the process's own


class EventQueue:
    """What will happen, in order; `now_ns` is the time of whoever acts at the moment."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._count = count()

    def at(self, time_ns: int, event: Callable[[], object]) -> None:
        """It happens then; events of one instant in the order in which they were planned."""
        heappush(self._events, (time_ns, next(self._count), event))

    @property
    def next_ns(self) -> int | None:
        return self._events[0][0] if self._events else None

    def play_next(self) -> None:
        self.now_ns, _, event = heappop(self._events)
        event()


class Link:
    """How bytes travel between two hosts (or processes of one): late, in pieces, not at all while it is cut.

    Args:
        rng: draws delays and pieces.
        delay_ns: the mean of what a piece takes beyond `least_ns`.
        split: the share of sends that come in two pieces.
        room_bytes: that are on their way or unread before the sender must wait.
        is_cut: nothing comes through; `is_alone`: nor do the activations of other hosts.
        is_far: between hosts: that the other end has closed is known when word of it has come.
    """

    def __init__(
        self, rng: np.random.Generator, least_ns: int, delay_ns: float, split: float, room_bytes: int, is_far: bool
    ) -> None:
        self.rng = rng
        self.is_far = is_far
        self.least_ns, self.delay_ns, self.split, self.room_bytes = least_ns, delay_ns, split, room_bytes
        self.is_cut = self.is_alone = False

    def delay(self) -> int:
        return self.least_ns + int(self.delay_ns * self.rng.exponential())


class Stream:
    """One direction of a connection: in order, whatever else."""

    def __init__(self, event_queue: EventQueue, link: Link, heard: Callable[[], object]) -> None:
        self._event_queue = event_queue
        self.link = link
        self._heard = heard
        self._held: deque[bytes] = deque()  # while the link is cut
        self._last_ns = 0
        self._underway_bytes = 0
        self.unread = bytearray()
        self.is_ended = False  # the reader sees the end after what is unread
        self.is_read = True

    def send(self, data: bytes | bytearray | memoryview) -> int:
        link = self.link
        count = min(len(data), link.room_bytes - self._underway_bytes - len(self.unread))
        if count <= 0:
            raise BlockingIOError
        body = bytes(data[:count])
        cut = int(link.rng.random() * count) if link.rng.random() < link.split else 0
        for piece in (body[:cut], body[cut:]) if cut else (body,):
            self._underway_bytes += len(piece)
            self._bring(piece)
        return count

    def end(self) -> None:
        """The sender is gone: the reader will see it after what was sent."""
        self._bring(b"")

    def _bring(self, piece: bytes) -> None:
        self._last_ns = max(self._last_ns, self._event_queue.now_ns + self.link.delay())
        self._event_queue.at(self._last_ns, lambda: self._arrive(piece))

    def _arrive(self, piece: bytes) -> None:
        if self.link.is_cut:
            self._held.append(piece)
            return
        self._underway_bytes -= len(piece)
        if not self.is_read or self.is_ended:
            return
        if piece:
            self.unread += piece
        else:
            self.is_ended = True
        self._heard()

    def heal(self) -> None:
        """The link is back: what was held comes."""
        held, self._held = self._held, deque()
        for piece in held:
            self._arrive(piece)

    def lose(self) -> None:
        """The connection is lost with what was under way: the reader sees the end now, perhaps in mid-message."""
        self._held.clear()
        if self.is_read and not self.is_ended:
            self.is_ended = True
            self._heard()


class VirtualSocket:
    """One end of a connection, with as much of a socket as the ports ask of one."""

    def __init__(self, descriptor: int, out: Stream, back: Stream) -> None:
        self._descriptor = descriptor
        self._out = out
        self.back = back
        self.is_open = True

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def fileno(self) -> int:
        return self._descriptor if self.is_open else -1

    @property
    def is_readable(self) -> bool:
        """Whether there is something to read, if only the end."""
        return bool(self.back.unread) or self.back.is_ended

    def _require_open(self) -> None:
        if not self.is_open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def send(self, data: bytes | bytearray | memoryview) -> int:
        self._require_open()
        if not self._out.is_read and (self.back.is_ended or not self._out.link.is_far):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        return self._out.send(data)

    def recv(self, most: int) -> bytes:
        self._require_open()
        unread = self.back.unread
        if not unread:
            if self.back.is_ended:
                return b""
            raise BlockingIOError
        data = bytes(unread[:most])
        del unread[:most]
        return data

    def shutdown(self, how: int) -> None:
        self._require_open()
        self._out.end()
        self.back.lose()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.back.is_read = False
            self._out.end()


def connection(
    event_queue: EventQueue,
    link: Link,
    descriptors: tuple[int, int],
    heard: tuple[Callable[[], object], Callable[[], object]],
) -> tuple[VirtualSocket, VirtualSocket]:
    """Two ends; `heard`: called when something has come to each."""
    to_first, to_second = Stream(event_queue, link, heard[0]), Stream(event_queue, link, heard[1])
    return VirtualSocket(descriptors[0], to_second, to_first), VirtualSocket(descriptors[1], to_first, to_second)
