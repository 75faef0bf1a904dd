"""The hosts of a scenario's Ray cluster: what each reports of itself, and remote calls to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from hw.ray.cluster import HostFacts, Node, RayCluster, joined, require_same_code
from hw.ray.host import facts, machine
from kit.errors import InputError, WorkError, in_a_line
from scenarios.files.spec import ClusterSection, ServerSection

Asked = TypeVar("Asked")


class Hosts:
    """A cluster that this process has joined.

    Args:
        cluster: the cluster.
        source: the scenario, for messages.
    """

    def __init__(self, cluster: RayCluster, source: str) -> None:
        self.cluster = cluster
        self._source = source
        self._facts: dict[str, HostFacts] = {}

    @property
    def here(self) -> str:
        """The router's own."""
        return self.cluster.here.host

    def names(self) -> list[str]:
        """List the names of all that are there."""
        return sorted({node.host for node in self.cluster.nodes()})

    def node_of(self, host: str, key: str) -> Node:
        """Return a host's node; raises `InputError` if the cluster has no such host now."""
        node = self.cluster.node_of(host)
        if node is None:
            known = ", ".join(self.names())
            problem = f"no host {host!r} in the Ray cluster at {self.cluster.address}; there are {known}"
            raise InputError(self._source, key, f"{problem}; start its node with `ray start --labels=host={host}`")
        return node

    def facts_of(self, host: str, key: str = "cluster.servers") -> HostFacts:
        """Return the facts that a host reports; it must have this code.

        Raises:
            InputError: there is no such host.
            WorkError: it has another version, or other code.
        """
        if host not in self._facts:
            facts_there = self.ask(host, key, facts, host)
            require_same_code(host, facts_there.version, facts_there.code)
            self._facts[host] = facts_there
        return self._facts[host]

    def machine_of(self, host: str) -> str:
        """Return its name, if it is another machine than the router's; empty if it is the same."""
        return "" if self.facts_of(host).machine == machine() else host

    def ask(self, host: str, key: str, function: Callable[..., Asked], *arguments: Any) -> Asked:
        """Return what a function of ours returns there; raises what it raises.

        Raises:
            InputError: there is no such host.
            WorkError: it has no such function (this project is not installed there, or another version), or has failed.
        """
        ray, node = self.cluster.ray, self.node_of(host, key)
        task = ray.remote(num_cpus=0, max_retries=0)(function)
        reference = task.options(scheduling_strategy=self.cluster.on(node)).remote(*arguments)
        try:
            answer: Asked = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError | WorkError):
                raise error.cause from None
            raise WorkError(f"host {host}: {in_a_line(str(error.cause))}") from None
        except ray.exceptions.RayError as error:
            raise WorkError(f"host {host}: {in_a_line(str(error))}") from None
        except BaseException:
            ray.cancel(reference, force=True)
            raise
        return answer

    def ask_each(
        self,
        hosts: Sequence[str],
        key: str,
        function: Callable[..., Asked],
        arguments: Callable[[str], tuple[Any, ...]],
    ) -> list[Asked]:
        """Ask several hosts at once, each with its arguments; raises what the first of them raises."""

        def ask(host: str) -> Asked:
            self.facts_of(host, key)
            return self.ask(host, key, function, *arguments(host))

        with ThreadPoolExecutor(max(1, len(hosts))) as beside:
            return list(beside.map(ask, hosts))


@contextmanager
def joined_hosts(section: ClusterSection, source: str) -> Iterator[Hosts]:
    """Join the cluster that a scenario names, unless it is joined already; raises what `joined` does."""
    with joined(section.address, source, "cluster.address", beyond_loopback=section.beyond_loopback) as cluster:
        yield Hosts(cluster, source)


def host_names(section: ClusterSection, hosts: Hosts) -> list[str]:
    """List each server's host, in their order."""
    return [section.host_of(server) or hosts.here for server in section.named_servers]


def host_key(section: ClusterSection, server: ServerSection) -> str:
    """Return the key of a server's host in its scenario, with the server's name."""
    index = next(index for index, other in section.numbered_servers if other == server)
    return f"cluster.servers.{index}.host ({server.name})"
