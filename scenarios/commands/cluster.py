"""Commands about the hosts of a cluster: cluster check."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from hw.networks import ModelFile
from scenarios.commands.shared import read_scenario
from scenarios.executors.cluster_check import check_cluster, none_here
from scenarios.executors.hosts import joined_hosts
from scenarios.show.cluster import format_cluster
from scenarios.terminal.output import Output

DOES_NOT_FIT = 2


def cluster_check(arguments: Namespace) -> int:
    """What every host has and what does not fit; exit code 2 where something does not."""
    output = Output(arguments)
    scenario = read_scenario(arguments)
    if scenario.cluster.backend == "local":
        raise none_here(scenario.cluster, scenario.name)
    given = scenario.model.checkpoint
    with joined_hosts(scenario.cluster, scenario.name) as hosts:
        found = check_cluster(scenario, None if given is None else ModelFile(Path(given)), hosts, output.remark)
    output.result(format_cluster(found), found.document())
    return 0 if found.fits else DOES_NOT_FIT
