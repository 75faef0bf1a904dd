"""A Ray cluster as this project uses it: the processes that join it, its hosts by name, and their reports.

Ray is an optional extra, so it is imported when a cluster is joined, and nowhere else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hw.ray.entry import START, is_loopback, require_closed, require_entry, use_own_token
from hw.ray.head import while_head_lives
from hw.version import code_here, own_version
from kit.errors import InputError, WorkError, in_a_line

if TYPE_CHECKING:
    from types import ModuleType

HOST_LABEL: Final = "host"
"""The label of a node that names its host: `ray start --labels=host=NAME`."""

REMEDY: Final = "install it: pip install 'slim-scheduler[ray]'"


def ray_here(source: str, key: str) -> ModuleType:
    """Return the module; raises `InputError` if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    use_own_token()
    try:
        import grpc  # noqa: F401 - who is let in is asked by it
        import ray
    except ImportError as error:
        raise InputError(source, key, f"Ray is not installed here ({error}); {REMEDY}") from None
    return ray


@dataclass(frozen=True, slots=True)
class Node:
    """One of Ray's nodes that is alive.

    Attributes:
        number: Ray's own name of it.
        host: its name in scenarios: its label, or the system's name of it.
        address: at which others reach it.
    """

    number: str
    host: str
    address: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Node:
        """Build it from Ray's description."""
        labels, system = record.get("Labels") or {}, str(record.get("NodeManagerHostname", ""))
        return cls(str(record["NodeID"]), str(labels.get(HOST_LABEL) or system), str(record["NodeManagerAddress"]))


class RayCluster:
    """A Ray cluster that this process has joined. `joined` makes one.

    Attributes:
        address: of its head.
        here: the node that this process is on.
        gone: set once its head is: no further request is possible.
    """

    def __init__(self, ray: ModuleType, address: str, gone: threading.Event | None = None) -> None:
        self.ray = ray
        self.gone = threading.Event() if gone is None else gone
        self.address = address
        self._seen: dict[str, int] = {}  # nodes, and the order in which they were seen first
        here = str(ray.get_runtime_context().get_node_id())
        self.here = next(node for node in self.nodes() if node.number == here)

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive, by name."""
        alive = [Node.of(node) for node in self.ray.nodes() if node["Alive"]]
        for node in alive:
            self._seen.setdefault(node.number, len(self._seen))
        return sorted(alive, key=lambda node: (node.host, node.number))

    def node_of(self, host: str) -> Node | None:
        """Return the node of that name; None if none is alive.

        Ray takes a node for alive for up to half a minute after its death. So of two with one name the right one is the
        one that joined last.
        """
        named = [node for node in self.nodes() if node.host == host]
        return max(named, key=lambda node: self._seen[node.number], default=None)

    def on(self, node: Node) -> Any:
        """Return Ray's strategy that runs something on that node, and nowhere else."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.number, soft=False)


_joined: list[RayCluster] = []  # the one that this process is in


@contextlib.contextmanager
def joined(address: str, source: str, key: str, *, beyond_loopback: bool = False) -> Iterator[RayCluster]:
    """Join a running cluster, and leave it at the end.

    Args:
        address: `HOST:PORT` of its head, or `auto` for the one that runs on this machine.
        source, key: of the address, for messages.
        beyond_loopback: whether its hosts may be reached from other machines.

    Raises:
        InputError: Ray is not installed, nothing is at that address, this process lacks the cluster's token, or others
            can reach its hosts without the option for that, or without a token.
        WorkError: its head is gone, meanwhile.
    """
    ray = ray_here(source, key)
    if ray.is_initialized():  # by a caller with a larger piece of work in this process
        yield _joined[-1] if _joined else RayCluster(ray, address)
        return
    entry = require_entry(ray, address, source, key)
    require_closed(entry, source, key)
    try:
        ray.init(address=entry, namespace="slimsched", log_to_driver=False, logging_level=logging.ERROR, **_own(entry))
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        problem = f"no Ray cluster answers at {address!r} ({in_a_line(str(error))})"
        raise InputError(source, key, f"{problem}; {START}") from None
    with while_head_lives(entry) as gone:
        try:
            cluster = RayCluster(ray, entry, gone)
            _require_told(cluster, source, beyond_loopback=beyond_loopback)
            _joined.append(cluster)
            yield cluster
        finally:
            _joined.clear()
            ray.shutdown()


def _own(address: str) -> dict[str, str]:
    """Return this node's address, which Ray guesses wrong if the head is on loopback."""
    host = address.rpartition(":")[0]
    return {"_node_ip_address": host} if is_loopback(host) else {}


def _require_told(cluster: RayCluster, source: str, *, beyond_loopback: bool) -> None:
    """Refuse addresses beyond loopback without the option for that: nothing of ours listens there otherwise."""
    elsewhere = [node for node in cluster.nodes() if not is_loopback(node.address)]
    if elsewhere and not beyond_loopback:
        problem = f"host {elsewhere[0].host} is at {elsewhere[0].address}, where others can reach it; say so with "
        problem += "`beyond_loopback: true`, or start every node on this machine with --node-ip-address=127.0.0.2"
        raise InputError(source, "cluster.beyond_loopback", problem)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A host's description of itself.

    Attributes:
        machine: the same for two hosts that are one machine.
        niceness: of its future agents: Ray lowers its workers' priority unless it is configured not to.
        code: see `hw.version.code_here`.
    """

    host: str
    machine: str
    python: str
    version: str
    code: str
    torch: str
    cores: int
    memory_bytes: int
    free_bytes: int
    disk_free_bytes: int
    devices: tuple[str, ...]
    niceness: int = 0


def require_same_code(host: str, version: str, code: str) -> None:
    """Raise `WorkError` if another host has another version of this project, or other code of the same one."""
    if version != own_version():
        problem = f"host {host} has slim-scheduler {version}, this one {own_version()}"
    elif code != code_here():
        problem = f"host {host} has other code of slim-scheduler {version} ({code} there, {code_here()} here)"
    else:
        return
    raise WorkError(f"{problem}; install the same on both")
