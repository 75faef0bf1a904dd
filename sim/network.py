"""Links between the router's host and the servers: named media, each first-in-first-out, with latency and bandwidth.

A transfer occupies the medium of its destination for its bytes and arrives one latency later. Servers that name the
same medium share it (`wifi5` is one medium for all of them; a switch has one a host).

Where packets get lost, those of a transfer that are missing are sent again one round trip later, until all are there.
The medium carries the expected number of bytes; how many rounds it takes is drawn by hash, one draw a transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, expm1, inf, log

from kit.chance import hashed_share
from policies.vocabulary import ROUTER, nanoseconds
from sim.profile import Link

PRESETS: dict[str, Link] = {
    "wifi5": Link(latency_s=2e-3, bandwidth_bytes_s=40e6),  # 802.11ac, about 320 Mbit/s of payload
    "1gbe": Link(latency_s=100e-6, bandwidth_bytes_s=117e6),
    "10gbe": Link(latency_s=30e-6, bandwidth_bytes_s=1.17e9),
    "loopback": Link(latency_s=10e-6, bandwidth_bytes_s=5e9),
}
SHARED_PRESETS = frozenset({"wifi5"})
FREE = Link.model_construct(latency_s=0.0, bandwidth_bytes_s=inf, loss=0.0)  # no file may say infinity
PACKET_BYTES = 1500
LINKS = "links"  # the name of the networks' chance: `derived_seed(seed, LINKS)` is their salt in both worlds


@dataclass(frozen=True, slots=True)
class Attachment:
    """How a server hangs on the network."""

    medium: str
    link: Link


@dataclass(frozen=True, slots=True)
class _Path:
    """From one place to another."""

    latency_s: float
    bandwidth_bytes_s: float
    loss: float

    def occupied_s(self, transfer_bytes: int) -> float:
        """How long the medium carries it, what is lost and sent again included (the expected value)."""
        return transfer_bytes / (1 - self.loss) / self.bandwidth_bytes_s


class Interconnect:
    """All media of a cluster; it keeps when each is free again.

    Args:
        salt: of the hash that draws each transfer's rounds.
    """

    def __init__(self, attachments: tuple[Attachment, ...], salt: int = 0) -> None:
        self._attachments = attachments
        self._free_at_ns = {attachment.medium: 0 for attachment in attachments}
        self._media = {medium: index for index, medium in enumerate(self._free_at_ns)}
        self._transfers = dict.fromkeys(self._free_at_ns, 0)
        self._paths: dict[tuple[int, int], _Path] = {}
        self._salt = salt

    def transfer(self, source: int, destination: int, transfer_bytes: int, now_ns: int) -> tuple[int, int]:
        """Book a transfer; returns (start_ns, arrival_ns). The slower end of the path sets its pace."""
        medium = self._attachments[destination].medium
        started_ns = max(now_ns, self._free_at_ns[medium])
        path = self._path(source, destination)
        free_at_ns = self._free_at_ns[medium] = started_ns + nanoseconds(path.occupied_s(transfer_bytes))
        latencies = 1
        if path.loss > 0:
            chance = hashed_share(self._salt, self._media[medium], self._transfers[medium])
            latencies += 2 * (rounds(transfer_bytes, path.loss, chance) - 1)
        self._transfers[medium] += 1
        return started_ns, free_at_ns + nanoseconds(latencies * path.latency_s)

    def duration_s(self, source: int, destination: int, transfer_bytes: int) -> float:
        """What a transfer takes on a free medium; of losses it knows the bytes, not the rounds."""
        path = self._path(source, destination)
        return path.latency_s + path.occupied_s(transfer_bytes)

    def _path(self, source: int, destination: int) -> _Path:
        path = self._paths.get((source, destination))
        if path is None:
            ends = [self._attachments[end].link for end in (source, destination) if end != ROUTER]
            arrives = 1.0
            for end in ends:
                arrives *= 1 - end.loss
            path = self._paths[source, destination] = _Path(
                latency_s=max(end.latency_s for end in ends),
                bandwidth_bytes_s=min(end.bandwidth_bytes_s for end in ends),
                loss=1 - arrives,
            )
        return path


def rounds(transfer_bytes: int, loss: float, chance: float) -> int:
    """How often the missing packets are sent until all have arrived: the smallest r >= 1 with (1 - loss^r)^n >= chance.

    Args:
        transfer_bytes: n packets of `PACKET_BYTES`.
        loss: the probability that a packet is lost, in (0, 1).
        chance: uniform in [0, 1).
    """
    packets = ceil(transfer_bytes / PACKET_BYTES)
    if packets == 0 or chance == 0.0:
        return 1
    one_missing = -expm1(log(chance) / packets)  # 1 - chance^(1/n), exact where that is tiny
    return max(1, ceil(log(one_missing) / log(loss)))
