"""Commands about the hosts of a cluster: cluster check and logs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hw.networks.registry import ModelFile
from hw.ray.host import kept_logs
from kit.files import atomic_path
from scenarios.commands.shared import read_scenario
from scenarios.executors.cluster_check import check_cluster, none_here
from scenarios.executors.hosts import Hosts, joined_hosts
from scenarios.files.spec import Scenario
from scenarios.show.cluster import format_cluster
from scenarios.terminal.output import Output

DOES_NOT_FIT = 2


def cluster_check(arguments: Namespace) -> int:
    """What every host has and what does not fit; exit code 2 where something does not."""
    output = Output(arguments)
    with _hosts_of(arguments) as (scenario, hosts):
        given = scenario.model.checkpoint
        found = check_cluster(scenario, None if given is None else ModelFile(Path(given)), hosts, output.remark)
    output.result(format_cluster(found), found.document())
    return 0 if found.fits else DOES_NOT_FIT


def cluster_logs(arguments: Namespace) -> int:
    """What agents have printed on every host, gathered into a folder here."""
    output, paths = Output(arguments), list[Path]()
    with _hosts_of(arguments) as (_, hosts):
        for host in hosts.names():
            for name, content in hosts.ask(host, "", kept_logs).items():
                paths.append(arguments.out / host / name)
                paths[-1].parent.mkdir(parents=True, exist_ok=True)
                with atomic_path(paths[-1]) as temporary:
                    temporary.write_bytes(content)
    lines = "\n".join(f"log: {path}" for path in paths) or "no agent has printed anything"
    return output.result(lines, {"logs": [str(path) for path in paths]})


@contextmanager
def _hosts_of(arguments: Namespace) -> Iterator[tuple[Scenario, Hosts]]:
    """A scenario and its cluster; raises `InputError` where it has none."""
    scenario = read_scenario(arguments)
    if scenario.cluster.backend == "local":
        raise none_here(scenario.cluster, scenario.name)
    with joined_hosts(scenario.cluster, scenario.name) as hosts:
        yield scenario, hosts
