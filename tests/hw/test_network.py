"""What joins hosts, without Ray: who is let in, what lands in another's arena, who is fenced off, a link that dies."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time  # noqa: TID251 - waits for real sockets
from collections.abc import Iterator
from typing import Any

import pytest

from hw.transport.direct_transfers import FarArena, Landing, Routes
from hw.transport.peers import Hello, Listener, connected, fresh_certificate
from hw.transport.shared_memory import Arena, LinkLostError
from hw.transport.worker_port import PLACED, header
from kit.errors import WorkError

HOST, SIZE, WAIT_S = "127.0.0.1", 1 << 21, 10.0
OURS, ANOTHER = fresh_certificate(), fresh_certificate()


@contextlib.contextmanager
def gate(patience_s: float = WAIT_S) -> Iterator[tuple[Listener, queue.Queue[Any]]]:
    admitted: queue.Queue[Any] = queue.Queue()
    opened = Listener(HOST, OURS, lambda hello, end: admitted.put((hello, end)), patience_s)
    yield opened, admitted
    opened.close()


def _plain(address: str) -> socket.socket:
    return socket.create_connection((HOST, int(address.rpartition(":")[2])), timeout=WAIT_S)


# ---------------------------------------------------------------------------------------------------------- strangers


def test_peer_with_the_certificate_is_admitted_with_its_greeting_over_tls() -> None:
    with gate() as (opened, admitted):
        end = connected(opened.address, OURS, Hello(7, "somewhere:1"))
        hello, other = admitted.get(timeout=WAIT_S)
        assert (hello.worker_id, hello.address) == (7, "somewhere:1")
        assert end.version() == other.version() == "TLSv1.3"
        assert end.cipher() is not None
        end.close()
        other.close()


def test_peer_with_another_certificate_refuses_the_gate_and_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer is first a worker at a foreign gate, then a foreign peer that would trust ours."""
    with gate() as (opened, admitted):
        with pytest.raises(OSError, match="verify failed"):
            connected(opened.address, ANOTHER, Hello(7))
        monkeypatch.setattr("hw.transport.peers.ssl.CERT_REQUIRED", 0)
        with contextlib.suppress(OSError):  # TLS 1.3: who has come is refused a little later
            assert connected(opened.address, ANOTHER, Hello(7)).recv(1) == b""
        assert admitted.empty()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(100)], ids=len)
def test_connection_without_tls_is_refused(said: bytes) -> None:
    with gate() as (opened, admitted):
        end = _plain(opened.address)
        end.sendall(said)
        with contextlib.suppress(OSError):  # the gate may have closed already, even before our own half
            end.shutdown(socket.SHUT_WR)
            while end.recv(4096):
                pass
        assert admitted.empty()
        end.close()


def test_strangers_that_trickle_shut_no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then is not a progress: each has one span of time for its whole handshake."""
    monkeypatch.setattr("hw.transport.peers._AT_ONCE", 2)
    with gate(patience_s=0.2) as (opened, admitted):
        strangers = [_plain(opened.address) for _ in range(2)]
        for end in strangers:
            end.sendall(b"\x16\x03\x01\x10\x00")  # a first record of 4 KiB
        is_over = threading.Event()

        def trickle() -> None:
            while not is_over.wait(0.02):
                for end in strangers:
                    with contextlib.suppress(OSError):
                        end.send(b"x")

        trickling = threading.Thread(target=trickle)
        trickling.start()
        try:
            friend = connected(opened.address, OURS, Hello(7))
            hello, other = admitted.get(timeout=WAIT_S)
        finally:
            is_over.set()
            trickling.join()
        assert hello.worker_id == 7
        for each in (*strangers, friend, other):
            each.close()


def test_a_host_without_openssl_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(WorkError, match=r"openssl is not here.*install it"):
        fresh_certificate()


# ------------------------------------------------------------------------------------------------- the workers' arenas


@contextlib.contextmanager
def landing() -> Iterator[tuple[Landing, Arena]]:
    arena = Arena(SIZE)
    opened = Landing(HOST, OURS, arena)
    yield opened, arena
    opened.close()
    arena.close()


def _write(routes: Routes, address: str, offset: int, data: bytes) -> None:
    routes.write(address, offset, memoryview(data))


def test_remote_write_is_in_the_arena_when_the_writer_continues() -> None:
    """A write larger than a socket buffer changes no other byte, and one connection serves many writes."""
    data = bytes(range(256)) * 4096
    with landing() as (opened, arena), contextlib.closing(Routes(1, OURS)) as routes:
        far = FarArena(SIZE, routes)
        far.view(64, len(data))[:] = data
        far.commit(64, len(data), opened.address)
        assert bytes(arena.view(0, len(data) + 128)) == bytes(64) + data + bytes(64)
        for number in range(200):
            _write(routes, opened.address, 0, bytes([number]) * 8)
            assert bytes(arena.view(0, 8)) == bytes([number]) * 8
        far.close()


def test_a_life_that_is_fenced_off_writes_no_more() -> None:
    with landing() as (opened, arena), contextlib.closing(Routes(1, OURS)) as dead:
        _write(dead, opened.address, 0, b"before")
        opened.fence(1)
        for _ in range(3):
            with pytest.raises(LinkLostError):
                _write(dead, opened.address, 0, b"after!")
        assert bytes(arena.view(0, 6)) == b"before"
        with contextlib.closing(Routes(2, OURS)) as other:
            _write(other, opened.address, 0, b"other!")
        assert bytes(arena.view(0, 6)) == b"other!"


def test_a_fence_waits_for_who_is_in_the_middle_of_writing() -> None:
    """When it stands, nothing changes any more, although the writer had begun; neither does what is encrypted land."""
    with landing() as (opened, arena):
        end = connected(opened.address, OURS, Hello(1))
        end.sendall(header(PLACED, 1000) + (0).to_bytes(8, "little") + b"x" * 10)
        until_s = time.monotonic() + WAIT_S
        while bytes(arena.view(0, 10)) != b"x" * 10:
            assert time.monotonic() < until_s
        opened.fence(1)
        with contextlib.suppress(OSError):
            end.sendall(b"y" * 990)
        time.sleep(0.05)
        assert bytes(arena.view(10, 990)) == bytes(990)
        end.close()


@pytest.mark.parametrize(("offset", "length"), [(SIZE - 5, 10), (0, SIZE + 1), (1 << 40, 8)])
def test_write_outside_the_arena_is_refused(offset: int, length: int) -> None:
    with landing() as (opened, arena), contextlib.closing(Routes(1, OURS)) as routes:
        with pytest.raises(LinkLostError):
            _write(routes, opened.address, offset, bytes([1]) * length)
        assert bytes(arena.view(SIZE - 16, 16)) == bytes(16)
        _write(routes, opened.address, 0, b"a new connection does")
        assert bytes(arena.view(0, 5)) == b"a new"


def test_a_link_that_dies_is_told_and_the_next_try_makes_a_new_one() -> None:
    """Nobody is there any more; then somebody is again, under another address."""
    with contextlib.closing(Routes(1, OURS)) as routes:
        with landing() as (opened, _):
            _write(routes, opened.address, 0, b"here")
            gone = opened.address
        with pytest.raises(LinkLostError, match=gone.rpartition(":")[2]):
            _write(routes, gone, 0, b"gone")
        with landing() as (opened, arena):
            _write(routes, opened.address, 0, b"back")
            assert bytes(arena.view(0, 4)) == b"back"


def test_write_to_a_host_that_does_not_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that has lost its power keeps a connection open."""
    monkeypatch.setattr("hw.transport.direct_transfers.PATIENCE_S", 0.5)
    with gate() as (opened, admitted), contextlib.closing(Routes(1, OURS)) as routes:
        with pytest.raises(LinkLostError, match="timed out"):
            _write(routes, opened.address, 0, b"anybody?")
        admitted.get(timeout=WAIT_S)[1].close()
