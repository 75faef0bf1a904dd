"""What a scenario needs before it can be simulated: its servers named, their profiles, the network and its accuracy.

A scenario may name files for them; what it does not name, a run makes and keeps in its run folder. This module has
their paths and reads them; `scenarios.job` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from hw.networks.accuracy import Evaluation, load_accuracy
from kit.documents import with_remedy
from kit.errors import InputError
from policies.nests import nests_of, tuples_within
from policies.vocabulary import Provenance
from scenarios.files.reading import load_scenario, read_profile
from scenarios.files.shipped import profile_file
from scenarios.files.spec import DeviceSection, Scenario, ServerSection
from scenarios.world.build import build_world, with_local_servers
from scenarios.world.made_with import of_accuracy, of_network, of_profile, require_same, require_weights
from scenarios.world.world import NetworkAccuracy, World
from sim.emulation import emulated
from sim.profile import Profile

if TYPE_CHECKING:
    from hw.networks.registry import ModelFile, Network

MODEL_FILE = "model.safetensors"
ACCURACY_FILE = "accuracy.json"
SCENARIO_FILE = "scenario.yaml"
_EVALUATED = "`slimsched model train` makes it again"
_CALIBRATED = "`slimsched run` makes it again"


def default_folder(scenario: Scenario) -> Path:
    """Return `runs/NAME`, in the current folder."""
    return Path("runs") / scenario.name


def with_named_servers(scenario: Scenario) -> Scenario:
    """Return the scenario with `cluster.servers: auto` spelled out for this machine."""
    if scenario.cluster.servers != "auto":
        return scenario
    from hw.device import local_devices  # opens torch, which a simulation does not need

    return with_local_servers(scenario, local_devices())


def model_path(scenario: Scenario, folder: Path) -> Path:
    """Return the path of the network, made or not."""
    return Path(scenario.model.checkpoint) if scenario.model.checkpoint else folder / MODEL_FILE


def model_file(scenario: Scenario, folder: Path) -> ModelFile:
    """Return the network's file, and which network it is according to the scenario."""
    from hw.networks.registry import ModelFile  # opens torch, which a simulation does not need

    return ModelFile(model_path(scenario, folder), network_of(scenario))


def network_of(scenario: Scenario) -> Network | None:
    """Return the network that the scenario names; raises `InputError` for an unknown name."""
    from hw.networks.registry import Network

    given = scenario.model
    return Network(given.network, given.options, scenario.name, "model.network") if given.network else None


def profile_path(folder: Path, server: str) -> Path:
    """Return the path of a server's profile, made or not."""
    return folder / "profiles" / f"{server}.yaml"


def calibrated_path(folder: Path, server: str) -> Path:
    """Return the path of a server's profile as calibration left it, before the overheads of serving were added."""
    return folder / "calibration" / f"{server}.yaml"


def served_path(folder: Path, server: str) -> Path:
    """Return the path of a server's profile with the overheads of serving, if they were measured on this host."""
    return folder / "calibration" / "served" / f"{server}.yaml"


def read_accuracy(scenario: Scenario, folder: Path) -> NetworkAccuracy:
    """Read the scenario's accuracy file, or the one that its run made.

    Raises:
        InputError: there is none yet, it is broken, or it was made with something else than the scenario has now.
    """
    path = Path(scenario.model.accuracy) if scenario.model.accuracy else folder / ACCURACY_FILE
    if not path.is_file():
        problem = (
            f"not evaluated yet (no {path}; the run folder `out` is also where the network's files are looked for); "
        )
        problem += "`slimsched run` or `slimsched model train` does"
        raise InputError(scenario.name, "model.accuracy", problem)
    is_brought = scenario.model.accuracy is not None
    remedy = f"name another one ({_EVALUATED})" if is_brought else _EVALUATED
    with nullcontext() if is_brought else with_remedy(_EVALUATED):
        table = load_accuracy(path)
    if isinstance(table, Evaluation):
        require_same(path, table.made_with, of_accuracy(scenario), remedy, is_brought=is_brought)
        require_weights(path, model_path(scenario, folder), table, remedy)
    return NetworkAccuracy.of(table)


def read_profiles(scenario: Scenario, folder: Path) -> dict[str, Profile]:
    """Read each server's profile (one that shares a device has that server's).

    Raises:
        InputError: a server has not been calibrated yet, its file is broken, or was made with something else than the
            scenario has now.
    """
    profiles: dict[str, Profile] = {}
    played: dict[tuple[str, float], Profile] = {}  # one object, with its tables, for all servers that emulate it
    for server in scenario.cluster.named_servers:
        if server.shares_device_with is not None:
            continue
        path, device = profile_source(server, folder), server.device
        if device is not None and device.emulated is not None and path != profile_path(folder, server.name):
            plays = (device.emulated, device.slowdown)
            if plays not in played:
                played[plays] = emulated_profile(device)
            profiles[server.name] = played[plays]
            continue
        if not path.is_file():
            problem = (
                f"{server.name!r} is not calibrated yet (no {path.name} in {path.parent}); `slimsched run` does it"
            )
            raise InputError(scenario.name, "cluster.servers", problem)
        is_brought = server.profile is not None
        with nullcontext() if is_brought else with_remedy(_CALIBRATED):
            profile = profiles[server.name] = read_profile(path)
        wanted = of_network(scenario) if is_brought else of_profile(scenario, server)
        remedy = "`slimsched calibrate` makes one of yours" if is_brought else f"{_CALIBRATED} (remove an edited one)"
        require_same(path, profile.made_with, wanted, remedy, is_brought=is_brought)
    return profiles


def profile_source(server: ServerSection, folder: Path) -> Path:
    """Return the file that a server's profile is made of: the one that it names, its run keeps, or it emulates."""
    if server.profile:
        return profile_file(server.profile)
    path = profile_path(folder, server.name)
    if server.device is not None and server.emulated is not None and not _is_played(server.device, path):
        return profile_file(server.emulated)
    return path


def emulated_profile(device: DeviceSection) -> Profile:
    """Return the profile of an emulated device; raises `InputError` if there is no such profile."""
    assert device.emulated is not None, "asked of an emulated one"
    return emulated(read_profile(Path(device.emulated)), device.slowdown)


def _is_played(device: DeviceSection, path: Path) -> bool:
    """Return whether a run has kept there the profile that this very device emulates, with what serving costs."""
    if not path.is_file():
        return False
    played, wanted = read_profile(path), emulated_profile(device)
    return (played.name, played.latency) == (wanted.name, wanted.latency)


def make_world(scenario: Scenario, folder: Path) -> World:
    """Combine everything; raises `InputError` for what is missing or does not fit."""
    scenario = with_named_servers(scenario)
    profiles = read_profiles(scenario, folder)
    accuracy = read_accuracy(scenario, folder)
    require_same_model(scenario, profiles, accuracy)
    return build_world(scenario, profiles, accuracy)


def load_world(path: Path, folder: Path | None = None) -> World:
    """Return `make_world` from a scenario's file."""
    scenario = load_scenario(path)
    return make_world(scenario, folder or default_folder(scenario))


def require_same_model(scenario: Scenario, profiles: Mapping[str, Profile], accuracy: NetworkAccuracy) -> None:
    """Check that a profile is of the network whose accuracy is used, all of it.

    A `datasheet` profile was made for a network's shape, not for its weights: its widths and segments must fit. The
    same holds for any profile used with the paper's table, which is of no weights either.

    Raises:
        InputError: it is of another one.
    """
    segments, widths = len(next(iter(accuracy.prior.top1))), sorted({w for row in accuracy.prior.top1 for w in row})
    for name, profile in profiles.items():
        model = profile.model
        if (model.segments, sorted(model.widths)) != (segments, widths):
            problem = f"the profile of {name!r} has {model.segments} segments at widths {sorted(model.widths)}; "
            problem += f"the accuracy table has {segments} segments at widths {widths}; take those of one network: "
            remedy = "`slimsched model train` makes the table of yours, and `slimsched init --accuracy FILE` names one"
            raise InputError(scenario.name, "model", problem + remedy)
        of_shape = profile.provenance in (Provenance.DATASHEET, Provenance.EMULATED)
        of_weights = not of_shape and accuracy.evaluation is not None
        if of_weights and accuracy.evaluation is not None and model.hash != accuracy.evaluation.hash:
            problem = f"the profile of {name!r} is of another model ({model.name}, {model.hash[:12]}); calibrate again"
            raise InputError(scenario.name, "cluster.servers", problem)
        every = tuples_within(nests_of(model.widths, model.nests), model.segments)
        if missing := [row for row in every if row not in accuracy.prior.top1]:
            problem = f"the accuracy table lacks {len(missing)} of {len(every)} width tuples, first {list(missing[0])}"
            raise InputError(scenario.name, "model", f"{problem}; a router may ask for any: write them, too")
