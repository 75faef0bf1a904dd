"""Links between the router's host and the servers: named media, each first-in-first-out, with latency and bandwidth.

A transfer occupies the medium of its destination for its bytes and arrives one latency later. Servers that name the
same medium share it (`wifi5` is one medium for all of them; a switch has one a host).
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.vocabulary import ROUTER
from sim.profile import Link
from sim.tables import nanoseconds

PRESETS: dict[str, Link] = {
    "wifi5": Link(latency_s=2e-3, bandwidth_bytes_s=40e6),  # 802.11ac, about 320 Mbit/s of payload
    "1gbe": Link(latency_s=100e-6, bandwidth_bytes_s=117e6),
    "10gbe": Link(latency_s=30e-6, bandwidth_bytes_s=1.17e9),
    "loopback": Link(latency_s=10e-6, bandwidth_bytes_s=5e9),
}
SHARED_PRESETS = frozenset({"wifi5"})


@dataclass(frozen=True, slots=True)
class Attachment:
    """How a server hangs on the network."""

    medium: str
    link: Link


class Network:
    """All media of a cluster; it keeps when each is free again."""

    def __init__(self, attachments: tuple[Attachment, ...]) -> None:
        self._attachments = attachments
        self._free_at_ns = {attachment.medium: 0 for attachment in attachments}
        self._paths: dict[tuple[int, int], Link] = {}

    def transfer(self, source: int, destination: int, transfer_bytes: int, now_ns: int) -> tuple[int, int]:
        """Book a transfer; returns (start_ns, arrival_ns). The slower end of the path sets its pace."""
        medium = self._attachments[destination].medium
        started_ns = max(now_ns, self._free_at_ns[medium])
        link = self._path(source, destination)
        self._free_at_ns[medium] = started_ns + nanoseconds(transfer_bytes / link.bandwidth_bytes_s)
        return started_ns, self._free_at_ns[medium] + nanoseconds(link.latency_s)

    def duration_s(self, source: int, destination: int, transfer_bytes: int) -> float:
        """What a transfer takes on a free medium."""
        link = self._path(source, destination)
        return link.latency_s + transfer_bytes / link.bandwidth_bytes_s

    def _path(self, source: int, destination: int) -> Link:
        path = self._paths.get((source, destination))
        if path is None:
            ends = [self._attachments[end].link for end in (source, destination) if end != ROUTER]
            path = self._paths[source, destination] = Link(
                latency_s=max(end.latency_s for end in ends),
                bandwidth_bytes_s=min(end.bandwidth_bytes_s for end in ends),
            )
        return path
