"""Book-keeping of one server's device memory: what is charged, and whether more fits. It frees and loads nothing."""

from __future__ import annotations


class MemoryBook:
    """Memory of a server process under its cap M_max.

    Bytes are charged from a load's start and given back at an unload's end; those that are being freed are known, so
    that nobody evicts twice for the same need.

    Args:
        cap_bytes: M_max.
        context_bytes: what the process uses before any instance.
    """

    def __init__(self, cap_bytes: int, context_bytes: int) -> None:
        self.cap_bytes = cap_bytes
        self.context_bytes = context_bytes
        self.used_bytes = context_bytes
        self.peak_bytes = context_bytes
        self.freeing_bytes = 0

    def fits(self, vram_bytes: int) -> bool:
        """Whether an instance of this size could be charged now."""
        return self.used_bytes + vram_bytes <= self.cap_bytes

    def fits_once_freed(self, vram_bytes: int) -> bool:
        """Whether it could when the unloads under way have ended."""
        return self.used_bytes - self.freeing_bytes + vram_bytes <= self.cap_bytes

    def charge(self, vram_bytes: int) -> None:
        """A load starts."""
        assert self.fits(vram_bytes), "charged beyond the cap"
        self.used_bytes += vram_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def correct(self, by_bytes: int) -> None:
        """A load took so much more than was charged (less, if negative); it may be more than the cap."""
        self.used_bytes += by_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def start_freeing(self, vram_bytes: int) -> None:
        """An unload starts: still used, but on its way out."""
        self.freeing_bytes += vram_bytes

    def freed(self, vram_bytes: int) -> None:
        """An unload has ended."""
        self.freeing_bytes -= vram_bytes
        self.release(vram_bytes)

    def release(self, vram_bytes: int) -> None:
        """A load came to nothing, or an unload has ended."""
        self.used_bytes -= vram_bytes
        assert self.used_bytes >= self.context_bytes, "released more than was charged"

    def clear(self) -> None:
        """The process died: only the next one's context counts."""
        self.used_bytes = self.context_bytes
        self.freeing_bytes = 0
