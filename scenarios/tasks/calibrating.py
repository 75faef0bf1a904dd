"""Calibration: devices of this machine, of the hosts of a cluster, or emulated; each gets a profile."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from calibrate import Calibration, model_costs
from hw.device import DeviceSpec
from hw.networks.registry import ModelFile, Network
from hw.ray.cluster import joined
from hw.ray.host import cache, kept
from hw.telemetry import available_devices, unusable_devices
from kit.documents import inputs_hash, write_json, write_text
from kit.errors import InputError
from kit.files import set_aside
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
from scenarios.executors.hosts import Hosts
from scenarios.executors.links import measure_links
from scenarios.files.reading import as_made
from scenarios.files.shipped import CALIBRATED
from scenarios.files.spec import DeviceSection
from scenarios.show.profile import spoilt
from scenarios.tasks.asked import Listener, Silent
from scenarios.terminal.places import writable_file
from scenarios.world.build import device_section
from sim.profile import Profile


@dataclasses.dataclass(frozen=True)
class Calibrating:
    """What is to be measured, as the flags of `slimsched calibrate` say it.

    Attributes:
        model: a trained network's file; None for an emulated device, which runs none.
        network: which network that is, where its file does not say; `options` are what its class is called with.
        device: None for all that are here.
        budget_s: of each device.
        batch_limit: the largest batch.
        out: the folder for profiles.
        cluster: a Ray cluster's address, for every host of it; `beyond_loopback`: one that others can reach, too.
    """

    model: Path | None = None
    network: str | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    device: str | None = None
    budget_s: float = 300.0
    batch_limit: int = 32
    seed: int = 0
    out: Path = CALIBRATED
    allow_busy: bool = False
    cluster: str | None = None
    beyond_loopback: bool = False

    @property
    def is_emulated(self) -> bool:
        """Whether the device is one that plays a profile."""
        return bool(self.device and self.device.startswith(EMULATED))


class Calibrated(NamedTuple):
    """The profiles' files, and what is wrong with profiles, in words."""

    paths: list[Path]
    warnings: list[str]


def calibrate(wanted: Calibrating, output: Listener) -> Calibrated:
    """Measure devices: local ones, one that is emulated, or those of every host of a cluster; each gets a profile.

    Raises:
        InputError: something wanted is wrong, or a device can't be used.
    """
    paths, warnings = (_of_cluster if wanted.cluster is not None else _measured)(wanted, output)
    for warning in warnings:
        output.remark(f"warning: {warning}")
    return Calibrated(paths, warnings)


def _measured(wanted: Calibrating, output: Listener) -> tuple[list[Path], list[str]]:
    """The profiles of devices of this machine, and what is wrong with them."""
    named = wanted.network
    network = Network(named, wanted.options, "--network", "") if named is not None else None
    for warning in unusable_devices(available_devices()):
        output.remark(warning)
    measuring_s = max(wanted.budget_s - SERVING_S, 0.75 * wanted.budget_s)
    chosen = list((_emulated if wanted.is_emulated else _local)(wanted, network, measuring_s))
    for subject in chosen:  # an --out that can't be written shows before anything is measured
        writable_file(subject.path)
    warnings = []
    for subject in chosen:
        profile = _calibrated(subject, output, wanted.budget_s - measuring_s)
        name, path = subject.wanted.name, subject.path
        write_text(path, profile.to_yaml())
        output.remark(f"{name}: what serving costs on this host, about {SERVING_S:.0f} s, part of --budget")
        with _naming(subject.asked):
            served = subject.with_serving(profile, wanted)
        write_text(path, served.to_yaml())
        if problem := spoilt(profile):
            warnings.append(f"{name}: {problem}")
    return [subject.path for subject in chosen], warnings


def _of_cluster(wanted: Calibrating, output: Listener) -> tuple[list[Path], list[str]]:
    """The same on every host of a Ray cluster, hosts of different machines beside each other; and links and clocks.

    What brings activations to a host is measured between hosts, and takes the place of its own link.
    """
    assert wanted.cluster is not None, "it names one"
    if wanted.model is None or wanted.is_emulated:
        raise InputError(
            "--cluster", "", "measures the devices of hosts for a network: give --model, and no emulated one"
        )
    model, paths, warnings = wanted.model.read_bytes(), list[Path](), list[str]()
    with joined(wanted.cluster, "--cluster", "", beyond_loopback=wanted.beyond_loopback) as cluster:
        hosts = Hosts(cluster, "--cluster")
        machines: dict[str, list[str]] = {}
        for host in hosts.names():
            machines.setdefault(hosts.facts_of(host, "").machine, []).append(host)
        measured = measure_links(hosts, hosts.names(), output.remark)
        write_json(wanted.out / LINKS_FILE, measured.document())
        output.remark(f"calibrate: {', '.join(hosts.names())}; each device about {wanted.budget_s:.0f} s")

        def of_machine(on_it: list[str]) -> list[tuple[str, dict[str, str], list[str]]]:
            return [(host, *hosts.ask(host, "", calibrated_there, _plain(wanted), model)) for host in on_it]

        with ThreadPoolExecutor(len(machines)) as beside:
            found = [each for of_one in beside.map(of_machine, machines.values()) for each in of_one]
    for host, profiles, said in found:
        warnings += [f"{host}: {text}" for text in said]
        for name, text in profiles.items():
            profile = Profile.from_yaml(text, f"host {host}").model_copy(update={"link": measured.into(host)})
            paths.append(wanted.out / f"{host}-{name}.yaml")
            write_text(paths[-1], profile.to_yaml())
    return paths, warnings


LINKS_FILE: Final = "links.json"
_TAKEN_ALONG: Final = ("network", "options", "device", "budget_s", "batch_limit", "seed", "allow_busy")


def _plain(wanted: Calibrating) -> dict[str, Any]:
    return {name: getattr(wanted, name) for name in _TAKEN_ALONG}


def calibrated_there(wanted: dict[str, Any], model: bytes) -> tuple[dict[str, str], list[str]]:
    """On a host: its devices' profiles by name, and what is wrong with them. Logs are kept there until it is done."""
    path = kept(model)
    out = cache() / "calibrations" / inputs_hash(path.name, repr(sorted(wanted.items())))[:16]
    out.mkdir(parents=True, exist_ok=True)
    paths, warnings = _measured(Calibrating(**wanted, model=path, out=out), Silent())
    profiles = {path.stem: path.read_text(encoding="utf-8") for path in paths}
    shutil.rmtree(out)
    return profiles, warnings


@dataclasses.dataclass(frozen=True)
class _Subject:
    """A device to calibrate: as it was asked for, how, where its profile goes, and as a scenario would name it."""

    asked: str
    wanted: Calibration
    path: Path
    section: DeviceSection

    def with_serving(self, profile: Profile, asked: Calibrating) -> Profile:
        """With what serving costs."""
        return with_serving(profile, self.wanted.file, self.section, asked.seed, allow_busy=asked.allow_busy)


def _local(wanted: Calibrating, network: Network | None, budget_s: float) -> Iterator[_Subject]:
    """Devices of this machine; what is no model shows now."""
    if wanted.model is None:
        problem = "give the network's file (safetensors); only an emulated device (--device emulated:PROFILE) runs none"
        raise InputError("--model", "", problem)
    file = ModelFile(wanted.model, network)
    model_costs(file)
    for asked, device in chosen_devices(wanted.device):
        if device.kind == "cuda":
            require_served(device.index, CALIBRATING, "--device", "")
            require_free(device.index, "--device", "")
        name, section = asked.replace(":", ""), device_section(device)
        yield _subject(wanted, budget_s, asked, name, section, file=file, device=device, peer=device)


def _emulated(wanted: Calibrating, network: Network | None, budget_s: float) -> Iterator[_Subject]:
    """The one that is asked for."""
    if wanted.model is not None:
        raise InputError("--model", "", "an emulated device runs no network; leave it out")
    assert wanted.device is not None, "it names one"
    section = emulated_section(wanted.device)
    device, known = played(section, wanted.batch_limit, wanted.seed, network)
    assert section.emulated is not None, "it is emulated"
    slow = f"-x{section.slowdown:g}" if section.slowdown > 1 else ""
    name = f"emulated-{Path(section.emulated).stem}{slow}"
    yield _subject(wanted, budget_s, wanted.device, name, section, file=None, device=device, played=known)


def _subject(
    wanted: Calibrating, budget_s: float, asked: str, name: str, section: DeviceSection, **of_device: Any
) -> _Subject:
    with _naming(asked):
        calibration = Calibration(
            **of_device,
            candidates=candidates(of_device["device"]) if isinstance(of_device["device"], DeviceSpec) else (),
            budget_s=budget_s,
            batch_limit=wanted.batch_limit,
            log_path=wanted.out / f"{name}.jsonl",
            seed=wanted.seed,
            name=name,
            allow_busy=wanted.allow_busy,
        )
    return _Subject(asked, calibration, wanted.out / f"{name}.yaml", section)


def _calibrated(subject: _Subject, output: Listener, reserved_s: float) -> Profile:
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
