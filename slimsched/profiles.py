"""Profiles of devices: measured on this machine or a cluster's hosts, made from data sheets, shown and checked."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kit.errors import InputError
from slimsched.arguments import Duration, File, NewFile, NewFolder, NewPage, network_of, require_within
from slimsched.results import Calibration, CommandResult
from slimsched.working import observer, verb

if TYPE_CHECKING:
    from calibrate import CalibrationRequest as Measuring
    from calibrate.datasheet import Gpu
    from calibrate.measurement_plan import ModelCosts
    from hw.networks.network_files import Network
    from scenarios.files.scenario_keys import DeviceSection
    from sim.device_profile import Profile


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
    """Measure devices, and write their profiles.

    An interrupted calibration resumes.

    Args:
        model: a trained network's file (safetensors), or a bundled network's name, such as slimresnet-pairs.
        network: the network's name, or a custom `module:Class`, followed by its arguments as JSON: 'my_net:MyNet
            {"classes": 10}', if the file does not name it.
        device: a device: cuda:0, cpu:1, or cpu for all of that kind; all local ones by default. Without a GPU cpu:0 and
            cpu:1 are unequal: with four cores and more, two thirds of them and the rest; with fewer, the first core,
            and the last core without oneDNN.
        budget_s: the time for each device (5m), with start and interruptions; 12 s of it (at most a quarter) are for
            serving costs. What is required is always measured.
        batch_limit: the largest batch to measure.
        allow_busy: measure even if other programs use the device.
        cluster: calibrate every host of a Ray cluster (docs/cluster.md) and their links: its head's address, or `auto`
            for the one that runs here.
        beyond_loopback: with --cluster: allow hosts that others can reach; needs Ray's token.
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
    from scenarios.files.bundled_files import weights_file

    require_within("--batch-limit", batch_limit, 1, 4096)
    if model is None:
        raise InputError("--model", "", "give the network's file (safetensors), or slimresnet-pairs, which is bundled")
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
    from scenarios.executors.device_calibration import SERVING_S, with_serving
    from scenarios.show.command_tables import unreliable

    custom = network_of(network)
    for warning in unusable_devices(available_devices()):
        observer().remark(warning)
    measuring_s = max(budget_s - SERVING_S, 0.75 * budget_s)
    how |= {"budget_s": measuring_s, "out": out}
    subjects = list(_local(model, device, custom, **how))
    for subject in subjects:  # an --out that can't be written shows before anything is measured
        writable_file(subject.path)
    warnings = []
    for subject in subjects:
        profile = _calibrated(subject, budget_s - measuring_s)
        profile = profile.model_copy(update={"made_with": None if custom is None else custom.settings})
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
    return [subject.path for subject in subjects], warnings


def _of_cluster(
    address: str, file: Path, out: Path, how: Mapping[str, Any], *, beyond_loopback: bool
) -> tuple[list[Path], list[str]]:
    """Calibrate on every host of a Ray cluster, hosts of different machines in parallel; and measure links and clocks.

    The link that brings activations to a host is measured between hosts, and replaces its own link.
    """
    import msgspec

    from hw.router.ray_cluster import joined
    from kit.documents import write_json, write_text
    from scenarios.executors.device_choice import Hosts
    from scenarios.executors.preflight import measure_links
    from sim.device_profile import Profile

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
            results = [result for of_one in beside.map(of_machine, machines.values()) for result in of_one]
    for host, profiles, problems in results:
        warnings += [f"{host}: {text}" for text in problems]
        for name, text in profiles.items():
            profile = Profile.from_yaml(text, f"host {host}").model_copy(update={"link": measured.into(host)})
            paths.append(out / f"{host}-{name}.yaml")
            write_text(paths[-1], profile.to_yaml())
    return paths, warnings


def calibrated_there(how: dict[str, Any], model: bytes) -> tuple[dict[str, str], Sequence[str]]:
    """Calibrate on a host: returns its devices' profiles by name, and their problems. It keeps logs until done."""
    from hw.router.ray_workers import cache, kept
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
    """Yield this machine's devices, ready to be calibrated; an invalid model is reported now."""
    from calibrate import CalibrationRequest as Measuring
    from calibrate import model_costs
    from hw.networks.network_files import ModelFile
    from scenarios.executors.device_choice import CALIBRATING, candidates, chosen_devices, require_free, require_served
    from scenarios.experiment.scenario_building import device_section

    file = ModelFile(model, network)
    model_costs(file)
    for choice, device in chosen_devices(asked_for):
        if device.kind == "cuda":
            require_served(device.index, CALIBRATING, "--device", "")
            require_free(device.index, "--device", "")
        name = choice.replace(":", "")
        with _naming(choice):
            measuring = Measuring(
                file,
                device,
                candidates=candidates(device),
                peer=device,
                log_path=out / f"{name}.jsonl",
                name=name,
                **how,
            )
        yield _Subject(choice, measuring, out / f"{name}.yaml", device_section(device))


def _calibrated(subject: _Subject, reserved_s: float) -> Profile:
    """Calibrate one device; an existing file that is not a profile of ours is kept."""
    from kit.files import set_aside
    from scenarios.executors.device_calibration import calibrate_device
    from scenarios.files.scenario_reading import as_made

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


BATCH_LIMIT: Final = 128  # the largest batch of a profile from a data sheet
POINTS: Final = 24  # batches that a check measures alone
SEED: Final = 0  # of a check: its points, sets and arrivals


@verb
def show_profile(profile: File, /, *, plot: NewPage | None = None) -> CommandResult:
    """Print, check and plot a profile.

    Args:
        profile: a profile's file (YAML), or a bundled profile's name, such as rtx-2080-ti.
        plot: draw its curves and Figures 1-3 there: a page (.html), or a folder for PNG files.

    Raises:
        InputError: it is not a profile.
    """
    from kit.documents import write_text
    from scenarios.files.scenario_reading import read_profile
    from scenarios.show.command_tables import described

    read = read_profile(Path(profile))
    lines = [described(read)]
    if plot is not None and Path(plot).suffix == ".html":
        from scenarios.show.report import profile_page

        write_text(Path(plot), profile_page(read))
        lines.append(f"plotted: {plot}")
    elif plot is not None:
        from scenarios.show.profile_charts import write_charts

        lines += [f"figure: {path}" for path in write_charts(read, Path(plot))]
    return CommandResult(read.model_dump(mode="json", by_alias=True), "\n".join(lines))


@verb
def synthesize_profile(gpu: str, /, *, network: str = "slimresnet18", out: NewFile | None = None) -> CommandResult:
    """Make a profile of a GPU from its data sheet.

    Args:
        gpu: a GPU's name, such as rtx-2080-ti, or the file (.yaml) of a custom GPU's published figures
            (docs/profiles.md).
        network: the network's name, or a custom `module:Class`, followed by its arguments as JSON: 'my_net:MyNet
            {"classes": 10}'; or the file (.safetensors) of a network without a name.
        out: the file to write (standard output).

    Raises:
        InputError: no such GPU or network, or `out` holds what this did not make.
    """
    from calibrate.datasheet import MeasuredHost, synthesize
    from kit.documents import read_text, write_text
    from scenarios.files.bundled_files import SHIPPED_HOST

    path = None if out is None else Path(out)
    if path is not None:
        _require_synthesized(path)
    card, costs = _gpu(gpu), _costs(network)
    host = MeasuredHost.from_yaml(read_text(SHIPPED_HOST), str(SHIPPED_HOST))
    profile = synthesize(card, costs, BATCH_LIMIT, host=host)
    if path is not None:
        write_text(path, profile.to_yaml())
    text = profile.to_yaml().rstrip() if path is None else f"profile: {path}"
    return CommandResult(profile.model_dump(mode="json", by_alias=True), text)


def _costs(network: str) -> ModelCosts:
    from calibrate.measurement_plan import costs_of
    from hw.networks.network_files import ModelFile

    if network.endswith(".safetensors"):
        file = ModelFile(Path(network))
        model, metadata = file.load()
        return costs_of(model, file.label, metadata["hash"])
    custom = network_of(network)
    assert custom is not None, "it has a default"
    return costs_of(custom.build(), custom.label, custom.label)


def _gpu(name: str) -> Gpu:
    from calibrate.datasheet import DataSheet, find_gpu
    from kit.documents import read_text, with_remedy

    if Path(name).suffix not in (".yaml", ".yml"):
        return find_gpu(name)
    with with_remedy("docs/profiles.md#a-gpu-of-your-own has a sheet to copy"):
        return DataSheet.from_yaml(read_text(Path(name)), name).gpu


def _require_synthesized(path: Path) -> None:
    """Raise `InputError` if a file would be replaced that `profile synth` did not make, or that was edited."""
    from policies.vocabulary import Provenance
    from scenarios.files.scenario_reading import as_made

    if path.is_file() and ((profile := as_made(path)) is None or profile.provenance is not Provenance.DATASHEET):
        problem = "was not made by `slimsched profile synth`, or was edited since; move it elsewhere"
        raise InputError(str(path), "", f"{problem}, or name another place with --out")


@verb
def check_profile(profile: File, /, *, model: File, network: str | None = None) -> CommandResult:
    """Measure a device again, and check its profile.

    The exit code is 0 if the profile still holds, 1 if it does not or nothing could be judged.

    Args:
        profile: a measured profile's file (YAML).
        model: the file of its network, or a bundled network's name.
        network: the network's name, or a custom `module:Class`, followed by its arguments as JSON: 'my_net:MyNet
            {"classes": 10}', if the file does not name it.

    Raises:
        InputError: it is not a measured profile, or not of this network or device.
    """
    from calibrate.device_identity import require_model
    from calibrate.fresh_points import holds, meaningful
    from hw.networks.network_files import ModelFile
    from scenarios.executors import device_calibration
    from scenarios.executors.preflight import other_programs, stamp_warnings
    from scenarios.files.bundled_files import weights_file
    from scenarios.files.scenario_reading import read_profile
    from scenarios.show.command_tables import check_document, format_check

    listener, source = observer(), str(profile)
    read = read_profile(Path(profile))
    file = ModelFile(Path(weights_file(str(model))), network_of(network))
    device_calibration.require_measured(read, source)
    require_model(read, file.load()[1]["hash"], source, "model.hash")
    checked = device_calibration.profile_device(read, source)
    device_calibration.require_same(read, checked, source)
    experiment = device_calibration.open_loop_experiment(read, checked, SEED)
    seconds = device_calibration.open_loop_s(experiment)
    warnings = (*stamp_warnings(read, checked), *other_programs(checked))
    for text in (*warnings, device_calibration.announced_check(read, POINTS, seconds)):
        listener.remark(text)
    metrics = list(device_calibration.solo_metrics(file, checked, read, POINTS, SEED, quiet=listener.quiet))
    metrics += device_calibration.open_loop(file, experiment, read, seconds, SEED, quiet=listener.quiet)
    metrics = [meaningful(metric) for metric in metrics]
    return CommandResult(
        check_document(read, warnings, metrics), format_check(read, metrics), code=0 if holds(metrics) else 1
    )
