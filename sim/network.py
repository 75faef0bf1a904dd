"""Links between the router's host and the servers: named media, each first-in-first-out, with latency and bandwidth.

A transfer occupies the medium of its destination for its bytes and arrives one latency later. Servers that name the
same medium share it (`wifi5` is one medium for all of them; a switch has one for each host).

Servers may be in racks. Transfers into a rack from elsewhere, or from the router's host, which is in none, use the
rack's uplink, too; an uplink's latency counts at both ends of the path.

If packets are lost, the missing packets of a transfer are sent again one round trip later, until all are there. The
medium is occupied for the expected number of bytes; the number of rounds is drawn by hash, one draw for each transfer.
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
FREE = Link.model_construct(latency_s=0.0, bandwidth_bytes_s=inf, loss=0.0)  # no file may contain infinity
PACKET_BYTES = 1500
LINKS = "links"  # the networks' random stream: `derived_seed(seed, LINKS)` is their salt in both engines


@dataclass(frozen=True, slots=True)
class Attachment:
    """A server's connection to the network; `uplink` is its rack's connection, for all transfers into it."""

    medium: str
    link: Link
    rack: str = ""
    uplink: Link | None = None


@dataclass(frozen=True, slots=True)
class _Path:
    latency_s: float
    bandwidth_bytes_s: float
    loss: float
    uplink_bytes_s: float = inf

    def occupied_s(self, transfer_bytes: int) -> float:
        """Return how long a transfer occupies the medium, with losses and resends (the expected value)."""
        return transfer_bytes / (1 - self.loss) / self.bandwidth_bytes_s

    def uplink_s(self, transfer_bytes: int) -> float:
        """Return the same for the uplink of the destination's rack, for transfers from elsewhere."""
        return transfer_bytes / (1 - self.loss) / self.uplink_bytes_s


class Interconnect:
    """All media of a cluster, with the times at which they are free again.

    Args:
        salt: salt of the hash that draws each transfer's rounds.
    """

    def __init__(self, attachments: tuple[Attachment, ...], salt: int = 0) -> None:
        self._attachments = attachments
        self._free_at_ns = {attachment.medium: 0 for attachment in attachments}
        self._media = {medium: index for index, medium in enumerate(self._free_at_ns)}
        self._transfers = dict.fromkeys(self._free_at_ns, 0)
        self._uplink_free_at_ns = dict.fromkeys([attachment.rack for attachment in attachments], 0)
        self._paths: dict[tuple[int, int], _Path] = {}
        self._salt = salt

    def transfer(self, source: int, destination: int, transfer_bytes: int, now_ns: int) -> tuple[int, int]:
        """Book a transfer; returns (start_ns, arrival_ns). The slower end of the path determines its rate.

        Into a rack it is booked on the uplink first, then on the server's medium.
        """
        attachment, path = self._attachments[destination], self._path(source, destination)
        medium = attachment.medium
        if path.uplink_bytes_s < inf:
            begun_ns = max(now_ns, self._uplink_free_at_ns[attachment.rack])
            now_ns = begun_ns + nanoseconds(path.uplink_s(transfer_bytes))
            self._uplink_free_at_ns[attachment.rack] = now_ns
        started_ns = max(now_ns, self._free_at_ns[medium])
        free_at_ns = self._free_at_ns[medium] = started_ns + nanoseconds(path.occupied_s(transfer_bytes))
        latencies = 1
        if path.loss > 0:
            chance = hashed_share(self._salt, self._media[medium], self._transfers[medium])
            latencies += 2 * (rounds(transfer_bytes, path.loss, chance) - 1)
        self._transfers[medium] += 1
        return started_ns, free_at_ns + nanoseconds(latencies * path.latency_s)

    def duration_s(self, source: int, destination: int, transfer_bytes: int) -> float:
        """Return a transfer's time on a free medium; with losses, its expected bytes, but not its rounds."""
        path = self._path(source, destination)
        return path.latency_s + path.uplink_s(transfer_bytes) + path.occupied_s(transfer_bytes)

    def uplink_s(self, source: int, destination: int, transfer_bytes: int) -> float:
        """Return the part of that on the uplink of the destination's rack."""
        return self._path(source, destination).uplink_s(transfer_bytes)

    def _path(self, source: int, destination: int) -> _Path:
        path = self._paths.get((source, destination))
        if path is None:
            attachments = [self._attachments[end] for end in (source, destination) if end != ROUTER]
            ends, arrives = [each.link for each in attachments], 1.0
            for end in ends:
                arrives *= 1 - end.loss
            is_near = len({each.rack for each in attachments}) == 1 and source != ROUTER
            uplinks = [] if is_near else [each.uplink for each in attachments if each.uplink is not None]
            into = attachments[-1].uplink
            path = self._paths[source, destination] = _Path(
                latency_s=max(end.latency_s for end in ends) + sum(uplink.latency_s for uplink in uplinks),
                bandwidth_bytes_s=min(end.bandwidth_bytes_s for end in ends),
                loss=1 - arrives,
                uplink_bytes_s=inf if is_near or into is None else into.bandwidth_bytes_s,
            )
        return path


def rounds(transfer_bytes: int, loss: float, chance: float) -> int:
    """Return the number of rounds until all packets arrived: the smallest r >= 1 with (1 - loss^r)^n >= chance.

    Args:
        transfer_bytes: n packets of `PACKET_BYTES`.
        loss: the probability that a packet is lost, in (0, 1).
        chance: uniform in [0, 1).
    """
    packets = ceil(transfer_bytes / PACKET_BYTES)
    if packets == 0 or chance == 0.0:
        return 1
    one_missing = -expm1(log(chance) / packets)  # 1 - chance^(1/n), exact if that is tiny
    return max(1, ceil(log(one_missing) / log(loss)))
