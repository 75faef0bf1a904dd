"""How two processes that share a secret find out that they do, before either believes a word of the other.

Both ends draw a nonce and prove that they know the secret with an HMAC over both, so nothing that was overheard can be
used again. What is said afterwards is neither encrypted nor signed, as between Ray's own processes without TLS.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time  # noqa: TID251 - a handshake's end is by a real clock
from typing import Final

import msgspec

from hw.version import own_version
from kit.errors import WorkError

SECRET_BYTES: Final = 32
PATIENCE_S: Final = 5.0  # of who listens, for a whole handshake; of either end for one thing to be sent from then on
_NONCE: Final = 32
_PROOF: Final = 32
_MOST_HELLO: Final = 4096


class StrangerError(WorkError):
    """The other end does not know the secret, or is none of us."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who connects.

    Attributes:
        life: of an agent; no two agents of a cluster have the same one, even of one server.
        address: where the other agents write to it; empty where it connects to write.
        version: of this project.
    """

    life: int
    address: str = ""
    version: str = msgspec.field(default_factory=own_version)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Hello)


def fresh_secret() -> bytes:
    """For one cluster; it reaches the agents by a way that strangers can't read."""
    return secrets.token_bytes(SECRET_BYTES)


def introduce(end: socket.socket, secret: bytes, hello: Hello) -> None:
    """The side that has connected; strangers may keep it waiting for as long as who listens has patience with them.

    Raises:
        StrangerError: whoever listens there does not know the secret.
        OSError: nobody is there any more, or not in time.
    """
    until_s = time.monotonic() + 2 * PATIENCE_S
    theirs, ours, body = _exactly(end, _NONCE, until_s), secrets.token_bytes(_NONCE), _encoder.encode(hello)
    proof = _proof(secret, b"comes", theirs, ours, body)
    end.sendall(ours + len(body).to_bytes(2, "little") + body + proof)
    if not hmac.compare_digest(_exactly(end, _PROOF, until_s), _proof(secret, b"waits", ours, theirs, body)):
        raise StrangerError("whoever listens there does not know this cluster's secret")
    end.settimeout(PATIENCE_S)


def welcome(end: socket.socket, secret: bytes, patience_s: float = PATIENCE_S) -> Hello:
    """The side that was listening: who has come, and has proved itself within `patience_s`.

    Raises:
        StrangerError: it does not know the secret.
        OSError: it has left, or does not answer in time.
    """
    until_s = time.monotonic() + patience_s
    end.settimeout(patience_s)
    ours = secrets.token_bytes(_NONCE)
    end.sendall(ours)
    theirs = _exactly(end, _NONCE, until_s)
    size = int.from_bytes(_exactly(end, 2, until_s), "little")
    if size > _MOST_HELLO:
        raise StrangerError(f"a greeting of {size} bytes is none of ours")
    body, proof = _exactly(end, size, until_s), _exactly(end, _PROOF, until_s)
    if not hmac.compare_digest(proof, _proof(secret, b"comes", ours, theirs, body)):
        raise StrangerError("it does not know this cluster's secret")
    end.sendall(_proof(secret, b"waits", theirs, ours, body))
    end.settimeout(PATIENCE_S)
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise StrangerError(f"its greeting is none of ours ({error})") from None


def _proof(secret: bytes, role: bytes, other: bytes, own: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, role + other + own + body, "sha256")


def _exactly(end: socket.socket, size: int, until_s: float) -> bytes:
    """So many bytes, however slowly they come, but by that time of the clock."""
    data = b""
    while len(data) < size:
        if (left_s := until_s - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        end.settimeout(left_s)
        more = end.recv(size - len(data))
        if not more:
            raise StrangerError("it left before it had said who it is")
        data += more
    return data
