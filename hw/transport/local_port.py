"""The port on one host: a pair of sockets. A frame is a length and as many bytes of msgpack: several messages."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Final

from hw.transport.messages import FromAgent, ToAgent
from hw.transport.port import AgentEnd, Codec, PortBrokenError, PortClosedError, RouterEnd, encode

_LENGTH: Final = 4
_READ: Final = 1 << 16  # a larger buffer may be mapped and unmapped at every read: malloc does so from 128 KiB on
_BUFFER: Final = 1 << 20  # what the kernel is asked to keep for either direction
MOST_BYTES: Final = 1 << 28  # of a frame: more is no frame of ours


class SocketPort:
    """One end of a pair.

    Args:
        end: the socket.
        kind: what comes.
    """

    def __init__(self, end: socket.socket, kind: object) -> None:
        end.setblocking(False)
        self._socket = end
        self._codec: Codec[Any] = Codec(kind)
        self._outbox: list[Any] = []
        self._unsent = bytearray()
        self._unread = bytearray()

    def post(self, message: Any) -> None:
        """See `Port`."""
        self._outbox.append(message)

    def flush(self) -> bool:
        """See `Port`."""
        if self._outbox:
            body = encode(self._outbox)
            self._outbox.clear()
            data = len(body).to_bytes(_LENGTH, "little") + body
            if not self._unsent:
                data = data[self._send(data) :]
            self._unsent += data
        if self._unsent:
            del self._unsent[: self._send(self._unsent)]
        return not self._unsent

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise PortClosedError(f"the other end is gone ({error.strerror})") from None

    def receive(self) -> Sequence[Any]:
        """See `Port`."""
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return ()
        except OSError as error:
            raise PortClosedError(f"the other end is gone ({error.strerror})") from None
        if not data:
            if self._unread:
                raise PortBrokenError(f"the other end is gone in the middle of a message ({len(self._unread)} bytes)")
            raise PortClosedError("the other end is gone")
        if self._unread:
            self._unread += data
            return self._frames(self._unread)
        return self._frames(data)

    def _frames(self, data: bytes | bytearray) -> Sequence[Any]:
        """The messages of the whole frames; what is left of another stays for later."""
        found: list[Any] = []
        at, end = 0, len(data)
        with memoryview(data) as view:
            while end - at >= _LENGTH:
                length = int.from_bytes(view[at : at + _LENGTH], "little")
                if length > MOST_BYTES:
                    raise PortBrokenError(f"a frame of {length} bytes is none of ours")
                if end - at - _LENGTH < length:
                    break
                at += _LENGTH + length
                with view[at - length : at] as body:
                    found += self._codec.decode(body)
        self._unread = bytearray(data[at:]) if at < end else bytearray()
        return found

    def fileno(self) -> int:
        """See `Port`."""
        return self._socket.fileno()

    def close(self) -> None:
        """See `Port`."""
        self._socket.close()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """The router's end and the agent's."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    return pair


def router_end(end: socket.socket) -> RouterEnd:
    """The router's."""
    return SocketPort(end, FromAgent)


def agent_end(end: socket.socket) -> AgentEnd:
    """The agent's."""
    return SocketPort(end, ToAgent)
