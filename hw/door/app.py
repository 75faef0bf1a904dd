"""The ingress's answers to HTTP requests: plain ASGI, no framework."""

from __future__ import annotations

import asyncio
import hmac
import sys
import time  # noqa: TID251 - latencies
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hw.door.bridge import ROUTER_GONE, Bridge, FailedError, FullError
from hw.door.live import LivePage
from hw.door.metrics import CONTENT_TYPE, Metrics
from hw.door.protocol import VERSION, Answer, RequestError, Served, encode, error_body, read_request, write_answer
from hw.version import own_version

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_JSON: Final = "application/json"
_TIMEOUT: Final = "deadline"
_CLOSE: Final = ("connection", "close")
_NO_SCRIPTS: Final = (("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'"),)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may do.

    Attributes:
        body_bytes: of a request.
        held_bytes: of all requests that are being read.
        body_s: in which its body must have come.
        timeout_s: in which it is answered, unless the client asks for less.
        connections: that are open at a time.
    """

    body_bytes: int = 1 << 24
    held_bytes: int = 1 << 28
    body_s: float = 30.0
    timeout_s: float = 30.0
    connections: int = 4096


@dataclass(frozen=True, slots=True)
class Response:
    """What is sent."""

    status: int
    body: bytes = b""
    content_type: str = _JSON
    headers: tuple[tuple[str, str], ...] = ()


class _GoneError(Exception):
    """The client left before its request was whole."""


def _error(status: int, problem: str, *headers: tuple[str, str]) -> Response:
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        headers += (("retry-after", "1"),)
    return Response(status, error_body(problem), headers=headers)


async def _answer(response: Response, scope: Message, send: Send) -> None:
    start = [("content-type", response.content_type), ("content-length", str(len(response.body)))]
    lines = [(name.encode(), value.encode()) for name, value in (*start, *response.headers)]
    await send({"type": "http.response.start", "status": response.status, "headers": lines})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else response.body})


async def crowded(scope: Message, receive: Receive, send: Send) -> None:
    """An application for those who come when too many have connections."""
    await _answer(_error(503, "full: too many connections are open", _CLOSE), scope, send)


async def _left(receive: Receive) -> None:
    """Until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


class App:
    """The ASGI application.

    Args:
        tokens: one of which a client must bear, each with how many of its images may be inside; empty: none is asked
            for.
        carried_img_s: the most images a second that the servers carry.
    """

    def __init__(
        self,
        served: Served,
        bridge: Bridge,
        metrics: Metrics,
        page: LivePage,
        limits: Limits,
        tokens: Mapping[bytes, int],
        carried_img_s: float,
    ) -> None:
        self._served = served
        self._bridge = bridge
        self._metrics = metrics
        self._page = page
        self._limits = limits
        self._tokens = tokens
        self._least_s = 0.5 / carried_img_s  # an image that is inside has half of its way before it, on average
        self._held_bytes = 0
        self._inside: Counter[bytes] = Counter()  # images, by token
        model = f"/v2/models/{served.name}"
        self._models = (model, f"{model}/versions/{VERSION}")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request."""
        assert scope["type"] == "http", "nothing else is spoken here"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            response = await self._respond(scope["method"], scope["path"], headers, receive)
        except _GoneError:
            return
        await _answer(response, scope, send)

    async def _respond(self, method: str, path: str, headers: Mapping[str, str], receive: Receive) -> Response:
        if path == "/v2/health/live":
            return Response(200)
        if path == "/v2/health/ready" or path in [f"{model}/ready" for model in self._models]:
            return Response(200 if self._bridge.is_ready else 503)
        token = self._token_in(headers.get("authorization", ""))
        if token is None:
            problem = "no token that is known here; send `Authorization: Bearer TOKEN`"
            return _error(401, problem, ("www-authenticate", "Bearer"))
        if path in [f"{model}/infer" for model in self._models]:
            if method != "POST":
                return _error(405, f"{method}: allowed is POST", ("allow", "POST"))
            response = await self._infer(headers, receive, token)
            self._metrics.requests.labels(str(response.status)).inc()
            return response
        return self._look_up(path)

    def _token_in(self, authorization: str) -> bytes | None:
        """A known one; empty where none is asked for, None where one is missing."""
        given = authorization.removeprefix("Bearer ").encode("latin-1")
        known = [token for token in self._tokens if hmac.compare_digest(given, token)]
        return known[0] if known else None if self._tokens else b""

    def _look_up(self, path: str) -> Response:
        if path == "/metrics":
            return Response(200, self._metrics.text(), CONTENT_TYPE)
        if path == "/":
            return Response(200, self._page.html(), "text/html; charset=utf-8", _NO_SCRIPTS)
        if path == "/v2":
            about = {"name": "slimsched", "version": own_version(), "extensions": ["binary_tensor_data"]}
            return Response(200, encode(about))
        if path in self._models:
            return Response(200, encode(self._served.metadata()))
        return _error(404, f"nothing is at {path!r:.80}; the model is at {self._models[0]}")

    # ----------------------------------------------------------------------------------------------------- inference

    async def _infer(self, headers: Mapping[str, str], receive: Receive, token: bytes) -> Response:
        try:
            body = await self._body(headers, receive)
            request = read_request(body, headers.get("inference-header-content-length"), self._served)
        except RequestError as error:
            is_read = error.status == HTTPStatus.BAD_REQUEST  # else what is left of its body is not
            return _error(error.status, str(error), *(() if is_read else (_CLOSE,)))
        began_s, count = time.perf_counter(), len(request.images)
        self._metrics.arrived.inc(count)
        if not self._bridge.is_ready:
            reason = "draining" if self._bridge.is_draining else "not_ready"
            self._metrics.refused.labels(reason).inc(count)
            return _error(503, f"{reason}: nothing is accepted now", _CLOSE)
        timeout_s = self._limits.timeout_s
        if request.timeout_ns is not None:
            timeout_s = min(timeout_s, request.timeout_ns / 1e9)
        if self._bridge.inside * self._least_s > timeout_s:
            self._metrics.refused.labels(_TIMEOUT).inc(count)
            return _error(429, f"full: what is inside takes more than {timeout_s:g} s")
        if self._inside[token] + count > (most := self._tokens.get(token, sys.maxsize)):
            self._metrics.refused.labels("token").inc(count)
            return _error(429, f"full: {self._inside[token]} images of this token are inside, allowed are {most}")
        self._inside[token] += count
        try:
            answers = await self._answers(request.images, timeout_s, receive)
        except FullError:
            self._metrics.refused.labels("full").inc(count)
            return _error(429, f"full: {self._bridge.inside} images are inside")
        except TimeoutError:
            return self._failed(_TIMEOUT, count, timeout_s)
        except _GoneError:
            self._metrics.failed.labels("client_left").inc(count)
            raise
        except FailedError as error:
            return self._failed(str(error), count, timeout_s)
        finally:
            self._inside[token] -= count
        self._metrics.answered.inc(count)
        took_s = time.perf_counter() - began_s
        self._metrics.seconds.observe(took_s)
        self._page.note(took_s)
        body, length = write_answer(request, answers, self._served)
        timing = ("server-timing", f"router;dur={max(answer.took_ns for answer in answers) / 1e6:.3f}")
        if length is None:
            return Response(200, body, headers=(timing,))
        head = ("inference-header-content-length", str(length))
        return Response(200, body, "application/octet-stream", (head, timing))

    async def _answers(self, images: NDArray[np.float32], timeout_s: float, receive: Receive) -> list[Answer]:
        """Until they are there, it is too late, or the client leaves; then the router need not go on."""
        answers, leaving = self._bridge.submit(images, round(timeout_s * 1e9)), asyncio.ensure_future(_left(receive))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wait((answers, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answers.done():
                raise _GoneError
            return answers.result()
        finally:
            answers.cancel()
            leaving.cancel()

    def _failed(self, reason: str, count: int, timeout_s: float) -> Response:
        self._metrics.failed.labels(reason).inc(count)
        if reason == _TIMEOUT:
            return _error(504, f"no answer within {timeout_s:g} s")
        if reason == ROUTER_GONE:
            return _error(503, "the router has ended", _CLOSE)
        return _error(500, f"given up after several tries: {reason}")

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        """The whole of it, within the limits."""
        most = self._limits.body_bytes
        if int(headers.get("content-length", "0")) > most:  # the parser lets digits through alone
            raise RequestError(f"the body has {headers['content-length']} bytes, allowed are {most}", 413)
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneError
                    part = message.get("body", b"")
                    body += part
                    self._held_bytes += len(part)
                    if self._held_bytes > self._limits.held_bytes:
                        raise RequestError("full: others send large requests at this moment", 429)
                    if len(body) > most:
                        raise RequestError(f"the body has more than the {most} bytes that are allowed", 413)
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            raise RequestError(f"the body took more than {self._limits.body_s:g} s", 408) from None
        finally:
            self._held_bytes -= len(body)
