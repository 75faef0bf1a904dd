"""A scenario's emulated servers as agents take them: what their devices emulate, and what their router needs."""

from __future__ import annotations

import numpy as np

from hw.agent.emulated import EmulatedDevice
from hw.networks.datasets import Dataset
from hw.router.run_spec import ServedNetwork
from kit.chance import derived_seed
from scenarios.files.spec import DeviceSection
from scenarios.world.materials import emulated_profile
from scenarios.world.world import World
from sim.emulation import FACTORY, Emulation, to_bytes


def emulated_device(world: World, index: int) -> EmulatedDevice:
    """Return what a server's device emulates: its given profile, without the costs of serving, which are real here."""
    server = world.scenario.cluster.named_servers[index]
    assert server.device is not None, "emulated"
    knobs = world.scenario.cluster.greedy_of(server)
    emulation = Emulation(
        profile=emulated_profile(server.device).to_yaml(),
        batch_limit=knobs.batch_limit,
        jitter=world.scenario.jitter,
        util_metric=knobs.util_metric,
        seed=derived_seed(world.scenario.seed, "emulation"),
        server=index,
    )
    return playing(emulation, world.device_names[index], server.device)


def playing(emulation: Emulation, name: str, section: DeviceSection) -> EmulatedDevice:
    """Describe the device as an agent takes it; `name` is the device's."""
    return EmulatedDevice(FACTORY, to_bytes(emulation), name, section.slowdown, section.cores)


def served_of(world: World) -> ServedNetwork:
    """Return a placeholder network: what its activations take, by the profiles."""
    model = world.profiles[0].model
    return ServedNetwork.of_sizes(model.widths, model.input_bytes, model.activation_bytes)


def blank_images(world: World) -> Dataset:
    """Return one image, which is every request's: as many bytes as a real one has, all of them blank."""
    image, label = np.zeros((1, *served_of(world).input_shape), dtype=np.float32), np.zeros(1, dtype=np.int64)
    return Dataset("none", image, label, image, label, 1)
