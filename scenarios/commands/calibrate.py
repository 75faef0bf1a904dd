"""`slimsched calibrate`: devices of this machine, or one that is emulated, each measured into a profile."""

from __future__ import annotations

import contextlib
import dataclasses
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calibrate import Calibration, model_costs
from hw.device import DeviceSpec
from hw.networks import ModelFile, Network
from policies.errors import InputError
from policies.files import set_aside
from scenarios.executors.calibrate import calibrate_device
from scenarios.executors.checking import SERVING_S, with_serving
from scenarios.executors.devices import (
    CALIBRATING,
    EMULATED,
    candidates,
    chosen_devices,
    emulated_section,
    require_free,
    require_served,
)
from scenarios.executors.emulation import played
from scenarios.files.documents import write_text
from scenarios.files.reading import as_made
from scenarios.files.spec import DeviceSection
from scenarios.show.profile import spoilt
from scenarios.terminal.output import Output
from scenarios.terminal.places import writable_file
from scenarios.world.build import device_section
from sim.profile import Profile


def calibrate(arguments: Namespace) -> int:
    """Measure local devices, or one that is emulated; each gets a profile."""
    output = Output(arguments)
    named = arguments.network
    network = Network(named, arguments.options, "--network", "") if named is not None else None
    measuring_s = max(arguments.budget - SERVING_S, 0.75 * arguments.budget)
    chosen = list((_emulated if _is_emulated(arguments) else _local)(arguments, network, measuring_s))
    for subject in chosen:  # an --out that can't be written shows before anything is measured
        writable_file(subject.path)
    warnings = []
    for subject in chosen:
        profile = _calibrated(subject, output, arguments.budget - measuring_s)
        name, path = subject.wanted.name, subject.path
        write_text(path, profile.to_yaml())
        output.remark(f"{name}: what serving costs on this host, about {SERVING_S:.0f} s, part of --budget")
        with _naming(subject.asked):
            served = subject.with_serving(profile, arguments)
        write_text(path, served.to_yaml())
        if problem := spoilt(profile):
            warnings.append(f"{name}: {problem}")
    for warning in warnings:
        output.remark(f"warning: {warning}")
    lines = "\n".join(f"profile: {subject.path}" for subject in chosen)
    return output.result(lines, {"profiles": [str(subject.path) for subject in chosen], "warnings": warnings})


@dataclasses.dataclass(frozen=True)
class _Subject:
    """A device to calibrate: as it was asked for, how, where its profile goes, and as a scenario would name it."""

    asked: str
    wanted: Calibration
    path: Path
    section: DeviceSection

    def with_serving(self, profile: Profile, arguments: Namespace) -> Profile:
        """With what serving costs."""
        file, seed = self.wanted.file, arguments.seed
        return with_serving(profile, file, self.section, seed, allow_busy=arguments.allow_busy)


def _is_emulated(arguments: Namespace) -> bool:
    return bool(arguments.device and arguments.device.startswith(EMULATED))


def _local(arguments: Namespace, network: Network | None, budget_s: float) -> Iterator[_Subject]:
    """Devices of this machine; what is no model shows now."""
    if arguments.model is None:
        problem = "give the network's file (safetensors); only an emulated device (--device emulated:PROFILE) runs none"
        raise InputError("--model", "", problem)
    file = ModelFile(arguments.model, network)
    model_costs(file)
    for asked, device in chosen_devices(arguments.device):
        if device.kind == "cuda":
            require_served(device.index, CALIBRATING, "--device", "")
            require_free(device.index, "--device", "")
        name, section = asked.replace(":", ""), device_section(device)
        yield _subject(arguments, budget_s, asked, name, section, file=file, device=device, peer=device)


def _emulated(arguments: Namespace, network: Network | None, budget_s: float) -> Iterator[_Subject]:
    """The one that is asked for."""
    if arguments.model is not None:
        raise InputError("--model", "", "an emulated device runs no network; leave it out")
    section = emulated_section(arguments.device)
    device, known = played(section, arguments.batch_limit, arguments.seed, network)
    assert section.emulated is not None, "it names one"
    slow = f"-x{section.slowdown:g}" if section.slowdown > 1 else ""
    name = f"emulated-{Path(section.emulated).stem}{slow}"
    yield _subject(arguments, budget_s, arguments.device, name, section, file=None, device=device, played=known)


def _subject(
    arguments: Namespace, budget_s: float, asked: str, name: str, section: DeviceSection, **of_device: Any
) -> _Subject:
    with _naming(asked):
        wanted = Calibration(
            **of_device,
            candidates=candidates(of_device["device"]) if isinstance(of_device["device"], DeviceSpec) else (),
            budget_s=budget_s,
            batch_limit=arguments.batch_limit,
            log_path=arguments.out / f"{name}.jsonl",
            seed=arguments.seed,
            name=name,
            allow_busy=arguments.allow_busy,
        )
    return _Subject(asked, wanted, arguments.out / f"{name}.yaml", section)


def _calibrated(subject: _Subject, output: Output, reserved_s: float) -> Profile:
    """Measured; a file in its place that is no profile of ours is kept."""
    path, is_ours = subject.path, _was_calibrated(subject.path)
    with _naming(subject.asked):
        profile = calibrate_device(subject.wanted, quiet=output.quiet, say=output.remark, reserved_s=reserved_s)
    if path.exists() and not is_ours:
        aside = set_aside(path, ".kept")
        output.remark(f"{path} was not made by this calibration, or was edited since: it is kept as {aside.name}")
    return profile


def _was_calibrated(path: Path) -> bool:
    """Whether a profile is one that a calibration made in this place, with its log beside, and nobody edited since."""
    return path.with_suffix(".jsonl").is_file() and as_made(path) is not None


@contextlib.contextmanager
def _naming(device: str) -> Iterator[None]:
    """What is wrong with a device is told of the one that was asked for, by that name."""
    try:
        yield
    except InputError as error:
        if error.source != "calibrate":
            raise
        raise InputError(f"calibrate {device}", error.key, error.problem) from None
