"""What a scenario's files were made with, as they record it, compared with the scenario now.

Accuracies, profiles and routers are made once and read often: what has changed meanwhile is refused, never answered
with the old numbers. A file that does not record something is taken as it is: it was brought from elsewhere.

Seeds are left out: with another one the same thing would only be drawn again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hw.networks.datasets import dataset_label
from hw.networks.settings import network_settings
from kit.checkpoint import header
from kit.documents import inputs_hash, with_remedy
from kit.errors import InputError
from kit.named_files import named_files, with_paths
from scenarios.files.spec import DeviceSection, Scenario, ServerSection

if TYPE_CHECKING:
    from hw.networks.accuracy import Evaluation
    from sim.profile import Profile

MadeWith = dict[str, str]
"""A setting's key, or what else was read, and its value in words."""

OF_A_WORLD: Final = (
    *("cluster", "router", "workload", "faults", "supervision", "deadline_s", "shed", "classes", "reward", "jitter"),
    "end",
)
"""The parts of a scenario that every simulation reads."""
_PLAYED: Final = {"emulated", "slowdown"}  # by a device without measurements
_WATCHED: Final = {"device", "checkpoint_epochs", "probe_epochs"}  # where and how often, not what


def of_network(scenario: Scenario) -> MadeWith:
    """Return the network that the scenario names, and a user's code; empty if it names none."""
    given = scenario.model
    if given.network is None:
        return {}
    return network_settings(given.network, given.options, scenario.name, "model.network")


def of_accuracy(scenario: Scenario) -> MadeWith:
    """Return what an accuracy table depends on: network, images, and the network's training if that is done here."""
    given, origin = scenario.model, of_network(scenario)
    if given.accuracy is None or "dataset" in given.model_fields_set:  # a table that is brought may be of any other
        try:
            origin["model.dataset"] = dataset_label(given.dataset)
        except InputError as error:
            raise InputError(scenario.name, f"model.{error.key}", error.problem) from None
    if given.checkpoint is None:
        training = given.training.model_dump(mode="json", exclude_none=True, exclude=_WATCHED)
        origin |= _flat("model.training", training)
    return origin


def of_profile(scenario: Scenario, server: ServerSection) -> MadeWith:
    """Return what a device's calibration depends on: network, budget, and the scenario's keys of the device."""
    device = server.device or DeviceSection()
    settings = device.model_dump(mode="json", exclude_none=True, exclude=_PLAYED)
    budget = {"calibration.budget": f"{scenario.calibration.budget:g} s"}
    return of_network(scenario) | budget | _flat(f"cluster.servers.{server.name}.device", settings)


def of_router(scenario: Scenario, profiles: Sequence[Profile], top1: Mapping[tuple[float, ...], float]) -> MadeWith:
    """Return the world that a router is made for: load, cluster, profiles and accuracies; not how long it learned.

    Args:
        profiles: each server's.
        top1: accuracies by width tuple.
    """
    dumped = with_paths(scenario, lambda _: "").model_dump(mode="json", include=set(OF_A_WORLD), exclude_defaults=True)
    origin = {key: value for part in dumped for key, value in _flat(part, dumped[part]).items()}
    origin |= {f"workload.{file.key}": inputs_hash(file.path)[:16] for file in named_files(scenario.workload)}
    for server, profile in zip(scenario.cluster.named_servers, profiles, strict=True):
        origin[f"the profile of {server.name}"] = inputs_hash(profile.model_dump_json(exclude_none=True))[:16]
    return origin | {"the accuracies": inputs_hash(sorted(top1.items()))[:16]}


def _flat(key: str, value: Any) -> MadeWith:
    """Flatten a section's settings into dotted keys; a list of plain values is one value."""
    if isinstance(value, Mapping):
        return {name: text for part in value for name, text in _flat(f"{key}.{part}", value[part]).items()}
    if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        return {name: text for index, each in enumerate(value) for name, text in _flat(f"{key}.{index}", each).items()}
    return {key: value if isinstance(value, str) else json.dumps(value)}


# ------------------------------------------------------------------------------------------------------------ refused


def require_same(
    path: Path, origin: Mapping[str, str] | None, wanted: Mapping[str, str], remedy: str, *, is_brought: bool = False
) -> None:
    """Check that a file was made with the scenario's present settings.

    Args:
        is_brought: the scenario names it, so that only settings in both must agree.

    Raises:
        InputError: something differs; it names the file and the first such setting.
    """
    if not origin:
        return
    for key in {**wanted, **origin}:
        there, here = origin.get(key), wanted.get(key)
        if there != here and not (is_brought and None in (there, here)):
            texts = ("nothing" if each is None else f"{each:.200}" for each in (there, here))
            raise InputError(str(path), key, "made with {}, the scenario has {}; ".format(*texts) + remedy)


def require_weights(path: Path, model: Path, evaluation: Evaluation, remedy: str) -> None:
    """Check that an accuracy table is of the weights that are there, if some are.

    Raises:
        InputError: it is of others, or they can't be read.
    """
    if not model.is_file():
        return
    with with_remedy(remedy):
        stored = header(model).get("hash", evaluation.hash)
    if stored != evaluation.hash:
        raise InputError(str(path), "model", f"of the weights {evaluation.hash}, {model} has {stored}; {remedy}")
