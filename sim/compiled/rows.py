"""The records of a cluster's row by index, and its calendar: each server's next event, in a tree of winners."""

from __future__ import annotations

from typing import Final

from kit.jit import Ints, ints, kernel
from sim.compiled.layout import (
    BatchCost,
    Block,
    Calendar,
    Cluster,
    Device,
    DeviceModel,
    Instance,
    Instances,
    KeyQueue,
    Line,
    Member,
    Message,
    Move,
    Observed,
    Parameters,
    PlannedFault,
    Reading,
    Report,
    Request,
    Server,
    ServerKnobs,
    Tally,
    Times,
)

_BLOCK: Final = Block.size
_KINDS: Final = Times.size


@kernel
def server_at(c: Cluster, p: Parameters, index: int) -> Server:
    """Return a server."""
    return Server(c, p.servers_at + index * p.server_size)


@kernel
def knobs_of(p: Parameters, server: Server) -> ServerKnobs:
    """Return a server's settings."""
    return ServerKnobs(p, server.knobs_at)


@kernel
def key_at(p: Parameters, server: Server, key: int) -> KeyQueue:
    """Return a work key's queue at a server."""
    return KeyQueue(server, p.queues_at, key)


@kernel
def spec_at(p: Parameters, server: Server, spec: int) -> Instances:
    """Return the instances of one segment and width at a server."""
    return Instances(server, p.instance_lists_at, spec)


@kernel
def report_at(p: Parameters, server: Server, number: int) -> Report:
    """Return one of the reports in transfer from a server, the oldest first."""
    return Report(server, p.reports_at, (server.first_report + number) % p.reports)


@kernel
def reading_at(p: Parameters, server: Server, number: int) -> Reading:
    """Return one of a sensor's last readings, by its number."""
    return Reading(server, p.readings_at, number % p.readings)


@kernel
def observed_at(c: Cluster, p: Parameters, index: int) -> Observed:
    """Return a server's observation."""
    return Observed(c, p.observed_at, index)


@kernel
def device_at(c: Cluster, p: Parameters, index: int) -> Device:
    """Return a device."""
    return Device(c, p.devices_at, index)


@kernel
def model_at(p: Parameters, index: int) -> DeviceModel:
    """Return a device's model, by index."""
    return DeviceModel(p, p.device_models_at, index)


@kernel
def model_of(p: Parameters, device: Device) -> DeviceModel:
    """Return a device's model, from its record."""
    return DeviceModel(p, device.model_at)


@kernel
def cost_of(p: Parameters, instance: Instance) -> BatchCost:
    """Return the cost of the batch that an instance runs."""
    return BatchCost(p, instance.cost_at)


@kernel
def request_at(c: Cluster, p: Parameters, slot: int) -> Request:
    """Return a request."""
    return Request(c, p.requests_at + slot * p.request_size)


@kernel
def place_of(p: Parameters, request: Request) -> int:
    """Compute `RouterConfig.place_of`: the number of a request's segment among those of all models."""
    return ints(p)[p.first_places_at + request.service_class] + request.segment


@kernel
def tally_at(c: Cluster, p: Parameters, service_class: int) -> Tally:
    """Return a class's counts and goals."""
    return Tally(c, p.tallies_at, service_class)


@kernel
def line_at(c: Cluster, p: Parameters, line: int) -> Line:
    """Return a line of the router's FIFO."""
    return Line(c, p.lines_at, line)


@kernel
def fault_at(c: Cluster, p: Parameters, number: int) -> PlannedFault:
    """Return one of the faults to come."""
    return PlannedFault(c, p.faults_at, number)


@kernel
def instance_at(c: Cluster, p: Parameters, slot: int) -> Instance:
    """Return an instance."""
    return Instance(c, p.instances_at, slot)


@kernel
def block_at(c: Cluster, p: Parameters, slot: int) -> Block:
    """Return a block; its moves follow."""
    return Block(c, p.blocks_at + slot * p.block_size)


@kernel
def message_at(c: Cluster, p: Parameters, slot: int) -> Message:
    """Return a message in transfer to the router."""
    return Message(c, p.messages_at, slot)


@kernel
def move_at(block: Block, number: int) -> Move:
    """Return one of the moves of a block."""
    return Move(block, _BLOCK, number)


@kernel
def member_at(p: Parameters, block: Block, position: int) -> Member:
    """Return a member of a block."""
    return Member(block, p.members_at + position * p.member_size)


@kernel
def calendar(c: Cluster, p: Parameters) -> Ints:
    """Return the tree of winners: the first is at 1, and below the one at n those at 2 n and 2 n + 1."""
    return ints(Calendar(c, p.tree_at))


@kernel
def soonest_ns(c: Cluster, p: Parameters) -> int:
    """Return the time of the next event of all servers."""
    return calendar(c, p)[1]


@kernel
def reschedule(c: Cluster, p: Parameters, server: Server) -> None:
    """Update a server's next event after changes of its times, and the cluster's."""
    times = ints(server.times)
    soonest = times[0]
    for kind in range(1, _KINDS):
        soonest = min(soonest, times[kind])
    if soonest == server.next_ns:
        return
    server.next_ns = soonest
    tree, node = calendar(c, p), p.leaves + server.index
    tree[node] = soonest
    while node > 1:
        node >>= 1
        tree[node] = min(tree[2 * node], tree[2 * node + 1])


@kernel
def soonest_server(c: Cluster, p: Parameters) -> int:
    """Return the server whose event is next; the lowest of several at one instant."""
    tree, node = calendar(c, p), 1
    while node < p.leaves:
        node *= 2
        if tree[node] != tree[1]:
            node += 1
    return node - p.leaves
