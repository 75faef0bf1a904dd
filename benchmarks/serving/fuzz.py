"""Thousands of bad clients: each must get an error by the protocol, and none may harm the others."""

from __future__ import annotations

import asyncio
import json
import resource
import time  # noqa: TID251 - clients send slowly
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from benchmarks.serving.rows import Row, row
from benchmarks.serving.stand import Server, Stand, serve
from kit.random_streams import stream

REQUESTS: Final = 10_000
FIRST: Final = 2_000  # requests, after which memory is compared with the end's
AT_A_TIME: Final = 64
CONNECTIONS: Final = 3_000, 5_000  # open, silent connections: fewer and more than are accepted
PATIENCE_S: Final = 20.0
SILENCE_S: Final = 1.0  # time in which an incomplete request may get an answer
BODY_S: Final = 35.0  # the time limit of a body, and a little more
TOKEN: Final = "a-token-that-nobody-guesses"
EMULATED: Final = "paper-live"

Parts = list[bytes]  # sent one after another, with a pause


@dataclass(frozen=True)
class Case:
    """Input of a bad client.

    Attributes:
        parts: with a pause after each.
        is_whole: whether an answer is required; otherwise the connection may just end.
        leaves: whether it leaves before any answer.
        pause_s: pause after each part.
    """

    parts: Parts
    is_whole: bool = True
    leaves: bool = False
    pause_s: float = 0.0


@dataclass
class Findings:
    """Problems, and the count of each status code."""

    codes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    refused_probes: int = 0
    probes: int = 0
    is_crowded: bool = False  # more connections are open than are accepted: new ones are refused, or end


class Fuzz:
    """Requests for one model, most of them bad."""

    def __init__(self, path: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
        self._path, self._shape = path, shape
        self._rng = rng
        self.kinds: dict[str, Callable[[], Case]] = {
            "valid": lambda: Case([self.request(self._json())]),
            "valid in binary": lambda: Case([self._binary(1.0)]),
            "leaves": lambda: Case([self.request(self._json())], leaves=True),
            "cut": self._cut,
            "says it is huge": lambda: Case([self._head(1 << self._below(55) + 25)]),
            "huge JSON": lambda: Case([self.request(b" " * ((1 << 20) + 1))]),
            "huge, in chunks": self._chunks,
            "wrong value": lambda: Case([self.request(self._json(**self._wrong()))]),
            "wrong JSON": lambda: Case([self.request(self._one_of(_BODIES))]),
            "not finite": lambda: Case([self._binary(self._one_of((float("nan"), float("inf"))))]),
            "wrong length": lambda: Case([self._binary(1.0, self._one_of(_LENGTHS))]),
            "no time": lambda: Case([self.request(self._json(more={"parameters": {"timeout": 1}}))]),
            "wrong token": lambda: Case([self.request(self._json(), token="guessed" * self._below(10))]),
            "wrong place": lambda: Case([self.request(self._json(), first=self._one_of(_FIRSTS))]),
            "no HTTP": lambda: Case([self._rng.bytes(1 + self._below(300)) + b"\r\n\r\n"], is_whole=False),
            "altered": self._altered,
            "long head": lambda: Case([self.request(b"", more=f"x: {'a' * 70_000}\r\n")], is_whole=False),
            "two lengths": lambda: Case([self.request(b"{}", more="transfer-encoding: chunked\r\n")], is_whole=False),
            "many at once": lambda: Case([self.request(self._json()) * 20], leaves=self._rng.random() < 0.5),
            "slow": self._slow,
        }

    def case(self) -> tuple[str, Case]:
        """Return a random kind, and a case of it."""
        kind = self._one_of(list(self.kinds))
        return kind, self.kinds[kind]()

    def _below(self, most: int) -> int:
        return int(self._rng.integers(most))

    def _one_of(self, some: Sequence[Any]) -> Any:
        return some[self._below(len(some))]

    def request(self, body: bytes, token: str = TOKEN, first: str = "", more: str = "") -> bytes:
        """Return a complete request, with its head."""
        first = first or f"POST {self._path}/infer HTTP/1.1"
        header = f"{first}\r\nhost: x\r\nauthorization: Bearer {token}\r\n{more}content-length: {len(body)}\r\n\r\n"
        return header.encode("latin-1") + body

    def _head(self, length: int) -> bytes:
        return self.request(b"").replace(b"content-length: 0", f"content-length: {length}".encode())

    def _json(self, more: dict[str, Any] | None = None, **changes: Any) -> bytes:
        values = [0.5] * prod(self._shape)
        tensor = {"name": "image", "shape": [1, *self._shape], "datatype": "FP32", "data": values, **changes}
        return json.dumps({"inputs": [tensor], **(more or {})}).encode()

    def _wrong(self) -> dict[str, Any]:
        key = self._one_of(("name", "shape", "datatype", "data", "parameters"))
        return {key: self._one_of(_VALUES)}

    def _binary(self, value: float, length: str = "") -> bytes:
        data = np.full(prod(self._shape), value, np.float32).tobytes()
        header = self._json(data=None, parameters={"binary_data_size": len(data)}).replace(b'"data": null, ', b"")
        return self.request(header + data, more=f"inference-header-content-length: {length or len(header)}\r\n")

    def _cut(self) -> Case:
        whole = self.request(self._json())
        return Case([whole[: 1 + self._below(len(whole) - 1)]], is_whole=False, leaves=self._rng.random() < 0.5)

    def _chunks(self) -> Case:
        """Return a body beyond the limit; a client that still sends when it is refused may not receive the reason."""
        header = self.request(b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
        chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
        return Case([header, *[chunk] * self._one_of((1, 1, 1, 1, 20))], is_whole=False)

    def _altered(self) -> Case:
        whole = bytearray(self.request(self._json()))
        for _ in range(1 + self._below(8)):
            whole[self._below(min(len(whole), 400))] = self._below(256)
        return Case([bytes(whole)], is_whole=False)

    def _slow(self) -> Case:
        whole = self.request(self._json())
        cuts = sorted(1 + self._below(len(whole) - 1) for _ in range(8))
        parts = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        return Case(parts, pause_s=0.1)


_BODIES: Final = (
    b"", b"{}", b"[]", b"null", b"{", b"\xff\xfe", b"\x00" * 99, b'{"inputs": []}', b'{"inputs": [{}]}',
    b"[" * 100_000, b'{"inputs":' + b'[{"a":' * 50_000, b'{"inputs": [{"name": "image", "shape": [1e999]}]}',
    b'"\\ud800"',
)  # fmt: skip
_VALUES: Final[Sequence[Any]] = (
    None, True, -1, 1e300, 10**30, "", "image\x00", "\ud7ff" * 999, [], {}, [[]], [0], [1] * 99, [-1, 768],
    [1, 1 << 62], [float("nan")], [None], ["1"], [[1.0], 2.0], {"binary_data_size": -1}, {"binary_data_size": 1e9},
    "FP64", "UINT8", "BYTES",
)  # fmt: skip
_LENGTHS: Final = ("-1", "0", "1", "99999999", "1e3", "0x10", " ", "9" * 5000, "\u00b2")
_FIRSTS: Final = (
    "GET / HTTP/9.9", "POST /v2/models/other/infer HTTP/1.1", "PUT /v2/models/x HTTP/1.1",
    "POST /%00%ff/../../etc HTTP/1.1", "OPTIONS * HTTP/1.1",
    "POST http://elsewhere/v2 HTTP/1.1", "CONNECT x:1 HTTP/1.1",
    "TRACE / HTTP/1.0",
    "POST /" + "a" * 9000 + " HTTP/1.1", "PRI * HTTP/2.0", "GET /v2/models/a?b=%zz#c HTTP/1.1",
)  # fmt: skip


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return status and body of one answer; 0 if the connection ends before."""
    header = await reader.readuntil(b"\r\n\r\n")
    lines = header.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    return int(lines[0].split()[1]), await reader.readexactly(int(headers["content-length"]))


async def _try(port: int, case: Case) -> tuple[int, bytes]:
    """Send a case; returns status and body of its first answer; 0 for none."""
    writer = None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in case.parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(case.pause_s)
        if case.leaves:
            return 0, b""
        async with asyncio.timeout(PATIENCE_S if case.is_whole else SILENCE_S):
            return await _answer(reader)
    except (OSError, asyncio.IncompleteReadError):
        return 0, b""
    except TimeoutError:
        return (-1 if case.is_whole else 0), b""
    finally:
        if writer is not None:
            writer.close()


def _problem(case: Case, status: int, body: bytes) -> str:
    """Describe what is wrong with an answer; empty if nothing."""
    if status in (0, 200):
        return "no answer" if not status and case.is_whole and not case.leaves else ""
    if status < 0:
        return f"no answer within {PATIENCE_S:g} s"
    if status == 500:
        return "500"
    with suppress(ValueError):
        answer = json.loads(body)
        if isinstance(answer, dict) and list(answer) == ["error"] and isinstance(answer["error"], str):
            return ""
    return f"{status} with {body!r:.80}"


async def _send(port: int, cases: Fuzz, count: int, findings: Findings) -> None:
    """Send `count` requests, some at a time."""

    async def client() -> None:
        nonlocal count
        while count > 0:
            count -= 1
            kind, case = cases.case()
            status, body = await _try(port, case)
            findings.codes[str(status)] += 1
            if problem := _problem(case, status, body):
                findings.wrong.append(f"{kind}: {problem}: {case.parts[0][:200]!r}")

    await asyncio.gather(*(client() for _ in range(AT_A_TIME)))


async def _probe(port: int, cases: Fuzz, findings: Findings) -> None:
    """Run a good client without end: ten requests a second."""
    while True:
        case = cases.kinds["valid"]()
        status, body = await _try(port, case)
        findings.probes += 1
        allowed = (200, 429, 503, 0) if findings.is_crowded else (200, 429)
        findings.refused_probes += 1 if status != 200 else 0
        if status not in allowed or (status and _problem(case, status, body)):
            findings.wrong.append(f"a good client: {status}")
        await asyncio.sleep(0.1)


async def _crowd(port: int, cases: Fuzz, count: int, findings: Findings) -> None:
    """Open `count` connections at once, then send a request in some of them."""
    findings.is_crowded = count == max(CONNECTIONS)
    opened = await asyncio.gather(
        *(asyncio.open_connection("127.0.0.1", port) for _ in range(count)), return_exceptions=True
    )
    for connection in opened[:: count // 100]:
        if isinstance(connection, BaseException):
            continue
        reader, writer = connection
        writer.write(cases.request(b"{}"))
        try:
            async with asyncio.timeout(PATIENCE_S):
                status, body = await _answer(reader)
        except (OSError, asyncio.IncompleteReadError):
            status, body = 0, b""
        except TimeoutError:
            status, body = -1, b""
        findings.codes[str(status)] += 1
        if status and (problem := _problem(Case([]), status, body)):
            findings.wrong.append(f"{count} connections: {problem}")
    for connection in opened:
        if not isinstance(connection, BaseException):
            connection[1].close()
    await asyncio.sleep(2.0)
    findings.is_crowded = False


async def _dawdle(port: int, cases: Fuzz, findings: Findings) -> None:
    """Send bodies that never end: they are refused after half a minute."""

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        began_s = time.monotonic()
        writer.write(cases.request(b"x" * 1000)[:-999])
        answered = asyncio.ensure_future(_answer(reader))
        while not answered.done() and time.monotonic() < began_s + BODY_S:
            writer.write(b"x")
            await asyncio.sleep(0.5)
        status, body = await answered if answered.done() else (-1, b"")
        findings.codes[str(status)] += 1
        if status != 408 or _problem(Case([]), status, body):
            findings.wrong.append(f"a body that never ends: {status}")
        writer.close()

    await asyncio.gather(*(client() for _ in range(100)))


async def _everything(server: Server, cases: Fuzz, count: int, findings: Findings) -> dict[str, Any]:
    def state() -> dict[str, Any]:
        ours = (server.processes()[0], server.ingress)
        rss, open_ = [our.memory_info().rss for our in ours], [our.num_fds() for our in ours]
        return {
            "pids": sorted(process.pid for process in server.processes()),
            "rss": sum(rss),
            "descriptors": sum(open_),
        }

    def inside() -> float:
        return server.metrics()["slimsched_images_inside",]

    async def settle() -> None:
        """Wait until the server is empty and accepts requests; the last crowd must leave first."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            await asyncio.sleep(1.0)
            with suppress(OSError):
                if not await asyncio.to_thread(inside):
                    return

    probing = asyncio.ensure_future(_probe(server.port, cases, findings))
    first = min(FIRST, count // 2)
    await _send(server.port, cases, first, findings)
    for crowd in CONNECTIONS:
        await _crowd(server.port, cases, crowd, findings)
    await settle()
    before = state()
    await asyncio.gather(_send(server.port, cases, count - first, findings), _dawdle(server.port, cases, findings))
    for crowd in CONNECTIONS:
        await _crowd(server.port, cases, crowd, findings)
    probing.cancel()
    await settle()
    after = state()
    return {"before": before, "after": after, "inside": await asyncio.to_thread(inside)}


def fuzz(stand: Stand) -> list[Row]:
    """Run ten thousand requests, and crowds of connections; fewer if a load is short."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count = round(REQUESTS * min(1.0, stand.seconds / 10))
    findings = Findings()
    with TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens"
        tokens.touch(0o600)
        tokens.write_text(TOKEN + "\n")
        with serve(EMULATED, "--router", "compass", "--token-file", str(tokens), "--out", folder + "/run") as server:
            server.token = TOKEN
            shape = tuple(json.loads(server.ask(server.path))["inputs"][0]["shape"][1:])
            cases = Fuzz(server.path, shape, stream(7, "fuzz"))
            states = asyncio.run(_everything(server, cases, count, findings))
    before, after = states["before"], states["after"]
    probes = {"probes": findings.probes, "refused_probes": findings.refused_probes}
    detail = {"codes": dict(findings.codes), "wrong": findings.wrong[:20], **probes}
    return [
        row("fuzz", f"wrong answers to {count:,} requests", len(findings.wrong), 0.0, detail=detail),
        row("fuzz", "processes that died", len({*before["pids"]} - {*after["pids"]}), 0.0),
        row("fuzz", "RSS, all / the first fifth", after["rss"] / before["rss"], 1.02, detail=states),
        row("fuzz", "images left inside", states["inside"], 0.0),
        row("fuzz", "descriptors left open", after["descriptors"] - before["descriptors"], 0.0),
    ]
