"""`slimsched profile check`."""

from __future__ import annotations

from argparse import Namespace

from calibrate.check import holds, meaningful
from calibrate.stamps import require_model
from hw.networks.registry import ModelFile, Network
from scenarios.executors.checking import (
    announced_check,
    check_world,
    open_loop,
    profile_device,
    require_kind,
    require_measured,
    require_same,
    solo_metrics,
)
from scenarios.executors.devices import chosen_devices
from scenarios.executors.preflight import other_programs, stamp_warnings
from scenarios.files.reading import read_profile
from scenarios.show.check import check_document, format_check
from scenarios.terminal.output import Output


def profile_check(arguments: Namespace) -> int:
    """Exit code 0 where the profile still holds, 1 where it does not or where nothing could be judged."""
    output = Output(arguments)
    profile = read_profile(arguments.profile)
    source, named = str(arguments.profile), arguments.network
    network = Network(named, arguments.options, "--network", "") if named is not None else None
    file = ModelFile(arguments.model, network)
    require_measured(profile, source)
    require_model(profile, file.load()[1]["hash"], source, "model.hash")
    device = profile_device(profile, source) if arguments.device is None else chosen_devices(arguments.device)[0][1]
    require_kind(profile, device)
    require_same(profile, device, "--device" if arguments.device is not None else source)
    world = check_world(profile, device, arguments.seconds, arguments.seed)
    warnings = (*stamp_warnings(profile, device), *other_programs(device))
    for text in (*warnings, announced_check(profile, arguments.points, arguments.seconds)):
        output.remark(text)
    metrics = list(solo_metrics(file, device, profile, arguments.points, arguments.seed, quiet=output.quiet))
    if world is not None:
        metrics += open_loop(file, world, profile, arguments.seconds, arguments.seed, quiet=output.quiet)
    metrics = [meaningful(metric) for metric in metrics]
    output.result(format_check(profile, metrics), check_document(profile, warnings, metrics))
    return 0 if holds(metrics) else 1
