"""Shared memory that has no name, and the ledger of who holds which part of it.

Every agent has an arena that all agents and the router map: activations and images for it are written there by
whoever has them, and read there in place. It is an anonymous file (`memfd` where there is one), so that the kernel
frees it with the last process that maps it, however that process ends: nothing can be left behind, and /dev/shm's size
is no limit. The router alone decides who may write where (`Inbox`); nothing here locks.
"""

from __future__ import annotations

import mmap
import os
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.reduction import DupFd
from typing import Any, ClassVar

from hw.host.anonymous import anonymous_file

ALIGNMENT = 64  # a cache line; enough for any element type


class LinkLostError(OSError):
    """Activations could not be brought to another host: nobody takes them there, or not in time."""


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
        """A part of it, to read and to write."""
        return memoryview(self.buffer)[offset : offset + size_bytes]

    def commit(self, offset: int, size_bytes: int, address: str = "") -> None:
        """What was written there stands where the arena's agent reads, before anything that is said of it from here on.

        There is nothing to do where both map one memory; a carrier that has none sends it.

        Args:
            address: where that agent is, as its carrier names it.

        Raises:
            LinkLostError: it could not be brought there.
        """

    def close(self) -> None:
        """Let go of the file; the mapping goes with whatever looks at it last."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __getstate__(self) -> dict[str, Any]:
        return {"size_bytes": self.size_bytes, "fd": DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.size_bytes = state["size_bytes"]
        self._open(state["fd"].detach())


class FreeList:
    """What is free of a piece of memory: first fit over a sorted list. Whoever frees a part says which."""

    def __init__(self, size_bytes: int) -> None:
        self._free: list[tuple[int, int]] = [(0, size_bytes)]  # (offset, bytes), never touching each other

    @property
    def free_bytes(self) -> int:
        """In however many pieces."""
        return sum(size for _, size in self._free)

    def take(self, size_bytes: int) -> tuple[int, int] | None:
        """(offset, bytes) of a part that is at least so large; None where there is none."""
        needed = max(ALIGNMENT, -(-size_bytes // ALIGNMENT) * ALIGNMENT)
        for index, (offset, size) in enumerate(self._free):
            if size >= needed:
                self._free[index : index + 1] = [(offset + needed, size - needed)] if size > needed else []
                return offset, needed
        return None

    def free(self, offset: int, size_bytes: int) -> None:
        """A part that was taken."""
        insort(self._free, (offset, size_bytes))
        merged: list[tuple[int, int]] = []
        for each_offset, size in self._free:
            if merged and merged[-1][0] + merged[-1][1] == each_offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((each_offset, size))
        self._free = merged


@dataclass(slots=True)
class Slab:
    """A part of an arena: whose inputs are (or will be) in it, and whether somebody may still write there."""

    offset: int
    size_bytes: int
    held_for: set[int] = field(default_factory=set)
    is_written_to: bool = True


class Inbox:
    """Where one agent's inputs are written to, as the router keeps it: the ledger of its arena."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._room = FreeList(arena.size_bytes)
        self._slab_of: dict[int, Slab] = {}

    @property
    def free_bytes(self) -> int:
        """What no slab takes of the arena."""
        return self._room.free_bytes

    def reserve(self, requests: Iterable[int], size_bytes: int) -> Slab | None:
        """Room for these requests' inputs, written to from now on; None where there is none."""
        part = self._room.take(size_bytes)
        return None if part is None else Slab(*part, set(requests))

    def fill(self, slab: Slab) -> None:
        """Its inputs stand there, and stay for each request until `forget`."""
        slab.is_written_to = False
        for request in slab.held_for:
            self._slab_of[request] = slab

    def cancel(self, slab: Slab) -> None:
        """Nothing will be read from it, and nobody writes to it any more."""
        slab.is_written_to = False
        self._release(slab)

    def forget(self, requests: Iterable[int]) -> None:
        """These requests' inputs are used up, moved on or given up."""
        for request in requests:
            slab = self._slab_of.pop(request, None)
            if slab is not None:
                slab.held_for.discard(request)
                if not slab.held_for:
                    self._release(slab)

    def clear(self) -> None:
        """The agent forgot everything; slabs that are written to are freed by `cancel`, when that has ended."""
        self.forget(list(self._slab_of))

    def _release(self, slab: Slab) -> None:
        assert not slab.is_written_to, "given back under somebody's pen"
        self._room.free(slab.offset, slab.size_bytes)
