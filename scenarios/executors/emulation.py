"""A scenario's emulated servers as agents take them: what their devices play, and what their router must know."""

from __future__ import annotations

import numpy as np

from hw.datasets import Dataset
from hw.emulated import EmulatedDevice
from hw.run_spec import Served
from policies.chance import derived_seed
from scenarios.files.spec import ServerSection
from scenarios.world.materials import emulated_profile
from scenarios.world.world import World
from sim.emulation import FACTORY, Emulation, to_bytes


def emulated_device(world: World, index: int) -> EmulatedDevice:
    """What a server's device plays: its profile as it was given, without what serving costs, which is real here."""
    server: ServerSection = world.scenario.cluster.named_servers[index]
    assert server.device is not None, "emulated"
    profile = emulated_profile(server)
    knobs = world.scenario.cluster.greedy_of(server)
    emulation = Emulation(
        profile=profile.to_yaml(),
        batch_limit=knobs.batch_limit,
        jitter=world.scenario.jitter,
        util_metric=knobs.util_metric,
        seed=derived_seed(world.scenario.seed, "emulation"),
        server=index,
    )
    slowdown, cores = server.device.slowdown, server.device.cores
    return EmulatedDevice(FACTORY, to_bytes(emulation), f"{profile.device.name} x{slowdown:g}", slowdown, cores)


def served_of(world: World) -> Served:
    """A network that nobody has: what its activations take, as the profiles say."""
    model = world.profiles[0].model
    return Served.of_sizes(model.widths, model.input_bytes, model.activation_bytes)


def blank_images(world: World) -> Dataset:
    """One image, which is every request's: as many bytes as a real one has, and nothing in them."""
    image, label = np.zeros((1, *served_of(world).input_shape), dtype=np.float32), np.zeros(1, dtype=np.int64)
    return Dataset("none", image, label, image, label, 1)
