"""As much of `torch.cuda` as copies need, without a GPU: it writes down what would happen, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch


class FakeCuda:
    """Streams and events by name; the host is the only one that does anything.

    Args:
        refuses: the error code with which memory can't be registered; 0 where it can.

    Attributes:
        told: what was asked, in order.
        is_slow: nothing that was asked is done yet.
    """

    def __init__(self, refuses: int = 0) -> None:
        self.told: list[str] = []
        self.registered: list[int] = []
        self.is_slow = False
        self._refuses = refuses
        self._streams = 0
        self._events = 0
        self._current = FakeStream(self, "default")

    def Stream(self, place: torch.device) -> FakeStream:
        """A further one."""
        self._streams += 1
        return FakeStream(self, f"stream {self._streams}")

    def Event(self, blocking: bool = False) -> FakeEvent:
        """A further one."""
        self._events += 1
        return FakeEvent(self, f"event {self._events}")

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """What is asked within goes there."""
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def current_stream(self, place: torch.device) -> FakeStream:
        """Where what is asked goes."""
        return self._current

    def cudart(self) -> Any:
        """The runtime's own calls."""

        def register(address: int, size_bytes: int, flags: int) -> int:
            self.registered.append(size_bytes)
            return self._refuses

        return SimpleNamespace(cudaHostRegister=register)


class FakeStream:
    """An order of work."""

    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda = cuda
        self.name = name

    def wait_event(self, event: FakeEvent) -> None:
        """What follows here waits for it."""
        self._cuda.told.append(f"{self.name} waits for {event.name}")


class FakeEvent:
    """A point in a stream."""

    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda = cuda
        self.name = name

    def record(self, stream: FakeStream) -> None:
        """It happens when all that was asked there is done."""
        self._cuda.told.append(f"{self.name} recorded on {stream.name}")

    def query(self) -> bool:
        """Whether it has happened."""
        return not self._cuda.is_slow

    def synchronize(self) -> None:
        """The host waits."""
        self._cuda.told.append(f"host waits for {self.name}")
