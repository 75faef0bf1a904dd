"""The addresses at which clients reach the door, the tokens it requires, and its certificate."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from kit.errors import InputError
from kit.files import read_bytes

SHORTEST_TOKEN: Final = 16
_MOST_BYTES: Final = 1 << 20
_FIRST_KEPT: Final = 3  # the descriptor of the first socket that systemd hands over


def read_tokens(path: Path) -> dict[bytes, int]:
    """Read tokens, one per line, each with the most of its images inside at a time (a number after it, or no limit).

    Raises:
        InputError: there are none, one is short, its number is not valid, or others may read the file.
    """
    lines = [line.split() for line in _secret(path, "these tokens").splitlines() if line.strip()]
    if any(len(more) > 1 or not all(each.isdigit() and int(each) for each in more) for _, *more in lines):
        problem = (
            "a line has a token, and after it nothing, or how many of its images may be inside: a whole number from 1"
        )
        raise InputError(str(path), "", problem)
    tokens = {token: int(more[0]) if more else sys.maxsize for token, *more in lines}
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


def _secret(path: Path, what: str) -> bytes:
    """Return the content of a file that only this user may read."""
    content = read_bytes(path, _MOST_BYTES)
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(str(path), "", f"others may read {what}; `chmod 600 {path}`")
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
    kept = _kept()
    if kept is not None:
        _require_safe(str(kept.getsockname()[0]), is_safe=is_safe)
    with _bound("--port", host, port, is_safe) if kept is None else kept as http:
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


def _kept() -> socket.socket | None:
    """Return systemd's socket (sd_listen_fds(3)): it outlives this process, and clients that connect meanwhile wait."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    kept = socket.socket(fileno=_FIRST_KEPT)
    if kept.family not in (socket.AF_INET, socket.AF_INET6) or os.environ.get("LISTEN_FDS") != "1":
        raise InputError("systemd", "ListenStream", "allowed is one, of TCP, such as 127.0.0.1:8000")
    kept.set_inheritable(False)
    return kept


def _require_safe(address: str, *, is_safe: bool) -> None:
    if not (is_safe or ip_address(address).is_loopback):
        problem = "others could send and read requests there; name tokens and a certificate"
        raise InputError("--host", "", f"{address}: {problem} (--token-file, --certificate), or 127.0.0.1")
