"""Accepts connections, and counts all of them and those of each address before any handshake."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

HANDSHAKE_S: Final = 5.0
SILENT_S: Final = 1.0  # a connection that has been silent for longer is ended if a new one has no room
_AT_ONCE: Final = 64  # accepted in one turn of the event loop
_PAUSE_S: Final = 0.1  # after the process has run out of descriptors


def address_of(peer: str) -> bytes:
    """Return the key by which an address is counted: IPv4 whole, of IPv6 the first half (one site)."""
    address = ip_address(peer.partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).packed[:8]


class Crowd:
    """The open connections, and the order in which they fell silent.

    Args:
        most: connections; one more replaces a silent one, or is in the reserve.
        most_each: of one address.
        reserve: beyond them, for requests that are always answered.
    """

    def __init__(self, most: int, most_each: int, reserve: int) -> None:
        self._most = most
        self._most_each = most_each
        self._reserve = reserve
        self._silent: dict[object, tuple[float, Callable[[], object]]] = {}  # the longest first
        self.of_address: Counter[bytes] = Counter()

    @property
    def count(self) -> int:
        """The number of open connections."""
        return self.of_address.total()

    def enter(self, address: bytes, now_s: float) -> bool:
        """Count one more, and end silent ones if there is not enough room; return False if it must not enter."""
        if self.of_address[address] >= self._most_each:
            return False
        while self.count >= self._most and (silent := next(iter(self._silent), None)) is not None:
            since_s, end = self._silent[silent]
            if now_s - since_s < SILENT_S:
                break
            self.speaks(silent)
            end()
        if self.count >= self._most + self._reserve:
            return False
        self.of_address[address] += 1
        return True

    def leave(self, address: bytes) -> None:
        """Count out a connection of that address."""
        self.of_address[address] -= 1
        if not self.of_address[address]:
            del self.of_address[address]

    def falls_silent(self, connection: object, now_s: float, end: Callable[[], object]) -> None:
        """Mark it as idle; `end` ends it, and makes it leave at once."""
        self._silent[connection] = now_s, end

    def speaks(self, connection: object) -> None:
        """Mark it as busy (with a request) or gone."""
        self._silent.pop(connection, None)


class Acceptor:
    """Accepts at a listening socket, in the running event loop; it is closed like an `asyncio.Server`.

    Args:
        protocol: makes one for a connection; calls its argument when the connection is lost.
        context: for TLS.
    """

    def __init__(
        self,
        listening: socket.socket,
        crowd: Crowd,
        protocol: Callable[[Callable[[], None]], asyncio.Protocol],
        context: ssl.SSLContext | None,
    ) -> None:
        self._listening = listening
        self._crowd = crowd
        self._protocol = protocol
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._greeting: set[asyncio.Task[None]] = set()
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is left
                self._loop.remove_reader(self._listening)
                self._loop.call_later(_PAUSE_S, self._accept_again)
                return
            address = address_of(peer[0])
            if not self._crowd.enter(address, self._loop.time()):
                connection.close()
                continue
            connection.setblocking(False)
            leave = self._leave_once(address)
            task = self._loop.create_task(self._greet(connection, leave))
            self._greeting.add(task)
            self._crowd.falls_silent(task, self._loop.time(), lambda task=task, leave=leave: (leave(), task.cancel()))  # type: ignore[misc]
            task.add_done_callback(self._greeted)

    def _accept_again(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _leave_once(self, address: bytes) -> Callable[[], None]:
        """Return a function that counts the connection out, the first time that it is called."""
        is_there = True

        def leave() -> None:
            nonlocal is_there
            if is_there:
                is_there = False
                self._crowd.leave(address)

        return leave

    async def _greet(self, connection: socket.socket, leave: Callable[[], None]) -> None:
        """Shake hands, if there is TLS; from then on the protocol has the connection."""
        limit_s = None if self._context is None else HANDSHAKE_S
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(leave), connection, ssl=self._context, ssl_handshake_timeout=limit_s,
                ssl_shutdown_timeout=limit_s,
            )  # fmt: skip
        except (OSError, asyncio.CancelledError):  # it was cut off, or is not TLS
            leave()

    def _greeted(self, task: asyncio.Task[None]) -> None:
        self._greeting.discard(task)
        self._crowd.speaks(task)

    def close(self) -> None:
        """Stop accepting; another component closes the socket."""
        self._loop.remove_reader(self._listening)
        for task in self._greeting:
            task.cancel()

    async def wait_closed(self) -> None:
        """See `asyncio.Server`."""
