"""A peer on another host: TLS with the certificate of its cluster, whether it is alive, and its clock's offset.

TLS: each command makes a new certificate, which reaches the workers by Ray. A process that has the certificate's key
belongs to the cluster; nothing is trusted before that is proved, and all later traffic is encrypted.

`FailureDetector` judges whether a worker is alive by its pending requests with their times, and by pings in between. It
has no clock.

`OffsetEstimate` estimates the offset of a worker's clock from the router's.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Final

import msgspec

from kit.errors import WorkError, in_a_line
from policies.faults import Supervision

# ------------------------------------------------------------------------------------------------------------------ TLS


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
        incarnation: of a worker; unique in a cluster, even for workers of one server.
        address: of its listener, for other workers' writes; empty if it connects to write.
    """

    worker_id: int
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
        admit: called with each authenticated peer, in a separate thread; it closes the socket, which micro-batches.
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
        self._handshakes = threading.Semaphore(_AT_ONCE)
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
            self._handshakes.acquire()
            threading.Thread(target=self._accept, args=(end,), name="listener-accept", daemon=True).start()

    def _accept(self, end: socket.socket) -> None:
        try:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(self._patience_s)
            end = encrypted = self._context.wrap_socket(end, server_side=True)
            hello = msgspec.msgpack.decode(encrypted.recv(_MAX_HELLO), type=Hello)  # its first record
        except (OSError, msgspec.DecodeError):
            end.close()
            return
        finally:
            self._handshakes.release()
        self._admit(hello, encrypted)

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
        end = encrypted = _context(ssl.PROTOCOL_TLS_CLIENT, certificate).wrap_socket(end)
        encrypted.sendall(msgspec.msgpack.encode(hello))
    except BaseException:
        end.close()
        raise
    return encrypted


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
                    chunk = self._end.recv(most)
                except OSError:  # nothing more, or the end: the next call reports it
                    break
                if not chunk:
                    break
                data += chunk
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


# ---------------------------------------------------------------------------------------------------- failure detection


PINGS_IN_A_HANG = 6  # pings within the time after which silence means a hang
_AWAY_PERIODS = 3  # a poll that is later than this shows that the poller itself was away


class FailureDetector:
    """Detector of failures of one worker, or of one worker's lanes, from start to end.

    Args:
        rules: `hang_ns` for pings, `stuck_ns` for work.
        now_ns: when it began.
    """

    def __init__(self, rules: Supervision, now_ns: int) -> None:
        self._rules = rules
        self._asked_ns: dict[Hashable, int] = {}  # in order: the first is the oldest
        self._ping = 0
        self._pinged_ns: int | None = None  # of the ping that is not answered yet
        self._next_ping_ns = now_ns
        self._is_given_up = False

    @property
    def period_ns(self) -> int:
        """The period of polls."""
        return self._rules.hang_ns // PINGS_IN_A_HANG

    def was_away(self, due_ns: int, now_ns: int) -> bool:
        """Return whether the poller was away (a stopped process, a machine asleep): the worker is not to blame."""
        return now_ns - due_ns > _AWAY_PERIODS * self.period_ns

    def asked(self, task: Hashable, now_ns: int) -> None:
        """Note that some work was sent."""
        self._asked_ns[task] = now_ns

    def answered(self, task: Hashable) -> None:
        """Note that it was answered."""
        self._asked_ns.pop(task, None)

    def ping(self, now_ns: int) -> int | None:
        """Return the number of a ping to send now; None while one is in flight or none is due."""
        if self._pinged_ns is not None or now_ns < self._next_ping_ns:
            return None
        self._ping += 1
        self._pinged_ns = now_ns
        self._next_ping_ns = now_ns + self.period_ns
        return self._ping

    def ponged(self, number: int) -> None:
        """Note that a ping was answered."""
        if number == self._ping:
            self._pinged_ns = None

    def excuse(self, now_ns: int) -> None:
        """Restart every wait, as the poller was away."""
        if self._pinged_ns is not None:
            self._pinged_ns = now_ns
        self._asked_ns = dict.fromkeys(self._asked_ns, now_ns)

    def give_up(self) -> None:
        """Note the worker's own report that it cannot continue."""
        self._is_given_up = True

    def is_hung(self, now_ns: int) -> bool:
        """Return whether a ping or some work has waited for its answer for too long."""
        if self._is_given_up:
            return True
        if self._pinged_ns is not None and now_ns - self._pinged_ns >= self._rules.hang_ns:
            return True
        oldest_ns = next(iter(self._asked_ns.values()), now_ns)
        return now_ns - oldest_ns >= self._rules.stuck_ns


# --------------------------------------------------------------------------------------------------- the clock's offset


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The offset of a worker's clock from the router's, and its error bound; both 0 on one host."""

    offset_ns: int = 0
    error_ns: int = 0

    def at_worker(self, router_ns: int) -> int:
        """Convert a reading of the router's clock to the worker's."""
        return router_ns + self.offset_ns


_ROUNDING_NS: Final = 2


class OffsetEstimate:
    """The offset from pings, as NTP estimates it: the fastest exchange is the most accurate.

    A clock's drift adds to an old exchange's error every second, so later exchanges replace it in time. An offset is
    meant for the moment at which it is reported, so an exchange's own drift counts, too. An exchange that contradicts
    the estimate shows that a clock has jumped (a machine that slept); the estimate is then discarded.

    Attributes:
        jumps: the number of such contradictions.
    """

    DRIFT = 100e-6  # of a computer's clock relative to another's: the usual worst case

    def __init__(self) -> None:
        self._best: ClockOffset | None = None
        self._at_ns = 0
        self.jumps = 0

    @property
    def best(self) -> ClockOffset | None:
        """The best offset; None before the first exchange."""
        return self._best

    def heard(self, sent_ns: int, worker_ns: int, heard_ns: int) -> ClockOffset:
        """Add an exchange: the router's clock at request and answer, and the worker's clock in between."""
        lasted_ns = heard_ns - sent_ns
        error_ns = ceil((0.5 + self.DRIFT) * lasted_ns)
        offset = ClockOffset(worker_ns - (sent_ns + heard_ns) // 2, error_ns)
        if self._best is not None:
            grown_ns = self._best.error_ns + ceil(self.DRIFT * (heard_ns - self._at_ns))
            has_jumped = abs(offset.offset_ns - self._best.offset_ns) > offset.error_ns + grown_ns + _ROUNDING_NS
            if has_jumped:
                self.jumps += 1
            elif offset.error_ns > grown_ns:
                return ClockOffset(self._best.offset_ns, grown_ns)
        self._best, self._at_ns = offset, heard_ns
        return offset
