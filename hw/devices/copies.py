"""Copies between arenas and a GPU that block nobody: pinned memory, a stream of their own, and events.

Without them every copy is pageable and holds its thread. With them what arrives is copied while passes run, and a
pass waits on the device for its own inputs alone; what leaves is copied in a thread of its own, which tells when it is
there.

What makes that safe, besides `docs/executors.md`: an input's place in the arena is free only when its request was
served, moved or given up. Who serves or moves it has waited for its copy; what was given up nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from hw.transport.arena import Arena

T = TypeVar("T")
_SUCCESS: Final = 0


class Copies:
    """The copies of one agent.

    Args:
        arenas: that it reads and writes.
        place: the GPU.
        cuda: `torch.cuda`, or what behaves like it.

    Attributes:
        problem: why an arena is not pinned, so that its copies are as slow as before; empty where all are.
    """

    def __init__(self, arenas: Sequence[Arena], place: torch.device, cuda: Any = torch.cuda) -> None:
        self._place = place
        self._cuda = cuda
        self._stream = cuda.Stream(place)
        self.problem = _pin(arenas, cuda)

    def bring(self, x: Tensor, dtype: torch.dtype, keep: Callable[[Tensor], T]) -> tuple[T, Any]:
        """Begin to copy to the GPU, and keep what will be there: what `keep` says, and the event after which it is."""
        with self._cuda.stream(self._stream):
            kept = keep(x.to(self._place, non_blocking=True).to(dtype))
            event = self._cuda.Event()
            event.record(self._stream)
        return kept, event

    def wait_for(self, event: Any) -> None:
        """Nothing that follows on this thread's stream begins before it; the thread itself goes on."""
        self._cuda.current_stream(self._place).wait_event(event)

    def fetch(self, block: Callable[[], Tensor], target: Callable[[Tensor], Tensor]) -> Tensor:
        """Copy what `block` gathers to where `target` says, and wait until it is there; returns it."""
        with self._cuda.stream(self._stream):
            found = block()
            target(found).copy_(found, non_blocking=True)
            event = self._cuda.Event(blocking=True)  # the thread sleeps
            event.record(self._stream)
        event.synchronize()
        return found


def _pin(arenas: Sequence[Arena], cuda: Any) -> str:
    """CUDA may copy to and from these directly; says why not, where it refuses one."""
    runtime = cuda.cudart()
    for number, arena in enumerate(arenas):
        address = torch.frombuffer(arena.buffer, dtype=torch.uint8).data_ptr()
        code = int(runtime.cudaHostRegister(address, arena.size_bytes, 0))
        if code != _SUCCESS:
            return f"arena {number} is not pinned: CUDA error {code}"
    return ""
