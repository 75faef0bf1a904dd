"""Memory and files without a name: arenas of activations, and the step log that outlives a worker's process.

Arenas (`Arena`): every worker has an arena that all workers and the router map: the process that has activations or
images for the worker writes them into it, and the worker reads them in place. An arena is an anonymous file (`memfd` if
available), so the kernel frees it with the last process that maps it, however that process ends: nothing is left
behind, and /dev/shm's size does not limit it. The router alone decides which process may write where (`Inbox`); no code
here locks.

The step log (`IncarnationLog`) has the scheduler's steps in one incarnation of a worker. The router makes the log's
file and keeps it open, and the worker appends to it. The file is anonymous, so it has no name and leaves nothing
behind. It consists of
frames, each a length and that number of bytes of msgpack: the steps since the previous frame. A kill may cut off the
last frame only. Nothing that is read from a log can execute code.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.reduction import DupFd
from typing import Any, ClassVar, Final

import msgspec

from kit.errors import WorkError
from policies.run_records import LoggedStep
from policies.vocabulary import ServerCommand, ServerEvent

# ------------------------------------------------------------------------------------------------------ anonymous files


def anonymous_file() -> int:
    """Return an empty file's descriptor: in memory if the system has such files, otherwise unlinked at once."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("slimsched")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


# --------------------------------------------------------------------------------------------------------------- arenas


ALIGNMENT = 64  # a cache line; enough for any element type


class LinkLostError(OSError):
    """Activations could not be transferred to another host: its worker does not receive them, or not in time."""


class Arena:
    """`size_bytes` of shared memory (`buffer`); travels to a spawned process as one of its arguments.

    Attributes:
        waits: whether `commit` may wait for a network.
    """

    waits: ClassVar[bool] = False

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        fd = anonymous_file()
        os.ftruncate(fd, size_bytes)
        self._open(fd)

    def _open(self, fd: int) -> None:
        self._fd = fd
        self.buffer = mmap.mmap(fd, self.size_bytes)

    def view(self, offset: int, size_bytes: int) -> memoryview:
        """Return a part of it, to read and to write."""
        return memoryview(self.buffer)[offset : offset + size_bytes]

    def commit(self, offset: int, size_bytes: int, address: str = "") -> None:
        """Make what was written there readable by the arena's worker before any later message about it.

        Nothing needs to be done if both processes map the same memory; otherwise the bytes are sent.

        Args:
            address: of that worker's listener, in the transport's notation.

        Raises:
            LinkLostError: the bytes could not be transferred.
        """

    def close(self) -> None:
        """Close the file; the mapping ends with its last view."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __getstate__(self) -> dict[str, Any]:
        return {"size_bytes": self.size_bytes, "fd": DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.size_bytes = state["size_bytes"]
        self._open(state["fd"].detach())


class FreeList:
    """The free parts of a piece of memory: first fit over a sorted list. The caller specifies which part to free."""

    def __init__(self, size_bytes: int) -> None:
        self._free: list[tuple[int, int]] = [(0, size_bytes)]  # (offset, bytes), never touching each other

    @property
    def free_bytes(self) -> int:
        """The free bytes, in any number of pieces."""
        return sum(size for _, size in self._free)

    def take(self, size_bytes: int) -> tuple[int, int] | None:
        """Return (offset, bytes) of a part of at least this size; None if there is none."""
        needed = max(ALIGNMENT, -(-size_bytes // ALIGNMENT) * ALIGNMENT)
        for index, (offset, size) in enumerate(self._free):
            if size >= needed:
                self._free[index : index + 1] = [(offset + needed, size - needed)] if size > needed else []
                return offset, needed
        return None

    def free(self, offset: int, size_bytes: int) -> None:
        """Free a part that was taken."""
        insort(self._free, (offset, size_bytes))
        merged: list[tuple[int, int]] = []
        for part_offset, size in self._free:
            if merged and merged[-1][0] + merged[-1][1] == part_offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((part_offset, size))
        self._free = merged


@dataclass(slots=True)
class Slab:
    """A part of an arena: the requests whose inputs are (or will be) in it, and whether it may still be written."""

    offset: int
    size_bytes: int
    held_for: set[int] = field(default_factory=set)
    is_written_to: bool = True


class Inbox:
    """The router's ledger of one worker's arena, which holds the worker's inputs."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._room = FreeList(arena.size_bytes)
        self._slab_of: dict[int, Slab] = {}

    @property
    def free_bytes(self) -> int:
        """The bytes of the arena that no slab takes."""
        return self._room.free_bytes

    def reserve(self, requests: Iterable[int], size_bytes: int) -> Slab | None:
        """Reserve room for these requests' inputs, to be written from now on; return None if there is none."""
        part = self._room.take(size_bytes)
        return None if part is None else Slab(*part, set(requests))

    def fill(self, slab: Slab) -> None:
        """Mark its inputs as complete; they stay for each request until `forget`."""
        slab.is_written_to = False
        for request in slab.held_for:
            self._slab_of[request] = slab

    def cancel(self, slab: Slab) -> None:
        """Release a slab that will not be read, and is no longer written."""
        slab.is_written_to = False
        self._release(slab)

    def forget(self, requests: Iterable[int]) -> None:
        """Release the inputs of requests that are finished, moved or dropped."""
        for request in requests:
            slab = self._slab_of.pop(request, None)
            if slab is not None:
                slab.held_for.discard(request)
                if not slab.held_for:
                    self._release(slab)

    def clear(self) -> None:
        """Release everything that the worker forgot; `cancel` frees slabs in writing once the writing has ended."""
        self.forget(list(self._slab_of))

    def _release(self, slab: Slab) -> None:
        assert not slab.is_written_to, "freed while it is written to"
        self._room.free(slab.offset, slab.size_bytes)


# --------------------------------------------------------------------------------------------------------- the step log


_LENGTH: Final = 4  # bytes


class _Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    now_ns: int
    event: ServerEvent
    commands: Sequence[ServerCommand]


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[_Step]] = msgspec.msgpack.Decoder(list[_Step])


class StepLog(ABC):
    """The log as a worker writes it, wherever it is stored."""

    def __init__(self) -> None:
        self._unwritten: list[_Step] = []

    def append(self, now_ns: int, event: ServerEvent, commands: Sequence[ServerCommand]) -> None:
        """Note a step, which is stored from the next `write` on; `commands` must not change any more."""
        self._unwritten.append(_Step(now_ns, event, commands))

    def write(self) -> None:
        """Store the noted steps.

        A worker calls it before it sends a message, so the log never ends before what the router has received.

        Raises:
            OSError: they do not fit.
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


class IncarnationLog(StepLog):
    """One file, in which a written step stays, whatever happens to the process then.

    It travels to a spawned process as one of its arguments. Each incarnation needs a separate one: the steps of a dead
    worker stay there for the end of the run.
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
        unwritten = memoryview(frame)
        while unwritten:
            unwritten = unwritten[os.write(self._fd, unwritten) :]

    # ------------------------------------------------------------------------------------------------------ the router

    def read(self) -> bytes:
        """Return the bytes in the file, for `steps_of`: parsing takes time, and a run may still be in progress."""
        size, data = os.fstat(self._fd).st_size, b""
        while chunk := os.pread(self._fd, size - len(data), len(data)):
            data += chunk
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
        self.close()  # of an incarnation that has ended, once its log is no longer needed

    def __getstate__(self) -> dict[str, Any]:
        return {"fd": DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__init__()
        self._fd = -1
        self._open(state["fd"].detach())


def steps_of(data: bytes, server: int) -> tuple[LoggedStep, ...]:
    """Return the steps that a `IncarnationLog` held, as those of this server; a frame that was cut off is left out.

    Raises:
        WorkError: they were not written by a `IncarnationLog`.
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
            raise WorkError(f"the log of a worker is damaged at byte {began}: {error}") from None
        steps += [LoggedStep(step.now_ns, core, step.event, tuple(step.commands)) for step in decoded]
    return tuple(steps)
