"""The port's contract, on one host and between two: order, no waiting, the end, what is not a message; and clocks."""

from __future__ import annotations

import os
import pickle  # noqa: TID251 - to see that it is not a message
import queue
import select
import socket
import threading
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from hw.transport.messages import FromWorker, Message, Ping, Pong, Returned, ToWorker
from hw.transport.peers import Encrypted, Hello, Listener, OffsetEstimate, connected, fresh_certificate
from hw.transport.shared_memory import Arena, steps_of
from hw.transport.worker_port import (
    LOGGED,
    PLACED,
    Codec,
    Mirror,
    Port,
    PortBrokenError,
    PortClosedError,
    RouterEnd,
    SentLog,
    WorkerEnd,
    encode,
    header,
    socket_pair,
)
from policies.run_records import BatchTold
from policies.vocabulary import NOTHING_RESIDENT, TimerFired

Connection = socket.socket | Encrypted
ARENA_BYTES = 1 << 21
WAIT_S = 30.0
MANY, TOO_MANY = 1000, 2_000_000
CERTIFICATE = fresh_certificate()


def near() -> tuple[Connection, Connection]:
    """The router's and the worker's, on one host."""
    return socket_pair()


def far() -> tuple[Connection, Connection]:
    admitted: queue.Queue[Any] = queue.Queue()
    gate = Listener("127.0.0.1", CERTIFICATE, lambda _, end: admitted.put(end))
    end = connected(gate.address, CERTIFICATE, Hello(1))
    router = admitted.get(timeout=WAIT_S)
    gate.close()
    return Encrypted(router), Encrypted(end)


class Joined:
    """A worker joined to a router, its arena, the log that the router has heard."""

    def __init__(self, ends: tuple[Connection, Connection]) -> None:
        self.raw = ends[0]
        self.heard = bytearray()
        self.arena = Arena(ARENA_BYTES)
        self.router = RouterEnd(FromWorker, ends[0], heard=self._hear)
        self.worker = WorkerEnd(ToWorker, ends[1], self.arena)

    def _hear(self, steps: bytes) -> None:
        self.heard.extend(steps) if steps else self.heard.clear()

    def send_raw(self, body: bytes, share: float = 1.0) -> None:
        """A frame to the worker; or its first part, and then the end."""
        data = header(0, len(body)) + body
        self.raw.send(data[: round(share * len(data))])
        if share < 1.0:
            self.router.close()


@pytest.fixture(params=[near, far])
def joined(request: pytest.FixtureRequest) -> Iterator[Joined]:
    made = Joined(request.param())
    yield made
    for each in (made.router, made.worker, made.arena):
        each.close()


@pytest.fixture
def router(joined: Joined) -> RouterEnd:
    return joined.router


@pytest.fixture
def worker(joined: Joined) -> WorkerEnd:
    return joined.worker


def said(end: Port[Any, Any], messages: Sequence[Message]) -> None:
    """Posted and sent; they must find room."""
    for message in messages:
        end.post(message)
    assert end.flush()


def is_readable(end: Port[Any, Any], wait_s: float = 0.0) -> bool:
    return bool(select.select([end], [], [], wait_s)[0])


def heard(end: Port[Any, Any], count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        assert is_readable(end, WAIT_S), f"{len(found)} of {count} have come"
        found += end.receive()
    return found


def in_time(act: Callable[[], object]) -> None:
    """Fail where something waits that must not."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive(), "it waits"


# ----------------------------------------------------------------------------------------------------------- messages


def test_a_long_frame_is_collected_in_one_place(worker: WorkerEnd) -> None:
    """What has come is not copied at each piece, or a frame of 32 MB would take seconds."""
    body = encode([Ping(number) for number in range(30_000)])
    data, place, found = header(0, len(body)) + body, None, list[Any]()
    for at in range(0, len(data), 1000):
        assert not found
        worker._take(data[at : at + 1000], found)
        place = place or worker._unread
        assert worker._unread is place or found
    assert found == [Ping(number) for number in range(30_000)]
    assert not worker._unread


def test_messages_come_in_their_order_in_both_directions(router: RouterEnd, worker: WorkerEnd) -> None:
    """However many travel together; the receiver gets several in one go."""
    said(router, [Ping(0)])
    said(router, [Ping(1), Ping(2)])
    said(worker, [Pong(number, 5) for number in range(3)])
    assert is_readable(worker, WAIT_S)
    assert list(worker.receive()) == [Ping(0), Ping(1), Ping(2)]
    assert heard(router, 3) == [Pong(number, 5) for number in range(3)]


def test_sending_never_waits_and_nothing_is_lost(router: RouterEnd, worker: WorkerEnd) -> None:
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
        assert is_readable(worker, WAIT_S), f"{len(found)} of {sent + 1} have come"
        found += worker.receive()
    assert found == [Ping(number) for number in range(sent + 1)]
    assert router.flush()


def test_messages_sent_before_a_close_are_received_before_the_error(router: RouterEnd, worker: WorkerEnd) -> None:
    said(router, [Ping(number) for number in range(MANY)])
    router.close()
    assert heard(worker, MANY) == [Ping(number) for number in range(MANY)]
    for _ in range(2):
        with pytest.raises(PortClosedError):
            worker.receive()


def test_closed_port_is_reported_at_once_to_a_receiver_and_soon_to_a_sender(
    router: RouterEnd, worker: WorkerEnd
) -> None:
    worker.close()
    worker.close()
    assert is_readable(router, WAIT_S)
    with pytest.raises(PortClosedError):
        router.receive()

    def send_on() -> None:
        while True:
            router.post(Ping(1))
            router.flush()

    with pytest.raises(PortClosedError):
        send_on()


OTHERS = {
    "of the other direction": encode([Pong(1, 2)]),
    "no array": msgspec.msgpack.encode({"Ping": 1}),
    "a field of another kind": msgspec.msgpack.encode([["Ping", "one"]]),
    "no message at all": b"\xc1\xc1\xc1",
    "a name that is not UTF-8": b"\x91\x92\xa1\x80\x01",
    "a pickle": pickle.dumps(os.getcwd),
    "nothing": b"",
}


@pytest.mark.parametrize("what", OTHERS)
def test_bytes_that_are_not_a_message_break_the_port(what: str, joined: Joined, worker: WorkerEnd) -> None:
    joined.send_raw(OTHERS[what])
    assert is_readable(worker, WAIT_S)
    with pytest.raises(PortBrokenError):
        worker.receive()


def placed(offset: int, length: int) -> bytes:
    return header(PLACED, length) + offset.to_bytes(8, "little") + bytes(length)


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (b"\xff\xff\xff\xff", "4294967295 bytes"),  # it would be waited for, and kept, for ever
        (placed(ARENA_BYTES, 1), "not within an arena"),
        (placed(ARENA_BYTES - 5, 10), "not within an arena"),
        (placed(1 << 40, 8), "not within an arena"),
        (header(LOGGED, 5) + b"what?", "from workers only"),
    ],
)
def test_a_frame_that_can_not_be_breaks_the_port(frame: bytes, problem: str, joined: Joined, worker: WorkerEnd) -> None:
    joined.raw.send(frame)
    assert is_readable(worker, WAIT_S)
    with pytest.raises(PortBrokenError, match=problem):
        worker.receive()


def test_activations_are_not_for_the_router(joined: Joined) -> None:
    joined.worker.place(0, memoryview(b"what?"))
    assert is_readable(joined.router, WAIT_S)
    with pytest.raises(PortBrokenError, match="not within an arena"):
        joined.router.receive()


def test_a_message_that_is_cut_off_breaks_the_port(joined: Joined, worker: WorkerEnd) -> None:
    joined.send_raw(encode([Ping(number) for number in range(10)]), share=0.5)
    with pytest.raises(PortBrokenError):
        heard(worker, 10)


KINDS = (*typing.get_args(ToWorker), *typing.get_args(FromWorker))


@settings(suppress_health_check=[HealthCheck.filter_too_much])  # some messages have narrow fields
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_comes_out_as_it_went_in(kind: type, data: st.DataObject) -> None:
    """Whatever its fields hold: numbers, names, tuples, none, other messages."""
    message = data.draw(st.from_type(kind))
    try:
        body = encode([message, message])
    except OverflowError:  # more than 64 bits, which no field has
        reject()
    codec: Codec[Any] = Codec(ToWorker if kind in typing.get_args(ToWorker) else FromWorker)
    again, other = codec.decode(body)
    assert type(again) is type(other) is kind
    assert repr(again) == repr(message)  # in which even a float that is not a number equals itself


# ---------------------------------------------------------------------------------------- activations, logs, joining


def test_bytes_written_by_the_router_are_in_the_arena_before_its_next_message(joined: Joined) -> None:
    """Each write exceeds the kernel's buffer, the router never waits, and no other byte changes."""
    mirror = Mirror(ARENA_BYTES, lambda: joined.router)
    for number in range(1, 5):
        data, found = bytes([number]) * (ARENA_BYTES - 1024), list[object]()
        mirror.view(512, len(data))[:] = data
        mirror.commit(512, len(data))
        joined.router.post(Ping(number))
        while not found:
            joined.router.flush()
            assert is_readable(joined.worker, WAIT_S)
            found = list(joined.worker.receive())
        assert found == [Ping(number)]
        assert bytes(joined.arena.view(0, ARENA_BYTES)) == bytes(512) + data + bytes(512)
    mirror.close()


def test_activations_for_who_is_gone_hurt_nobody(joined: Joined) -> None:
    joined.worker.close()
    for _ in range(3):
        joined.router.place(0, memoryview(bytes(64)))
    assert is_readable(joined.router, WAIT_S)
    with pytest.raises(PortClosedError):
        joined.router.receive()


def test_a_log_is_there_before_the_word_that_comes_after_it(joined: Joined) -> None:
    log = SentLog(joined.worker)
    for number in range(50):
        log.append(number, TimerFired(), ())
        log.write()
        said(joined.worker, [Pong(number, 0)])
        heard(joined.router, 1)
        assert [step.now_ns for step in steps_of(bytes(joined.heard), 0)] == list(range(number + 1))
    log.append(99, TimerFired(), ())
    log.clear()
    said(joined.worker, [Pong(99, 0)])
    heard(joined.router, 1)
    assert not joined.heard


@pytest.mark.parametrize("ends", [near, far])
def test_an_worker_that_is_still_to_come_is_waited_for(ends: Callable[[], tuple[Connection, Connection]]) -> None:
    """A selector wakes up when it is there; what was said before reaches it first."""
    waiting, (end, remote) = RouterEnd(FromWorker), ends()
    worker = WorkerEnd(ToWorker, remote)
    assert waiting.flush()
    waiting.post(Ping(1))
    assert not waiting.flush()
    assert list(waiting.receive()) == []
    before = waiting.fileno()
    threading.Timer(0.05, waiting.join, [end]).start()
    assert is_readable(waiting, WAIT_S)
    assert waiting.fileno() not in (before, -1)
    said(waiting, [Ping(2)])
    assert heard(worker, 2) == [Ping(1), Ping(2)]
    said(worker, [Pong(1, 2)])
    assert heard(waiting, 1) == [Pong(1, 2)]
    assert not waiting.join(end)
    waiting.end("its host is gone")
    assert is_readable(waiting, WAIT_S)
    with pytest.raises(PortClosedError, match="its host is gone"):
        waiting.receive()
    for each in (waiting, worker):
        each.close()


def test_an_worker_that_never_comes_is_told_as_often_as_one_asks() -> None:
    waiting = RouterEnd(FromWorker)
    threading.Timer(0.05, waiting.end, ["no such host"]).start()
    for _ in range(2):
        assert is_readable(waiting, WAIT_S)
        with pytest.raises(PortClosedError, match="no such host"):
            waiting.receive()
        with pytest.raises(PortClosedError, match="no such host"):
            waiting.flush()
    assert not waiting.join(socket.socket())
    waiting.close()
    waiting.close()
    assert waiting.fileno() == -1


# ------------------------------------------------------------------------------------------------------------- clocks

S = 1_000_000_000
DRIFTS = st.floats(-OffsetEstimate.DRIFT, OffsetEstimate.DRIFT)
EXCHANGES = st.lists(st.tuples(st.integers(0, 100 * S), st.integers(0, S), st.integers(0, S)), min_size=1, max_size=20)


@given(offset_ns=st.integers(-(10**18), 10**18), drift=DRIFTS, exchanges=EXCHANGES)
def test_an_offset_is_as_right_as_it_says(offset_ns: int, drift: float, exchanges: list[tuple[int, int, int]]) -> None:
    """Another clock, which goes faster or slower; pings after a pause, with any delays there and back: when an offset
    is told it is no more wrong than stated (but for rounding)."""
    estimate, now_ns = OffsetEstimate(), 0

    def worker_ns(at_ns: int) -> int:
        return at_ns + offset_ns + round(drift * at_ns)

    for pause_ns, there_ns, back_ns in exchanges:
        sent_ns = now_ns + pause_ns
        now_ns = sent_ns + there_ns + back_ns
        told = estimate.heard(sent_ns, worker_ns(sent_ns + there_ns), now_ns)
        assert abs(told.offset_ns - (worker_ns(now_ns) - now_ns)) <= told.error_ns + 2
    assert not estimate.jumps


def test_the_quickest_exchange_says_most_until_it_is_too_old() -> None:
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
    assert later.at_worker(5) == 1_000_505
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


def test_message_has_a_batch_of_its_own_only_if_its_requests_ended_with_it() -> None:
    """Requests that leave their path when a later batch breaks come with other batches, or with none."""
    first, second = (BatchTold(number, 1, number, 1.0, 0.0, (7, 8), (), 1, 1, 1, 0, 1, (0, 0)) for number in (1, 2))
    for batches, segment, requests, own in (
        ((first, second), 2, (7, 8), second),
        ((first, second), 1, (7,), None),
        ((first,), 1, (9,), None),
        ((), 1, (7,), None),
    ):
        message = Returned(1, requests, segment, 1.0, (), batches, NOTHING_RESIDENT, 3)
        assert message.own_batch is own
