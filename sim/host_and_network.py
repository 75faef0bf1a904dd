"""The links between the router's host and the servers, and the router's process as a server.

Media (`Interconnect`): a transfer occupies the medium of its destination for its bytes and arrives one latency later.
Servers that name the same medium share it (`wifi5` is one medium for all of them; a switch has one for each host).

Racks: servers may be in racks. Transfers into a rack from elsewhere, or from the router's host, which is in none, use
the rack's uplink, too; an uplink's latency counts at both ends of the path.

Losses (`rounds`): if packets are lost, the missing packets of a transfer are sent again one round trip later, until all
are there. The medium is occupied for the expected number of bytes; the number of rounds is drawn by hash, one draw for
each transfer.

The router's process (`SimulatedHost`): a decision, and a message that returns requests, costs the process a part for
each micro-batch (or message) and a part for each image. So the process has a limited capacity, and work that arrives
while it is busy is queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, expm1, inf, log
from typing import Protocol

from kit.random_streams import derived_seed, hashed, hashed_share
from policies.vocabulary import ROUTER, nanoseconds
from sim.device_profile import PAUSES_S, Link, RouterHost, WorkCost, pause_number

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


DECISIONS, RETURNS = "decision", "returned"  # names of its costs' random streams: `derived_seed(seed, name)`


@dataclass(frozen=True, slots=True)
class HostTable:
    """A host's costs in nanoseconds: `(micro_batch + image * images)` times one of `spread`, or times 1 if that is
    empty.

    Attributes:
        decision, returned: (micro-batch, image) of a decision, and of a message that returns requests.
        sent_permille: the part of a decision's cost until its micro-batch is sent; the rest is bookkeeping.
        received_permille: the part of a message's cost until its requests are back; the rest is bookkeeping.
        after_pause: see `sim.device_profile.RouterHost`; preceded by 1, for no pause.
        devices: the devices on whose cores the router's process runs; empty if it has a separate core.
    """

    decision: tuple[int, int]
    returned: tuple[int, int]
    spread: tuple[float, ...] = ()
    sent_permille: int = 1000
    received_permille: int = 1000
    after_pause: tuple[float, ...] = (1.0,) * (len(PAUSES_S) + 1)
    devices: tuple[int, ...] = ()

    @classmethod
    def of(cls, host: RouterHost, *, jitter: bool = True) -> HostTable:
        """Build the table from a profile; without jitter every cost is its mean."""
        shares = round(1000 * host.sent_share), round(1000 * host.received_share)
        table = cls(_in_ns(host.decision), _in_ns(host.returned), host.spread if jitter else (), *shares)
        return table if host.after_pause is None else replace(table, after_pause=(1.0, *host.after_pause))

    def cost_ns(self, cost: tuple[int, int], images: int, drawn: int, pause_ns: int) -> int:
        """Return one cost, after a pause; `drawn` is a large random number."""
        micro_batch_ns, image_ns = cost
        factor = self.after_pause[pause_number(pause_ns)]
        if self.spread:
            factor *= self.spread[drawn % len(self.spread)]
        return ceil((micro_batch_ns + image_ns * images) * factor)


def _in_ns(cost: WorkCost) -> tuple[int, int]:
    return nanoseconds(cost.micro_batch_s), nanoseconds(cost.image_s)


class Core(Protocol):
    """A device's cores, on which the router's process runs, too."""

    def free_ns(self) -> int:
        """Return when the process would get a core."""
        ...

    def occupy(self, work_ns: int, *, waits: bool) -> tuple[int, int]:
        """Occupy a core for this much work, perhaps after a wait; returns start and end."""
        ...


class SimulatedHost:
    """One run's host; it is free again at `free_ns`. Without a table decisions and messages cost it nothing.

    Args:
        cores: the cores of the devices that it shares; none if it has a separate core.
    """

    def __init__(self, table: HostTable | None, seed: int, cores: Sequence[Core] = ()) -> None:
        self.table = table
        self.free_ns = 0
        self._cores = cores
        self._core: Core | None = None
        self._decision_salt = derived_seed(seed, DECISIONS)
        self._returned_salt = derived_seed(seed, RETURNS)

    def decide(self, server: int, decision: int, images: int, decision_ns: int, now_ns: int) -> int:
        """Begin a decision on a free host; returns when its micro-batch is sent.

        Args:
            decision_ns: the policy's time, which is added.
        """
        if self.table is None:
            return now_ns + decision_ns
        drawn = hashed(self._decision_salt, server, decision)
        cost_ns = self.table.cost_ns(self.table.decision, images, drawn, now_ns - self.free_ns)
        begun_ns = self._work(decision_ns + cost_ns, now_ns)
        return min(self.free_ns, begun_ns + decision_ns + cost_ns * self.table.sent_permille // 1000)

    def hear(self, server: int, message: int, images: int, now_ns: int) -> int:
        """Process a message that has arrived; returns when its requests are back. `table` is not None."""
        assert self.table is not None, "a host without costs receives at once"
        drawn, before_ns = hashed(self._returned_salt, server, message), self.free_ns
        cost_ns = self.table.cost_ns(self.table.returned, images, drawn, now_ns - before_ns)
        begun_ns = max(self._work(cost_ns, now_ns), before_ns)
        return min(self.free_ns, begun_ns + cost_ns * self.table.received_permille // 1000)

    def _work(self, work_ns: int, now_ns: int) -> int:
        """Do work after all queued work; returns when it begins.

        It delays no other process while some core is free: the operating system moves it there. Otherwise a host that
        has slept waits for the core that is free first, the first of equal ones; a busy host stays.
        """
        free_ns = [core.free_ns() for core in self._cores]
        if not free_ns or min(free_ns) <= now_ns:
            begun_ns = max(now_ns, self.free_ns)
            self.free_ns = begun_ns + work_ns
            return begun_ns
        has_slept = self._core is None or self.free_ns < now_ns
        if has_slept:
            self._core = self._cores[free_ns.index(min(free_ns))]
        assert self._core is not None, "just taken"
        begun_ns, ended_ns = self._core.occupy(work_ns, waits=has_slept)
        self.free_ns = max(self.free_ns, ended_ns)
        return begun_ns
