"""The accounting of one server's device memory: its charges, and whether more fits. It frees and loads nothing."""

from __future__ import annotations


class MemoryBook:
    """Memory of a server process under its cap M_max.

    Bytes are charged from a load's start and released at an unload's end; bytes being freed are known, so that one need
    causes one eviction.

    Args:
        cap_bytes: M_max.
        context_bytes: the memory of the process before any instance.
    """

    def __init__(self, cap_bytes: int, context_bytes: int) -> None:
        self.cap_bytes = cap_bytes
        self.context_bytes = context_bytes
        self.used_bytes = context_bytes
        self.peak_bytes = context_bytes
        self.freeing_bytes = 0

    def fits(self, vram_bytes: int) -> bool:
        """Return whether an instance of this size can be charged now."""
        return self.used_bytes + vram_bytes <= self.cap_bytes

    def fits_once_freed(self, vram_bytes: int) -> bool:
        """Return whether it can be charged when the unloads in progress have ended."""
        return self.used_bytes - self.freeing_bytes + vram_bytes <= self.cap_bytes

    def charge(self, vram_bytes: int) -> None:
        """Charge a load that starts."""
        assert self.fits(vram_bytes), "charged beyond the cap"
        self.used_bytes += vram_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def correct(self, by_bytes: int) -> None:
        """Charge the difference to a load's actual size (negative if smaller); the sum may exceed the cap."""
        self.used_bytes += by_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def start_freeing(self, vram_bytes: int) -> None:
        """Note that an unload starts: its memory is still used, but being freed."""
        self.freeing_bytes += vram_bytes

    def freed(self, vram_bytes: int) -> None:
        """Release the memory of an unload that has ended."""
        self.freeing_bytes -= vram_bytes
        self.release(vram_bytes)

    def release(self, vram_bytes: int) -> None:
        """Release the memory of a failed load, or of an unload that has ended."""
        self.used_bytes -= vram_bytes
        assert self.used_bytes >= self.context_bytes, "released more than was charged"

    def clear(self) -> None:
        """Reset after the process has died: only the next one's context counts."""
        self.used_bytes = self.context_bytes
        self.freeing_bytes = 0
