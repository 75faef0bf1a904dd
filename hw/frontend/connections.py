"""Clients' connections: addresses, tokens, certificate, limits before a handshake, and reports of the server's
state."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
import sys
import time  # noqa: TID251 - seconds have room for so many lines
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import msgspec

from kit.errors import InputError
from kit.files import read_bytes

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
        limit: connections; one more replaces a silent one, or is in the reserve.
        limit_each: of one address.
        reserve: beyond them, for requests that are always answered.
    """

    def __init__(self, limit: int, limit_each: int, reserve: int) -> None:
        self._limit = limit
        self._limit_each = limit_each
        self._reserve = reserve
        self._silent: dict[object, tuple[float, Callable[[], object]]] = {}  # the longest first
        self.of_address: Counter[bytes] = Counter()

    @property
    def count(self) -> int:
        """The number of open connections."""
        return self.of_address.total()

    def enter(self, address: bytes, now_s: float) -> bool:
        """Count one more, and end silent ones if there is not enough room; return False if it must not enter."""
        if self.of_address[address] >= self._limit_each:
            return False
        while self.count >= self._limit and (silent := next(iter(self._silent), None)) is not None:
            since_s, end = self._silent[silent]
            if now_s - since_s < SILENT_S:
                break
            self.speaks(silent)
            end()
        if self.count >= self._limit + self._reserve:
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


SHORTEST_TOKEN: Final = 16
_MOST_BYTES: Final = 1 << 20
_SYSTEMD_DESCRIPTOR: Final = 3  # the descriptor of the first socket that systemd hands over


def read_tokens(path: Path) -> dict[bytes, int]:
    """Read tokens, one per line, each with the most of its images inside at a time (a number after it, or no limit).

    Raises:
        InputError: there are none, one is short, its number is not valid, or others may read the file.
    """
    lines = [line.split() for line in _secret(path, "these tokens").splitlines() if line.strip()]
    if any(len(limits) > 1 or not all(limit.isdigit() and int(limit) for limit in limits) for _, *limits in lines):
        problem = (
            "a line has a token, and after it nothing, or how many of its images may be inside: a whole number from 1"
        )
        raise InputError(str(path), "", problem)
    tokens = {token: int(limits[0]) if limits else sys.maxsize for token, *limits in lines}
    if not tokens or min(map(len, tokens)) < SHORTEST_TOKEN:
        problem = (
            f"each line must have a token of {SHORTEST_TOKEN} characters or more; `openssl rand -hex 32` makes one"
        )
        raise InputError(str(path), "", problem)
    return tokens


def require_certificate(path: Path) -> None:
    """Raise `InputError` for a file that is not a certificate with its key, or that others may read."""
    _secret(path, "this key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, password="")
    except (ssl.SSLError, ValueError):
        problem = "must hold a certificate and its key (PEM), which needs no password; docs/how-to/serve.md makes one"
        raise InputError(str(path), "", problem) from None


def _secret(path: Path, content_name: str) -> bytes:
    """Return the content of a file that only this user may read."""
    content = read_bytes(path, _MOST_BYTES)
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(str(path), "", f"others may read {content_name}; `chmod 600 {path}`")
    return content


@dataclass(frozen=True, slots=True)
class Listening:
    """The addresses that clients connect to.

    Attributes:
        http: a listening socket: the one that systemd keeps for this process, or otherwise a new one.
        grpc: HOST:PORT, at which gRPC opens its socket; None if it is disabled.
    """

    http: socket.socket
    grpc: str | None = None

    @property
    def address(self) -> str:
        """HOST:PORT of HTTP."""
        return _text(self.http)


@contextmanager
def listen(host: str, port: int, grpc_port: int | None = None, *, is_safe: bool) -> Iterator[Listening]:
    """Open clients' ports within the context.

    Args:
        port, grpc_port: 0 for a free one.
        is_safe: whether it requires a token, over TLS.

    Raises:
        InputError: a port is not available, or others could reach it and it is not safe.
    """
    inherited = _systemd_socket()
    if inherited is not None:
        _require_safe(str(inherited.getsockname()[0]), is_safe=is_safe)
    with _bound("--port", host, port, is_safe) if inherited is None else inherited as http:
        http.listen()
        if grpc_port is None:
            yield Listening(http)
            return
        with _bound("--grpc-port", host, grpc_port, is_safe) as probe:  # it is free, even of this user's servers
            grpc_port = probe.getsockname()[1]
        # A process that shares it must set SO_REUSEPORT, too, and be this user's: one ingress after another.
        with _bound("--grpc-port", host, grpc_port, is_safe, socket.SO_REUSEPORT) as reserved:
            yield Listening(http, _text(reserved))


def _text(bound: socket.socket) -> str:
    host, port, *_ = bound.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bound(flag: str, host: str, port: int, is_safe: bool, option: int = socket.SO_REUSEADDR) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, ValueError) as error:  # a name that is not valid
        problem = getattr(error, "strerror", None) or "no name of a machine"
        raise InputError("--host", "", f"{host!r:.80}: {problem}; 127.0.0.1 is this machine alone") from None
    _require_safe(str(address[0]), is_safe=is_safe)
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        bound.bind(address[:2])
    except OSError as error:
        bound.close()
        problem = os.strerror(error.errno or 0)  # the error's own text has the address twice
        raise InputError(flag, "", f"{port}: {problem}; name another one, or 0 for a free one") from None
    return bound


def _systemd_socket() -> socket.socket | None:
    """Return systemd's socket (sd_listen_fds(3)): it outlives this process, and clients that connect meanwhile wait."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    listening = socket.socket(fileno=_SYSTEMD_DESCRIPTOR)
    if listening.family not in (socket.AF_INET, socket.AF_INET6) or os.environ.get("LISTEN_FDS") != "1":
        raise InputError("systemd", "ListenStream", "expected one, of TCP, such as 127.0.0.1:8000")
    listening.set_inheritable(False)
    return listening


def _require_safe(address: str, *, is_safe: bool) -> None:
    if not (is_safe or ip_address(address).is_loopback):
        problem = "others could send and read requests there; name tokens and a certificate"
        raise InputError("--host", "", f"{address}: {problem} (--token-file, --certificate), or 127.0.0.1")


_A_SECOND: Final = 10
_OF_SYSTEMD: Final = {"ready": "READY=1\n", "stopping": "STOPPING=1\n"}


def notify(state: str) -> None:
    """Notify systemd, if it has started this process and asks for notifications (sd_notify(3))."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end, suppress(OSError):
            end.setblocking(False)  # the server waits for no reader
            end.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            end.send(state.encode())


class Journal:
    """The log of a server's state.

    Args:
        write: takes a line.
        as_json: whether a line is an object with `time` (UTC), `event` and the event's facts.
    """

    def __init__(self, write: Callable[[str], object], *, as_json: bool) -> None:
        self.as_json = as_json
        self._write = write

    def note(self, event: str, text: str = "", **facts: Any) -> None:
        """Log a change of state; `text` is for people, and omitted if they have seen it otherwise."""
        if self.as_json:
            remark = {"text": text} if text else {}
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._write(msgspec.json.encode({"time": now, "event": event, **facts, **remark}).decode())
        elif text:
            self._write(text)
        if state := _OF_SYSTEMD.get(event):
            notify(state)

    def say(self, text: str) -> None:
        """Log a line for people that is not a change of state."""
        self.note("remark", text)


class Sparing:
    """Logs what may happen to thousands of requests a second: `_A_SECOND` of them, then the number left out."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._second = self._noted = self._left_out = 0

    def note(self, event: str, **facts: Any) -> None:
        """See `Journal`."""
        if (second := int(time.monotonic())) != self._second:
            self._second, self._noted = second, 0
        if self._noted == _A_SECOND:
            self._left_out += 1
            return
        self._noted += 1
        if self._left_out:
            facts["left_out"], self._left_out = self._left_out, 0
        self._journal.note(event, **facts)
