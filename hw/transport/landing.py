"""Activations from one agent to another of another host: straight, and not by way of the router.

Each agent has a gate of its own. Whoever writes waits until the receiver says that the bytes stand in its arena; only
then does it tell the router. A piece is its length (4 bytes), where it belongs (8 bytes), and itself; the answer is one
byte.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import defaultdict
from typing import Final

from hw.transport.arena import Arena, LinkLostError
from hw.transport.gate import Gate, connected
from hw.transport.handshake import Hello, StrangerError, introduce

PATIENCE_S: Final = 5.0  # without any progress; then a link counts as lost
_LENGTH: Final = 4
_OFFSET: Final = 8
_DONE: Final = b"\x01"


class Landing:
    """Where the others' activations land: in an agent's own arena.

    A life that has ended for the router may not know it yet, and write on. So the router has it fenced off before it
    gives that part of the arena to somebody else.

    Args:
        host: the address that others reach this host by.
        secret: the cluster's.
        arena: the agent's own.
    """

    def __init__(self, host: str, secret: bytes, arena: Arena) -> None:
        self._arena = arena
        self._lock = threading.Lock()
        self._fenced: set[int] = set()
        self._writers: defaultdict[int, list[tuple[socket.socket, threading.Event]]] = defaultdict(list)
        self._gate = Gate(host, secret, self._admit)
        self.address = self._gate.address

    def _admit(self, hello: Hello, end: socket.socket) -> None:
        """In a thread of this writer's own."""
        writer = (end, threading.Event())
        with self._lock:
            if hello.life in self._fenced:
                end.close()
                return
            self._writers[hello.life].append(writer)
        try:
            end.settimeout(None)  # it may have nothing to write for long
            while self._land(end):
                pass
        except OSError:  # it is gone, or was fenced off
            pass
        finally:
            end.close()
            writer[1].set()
            with self._lock:
                self._writers[hello.life].remove(writer)

    def _land(self, end: socket.socket) -> bool:
        """One piece; False at the writer's end, and where it is none of ours."""
        header = bytearray(_LENGTH + _OFFSET)
        if not _filled(end, memoryview(header)):
            return False
        length, offset = int.from_bytes(header[:_LENGTH], "little"), int.from_bytes(header[_LENGTH:], "little")
        if offset + length > self._arena.size_bytes:
            return False
        with self._arena.view(offset, length) as target:
            if not _filled(end, target):
                return False
        end.sendall(_DONE)
        return True

    def fence(self, life: int) -> None:
        """When this returns that life writes here no more, whatever it still tries."""
        with self._lock:
            self._fenced.add(life)
            writers = list(self._writers[life])
        for end, _ in writers:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for _, ended in writers:
            ended.wait()

    def close(self) -> None:
        """Nobody lands any more."""
        self._gate.close()
        with self._lock:
            lives = list(self._writers)
        for life in lives:
            self.fence(life)


def _filled(end: socket.socket, target: memoryview) -> bool:
    """False where the other end has ended first."""
    while target:
        count = end.recv_into(target)
        if not count:
            return False
        target = target[count:]
    return True


class Routes:
    """The connections of one agent to those that it writes to, made when they are first needed; for one thread.

    Args:
        life: of this agent.
        secret: the cluster's.
    """

    def __init__(self, life: int, secret: bytes) -> None:
        self._hello = Hello(life)
        self._secret = secret
        self._ends: dict[str, socket.socket] = {}

    def write(self, address: str, offset: int, data: memoryview) -> None:
        """When this returns they stand there.

        Raises:
            LinkLostError: they don't.
        """
        try:
            end = self._ends.get(address) or self._connected(address)
            _send(end, len(data).to_bytes(_LENGTH, "little") + offset.to_bytes(_OFFSET, "little"), data)
            if end.recv(1) != _DONE:
                raise ConnectionError("it has closed the connection")
        except (OSError, StrangerError) as error:
            if (broken := self._ends.pop(address, None)) is not None:
                broken.close()
            raise LinkLostError(f"{len(data)} bytes did not get to {address}: {error}") from None

    def _connected(self, address: str) -> socket.socket:
        end = connected(address, PATIENCE_S)
        try:
            introduce(end, self._secret, self._hello)
        except BaseException:
            end.close()
            raise
        end.settimeout(PATIENCE_S)
        self._ends[address] = end
        return end

    def close(self) -> None:
        """All of them."""
        for end in self._ends.values():
            end.close()
        self._ends.clear()


def _send(end: socket.socket, header: bytes, data: memoryview) -> None:
    """All of it, as long as there is some progress."""
    sent = end.sendmsg([header, data])
    if sent < len(header):  # a header is a few bytes: the kernel takes it whole or has no room at all
        end.sendall(header[sent:])
        sent = len(header)
    left = data[sent - len(header) :]
    while left:
        left = left[end.send(left) :]


class FarArena(Arena):
    """Another agent's arena, on another host: what is written here is brought there once it is committed.

    Args:
        routes: of this agent.
    """

    waits = True

    def __init__(self, size_bytes: int, routes: Routes) -> None:
        super().__init__(size_bytes)
        self._routes = routes

    def commit(self, offset: int, size_bytes: int, address: str = "") -> None:
        """See `Arena`; it waits until the other agent says that it has them."""
        self._routes.write(address, offset, self.view(offset, size_bytes))
