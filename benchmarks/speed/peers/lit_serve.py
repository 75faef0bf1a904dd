"""LitServe: one inference worker on the model's core, raw bytes over HTTP with keep-alive, a client without frills.

LitServe's usual JSON bodies would make 12 KB of numbers into several times as much text; a body declared as bytes is
its fastest way in. The client writes prepared requests and reads little of the answers: it shares the cores.
"""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time  # noqa: TID251 - waiting for a server's start
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from benchmarks.speed.peers.forwards import BATCH_LIMIT, Chain, Job, images
from benchmarks.speed.peers.load import IN_FLIGHT, measure
from benchmarks.speed.peers.processes import end_tree

# `fast_queue` (ZeroMQ) is not among them: in 0.2.19 the switch is without effect (it is handed on under a name that
# nothing reads), and where the transport is forced no request is ever answered.
SETTINGS: tuple[dict[str, Any], ...] = (
    {"wait_s": 0.0, "api_servers": 1, "pin": "process"},
    {"wait_s": 0.002, "api_servers": 1, "pin": "process"},
    {"wait_s": 0.01, "api_servers": 1, "pin": "process"},
    {"wait_s": 0.002, "api_servers": 2, "pin": "process"},
    {"wait_s": 0.0, "api_servers": 1, "pin": "none"},
    {"wait_s": 0.002, "api_servers": 1, "pin": "none"},
)
_START_S = 90.0


def drive(job: Job, truth: Sequence[int]) -> dict[str, Any]:
    """Start it, load it, end it; returns `load.measure`'s figures."""
    try:
        import uvloop  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        run: Any = asyncio.run
    else:
        run = uvloop.run
    with _server(job) as port:
        found: dict[str, Any] = run(_load(job, truth, port))
    return found


# ----------------------------------------------------------------------------------------------------------- the client


class _Connection(asyncio.Protocol):
    """One request at a time over one connection: bytes out, the body of the answer in."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._read = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def ask(self, request: bytes) -> "asyncio.Future[bytes]":
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, gap, body = bytes(self._read).partition(b"\r\n\r\n")
        if not gap or self._answer is None:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            self._read.clear()
            if head.startswith(b"HTTP/1.1 200"):
                self._answer.set_result(body)
            else:
                self._answer.set_exception(RuntimeError(f"{head!r} {body!r}"))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError())


async def _load(job: Job, truth: Sequence[int], port: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    free = [(await loop.create_connection(_Connection, "127.0.0.1", port))[1] for _ in range(IN_FLIGHT)]
    requests = [_request(image.tobytes()) for image in images(job.shape)]

    async def call(index: int) -> tuple[int, int]:
        connection = free.pop()
        label, size = json.loads(await connection.ask(requests[index]))
        free.append(connection)
        return label, size

    return await measure(call, truth, job)


def _request(body: bytes) -> bytes:
    head = "POST /predict HTTP/1.1\r\nHost: peers\r\nContent-Type: application/octet-stream\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


# ----------------------------------------------------------------------------------------------------------- the server


@contextlib.contextmanager
def _server(job: Job) -> Iterator[int]:
    """The server's own processes; gone when the block ends."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.speed.peers.lit_serve", job.as_json(), str(port)]
    process = subprocess.Popen(command)
    try:
        _wait_until_ready(process, port)
        yield port
    finally:
        end_tree(process.pid)
        process.wait()


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int) -> None:
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"LitServe did not start (exit code {process.poll()})")


def _serve(job: Job, port: int) -> None:
    import litserve  # type: ignore[import-not-found, unused-ignore]

    api = _api()(max_batch_size=BATCH_LIMIT, batch_timeout=job.settings["wait_s"])
    api.job = job
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, disable_openapi_url=True)
    servers = job.settings["api_servers"]
    server.run(
        "127.0.0.1", port, num_api_servers=servers, log_level="error", generate_client_file=False, access_log=False
    )


try:
    from fastapi import Body  # type: ignore[import-not-found, unused-ignore]
    from litserve import LitAPI  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # only the process that measures needs them
    pass
else:

    class Api(LitAPI):  # type: ignore[misc, unused-ignore]
        """What the worker runs; at the module's top, for it is pickled on its way there."""

        job: Job

        def setup(self, device: str) -> None:
            self.chain = Chain(self.job.path, self.job.core, self.job.settings["pin"])

        def decode_request(self, request: Annotated[bytes, Body()]) -> bytes:
            return request

        def batch(self, inputs: list[bytes]) -> list[bytes]:
            return inputs

        def predict(self, bodies: list[bytes]) -> list[tuple[int, int]]:
            return [(label, len(bodies)) for label in self.chain.labels(bodies)]

        def unbatch(self, output: list[tuple[int, int]]) -> list[tuple[int, int]]:
            return output

        def encode_response(self, output: tuple[int, int]):  # type: ignore[no-untyped-def]
            return output


def _api() -> Any:
    from benchmarks.speed.peers import lit_serve  # under its own name, not as `__main__`: the worker imports it

    return lit_serve.Api


if __name__ == "__main__":
    _serve(Job.from_json(sys.argv[1]), int(sys.argv[2]))
