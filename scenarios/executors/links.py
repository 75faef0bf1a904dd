"""What lies between the hosts of a cluster: latency and bandwidth both ways, and how far their clocks are apart.

It is measured as runs use it: an agent on each host, which computes nothing, writes to the others' arenas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from calibrate.fit import link_of
from hw.agents import AgentHandle, AgentSpec, transfer_round
from hw.emulated_outfit import EmulatedOutfit
from hw.ray_agents import RayHosts
from scenarios.executors.emulation import playing
from scenarios.executors.hosts import Hosts
from scenarios.files.reading import read_profile
from scenarios.files.shipped import profile_file
from scenarios.files.spec import DeviceSection
from sim.emulation import Emulation
from sim.profile import Link

SCHEMA: Final = "slimsched.links/1"
SIZES: Final = (256, 4096, 65536, 1 << 20)  # as a calibration on one host moves them
MOVES: Final = 20
_PLAYED: Final = "t4"  # any shipped profile would do: nothing of it is used


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
        clocks = [{"host": c.host, "offset_s": c.offset_s, "error_s": c.error_s} for c in self.clocks]
        return {"schema": SCHEMA, "provenance": "measured", "clocks": clocks, "links": links}


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


def measure_links(hosts: Hosts, names: Sequence[str], say: Callable[[str], None] = lambda _: None) -> Measured:
    """Between these hosts and the router's, each pair both ways, and each host with itself.

    Raises:
        WorkError: an agent could not be started, or a link dies.
    """
    every = list(dict.fromkeys([hosts.here, *names]))
    device = playing(
        Emulation(read_profile(profile_file(_PLAYED)).to_yaml(), 1), "none", DeviceSection(emulated=_PLAYED)
    )
    with closing(RayHosts(hosts.cluster, every)) as carrier, ExitStack() as stack:
        carrier.arenas(len(every), 2 * SIZES[-1])
        agents = [
            carrier.start(index, AgentSpec(f"link-{host}", EmulatedOutfit(device, (), index)))
            for index, host in enumerate(every)
        ]
        for agent in agents:
            stack.callback(agent.close)
        for agent in agents:
            agent.wait_until_ready()
            agent.find_offset()
        links = []
        for source, agent in zip(every, agents, strict=True):
            for index, destination in enumerate(every):
                if source == destination and len(every) > 1:
                    continue
                say(f"links: {source} to {destination}")
                links.append(HostLink(source, destination, _link(agent, index, agents[index].address)))
        clocks = tuple(_clock(host, agent) for host, agent in zip(every, agents, strict=True))
    return Measured(clocks, tuple(links))


def _link(source: AgentHandle, destination: int, address: str) -> Link:
    transfer_round(source, destination, SIZES[0], 1, address=address)  # the connection is made
    return link_of({size: median(transfer_round(source, destination, size, MOVES, address=address)) for size in SIZES})


def _clock(host: str, agent: AgentHandle) -> HostClock:
    return HostClock(host, agent.offset.offset_ns / 1e9, agent.offset.error_ns / 1e9)
