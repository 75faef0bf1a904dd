"""What must fit before real executors start: devices, memory, network, profiles, routers. One `InputError` each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import torch

from hw.device import DeviceSpec
from hw.networks import ModelFile
from hw.telemetry import usable_cores
from policies.errors import InputError
from policies.vocabulary import Provenance
from scenarios.compose import World
from scenarios.spec import GB, Scenario
from scenarios.validate import device_of


def require_devices(scenario: Scenario) -> None:
    """Every device that the scenario names must be in this machine.

    Raises:
        InputError: one is not; it says what is here.
    """
    for index, server in enumerate(scenario.cluster.named_servers):
        if server.device is None:
            continue
        key = f"cluster.servers.{index}.device"
        if server.device.kind == "cuda":
            _require_gpu(server.device.index, scenario.name, key)
        else:
            _require_cores(server.device.cores, scenario.name, key)


def _require_gpu(index: int, source: str, key: str) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        here = f"allowed are {', '.join(f'cuda:{i}' for i in range(count))}" if count else "none is here; use kind: cpu"
        raise InputError(source, f"{key}.index", f"no cuda:{index} in this machine; {here}")


def _require_cores(cores: Sequence[int], source: str, key: str) -> None:
    usable = usable_cores()
    absent = [core for core in cores if core not in usable]
    if absent:
        problem = f"no core {', '.join(map(str, absent))} for this process; allowed are {', '.join(map(str, usable))}"
        raise InputError(source, f"{key}.cores", problem)


def require_ready(world: World, model: ModelFile, routers: Sequence[str], trained: Path | None) -> None:
    """The network to run must be the profiles', servers must fit their devices' memory, routers the cluster.

    Raises:
        InputError: something does not.
    """
    _require_model(world, model)
    _require_memory(world)
    for index, router in enumerate(routers):
        world.router(router, trained, f"validate.routers.{index}")


def _require_model(world: World, model: ModelFile) -> None:
    """A profile from a datasheet is of a network's shape, not of its weights; its shape is checked elsewhere."""
    _, metadata = model.load()
    for server, profile in zip(world.cluster.servers, world.profiles, strict=True):
        if profile.provenance != Provenance.DATASHEET and profile.model.hash != metadata["hash"]:
            problem = (
                f"the profile of {server.name!r} is of {profile.model.name} ({profile.model.hash[:12]}), the network "
                f"to run is {metadata['hash'][:12]}; calibrate again, or name the network that it was calibrated with"
            )
            raise InputError(world.scenario.name, "cluster.servers", problem)


def _require_memory(world: World) -> None:
    """The servers' caps on one device together; a CPU's servers share the machine's memory."""
    sections = world.scenario.cluster.named_servers
    caps: dict[str, dict[str, int]] = {}
    limits: dict[str, int] = {}
    for section, server in zip(sections, world.cluster.servers, strict=True):
        device = device_of(section, sections)
        name = "this machine" if device.kind == "cpu" else f"cuda:{device.index}"
        caps.setdefault(name, {})[server.name] = server.knobs.vram_cap_bytes
        limits[name] = memory_bytes(device)
    for name, of_servers in caps.items():
        _require_room(name, of_servers, limits[name], world.scenario.name)


def _require_room(device: str, caps: Mapping[str, int], limit_bytes: int, source: str) -> None:
    total_bytes = sum(caps.values())
    if total_bytes > limit_bytes:
        each = ", ".join(f"{name} {cap / GB:.2f}" for name, cap in caps.items())
        problem = f"the servers on {device} may use {total_bytes / GB:.2f} GB together ({each}), it has "
        problem += f"{limit_bytes / GB:.2f} GB; lower vram_cap_gb, or take servers away"
        raise InputError(source, "cluster.greedy.vram_cap_gb", problem)


def memory_bytes(device: DeviceSpec) -> int:
    """What the device has: a GPU's memory, or the machine's."""
    if device.kind == "cuda":
        return int(torch.cuda.get_device_properties(device.index).total_memory)
    return int(psutil.virtual_memory().total)
