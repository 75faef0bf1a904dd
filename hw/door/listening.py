"""Who may reach the door: where it listens, and the tokens that it asks for."""

from __future__ import annotations

import os
import socket
import stat
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from kit.errors import InputError
from kit.files import read_bytes

SHORTEST_TOKEN: Final = 16
_MOST_BYTES: Final = 1 << 20


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """A token a line.

    Raises:
        InputError: there are none, one is short, or others may read the file.
    """
    tokens = tuple(read_bytes(path, _MOST_BYTES).split())
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(str(path), "", f"others may read these tokens; `chmod 600 {path}`")
    if not tokens or min(map(len, tokens)) < SHORTEST_TOKEN:
        problem = (
            f"each line must have a token of {SHORTEST_TOKEN} characters or more; `openssl rand -hex 32` makes one"
        )
        raise InputError(str(path), "", problem)
    return tokens


def listen(host: str, port: int, *, asks_for_token: bool) -> socket.socket:
    """What clients connect to.

    Args:
        port: 0 for a free one.

    Raises:
        InputError: it can't be had, or others could reach it without a token.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, ValueError) as error:  # a name that is none
        problem = getattr(error, "strerror", None) or "no name of a machine"
        raise InputError("--host", "", f"{host!r:.80}: {problem}; 127.0.0.1 is this machine alone") from None
    if not (asks_for_token or ip_address(address[0]).is_loopback):
        problem = "other machines could send requests there; name a file of tokens (--token-file), or 127.0.0.1"
        raise InputError("--host", "", f"{host}: {problem}")
    try:
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        problem = os.strerror(error.errno or 0)  # the error's own words have the address twice
        raise InputError("--port", "", f"{port}: {problem}; name another one, or 0 for a free one") from None
