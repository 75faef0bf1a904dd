"""Reports changes of a server's state: as lines of text or JSON, and to systemd what it needs."""

from __future__ import annotations

import os
import socket
import time  # noqa: TID251 - seconds have room for so many lines
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

_A_SECOND: Final = 10
_OF_SYSTEMD: Final = {"ready": "READY=1\n", "stopping": "STOPPING=1\n"}


def notify(words: str) -> None:
    """Notify systemd, if it has started this process and asks for notifications (sd_notify(3))."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end, suppress(OSError):
            end.setblocking(False)  # the server waits for no reader
            end.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            end.send(words.encode())


class Journal:
    """The log of a server's state.

    Args:
        write: takes a line.
        as_json: whether a line is an object with `time` (UTC), `event` and the event's facts.
    """

    def __init__(self, write: Callable[[str], object], *, as_json: bool) -> None:
        self.as_json = as_json
        self._write = write

    def note(self, event: str, text: str = "", **more: Any) -> None:
        """Log a change of state; `text` is for people, and omitted if they have seen it otherwise."""
        if self.as_json:
            said = {"text": text} if text else {}
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._write(msgspec.json.encode({"time": now, "event": event, **more, **said}).decode())
        elif text:
            self._write(text)
        if words := _OF_SYSTEMD.get(event):
            notify(words)

    def say(self, text: str) -> None:
        """Log a line for people that is not a change of state."""
        self.note("remark", text)


class Sparing:
    """Logs what may happen to thousands of requests a second: `_A_SECOND` of them, then the number left out."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._second = self._noted = self._left_out = 0

    def note(self, event: str, **more: Any) -> None:
        """See `Journal`."""
        if (second := int(time.monotonic())) != self._second:
            self._second, self._noted = second, 0
        if self._noted == _A_SECOND:
            self._left_out += 1
            return
        self._noted += 1
        if self._left_out:
            more["left_out"], self._left_out = self._left_out, 0
        self._journal.note(event, **more)
