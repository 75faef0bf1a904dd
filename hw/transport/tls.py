"""Connections between hosts: TLS, in which both ends show the one certificate of their cluster.

Each command makes a new certificate, which reaches the agents by Ray. A process that has its key belongs to the
cluster; nothing is trusted before that is proved, and all later traffic is encrypted.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from kit.errors import WorkError, in_a_line

PATIENCE_S: Final = 5.0  # for a whole handshake, and for any progress of a write
_NO_CHECK_TIME: Final = 0x200000  # X509_V_FLAG_NO_CHECK_TIME: the clock of another host may be behind
_AT_ONCE: Final = 64  # silent or slow strangers keep others out for no longer than `PATIENCE_S`
_MAX_HELLO: Final = 4096
_MAKE: Final = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
    *("-subj", "/CN=slimsched", "-keyout", "-", "-out", "-"),
)


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a connecting process.

    Attributes:
        incarnation: of an agent; unique in a cluster, even for agents of one server.
        address: of its listener, for other agents' writes; empty if it connects to write.
    """

    incarnation: int
    address: str = ""


def fresh_certificate() -> bytes:
    """Make a key and its certificate (PEM) for one cluster.

    Raises:
        WorkError: the program that makes it is not installed.
    """
    try:
        return subprocess.run(_MAKE, capture_output=True, check=True).stdout  # noqa: S603 - a constant
    except FileNotFoundError:
        raise WorkError("openssl is not here, which makes a cluster's certificate; install it (apt, dnf)") from None
    except subprocess.CalledProcessError as error:
        raise WorkError(f"openssl makes no certificate: {in_a_line(error.stderr.decode())}") from None


def _context(side: int, certificate: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.check_hostname = False  # its key identifies the other end, on any host
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags = ssl.VerifyFlags(context.verify_flags | _NO_CHECK_TIME)
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # only its owner reads it
        file.write(certificate)
        file.flush()
        context.load_cert_chain(file.name)
        context.load_verify_locations(file.name)
    return context


class Listener:
    """Listens on one address of this host; strangers are turned away.

    Args:
        host: the address, and no other of this host's.
        certificate: the cluster's.
        admit: called with each authenticated peer, in a separate thread; it closes the socket, which blocks.
        patience_s: for a handshake.
    """

    def __init__(
        self,
        host: str,
        certificate: bytes,
        admit: Callable[[Hello, ssl.SSLSocket], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self._context = _context(ssl.PROTOCOL_TLS_SERVER, certificate)
        self._context.num_tickets = 0  # no session is resumed
        self._admit = admit
        self._patience_s = patience_s
        self._places = threading.Semaphore(_AT_ONCE)
        port = self._listener.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._thread = threading.Thread(target=self._listen, name="listener", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._places.acquire()
            threading.Thread(target=self._accept, args=(end,), name="listener-accept", daemon=True).start()

    def _accept(self, end: socket.socket) -> None:
        try:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(self._patience_s)
            end = known = self._context.wrap_socket(end, server_side=True)
            hello = msgspec.msgpack.decode(known.recv(_MAX_HELLO), type=Hello)  # its first record
        except (OSError, msgspec.DecodeError):
            end.close()
            return
        finally:
            self._places.release()
        self._admit(hello, known)

    def close(self) -> None:
        """Stop listening; admitted connections stay."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes up the thread that waits in `accept`
        self._listener.close()
        self._thread.join()


def connected(address: str, certificate: bytes, hello: Hello, timeout_s: float = PATIENCE_S) -> ssl.SSLSocket:
    """Connect to a listener of the same cluster, and identify to it.

    Raises:
        OSError: no listener is there, it does not answer in time, or is not of this cluster.
    """
    host, _, port = address.rpartition(":")
    end = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
    try:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = known = _context(ssl.PROTOCOL_TLS_CLIENT, certificate).wrap_socket(end)
        known.sendall(msgspec.msgpack.encode(hello))
    except BaseException:
        end.close()
        raise
    return known


def cut(end: ssl.SSLSocket) -> None:
    """Stop all traffic; callable from any thread. (The socket's own `shutdown` would continue in plain text.)"""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(end, socket.SHUT_RDWR)


class Encrypted:
    """The part of a socket that a port needs, over TLS: never blocks, and one thread may read while another writes."""

    def __init__(self, end: ssl.SSLSocket) -> None:
        self._end = end
        self._lock = threading.Lock()  # OpenSSL has none

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """See `socket.send`."""
        with self._lock, _as_plain():
            return self._end.send(data)

    def recv(self, most: int) -> bytes:
        """See `socket.recv`; returns all that is decrypted, even if a little more than `most`: no selector shows it."""
        data = b""
        with self._lock, _as_plain():
            data = self._end.recv(most)
            while data and (len(data) < most or self._end.pending()):
                try:
                    more = self._end.recv(most)
                except OSError:  # nothing more, or the end: the next call reports it
                    break
                if not more:
                    break
                data += more
        return data

    def setblocking(self, flag: bool) -> None:
        """See `socket.setblocking`."""
        self._end.setblocking(flag)

    def shutdown(self, how: int) -> None:
        """See `socket.shutdown`: in both directions."""
        cut(self._end)

    def fileno(self) -> int:
        """See `socket.fileno`."""
        return self._end.fileno()

    def close(self) -> None:
        """See `socket.close`."""
        self._end.close()


@contextlib.contextmanager
def _as_plain() -> Iterator[None]:
    """Report waits in the way of plain sockets."""
    try:
        yield
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        raise BlockingIOError from None
