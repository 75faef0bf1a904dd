"""What every host of a scenario's cluster has, before anything runs on it, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hw.networks.registry import ModelFile
from hw.ray.cluster import HostFacts
from kit.errors import InputError, WorkError
from scenarios.executors.hosts import Hosts, host_key, host_names
from scenarios.executors.links import measure_links
from scenarios.executors.preflight import PROCESS_BYTES, require_devices_here, require_there
from scenarios.files.spec import GB, ClusterSection, Scenario
from scenarios.metrics.cluster import CheckedCluster, CheckedHost
from scenarios.terminal.progress import Say


def check_cluster(scenario: Scenario, model: ModelFile | None, hosts: Hosts, say: Say) -> CheckedCluster:
    """Ask every host; one that can't answer does not keep the others from being asked."""
    section = scenario.cluster
    names = host_names(section, hosts)
    model_bytes = 0 if model is None or not model.path.is_file() else model.path.stat().st_size
    named = list(dict.fromkeys(names))
    with ThreadPoolExecutor(len(named)) as beside:
        checked = list(beside.map(lambda host: _checked(scenario, hosts, host, model_bytes), named))
    answering = [each.host for each in checked if each.facts is not None]
    measured = measure_links(hosts, answering, say) if len(answering) == len(checked) else None
    return CheckedCluster(tuple(checked), tuple(sorted(set(hosts.names()) - set(names))), measured)


def _checked(scenario: Scenario, hosts: Hosts, host: str, model_bytes: int) -> CheckedHost:
    section = scenario.cluster
    there = [server for server in section.named_servers if (section.host_of(server) or hosts.here) == host]
    key, problems = host_key(section, there[0]), list[str]()

    def found(ask: Callable[[], HostFacts | None]) -> HostFacts | None:
        try:
            return ask()
        except (InputError, WorkError) as error:
            problems.append(error.problem if isinstance(error, InputError) else str(error))
            return None

    facts = found(lambda: hosts.facts_of(host, key))
    if facts is not None:
        problems += _too_little(facts, sum(server.emulated is None for server in there), model_bytes)
        found(lambda: hosts.ask(host, key, require_there, scenario, host, hosts.here, require_devices_here))
    return CheckedHost(host, tuple(server.name for server in there), facts, tuple(problems))


def _too_little(facts: HostFacts, processes: int, model_bytes: int) -> list[str]:
    needed_bytes = processes * PROCESS_BYTES
    problems = []
    if facts.free_bytes < needed_bytes:
        free = f"{facts.free_bytes / GB:.2f} GB of memory are free, its {processes} agents need {needed_bytes / GB:.2f}"
        problems.append(f"{free}; end something there, or take servers away")
    if facts.disk_free_bytes < 2 * model_bytes:
        free = f"{facts.disk_free_bytes / GB:.2f} GB of disk are free, the model has {model_bytes / GB:.2f}"
        problems.append(f"{free}; make room there, or set XDG_CACHE_HOME")
    if facts.niceness > 0:
        nice = f"agents would give way to all other programs (niceness {facts.niceness}), and be slower than calibrated"
        problems.append(f"{nice}; start its node with RAY_worker_niceness=0")
    return problems


def none_here(section: ClusterSection, source: str) -> InputError:
    """Return the error that the scenario has no hosts to check."""
    assert section.backend == "local", "it has some"
    remedy = "say `backend: ray` and give each server its `host` (docs/cluster.md)"
    return InputError(source, "cluster.backend", f"'local': all servers are on this machine; {remedy}")
