"""What joins hosts, without Ray: who is let in, what arrives whole, who is fenced off, and a link that dies."""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
import time  # noqa: TID251 - waits for real sockets
from collections.abc import Iterator

import pytest

from hw.transport.arena import Arena, LinkLostError
from hw.transport.gate import Gate, connected
from hw.transport.handshake import Hello, StrangerError, fresh_secret, introduce
from hw.transport.joining_port import JoiningPort
from hw.transport.landing import FarArena, Landing, Routes
from hw.transport.life_log import steps_of
from hw.transport.messages import FromAgent, Ping, Pong, ToAgent
from hw.transport.network_port import NetworkPort, SentLog
from hw.transport.port import PortBrokenError, PortClosedError
from policies.vocabulary import TimerFired

HOST, SIZE, WAIT_S = "127.0.0.1", 1 << 21, 10.0
SECRET = fresh_secret()


@contextlib.contextmanager
def gate(
    secret: bytes = SECRET, patience_s: float = WAIT_S
) -> Iterator[tuple[Gate, queue.Queue[tuple[Hello, socket.socket]], queue.Queue[str]]]:
    admitted: queue.Queue[tuple[Hello, socket.socket]] = queue.Queue()
    refused: queue.Queue[str] = queue.Queue()
    opened = Gate(HOST, secret, lambda hello, end: admitted.put((hello, end)), refused.put, patience_s)
    yield opened, admitted, refused
    opened.close()


# ---------------------------------------------------------------------------------------------------------- strangers


def test_who_knows_the_secret_is_let_in_and_says_who_it_is() -> None:
    with gate() as (opened, admitted, _):
        end = connected(opened.address, WAIT_S)
        introduce(end, SECRET, Hello(7, "somewhere:1"))
        hello, other = admitted.get(timeout=WAIT_S)
        assert (hello.life, hello.address) == (7, "somewhere:1")
        end.close()
        other.close()


def test_a_stranger_is_turned_away() -> None:
    """Neither end tells it anything: it hears no answer, and is not admitted."""
    with gate() as (opened, admitted, refused):
        end = connected(opened.address, WAIT_S)
        with pytest.raises((StrangerError, OSError)):
            introduce(end, fresh_secret(), Hello(7))
        assert "secret" in refused.get(timeout=WAIT_S)
        assert admitted.empty()
        end.close()


def test_strangers_that_trickle_shut_no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then is no progress: each has one span of time for its whole greeting."""
    monkeypatch.setattr("hw.transport.gate._AT_ONCE", 2)
    with gate(patience_s=0.2) as (opened, admitted, refused):
        strangers = [connected(opened.address, WAIT_S) for _ in range(2)]
        for end in strangers:
            end.sendall(bytes(32) + (4096).to_bytes(2, "little"))
        is_over = threading.Event()

        def trickle() -> None:
            while not is_over.wait(0.02):
                for end in strangers:
                    with contextlib.suppress(OSError):
                        end.send(b"x")

        trickling = threading.Thread(target=trickle)
        trickling.start()
        try:
            friend = connected(opened.address, WAIT_S)
            introduce(friend, SECRET, Hello(7))
            hello, other = admitted.get(timeout=WAIT_S)
        finally:
            is_over.set()
            trickling.join()
        assert hello.life == 7
        assert "timed out" in refused.get(timeout=WAIT_S)
        for end in (*strangers, friend, other):
            end.close()


def test_an_agent_tells_a_stranger_that_listens_nothing() -> None:
    """Whoever took the router's place can't prove that it knows the secret."""
    with gate(fresh_secret()) as (opened, admitted, _):
        end = connected(opened.address, WAIT_S)
        with pytest.raises((StrangerError, OSError)):
            introduce(end, SECRET, Hello(7))
        assert admitted.empty()
        end.close()


def test_who_listens_and_lets_anybody_in_is_not_believed() -> None:
    """It answers as the router would, but for the proof."""
    listener = socket.create_server((HOST, 0))

    def pretend() -> None:
        end, _ = listener.accept()
        end.sendall(bytes(32))
        end.recv(4096)
        end.sendall(bytes(32))
        end.close()

    threading.Thread(target=pretend, daemon=True).start()
    end = connected(f"{HOST}:{listener.getsockname()[1]}", WAIT_S)
    with pytest.raises(StrangerError, match="whoever listens there"):
        introduce(end, SECRET, Hello(7))
    end.close()
    listener.close()


@pytest.mark.parametrize("said", [b"", b"GET /", bytes(32) + b"\xff\xff", bytes(100)], ids=len)
def test_whatever_else_comes_is_turned_away(said: bytes) -> None:
    with gate() as (opened, admitted, refused):
        end = connected(opened.address, WAIT_S)
        end.sendall(said)
        with contextlib.suppress(OSError):  # it has closed first
            end.shutdown(socket.SHUT_WR)
        assert refused.get(timeout=WAIT_S)
        assert admitted.empty()
        end.close()


def test_what_was_overheard_opens_nothing() -> None:
    """The same bytes again: the other end has drawn another nonce."""
    with gate() as (opened, admitted, refused):
        heard: list[bytes] = []
        end = connected(opened.address, WAIT_S)
        spied = _Spy(end, heard)
        introduce(spied, SECRET, Hello(7))  # type: ignore[arg-type]
        _, other = admitted.get(timeout=WAIT_S)
        again = connected(opened.address, WAIT_S)
        again.sendall(b"".join(heard))
        assert "secret" in refused.get(timeout=WAIT_S)
        for each in (end, other, again):
            each.close()


class _Spy:
    def __init__(self, end: socket.socket, heard: list[bytes]) -> None:
        self._end, self._heard = end, heard
        self.recv, self.settimeout = end.recv, end.settimeout

    def sendall(self, data: bytes) -> None:
        self._heard.append(data)
        self._end.sendall(data)


# ------------------------------------------------------------------------------------------------- the agents' arenas


@contextlib.contextmanager
def landing() -> Iterator[tuple[Landing, Arena]]:
    arena = Arena(SIZE)
    opened = Landing(HOST, SECRET, arena)
    yield opened, arena
    opened.close()
    arena.close()


def _write(routes: Routes, address: str, offset: int, data: bytes) -> None:
    routes.write(address, offset, memoryview(data))


def test_what_is_written_stands_there_when_the_writer_goes_on() -> None:
    """More than a socket holds, to its byte, and nothing beside it; one connection does for many."""
    data = bytes(range(256)) * 4096
    with landing() as (opened, arena), contextlib.closing(Routes(1, SECRET)) as routes:
        far = FarArena(SIZE, routes)
        far.view(64, len(data))[:] = data
        far.commit(64, len(data), opened.address)
        assert bytes(arena.view(0, 64)) == bytes(64)
        assert bytes(arena.view(64, len(data))) == data
        assert bytes(arena.view(64 + len(data), 64)) == bytes(64)
        for number in range(200):
            _write(routes, opened.address, 0, bytes([number]) * 8)
            assert bytes(arena.view(0, 8)) == bytes([number]) * 8
        far.close()


def test_a_life_that_is_fenced_off_writes_no_more() -> None:
    """Not on its connection, not on a new one; others do."""
    with landing() as (opened, arena), contextlib.closing(Routes(1, SECRET)) as dead:
        _write(dead, opened.address, 0, b"before")
        opened.fence(1)
        for _ in range(3):
            with pytest.raises(LinkLostError):
                _write(dead, opened.address, 0, b"after!")
        assert bytes(arena.view(0, 6)) == b"before"
        with contextlib.closing(Routes(2, SECRET)) as other:
            _write(other, opened.address, 0, b"other!")
        assert bytes(arena.view(0, 6)) == b"other!"


def test_a_fence_waits_for_who_is_in_the_middle_of_writing() -> None:
    """When it stands, nothing changes any more, although the writer had begun."""
    with landing() as (opened, arena):
        end = connected(opened.address, WAIT_S)
        introduce(end, SECRET, Hello(1))
        end.sendall((1000).to_bytes(4, "little") + (0).to_bytes(8, "little") + b"x" * 10)
        until_s = time.monotonic() + WAIT_S
        while bytes(arena.view(0, 10)) != b"x" * 10:
            assert time.monotonic() < until_s
        opened.fence(1)
        with contextlib.suppress(OSError):
            end.sendall(b"y" * 990)
        time.sleep(0.05)
        assert bytes(arena.view(10, 10)) == bytes(10)
        end.close()


@pytest.mark.parametrize(("offset", "length"), [(SIZE, 1), (SIZE - 5, 10), (0, SIZE + 1), (1 << 40, 8)])
def test_what_does_not_belong_into_the_arena_is_refused(offset: int, length: int) -> None:
    with landing() as (opened, arena), contextlib.closing(Routes(1, SECRET)) as routes:
        with pytest.raises(LinkLostError):
            _write(routes, opened.address, offset, bytes([1]) * length)
        assert bytes(arena.view(SIZE - 16, 16)) == bytes(16)
        _write(routes, opened.address, 0, b"a new connection does")
        assert bytes(arena.view(0, 5)) == b"a new"


def test_a_link_that_dies_in_the_middle_is_told_and_the_next_try_makes_a_new_one() -> None:
    """Nobody is there any more; then somebody is again, under another address."""
    with contextlib.closing(Routes(1, SECRET)) as routes:
        with landing() as (opened, _):
            _write(routes, opened.address, 0, b"here")
            gone = opened.address
        with pytest.raises(LinkLostError, match=gone.rpartition(":")[2]):
            _write(routes, gone, 0, b"gone")
        with landing() as (opened, arena):
            _write(routes, opened.address, 0, b"back")
            assert bytes(arena.view(0, 4)) == b"back"


def test_who_answers_nothing_is_waited_for_in_vain_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that has lost its power keeps a connection open."""
    monkeypatch.setattr("hw.transport.landing.PATIENCE_S", 0.1)
    with gate() as (opened, admitted, _), contextlib.closing(Routes(1, SECRET)) as routes:
        began_s = time.monotonic()
        with pytest.raises(LinkLostError, match="timed out"):
            _write(routes, opened.address, 0, b"anybody?")
        assert time.monotonic() - began_s < WAIT_S
        admitted.get(timeout=WAIT_S)[1].close()


# ------------------------------------------------------------------------------------------------------------ the port


@contextlib.contextmanager
def ports(heard: bytearray) -> Iterator[tuple[NetworkPort, NetworkPort, Arena]]:
    def hear(steps: bytes) -> None:
        heard.extend(steps) if steps else heard.clear()

    with gate() as (opened, admitted, _):
        end = connected(opened.address, WAIT_S)
        introduce(end, SECRET, Hello(1))
        arena = Arena(SIZE)
        router = NetworkPort(admitted.get(timeout=WAIT_S)[1], FromAgent, heard=hear)
        agent = NetworkPort(end, ToAgent, arena)
        yield router, agent, arena
        for each in (router, agent, arena):
            each.close()


def _receive(port: NetworkPort, count: int) -> list[object]:
    found: list[object] = []
    while len(found) < count:
        assert select.select([port], [], [], WAIT_S)[0]
        found += port.receive()
    return found


def test_large_activations_and_words_keep_their_order() -> None:
    """More than the kernel takes at once, from a router that never waits: whole when the word that follows is heard."""
    with ports(bytearray()) as (router, agent, arena):
        for number in range(1, 9):
            data, found = bytes([number]) * SIZE, list[object]()
            router.place(0, memoryview(data))
            router.post(Ping(number))
            while not found:
                router.flush()
                assert select.select([agent], [], [], WAIT_S)[0]
                found = list(agent.receive())
            assert found == [Ping(number)]
            assert bytes(arena.view(0, SIZE)) == data


def test_a_log_is_there_before_the_word_that_comes_after_it() -> None:
    """Which the router has heard of then; a new run begins it anew."""
    kept = bytearray()
    with ports(kept) as (router, agent, _):
        log = SentLog(agent)
        for number in range(50):
            log.append(number, TimerFired(), ())
            log.write()
            agent.post(Pong(number, 0))
            assert agent.flush()
            _receive(router, 1)
            assert [step.now_ns for step in steps_of(bytes(kept), 0)] == list(range(number + 1))
        log.append(99, TimerFired(), ())
        log.clear()
        agent.post(Pong(99, 0))
        agent.flush()
        _receive(router, 1)
        assert not kept


@pytest.mark.parametrize(("offset", "length"), [(SIZE, 1), (SIZE - 5, 10)])
def test_activations_that_do_not_belong_into_the_arena_break_the_port(offset: int, length: int) -> None:
    with ports(bytearray()) as (router, agent, _):
        router.place(offset, memoryview(bytes(length)))
        assert select.select([agent], [], [], WAIT_S)[0]
        with pytest.raises(PortBrokenError, match="not within an arena"):
            agent.receive()


def test_activations_for_who_has_no_arena_break_the_port() -> None:
    """An agent writes nothing at the router."""
    with ports(bytearray()) as (router, agent, _):
        agent.place(0, memoryview(b"what?"))
        assert select.select([router], [], [], WAIT_S)[0]
        with pytest.raises(PortBrokenError, match="not within an arena"):
            router.receive()


def test_an_agent_that_is_still_to_come_is_waited_for() -> None:
    """A selector wakes up when it is there; what was said before reaches it."""
    with ports(bytearray()) as (router, agent, _):
        waiting = JoiningPort()
        assert waiting.flush()
        waiting.post(Ping(1))
        assert not waiting.flush()
        assert waiting.receive() == ()
        before = waiting.fileno()
        threading.Timer(0.05, waiting.join, [router]).start()
        assert select.select([waiting], [], [], WAIT_S)[0]
        assert not waiting.receive()
        assert waiting.fileno() not in (before, -1)
        assert waiting.flush()
        assert _receive(agent, 1) == [Ping(1)]
        agent.post(Pong(1, 2))
        agent.flush()
        assert select.select([waiting], [], [], WAIT_S)[0]
        assert list(waiting.receive()) == [Pong(1, 2)]
        waiting.end("its host is gone")
        assert select.select([waiting], [], [], WAIT_S)[0]
        with pytest.raises(PortClosedError):
            waiting.receive()
        waiting.close()


def test_an_agent_that_never_comes_is_told_as_often_as_one_asks() -> None:
    waiting = JoiningPort()
    threading.Timer(0.05, waiting.end, ["no such host"]).start()
    assert select.select([waiting], [], [], WAIT_S)[0]
    for _ in range(2):
        assert select.select([waiting], [], [], WAIT_S)[0]
        with pytest.raises(PortClosedError, match="no such host"):
            waiting.receive()
        with pytest.raises(PortClosedError, match="no such host"):
            waiting.flush()
    waiting.close()
    waiting.close()
    assert waiting.fileno() == -1
