"""What is known of the hosts of a cluster: what each has, what does not fit, links and clocks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

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
    link: Link


@dataclass(frozen=True, slots=True)
class Measured:
    """All of a cluster."""

    clocks: tuple[HostClock, ...]
    links: tuple[HostLink, ...]

    def into(self, host: str) -> Link:
        """What brings activations to a host: the slowest of what leads there from the others, and from itself where
        there are none."""
        found = [each.link for each in self.links if each.destination == host and each.source != host]
        found = found or [each.link for each in self.links if each.destination == host]
        return max(found, key=lambda link: link.latency_s + SIZES[-1] / link.bandwidth_bytes_s)

    def document(self) -> dict[str, Any]:
        """As a file has it."""
        links = [
            {"source": each.source, "destination": each.destination, **each.link.model_dump(exclude={"loss"})}
            for each in self.links
        ]
        clocks = list(map(asdict, self.clocks))
        return {"schema": LINKS_SCHEMA, "provenance": "measured", "clocks": clocks, "links": links}


def measured_of(document: dict[str, Any]) -> Measured:
    """From a file's document."""
    return Measured(
        tuple(HostClock(**each) for each in document["clocks"]),
        tuple(
            HostLink(
                each["source"],
                each["destination"],
                Link(latency_s=each["latency_s"], bandwidth_bytes_s=each["bandwidth_bytes_s"]),
            )
            for each in document["links"]
        ),
    )


@dataclass(frozen=True, slots=True)
class CheckedHost:
    """One host.

    Attributes:
        servers: of the scenario, that are there.
        facts: None where it does not answer, or is not there.
        problems: what does not fit, each with the remedy.
    """

    host: str
    servers: tuple[str, ...]
    facts: HostFacts | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckedCluster:
    """All hosts that the scenario names, others that are there, and what lies between those that could be asked."""

    hosts: tuple[CheckedHost, ...]
    others: tuple[str, ...]
    measured: Measured | None

    @property
    def fits(self) -> bool:
        """Whether nothing stands against a run."""
        return not any(host.problems for host in self.hosts)

    def document(self) -> dict[str, Any]:
        """As `--json` writes it."""
        links = None if self.measured is None else self.measured.document()
        hosts = list(map(asdict, self.hosts))
        return {"schema": CHECK_SCHEMA, "hosts": hosts, "others": list(self.others), "fits": self.fits, "links": links}
