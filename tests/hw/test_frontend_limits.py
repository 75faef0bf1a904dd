"""What gRPC's clients can take of the ingress: memory, connections, its port; and as what their calls are counted."""

from __future__ import annotations

import asyncio
import resource
import socket
import time  # noqa: TID251 - a process starts
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from hw.frontend.admission import Admission, Limits
from hw.frontend.connections import Journal, Sparing, listen
from hw.frontend.grpc_service import MESSAGES, SERVICE, Calls, start_grpc
from hw.frontend.inference_protocol import Served
from hw.frontend.ingress import Ingress, IngressSpec
from hw.frontend.traffic_metrics import Metrics
from kit.errors import InputError

SERVED = Served("m", (1, 2, 2), 2, 0, (), (), 8)
JOURNAL = Journal(lambda _: None, as_json=False)
MESSAGE = 1000  # bytes
LIMITS = Limits(body_bytes=MESSAGE, held_bytes=3 * MESSAGE, body_s=0.2, connections=3)
WINDOW, UNREAD = 4, (1 << 16) - 1  # HTTP/2's number of the setting, and its value where none is told


class RefusalError(Exception):
    """As gRPC ends a call."""


class Caller:
    """Of `ModelInfer`, in place of gRPC's context: `read` is its message."""

    def __init__(self, read: Callable[[], Awaitable[Any]], left_s: float | None = None) -> None:
        self.read = read
        self.told = ""
        self.time_remaining = lambda: left_s
        self.invocation_metadata = lambda: ()
        self.peer = lambda: id(self)

    async def abort(self, code: Any, words: str, *_: Any) -> None:
        self.told = f"{code.name}: {words}"
        raise RefusalError


class Ingoing:
    """The calls to a server that is not ready."""

    def __init__(self) -> None:
        bridge: Any = SimpleNamespace(served=SERVED, is_ready=False, is_draining=False, inside=0)
        page: Any = None
        transforms: Any = None
        self.metrics = Metrics(lambda: SERVED, lambda: 0, lambda: None, lambda: 0.0)
        admission = Admission(bridge, self.metrics, page, LIMITS, {}, 1.0, Sparing(JOURNAL), transforms)
        self.calls = Calls(admission, self.metrics, LIMITS)

    async def infer(self, caller: Caller) -> None:
        details: Any = SimpleNamespace(method=f"/{SERVICE}/ModelInfer")
        await self.calls.handler().service(details).stream_unary(None, caller)

    def counted(self) -> dict[str, float]:
        (family,) = self.metrics.requests.collect()
        return {sample.labels["code"]: sample.value for sample in family.samples}


def test_no_more_are_read_at_a_time_than_may_all_be_the_largest() -> None:
    reading, most = 0, 0

    async def read() -> bytes:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        try:
            await asyncio.sleep(0.01)
        finally:
            reading -= 1
        return MESSAGES["ModelInferRequest"](model_name="other").SerializeToString()  # type: ignore[no-any-return]

    async def nothing() -> bytes:
        await asyncio.sleep(60)
        return b""

    async def told(callers: list[Caller]) -> set[str]:
        ingoing = Ingoing()
        await asyncio.gather(*map(ingoing.infer, callers), return_exceptions=True)
        return {caller.told for caller in callers}

    assert asyncio.run(told([Caller(read) for _ in range(20)])) == {
        "NOT_FOUND: nothing is at other/; the model is m, version 1"
    }
    assert most == 3
    callers = [Caller(nothing if place < 3 else read) for place in range(5)]
    told_slow = asyncio.run(told(callers))
    assert {caller.told for caller in callers[:3]} == {"DEADLINE_EXCEEDED: the request took more than 0.2 s"}
    in_vain, not_found = "RESOURCE_EXHAUSTED: full: others send at this moment", "NOT_FOUND: nothing is at other/"
    assert told_slow - {callers[0].told}, "who waits is told something else"
    assert all(told.startswith((in_vain, not_found)) for told in told_slow - {callers[0].told})


@pytest.mark.parametrize(
    ("error", "left_s", "code"),
    [
        (asyncio.CancelledError(), None, "CANCELLED"),
        (asyncio.CancelledError(), 0.5, "CANCELLED"),
        (asyncio.CancelledError(), 0.0, "DEADLINE_EXCEEDED"),
        (ZeroDivisionError(), 0.5, "INTERNAL"),
    ],
)
def test_a_call_counts_as_what_became_of_it(error: BaseException, left_s: float | None, code: str) -> None:
    async def read() -> bytes:
        raise error

    async def counted() -> dict[str, float]:
        ingoing = Ingoing()
        with pytest.raises(RefusalError if isinstance(error, Exception) else type(error)):
            await ingoing.infer(Caller(read, left_s))
        return ingoing.counted()

    assert asyncio.run(counted()) == {code: 1}


def _asked(ask: Callable[[tuple[str, int]], Any]) -> Any:
    async def serve() -> Any:
        with listen("127.0.0.1", 0, 0, is_safe=True) as listening:
            assert listening.grpc is not None
            server = await start_grpc(Ingoing().calls, listening.grpc, None, LIMITS)
            try:
                host, _, port = listening.grpc.partition(":")
                return await asyncio.to_thread(ask, (host, int(port)))
            finally:
                await server.stop(0)

    return asyncio.run(serve())


def _greeting(client: socket.socket) -> bytes:
    """HTTP/2's first frame, of settings; nothing where the connection is ended."""
    client.settimeout(10)
    with suppress(ConnectionError):
        return client.recv(1 << 12)
    return b""


def test_grpc_connection_not_yet_read_has_a_small_window() -> None:
    """gRPC itself takes 4 MiB of each call, or more."""

    def settings(address: tuple[str, int]) -> dict[int, int]:
        with socket.create_connection(address) as client:
            frame = _greeting(client)
        length, numbers = int.from_bytes(frame[:3], "big"), frame[9:]
        return {
            int.from_bytes(numbers[at : at + 2], "big"): int.from_bytes(numbers[at + 2 : at + 6], "big")
            for at in range(0, length, 6)
        }

    assert _asked(settings).get(WINDOW, UNREAD) == UNREAD


def test_no_more_connections_are_open_than_allowed() -> None:
    def served(address: tuple[str, int]) -> list[bool]:
        clients = [socket.create_connection(address) for _ in range(5)]
        found = [bool(_greeting(client)) for client in clients]
        for client in clients:
            client.close()
        for _ in range(500):
            with socket.create_connection(address) as later:
                if _greeting(later):
                    return [*found, True]
            time.sleep(0.01)
        return found

    assert _asked(served) == [True, True, True, False, False, True]


@pytest.mark.workers
@pytest.mark.parametrize(("before", "after"), [(200, 2 * 128 + 64 + 64), (1000, 1000)])
def test_ingress_process_has_descriptors_for_both_ports(before: int, after: int) -> None:
    spec = IngressSpec(SERVED, replace(LIMITS, connections=128), {}, 1.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with listen("127.0.0.1", 0, 0, is_safe=True) as listening:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
        try:
            ingress = Ingress(spec, listening, 8, JOURNAL)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        try:
            _until_it_listens(listening.grpc)
            pid = ingress._process.pid
            assert psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE) == (after, hard)
        finally:
            ingress.close()


def _until_it_listens(address: str | None) -> None:
    assert address is not None
    host, _, port = address.partition(":")
    for _ in range(6000):
        with suppress(ConnectionRefusedError), socket.create_connection((host, int(port))):
            return
        time.sleep(0.01)
    raise AssertionError("it never came")


def test_grpcs_port_is_reserved() -> None:
    """Nobody takes it who does not share it as gRPC does; and it is none that somebody has."""
    with listen("127.0.0.1", 0, 0, is_safe=True) as listening:
        assert listening.grpc is not None
        host, _, port = listening.grpc.partition(":")
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind((host, int(port)))
        with pytest.raises(InputError, match="in use"), listen(host, 0, int(port), is_safe=True):
            pass
        with socket.socket() as shared:
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            shared.bind((host, int(port)))
            shared.listen()
