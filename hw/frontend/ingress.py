"""The ingress: a process that has clients' connections, and neither torch nor the router's loop."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import time  # noqa: TID251 - how often it died
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hw.frontend.admission import Admission, Limits
from hw.frontend.connections import Acceptor, Crowd, Journal, Listening, Sparing
from hw.frontend.http_app import App, crowded, starting
from hw.frontend.inference_protocol import Canary, Served, error_body
from hw.frontend.router_link import (
    Bridge,
    IngressPort,
    RouterPort,
    Serving,
    Status,
    ToIngress,
    ToRouter,
    VersionState,
    slots_of,
)
from hw.frontend.traffic_metrics import LivePage, Metrics
from hw.frontend.transforms import Transforms
from hw.host_resources import allow_descriptors
from hw.transport.shared_memory import Arena
from hw.transport.worker_port import socket_pair
from kit.errors import WorkError

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_KEEP_ALIVE_S: Final = 75
_HEAD_S: Final = 30.0
_HEAD_BYTES: Final = 1 << 16
_ENDING_S: Final = 10.0  # for clients to take their answers
_LEAVING_S: Final = 1.0  # for waiting clients to take their error
_RESERVE: Final = 64  # connections beyond those allowed
_DESCRIPTORS: Final = 64  # for other uses than connections
_ALWAYS: Final = (b"/v2/health/live", b"/v2/health/ready", b"/metrics")  # answered beyond `limits.connections`, too
_HANGING_S: Final = 5.0
_STARTING_S: Final = 60.0
_MOST_UNANSWERED: Final = 10  # reports: fewer may be in the port because the router itself was paused
_DEATHS: Final = 5
_DEATHS_S: Final = 60.0  # within which that number of exits is too many


@dataclass(frozen=True, slots=True)
class IngressSpec:
    """The settings of an ingress.

    Attributes:
        carried_img_s: the servers' capacity in images a second, at any widths.
        certificate: a file with its key, for TLS.
        logs_json: whether requests that fail are logged on standard error.
    """

    served: Served
    limits: Limits
    tokens: Mapping[bytes, int]
    sustained_img_s: float
    certificate: Path | None = None
    logs_json: bool = False


class _Connection(HttpToolsProtocol):
    """A client's connection, whose request's header must come in time and be short.

    Errors have the protocol's form, not uvicorn's.

    Attributes:
        crowd: the connections that it is one of.
        leave: called when it is lost.
    """

    crowd: Crowd
    leave: Callable[[], None]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a header."""
        super().connection_made(transport)
        self.limit_concurrency = None  # uvicorn's answer has a different form
        self._begin_head()
        self.crowd.falls_silent(self, self.loop.time(), self._end)

    def _end(self) -> None:
        """Close the connection: another one takes its place."""
        self.leave()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all waiting for this connection."""
        self._timer.cancel()
        self.crowd.speaks(self)
        self.leave()
        super().connection_lost(exc)

    def _begin_head(self) -> None:
        self._head_bytes, self._is_head = 0, True
        self._timer = self.loop.call_later(_HEAD_S, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._is_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_head and self._head_bytes > _HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._timer.cancel()
        self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._timer.cancel()
        self._is_head = False
        self.crowd.speaks(self)
        is_asked = self.url.partition(b"?")[0] in _ALWAYS
        if self.crowd.count > cast(int, self.config.limit_concurrency) and not is_asked:
            self.app = crowded
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Become ready for another request."""
        has_another = bool(self.pipeline)
        super().on_response_complete()
        if not has_another and not self.transport.is_closing():
            self.crowd.falls_silent(self, self.loop.time(), self._end)

    def send_400_response(self, msg: str) -> None:
        """Answer data that are not HTTP."""
        body = error_body(msg)
        header = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(header.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


class _Server(uvicorn.Server):
    """Connections are counted as they are accepted; the limit has a reserve, for health is always answered."""

    def __init__(self, config: uvicorn.Config, limits: Limits) -> None:
        super().__init__(config)
        self._crowd = Crowd(limits.connections, limits.connections_each, _RESERVE)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets, "where it listens"
        loop = asyncio.get_running_loop()

        def connection(leave: Callable[[], None]) -> _Connection:
            accepted = _Connection(self.config, self.server_state, self.lifespan.state, loop)
            accepted.crowd, accepted.leave = self._crowd, leave
            return accepted

        acceptors: Any = [Acceptor(listening, self._crowd, connection, self.config.ssl) for listening in sockets]
        self.servers, self.started = acceptors, True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals: the router decides when to stop."""
        yield


def _server(app: Callable[..., Any], limits: Limits, certificate: Path | None) -> _Server:
    config = uvicorn.Config(
        app, http=_Connection, ws="none", lifespan="off", loop="none", log_level="error", access_log=False,
        server_header=False, date_header=False, timeout_keep_alive=_KEEP_ALIVE_S,
        limit_concurrency=limits.connections, backlog=2048, ssl_certfile=certificate,
    )  # fmt: skip
    return _Server(config, limits)


def _start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a process that handles no signals: the router handles them."""
    process = multiprocessing.get_context("spawn").Process(
        target=target, args=arguments, name="slimsched-ingress", daemon=True
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    process.start()  # it inherits what is blocked
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


class WaitingRoom:
    """Answers HTTP clients, until it is closed, that the server is not ready yet; at gRPC's port nothing listens.

    Args:
        listening: the ports; the ingress may listen there, too.
        certificate: that clients get, if any.
    """

    def __init__(self, listening: Listening, certificate: Path | None) -> None:
        self.listening = listening
        self._end, remote = socket_pair()
        self._process = _start(_wait, listening.http, remote, certificate)
        remote.close()

    def close(self) -> None:
        """Close it. May be called twice."""
        self._end.close()
        self._process.join(_LEAVING_S)
        self._process.kill()


def _wait(listening: socket.socket, end: socket.socket, certificate: Path | None) -> None:
    async def serve() -> None:
        asyncio.get_running_loop().add_reader(end, setattr, server, "should_exit", True)  # it was closed, or died
        await server.serve(sockets=[listening])

    server = _server(starting, Limits(), certificate)
    uvloop.run(serve())


def _main(spec: IngressSpec, listening: Listening, end: socket.socket, arena: Arena) -> None:
    ports = 1 if listening.grpc is None else 2
    allow_descriptors(ports * spec.limits.connections + _RESERVE + _DESCRIPTORS)
    uvloop.run(_serve(spec, listening, end, arena))


async def _serve(spec: IngressSpec, listening: Listening, end: socket.socket, arena: Arena) -> None:
    def finish() -> None:
        server.should_exit = True

    bridge = Bridge(IngressPort(ToIngress, end), slots_of(arena, spec.served.shape), spec.served, finish)
    metrics = Metrics(lambda: bridge.served, lambda: bridge.inside, lambda: bridge.status, lambda: bridge.heard_s)
    page = LivePage(spec.served, bridge, metrics)
    journal = Sparing(Journal(partial(print, file=sys.stderr, flush=True), as_json=spec.logs_json))
    transforms = Transforms(spec.served, spec.limits.held_bytes)
    admission = Admission(bridge, metrics, page, spec.limits, spec.tokens, spec.sustained_img_s, journal, transforms)
    server = _server(App(admission, metrics, page, spec.limits), spec.limits, spec.certificate)
    watching = asyncio.ensure_future(page.watch())
    with contextlib.closing(transforms):
        async with _grpc(spec, listening.grpc, admission, metrics):
            await server.serve(sockets=[listening.http])
    watching.cancel()


@contextlib.asynccontextmanager
async def _grpc(spec: IngressSpec, address: str | None, admission: Admission, metrics: Metrics) -> AsyncIterator[None]:
    """Serve gRPC within the context, if it is enabled."""
    if address is None:
        yield
        return
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # otherwise it logs every client without TLS
    from hw.frontend.grpc_service import Calls, start_grpc  # a separate extra

    calls = Calls(admission, metrics, spec.limits)
    server = await start_grpc(calls, address, spec.certificate, spec.limits)
    yield
    await server.stop(_ENDING_S)


class Ingress:
    """The process, and the port to it; if it dies another one takes its place, on the same socket.

    Attributes:
        port: to the present process.
        arena: the slots, which every process of it writes.
        versions: what it has last reported of them.
    """

    port: RouterPort
    versions: tuple[VersionState, ...] = ()

    def __init__(self, spec: IngressSpec, listening: Listening, slots: int, journal: Journal) -> None:
        self.arena = Arena(slots * 4 * prod(spec.served.shape))
        self._spec = spec
        self._listening = listening
        self._journal = journal
        self._died_s: deque[float] = deque(maxlen=_DEATHS)
        self._start()

    def _start(self) -> None:
        end, remote = socket_pair()
        self.port = RouterPort(ToRouter, end)
        self._process = _start(_main, self._spec, self._listening, remote, self.arena)
        remote.close()
        self._unanswered, self._silent_after_s = 0, time.monotonic() + _STARTING_S

    def report(self, status: Status) -> None:
        """Report the router's state to it; kill it if it has not answered reports for `_HANGING_S`."""
        if self._unanswered >= _MOST_UNANSWERED and time.monotonic() > self._silent_after_s:
            self._journal.note(
                "ingress_hangs", f"serve: the ingress has not answered for {_HANGING_S:g} s; it is killed"
            )
            self._process.kill()
        self.port.post(status)
        self._unanswered += 1

    def note_alive(self, versions: tuple[VersionState, ...]) -> None:
        """Note that it has answered a report."""
        self.versions = versions
        self._unanswered, self._silent_after_s = 0, time.monotonic() + _HANGING_S

    def start_again(self) -> None:
        """Replace a process that died with all its connections; raises `WorkError` if that repeats too often."""
        self._end(0.0)
        self._died_s.append(time.monotonic())
        if len(self._died_s) == _DEATHS and self._died_s[-1] - self._died_s[0] < _DEATHS_S:
            raise WorkError(f"the ingress has died {_DEATHS} times within {_DEATHS_S:g} s; start the command again")
        text = "serve: the ingress is gone, and all clients' connections with it; another one starts"
        self._journal.note("ingress_restarted", text)
        self._start()

    def serve_model(self, version: str, accuracies: tuple[float, ...], canary: Canary | None = None) -> None:
        """Announce that later answers are of other versions; `accuracies`: see `RouterConfig`."""
        self._spec = replace(self._spec, served=self._spec.served.by_model(version, accuracies, canary))
        self.port.post(Serving(version, accuracies, canary))

    def _end(self, patience_s: float) -> None:
        self.port.close()
        self._process.join(patience_s)
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        """End the process; clients still get the answers that are ready."""
        self._end(_ENDING_S)
        self.arena.close()


@contextlib.contextmanager
def ingress(spec: IngressSpec, listening: Listening, slots: int, journal: Journal) -> Iterator[Ingress]:
    """Serve clients within the context.

    Args:
        listening: the ports.
        slots: images that may be inside.
        journal: logs a restart.
    """
    process = Ingress(spec, listening, slots, journal)
    try:
        yield process
    finally:
        process.close()
