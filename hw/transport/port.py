"""The port between the router's process and a server's agent: one stream of frames, whatever carries it.

An end posts messages and sends them together; it never waits for the other one. Arrived messages come in their order.
Nothing here assumes one clock, one memory or one host: a pair of sockets carries the frames on one host, TLS between
two. A frame is its kind and length (4 bytes), and messages, activations for the agent's arena, or a piece of its log.
They travel in one stream, so nothing overtakes: an activation is there before a message that speaks of it, and what an
agent has done stands in its log before the router hears of it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from hw.transport.arena import Arena
from hw.transport.messages import FromAgent, ToAgent
from hw.transport.step_log import StepLog
from kit.errors import WorkError

if TYPE_CHECKING:
    from hw.transport.tls import Encrypted

    Connection = socket.socket | Encrypted

FLUSH_NS: Final = 500_000  # after so long an end that had no room is tried again
LENGTH: Final = 4
OFFSET: Final = 8
MAX_BYTES: Final = 1 << 28  # of a frame: more is no frame of ours
SAID = 0  # the kinds of frames, in the two upper bits of the length
PLACED = 1
LOGGED = 2
_READ: Final = 1 << 16  # a larger buffer may be mapped and unmapped at every read: malloc does so from 128 KiB on
_READS: Final = 64  # in one go: whoever sends without a pause must not keep this end from all else
_BUFFER: Final = 1 << 20  # what the kernel is asked to keep for either direction of a pair


Sent = TypeVar("Sent")
Heard = TypeVar("Heard")
Word = TypeVar("Word")


class PortClosedError(WorkError):
    """The other end is gone: nothing will come, and nothing can be sent."""


class PortBrokenError(WorkError):
    """What came is no message: the other end is not what it should be."""


class Codec(Generic[Word]):
    """Messages that travel together, as bytes and back: msgpack, so that nothing that arrives can execute code."""

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[list[Word]] = msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]

    def decode(self, data: bytes | memoryview) -> list[Word]:
        """Raises `PortBrokenError` for anything else than what `encode` made of these words."""
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PortBrokenError(f"{len(data)} bytes are no message ({error})") from None


_encoder = msgspec.msgpack.Encoder()


def encode(messages: Sequence[object]) -> bytes:
    """Some messages that travel together."""
    return _encoder.encode(messages)


class Port(Generic[Sent, Heard]):
    """One end. Whoever drives it uses one thread; `join` and `end` come from any.

    Args:
        kind: what comes.
        connection: to the other end; None where that is still to come (`join`), until when nothing has arrived.
        arena: activations that come are for it; None where none may come.
        heard: takes the log that comes, in pieces; an empty one: it begins anew.

    Attributes:
        ended: why nothing will come any more, as far as others have told; empty before.
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
        self._wanted = LENGTH  # bytes of `_unread` before it is worth a look
        self._filling: memoryview | None = None  # what is still to come of an activation
        self._lock = threading.Lock()  # of whoever changes what this end is connected to
        self._is_joined = self._is_closed = False
        self.ended = ""
        self._waiting: tuple[socket.socket, ...] = ()  # a pair: it wakes up who waits for the other end to come
        if connection is None:
            self._waiting = socket.socketpair()
            self._end: Connection = self._waiting[0]
            self._end.setblocking(False)
        else:
            self.join(connection)

    # ------------------------------------------------------------------------------------------------ the other end

    def join(self, connection: Connection) -> bool:
        """The other end is there; False where nobody waits for it any more, and then it is for the caller to close."""
        with self._lock:
            if self._is_closed or self.ended or self._is_joined:
                return False
            connection.setblocking(False)
            self._end, self._is_joined = connection, True
            if self._waiting:
                self._waiting[1].send(b"!")
            return True

    def end(self, reason: str) -> None:
        """Nothing will come any more: the other end's process is gone, or could not be started."""
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
        """For a selector: readable when something has come; another one once the other end is there."""
        return self._end.fileno()

    def close(self) -> None:
        """Let go of it. May be called twice."""
        with self._lock:
            self._is_closed = True
            for each in (self._end, *self._waiting):
                each.close()

    # --------------------------------------------------------------------------------------------------- what is sent

    def post(self, message: Sent) -> None:
        """Send this with the next `flush`."""
        self._outbox.append(message)

    def flush(self) -> bool:
        """Send what was posted, without ever waiting; returns whether all of it is on its way.

        Raises:
            PortClosedError: nobody is there.
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
        """Activations for the other end's arena; for nobody, where that is gone."""
        if self._is_joined:
            with contextlib.suppress(PortClosedError):  # who reads the port will notice
                self._write(header(PLACED, len(data)) + offset.to_bytes(OFFSET, "little"))
                self._write(data)

    def note(self, steps: bytes) -> None:
        """A piece of the log; it goes with the next `flush`, before all messages of that."""
        self._unsent += header(LOGGED, len(steps)) + steps

    def _write(self, data: bytes | memoryview) -> None:
        """After what is unsent, as much as there is room for; the rest later."""
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
        """What has come, in its order, without waiting; empty where nothing has.

        Raises:
            PortClosedError: nothing will come any more (what came before the end has been given).
            PortBrokenError: what came is cut off, or no message.
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
                if messages:  # before the end is told
                    break
                if self._unread or self._filling:
                    raise PortBrokenError(f"the other end is gone in the middle of a message{reason}")
                raise PortClosedError(self.ended or f"the other end is gone{reason}")
            self._take(data, messages)
            if len(data) < _READ:
                break
        return messages

    def _take(self, data: bytes, messages: list[Heard]) -> None:
        """Some bytes to where they belong, and the messages that are whole to `found`; the rest stays for later."""
        if self._filling is not None:
            come = min(len(data), len(self._filling))
            self._filling[:come] = data[:come]
            self._filling = self._filling[come:] or None
            data = data[come:]
        if self._unread:
            self._unread += data
            if len(self._unread) < self._wanted:
                return
            data, self._unread = bytes(self._unread), bytearray()
        at, end = 0, len(data)
        view = memoryview(data)
        while end - at >= LENGTH:
            word = int.from_bytes(data[at : at + LENGTH], "little")
            kind, length = word >> 30, word & (1 << 30) - 1
            if length > MAX_BYTES or kind > LOGGED:
                raise PortBrokenError(f"a frame of {word} bytes is none of ours")
            begin = at + LENGTH + (OFFSET if kind == PLACED else 0)
            self._wanted = begin - at if kind == PLACED else begin - at + length
            if end - at < self._wanted:
                break
            at = min(end, begin + length)
            if kind == SAID:
                messages += self._codec.decode(view[begin:at])
            elif kind == LOGGED:
                self._hear_log(data[begin:at])
            else:
                self._begin_filling(int.from_bytes(data[begin - OFFSET : begin], "little"), length, view[begin:at])
        else:
            self._wanted = LENGTH
        self._unread += view[at:]

    def _begin_filling(self, offset: int, length: int, come: memoryview) -> None:
        """What has come of an activation goes to its place, and the rest will."""
        if self._arena is None or offset + length > self._arena.size_bytes:
            raise PortBrokenError(f"{length} bytes for {offset} are not within an arena of this end")
        target = self._arena.view(offset, length)
        target[: len(come)] = come
        self._filling = target[len(come) :] or None

    def _hear_log(self, steps: bytes) -> None:
        if self._heard is None:
            raise PortBrokenError("a log comes from agents only")
        self._heard(steps)


RouterEnd = Port[ToAgent, FromAgent]
AgentEnd = Port[FromAgent, ToAgent]


def header(kind: int, length: int) -> bytes:
    """Of a frame."""
    return (kind << 30 | length).to_bytes(LENGTH, "little")


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """The router's end and the agent's, on one host."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    return pair


class SentLog(StepLog):
    """The log of an agent on another host: it travels to the router ahead of what is said, and so outlives the agent.

    Args:
        port: the agent's.
    """

    def __init__(self, port: AgentEnd) -> None:
        super().__init__()
        self._port = port

    def _put(self, frame: bytes) -> None:
        self._port.note(frame)

    def clear(self) -> None:
        """See `StepLog`."""
        super().clear()
        self._port.note(b"")


class Mirror(Arena):
    """An agent's arena as the router writes to it: what is written here goes the way that messages go.

    Args:
        port: to whoever is the agent at the time of asking.
    """

    def __init__(self, size_bytes: int, port: Callable[[], RouterEnd]) -> None:
        super().__init__(size_bytes)
        self._port = port

    def commit(self, offset: int, size_bytes: int, address: str = "") -> None:
        """See `Arena`: no message that is sent later overtakes it."""
        self._port().place(offset, self.view(offset, size_bytes))
