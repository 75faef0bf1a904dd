"""One account of all device memory of an agent."""

from __future__ import annotations

import threading


class MemoryBudget:
    """Bytes of a device, taken and given back by several threads.

    Args:
        total_bytes: of all that is taken together.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        """Count these bytes.

        Raises:
            MemoryError: fewer are left; none is counted.
        """
        with self._lock:
            if self.used_bytes + size_bytes > self.total_bytes:
                raise MemoryError(f"{size_bytes} bytes more than {self.used_bytes} exceed {self.total_bytes}")
            self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Give these bytes back."""
        with self._lock:
            self.used_bytes -= size_bytes
