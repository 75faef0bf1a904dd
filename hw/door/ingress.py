"""The ingress: a process that has clients' connections, and neither torch nor the router's loop."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import resource
import signal
import socket
import time  # noqa: TID251 - how often it died
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final, cast

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hw.door.app import App, Limits, crowded
from hw.door.bridge import Bridge
from hw.door.live import LivePage
from hw.door.metrics import Metrics
from hw.door.protocol import Served, error_body
from hw.door.slots import slots_of
from hw.door.words import IngressPort, RouterPort, ToIngress, ToRouter
from hw.transport.arena import Arena
from hw.transport.port import socket_pair
from kit.errors import WorkError

_KEEP_ALIVE_S: Final = 75
_HEAD_S: Final = 30.0
_HEAD_BYTES: Final = 1 << 16
_ENDING_S: Final = 10.0  # in which answers are to be taken
_BACKLOG: Final = 2048
_DESCRIPTORS: Final = 64  # that are no connections
_DEATHS: Final = 5
_DEATHS_S: Final = 60.0  # in which so many are too many


@dataclass(frozen=True, slots=True)
class IngressSpec:
    """What an ingress is given.

    Attributes:
        carried_img_s: the most images a second that the servers carry, at any widths.
        certificate: a file with its key, by which it speaks TLS.
    """

    served: Served
    limits: Limits
    tokens: Mapping[bytes, int]
    carried_img_s: float
    certificate: Path | None = None


class _Connection(HttpToolsProtocol):
    """A client's, whose request's head must come in time and be short.

    What is wrong it hears as the protocol has it, and not as uvicorn does.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """It begins with a head."""
        super().connection_made(transport)
        self.limit_concurrency = None  # it would say so in its own words
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _begin_head(self) -> None:
        self._head_bytes, self._is_head = 0, True
        self._timer = self.loop.call_later(_HEAD_S, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        """More of it."""
        if self._is_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_head and self._head_bytes > _HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """A head."""
        self._timer.cancel()
        self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._timer.cancel()
        self._is_head = False
        if len(self.connections) > cast(int, self.config.limit_concurrency):
            self.app = crowded
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        body = error_body(msg)
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: the router tells what to do."""
        yield


def _main(spec: IngressSpec, listening: socket.socket, end: socket.socket, arena: Arena) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = spec.limits.connections + _DESCRIPTORS
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
    uvloop.run(_serve(spec, listening, end, arena))


async def _serve(spec: IngressSpec, listening: socket.socket, end: socket.socket, arena: Arena) -> None:
    def finish() -> None:
        server.should_exit = True

    bridge = Bridge(IngressPort(ToIngress, end), slots_of(arena, spec.served.shape), finish)
    metrics = Metrics(lambda: bridge.inside, lambda: bridge.status)
    page = LivePage(spec.served, bridge, metrics)
    app = App(spec.served, bridge, metrics, page, spec.limits, spec.tokens, spec.carried_img_s)
    config = uvicorn.Config(
        app, http=_Connection, ws="none", lifespan="off", loop="none", log_level="error", access_log=False,
        server_header=False, date_header=False, timeout_keep_alive=_KEEP_ALIVE_S,
        limit_concurrency=spec.limits.connections, backlog=_BACKLOG, ssl_certfile=spec.certificate,
    )  # fmt: skip
    server = _Server(config)
    watching = asyncio.ensure_future(page.watch())
    await server.serve(sockets=[listening])
    watching.cancel()


class Ingress:
    """The process, and the port to it; where it dies another one takes its place, on the same socket.

    Attributes:
        port: to the process that is there.
        arena: the slots, which every process of it writes.
    """

    port: RouterPort

    def __init__(self, spec: IngressSpec, listening: socket.socket, slots: int, say: Callable[[str], None]) -> None:
        self.arena = Arena(slots * 4 * prod(spec.served.shape))
        self._spec = spec
        self._listening = listening
        self._say = say
        self._died_s: deque[float] = deque(maxlen=_DEATHS)
        self._start()

    def _start(self) -> None:
        end, remote = socket_pair()
        self.port = RouterPort(ToRouter, end)
        self._process = multiprocessing.get_context("spawn").Process(
            target=_main, args=(self._spec, self._listening, remote, self.arena), name="slimsched-ingress", daemon=True
        )
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        self._process.start()  # it inherits what is blocked: signals are the router's business
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        remote.close()

    def start_again(self) -> None:
        """It has died, and all clients' connections with it; raises `WorkError` where it does so again and again."""
        self._end(0.0)
        self._died_s.append(time.monotonic())
        if len(self._died_s) == _DEATHS and self._died_s[-1] - self._died_s[0] < _DEATHS_S:
            raise WorkError(f"the ingress has died {_DEATHS} times within {_DEATHS_S:g} s; start the command anew")
        self._say("serve: the ingress is gone, and all clients' connections with it; another one starts")
        self._start()

    def _end(self, patience_s: float) -> None:
        self.port.close()
        self._process.join(patience_s)
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        """Those who have an answer still get it."""
        self._end(_ENDING_S)
        self.arena.close()


@contextlib.contextmanager
def ingress(
    spec: IngressSpec, listening: socket.socket, slots: int, say: Callable[[str], None] = lambda _: None
) -> Iterator[Ingress]:
    """Within it clients are served.

    Args:
        listening: where clients connect.
        slots: images that may be inside.
    """
    door = Ingress(spec, listening, slots, say)
    try:
        yield door
    finally:
        door.close()
