"""Counts Python's garbage collections in this process, and the pauses that they cause."""

from __future__ import annotations

import gc
import time  # noqa: TID251 - it measures
from typing import Self


class CollectionMeter:
    """Counts within its `with` block.

    Attributes:
        count: collections, of any generation.
        total_ns: their duration.
    """

    def __init__(self) -> None:
        self.count = self.total_ns = 0
        self._began_ns = 0

    def __enter__(self) -> Self:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, _: object) -> None:
        if phase == "start":
            self._began_ns = time.monotonic_ns()
        else:
            self.count += 1
            self.total_ns += time.monotonic_ns() - self._began_ns
