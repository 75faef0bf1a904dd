"""Mailboxes: pieces of a GPU's memory that its other agents write activations to, without the host's memory.

Each agent has one and tells its handle (`Ready`); the router keeps the ledger of it beside the arena's
(`hw.transport.arena`), and names the handle to whoever is to write there (`Move`). What stands there is
read in place, as in an arena on a CPU.

A writer waits for the end of its copy before it says that it has moved anything, and the router frees a place only when
its reader is done: so no event needs to cross processes.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Sharing(Protocol):
    """How processes share a device's memory."""

    def share(self, region: Tensor) -> str:
        """A handle by which others open it."""
        ...

    def open(self, handle: str) -> Tensor:
        """Another process's region; raises `RuntimeError` where it is gone."""
        ...


class Mailbox:
    """An agent's own region, and those of the others that it has opened.

    Args:
        region: bytes on the device.

    Attributes:
        handle: of the region, for the others.
    """

    def __init__(self, region: Tensor, sharing: Sharing) -> None:
        self.region = region
        self.handle = sharing.share(region)
        self._sharing = sharing
        self._opened: dict[int, tuple[str, Tensor]] = {}

    def of(self, agent: int, handle: str) -> Tensor:
        """Another agent's region, opened once in each of its lives."""
        opened = self._opened.get(agent)
        if opened is None or opened[0] != handle:
            self._opened.pop(agent, None)  # of a former life: its memory may go
            opened = self._opened[agent] = (handle, self._sharing.open(handle))
        return opened[1]


def region_of(size_bytes: int, place: torch.device) -> Tensor:
    """Memory for a mailbox."""
    return torch.empty(size_bytes, dtype=torch.uint8, device=place)
