"""Devices and their profiles: what is here, and profiles shown, made from data sheets, and checked."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kit.errors import InputError
from slimsched.arguments import Duration, File, NewFile, NewPictures, Options, options_of, require_within
from slimsched.results import Found
from slimsched.working import listener, verb

if TYPE_CHECKING:
    from calibrate.datasheet import Gpu


@verb
def devices() -> Found:
    """List the devices here, and which of their sensors work."""
    from hw.telemetry import available_devices

    found, lines = available_devices(), list[str]()
    for device in found:
        lines.append(f"{device.kind}:{device.index}  {device.state}")
        lines += [f"  {field:<17} {state}" for field, state in (*device.telemetry.items(), *device.facts.items())]
    documents = [dataclasses.asdict(device) for device in found]
    return Found({"schema": "slimsched.devices/1", "devices": documents}, "\n".join(lines))


@verb
def show_profile(profile: File, /, *, plot: NewFile | None = None, figures: NewPictures | None = None) -> Found:
    """Print, check and plot a profile.

    Args:
        profile: a profile's file (YAML), or a shipped one by name, such as rtx-2080-ti.
        plot: write its curves and Figures 1-3 there (.html).
        figures: write the same into this folder, as PNG files.

    Raises:
        InputError: it is no profile.
    """
    from kit.documents import write_text
    from scenarios.files.reading import read_profile
    from scenarios.show.profile import described

    read = read_profile(Path(profile))
    lines = [described(read)]
    if plot is not None:
        from scenarios.show.report import profile_page

        write_text(Path(plot), profile_page(read))
        lines.append(f"plotted: {plot}")
    if figures is not None:
        from scenarios.show.profile_charts import write_charts

        lines += [f"figure: {path}" for path in write_charts(read, Path(figures))]
    return Found(read.model_dump(mode="json", by_alias=True), "\n".join(lines))


@verb
def synthesize_profile(
    gpu: str | None = None,
    /,
    *,
    sheet: Annotated[File | None, Parameter(name="--from")] = None,
    every: Annotated[bool, Parameter(name="--all")] = False,
    network: str = "slimresnet18",
    options: Options | None = None,
    batch_limit: int = 128,
    out: File | None = None,
) -> Found:
    """Make a profile of a GPU from its data sheet.

    Args:
        gpu: such as rtx-2080-ti.
        sheet: of a GPU of your own: its published figures (docs/profiles.md).
        every: one of every GPU that is known, into the folder `out`.
        network: by name, or `module:Class`.
        options: what the class of a network of your own is called with (JSON).
        batch_limit: the largest batch.
        out: where to write; standard output by default.

    Raises:
        InputError: no such GPU or network, or `out` holds what this did not make.
    """
    from calibrate.costs import costs_of
    from calibrate.datasheet import GPUS, synthesize
    from calibrate.host import MeasuredHost
    from hw.networks.registry import Network
    from kit.documents import read_text, write_text
    from scenarios.files.shipped import SHIPPED_HOST
    from scenarios.terminal.places import writable_file, writable_folder

    require_within("--batch-limit", batch_limit, 1, 4096)
    gpus = _gpus(gpu, sheet, every=every)
    place = None if out is None else Path(out)
    if every and place is None:
        raise InputError("profile synth", "--all", "needs --out DIR, a folder for the profiles")
    if place is not None:
        (writable_folder if every else writable_file)(place)
    paths: list[Path] = []
    if place is not None:
        paths = [place / f"{key}.yaml" for key in GPUS] if every else [place]
    for path in paths:
        _require_synthesized(path)
    named = Network(network, options_of(options), "--network", "")
    costs = costs_of(named.build(), named.label, named.label)
    host = MeasuredHost.from_yaml(read_text(SHIPPED_HOST), str(SHIPPED_HOST))
    made = [synthesize(each, costs, batch_limit, host=host) for each in gpus]
    for path, profile in zip(paths, made, strict=bool(paths)):
        write_text(path, profile.to_yaml())
    text = "\n".join(f"profile: {path}" for path in paths) or made[0].to_yaml().rstrip()
    if every:
        return Found({"profiles": [str(path) for path in paths]}, text)
    return Found(made[0].model_dump(mode="json", by_alias=True), text)


def _gpus(gpu: str | None, sheet: str | Path | None, *, every: bool) -> list[Gpu]:
    """Of which profiles are asked for; raises `InputError` where that is none, or said in two ways."""
    from calibrate.datasheet import GPUS, Sheet, find_gpu
    from kit.documents import read_text, with_remedy

    if [every, gpu is not None, sheet is not None].count(True) != 1:
        problem = f"name one GPU ({', '.join(GPUS)}), or give --all, or for a GPU of your own --from SHEET.yaml"
        raise InputError("profile synth", "", problem)
    if gpu is not None:
        return [find_gpu(gpu)]
    if sheet is None:
        return list(GPUS.values())
    with with_remedy("docs/profiles.md#a-gpu-of-your-own has a sheet to copy"):
        return [Sheet.from_yaml(read_text(Path(sheet)), str(sheet)).gpu]


def _require_synthesized(path: Path) -> None:
    """Raises `InputError` where a file would be replaced that `profile synth` did not make, or that was edited."""
    from policies.vocabulary import Provenance
    from scenarios.files.reading import as_made

    if path.is_file() and ((found := as_made(path)) is None or found.provenance is not Provenance.DATASHEET):
        problem = "was not made by `slimsched profile synth`, or was edited since; move it elsewhere"
        raise InputError(str(path), "", f"{problem}, or name another place with --out")


@verb
def check_profile(
    profile: File,
    /,
    *,
    model: File,
    network: str | None = None,
    options: Options | None = None,
    device: str | None = None,
    points: int = 24,
    open_loop_s: Annotated[Duration, Parameter(name="--seconds")] = 20.0,
    seed: int = 0,
) -> Found:
    """Measure a device again: does its profile still hold?

    The exit code is 0 where it does, 1 where it does not or where nothing could be judged.

    Args:
        profile: a measured profile's file (YAML).
        model: the file of the network that it is of.
        network: which network that is, where the file does not say: by name, or `module:Class`.
        options: what the class of a network of your own is called with (JSON).
        device: cuda:0, cpu ...; by default what the profile was measured on.
        points: batches that are measured alone.
        open_loop_s: for the open-loop runs together; 20s by default, 0 for none.
        seed: of the points, sets and arrivals.

    Raises:
        InputError: it is no measured profile, or not of this network or device.
    """
    from calibrate.check import holds, meaningful
    from calibrate.stamps import require_model
    from hw.networks.registry import ModelFile, Network
    from scenarios.executors import checking
    from scenarios.executors.devices import chosen_devices
    from scenarios.executors.preflight import other_programs, stamp_warnings
    from scenarios.files.reading import read_profile
    from scenarios.show.check import check_document, format_check

    require_within("--points", points, 1, 10_000)
    told, source = listener(), str(profile)
    read = read_profile(Path(profile))
    named = None if network is None else Network(network, options_of(options), "--network", "")
    file, seconds = ModelFile(Path(model), named), open_loop_s or 0.0
    checking.require_measured(read, source)
    require_model(read, file.load()[1]["hash"], source, "model.hash")
    checked = checking.profile_device(read, source) if device is None else chosen_devices(device)[0][1]
    checking.require_kind(read, checked)
    checking.require_same(read, checked, "--device" if device is not None else source)
    world = checking.check_world(read, checked, seconds, seed)
    warnings = (*stamp_warnings(read, checked), *other_programs(checked))
    for text in (*warnings, checking.announced_check(read, points, seconds)):
        told.remark(text)
    metrics = list(checking.solo_metrics(file, checked, read, points, seed, quiet=told.quiet))
    if world is not None:
        metrics += checking.open_loop(file, world, read, seconds, seed, quiet=told.quiet)
    metrics = [meaningful(metric) for metric in metrics]
    return Found(check_document(read, warnings, metrics), format_check(read, metrics), code=0 if holds(metrics) else 1)
