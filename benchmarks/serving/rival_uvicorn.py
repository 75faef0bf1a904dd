"""The network behind uvicorn and a loop, in the rivals' environment: `python -m benchmarks.serving.rival_uvicorn ...`.

The least that a server needs: each worker accepts connections, and runs all images that wait, up to a batch, at once.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
import socket
import sys
import threading
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
import uvicorn

from benchmarks.serving.rival_network import FullWidth, Settings, settings

HEADERS: Final = [(b"content-type", b"application/json")]


class App:
    """ASGI application with images in binary, labels in JSON."""

    def __init__(self, options: Settings) -> None:
        self._options = options
        self._waiting: SimpleQueue[tuple[bytes, asyncio.Future[int]]] = SimpleQueue()
        threading.Thread(target=self._loop, args=(asyncio.get_running_loop(),), daemon=True).start()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        body, is_whole = b"", False
        while not is_whole:
            message = await receive()
            body, is_whole = body + message.get("body", b""), not message.get("more_body")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.put((body, future))
        answer = json.dumps({"label": await future}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, _length(answer)]})
        await send({"type": "http.response.body", "body": answer})

    def _loop(self, loop: asyncio.AbstractEventLoop) -> None:
        network = FullWidth(self._options.model, self._options.take_core())
        while True:
            batch = [self._waiting.get()]
            while len(batch) < self._options.batch and not self._waiting.empty():
                batch.append(self._waiting.get())
            labels = network.labels(np.stack([np.frombuffer(body, np.float32) for body, _ in batch]))
            loop.call_soon_threadsafe(_answer, [future for _, future in batch], labels)


def _length(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", str(len(body)).encode()


def _answer(futures: list[asyncio.Future[int]], labels: list[int]) -> None:
    for future, label in zip(futures, labels, strict=True):
        future.set_result(label)


def work(options: Settings, listening: socket.socket) -> None:
    """Serve as one worker."""

    async def serve() -> None:
        config = uvicorn.Config(App(options), lifespan="off", log_level="error", access_log=False)
        await uvicorn.Server(config).serve(sockets=[listening])

    asyncio.run(serve())


if __name__ == "__main__":
    options = settings()
    listening = socket.socket(proto=socket.IPPROTO_TCP)  # without this asyncio leaves Nagle's algorithm on
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", options.port))
    listening.listen(2048)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(options, listening), daemon=True) for _ in range(options.workers)]
    for worker in workers:
        worker.start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # which ends the workers
    for worker in workers:
        worker.join()
