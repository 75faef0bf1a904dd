"""Direct transfers of activations between workers on different hosts, without the router.

Each worker has its own listener. The writer waits until the receiver confirms that the bytes are in its arena; only
then does the writer notify the router. A piece is a frame as in `hw.transport.worker_port`; the answer is one byte.
"""

from __future__ import annotations

import ssl
import threading
from collections import defaultdict
from typing import Final

from hw.transport.peers import Hello, Listener, connected, cut
from hw.transport.shared_memory import Arena, LinkLostError
from hw.transport.worker_port import LENGTH, OFFSET, PLACED, header

PATIENCE_S: Final = 5.0  # without any progress; then a link counts as lost
_DONE: Final = b"\x01"
_PIECE: Final = 1 << 20


class Landing:
    """Receives other workers' activations into a worker's own arena.

    An incarnation that has ended for the router may still be running and writing. So the router has it fenced off
    before it gives that part of the arena to another one.

    Args:
        host: the address at which others reach this host.
        certificate: the cluster's.
        arena: the worker's own.
    """

    def __init__(self, host: str, certificate: bytes, arena: Arena) -> None:
        self._arena = arena
        self._lock = threading.Lock()
        self._fenced: set[int] = set()
        self._writers: defaultdict[int, list[tuple[ssl.SSLSocket, threading.Event]]] = defaultdict(list)
        self._listener = Listener(host, certificate, self._admit)
        self.address = self._listener.address

    def _admit(self, hello: Hello, end: ssl.SSLSocket) -> None:
        """Receive a writer's pieces, in a thread for this writer alone."""
        writer = (end, threading.Event())
        with self._lock:
            if hello.worker_id in self._fenced:
                end.close()
                return
            self._writers[hello.worker_id].append(writer)
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
                self._writers[hello.worker_id].remove(writer)

    def _land(self, end: ssl.SSLSocket) -> bool:
        """Receive one piece; return False at the writer's end, and for a piece that is not ours."""
        head = bytearray(LENGTH + OFFSET)
        if not _filled(end, memoryview(head)):
            return False
        prefix, offset = int.from_bytes(head[:LENGTH], "little"), int.from_bytes(head[LENGTH:], "little")
        kind, length = prefix >> 30, prefix & (1 << 30) - 1
        if kind != PLACED or offset + length > self._arena.size_bytes:
            return False
        with self._arena.view(offset, length) as target:
            if not _filled(end, target):
                return False
        end.sendall(_DONE)
        return True

    def fence(self, worker_id: int) -> None:
        """Stop that incarnation's writes: when this returns it writes here no more, whatever it still tries."""
        with self._lock:
            self._fenced.add(worker_id)
            writers = list(self._writers[worker_id])
        for end, _ in writers:
            cut(end)
        for _, ended in writers:
            ended.wait()

    def close(self) -> None:
        """Stop all transfers."""
        self._listener.close()
        with self._lock:
            incarnations = list(self._writers)
        for worker_id in incarnations:
            self.fence(worker_id)


def _filled(end: ssl.SSLSocket, target: memoryview) -> bool:
    """Fill a buffer; return False if the other end closed first."""
    while target:
        count = end.recv_into(target)
        if not count:
            return False
        target = target[count:]
    return True


class Routes:
    """The connections of one worker to those that it writes to, made on first use; for one thread.

    Args:
        incarnation: of this worker.
        certificate: the cluster's.
    """

    def __init__(self, worker_id: int, certificate: bytes) -> None:
        self._hello = Hello(worker_id)
        self._certificate = certificate
        self._ends: dict[str, ssl.SSLSocket] = {}

    def write(self, address: str, offset: int, data: memoryview) -> None:
        """Write bytes into another worker's arena; they are there when this returns.

        Raises:
            LinkLostError: they are not.
        """
        try:
            if (end := self._ends.get(address)) is None:
                end = self._ends[address] = connected(address, self._certificate, self._hello, PATIENCE_S)
            end.sendall(header(PLACED, len(data)) + offset.to_bytes(OFFSET, "little"))
            while data:  # as long as there is some progress
                data = data[end.send(data[:_PIECE]) :]
            if end.recv(1) != _DONE:
                raise ConnectionError("it has closed the connection")
        except OSError as error:
            if (broken := self._ends.pop(address, None)) is not None:
                broken.close()
            raise LinkLostError(f"the activations did not get to {address}: {error}") from None

    def close(self) -> None:
        """Close all of them."""
        for end in self._ends.values():
            end.close()
        self._ends.clear()


class FarArena(Arena):
    """Another worker's arena, on another host: what is written here is transferred on commit.

    Args:
        routes: of this worker.
    """

    waits = True

    def __init__(self, size_bytes: int, routes: Routes) -> None:
        super().__init__(size_bytes)
        self._routes = routes

    def commit(self, offset: int, size_bytes: int, address: str = "") -> None:
        """See `Arena`; it waits until the other worker confirms the bytes."""
        self._routes.write(address, offset, self.view(offset, size_bytes))
