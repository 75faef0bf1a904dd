"""A socket that listens, for those who know the cluster's secret."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final

from hw.transport.handshake import PATIENCE_S, Hello, StrangerError, welcome

_AT_ONCE: Final = (
    64  # strangers that say nothing, or trickle, keep nobody else out for longer than a handshake's patience
)
_BACKLOG: Final = 128


class Gate:
    """Listens on one address of this host; strangers are turned away.

    Args:
        host: the address, and no other of this host's.
        secret: the cluster's.
        admit: takes whoever has proved itself, in a thread of its own; the socket is its to close.
        turned_away: told why somebody was not admitted.
        patience_s: for a handshake.
    """

    def __init__(
        self,
        host: str,
        secret: bytes,
        admit: Callable[[Hello, socket.socket], None],
        turned_away: Callable[[str], object] = lambda _: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        self._secret = secret
        self._admit = admit
        self._turned_away = turned_away
        self._patience_s = patience_s
        self._places = threading.Semaphore(_AT_ONCE)
        self.address = address_text(host, self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._listen, name="gate", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._places.acquire()
            threading.Thread(target=self._welcome, args=(end,), name="gate-welcome", daemon=True).start()

    def _welcome(self, end: socket.socket) -> None:
        try:
            hello = welcome(end, self._secret, self._patience_s)
        except (OSError, StrangerError) as error:
            end.close()
            self._turned_away(str(error))
            return
        finally:
            self._places.release()
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._admit(hello, end)

    def close(self) -> None:
        """Listen no more; who was admitted stays."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes up who waits in `accept`
        self._listener.close()
        self._thread.join()


def address_text(host: str, port: int) -> str:
    """As `connected` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def connected(address: str, timeout_s: float) -> socket.socket:
    """A connection to a gate, not introduced yet; raises `OSError`."""
    host, _, port = address.rpartition(":")
    end = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return end
