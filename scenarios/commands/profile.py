"""Commands about devices and their profiles: devices, profile show, synth, schema. Who needs torch opens it late."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from kit.documents import json_text, read_text, with_remedy, write_text
from kit.errors import InputError
from policies.vocabulary import Provenance
from scenarios.files.reading import as_made, read_profile
from scenarios.files.shipped import SHIPPED_HOST
from scenarios.show.profile import described
from scenarios.terminal.output import Output
from scenarios.terminal.places import writable_file, writable_folder
from sim.profile import Profile

if TYPE_CHECKING:
    from calibrate.datasheet import Gpu


def profile_show(arguments: Namespace) -> int:
    """A profile in words, with its errors and where they hold; `from_yaml` has checked it."""
    output = Output(arguments)
    profile = read_profile(arguments.profile)
    parts = [described(profile)]
    if arguments.plot is not None:
        from scenarios.show.report import profile_page

        write_text(arguments.plot, profile_page(profile))
        parts.append(f"plotted: {arguments.plot}")
    if arguments.figures is not None:
        from scenarios.show.profile_charts import write_charts

        parts += [f"figure: {path}" for path in write_charts(profile, arguments.figures)]
    return output.result("\n".join(parts), profile.model_dump(mode="json", by_alias=True))


def profile_synth(arguments: Namespace) -> int:
    """A profile from published figures: of the table's GPU, of every one of them, or of a sheet's."""
    from calibrate.costs import costs_of
    from calibrate.datasheet import GPUS, synthesize
    from calibrate.host import MeasuredHost
    from hw.networks.registry import Network

    output = Output(arguments)
    gpus = _gpus(arguments)
    if arguments.all and arguments.out is None:
        raise InputError("profile synth", "--all", "needs --out DIR, a folder for the profiles")
    if arguments.out is not None:
        (writable_folder if arguments.all else writable_file)(arguments.out)
    paths = [arguments.out / f"{key}.yaml" for key in GPUS] if arguments.all else [arguments.out]
    for path in filter(None, paths):
        _require_synthesized(path)
    network = Network(arguments.network, arguments.options, "--network", "")
    costs = costs_of(network.build(), network.label, network.label)
    host = MeasuredHost.from_yaml(read_text(SHIPPED_HOST), str(SHIPPED_HOST))
    if arguments.all:
        for gpu, path in zip(gpus, paths, strict=True):
            write_text(path, synthesize(gpu, costs, arguments.batch_limit, host=host).to_yaml())
        return output.result("\n".join(f"profile: {path}" for path in paths), {"profiles": [str(p) for p in paths]})
    profile = synthesize(gpus[0], costs, arguments.batch_limit, host=host)
    document = profile.model_dump(mode="json", by_alias=True)
    if arguments.out is None:
        return output.result(profile.to_yaml().rstrip(), document)
    write_text(arguments.out, profile.to_yaml())
    return output.result(f"profile: {arguments.out}", document)


def _gpus(arguments: Namespace) -> list[Gpu]:
    """Of which profiles are asked for; raises `InputError` where that is none, or said in two ways."""
    from calibrate.datasheet import GPUS, Sheet, find_gpu

    if [arguments.all, arguments.gpu is not None, arguments.sheet is not None].count(True) != 1:
        problem = f"name one GPU ({', '.join(GPUS)}), or give --all, or for a GPU of your own --from SHEET.yaml"
        raise InputError("profile synth", "", problem)
    if arguments.sheet is None:
        return list(GPUS.values()) if arguments.all else [find_gpu(arguments.gpu)]
    with with_remedy("docs/profiles.md#a-gpu-of-your-own has a sheet to copy"):
        return [Sheet.from_yaml(read_text(arguments.sheet), str(arguments.sheet)).gpu]


def profile_schema(arguments: Namespace) -> int:
    """The form of profiles, as JSON Schema."""
    schema = Profile.model_json_schema()
    return Output(arguments).result(json_text(schema).rstrip(), schema)


def devices(arguments: Namespace) -> int:
    """What is here, and which telemetry works."""
    from hw.telemetry import available_devices

    output = Output(arguments)
    found = available_devices()
    parts = []
    for device in found:
        parts.append(f"{device.kind}:{device.index}  {device.state}")
        parts += [f"  {field:<17} {state}" for field, state in (*device.telemetry.items(), *device.facts.items())]
    documents = [dataclasses.asdict(device) for device in found]
    return output.result("\n".join(parts), {"schema": "slimsched.devices/1", "devices": documents})


def _require_synthesized(path: Path) -> None:
    """Raises `InputError` where a file would be replaced that `profile synth` did not make, or that was edited."""
    if path.is_file() and ((found := as_made(path)) is None or found.provenance is not Provenance.DATASHEET):
        problem = "was not made by `slimsched profile synth`, or was edited since; move it elsewhere"
        raise InputError(str(path), "", f"{problem}, or name another place with --out")
