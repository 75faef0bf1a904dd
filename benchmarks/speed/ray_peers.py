"""Both ends of what `benchmarks.speed.ray_transfers` measures: a Ray actor, and the plain socket that it opens beside.

A frame is four bytes of length and a body, as in `hw.transport.port`. It is answered by one byte. A frame of
`ORDER` bytes is an order: to send so many bytes on, to that port, and to answer when they stand there.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time  # noqa: TID251 - it measures
from typing import Any, Final

import numpy as np
import ray
from ray.dag import DAGContext

LENGTH: Final = struct.Struct("<I")
ORDER: Final = struct.Struct("<II")  # bytes, port
MOST_BYTES: Final = 1 << 24
DONE, LOST = b"\x01", b"\x00"


class LostError(Exception):
    """The other end is gone."""


def wait_for(end: socket.socket, event: int) -> None:
    """Until a socket that does not block can be read or written."""
    with selectors.DefaultSelector() as selector:
        selector.register(end, event)
        selector.select()


def send(end: socket.socket, body: memoryview) -> None:
    """A frame, whole. Raises: LostError."""
    rest = [memoryview(LENGTH.pack(len(body))), body]
    while rest:
        try:
            sent = end.sendmsg(rest)
        except BlockingIOError:
            wait_for(end, selectors.EVENT_WRITE)
            continue
        except OSError as error:
            raise LostError(error.strerror) from None
        while rest and sent >= len(rest[0]):
            sent -= len(rest.pop(0))
        if sent:
            rest[0] = rest[0][sent:]


def receive(end: socket.socket, into: memoryview) -> None:
    """Fill a buffer. Raises: LostError."""
    while into:
        try:
            got = end.recv_into(into)
        except BlockingIOError:
            wait_for(end, selectors.EVENT_READ)
            continue
        except OSError as error:
            raise LostError(error.strerror) from None
        if not got:
            raise LostError("end of file")
        into = into[got:]


class Line:
    """The sending end."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.end = socket.create_connection(address)
        self.end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.end.setblocking(False)
        self._answer = memoryview(bytearray(1))

    def move(self, body: memoryview) -> None:
        """There and answered. Raises: LostError."""
        send(self.end, body)
        receive(self.end, self._answer)
        if self._answer != DONE:
            raise LostError("the source says that the destination is gone")

    def close(self) -> None:
        """And nothing more."""
        self.end.close()


class Listener(threading.Thread):
    """Takes frames from all who connect, into one buffer."""

    def __init__(self, host: str) -> None:
        super().__init__(daemon=True)
        self._gate = socket.create_server((host, 0))
        self.address: tuple[str, int] = self._gate.getsockname()
        self._buffer = memoryview(bytearray(MOST_BYTES))
        self._output = memoryview(bytearray(os.urandom(1) * MOST_BYTES))
        self._lines: dict[int, Line] = {}

    def run(self) -> None:
        """Until the process ends."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._gate, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._gate:
                        end, _ = self._gate.accept()
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        end.setblocking(False)
                        selector.register(end, selectors.EVENT_READ)
                    elif isinstance(key.fileobj, socket.socket) and not self._serves(key.fileobj):
                        selector.unregister(key.fileobj)
                        key.fileobj.close()

    def _serves(self, end: socket.socket) -> bool:
        with contextlib.suppress(LostError):
            receive(end, self._buffer[: LENGTH.size])
            (length,) = LENGTH.unpack(self._buffer[: LENGTH.size])
            receive(end, self._buffer[:length])
            end.send(self._ordered() if length == ORDER.size else DONE)
            return True
        return False

    def _ordered(self) -> bytes:
        size_bytes, port = ORDER.unpack(self._buffer[: ORDER.size])
        try:
            if port not in self._lines:
                self._lines[port] = Line((self.address[0], port))
            self._lines[port].move(self._output[:size_bytes])
        except (LostError, OSError):
            return LOST
        return DONE


class Peer:
    """An agent as Ray would host it: `compute` in its main thread, what moves in another (`io`)."""

    def __init__(self) -> None:
        self._outputs: dict[tuple[str, int], Any] = {}
        self._listener: Listener | None = None

    def widen(self, channel_bytes: int) -> None:
        """The buffers of compiled graphs that are made from now on.

        Channels take it from their process's own context alone, not from `experimental_compile`
        (ray/experimental/channel/shared_memory_channel.py, `CompositeChannel`).
        """
        DAGContext.get_current().buffer_size_bytes = channel_bytes

    def ready(self) -> int:
        """Its process."""
        return os.getpid()

    def listen(self) -> tuple[str, int]:
        """The address of its own port."""
        if self._listener is None:
            self._listener = Listener(ray.util.get_node_ip_address())
            self._listener.start()
        return self._listener.address

    def compute(self, seconds: float) -> float:
        """As a pass does: in one thread, without Python's lock for most of the time."""
        import torch

        torch.set_num_threads(1)
        factor, until_s = torch.ones(256, 256), time.monotonic() + seconds
        while time.monotonic() < until_s:
            product = factor @ factor
        return float(product[0, 0])

    def _output(self, kind: str, size_bytes: int) -> Any:
        import torch

        if (kind, size_bytes) not in self._outputs:
            values = np.ones(size_bytes, np.uint8)
            self._outputs[kind, size_bytes] = torch.from_numpy(values) if kind == "tensor" else values
        return self._outputs[kind, size_bytes]

    @ray.method(concurrency_group="io")
    def take(self, data: Any) -> int:
        """What stands here can be read."""
        return int(data[-1]) if len(data) else 0

    @ray.method(concurrency_group="io")
    def take_from(self, refs: list[Any]) -> int:
        """Of what stands in a store."""
        return int(ray.get(refs[0])[-1])

    @ray.method(concurrency_group="io")
    def make(self, size_bytes: int) -> Any:
        """An output as Ray returns it."""
        return self._output("array", size_bytes)

    @ray.method(concurrency_group="io")
    def make_tensor(self, size_bytes: int) -> Any:
        """The same, of torch."""
        return self._output("tensor", size_bytes)

    @ray.method(concurrency_group="io")
    def put(self, size_bytes: int) -> list[Any]:
        """An output that stays in the store, and its reference."""
        return [ray.put(self._output("array", size_bytes))]

    @ray.method(concurrency_group="io", tensor_transport="gloo")
    def make_gloo(self, size_bytes: int) -> Any:
        """An output that stays here until it is asked for."""
        return self._output("tensor", size_bytes)

    @ray.method(concurrency_group="io", tensor_transport="nixl")
    def make_nixl(self, size_bytes: int) -> Any:
        """The same."""
        return self._output("tensor", size_bytes)
