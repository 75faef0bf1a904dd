"""What is known of the hosts of a cluster: what each has, what does not fit, links and clocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from hw.ray.cluster import HostFacts
from sim.profile import Link

LINKS_SCHEMA: Final = "slimsched.links/1"
CHECK_SCHEMA: Final = "slimsched.cluster/1"
SIZES: Final = (256, 4096, 65536, 1 << 20)  # bytes of a move, as a calibration on one host has them


@dataclass(frozen=True, slots=True)
class HostClock:
    """How far a host's clock is ahead of the router's, and how wrong that may be."""

    host: str
    offset_s: float
    error_s: float


@dataclass(frozen=True, slots=True)
class HostLink:
    """From one host to another: what a move takes, its command and its answer included."""

    source: str
    destination: str
    latency_s: float
    bandwidth_bytes_s: float

    @property
    def link(self) -> Link:
        """The link, as a profile has it."""
        return Link(latency_s=self.latency_s, bandwidth_bytes_s=self.bandwidth_bytes_s)


@dataclass(frozen=True, slots=True)
class ClusterMeasurements:
    """All of a cluster: what its file has."""

    schema: str = field(default=LINKS_SCHEMA, kw_only=True)
    provenance: str = field(default="measured", kw_only=True)
    clocks: tuple[HostClock, ...]
    links: tuple[HostLink, ...]

    def into(self, host: str) -> Link:
        """Return the link that brings activations to a host: the slowest from other hosts, or its own if alone."""
        incoming = [each.link for each in self.links if each.destination == host and each.source != host]
        incoming = incoming or [each.link for each in self.links if each.destination == host]
        return max(incoming, key=lambda link: link.latency_s + SIZES[-1] / link.bandwidth_bytes_s)


@dataclass(frozen=True, slots=True)
class CheckedHost:
    """One host.

    Attributes:
        servers: of the scenario, that are there.
        facts: None if it does not answer, or is not there.
        problems: what does not fit, each with the remedy.
    """

    host: str
    servers: tuple[str, ...]
    facts: HostFacts | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckedCluster:
    """All hosts that the scenario names, others that are there, and the links between those that answered."""

    hosts: tuple[CheckedHost, ...]
    others: tuple[str, ...]
    measured: ClusterMeasurements | None

    @property
    def fits(self) -> bool:
        """Whether nothing prevents a run."""
        return not any(host.problems for host in self.hosts)

    def document(self) -> dict[str, Any]:
        """Return the document that `--json` writes."""
        hosts, links = (None if part is None else msgspec.to_builtins(part) for part in (self.hosts, self.measured))
        return {"schema": CHECK_SCHEMA, "hosts": hosts, "others": list(self.others), "fits": self.fits, "links": links}
