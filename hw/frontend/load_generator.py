"""A load generator: clients that send when a request is due, however slow the answers come (open loop).

A request's latency counts from the time at which it was due, not from when it could be sent, so the wait at a stalled
server is included (no coordinated omission). Due times are a Poisson process.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import ssl
import time  # noqa: TID251 - it plays clients in real time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

import httptools
import msgspec
import numpy as np

from kit.errors import InputError, WorkError
from kit.files import require_file
from kit.random_streams import stream

_REQUESTS: Final = 16  # different ones
_SLEEP_ERROR_S: Final = 2e-3
_ASKING_S: Final = 60.0  # for the shape of an image
_CERTIFICATE_BYTES: Final = 1 << 20
_OK: Final = 200
_PERCENTILES: Final = (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100))
_GONE: Final = 0  # instead of HTTP's code: the connection ended before the answer
_TIMING: Final = b"router;dur="


@dataclass(frozen=True, slots=True)
class Load:
    """A load.

    Attributes:
        url: of a model: `http://HOST:PORT/v2/models/NAME`, or https.
        images: in each request.
        classes: that requests name, each in proportion to its number; empty: none is named.
        certificate: a file with the server's, if no authority has signed it.
        patience_s: for answers after the last request.
        connections: at most; a request that finds all of them busy waits, and its latency continues to count.
        keeps_bodies: whether answers are kept.
    """

    url: str
    rate_img_s: float
    duration_s: float
    images: int
    token: str
    seed: int
    classes: Mapping[str, float] = field(default_factory=dict)
    certificate: Path | None = None
    patience_s: float = 60.0
    connections: int = 1024
    keeps_bodies: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that has ended; times are seconds since the first one could be due.

    Attributes:
        name: of its class; empty if it names none.
        code: HTTP's; 0 if the connection ended before the answer.
        router_s: the router's part of the latency, if the server reports it (`Server-Timing`).
        body: of the answer, if it is kept.
    """

    name: str
    due_s: float
    sent_s: float
    ended_s: float
    code: int
    router_s: float | None
    body: bytes

    @property
    def latency_s(self) -> float:
        """The latency since it was due."""
        return self.ended_s - self.due_s

    @property
    def added_s(self) -> float | None:
        """The time taken by connections and their process, without the router."""
        return None if self.router_s is None else self.ended_s - self.sent_s - self.router_s


@dataclass(slots=True)
class Outcome:
    """The results of the requests.

    Attributes:
        due: their number.
        ended: in order of their ends; the others had no answer in the end.
    """

    due: int = 0
    ended: list[Ended] = field(default_factory=list)

    @property
    def codes(self) -> Counter[int]:
        """The number of requests with each code."""
        return Counter(request.code for request in self.ended)

    @property
    def answered(self) -> list[Ended]:
        """The requests with the code 200."""
        return [request for request in self.ended if request.code == _OK]


def generate(load: Load) -> Outcome:
    """Send a load, and wait for the answers.

    Raises:
        InputError: the URL is not a model's, or the certificate is not valid.
        WorkError: no server answers there.
    """
    target = _Target(load)
    shape = target.shape()
    return play(load, {name: _requests(load, target.at, shape, name) for name in load.classes or [""]}, target.tls)


def play(load: Load, requests: Mapping[str, Sequence[bytes]], tls: ssl.SSLContext | None = None) -> Outcome:
    """Send these requests by class, whole ones with their heads, again and again at the load's rate."""
    return asyncio.run(_Generator(load, urlsplit(load.url), requests, tls).carry_out())


def _tls(certificate: Path | None) -> ssl.SSLContext:
    """Return a context that trusts a given certificate at any address."""
    if certificate is None:
        return ssl.create_default_context()
    require_file(certificate, _CERTIFICATE_BYTES)
    try:
        context = ssl.create_default_context(cafile=certificate)
    except ssl.SSLError:
        raise InputError(str(certificate), "", "holds no certificate (PEM)") from None
    context.check_hostname = False
    return context


def _address(url: str) -> SplitResult:
    with contextlib.suppress(ValueError):  # brackets without an end, a port that isn't a number
        at = urlsplit(url)
        if at.scheme in ("http", "https") and at.hostname and at.port != 0 and at.path.startswith("/v2/models/"):
            return at
    problem = f"{url!r:.80}: must be http://HOST:PORT/v2/models/NAME, as `slimsched serve` says it"
    raise InputError("URL", "", problem)


def _port(at: SplitResult) -> int:
    return at.port or (http.client.HTTPS_PORT if at.scheme == "https" else http.client.HTTP_PORT)


def _authorization(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}


class _Target:
    """The server that a load is for.

    Raises:
        InputError: the URL is not a model's, or the certificate is not valid.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self.at = _address(load.url)
        self.tls = _tls(load.certificate) if self.at.scheme == "https" else None

    def shape(self) -> tuple[int, ...]:
        """Return an image's shape; raises `WorkError` if no model answers, `InputError` for custom inputs."""
        body = self._about()
        try:
            tensor = msgspec.json.decode(body)["inputs"][0]
            if tensor["datatype"] == "FP32" and -1 not in tensor["shape"][1:]:
                return tuple(tensor["shape"][1:])
            problem = f"takes {tensor['name']!r:.40} ({tensor['datatype']!r:.40}) for custom code, and not numbers"
            raise InputError(self._load.url, "", f"{problem}; a load can be sent to a server without --transform")
        except (msgspec.DecodeError, LookupError, TypeError) as error:
            raise self._silence(error) from None

    def _about(self) -> bytes:
        """Request the server's description of the model."""
        host, port = cast(str, self.at.hostname), _port(self.at)
        connection = (
            http.client.HTTPConnection(host, port, timeout=_ASKING_S)
            if self.tls is None
            else http.client.HTTPSConnection(host, port, timeout=_ASKING_S, context=self.tls)
        )
        try:
            connection.request("GET", self.at.path, headers=_authorization(self._load.token))
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._silence(error) from None
        finally:
            connection.close()
        if answer.status != _OK:
            raise WorkError(f"{self._load.url}: {answer.status} {body.decode(errors='replace'):.200}")
        return body

    def _silence(self, error: Exception) -> WorkError:
        return WorkError(f"{self._load.url}: no model answers there ({type(error).__name__}: {error})")


def _requests(load: Load, at: SplitResult, shape: tuple[int, ...], name: str) -> list[bytes]:
    """Build some requests of a class with images of noise, as bytes; they ask for labels and widths."""
    rng = stream(load.seed, "load:images")
    requests = []
    for _ in range(_REQUESTS):
        image = rng.standard_normal((load.images, prod(shape)), np.float32).tobytes()
        tensor = {"name": "image", "datatype": "FP32", "shape": [load.images, *shape]}
        json_header = msgspec.json.encode(
            {
                "inputs": [{**tensor, "parameters": {"binary_data_size": len(image)}}],
                "outputs": [
                    {"name": output, "parameters": {"binary_data": True}} for output in ("prediction", "widths")
                ],
                **({"parameters": {"class": name}} if name else {}),
            }
        )
        headers = {
            "host": at.netloc,
            **_authorization(load.token),
            "inference-header-content-length": str(len(json_header)),
            "content-length": str(len(json_header) + len(image)),
        }
        lines = "".join(f"{header}: {value}\r\n" for header, value in headers.items())
        requests.append(f"POST {at.path}/infer HTTP/1.1\r\n{lines}\r\n".encode() + json_header + image)
    return requests


class _Due(NamedTuple):
    """A request: the time at which it is due, and its class; empty if it names none."""

    at_s: float
    name: str


class _Connection(asyncio.Protocol):
    """One of the clients; `due` is the request that it waits for, None while it is idle."""

    transport: asyncio.Transport

    def __init__(self, generator: _Generator) -> None:
        self._generator = generator
        self._parser = httptools.HttpResponseParser(self)
        self.due: _Due | None = None
        self.sent_s = 0.0
        self.router_s: float | None = None
        self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, due: _Due, request: bytes) -> None:
        """Send its next request."""
        self.due, self.sent_s = due, time.perf_counter()
        self.router_s, self.body = None, b""
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # no HTTP: the pending request is lost
            self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"server-timing" and value.startswith(_TIMING):
            with contextlib.suppress(ValueError):
                self.router_s = float(value.removeprefix(_TIMING)) / 1e3

    def on_body(self, body: bytes) -> None:
        if self._generator.keeps_bodies:
            self.body += body

    def on_message_complete(self) -> None:
        if self.due is None:
            self.transport.abort()
        else:
            self._generator.end(self, self.due, self._parser.get_status_code())

    def connection_lost(self, exc: Exception | None) -> None:
        self._generator.lose(self)


async def _until(due_s: float) -> None:
    """Wait until a time: event loops sleep for whole milliseconds, so the rest is polled."""
    await asyncio.sleep(max(0.0, due_s - time.perf_counter() - _SLEEP_ERROR_S))
    while time.perf_counter() < due_s:
        await asyncio.sleep(0)


class _Generator:
    def __init__(
        self, load: Load, at: SplitResult, requests: Mapping[str, Sequence[bytes]], tls: ssl.SSLContext | None
    ) -> None:
        self.keeps_bodies = load.keeps_bodies
        self._load = load
        self._at = at
        self._tls = tls
        self._requests = requests
        self._outcome = Outcome()
        self._idle: list[_Connection] = []
        self._connections: set[_Connection] = set()
        self._open = 0
        self._opening: set[asyncio.Task[Any]] = set()
        self._waiting: deque[_Due] = deque()  # requests that found no connection
        self._in_flight = 0
        self._all_ended = asyncio.Event()
        self._began_s = 0.0

    async def carry_out(self) -> Outcome:
        load = self._load
        rng = stream(load.seed, "load:arrivals")
        between_s = rng.exponential(load.images / load.rate_img_s, 1 + int(load.rate_img_s * load.duration_s * 2))
        names = self._names(len(between_s))
        began_s = self._began_s = time.perf_counter()
        for due in map(_Due, (began_s + between_s.cumsum()).tolist(), names):
            if due.at_s > began_s + load.duration_s:
                break
            await _until(due.at_s)
            self._begin(due)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(load.patience_s):
                while self._in_flight:
                    self._all_ended.clear()
                    await self._all_ended.wait()
        for connection in self._connections:
            connection.transport.abort()
        return self._outcome

    def _names(self, count: int) -> list[str]:
        """Draw the class of each of this number of requests."""
        names, shares = [*self._requests], np.array([*self._load.classes.values()] or [1.0])
        drawn = stream(self._load.seed, "load:classes").choice(len(names), count, p=shares / shares.sum())
        return [names[index] for index in drawn.tolist()]

    def _begin(self, due: _Due) -> None:
        self._in_flight += 1
        self._outcome.due += 1
        if self._idle:
            self._send(self._idle.pop(), due)
            return
        self._waiting.append(due)
        if self._open < self._load.connections:
            self._open += 1
            task = asyncio.ensure_future(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            host, port = cast(str, self._at.hostname), _port(self._at)
            _, connection = await loop.create_connection(lambda: _Connection(self), host, port, ssl=self._tls)
        except OSError:
            self._open -= 1
            if self._waiting:
                self._count(_GONE, self._waiting.popleft(), time.perf_counter())
            return
        self._connections.add(connection)
        self._go_on(connection)

    def _go_on(self, connection: _Connection) -> None:
        if self._waiting:
            self._send(connection, self._waiting.popleft())
        else:
            self._idle.append(connection)

    def _send(self, connection: _Connection, due: _Due) -> None:
        requests = self._requests[due.name]
        connection.send(due, requests[self._outcome.due % len(requests)])

    def _count(self, code: int, due: _Due, sent_s: float, router_s: float | None = None, body: bytes = b"") -> None:
        ended_s, began_s = time.perf_counter(), self._began_s
        times_s = due.at_s - began_s, sent_s - began_s, ended_s - began_s
        self._outcome.ended.append(Ended(due.name, *times_s, code, router_s, body))
        self._in_flight -= 1
        if not self._in_flight:
            self._all_ended.set()

    def end(self, connection: _Connection, due: _Due, code: int) -> None:
        """Note a request's answer."""
        self._count(code, due, connection.sent_s, connection.router_s, connection.body)
        connection.due = None
        if not connection.transport.is_closing():
            self._go_on(connection)

    def lose(self, connection: _Connection) -> None:
        """Note the end of a connection, perhaps before its answer."""
        self._open -= 1
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if connection.due is not None:
            self._count(_GONE, connection.due, connection.sent_s)


def document(load: Load, outcome: Outcome) -> dict[str, Any]:
    """Return the results as `--json` writes them. Rates are of images, over the time of the arrivals."""
    codes, answered = outcome.codes, outcome.answered
    lags_s = [each.sent_s - each.due_s for each in outcome.ended]
    router_s = [each.router_s for each in answered if each.router_s is not None]
    added_s = [each.added_s for each in answered if each.added_s is not None]
    results: dict[str, Any] = {
        "schema": "slimsched.load/1",
        "url": load.url,
        "images": load.images,
        "duration_s": load.duration_s,
        "offered_img_s": outcome.due * load.images / load.duration_s,
        "goodput_img_s": codes[_OK] * load.images / load.duration_s,
        "requests": outcome.due,
        "answered": codes[_OK],
        "refused": codes[HTTPStatus.TOO_MANY_REQUESTS],
        "late": codes[HTTPStatus.GATEWAY_TIMEOUT],
        "unanswered": outcome.due - len(outcome.ended) + codes[_GONE],
        "codes": {str(code): count for code, count in sorted(codes.items()) if code != _GONE},
        "latency_s": spread([each.latency_s for each in answered]),
        "router_s": spread(router_s),
        "added_s": spread(added_s),
        "lag_p99_s": float(np.percentile(lags_s or [0.0], 99)),
    }
    if load.classes:
        of_class = {name: [each for each in outcome.ended if each.name == name] for name in load.classes}
        results["classes"] = {
            name: {
                "requests": len(ended),
                "answered": sum(each.code == _OK for each in ended),
                "latency_s": spread([each.latency_s for each in ended if each.code == _OK]),
            }
            for name, ended in of_class.items()
        }
    return results


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean, percentiles and maximum; each None if there are none."""
    if not values:
        return dict.fromkeys(("mean", *(name for name, _ in _PERCENTILES)))
    percentiles = {name: float(np.percentile(values, at)) for name, at in _PERCENTILES}
    return {"mean": float(np.mean(values)), **percentiles}
