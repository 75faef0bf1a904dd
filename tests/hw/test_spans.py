"""A collector hears of each request, as a part of its client's trace."""

from __future__ import annotations

import asyncio
import socket
import threading
import time  # noqa: TID251 - a silent collector
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from hw.door.spans import is_wanted, tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.path.encode() + self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield bodies
        server.shutdown()


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 429, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def ask(path: str) -> None:
    async def send(_: Any) -> None: ...

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode()), (b"host", b"here")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "server": ("here", 80),
             "query_string": b"", "scheme": "http", "http_version": "1.1"}  # fmt: skip
    with tracing(app) as traced:
        asyncio.run(traced(scope, receive, send))  # type: ignore[arg-type]


def test_a_request_is_a_span_of_its_clients_trace(collected: list[bytes]) -> None:
    ask("/v2/models/m/infer")
    assert [body.startswith(b"/v1/traces") for body in collected] == [True]
    assert bytes.fromhex(TRACE) in collected[0]
    assert b"slimsched" in collected[0]
    assert b"/v2/models/m/infer" in collected[0]


def test_a_request_is_one_span(collected: list[bytes]) -> None:
    """Not one more for each message of its body and its answer."""
    ask("/v2/models/m/infer")
    assert collected[0].count(bytes.fromhex(TRACE)) == 1


def test_a_collector_that_is_silent_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began_s = time.monotonic()
        ask("/v2/models/m/infer")
        assert time.monotonic() - began_s < 5  # its exporter waits for 10


def test_what_is_asked_often_has_none(collected: list[bytes]) -> None:
    ask("/v2/health/ready")
    ask("/metrics")
    assert collected == []


def test_without_a_collector_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert not is_wanted()
    with tracing(app) as same:
        assert same is app
