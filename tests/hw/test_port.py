"""The port's contract, for all that carry it: order, no waiting, the end, what is no message, activations; clocks."""

from __future__ import annotations

import contextlib
import os
import pickle  # noqa: TID251 - to see that nothing opens one
import queue
import select
import socket
import threading
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from hw.agent.outfit import AgentSpec
from hw.router.agents import AgentHandle, Carrier
from hw.router.local_agents import OneHost
from hw.transport.arena import Arena, LinkLostError
from hw.transport.gate import Gate, connected
from hw.transport.handshake import Hello, fresh_secret, introduce
from hw.transport.landing import FarArena, Landing, Routes
from hw.transport.local_port import agent_end, router_end, socket_pair
from hw.transport.messages import FromAgent, Message, Moved, Ping, Pong, Ready, ToAgent, Warm
from hw.transport.network_port import Mirror, NetworkPort
from hw.transport.port import AgentEnd, Codec, OffsetEstimate, Port, PortBrokenError, PortClosedError, RouterEnd, encode
from tests.hw.memory_port import Memory

ARENA_BYTES = 4096
WAIT_S = 30.0
MANY, TOO_MANY = 1000, 2_000_000


class Joined:
    """Two agents joined to a router: their ends, their arenas, and a way to send what no end would.

    Attributes:
        routers, agents: the ends, by agent.
        arenas: as the router has them.
    """

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.arenas = carrier.arenas(2, ARENA_BYTES)
        self.routers: list[RouterEnd] = []
        self.agents: list[AgentEnd] = []

    def send_raw(self, body: bytes, share: float = 1.0) -> None:
        """A frame to agent 0; or its first part, and then the end."""
        raise NotImplementedError

    def close(self) -> None:
        """Both ends of both, and the arenas."""
        ends: list[Port[Any, Any]] = [*self.routers, *self.agents]
        for end in ends:
            end.close()
        self.carrier.close()


class Local(Joined):
    """Sockets and shared memory."""

    def __init__(self) -> None:
        super().__init__(OneHost())
        self._sockets = []
        for _ in range(2):
            end, remote = socket_pair()
            self._sockets.append(end)
            self.routers.append(router_end(end))
            self.agents.append(agent_end(remote))

    def send_raw(self, body: bytes, share: float = 1.0) -> None:
        data = len(body).to_bytes(4, "little") + body
        self._sockets[0].sendall(data[: round(share * len(data))])
        if share < 1.0:
            self.routers[0].close()


class InMemory(Joined):
    """Queues and copies."""

    def __init__(self) -> None:
        memory = Memory()
        super().__init__(memory)
        self._pairs = [memory.ends(agent) for agent in range(2)]
        self.routers += [router for router, _ in self._pairs]
        self.agents += [agent for _, agent in self._pairs]

    def send_raw(self, body: bytes, share: float = 1.0) -> None:
        self._pairs[0][0]._out.send(body[: round(share * len(body))])
        if share < 1.0:
            self.routers[0].close()


class OverNetwork(Joined):
    """TCP connections of those who know a secret; an agent's activations go to the other agent straight."""

    def __init__(self) -> None:
        far = Far()
        super().__init__(far)
        self._far = far
        for agent in range(2):
            far.open(agent)
        self.routers += far.ports
        self.agents += far.agents

    def send_raw(self, body: bytes, share: float = 1.0) -> None:
        data = len(body).to_bytes(4, "little") + body
        self._far.sockets[0].sendall(data[: round(share * len(data))])
        if share < 1.0:
            self.routers[0].close()


class Far:
    """`Carrier` of which only the ends and arenas are asked: what agents on other hosts have, on this one."""

    def __init__(self) -> None:
        self.secret = fresh_secret()
        self.sockets: list[socket.socket] = []
        self.ports: list[NetworkPort] = []
        self.agents: list[AgentEnd] = []
        self._agents_of: list[tuple[Arena, ...]] = []
        self._open: list[Any] = []

    def arenas(self, count: int, size_bytes: int) -> Sequence[Arena]:
        own = [Arena(size_bytes) for _ in range(count)]
        self._own = own
        self.landings = [Landing("127.0.0.1", self.secret, arena) for arena in own]
        for agent in range(count):
            routes = Routes(agent + 1, self.secret)
            far = [_Addressed(FarArena(size_bytes, routes), landing.address) for landing in self.landings]
            arenas = tuple(own[agent] if place == agent else far[place] for place in range(count))
            self._agents_of.append(arenas)
            self._open += [routes, *far]
        mirrors = [Mirror(size_bytes, partial(self._placing, agent)) for agent in range(count)]
        self._open += [*self.landings, *own, *mirrors]
        return mirrors

    def _placing(self, agent: int) -> NetworkPort:
        return self.ports[agent]

    def open(self, agent: int) -> None:
        admitted: queue.Queue[socket.socket] = queue.Queue()
        gate = Gate("127.0.0.1", self.secret, lambda _, end: admitted.put(end))
        end = connected(gate.address, WAIT_S)
        introduce(end, self.secret, Hello(agent + 1))
        router = admitted.get(timeout=WAIT_S)
        gate.close()
        self.sockets.append(router)
        self.ports.append(NetworkPort(router, FromAgent, heard=lambda _: None))
        self.agents.append(NetworkPort(end, ToAgent, self._own[agent]))

    def arenas_of(self, agent: int) -> tuple[Arena, ...]:
        return self._agents_of[agent]

    def start(self, agent: int, spec: AgentSpec) -> AgentHandle:
        raise AssertionError("only its ends are asked for")

    def close(self) -> None:
        for each in self._open:
            each.close()


class _Addressed(Arena):
    """Somebody else's arena, whose address is known here and not from a message."""

    def __init__(self, far: FarArena, address: str) -> None:
        self.size_bytes, self.buffer, self._fd = far.size_bytes, far.buffer, -1
        self._far, self._address = far, address

    def commit(self, offset: int, size_bytes: int, address: str = "") -> None:
        with contextlib.suppress(LinkLostError):
            self._far.commit(offset, size_bytes, self._address)


@pytest.fixture(params=[Local, InMemory, OverNetwork])
def joined(request: pytest.FixtureRequest) -> Iterator[Joined]:
    made: Joined = request.param()
    yield made
    made.close()


@pytest.fixture
def router(joined: Joined) -> RouterEnd:
    return joined.routers[0]


@pytest.fixture
def agent(joined: Joined) -> AgentEnd:
    return joined.agents[0]


def said(end: Port[Any, Any], messages: Sequence[Message]) -> None:
    """Posted and sent; they must find room."""
    for message in messages:
        end.post(message)
    assert end.flush()


def is_readable(end: Port[Any, Any], wait_s: float = 0.0) -> bool:
    return bool(select.select([end], [], [], wait_s)[0])


def heard(end: Port[Any, Any], count: int) -> list[Any]:
    """So many messages; waits for each."""
    found: list[Any] = []
    while len(found) < count:
        assert is_readable(end, WAIT_S), f"{len(found)} of {count} have come"
        found += end.receive()
    return found


def in_time(act: Callable[[], object]) -> None:
    """Fail where something waits that must not."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive(), "it waits"
    if errors:
        raise errors[0]


# ----------------------------------------------------------------------------------------------------------- messages


def test_messages_come_in_their_order_in_both_directions(router: RouterEnd, agent: AgentEnd) -> None:
    """However many travel together; the receiver gets several in one go."""
    said(router, [Ping(0)])
    said(router, [Ping(1), Ping(2)])
    said(agent, [Pong(number, 5) for number in range(3)])
    assert is_readable(agent, WAIT_S)
    assert list(agent.receive()) == [Ping(0), Ping(1), Ping(2)]
    assert heard(router, 3) == [Pong(number, 5) for number in range(3)]


def test_nothing_travels_before_it_is_sent(router: RouterEnd, agent: AgentEnd) -> None:
    """And who looks without anything being there does not wait."""
    router.post(Ping(1))
    assert not is_readable(agent)
    in_time(lambda: agent.receive())
    assert list(agent.receive()) == []
    assert router.flush()
    assert router.flush()  # of nothing
    assert heard(agent, 1) == [Ping(1)]
    assert list(agent.receive()) == []


def test_a_selector_can_wait_for_it(router: RouterEnd, agent: AgentEnd) -> None:
    """Readable when something has come, until it was received, and at the end."""
    assert not is_readable(agent)
    said(router, [Ping(1)])
    assert is_readable(agent, WAIT_S)
    agent.receive()
    assert not is_readable(agent)
    router.close()
    assert is_readable(agent, WAIT_S)


def test_sending_never_waits_and_nothing_is_lost(router: RouterEnd, agent: AgentEnd) -> None:
    """Nobody reads: sooner or later the port is full and says so. What it did not take goes later, in its order."""
    sent = 0

    def fill() -> None:
        nonlocal sent
        is_sent = True
        while is_sent:
            for _ in range(MANY):
                router.post(Ping(sent))
                sent += 1
            is_sent = router.flush()
            assert sent < TOO_MANY, "it has room for anything"
        assert not router.flush()

    in_time(fill)
    router.post(Ping(sent))
    found: list[Any] = []
    while len(found) <= sent:
        router.flush()
        assert is_readable(agent, WAIT_S), f"{len(found)} of {sent + 1} have come"
        found += agent.receive()
    assert found == [Ping(number) for number in range(sent + 1)]
    assert router.flush()


def test_a_large_message_arrives_whole(router: RouterEnd, agent: AgentEnd) -> None:
    """More than 1 MB, and what follows it."""
    large = Warm(1, tuple(range(1_000_000, 1_300_000)))
    assert len(encode([large])) > 1 << 20
    for message in (large, Ping(2)):
        router.post(message)
    found: list[Any] = []
    while len(found) < 2:
        router.flush()
        assert is_readable(agent, WAIT_S)
        found += agent.receive()
    assert found == [large, Ping(2)]


def test_what_came_before_the_end_is_given_before_it_is_told(router: RouterEnd, agent: AgentEnd) -> None:
    """And the end is told as often as one asks."""
    said(router, [Ping(number) for number in range(MANY)])
    router.close()
    assert heard(agent, MANY) == [Ping(number) for number in range(MANY)]
    for _ in range(2):
        with pytest.raises(PortClosedError):
            agent.receive()


def test_nothing_can_be_sent_to_who_is_gone(router: RouterEnd, agent: AgentEnd) -> None:
    """It is told at once, not some messages later."""
    agent.close()
    agent.close()
    router.post(Ping(1))
    with pytest.raises(PortClosedError):
        router.flush()
    with pytest.raises(PortClosedError):
        router.receive()


OTHERS = {
    "of the other direction": encode([Pong(1, 2)]),
    "no array": msgspec.msgpack.encode({"Ping": 1}),
    "a field of another kind": msgspec.msgpack.encode([["Ping", "one"]]),
    "no message at all": b"\xc1\xc1\xc1",
    "a name that is no UTF-8": b"\x91\x92\xa1\x80\x01",
    "nothing": b"",
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_no_message_breaks_the_port(what: str, joined: Joined, agent: AgentEnd) -> None:
    joined.send_raw(OTHERS[what])
    assert is_readable(agent, WAIT_S)
    with pytest.raises(PortBrokenError):
        agent.receive()


def test_a_message_that_is_cut_off_breaks_the_port(joined: Joined, agent: AgentEnd) -> None:
    """It is neither taken for another one nor for an orderly end."""
    joined.send_raw(encode([Ping(number) for number in range(10)]), share=0.5)
    with pytest.raises(PortBrokenError):
        heard(agent, 10)


class _Trap:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def test_nothing_that_arrives_is_executed(joined: Joined, agent: AgentEnd, tmp_path: Path) -> None:
    """A pickle would make a folder where it is opened."""
    trap = pickle.dumps(_Trap(tmp_path / "sprung"))
    joined.send_raw(trap)
    assert is_readable(agent, WAIT_S)
    with pytest.raises(PortBrokenError):
        agent.receive()
    assert not (tmp_path / "sprung").exists()
    pickle.loads(trap)
    assert (tmp_path / "sprung").exists()


def test_a_frame_of_a_nonsensical_length_is_refused() -> None:
    """It would be waited for, and kept, for ever."""
    end, remote = socket_pair()
    agent = agent_end(remote)
    end.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(PortBrokenError, match="4294967295 bytes"):
        agent.receive()
    end.close()
    agent.close()


KINDS = (*typing.get_args(ToAgent), *typing.get_args(FromAgent))


@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_comes_out_as_it_went_in(kind: type, data: st.DataObject) -> None:
    """Whatever its fields hold: numbers, names, tuples, none, other messages."""
    message = data.draw(st.from_type(kind))
    try:
        body = encode([message, message])
    except OverflowError:  # more than 64 bits, which no field has
        reject()
    codec: Codec[Any] = Codec(ToAgent if kind in typing.get_args(ToAgent) else FromAgent)
    again, other = codec.decode(body)
    assert type(again) is type(other) is kind
    assert repr(again) == repr(message)  # in which even a float that is no number equals itself


# -------------------------------------------------------------------------------------------------------- activations

DATA = bytes(range(1, 129))


def _write(arena: Arena, offset: int, data: bytes = DATA) -> None:
    arena.view(offset, len(data))[:] = data
    arena.commit(offset, len(data))


def _found(arena: Arena) -> bytes:
    return bytes(arena.view(0, ARENA_BYTES))


def _around(offset: int) -> bytes:
    return bytes(offset) + DATA + bytes(ARENA_BYTES - offset - len(DATA))


def test_what_the_router_has_written_is_there_when_its_agent_hears_of_it(
    joined: Joined, router: RouterEnd, agent: AgentEnd
) -> None:
    """Those bytes, at that place, and nothing else anywhere."""
    own = joined.carrier.arenas_of(0)[0]
    _write(joined.arenas[0], 512)
    said(router, [Ping(1)])
    assert heard(agent, 1) == [Ping(1)]
    assert _found(own) == _around(512)
    assert _found(joined.carrier.arenas_of(1)[1]) == bytes(ARENA_BYTES)


def test_what_an_agent_has_written_for_another_is_there_when_that_one_hears_of_it(joined: Joined) -> None:
    """By way of the router, which heard of it from the first: nothing overtakes the activations."""
    others = joined.carrier.arenas_of(0)[1]
    own = joined.carrier.arenas_of(1)[1]
    for number in range(MANY):
        data = bytes([number % 251] * len(DATA))
        _write(others, 1024, data)
        said(joined.agents[0], [Moved(number, (1,), "float32", False)])
        (moved,) = heard(joined.routers[0], 1)
        said(joined.routers[1], [Ping(moved.transfer)])
        assert heard(joined.agents[1], 1) == [Ping(number)]
        assert bytes(own.view(1024, len(data))) == data


def test_activations_for_who_is_gone_hurt_nobody(joined: Joined) -> None:
    """Whoever writes them may not have heard of it yet."""
    joined.agents[1].close()
    joined.routers[1].close()
    for arena in (joined.arenas[1], joined.carrier.arenas_of(0)[1]):
        _write(arena, 0)
    said(joined.agents[0], [Pong(1, 2)])
    assert heard(joined.routers[0], 1) == [Pong(1, 2)]


# ------------------------------------------------------------------------------------------------------------- clocks

S = 1_000_000_000
DRIFTS = st.floats(-OffsetEstimate.DRIFT, OffsetEstimate.DRIFT)
EXCHANGES = st.lists(st.tuples(st.integers(0, 100 * S), st.integers(0, S), st.integers(0, S)), min_size=1, max_size=20)


@given(offset_ns=st.integers(-(10**18), 10**18), drift=DRIFTS, exchanges=EXCHANGES)
def test_an_offset_is_as_right_as_it_says(offset_ns: int, drift: float, exchanges: list[tuple[int, int, int]]) -> None:
    """Another clock, which goes faster or slower; pings after a pause, with any delays there and back: when an offset
    is told it is no more wrong than stated (but for rounding)."""
    estimate, now_ns = OffsetEstimate(), 0

    def agent_ns(at_ns: int) -> int:
        return at_ns + offset_ns + round(drift * at_ns)

    for pause_ns, there_ns, back_ns in exchanges:
        sent_ns = now_ns + pause_ns
        now_ns = sent_ns + there_ns + back_ns
        told = estimate.heard(sent_ns, agent_ns(sent_ns + there_ns), now_ns)
        assert abs(told.offset_ns - (agent_ns(now_ns) - now_ns)) <= told.error_ns + 2
    assert not estimate.jumps


def test_the_quickest_exchange_says_most_until_it_is_too_old() -> None:
    """A slow one changes nothing, at first."""
    estimate = OffsetEstimate()
    assert estimate.best is None
    quick = estimate.heard(0, 1_000_010, 20)
    assert (quick.offset_ns, quick.error_ns <= 11) == (1_000_000, True)
    slow = estimate.heard(100, 1_001_900, 2_100)
    assert slow.offset_ns == 1_000_000
    assert estimate.best == quick
    later = estimate.heard(60 * S, 60 * S + 1_001_500, 60 * S + 2_000)
    assert later.offset_ns == 1_000_500
    assert estimate.best == later
    assert later.at_agent(5) == 1_000_505
    assert not estimate.jumps


@given(
    jump_ns=st.integers(3_000, 10**15), ahead=st.booleans(), there_ns=st.integers(0, 1000), back_ns=st.integers(0, 1000)
)
def test_a_clock_that_jumps_is_believed_from_its_next_exchange_on(
    jump_ns: int, ahead: bool, there_ns: int, back_ns: int
) -> None:
    """However slow that is: what was known of it before can't be true any more."""
    estimate, offset_ns = OffsetEstimate(), 5_000
    estimate.heard(0, offset_ns + 10, 20)
    offset_ns += jump_ns if ahead else -jump_ns
    now_ns = S + there_ns + back_ns
    told = estimate.heard(S, S + there_ns + offset_ns, now_ns)
    if abs(jump_ns) > 10 + there_ns + back_ns + 200_000:  # more than drift and both errors explain
        assert estimate.jumps == 1
    if estimate.jumps:
        assert abs(told.offset_ns - offset_ns) <= told.error_ns + 2


def test_messages_of_both_directions_are_told_apart() -> None:
    """No name is used twice, so that none is taken for another."""
    names = [kind.__name__ for kind in KINDS]
    assert len(set(names)) == len(names)
    assert Ready in KINDS
