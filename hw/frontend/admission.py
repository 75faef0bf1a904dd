"""Which requests are admitted, how long they wait and are read, and which answers they get."""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import sys
import time  # noqa: TID251 - latencies
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hw.frontend.connections import Sparing
from hw.frontend.inference_protocol import Answer, Outcome, Request, RequestError, Served, outputs_of, version_of
from hw.frontend.router_link import ROUTER_GONE, Bridge, FailedError, FullError
from hw.frontend.traffic_metrics import LivePage, Metrics
from hw.frontend.transforms import TransformError, Transforms
from policies.router_queue import REFUSED

DEADLINE: Final = "deadline"
NO_PREDICTION: Final = "no_prediction"
TRANSFORM: Final = "transform"
COMPARED: Final = 10  # of the canary's requests, at most one in this number is also served by the stable version
HEARD_S: Final = 2.0  # the router reports several times a second
_AHEAD_S: Final = 0.01  # a client counts, too, from when it asked: it may leave a moment before its time is up here
_TRACE: Final = "traceparent"
_TRACES: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def trace_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the trace that a request is a part of, if its headers or metadata have one (W3C Trace Context)."""
    trace = headers.get(_TRACE, "")
    return {_TRACE: trace} if _TRACES.fullmatch(trace) else {}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on clients.

    Attributes:
        body_bytes: of a request.
        held_bytes: of all requests that are being read, over HTTP and over gRPC each.
        body_s: within which a request's body must arrive.
        timeout_s: for an answer, unless the client asks for less.
        connections: open at a time, at each port.
        connections_each: of one address, over HTTP.
    """

    body_bytes: int = 1 << 24
    held_bytes: int = 1 << 28
    body_s: float = 30.0
    timeout_s: float = 30.0
    connections: int = 4096
    connections_each: int = 2048


@dataclass(frozen=True, slots=True)
class ClientTerms:
    """How clients are served.

    Attributes:
        tokens: one of which they must send, each with how many images may be inside; empty: none.
        certificate: that they are shown (TLS), with its key.
        transform: custom code around the network, `module:Class`; empty for none.
    """

    limits: Limits
    tokens: Mapping[bytes, int]
    certificate: Path | None
    transform: str


class Admission:
    """The path of readable requests to the router, and back.

    Args:
        tokens: the accepted ones, each with its limit of images inside; empty: no token is required.
        carried_img_s: the servers' capacity in images a second, at most.
        journal: logs requests that failed, or exceeded the p99 latency target.
        transforms: decode images, and run custom code.
    """

    def __init__(
        self,
        bridge: Bridge,
        metrics: Metrics,
        page: LivePage,
        limits: Limits,
        tokens: Mapping[bytes, int],
        sustained_img_s: float,
        journal: Sparing,
        transforms: Transforms,
    ) -> None:
        self._bridge = bridge
        self._metrics = metrics
        self._page = page
        self._limits = limits
        self._tokens = tokens
        self._journal = journal
        self._transforms = transforms
        self._drawn = self._canaries = 0  # requests so far; the canary's since the last comparison
        self._comparison: asyncio.Future[None] | None = None
        self._image_wait_s = 0.5 / sustained_img_s  # an image that is inside has half of its way before it, on average

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted, and the router reported within `HEARD_S`."""
        return self._bridge.is_ready and self._bridge.heard_s < HEARD_S

    @property
    def asks_tokens(self) -> bool:
        """Whether clients must present a token."""
        return bool(self._tokens)

    @property
    def served(self) -> Served:
        """The present model and its settings."""
        return self._bridge.served

    def require_model(self, name: str, version: str) -> None:
        """Raise `RequestError` if another model is requested; an empty version is any."""
        served = self.served
        if name != served.name or version not in ("", *served.versions):
            versions = " or ".join(served.versions)
            problem = f"nothing is at {f'{name}/{version}':.80}; the model is {served.name}, version {versions}"
            raise RequestError(problem, 404)

    def token_in(self, authorization: str) -> bytes:
        """Return the request's token, if it is known; empty if none is required.

        Raises:
            RequestError: it has none.
        """
        scheme, _, credential = authorization.partition(" ")
        for token in self._tokens if scheme.lower() == "bearer" else ():
            if hmac.compare_digest(credential.strip().encode("latin-1"), token):
                return token
        if self._tokens:
            raise RequestError("no token that is known here; send `Authorization: Bearer TOKEN`", 401)
        return b""

    async def answers(self, request: Request, token: bytes, trace: Mapping[str, str], version: str = "") -> Outcome:
        """Return the outputs for all images; cancelled if the client has left (the router may then skip them).

        Args:
            trace: that it is a part of (`trace_of`).
            version: the only one that may answer; empty: any.

        Raises:
            RequestError: it was not admitted, or has no answer.
        """
        began_s, count, served = time.perf_counter(), len(request.images), self.served
        requested_s = math.inf if request.timeout_ns is None else request.timeout_ns / 1e9
        request_class = served.request_classes[request.service_class]
        timeout_s = min(self._limits.timeout_s, requested_s, request_class.deadline_s)
        timeout_ns, images = round(timeout_s * 1e9), request.images
        number = self._version(served, request.service_class, version)
        asked = served.versions[number]
        try:
            async with asyncio.timeout(timeout_s):
                if request.inputs:
                    self._require_room(0, token, timeout_s)
                    images = await self._transforms.before(request.inputs)
                    count = len(images)
                    timeout_ns -= round((time.perf_counter() - began_s) * 1e9)
                self._metrics.arrived.inc(count)
                self._require_room(count, token, timeout_s)
                answers = await self._bridge.submit(images, timeout_ns, request.service_class, token, number)
                outputs = outputs_of(answers, served)
                if served.own_outputs:
                    outputs = await self._transforms.after(outputs)
        except TransformError as error:
            if not count:  # how many images the request would have made is not known
                count = 1
                self._metrics.arrived.inc()
            text = f"serve: {served.transform or 'decoding images'}: {error}"
            self._journal.note("transform_failed", text=text, **trace)
            raise self._failure(TRANSFORM, count, timeout_s, asked, trace) from None
        except FullError:
            self._metrics.refused.labels("full").inc(count)
            raise RequestError(f"full: {self._bridge.inside} images are inside", 429) from None
        except TimeoutError:
            raise self._failure(DEADLINE, count, timeout_s, asked, trace) from None
        except FailedError as error:
            if str(error) == REFUSED:
                self._metrics.refused.labels("overload").inc(count)
                raise RequestError("full: more could not be answered within the p99 latency promised", 429) from None
            raise self._failure(str(error), count, timeout_s, asked, trace) from None
        except asyncio.CancelledError:
            if time.perf_counter() - began_s >= timeout_s - _AHEAD_S:
                self._failure(DEADLINE, count, timeout_s, asked, trace)
                raise asyncio.CancelledError(DEADLINE) from None
            self._metrics.failed.labels("client_left").inc(count)
            raise
        if version not in ("", version_of(answers)):
            self._metrics.failed.labels("version").inc(count)
            raise RequestError(f"version {version} is served no more, but {version_of(answers)}", 404)
        took_s = time.perf_counter() - began_s
        self._metrics.note_answered(request.service_class, answers, took_s, time.time())
        self._page.note(took_s, answers)
        if self._bridge.is_late(took_s, request.service_class):
            self._journal.note("request_late", images=count, seconds=round(took_s, 4), **trace)
        self._compare_some(images, request.service_class, answers, served)
        return Outcome(outputs, version_of(answers), max(answer.took_ns for answer in answers))

    def _version(self, served: Served, service_class: int, version: str) -> int:
        """Return the number of the version that is to answer a request: the one that it names, or a drawn one."""
        self._drawn += 1
        if version in served.versions:
            return served.versions.index(version)
        return served.drawn(self._drawn, service_class)

    def _compare_some(
        self, images: NDArray[np.float32], service_class: int, answers: Sequence[Answer], served: Served
    ) -> None:
        """Let the stable version serve some of the canary's requests, too."""
        if served.canary is None or version_of(answers) != served.canary.version:
            return
        self._canaries += 1
        if self._canaries >= COMPARED and self._is_idle:
            self._canaries = 0
            self._comparison = asyncio.ensure_future(self._compare(images, service_class, answers, served.version))

    @property
    def _is_idle(self) -> bool:
        """Whether no image waited for a server at the last report, and no request is served to be compared."""
        is_free = self._bridge.status is not None and not self._bridge.status.queued
        return is_free and (self._comparison is None or self._comparison.done())

    async def _compare(
        self, images: NDArray[np.float32], service_class: int, answers: Sequence[Answer], stable: str
    ) -> None:
        with suppress(FullError, FailedError, TimeoutError):
            async with asyncio.timeout(self._limits.timeout_s):
                timeout_ns = round(self._limits.timeout_s * 1e9)
                others = await self._bridge.submit(images, timeout_ns, service_class)
            if version_of(others) == stable:
                self._metrics.note_compared(answers, others)

    def _require_room(self, count: int, token: bytes, timeout_s: float) -> None:
        if not self._bridge.is_ready:
            reason = "draining" if self._bridge.is_draining else "not_ready"
            self._metrics.refused.labels(reason).inc(count)
            raise RequestError(f"{reason}: nothing is accepted now", 503)
        if self._bridge.inside * self._image_wait_s > timeout_s:
            self._metrics.refused.labels(DEADLINE).inc(count)
            raise RequestError(f"full: what is inside takes more than {timeout_s:g} s", 429)
        inside = self._bridge.inside_of[token]  # also those whose client has left, until the router lets them go
        if inside + count > (limit := self._tokens.get(token, sys.maxsize)):
            self._metrics.refused.labels("token").inc(count)
            problem = f"full: {inside} images of this token are inside, expected at most {limit}"
            raise RequestError(problem, 429)

    def fault(self, error: Exception) -> RequestError:
        """Log a fault of this program in one line; return the client's error."""
        *_, frame = traceback.extract_tb(error.__traceback__)
        at = f"{Path(frame.filename).name}:{frame.lineno}"
        self._journal.note("request_fault", error=f"{type(error).__name__}: {error}"[:200], at=at)
        return RequestError("internal error; see the server's log", 500)

    def _failure(
        self, reason: str, count: int, timeout_s: float, version: str, trace: Mapping[str, str]
    ) -> RequestError:
        self._metrics.failed.labels(reason).inc(count)
        self._metrics.version_failed.labels(version).inc(count)
        self._journal.note("request_failed", reason=reason, images=count, **trace)
        if reason == NO_PREDICTION:
            return RequestError("scores: not finite; some value of the image is too large", 400)
        if reason == DEADLINE:
            return RequestError(f"no answer within {timeout_s:g} s", 504)
        if reason == TRANSFORM:
            return RequestError("the server's own code around the network failed; see its log", 500)
        if reason == ROUTER_GONE:
            return RequestError("the router has ended", 503)
        return RequestError(f"given up after several tries: {reason}", 500)


SLOW_S: Final = 2.0  # after that a request that is still read gives way
SHARE: Final = 4  # a client may hold one part in this number


@dataclass(eq=False, slots=True)
class _Reader:
    """A request that is read, or waits to be."""

    client: Hashable
    size_bytes: int
    limit: asyncio.Timeout
    may_read: asyncio.Future[None]
    began_s: float = 0.0
    gives_way: bool = False


class ReadingRoom:
    """The room of one event loop.

    Args:
        most_bytes: for all requests that are being read.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes: Counter[Hashable] = Counter()  # by client
        self._reading: dict[_Reader, None] = {}  # the oldest first, as in `_waiting`
        self._waiting: dict[_Reader, None] = {}
        self._look: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def place(self, client: Hashable, size_bytes: int, patience_s: float) -> AsyncIterator[None]:
        """Wait for room, and hold it within the context.

        Args:
            client: the one that holds most gives way first.
            size_bytes: the most that the request may have.
            patience_s: for waiting and reading together.

        Raises:
            RequestError: there was not enough room in time (429), or the request did not come in time: by its patience,
                or within `SLOW_S` if others wait (408).
        """
        reader: _Reader | None = None
        try:
            async with asyncio.timeout(patience_s) as limit:
                may_read = asyncio.get_running_loop().create_future()
                reader = _Reader(client, min(size_bytes, self._most_bytes), limit, may_read)
                self._waiting[reader] = None
                self._admit()
                await reader.may_read
                yield
        except TimeoutError:
            if reader is None or not reader.began_s:
                raise RequestError("full: others send at this moment", 429) from None
            text = f"{SLOW_S:g} s, and others wait" if reader.gives_way else f"{patience_s:g} s"
            raise RequestError(f"the request took more than {text}", 408) from None
        finally:
            if reader is not None:
                self._leave(reader)

    def _leave(self, reader: _Reader) -> None:
        self._waiting.pop(reader, None)
        if reader in self._reading:
            del self._reading[reader]
            self._held_bytes[reader.client] -= reader.size_bytes
            if not self._held_bytes[reader.client]:
                del self._held_bytes[reader.client]
        self._admit()

    def _admit(self) -> None:
        """Admit waiting requests, from the client that holds least first; slow ones in their way give way."""
        for reader in sorted(self._waiting, key=lambda each: self._held_bytes[each.client]):
            if reader.may_read.done() or not self._is_within_share(reader):
                continue
            if self._held_bytes.total() + reader.size_bytes <= self._most_bytes:
                del self._waiting[reader]
                self._reading[reader], reader.began_s = None, _now_s()
                self._held_bytes[reader.client] += reader.size_bytes
                reader.may_read.set_result(None)
        if self._look is not None:
            self._look.cancel()
            self._look = None
        waiting = next((reader for reader in self._waiting if not reader.may_read.done()), None)
        if waiting is not None:
            self._hurry(waiting)

    def _is_within_share(self, reader: _Reader) -> bool:
        most_bytes = max(self._most_bytes // SHARE, reader.size_bytes)
        return self._held_bytes[reader.client] + reader.size_bytes <= most_bytes

    def _hurry(self, waiting: _Reader) -> None:
        """End the oldest reading of the client that holds most, of those in the way; or check again when it is slow."""
        is_alone = not self._is_within_share(waiting)
        in_the_way = [reader for reader in self._reading if not is_alone or reader.client == waiting.client]
        largest_bytes = max(self._held_bytes[reader.client] for reader in in_the_way)
        oldest = next(reader for reader in in_the_way if self._held_bytes[reader.client] == largest_bytes)
        now_s = _now_s()
        slow_s = oldest.began_s + SLOW_S
        ends_s = oldest.limit.when()
        if now_s < slow_s:
            self._look = asyncio.get_running_loop().call_at(slow_s, self._admit)
        elif ends_s is None or ends_s > now_s:  # otherwise it is leaving
            oldest.gives_way = True
            oldest.limit.reschedule(now_s)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
