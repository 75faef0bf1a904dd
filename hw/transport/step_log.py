"""The log of one epoch of an agent: its scheduler's steps, in a file that outlives the process, however that ends.

The router makes the file and keeps it open, the agent appends to it: an anonymous file, which has no name and leaves
nothing behind. It consists of frames, each a length and that number of bytes of msgpack: the steps since the previous
frame. A kill may cut off the last frame only. Nothing that is read can execute code.
"""

from __future__ import annotations

import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from multiprocessing.reduction import DupFd
from typing import Any, Final

import msgspec

from hw.host.anonymous import anonymous_file
from kit.errors import WorkError
from policies.records import LoggedStep
from policies.vocabulary import ServerCommand, ServerEvent

_LENGTH: Final = 4  # bytes


class _Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    now_ns: int
    event: ServerEvent
    commands: Sequence[ServerCommand]


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[_Step]] = msgspec.msgpack.Decoder(list[_Step])


class StepLog(ABC):
    """The log as an agent writes it, wherever it is stored."""

    def __init__(self) -> None:
        self._unwritten: list[_Step] = []

    def append(self, now_ns: int, event: ServerEvent, commands: Sequence[ServerCommand]) -> None:
        """Note a step, which is stored from the next `write` on; `commands` must not change any more."""
        self._unwritten.append(_Step(now_ns, event, commands))

    def write(self) -> None:
        """Store the noted steps.

        An agent calls it before it sends a message, so the log never ends before what the router has received.

        Raises:
            OSError: there is no room for them.
        """
        if self._unwritten:
            body = _encoder.encode(self._unwritten)
            self._unwritten.clear()
            self._put(len(body).to_bytes(_LENGTH, "little") + body)

    @abstractmethod
    def _put(self, frame: bytes) -> None:
        """Append a frame to the stored log."""

    def clear(self) -> None:
        """Empty the log for the next run; no write may be in progress."""
        self._unwritten.clear()


class EpochLog(StepLog):
    """One file, in which a written step stays, whatever happens to the process then.

    It travels to a spawned process as one of its arguments. Each epoch needs a separate one: the steps of a dead agent
    stay there for the end of the run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fd = -1
        self._open(anonymous_file())

    def _open(self, fd: int) -> None:
        self._fd = fd
        # The next write is at the end of the file, even if another process has emptied it.
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)

    def _put(self, frame: bytes) -> None:
        left = memoryview(frame)
        while left:
            left = left[os.write(self._fd, left) :]

    # ------------------------------------------------------------------------------------------------------ the router

    def read(self) -> bytes:
        """Return the bytes in the file, for `steps_of`: parsing takes time, and a run may still be in progress."""
        size, data = os.fstat(self._fd).st_size, b""
        while more := os.pread(self._fd, size - len(data), len(data)):
            data += more
        return data

    # -------------------------------------------------------------------------------------------------------- both

    def clear(self) -> None:
        """See `StepLog`."""
        super().clear()
        os.ftruncate(self._fd, 0)

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()  # of an epoch that has ended, once its log is no longer needed

    def __getstate__(self) -> dict[str, Any]:
        return {"fd": DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__init__()
        self._fd = -1
        self._open(state["fd"].detach())


def steps_of(data: bytes, server: int) -> tuple[LoggedStep, ...]:
    """Return the steps that a `EpochLog` held, as those of this server; a frame that was cut off is left out.

    Raises:
        WorkError: they were not written by a `EpochLog`.
    """
    core = f"server:{server}"
    steps: list[LoggedStep] = []
    at = 0
    view = memoryview(data)
    while at + _LENGTH <= len(data):
        began = at + _LENGTH
        at = began + int.from_bytes(view[at:began], "little")
        if at > len(data):
            break
        try:
            decoded = _decoder.decode(view[began:at])
        except msgspec.DecodeError as error:
            raise WorkError(f"the log of an agent is damaged at byte {began}: {error}") from None
        steps += [LoggedStep(step.now_ns, core, step.event, tuple(step.commands)) for step in decoded]
    return tuple(steps)
