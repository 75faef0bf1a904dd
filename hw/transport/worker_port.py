"""The port between the router's process and a server's worker: one stream of frames over any connection.

An end posts messages and sends them together; it never waits for the other end. Messages arrive in order. Nothing here
assumes one clock, one memory or one host: the connection is a pair of sockets on one host, and TLS between two. A frame
is its kind and length (4 bytes), and messages, activations for the worker's arena, or a piece of its log. They travel
in
one stream, so nothing overtakes: an activation arrives before a message that refers to it, and a worker's steps are in
its log before the router is notified of them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from hw.transport.messages import FromWorker, ToWorker
from hw.transport.shared_memory import Arena, StepLog
from kit.errors import WorkError

if TYPE_CHECKING:
    from hw.transport.peers import Encrypted

    Connection = socket.socket | Encrypted

FLUSH_NS: Final = 500_000  # an end that had no room is tried again after this time
LENGTH: Final = 4
OFFSET: Final = 8
MAX_BYTES: Final = 1 << 28  # of a frame: a larger one is not ours
MESSAGES = 0  # the kinds of frames, in the two upper bits of the length
PLACED = 1
LOGGED = 2
_READ: Final = 1 << 16  # a larger buffer may be mapped and unmapped at every read: malloc does so from 128 KiB on
_READS: Final = 64  # in one go: a peer that sends without a pause must not keep this end from all other work
_BUFFER: Final = 1 << 20  # the kernel's buffer requested for either direction of a pair


Sent = TypeVar("Sent")
Heard = TypeVar("Heard")
Message = TypeVar("Message")


class PortClosedError(WorkError):
    """The other end is gone: nothing will arrive, and nothing can be sent."""


class PortBrokenError(WorkError):
    """Data that arrived are not a message: the other end is not a worker or router of ours."""


class Codec(Generic[Message]):
    """Messages that travel together, as bytes and back: msgpack, so that nothing that arrives can execute code."""

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[list[Message]] = msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]

    def decode(self, data: bytes | memoryview) -> list[Message]:
        """Decode messages; raises `PortBrokenError` for anything but what `encode` made of these types."""
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PortBrokenError(f"{len(data)} bytes are not a message ({error})") from None


_encoder = msgspec.msgpack.Encoder()


def encode(messages: Sequence[object]) -> bytes:
    """Encode some messages that travel together."""
    return _encoder.encode(messages)


class Port(Generic[Sent, Heard]):
    """One end of a connection. One thread drives it; any thread may call `join` and `end`.

    Args:
        kind: of messages that arrive.
        connection: to the other end; None if it follows (`join`), until when nothing has arrived.
        arena: receives activations that arrive; None if none may.
        heard: receives the log, in pieces; an empty piece restarts it.

    Attributes:
        ended: why nothing more will arrive, if another component reported it; empty before.
    """

    def __init__(
        self,
        kind: object,
        connection: Connection | None = None,
        arena: Arena | None = None,
        heard: Callable[[bytes], object] | None = None,
    ) -> None:
        self._codec: Codec[Heard] = Codec(kind)
        self._arena = arena
        self._heard = heard
        self._outbox: list[Sent] = []
        self._unsent = bytearray()
        self._unread = bytearray()
        self._needed_bytes = LENGTH  # bytes of `_unread` before parsing can proceed
        self._filling: memoryview | None = None  # the rest of an activation that is arriving
        self._lock = threading.Lock()  # guards changes of this end's connection
        self._is_joined = self._is_closed = False
        self.ended = ""
        self._waiting: tuple[socket.socket, ...] = ()  # a pair: it wakes up a thread that waits for the other end
        if connection is None:
            self._waiting = socket.socketpair()
            self._end: Connection = self._waiting[0]
            self._end.setblocking(False)
        else:
            self.join(connection)

    # ------------------------------------------------------------------------------------------------ the other end

    def join(self, connection: Connection) -> bool:
        """Connect the other end; return False if this end has closed: the caller then closes the connection."""
        with self._lock:
            if self._is_closed or self.ended or self._is_joined:
                return False
            connection.setblocking(False)
            self._end, self._is_joined = connection, True
            if self._waiting:
                self._waiting[1].send(b"!")
            return True

    def end(self, reason: str) -> None:
        """End the port: the other end's process is gone, or could not be started."""
        with self._lock:
            self.ended = self.ended or reason
            if self._is_closed:
                return
            if self._is_joined:
                with contextlib.suppress(OSError):
                    self._end.shutdown(socket.SHUT_RDWR)
            else:
                self._waiting[1].close()

    def fileno(self) -> int:
        """Return a descriptor for a selector: readable when data have arrived; it changes when the other end joins."""
        return self._end.fileno()

    def close(self) -> None:
        """Close the port. May be called twice."""
        with self._lock:
            self._is_closed = True
            for end in (self._end, *self._waiting):
                end.close()

    # --------------------------------------------------------------------------------------------------- what is sent

    def post(self, message: Sent) -> None:
        """Send this with the next `flush`."""
        self._outbox.append(message)

    def flush(self) -> bool:
        """Send posted messages, without ever waiting; return whether all of them are sent.

        Raises:
            PortClosedError: the other end is gone.
        """
        if not self._is_joined:
            if self._is_closed or self.ended:
                raise PortClosedError(self.ended or "it was closed")
            return not self._outbox
        if self._unsent:
            del self._unsent[: self._send(self._unsent)]
        if self._outbox:
            body = encode(self._outbox)
            self._outbox.clear()
            self._write(len(body).to_bytes(LENGTH, "little") + body)
        return not self._unsent

    def place(self, offset: int, data: memoryview) -> None:
        """Send activations to the other end's arena; drop them if that end is gone."""
        if self._is_joined:
            with contextlib.suppress(PortClosedError):  # the port's reader will notice
                self._write(header(PLACED, len(data)) + offset.to_bytes(OFFSET, "little"))
                self._write(data)

    def note(self, steps: bytes) -> None:
        """Send a piece of the log; it goes with the next `flush`, before all messages of that."""
        self._unsent += header(LOGGED, len(steps)) + steps

    def _write(self, data: bytes | memoryview) -> None:
        """Write after unsent bytes, as far as there is room; the rest later."""
        sent = 0 if self._unsent else self._send(data)
        if sent < len(data):
            self._unsent += data[sent:]

    def _send(self, data: bytes | bytearray | memoryview) -> int:
        try:
            return self._end.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise PortClosedError(f"the other end is gone ({error.strerror})") from None

    # --------------------------------------------------------------------------------------------------- what comes

    def receive(self) -> Sequence[Heard]:
        """Return the messages that have arrived, in order, without waiting; empty if there are none.

        Raises:
            PortClosedError: nothing more will arrive (everything before the end has been returned).
            PortBrokenError: the data are cut off, or not a message.
        """
        messages: list[Heard] = []
        for _ in range(_READS):
            try:
                data, reason = self._end.recv(_READ), ""
            except BlockingIOError:
                break
            except OSError as error:
                data, reason = b"", f" ({error.strerror})"
            if not data:
                if messages:  # before the end is reported
                    break
                if self._unread or self._filling:
                    raise PortBrokenError(f"the other end is gone in the middle of a message{reason}")
                raise PortClosedError(self.ended or f"the other end is gone{reason}")
            self._take(data, messages)
            if len(data) < _READ:
                break
        return messages

    def _take(self, data: bytes, messages: list[Heard]) -> None:
        """Put bytes where they belong, and complete messages into `messages`; the rest stays for later."""
        if self._filling is not None:
            count = min(len(data), len(self._filling))
            self._filling[:count] = data[:count]
            self._filling = self._filling[count:] or None
            data = data[count:]
        if self._unread:
            self._unread += data
            if len(self._unread) < self._needed_bytes:
                return
            data, self._unread = bytes(self._unread), bytearray()
        at, end = 0, len(data)
        view = memoryview(data)
        while end - at >= LENGTH:
            prefix = int.from_bytes(data[at : at + LENGTH], "little")
            kind, length = prefix >> 30, prefix & (1 << 30) - 1
            if length > MAX_BYTES or kind > LOGGED:
                raise PortBrokenError(f"a frame of {prefix} bytes is none of ours")
            begin = at + LENGTH + (OFFSET if kind == PLACED else 0)
            self._needed_bytes = begin - at if kind == PLACED else begin - at + length
            if end - at < self._needed_bytes:
                break
            at = min(end, begin + length)
            if kind == MESSAGES:
                messages += self._codec.decode(view[begin:at])
            elif kind == LOGGED:
                self._hear_log(data[begin:at])
            else:
                self._begin_filling(int.from_bytes(data[begin - OFFSET : begin], "little"), length, view[begin:at])
        else:
            self._needed_bytes = LENGTH
        self._unread += view[at:]

    def _begin_filling(self, offset: int, length: int, data: memoryview) -> None:
        """Put the part of an activation that has arrived in its place, and the rest when it arrives."""
        if self._arena is None or offset + length > self._arena.size_bytes:
            raise PortBrokenError(f"{length} bytes for {offset} are not within an arena of this end")
        target = self._arena.view(offset, length)
        target[: len(data)] = data
        self._filling = target[len(data) :] or None

    def _hear_log(self, steps: bytes) -> None:
        if self._heard is None:
            raise PortBrokenError("a log comes from workers only")
        self._heard(steps)


RouterEnd = Port[ToWorker, FromWorker]
WorkerEnd = Port[FromWorker, ToWorker]


def header(kind: int, length: int) -> bytes:
    """Return a frame's header."""
    return (kind << 30 | length).to_bytes(LENGTH, "little")


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the router's end and the worker's, on one host."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    return pair


class SentLog(StepLog):
    """The log of a worker on another host: it travels to the router ahead of messages, and so outlives the worker.

    Args:
        port: the worker's.
    """

    def __init__(self, port: WorkerEnd) -> None:
        super().__init__()
        self._port = port

    def _put(self, frame: bytes) -> None:
        self._port.note(frame)

    def clear(self) -> None:
        """See `StepLog`."""
        super().clear()
        self._port.note(b"")


class Mirror(Arena):
    """A worker's arena as the router writes to it: what is written here travels in the stream of messages.

    Args:
        port: returns the port to the present worker.
    """

    def __init__(self, size_bytes: int, port: Callable[[], RouterEnd]) -> None:
        super().__init__(size_bytes)
        self._port = port

    def commit(self, offset: int, size_bytes: int, address: str = "") -> None:
        """See `Arena`: no message that is sent later overtakes it."""
        self._port().place(offset, self.view(offset, size_bytes))
