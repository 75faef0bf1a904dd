"""Emulated links: when a transfer between servers would end on a network that is not here. One question, no clock.

The simulator's own model of the network answers it (`sim.network.Network`), handed in by whoever composes a run, so
that both worlds have the same links with the same parameters.
"""

from __future__ import annotations

from typing import Protocol


class LinkModel(Protocol):
    """The network of one run; it keeps when each medium is free again."""

    def transfer(self, source: int, destination: int, transfer_bytes: int, now_ns: int) -> tuple[int, int]:
        """Book a transfer; returns (start_ns, arrival_ns), both at or after now."""
        ...
