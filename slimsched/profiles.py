"""Profiles of devices: shown, made from data sheets, and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from kit.errors import InputError
from slimsched.arguments import File, NewFile, NewPage, network_of
from slimsched.results import CommandResult
from slimsched.working import observer, verb

if TYPE_CHECKING:
    from calibrate.costs import ModelCosts
    from calibrate.datasheet import Gpu

BATCH_LIMIT: Final = 128  # the largest batch of a profile from a data sheet
POINTS: Final = 24  # batches that a check measures alone
SEED: Final = 0  # of a check: its points, sets and arrivals


@verb
def show_profile(profile: File, /, *, plot: NewPage | None = None) -> CommandResult:
    """Print, check and plot a profile.

    Args:
        profile: a profile's file (YAML), or a shipped one by name, such as rtx-2080-ti.
        plot: write its curves and Figures 1-3 there: a page (.html), or a folder for PNG files.

    Raises:
        InputError: it is no profile.
    """
    from kit.documents import write_text
    from scenarios.files.reading import read_profile
    from scenarios.show.profile import described

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
        gpu: such as rtx-2080-ti; or the file (.yaml) of the published figures of a GPU of your own (docs/profiles.md).
        network: by name, or `module:Class` of your own, with what it is called with as JSON behind it, such as
            'my_net:MyNet {"classes": 10}'; or the file (.safetensors) of one that has no name.
        out: the file to write; standard output by default.

    Raises:
        InputError: no such GPU or network, or `out` holds what this did not make.
    """
    from calibrate.datasheet import synthesize
    from calibrate.host import MeasuredHost
    from kit.documents import read_text, write_text
    from scenarios.files.shipped import SHIPPED_HOST

    place = None if out is None else Path(out)
    if place is not None:
        _require_synthesized(place)
    card, costs = _gpu(gpu), _costs(network)
    host = MeasuredHost.from_yaml(read_text(SHIPPED_HOST), str(SHIPPED_HOST))
    profile = synthesize(card, costs, BATCH_LIMIT, host=host)
    if place is not None:
        write_text(place, profile.to_yaml())
    text = profile.to_yaml().rstrip() if place is None else f"profile: {place}"
    return CommandResult(profile.model_dump(mode="json", by_alias=True), text)


def _costs(network: str) -> ModelCosts:
    """Return the costs of a network by name, or in a file."""
    from calibrate.costs import costs_of
    from hw.networks.registry import ModelFile

    if network.endswith(".safetensors"):
        file = ModelFile(Path(network))
        model, metadata = file.load()
        return costs_of(model, file.label, metadata["hash"])
    named = network_of(network)
    assert named is not None, "it has a default"
    return costs_of(named.build(), named.label, named.label)


def _gpu(named: str) -> Gpu:
    """Return a GPU that is known by name, or that a file describes."""
    from calibrate.datasheet import DataSheet, find_gpu
    from kit.documents import read_text, with_remedy

    if Path(named).suffix not in (".yaml", ".yml"):
        return find_gpu(named)
    with with_remedy("docs/profiles.md#a-gpu-of-your-own has a sheet to copy"):
        return DataSheet.from_yaml(read_text(Path(named)), named).gpu


def _require_synthesized(path: Path) -> None:
    """Raise `InputError` if a file would be replaced that `profile synth` did not make, or that was edited."""
    from policies.vocabulary import Provenance
    from scenarios.files.reading import as_made

    if path.is_file() and ((profile := as_made(path)) is None or profile.provenance is not Provenance.DATASHEET):
        problem = "was not made by `slimsched profile synth`, or was edited since; move it elsewhere"
        raise InputError(str(path), "", f"{problem}, or name another place with --out")


@verb
def check_profile(profile: File, /, *, model: File, network: str | None = None) -> CommandResult:
    """Measure a device again: does its profile still hold?

    The exit code is 0 where it does, 1 where it does not or where nothing could be judged.

    Args:
        profile: a measured profile's file (YAML).
        model: the file of the network that it is of, or a shipped one by name.
        network: which network that is, where the file does not say: by name, or `module:Class` of your own, with what
            it is called with as JSON behind it.

    Raises:
        InputError: it is no measured profile, or not of this network or device.
    """
    from calibrate.check import holds, meaningful
    from calibrate.stamps import require_model
    from hw.networks.registry import ModelFile
    from scenarios.executors import checking
    from scenarios.executors.preflight import other_programs, stamp_warnings
    from scenarios.files.reading import read_profile
    from scenarios.files.shipped import weights_file
    from scenarios.show.check import check_document, format_check

    listener, source = observer(), str(profile)
    read = read_profile(Path(profile))
    file = ModelFile(Path(weights_file(str(model))), network_of(network))
    checking.require_measured(read, source)
    require_model(read, file.load()[1]["hash"], source, "model.hash")
    checked = checking.profile_device(read, source)
    checking.require_same(read, checked, source)
    world = checking.open_loop_world(read, checked, SEED)
    seconds = checking.open_loop_s(world)
    warnings = (*stamp_warnings(read, checked), *other_programs(checked))
    for text in (*warnings, checking.announced_check(read, POINTS, seconds)):
        listener.remark(text)
    metrics = list(checking.solo_metrics(file, checked, read, POINTS, SEED, quiet=listener.quiet))
    metrics += checking.open_loop(file, world, read, seconds, SEED, quiet=listener.quiet)
    metrics = [meaningful(metric) for metric in metrics]
    return CommandResult(
        check_document(read, warnings, metrics), format_check(read, metrics), code=0 if holds(metrics) else 1
    )
