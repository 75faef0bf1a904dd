"""The links between the hosts of a cluster: latency and bandwidth both ways, and the offsets of their clocks.

It is measured as runs use it: an agent on each host, which computes nothing, writes to the others' arenas.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from statistics import median
from typing import Final

from calibrate.fit import link_of
from hw.agent.emulated_outfit import EmulatedOutfit
from hw.agent.outfit import AgentSpec
from hw.ray.agents import RayHosts
from hw.router.agents import AgentHandle, transfer_round
from scenarios.executors.emulation import playing
from scenarios.executors.hosts import Hosts
from scenarios.files.reading import read_profile
from scenarios.files.shipped import profile_file
from scenarios.files.spec import DeviceSection
from scenarios.metrics.cluster import SIZES, ClusterMeasurements, HostClock, HostLink
from scenarios.terminal.progress import Say
from sim.emulation import Emulation

MOVES: Final = 20
_PLAYED: Final = "t4"  # any shipped profile would do: nothing of it is used


def measure_links(hosts: Hosts, names: Sequence[str], say: Say = lambda _: None) -> ClusterMeasurements:
    """Measure links between these hosts and the router's, each pair both ways, and each host with itself.

    Raises:
        WorkError: an agent could not be started, or a link fails.
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
                links.append(_link(source, agent, index, destination, agents[index].address))
        clocks = tuple(
            HostClock(host, agent.offset.offset_ns / 1e9, agent.offset.error_ns / 1e9)
            for host, agent in zip(every, agents, strict=True)
        )
    return ClusterMeasurements(clocks, tuple(links))


def _link(source: str, agent: AgentHandle, index: int, destination: str, address: str) -> HostLink:
    transfer_round(agent, index, SIZES[0], 1, address=address)  # the connection is made
    link = link_of({size: median(transfer_round(agent, index, size, MOVES, address=address)) for size in SIZES})
    return HostLink(source, destination, link.latency_s, link.bandwidth_bytes_s)
