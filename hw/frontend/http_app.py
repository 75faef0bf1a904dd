"""The ingress's answers to HTTP requests, plain ASGI without a framework, and the OpenAPI document that describes
them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Hashable, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final

from hw.frontend.admission import Admission, Limits, ReadingRoom, trace_of
from hw.frontend.inference_protocol import (
    EXTENSIONS,
    RequestError,
    Served,
    configuration,
    encode,
    encoded_request,
    error_body,
    read_request,
    repository_index,
    statistics,
    write_answer,
)
from hw.frontend.traffic_metrics import CONTENT_TYPE, LivePage, Metrics
from kit.plugins import own_version


def openapi(served: Served, *, asks_tokens: bool) -> dict[str, Any]:
    """Return the document, for this model and its inputs; without a security scheme if no token is required."""
    document: dict[str, Any] = json.loads(files("hw.frontend").joinpath("openapi.json").read_bytes())
    parameters, schemas = document["components"]["parameters"], document["components"]["schemas"]
    parameters["Model"]["schema"]["enum"] = [served.name]
    parameters["Version"]["schema"]["example"] = served.version
    tensor, request = schemas["Images"]["properties"], schemas["InferRequest"]["properties"]
    tensor["shape"]["example"] = [1, *served.shape]
    if served.own_inputs:
        tensor["name"] = {"enum": list(served.own_inputs)}
        tensor["datatype"]["enum"] = sorted({datatype for datatype, _ in served.own_inputs.values()})
        request["inputs"]["minItems"] = request["inputs"]["maxItems"] = len(served.own_inputs)
        del tensor["shape"]["example"]
    request["outputs"]["items"]["properties"]["name"]["enum"] = list(served.outputs)
    if not asks_tokens:
        document["security"] = []
    return document


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_LIVE: Final = "/v2/health/live"
_CLOSE: Final = ("connection", "close")
_ENCODED: Final = ("image/jpeg", "image/png")
_NO_SCRIPTS: Final = (("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'"),)


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class _GoneError(Exception):
    """The client left before its request was complete, or answered."""


def _error(status: int, problem: str, *headers: tuple[str, str]) -> Response:
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        headers += (("retry-after", "1"),)
    return Response(status, error_body(problem), headers=headers)


async def _send(response: Response, scope: Message, send: Send, trace: Mapping[str, str]) -> None:
    start = [("content-type", response.content_type), ("content-length", str(len(response.body))), *trace.items()]
    lines = [(name.encode(), value.encode()) for name, value in (*start, *response.headers)]
    await send({"type": "http.response.start", "status": response.status, "headers": lines})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else response.body})


async def crowded(scope: Message, receive: Receive, send: Send) -> None:
    """Answer clients that come when too many have connections; an ASGI application."""
    await _send(_error(503, "full: too many connections are open", _CLOSE), scope, send, {})


async def starting(scope: Message, receive: Receive, send: Send) -> None:
    """Answer before the server is ready; an ASGI application."""
    is_live = scope["path"] == _LIVE
    await _send(Response(200) if is_live else _error(503, "not_ready: it starts", _CLOSE), scope, send, {})


def _looked_up(method: str, response: Response) -> Response:
    """Return a response to GET and HEAD, and 405 to other methods."""
    if method in ("GET", "HEAD") or response.status == HTTPStatus.NOT_FOUND:
        return response
    return _error(405, f"{method:.20}: must be GET or HEAD", ("allow", "GET, HEAD"), _CLOSE)


def is_of_this_host(headers: Mapping[str, str]) -> bool:
    """Return whether a request names loopback as its host, and as its origin if a browser sends one.

    A third party's web page can make its reader's browser send requests here, also under a host name of that party's.
    """
    hosts = [headers.get("host", ""), headers.get("origin", "").rpartition("//")[2]]
    return all(re.fullmatch(r"(localhost|127\.[\d.]+|\[::1\])?(:\d+)?", host) for host in hosts)


async def _left(receive: Receive) -> None:
    """Wait until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


class App:
    """The ASGI application."""

    def __init__(self, admission: Admission, metrics: Metrics, page: LivePage, limits: Limits) -> None:
        self._admission = admission
        self._metrics = metrics
        self._page = page
        self._limits = limits
        self._room = ReadingRoom(limits.held_bytes)
        self._schema = encode(openapi(admission.served, asks_tokens=admission.asks_tokens))

    @property
    def _served(self) -> Served:
        return self._admission.served

    @property
    def _models(self) -> dict[str, str]:
        """The version that is asked for at each path; empty: any."""
        model = f"/v2/models/{self._served.name}"
        return {model: "", **{f"{model}/versions/{version}": version for version in self._served.versions}}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        assert scope["type"] == "http", "nothing else is spoken here"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            response = await self._respond(scope, headers, receive)
        except _GoneError:
            return
        except Exception as error:  # a fault of ours ends one request
            self._metrics.requests.labels("500").inc()
            response = _error(500, str(self._admission.fault(error)), _CLOSE)
        await _send(response, scope, send, trace_of(headers))

    async def _respond(self, scope: Message, headers: Mapping[str, str], receive: Receive) -> Response:
        method, path = scope["method"], scope["path"]
        if not self._admission.asks_tokens and not is_of_this_host(headers):
            return _error(403, "host, origin: expected 127.0.0.1 or localhost, for no tokens are asked for", _CLOSE)
        if path == _LIVE:
            return _looked_up(method, Response(200))
        if path == "/v2/health/ready" or path in [f"{model}/ready" for model in self._models]:
            return _looked_up(method, Response(200 if self._admission.is_ready else 503))
        try:
            token = self._admission.token_in(headers.get("authorization", ""))
        except RequestError as error:
            return _error(error.status, str(error), ("www-authenticate", "Bearer"))
        version = {f"{model}/infer": version for model, version in self._models.items()}.get(path)
        if version is not None:
            if method != "POST":
                return _error(405, f"{method}: expected POST", ("allow", "POST"))
            response = await self._infer(headers, receive, token, version, scope.get("client"))
            self._metrics.requests.labels(str(response.status)).inc()
            return response
        if path == "/v2/repository/index":
            if method != "POST":
                return _error(405, f"{method:.20}: must be POST", ("allow", "POST"), _CLOSE)
            return Response(200, encode(repository_index(self._served, is_ready=self._admission.is_ready)))
        return _looked_up(method, self._look_up(path))

    def _look_up(self, path: str) -> Response:
        if path == "/metrics":
            return Response(200, self._metrics.text(), CONTENT_TYPE)
        if path == "/":
            return Response(200, self._page.html(), "text/html; charset=utf-8", _NO_SCRIPTS)
        if path == "/v2":
            return Response(200, encode({"name": "slimsched", "version": own_version(), "extensions": EXTENSIONS}))
        if path == "/openapi.json":
            return Response(200, self._schema)
        if path in self._models:
            return Response(200, encode(self._served.metadata()))
        if path in [f"{model}/config" for model in self._models]:
            return Response(200, encode(configuration(self._served)))
        if path in ["/v2/models/stats", *(f"{model}/stats" for model in self._models)]:
            return Response(200, encode(statistics(self._served, self._metrics.totals())))
        return _error(404, f"nothing is at {path!r:.80}; the model is at {next(iter(self._models))}")

    # ----------------------------------------------------------------------------------------------------- inference

    async def _infer(
        self, headers: Mapping[str, str], receive: Receive, token: bytes, version: str, peer: Hashable
    ) -> Response:
        try:
            if (encoding := headers.get("content-encoding", "identity").lower()) != "identity":
                raise RequestError(f"content-encoding: found {encoding:.40}, expected none", 415)
            body = await self._body(headers, receive, token or peer)
            if headers.get("content-type", "").partition(";")[0].strip().lower() in _ENCODED:
                request = encoded_request(body, self._served)
            else:
                request = read_request(body, headers.get("inference-header-content-length"), self._served)
        except RequestError as error:
            is_read = error.status == HTTPStatus.BAD_REQUEST  # otherwise the rest of its body is not
            return _error(error.status, str(error), *(() if is_read else (_CLOSE,)))
        answers = asyncio.ensure_future(self._admission.answers(request, token, trace_of(headers), version))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait((answers, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answers.done():
                raise _GoneError
            result = answers.result()
            body, length = write_answer(request, result, self._served)
        except RequestError as error:
            is_end = error.status == HTTPStatus.SERVICE_UNAVAILABLE
            return _error(error.status, str(error), *((_CLOSE,) if is_end else ()))
        finally:
            answers.cancel()
            leaving.cancel()
        timing = ("server-timing", f"router;dur={result.took_ns / 1e6:.3f}")
        if length is None:
            return Response(200, body, headers=(timing,))
        head = ("inference-header-content-length", str(length))
        return Response(200, body, "application/octet-stream", (head, timing))

    async def _body(self, headers: Mapping[str, str], receive: Receive, client: Hashable) -> bytes:
        limit = self._limits.body_bytes
        if int(headers.get("content-length", "0")) > limit:  # the parser lets digits through alone
            raise RequestError(f"the body has {headers['content-length']} bytes, expected at most {limit}", 413)
        body = bytearray()
        async with self._room.place(client, int(headers.get("content-length", limit)), self._limits.body_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _GoneError
                body += message.get("body", b"")
                if len(body) > limit:
                    raise RequestError(f"the body has more than the {limit} bytes that are allowed", 413)
                if not message.get("more_body"):
                    return bytes(body)
