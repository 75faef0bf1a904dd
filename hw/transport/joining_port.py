"""The router's end of a port whose agent is still to come: nothing has arrived until it has connected."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence

from hw.transport.messages import FromAgent, ToAgent
from hw.transport.network_port import NetworkPort
from hw.transport.port import PortClosedError


class JoiningPort:
    """`hw.transport.port.RouterEnd`. Whoever drives it uses one thread; `join` and `end` come from others."""

    def __init__(self) -> None:
        self._woken, self._nudge = os.pipe()
        os.set_blocking(self._woken, False)
        self._lock = threading.Lock()
        self._port: NetworkPort | None = None
        self._posted: list[ToAgent] = []
        self._ended = ""
        self._is_closed = False

    def join(self, port: NetworkPort) -> bool:
        """The agent is there; False where nobody waits for it any more, and then it is for the caller to close."""
        with self._lock:
            if self._is_closed or self._ended or self._port is not None:
                return False
            self._port = port
            os.write(self._nudge, b"!")
            return True

    def end(self, reason: str) -> None:
        """Nothing will come any more: its process is gone, or could not be started."""
        with self._lock:
            if self._is_closed:
                return
            self._ended = self._ended or reason
            if self._port is not None:
                self._port.sever()
            os.write(self._nudge, b"!")

    @property
    def ended(self) -> str:
        """Why nothing will come any more, as far as others have told; empty before."""
        return self._ended

    def place(self, offset: int, data: memoryview) -> None:
        """See `NetworkPort`."""
        if self._port is not None:
            self._pass_on(self._port)
            self._port.place(offset, data)

    def post(self, message: ToAgent) -> None:
        """See `Port`."""
        self._posted.append(message)

    def flush(self) -> bool:
        """See `Port`."""
        if self._is_closed or (self._ended and self._port is None):
            raise PortClosedError(self._ended or "it was closed")
        if self._port is None:
            return not self._posted
        self._pass_on(self._port)
        return self._port.flush()

    def _pass_on(self, port: NetworkPort) -> None:
        for message in self._posted:
            port.post(message)
        self._posted.clear()

    def receive(self) -> Sequence[FromAgent]:
        """See `Port`."""
        if self._is_closed:
            raise PortClosedError("it was closed")
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        if self._port is not None:
            return self._port.receive()
        if self._ended:
            os.write(self._nudge, b"!")  # the end is told as often as one asks
            raise PortClosedError(self._ended)
        return ()

    def fileno(self) -> int:
        """See `Port`: another one from the moment on at which the agent was seen to be there."""
        if self._is_closed:
            return -1
        return self._woken if self._port is None else self._port.fileno()

    def close(self) -> None:
        """See `Port`."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            os.close(self._woken)
            os.close(self._nudge)
            if self._port is not None:
                self._port.close()
