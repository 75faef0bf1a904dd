"""The ingress: a process that has clients' connections, and neither torch nor the router's loop."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import uvicorn
import uvloop

from hw.door.app import App, Limits
from hw.door.bridge import Bridge, IngressPort
from hw.door.clients import RouterPort, slots_of
from hw.door.metrics import Metrics
from hw.door.protocol import Served
from hw.door.words import ToIngress, ToRouter
from hw.transport.arena import Arena
from hw.transport.port import socket_pair

_KEEP_ALIVE_S = 75
_ENDING_S = 35.0
_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class IngressSpec:
    """What an ingress is given."""

    served: Served
    limits: Limits
    tokens: tuple[bytes, ...]


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: they are the router's business, which tells by its words."""
        yield


def _main(spec: IngressSpec, listening: socket.socket, end: socket.socket, arena: Arena) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    uvloop.run(_serve(spec, listening, end, arena))


async def _serve(spec: IngressSpec, listening: socket.socket, end: socket.socket, arena: Arena) -> None:
    def finish() -> None:
        server.should_exit = True

    bridge = Bridge(IngressPort(ToIngress, end), slots_of(arena, spec.served.shape), finish)
    metrics = Metrics(lambda: bridge.inside, lambda: bridge.status)
    app = App(spec.served, bridge, metrics, spec.limits, spec.tokens)
    server = _Server(
        uvicorn.Config(
            app, http="httptools", ws="none", lifespan="off", loop="none", log_level="warning", access_log=False,
            server_header=False, date_header=False, timeout_keep_alive=_KEEP_ALIVE_S,
            limit_concurrency=spec.limits.connections, backlog=_BACKLOG,
        )  # fmt: skip
    )
    await server.serve(sockets=[listening])


@contextlib.contextmanager
def ingress(
    spec: IngressSpec, listening: socket.socket, slots: int
) -> Iterator[tuple[RouterPort, Arena]]:
    """Within it clients are served; at its end those who have an answer still get it.

    Args:
        listening: where clients connect.
        slots: images that may be inside.
    """
    values = 1
    for length in spec.served.shape:
        values *= length
    arena = Arena(slots * 4 * values)
    end, remote = socket_pair()
    port: RouterPort = RouterPort(ToRouter, end)
    process = multiprocessing.get_context("spawn").Process(
        target=_main, args=(spec, listening, remote, arena), name="slimsched-ingress", daemon=True
    )
    process.start()
    remote.close()
    try:
        yield port, arena
    finally:
        port.close()
        process.join(_ENDING_S)
        process.kill()
        process.join()
        arena.close()
