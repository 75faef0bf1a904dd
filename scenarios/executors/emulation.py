"""A scenario's emulated servers as agents take them: what their devices play, and what their router must know."""

from __future__ import annotations

import numpy as np

from calibrate.calibration import Played
from calibrate.costs import costs_of
from hw.agent.emulated import EmulatedDevice
from hw.networks.datasets import Dataset
from hw.networks.registry import Network
from hw.router.run_spec import ServedNetwork
from kit.chance import derived_seed
from kit.errors import InputError
from scenarios.executors.devices import EMULATED
from scenarios.files.spec import NETWORKS, DeviceSection
from scenarios.world.materials import emulated_profile
from scenarios.world.world import World
from sim.emulation import FACTORY, Emulation, to_bytes


def emulated_device(world: World, index: int) -> EmulatedDevice:
    """What a server's device plays: its profile as it was given, without what serving costs, which is real here."""
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


def played(
    section: DeviceSection, batch_limit: int, seed: int, network: Network | None
) -> tuple[EmulatedDevice, Played]:
    """An emulated device to be calibrated, and what is known of it.

    Args:
        network: that its profile is of; the one that the profile names by default.

    Raises:
        InputError: the profile is of another network, of an unknown one, or does not cover such batches.
    """
    profile, source = emulated_profile(section), f"--device {EMULATED}{section.emulated}"
    if batch_limit > profile.batch_limit:
        problem = f"{batch_limit} is beyond what the profile covers; allowed are 1 to {profile.batch_limit}"
        raise InputError("--batch-limit", "", problem)
    model = profile.model
    if network is None and model.name not in NETWORKS:  # a class that a profile names is not run unasked
        raise InputError(source, "model", f"the profile is of {model.name!r}; name its network with --network")
    network = network or Network(model.name, {}, source, "model.name")
    costs = costs_of(network.build(), model.name, model.hash)
    if costs.info != model:
        problem = f"the profile is of {model.name}, which is not {network.label}; name its network with --network"
        raise InputError(source, "model", problem)
    emulation = Emulation(profile.to_yaml(), batch_limit, seed=derived_seed(seed, "emulation"))
    return playing(emulation, profile.device.name, section), Played(profile, costs)


def served_of(world: World) -> ServedNetwork:
    """A network that nobody has: what its activations take, as the profiles say."""
    model = world.profiles[0].model
    return ServedNetwork.of_sizes(model.widths, model.input_bytes, model.activation_bytes)


def blank_images(world: World) -> Dataset:
    """One image, which is every request's: as many bytes as a real one has, and nothing in them."""
    image, label = np.zeros((1, *served_of(world).input_shape), dtype=np.float32), np.zeros(1, dtype=np.int64)
    return Dataset("none", image, label, image, label, 1)
