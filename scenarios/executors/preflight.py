"""What must fit before real executors start: devices, memory, networks, profiles, hosts and their links.

`measure_links` measures links as runs use them: a worker on each host, which computes nothing, writes to the others'
arenas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from calibrate.device_identity import differences, open_sensor, stamps_here, stamps_of
from calibrate.device_opening import interference
from calibrate.profile_fit import link_of
from hw.device_settings import DeviceSpec, gpu_bytes
from hw.host_resources import machine_bytes, usable_cores
from hw.networks.network_files import ModelFile
from hw.networks.servable import Servable
from hw.router.ray_cluster import HostFacts
from hw.router.ray_workers import RayHosts
from hw.router.worker_handles import WorkerHandle, transfer_round
from hw.worker.emulated_lanes import EmulatedOutfit
from hw.worker.instances import context_bytes
from hw.worker.lanes import WorkerSpec
from kit.errors import InputError, WorkError
from policies.vocabulary import Provenance
from scenarios.executors.device_choice import (
    Hosts,
    device_of,
    host_key,
    host_names,
    joined_hosts,
    playing,
    require_free,
    require_served,
    why_unseen,
)
from scenarios.executors.validation_plan import require_plan
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.files.bundled_files import made_kind, profile_file
from scenarios.files.router_files import require_distinct_names
from scenarios.files.scenario_keys import GB, ClusterSection, DeviceSection, GreedySection, Scenario, ServerSection
from scenarios.files.scenario_reading import naming_servers, read_profile
from scenarios.metrics.result_documents import (
    SIZES,
    CheckedCluster,
    CheckedHost,
    ClusterMeasurements,
    HostClock,
    HostLink,
)
from scenarios.terminal.progress import Say
from sim.device_profile import Profile
from sim.emulated_device import Emulation

MACHINE = "this machine"
PROCESS_BYTES = 400_000_000  # a worker's own: Python, torch and its libraries (420 MB of private pages were measured)


Here = Callable[[ServerSection], bool]
"""Which of a scenario's servers are on this machine."""


def require_devices(scenario: Scenario) -> None:
    """Check that every device that the scenario names is in this machine, or in its host's.

    Raises:
        InputError: one is not; the message lists those that exist.
        WorkError: a host has another version of this project.
    """
    _where_they_are(scenario, require_devices_here)


def _where_they_are(scenario: Scenario, require: Callable[..., None], *arguments: Any) -> None:
    """Run `require(scenario, which, *arguments)` for servers, each on its own host."""
    if scenario.cluster.backend == "local":
        with naming_servers(scenario):
            require(scenario, lambda _: True, *arguments)
        return
    with naming_servers(scenario), joined_hosts(scenario.cluster, scenario.name) as hosts:
        names = list(dict.fromkeys(host_names(scenario.cluster, hosts)))

        def arguments_of(host: str) -> tuple[Any, ...]:
            return (scenario, host, hosts.here, require, *arguments)

        hosts.ask_each(names, "cluster.servers", require_there, arguments_of)


def require_there(scenario: Scenario, host: str, router: str, require: Callable[..., None], *arguments: Any) -> None:
    """Run a check on each host of the servers that are there; `router` is the router's host."""
    section = scenario.cluster
    try:
        require(scenario, lambda server: (section.host_of(server) or router) == host, *arguments)
    except InputError as error:
        raise InputError(error.source, error.key, f"on host {host}: {error.problem}") from None


def require_devices_here(scenario: Scenario, is_here: Here) -> None:
    """Check those of a scenario's devices that are on this machine; raises `InputError`."""
    for index, server in scenario.cluster.numbered_servers:
        if server.emulated is None and scenario.cluster.greedy_of(server).util_metric != "nvml":
            problem = "executors read NVML's utilization, so 'sm' is for simulation alone; use nvml, or leave it out"
            raise InputError(scenario.name, f"cluster.servers.{index}.greedy.util_metric", problem)
        if server.device is None or not is_here(server):
            continue
        workers = sum(other.shares_device_with == server.name for other in scenario.cluster.named_servers) + 1
        require_device(server.device, scenario.name, f"cluster.servers.{index}.device", workers)


def require_device(device: DeviceSection, source: str, key: str, workers: int = 1) -> None:
    """Check that a device is here and serves `workers` workers; raises `InputError`, which lists what is here."""
    if device.kind == "cuda":
        _require_gpu(device.index, workers, source, key)
        return
    usable = usable_cores()
    if absent := [core for core in device.cores if core not in usable]:
        problem = f"no core {', '.join(map(str, absent))} for this process; expected {', '.join(map(str, usable))}"
        raise InputError(source, f"{key}.cores", problem)


def _require_gpu(index: int, workers: int, source: str, key: str) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        none = why_unseen() or "none is here; use kind: cpu"
        indices = f"expected {', '.join(f'cuda:{i}' for i in range(count))}" if count else none
        raise InputError(source, f"{key}.index", f"no cuda:{index} in this machine; {indices}")
    require_served(index, workers, source, f"{key}.index")
    require_free(index, source, f"{key}.index")


def require_possible(scenario: Scenario) -> None:
    """Check what a validation needs of the scenario and of this machine: no profile, no network's weights.

    Raises:
        InputError: a device is not here, caps exceed the memory, no window is left to count, a trace is to be run at
            loads, or a router's file is of another cluster.
    """
    require_devices(scenario)
    require_plan(scenario, scenario.validate_)
    require_distinct_names(scenario.validate_.routers)
    cluster = scenario.cluster
    caps_gb = {server.name: cluster.greedy_of(server).vram_cap_gb for server in cluster.named_servers}
    caps = {name: int(cap_gb * GB) for name, cap_gb in caps_gb.items() if cap_gb is not None}
    _where_they_are(scenario, _require_memory, caps)


def require_caps(scenario: Scenario, model: Servable) -> None:
    """Check that a cap holds at least a worker's context and the weights to preload, before anything is calibrated.

    Of a device with a named profile the profile's own numbers count. What is to be preloaded must be of the network.

    Raises:
        InputError: a cap does not, or the network has no such instance.
    """
    servers = {section.name: section for section in scenario.cluster.named_servers}
    instances = tuple(product(range(1, model.spec.segments + 1), model.spec.widths))
    measured: dict[DeviceSpec, int] = {}
    for index, section in scenario.cluster.numbered_servers:
        params = scenario.cluster.greedy_of(section)
        owner = servers[section.shares_device_with or section.name]
        profile_name = owner.known_profile
        with naming_servers(scenario):
            _require_instances(params, instances, scenario.name, f"cluster.servers.{index}")
        cap_gb, key = params.vram_cap_gb, f"cluster.servers.{index}.greedy.vram_cap_gb"
        if cap_gb is None and profile_name is None and owner.device is not None:
            cap_gb, key = owner.device.vram_gb, f"cluster.servers.{index}.device.vram_gb"
        if cap_gb is None:
            continue
        preload = {"all": instances, "none": ()}[params.preload] if isinstance(params.preload, str) else params.preload
        loaded = [instance for instance in instances if instance in preload]
        if profile_name is not None:
            memory = read_profile(profile_file(profile_name)).memory
            context_size = memory.context_bytes
            weights_bytes = sum(
                instance.vram_bytes for instance in memory.instances if (instance.segment, instance.width) in loaded
            )
        else:
            device = device_of(section, scenario.cluster.named_servers)
            context_size = measured[device] = measured.get(device) or context_bytes(device)
            weights_bytes = sum(model.instance_bytes(*instance, device.torch_dtype.itemsize) for instance in loaded)
            if params.vram_cap_gb is None:  # calibration loads each of them
                largest = max(model.instance_bytes(*instance, device.torch_dtype.itemsize) for instance in instances)
                weights_bytes = max(weights_bytes, largest)
        if context_size + weights_bytes > cap_gb * GB:
            parts = f"{context_size / GB:.2f} GB for its context, {weights_bytes / GB:.2f} GB for weights to load"
            problem = f"{cap_gb:g} GB is less than {section.name!r} takes from the start ({parts})"
            raise InputError(scenario.name, f"{key} ({section.name})", f"{problem}; raise it, or leave it out")


def _require_instances(params: GreedySection, instances: Sequence[tuple[int, float]], source: str, server: str) -> None:
    for pair in () if isinstance(params.preload, str) else params.preload:
        if pair not in instances:
            allowed = f"segments 1 to {instances[-1][0]} at widths {sorted({width for _, width in instances})}"
            raise InputError(source, f"{server}.greedy.preload", f"no instance {list(pair)}; expected {allowed}")


def require_ready(
    experiment: Experiment, model: ModelFile | None, routers: Sequence[str], made_in: Path | None
) -> None:
    """Check that the network is the profiles', that servers fit their devices' memory, and routers the cluster.

    Args:
        model: None if emulated servers run none.
        made_in: the folder of the run that makes the scenario's own routers; None while it has not yet.

    Raises:
        InputError: something does not.
    """
    if model is not None:
        _require_model(experiment, model)
    caps = {server.name: server.params.vram_cap_bytes for server in experiment.cluster.servers}
    _where_they_are(experiment.scenario, _require_memory, caps)
    for index, router in enumerate(routers):
        if made_kind(router) is None or made_in is not None:
            experiment.router(router, made_in, f"validate.routers.{index}")


def _require_model(experiment: Experiment, model: ModelFile) -> None:
    """Check that profiles are of the network's weights; a datasheet's is of its shape, which is checked elsewhere."""
    _, metadata = model.load()
    for server, profile in zip(experiment.cluster.servers, experiment.profiles, strict=True):
        if profile.provenance != Provenance.DATASHEET and profile.model.hash != metadata["hash"]:
            problem = (
                f"the profile of {server.name!r} is of {profile.model.name} ({profile.model.hash[:12]}), the network "
                f"to run is {metadata['hash'][:12]}; calibrate again, or name the network that it was calibrated with"
            )
            raise InputError(experiment.scenario.name, "cluster.servers", problem)


def stamp_warnings(profile: Profile, device: DeviceSpec) -> tuple[str, ...]:
    """Return a line for each difference of this machine's stack from the one that a profile was measured on."""
    if profile.provenance == Provenance.DATASHEET:
        return ()  # it was measured on none
    differing = differences(stamps_of(profile), stamps_here(device))
    return tuple(f"warning: profile {profile.name}: {difference}" for difference in differing)


def other_programs(device: DeviceSpec) -> tuple[str, ...]:
    """Return a line if other processes use the device now, with their names.

    They would look like errors of the simulation, or like drift of a profile. Empty if nothing can detect them.
    """
    try:
        others = interference(device, open_sensor(device, ()))
    except InputError:  # a GPU without NVML
        return ()
    return (f"warning: {others.warning}",) if others.notable else ()


def _require_memory(scenario: Scenario, is_here: Here, caps: Mapping[str, int]) -> None:
    """Check each server's cap against its executor's grant, and the caps on one device together against its memory.

    A CPU's servers share the machine's, and their processes take some of it themselves.
    """
    sections = scenario.cluster.named_servers
    caps_by_device: dict[str, dict[str, int]] = {}
    limits: dict[str, int] = {}
    for index, section in scenario.cluster.numbered_servers:
        if section.name not in caps or section.emulated is not None or not is_here(section):
            continue  # an emulated device's memory is in its profile, and in no machine
        device = device_of(section, sections)
        cap_bytes = caps[section.name]
        if cap_bytes > device.vram_bytes:  # the executor would refuse loads that its scheduler plans
            problem = f"{cap_bytes / GB:.2f} GB is more than the {device.vram_bytes / GB:.2f} GB of the device of "
            problem += f"{section.shares_device_with or section.name!r}"
            remedy = "lower vram_cap_gb, or give the device more (device.vram_gb)"
            raise InputError(scenario.name, f"cluster.servers.{index}.greedy.vram_cap_gb", f"{problem}; {remedy}")
        name = MACHINE if device.kind == "cpu" else f"cuda:{device.index}"
        caps_by_device.setdefault(name, {})[section.name] = cap_bytes
        limits[name] = memory_bytes(device)
    for name, device_caps in caps_by_device.items():
        _require_room(name, device_caps, limits[name], scenario.name)


def _require_room(device: str, caps: Mapping[str, int], limit_bytes: int, source: str) -> None:
    process_bytes = PROCESS_BYTES if device == MACHINE else 0
    total_bytes = sum(caps.values()) + process_bytes * len(caps)
    if total_bytes > limit_bytes:
        parts = ", ".join(f"{name} {cap / GB:.2f}" for name, cap in caps.items())
        parts += f", and {process_bytes / GB:.2f} for each process" if process_bytes else ""
        problem = f"the servers on {device} may use {total_bytes / GB:.2f} GB together ({parts}), it has "
        problem += f"{limit_bytes / GB:.2f} GB; lower vram_cap_gb, or take servers away"
        raise InputError(source, "cluster.greedy.vram_cap_gb", problem)


def memory_bytes(device: DeviceSpec) -> int:
    """Return the device's memory: a GPU's, or the machine's (or the container's, if that is less)."""
    if device.kind == "cuda":
        total = gpu_bytes(device.index)
        return device.vram_bytes if total is None else total
    return machine_bytes()


# ------------------------------------------------------------------------------------------------------ links and hosts


MOVES: Final = 20
_PLAYED: Final = "t4"  # any shipped profile would do: nothing of it is used


def measure_links(hosts: Hosts, names: Sequence[str], say: Say = lambda _: None) -> ClusterMeasurements:
    """Measure links between these hosts and the router's, each pair both ways, and each host with itself.

    Raises:
        WorkError: a worker could not be started, or a link fails.
    """
    all_hosts = list(dict.fromkeys([hosts.here, *names]))
    emulation = Emulation(read_profile(profile_file(_PLAYED)).to_yaml(), 1)
    device = playing(emulation, "none", DeviceSection(emulated=_PLAYED))
    with closing(RayHosts(hosts.cluster, all_hosts)) as carrier, ExitStack() as stack:
        carrier.arenas(len(all_hosts), 2 * SIZES[-1])
        workers = [
            carrier.start(index, WorkerSpec(f"link-{host}", EmulatedOutfit(device, (), index)))
            for index, host in enumerate(all_hosts)
        ]
        for worker in workers:
            stack.callback(worker.close)
        for worker in workers:
            worker.wait_until_ready()
            worker.find_offset()
        links = []
        for source, worker in zip(all_hosts, workers, strict=True):
            for index, destination in enumerate(all_hosts):
                if source == destination and len(all_hosts) > 1:
                    continue
                say(f"links: {source} to {destination}")
                links.append(_link(source, worker, index, destination, workers[index].address))
        clocks = tuple(
            HostClock(host, worker.offset.offset_ns / 1e9, worker.offset.error_ns / 1e9)
            for host, worker in zip(all_hosts, workers, strict=True)
        )
    return ClusterMeasurements(clocks, tuple(links))


def _link(source: str, worker: WorkerHandle, index: int, destination: str, address: str) -> HostLink:
    transfer_round(worker, index, SIZES[0], 1, address=address)  # the connection is made
    link = link_of({size: median(transfer_round(worker, index, size, MOVES, address=address)) for size in SIZES})
    return HostLink(source, destination, link.latency_s, link.bandwidth_bytes_s)


def check_cluster(scenario: Scenario, model: ModelFile | None, hosts: Hosts, say: Say) -> CheckedCluster:
    """Ask every host; one that can't answer does not keep the others from being asked."""
    section = scenario.cluster
    names = host_names(section, hosts)
    model_bytes = 0 if model is None or not model.path.is_file() else model.path.stat().st_size
    distinct = list(dict.fromkeys(names))
    with ThreadPoolExecutor(len(distinct)) as pool:
        checked = list(pool.map(lambda host: _checked(scenario, hosts, host, model_bytes), distinct))
    answering = [check.host for check in checked if check.facts is not None]
    measured = measure_links(hosts, answering, say) if len(answering) == len(checked) else None
    return CheckedCluster(tuple(checked), tuple(sorted(set(hosts.names()) - set(names))), measured)


def _checked(scenario: Scenario, hosts: Hosts, host: str, model_bytes: int) -> CheckedHost:
    section = scenario.cluster
    servers = [server for server in section.named_servers if (section.host_of(server) or hosts.here) == host]
    key, problems = host_key(section, servers[0]), list[str]()

    def collect(ask: Callable[[], HostFacts | None]) -> HostFacts | None:
        try:
            return ask()
        except (InputError, WorkError) as error:
            problems.append(error.problem if isinstance(error, InputError) else str(error))
            return None

    facts = collect(lambda: hosts.facts_of(host, key))
    if facts is not None:
        problems += _too_little(facts, sum(server.emulated is None for server in servers), model_bytes)
        collect(lambda: hosts.ask(host, key, require_there, scenario, host, hosts.here, require_devices_here))
    return CheckedHost(host, tuple(server.name for server in servers), facts, tuple(problems))


def _too_little(facts: HostFacts, processes: int, model_bytes: int) -> list[str]:
    needed_bytes = processes * PROCESS_BYTES
    problems = []
    if facts.free_bytes < needed_bytes:
        free = (
            f"{facts.free_bytes / GB:.2f} GB of memory are free, its {processes} workers need {needed_bytes / GB:.2f}"
        )
        problems.append(f"{free}; end something there, or take servers away")
    if facts.disk_free_bytes < 2 * model_bytes:
        free = f"{facts.disk_free_bytes / GB:.2f} GB of disk are free, the model has {model_bytes / GB:.2f}"
        problems.append(f"{free}; make room there, or set XDG_CACHE_HOME")
    if facts.niceness > 0:
        problem = (
            f"workers would give way to all other programs (niceness {facts.niceness}), and be slower than calibrated"
        )
        problems.append(f"{problem}; start its node with RAY_worker_niceness=0")
    return problems


def none_here(section: ClusterSection, source: str) -> InputError:
    """Return the error that the scenario has no hosts to check."""
    assert section.backend == "local", "it has some"
    remedy = "say `backend: ray` and give each server its `host` (docs/cluster.md)"
    return InputError(source, "cluster.backend", f"'local': all servers are on this machine; {remedy}")
