"""Calibration: devices of this machine, or of the hosts of a cluster; each gets a profile."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kit.errors import InputError
from slimsched.arguments import Duration, File, NewFolder, network_of, require_within
from slimsched.results import Calibration
from slimsched.working import observer, verb

if TYPE_CHECKING:
    from calibrate import CalibrationRequest as Measuring
    from hw.networks.registry import Network
    from scenarios.files.spec import DeviceSection
    from sim.profile import Profile

LINKS_FILE: Final = "links.json"


@verb
def calibrate(
    *,
    model: File | None = None,
    network: str | None = None,
    device: str | None = None,
    budget_s: Duration = 300.0,
    batch_limit: int = 32,
    allow_busy: bool = False,
    cluster: str | None = None,
    beyond_loopback: bool = False,
    out: NewFolder = "profiles",
) -> Calibration:
    """Measure how devices run a network, into profiles.

    Interrupted, it goes on from the log it left.

    Args:
        model: a trained network's file (safetensors), or a shipped one by name, such as slimresnet-pairs.
        network: which network the file is of, where it does not say: by name, or `module:Class` of your own, with what
            it is called with as JSON behind it, such as 'my_net:MyNet {"classes": 10}'.
        device: cuda:0, cpu:1, or cpu for all of that kind; all local ones by default. Without a GPU cpu:0 and cpu:1 are
            two unequal devices: with four cores and more, two thirds of them and the rest; with fewer, the first core,
            and the last core without oneDNN.
        budget_s: for each device, 5m by default: the start and all measuring, those of an interrupted calibration
            counted; 12 s of it (at most a quarter) are for what serving costs. What is required is always measured.
        batch_limit: the largest batch that is measured.
        allow_busy: measure although other programs use the device.
        cluster: every host of a Ray cluster (docs/cluster.md) and their links; by its head's address, or `auto` for the
            one that runs here.
        beyond_loopback: with cluster: hosts that others can reach may be used; needs Ray's token.
        out: the folder for profiles and logs.

    Raises:
        InputError: something wanted is wrong, the budget is too small, or a device is busy or can't be used.

    Example:
        ```python
        found = slimsched.calibrate(
            model="slimresnet-pairs", device="cpu:0", budget_s=40, batch_limit=8, allow_busy=True
        )
        print(found.profiles, found.warnings)
        ```
    """
    from scenarios.files.shipped import weights_file

    require_within("--batch-limit", batch_limit, 1, 4096)
    if model is None:
        raise InputError("--model", "", "give the network's file (safetensors), or slimresnet-pairs, which ships")
    file, folder = Path(weights_file(str(model))), Path(out)
    how: dict[str, Any] = {"network": network, "device": device, "budget_s": budget_s}
    how |= {"batch_limit": batch_limit, "allow_busy": allow_busy}
    if cluster is not None:
        paths, warnings = _of_cluster(cluster, file, folder, how, beyond_loopback=beyond_loopback)
    else:
        paths, warnings = _measured(file, folder, **how)
    for warning in warnings:
        observer().remark(f"warning: {warning}")
    return Calibration(profiles=tuple(paths), warnings=tuple(warnings))


def _measured(
    model: Path,
    out: Path,
    *,
    network: str | None,
    device: str | None,
    budget_s: float,
    **how: Any,
) -> tuple[list[Path], list[str]]:
    """Return the profiles of devices of this machine, and what is wrong with them."""
    from hw.telemetry import available_devices, unusable_devices
    from kit.documents import write_text
    from kit.files import writable_file
    from scenarios.executors.checking import SERVING_S, with_serving
    from scenarios.show.profile import unreliable

    named = network_of(network)
    for warning in unusable_devices(available_devices()):
        observer().remark(warning)
    measuring_s = max(budget_s - SERVING_S, 0.75 * budget_s)
    how |= {"budget_s": measuring_s, "out": out}
    chosen = list(_local(model, device, named, **how))
    for subject in chosen:  # an --out that can't be written shows before anything is measured
        writable_file(subject.path)
    warnings = []
    for subject in chosen:
        profile = _calibrated(subject, budget_s - measuring_s)
        profile = profile.model_copy(update={"made_with": None if named is None else named.settings})
        name, measuring = subject.measuring.name, subject.measuring
        write_text(subject.path, profile.to_yaml())
        observer().remark(f"{name}: what serving costs on this host, about {SERVING_S:.0f} s, part of --budget")
        with _naming(subject.device):
            served = with_serving(
                profile, measuring.file, subject.section, measuring.seed, allow_busy=measuring.allow_busy
            )
        write_text(subject.path, served.to_yaml())
        if problem := unreliable(profile):
            warnings.append(f"{name}: {problem}")
    return [subject.path for subject in chosen], warnings


def _of_cluster(
    address: str, file: Path, out: Path, how: Mapping[str, Any], *, beyond_loopback: bool
) -> tuple[list[Path], list[str]]:
    """Calibrate on every host of a Ray cluster, hosts of different machines in parallel; and measure links and clocks.

    The link that brings activations to a host is measured between hosts, and replaces its own link.
    """
    import msgspec

    from hw.ray.cluster import joined
    from kit.documents import write_json, write_text
    from scenarios.executors.hosts import Hosts
    from scenarios.executors.links import measure_links
    from sim.profile import Profile

    model = file.read_bytes()
    paths, warnings = list[Path](), list[str]()
    with joined(address, "--cluster", "", beyond_loopback=beyond_loopback) as cluster:
        hosts = Hosts(cluster, "--cluster")
        machines: dict[str, list[str]] = {}
        for host in hosts.names():
            machines.setdefault(hosts.facts_of(host, "").machine, []).append(host)
        measured = measure_links(hosts, hosts.names(), observer().remark)
        write_json(out / LINKS_FILE, msgspec.to_builtins(measured))
        observer().remark(f"calibrate: {', '.join(hosts.names())}; each device about {how['budget_s']:.0f} s")

        def of_machine(on_it: list[str]) -> list[tuple[str, dict[str, str], Sequence[str]]]:
            return [(host, *hosts.ask(host, "", calibrated_there, dict(how), model)) for host in on_it]

        with ThreadPoolExecutor(len(machines)) as beside:
            results = [each for of_one in beside.map(of_machine, machines.values()) for each in of_one]
    for host, profiles, said in results:
        warnings += [f"{host}: {text}" for text in said]
        for name, text in profiles.items():
            profile = Profile.from_yaml(text, f"host {host}").model_copy(update={"link": measured.into(host)})
            paths.append(out / f"{host}-{name}.yaml")
            write_text(paths[-1], profile.to_yaml())
    return paths, warnings


def calibrated_there(how: dict[str, Any], model: bytes) -> tuple[dict[str, str], Sequence[str]]:
    """Calibrate on a host: returns its devices' profiles by name, and their problems. It keeps logs until done."""
    from hw.ray.host import cache, kept
    from kit.documents import inputs_hash

    path = kept(model)
    out = cache() / "calibrations" / inputs_hash(path.name, repr(sorted(how.items())))[:16]
    out.mkdir(parents=True, exist_ok=True)
    calibration = calibrate(model=path, out=out, **how)
    profiles = {path.stem: path.read_text(encoding="utf-8") for path in calibration.profiles}
    shutil.rmtree(out)
    return profiles, calibration.warnings


@dataclass(frozen=True)
class _Subject:
    """A device to calibrate: as it was asked for, how, where its profile goes, and as a scenario would name it."""

    device: str
    measuring: Measuring
    path: Path
    section: DeviceSection


def _local(model: Path, asked_for: str | None, network: Network | None, *, out: Path, **how: Any) -> Iterator[_Subject]:
    """Calibrate devices of this machine; an invalid model is reported now."""
    from calibrate import CalibrationRequest as Measuring
    from calibrate import model_costs
    from hw.networks.registry import ModelFile
    from scenarios.executors.devices import CALIBRATING, candidates, chosen_devices, require_free, require_served
    from scenarios.world.build import device_section

    file = ModelFile(model, network)
    model_costs(file)
    for chosen, device in chosen_devices(asked_for):
        if device.kind == "cuda":
            require_served(device.index, CALIBRATING, "--device", "")
            require_free(device.index, "--device", "")
        name = chosen.replace(":", "")
        with _naming(chosen):
            measuring = Measuring(
                file,
                device,
                candidates=candidates(device),
                peer=device,
                log_path=out / f"{name}.jsonl",
                name=name,
                **how,
            )
        yield _Subject(chosen, measuring, out / f"{name}.yaml", device_section(device))


def _calibrated(subject: _Subject, reserved_s: float) -> Profile:
    """Calibrate one device; an existing file that is not a profile of ours is kept."""
    from kit.files import set_aside
    from scenarios.executors.calibrate import calibrate_device
    from scenarios.files.reading import as_made

    path = subject.path
    is_ours = path.with_suffix(".jsonl").is_file() and as_made(path) is not None
    listener = observer()
    with _naming(subject.device):
        profile = calibrate_device(subject.measuring, quiet=listener.quiet, say=listener.remark, reserved_s=reserved_s)
    if path.exists() and not is_ours:
        aside = set_aside(path, ".kept")
        listener.remark(f"{path} was not made by this calibration, or was edited since: it is kept as {aside.name}")
    return profile


@contextlib.contextmanager
def _naming(device: str) -> Iterator[None]:
    """Report what is wrong with a device under the name of the one that was asked for."""
    try:
        yield
    except InputError as error:
        if error.source != "calibrate":
            raise
        raise InputError(f"calibrate {device}", error.key, error.problem) from None
