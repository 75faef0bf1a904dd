"""`slimsched calibrate`: devices of this machine, of the hosts of a cluster, or emulated; each gets a profile."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from calibrate import Calibration, model_costs
from hw.device import DeviceSpec
from hw.networks import ModelFile, Network
from hw.ray_cluster import joined
from hw.ray_host import cache, kept
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
from scenarios.executors.hosts import Hosts
from scenarios.executors.links import measure_links
from scenarios.files.documents import inputs_hash, write_json, write_text
from scenarios.files.reading import as_made
from scenarios.files.spec import DeviceSection
from scenarios.show.profile import spoilt
from scenarios.terminal.output import Output
from scenarios.terminal.places import writable_file
from scenarios.world.build import device_section
from sim.profile import Profile


def calibrate(arguments: Namespace) -> int:
    """Measure devices: local ones, one that is emulated, or those of every host of a cluster; each gets a profile."""
    output = Output(arguments)
    if arguments.cluster is not None:
        paths, warnings = _of_cluster(arguments, output)
    else:
        paths, warnings = _measured(arguments, output)
    for warning in warnings:
        output.remark(f"warning: {warning}")
    lines = "\n".join(f"profile: {path}" for path in paths)
    return output.result(lines, {"profiles": [str(path) for path in paths], "warnings": warnings})


def _measured(arguments: Namespace, output: Output) -> tuple[list[Path], list[str]]:
    """The profiles of devices of this machine, and what is wrong with them."""
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
    return [subject.path for subject in chosen], warnings


def _of_cluster(arguments: Namespace, output: Output) -> tuple[list[Path], list[str]]:
    """The same on every host of a Ray cluster, hosts of different machines beside each other; and links and clocks.

    What brings activations to a host is measured between hosts, and takes the place of its own link.
    """
    if arguments.model is None or _is_emulated(arguments):
        raise InputError(
            "--cluster", "", "measures the devices of hosts for a network: give --model, and no emulated one"
        )
    model, paths, warnings = arguments.model.read_bytes(), list[Path](), list[str]()
    with joined(arguments.cluster, "--cluster", "", beyond_loopback=arguments.beyond_loopback) as cluster:
        hosts = Hosts(cluster, "--cluster")
        machines: dict[str, list[str]] = {}
        for host in hosts.names():
            machines.setdefault(hosts.facts_of(host, "").machine, []).append(host)
        measured = measure_links(hosts, hosts.names(), output.remark)
        write_json(arguments.out / LINKS_FILE, measured.document())
        output.remark(f"calibrate: {', '.join(hosts.names())}; each device about {arguments.budget:.0f} s")

        def of_machine(on_it: list[str]) -> list[tuple[str, dict[str, str], list[str]]]:
            return [(host, *hosts.ask(host, "", calibrated_there, _plain(arguments), model)) for host in on_it]

        with ThreadPoolExecutor(len(machines)) as beside:
            found = [each for of_one in beside.map(of_machine, machines.values()) for each in of_one]
    for host, profiles, said in found:
        warnings += [f"{host}: {text}" for text in said]
        for name, text in profiles.items():
            profile = Profile.from_yaml(text, f"host {host}").model_copy(update={"link": measured.into(host)})
            paths.append(arguments.out / f"{host}-{name}.yaml")
            write_text(paths[-1], profile.to_yaml())
    return paths, warnings


LINKS_FILE: Final = "links.json"
_TAKEN_ALONG: Final = ("network", "options", "device", "budget", "batch_limit", "seed", "allow_busy")


def _plain(arguments: Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in _TAKEN_ALONG}


def calibrated_there(flags: dict[str, Any], model: bytes) -> tuple[dict[str, str], list[str]]:
    """On a host: its devices' profiles by name, and what is wrong with them. Logs are kept there until it is done."""
    path = kept(model)
    out = cache() / "calibrations" / inputs_hash(path.name, repr(sorted(flags.items())))[:16]
    out.mkdir(parents=True, exist_ok=True)
    arguments = Namespace(**flags, model=path, out=out, quiet=True, json=None)
    paths, warnings = _measured(arguments, Output(arguments))
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
