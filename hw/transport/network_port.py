"""The port between hosts: one TCP connection. Its frames are messages, activations for the agent's arena, or its log.

They travel in one stream, so nothing overtakes: an activation is there before a message that speaks of it, and what an
agent has done stands in its log before the router hears of it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from hw.transport.arena import Arena
from hw.transport.life_log import StepLog
from hw.transport.local_port import MOST_BYTES, SocketPort
from hw.transport.port import PortBrokenError, PortClosedError

_LENGTH: Final = 4
_OFFSET: Final = 8
_PLACED, _LOGGED = 1, 2  # kinds of frames, in the two upper bits of the length; 0 are messages
_READS: Final = 64  # in one go: whoever sends without a pause must not keep this end from all else
_READ: Final = 1 << 16


class PlacingPort(Protocol):
    """What activations can be given to, too."""

    def place(self, offset: int, data: memoryview) -> None:
        """See `NetworkPort`."""
        ...


class NetworkPort(SocketPort):
    """One end of a connection.

    Args:
        end: the socket; who is at the other end has proved itself.
        kind: what comes.
        arena: activations that come are for it; None where none may come.
        heard: takes the log that comes, in pieces; an empty one: it begins anew.
    """

    def __init__(
        self,
        end: socket.socket,
        kind: object,
        arena: Arena | None = None,
        heard: Callable[[bytes], object] | None = None,
    ) -> None:
        super().__init__(end, kind)
        self._arena = arena
        self._heard = heard
        self._filling: memoryview | None = None  # what is still to come of an activation

    # --------------------------------------------------------------------------------------------------- what is sent

    def flush(self) -> bool:
        """See `Port`."""
        self._require_reader()
        return super().flush()

    def _require_reader(self) -> None:
        """TCP takes what is sent to who is gone: so look, before anything is sent, whether the other end has ended."""
        try:
            ended = not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError as error:
            raise PortClosedError(f"the other end is gone ({error.strerror})") from None
        if ended:
            raise PortClosedError("the other end is gone")

    def place(self, offset: int, data: memoryview) -> None:
        """Activations for the other end's arena; for nobody, where that is gone."""
        header = self._header(_PLACED, len(data)) + offset.to_bytes(_OFFSET, "little")
        sent = 0
        if not self._unsent:
            try:
                sent = self._socket.sendmsg([header, data])
            except BlockingIOError:
                sent = 0
            except OSError:  # who reads the port will notice
                return
        self._unsent += header[sent:]
        self._unsent += data[max(0, sent - len(header)) :]

    def note(self, steps: bytes) -> None:
        """A piece of the log; it goes with the next `flush`, before all messages of that."""
        self._unsent += self._header(_LOGGED, len(steps)) + steps

    def _header(self, kind: int, length: int) -> bytes:
        return (kind << 30 | length).to_bytes(_LENGTH, "little")

    # --------------------------------------------------------------------------------------------------- what comes

    def receive(self) -> Sequence[Any]:
        """See `Port`."""
        found: list[Any] = []
        for _ in range(_READS):
            try:
                count = self._read(found)
            except BlockingIOError:
                break
            except OSError as error:
                count, reason = 0, f" ({error.strerror})"
            else:
                reason = ""
            if not count:
                if found:  # before the end is told
                    break
                if self._unread or self._filling:
                    raise PortBrokenError(f"the other end is gone in the middle of a message{reason}")
                raise PortClosedError(f"the other end is gone{reason}")
        return found

    def _read(self, found: list[Any]) -> int:
        """Some bytes to where they belong, and the messages that are whole to `found`; 0 at the end."""
        if self._filling is not None:
            count = self._socket.recv_into(self._filling)
            self._filling = self._filling[count:] or None
            return count
        data = self._socket.recv(_READ)
        self._unread += data
        if data:
            self._take_frames(found)
        return len(data)

    def _take_frames(self, found: list[Any]) -> None:
        at, end = 0, len(self._unread)
        while end - at >= _LENGTH and self._filling is None:
            word = int.from_bytes(self._unread[at : at + _LENGTH], "little")
            kind, length = word >> 30, word & (1 << 30) - 1
            if length > MOST_BYTES or kind > _LOGGED:
                raise PortBrokenError(f"a frame of {word} bytes is none of ours")
            if kind == _PLACED:
                begin = at + _LENGTH + _OFFSET
                if end < begin:
                    break
                at = self._begin_filling(begin, length)
                continue
            if end - at - _LENGTH < length:
                break
            at += _LENGTH + length
            body = bytes(self._unread[at - length : at])
            if kind == _LOGGED:
                self._hear_log(body)
            else:
                found += self._codec.decode(body)
        del self._unread[:at]

    def _begin_filling(self, begin: int, length: int) -> int:
        """What has come of an activation goes to its place, and the rest will; returns where the next frame begins."""
        offset = int.from_bytes(self._unread[begin - _OFFSET : begin], "little")
        if self._arena is None or offset + length > self._arena.size_bytes:
            raise PortBrokenError(f"{length} bytes for {offset} are not within an arena of this end")
        target = self._arena.view(offset, length)
        come = min(length, len(self._unread) - begin)
        target[:come] = self._unread[begin : begin + come]
        self._filling = target[come:] or None
        return begin + come

    def _hear_log(self, steps: bytes) -> None:
        if self._heard is None:
            raise PortBrokenError("a log comes from agents only")
        self._heard(steps)

    def sever(self) -> None:
        """From any thread: this end wakes up and sees the end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class SentLog(StepLog):
    """The log of an agent on another host: it travels to the router ahead of what is said, and so outlives the agent.

    Args:
        port: the agent's.
    """

    def __init__(self, port: NetworkPort) -> None:
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

    def __init__(self, size_bytes: int, port: Callable[[], PlacingPort]) -> None:
        super().__init__(size_bytes)
        self._port = port

    def commit(self, offset: int, size_bytes: int, address: str = "") -> None:
        """See `Arena`: no message that is sent later overtakes it."""
        self._port().place(offset, self.view(offset, size_bytes))
