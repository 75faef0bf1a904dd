"""Which real or emulated device a server stands for, and the hosts of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np
import torch

from hw.device_settings import DeviceSpec, formats_of, gpu_bytes, local_devices, start_daemon
from hw.networks.datasets import Dataset
from hw.router.ray_cluster import HostFacts, Node, RayCluster, joined, require_same_code
from hw.router.ray_workers import facts, machine
from hw.router.run_requests import ServedNetwork
from hw.telemetry import load_nvml, nvml_handle
from hw.telemetry.nvml import NvmlDevice, RefusedError, free_vram_bytes, handle_of, nvml_device_facts, other_processes
from hw.worker.cuda import refused_by_mode, unseen, unserved
from hw.worker.emulated_lanes import EmulatedDevice
from kit.errors import InputError, WorkError, in_a_line
from kit.random_streams import derived_seed
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import emulated_profile
from scenarios.files.scenario_keys import GB, ClusterSection, DeviceSection, ServerSection
from sim.device_profile import Profile
from sim.emulated_device import FACTORY, Emulation, to_bytes

MIN_FREE_BYTES: Final = 1_000_000_000  # a context, a library or two, and small weights
CALIBRATING: Final = 2  # processes on a device: what serves is measured concurrently with another process


def chosen_devices(name: str | None) -> list[tuple[str, DeviceSpec]]:
    """Return local devices by name: `cuda:0`, or `cpu:0` (`cpu` means all of that kind)."""
    devices = local_devices()
    cpus = [device for device in devices if device.kind == "cpu"] or [DeviceSpec()]
    by_name = {f"cuda:{device.index}": device for device in devices if device.kind == "cuda"}
    by_name |= {f"cpu:{number}": device for number, device in enumerate(cpus)}
    if name is None:
        return [(device_name, device) for device_name, device in by_name.items() if device in devices]
    matches = [
        (device_name, device)
        for device_name, device in by_name.items()
        if name in (device_name, device_name.partition(":")[0])
    ]
    if not matches:
        reason = why_unseen() if name.startswith("cuda") and not torch.cuda.is_available() else ""
        allowed = f"expected {', '.join(by_name)}"
        raise InputError("--device", "", f"no device {name!r} here{f' ({reason})' if reason else ''}; {allowed}")
    return matches


def why_unseen() -> str:
    """Explain why torch sees no GPU although there is one; empty if there is none."""
    nvml = load_nvml()
    if nvml is None:
        return ""
    library = NvmlDevice(nvml, None)
    try:
        nvml_devices = int(library.call("nvmlDeviceGetCount"))
        driver = library.call("nvmlSystemGetDriverVersion")
        version = int(library.call("nvmlSystemGetCudaDriverVersion_v2"))
        facts = nvml_device_facts(nvml, handle_of(nvml, "0")) if nvml_devices else {}
    except RefusedError as refused:
        return f"NVIDIA's library reports: {refused}"
    cuda_version = (version // 1000, version % 1000 // 10)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return unseen(nvml_devices, driver, cuda_version, torch.version.cuda, visible, mig=facts.get("mig_mode") == "1")


def require_free(index: int, source: str, key: str) -> None:
    """Check that a GPU has room for a context and something to serve.

    Raises:
        InputError: other processes use it; the message names them, if NVML does.
    """
    nvml = load_nvml()
    if nvml is None:
        return
    handle = nvml_handle(nvml, index)
    free_bytes, total_bytes = free_vram_bytes(nvml, handle)
    if free_bytes >= MIN_FREE_BYTES or not total_bytes:
        return
    pids = other_processes(nvml, handle, ())
    owners = f"processes {', '.join(map(str, sorted(pids)))} use it" if pids else "NVML reports no process"
    problem = f"{free_bytes / GB:.2f} GB of {total_bytes / GB:.1f} are free ({owners})"
    raise InputError(source, key, f"cuda:{index}: {problem}; end what holds it, or take another GPU")


def require_served(index: int, workers: int, source: str, key: str) -> None:
    """Check that the installed torch computes on a GPU that is here, and that `workers` processes may use it.

    Raises:
        InputError: it does not; the message names a remedy.
    """
    try:
        capability = torch.cuda.get_device_capability(index)
    except (RuntimeError, AssertionError) as error:
        problem = f"cuda:{index} can't be opened ({in_a_line(str(error))}); take another GPU"
        raise InputError(source, key, problem) from None
    problem = unserved(capability, torch.cuda.get_arch_list())
    nvml = load_nvml()
    if nvml is not None and not problem:
        problem = refused_by_mode(nvml_device_facts(nvml, nvml_handle(nvml, index)).get("compute_mode", ""), workers)
    if problem:
        raise InputError(source, key, f"cuda:{index} ({torch.cuda.get_device_name(index)}): {problem}")


def device_spec(section: DeviceSection) -> DeviceSpec:
    """Convert a scenario's device to the executors' form; a GPU is asked for its memory if none is given."""
    spec = DeviceSpec(
        kind=section.kind,
        cores=section.cores,
        threads=section.threads,
        onednn=section.onednn,
        index=section.index,
        dtype="float32" if section.dtype == "measured" else section.dtype,
        channels_last=section.memory_format != "contiguous",
        graphs=section.kind == "cuda" and section.graphs is not False,
        sm_percent=section.sm_percent,
        idle_w=section.idle_w,
        tdp_w=section.tdp_w,
    )
    if section.vram_gb is not None:
        return replace(spec, vram_bytes=round(section.vram_gb * GB))
    vram_bytes = gpu_bytes(spec.index) if spec.kind == "cuda" else None
    return spec if vram_bytes is None else replace(spec, vram_bytes=vram_bytes)


def candidates(spec: DeviceSpec, section: DeviceSection | None = None) -> tuple[DeviceSpec, ...]:
    """Return the GPU modes of which calibration takes the fastest; none if all is given."""
    if spec.kind != "cuda":
        return ()
    section = section or DeviceSection(kind="cuda")
    formats = {"measured": (True, False), "channels_last": (True,), "contiguous": (False,)}[section.memory_format]
    dtypes: tuple[Any, ...] = ("float32", "bfloat16") if section.dtype == "measured" else (section.dtype,)
    specs = tuple(replace(spec, channels_last=last, dtype=dtype) for dtype in dtypes for last in formats)
    return specs if len(specs) > 1 else ()


def as_calibrated(spec: DeviceSpec, section: DeviceSection, profile: Profile) -> DeviceSpec:
    """Return a GPU that computes as its profile specifies, if the scenario leaves that to calibration."""
    if spec.kind != "cuda":
        return spec
    measured = formats_of(profile.execution)
    if section.memory_format != "measured":
        measured.pop("channels_last", None)
    if section.dtype != "measured":
        measured.pop("dtype", None)
    if section.graphs is None:
        measured["graphs"] = "graphs" in profile.execution
    return replace(spec, **measured)


def section_of(server: ServerSection, servers: Sequence[ServerSection]) -> DeviceSection:
    """Return the section of the device that a server runs on: its own, or that of the server it shares with."""
    owner = next(other for other in servers if other.name == (server.shares_device_with or server.name))
    return owner.device or DeviceSection()


def device_of(server: ServerSection, servers: Sequence[ServerSection]) -> DeviceSpec:
    """Return the device that a server runs on; a share of a GPU as this machine can give it."""
    section = section_of(server, servers)
    spec = device_spec(section)
    if section.sm_percent is None or not start_daemon():
        return spec
    gpus = [other.device for other in servers if other.device is not None and other.device.kind == "cuda"]
    largest = max(gpu.sm_percent or 100 for gpu in gpus if gpu.index == spec.index)
    return replace(spec, sm_percent=None, repeats=round(largest / section.sm_percent))


def share_warning(server: str, device: DeviceSpec) -> str:
    """Describe what a server's share of a GPU is without MPS; empty if MPS gives it."""
    if device.repeats == 1:
        return ""
    problem = f"{server} has no share of the GPU's multiprocessors, for {start_daemon()}"
    remedy = f"it computes each pass {device.repeats} times instead, and takes turns with the others of its GPU"
    return f"{problem}; {remedy}, which simulation does not model"


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
        """List the names of all existing hosts."""
        return sorted({node.host for node in self.cluster.nodes()})

    def node_of(self, host: str, key: str) -> Node:
        """Return a host's node; raises `InputError` if the cluster has no such host now."""
        node = self.cluster.node_of(host)
        if node is None:
            names = ", ".join(self.names())
            problem = f"no host {host!r} in the Ray cluster at {self.cluster.address}; there are {names}"
            raise InputError(self._source, key, f"{problem}; start its node with `ray start --labels=host={host}`")
        return node

    def facts_of(self, host: str, key: str = "cluster.servers") -> HostFacts:
        """Return the facts that a host reports; it must have this code.

        Raises:
            InputError: the host is unknown.
            WorkError: it has another version, or other code.
        """
        if host not in self._facts:
            reported = self._answer(host, key, facts, host)
            require_same_code(host, reported.version, reported.code)
            self._facts[host] = reported
        return self._facts[host]

    def machine_of(self, host: str) -> str:
        """Return its name, if it is another machine than the router's; empty if it is the same."""
        return "" if self.facts_of(host).machine == machine() else host

    def ask(self, host: str, key: str, function: Callable[..., Asked], *arguments: Any) -> Asked:
        """Return what a function of ours returns there; raises what it raises, and what `facts_of` does."""
        self.facts_of(host, key)
        return self._answer(host, key, function, *arguments)

    def _answer(self, host: str, key: str, function: Callable[..., Asked], *arguments: Any) -> Asked:
        """Run a function there, whatever code the host has; raises `WorkError` if this project is not there."""
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
        with ThreadPoolExecutor(max(1, len(hosts))) as pool:
            return list(pool.map(lambda host: self.ask(host, key, function, *arguments(host)), hosts))


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


def emulated_device(experiment: Experiment, index: int) -> EmulatedDevice:
    """Return what a server's device emulates: its given profile, without the costs of serving, which are real here."""
    server = experiment.scenario.cluster.named_servers[index]
    assert server.device is not None, "emulated"
    params = experiment.scenario.cluster.greedy_of(server)
    emulation = Emulation(
        profile=emulated_profile(server.device).to_yaml(),
        batch_limit=params.batch_limit,
        jitter=experiment.scenario.jitter,
        util_metric=params.util_metric,
        seed=derived_seed(experiment.scenario.seed, "emulation"),
        server=index,
    )
    return playing(emulation, experiment.device_names[index], server.device)


def playing(emulation: Emulation, name: str, section: DeviceSection) -> EmulatedDevice:
    """Describe the device as a worker takes it; `name` is the device's."""
    return EmulatedDevice(FACTORY, to_bytes(emulation), name, section.slowdown, section.cores)


def served_of(experiment: Experiment) -> ServedNetwork:
    """Return a placeholder network: what its activations take, by the profiles."""
    model = experiment.profiles[0].model
    return ServedNetwork.of_sizes(model.widths, model.input_bytes, model.activation_bytes)


def blank_images(experiment: Experiment) -> Dataset:
    """Return a data set of one blank image, as large as a real one, which all requests share."""
    image, label = np.zeros((1, *served_of(experiment).input_shape), dtype=np.float32), np.zeros(1, dtype=np.int64)
    return Dataset("none", image, label, image, label, 1)
