"""Builds a scenario: its servers, profiles, network and accuracy, checked and joined, and the paths of their files.

`build_experiment` and the functions that it calls open no file and measure nothing.

Files: a scenario may name the files of its network, accuracy and profiles. A run makes the files that the scenario does
not name, and keeps them in its run folder. This module has their paths and reads them; `scenarios.job` makes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hw.networks.accuracy_table import Evaluation, load_accuracy
from kit.documents import with_remedy
from kit.errors import InputError
from kit.strict import StrictModel
from policies.faults import Supervision
from policies.greedy_scheduler import GreedyParams
from policies.interfaces import AccuracyPrior, RewardWeights, RouterConfig, accuracies_of, nests_of, tuples_within
from policies.rules.rule_context import corners, cost_at, path
from policies.vocabulary import Provenance, nanoseconds
from scenarios.experiment.resolved_scenario import ASSUMED_DECISION_S, Experiment, NetworkAccuracy
from scenarios.experiment.scenario_routers import of_accuracy, of_network, of_profile, require_same, require_weights
from scenarios.files.bundled_files import profile_file
from scenarios.files.scenario_keys import GB, DeviceSection, GreedySection, LinkSection, Scenario, ServerSection
from scenarios.files.scenario_reading import load_scenario, read_profile
from sim.device_profile import Link, Profile, RouterHost
from sim.device_tables import DeviceTables, ProfileCosts, compile_tables, padded_sizes
from sim.emulated_device import emulated
from sim.host_and_network import PRESETS, SHARED_PRESETS, Attachment, HostTable
from sim.simulated_cluster import ClusterSpec
from sim.simulated_server import ServerSpec

if TYPE_CHECKING:
    from hw.device_settings import DeviceSpec
    from hw.networks.network_files import ModelFile, Network


USUAL_MICRO_BATCH = 8  # images
_SCALE_CAP = {"cpu": 2, "cuda": 0}  # a GPU's second instance of a kind is a second stream, not a second device


def build_experiment(scenario: Scenario, profiles: Mapping[str, Profile], accuracy: NetworkAccuracy) -> Experiment:
    """Join a scenario (with its servers named, not `auto`) with a profile for each server and the accuracy.

    Raises:
        InputError: a profile is of another network, does not cover the batch limit, or its device is too small; no
            width tuple that they hold is as accurate as `slo` asks.
    """
    servers = scenario.cluster.named_servers
    owners = {server.name: server.shares_device_with or server.name for server in servers}
    sharing: dict[str, list[ServerSection]] = {name: [] for name, owner in owners.items() if name == owner}
    for server in servers:
        sharing[owners[server.name]].append(server)
    devices = {name: index for index, name in enumerate(sharing)}
    memories: dict[str, str | int] = {server.name: server.name for server in scenario.cluster.owners}
    for server in scenario.cluster.owners:  # several devices may be shares of one GPU
        if server.device is not None and server.device.sm_percent is not None:
            memories[server.name] = server.device.index
    sharers = Counter(memories[owner] for owner in owners.values())
    of_server = tuple(profiles[owners[server.name]] for server in servers)
    _require_one_network(scenario, servers, of_server)
    tables = {name: _tables(scenario, profiles[name], sections) for name, sections in sharing.items()}
    specs = tuple(
        ServerSpec(
            name=server.name,
            device=devices[owners[server.name]],
            params=_params(scenario, server, tables[owners[server.name]], sharers[memories[owners[server.name]]]),
            attachment=_in_rack(scenario, server, _attachment(server, profiles[owners[server.name]], scenario.name)),
        )
        for server in servers
    )
    cluster = ClusterSpec(
        devices=tuple(tables[name] for name in devices),
        servers=specs,
        router=_router_config(scenario, specs, of_server[0], accuracy.prior),
        decision_ns=nanoseconds(_decision_s(scenario, of_server)),
        host=_host(scenario, of_server, tuple(tables.values())),
        weights=RewardWeights(**scenario.reward.model_dump()),
        prior=accuracy.prior,
        supervision=Supervision(**_in_ns(scenario.supervision)),
    )
    costs = ProfileCosts(
        [tables[owners[server.name]] for server in servers],
        [spec.params.batch_limit for spec in specs],
        [spec.attachment for spec in specs],
    )
    capacity_img_s = estimated_capacity_img_s(cluster, costs)
    goals, classes = scenario.slo.goals(scenario.tuning.floor), scenario.classes
    has_limit = any(goal.p99_limit_s for goal in goals) or any(each.p99_limit_s for each in classes)
    if scenario.slo.refuse and has_limit:
        sustained_img_s = capacity_img_s * _speed_as_promised(scenario, cluster, costs)
        cluster = replace(cluster, router=replace(cluster.router, sustained_img_s=sustained_img_s))
    experiment = Experiment(scenario, of_server, accuracy, cluster, costs, capacity_img_s)
    _require_reachable(scenario, experiment)
    return experiment


def _require_reachable(scenario: Scenario, experiment: Experiment) -> None:
    """Raise `InputError` if the operator asks for more accuracy than any width tuple that servers hold has."""
    goals = scenario.slo.goals(scenario.tuning.floor)
    config, tuples = experiment.cluster.router, experiment.held_accuracies
    first = "tuning.floor" if scenario.slo.floor is None else "slo.floor"
    keyed = [(f"slo.schedule.{number - 1}.floor" if number else first, each.floor) for number, each in enumerate(goals)]
    floors = [(key, floor, config.widths) for key, floor in keyed]
    for number, (each, widths) in enumerate(zip(scenario.classes, config.class_widths, strict=False)):
        floors.append((f"classes.{number}.floor", each.floor or 0.0, widths))
    for key, floor, allowed in floors:
        best = max(filter(set(allowed).issuperset, tuples), key=lambda widths: tuples[widths], default=config.widths)
        if floor > tuples.get(best, 0.0):
            problem = f"is {floor:g}, and no width tuple that the servers can hold is so accurate"
            nearest = f"the nearest is {list(best)} with {tuples.get(best, 0.0):.4f}: ask for at most that"
            raise InputError(scenario.name, key, f"{problem}; {nearest}")


def estimated_capacity_img_s(cluster: ClusterSpec, costs: ProfileCosts, at: int = -1) -> float:
    """Return the rate at which all devices are always busy with full batches at the last width, or the one `at`.

    An upper estimate, from the profiles alone: no queue, no link and no load time is in it. `slimsched capacity`
    finds the largest rate that is really stable with a given router. With several models a device's rate is that of
    their mix: the inverse of an image's mean time, weighted by their shares.
    """
    config = cluster.router
    paths = [path((widths[at],) * config.segments) for widths in config.model_widths]
    model_paths = list(zip(config.model_shares or (1.0,), paths, strict=True))
    first_on_device = {spec.device: index for index, spec in reversed(list(enumerate(cluster.servers)))}
    return sum(
        1.0 / sum(share * sum(costs.image_s(server, key) for key in keys) for share, keys in model_paths)
        for server in first_on_device.values()
    )


def _speed_as_promised(scenario: Scenario, cluster: ClusterSpec, costs: ProfileCosts) -> float:
    """Return the first server's speedup at the promised accuracy relative to full width."""
    config, accuracies = cluster.router, cluster.prior.accuracies
    floors = [each.floor for each in scenario.classes] or [scenario.slo.goals(scenario.tuning.floor)[0].floor]
    shares = [each.share for each in scenario.classes] or [1.0]
    as_promised_s = full_s = 0.0
    for floor, share, widths in zip(floors, shares, config.class_widths, strict=True):
        cost_s = {
            row: sum(costs.image_s(0, key) for key in path(row)) for row in accuracies if set(widths).issuperset(row)
        }
        front = corners(accuracies, cost_s)
        best = min(floor or 0.0, accuracies[front[0]])
        as_promised_s += share * cost_at(best, front, accuracies, cost_s)
        full_s += share * cost_s[(widths[-1],) * config.segments]
    return full_s / as_promised_s


def device_section(device: DeviceSpec) -> DeviceSection:
    """Return a device as a scenario would name it."""
    others = ("emulated", "slowdown", "vram_gb", "memory_format", "graphs")
    settings = {name: getattr(device, name) for name in DeviceSection.model_fields if name not in others}
    return DeviceSection(**settings, vram_gb=device.vram_bytes / GB)


def with_local_servers(scenario: Scenario, devices: list[DeviceSpec]) -> Scenario:
    """Spell out `cluster.servers: auto`: a server for each device of this machine."""
    if scenario.cluster.servers != "auto":
        return scenario
    sections = tuple(
        ServerSection(
            name=f"gpu{device.index}" if device.kind == "cuda" else f"cpu{number}",
            device=device_section(device),
        )
        for number, device in enumerate(devices)
    )
    return scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"servers": sections})})


def _in_ns(section: StrictModel, *excluded: str) -> dict[str, Any]:
    """Return a section's settings but those `excluded`, by name, as a core takes them: seconds as nanoseconds."""
    values = {name: getattr(section, name) for name in type(section).model_fields if name not in excluded}
    seconds = {name for name in values if name.endswith("_s")}
    plain = {name: value for name, value in values.items() if name not in seconds}
    return plain | {f"{name[:-2]}_ns": None if values[name] is None else nanoseconds(values[name]) for name in seconds}


def _require_one_network(scenario: Scenario, servers: tuple[ServerSection, ...], profiles: tuple[Profile, ...]) -> None:
    first = profiles[0].model
    for server, profile in zip(servers, profiles, strict=True):
        if profile.model.hash != first.hash:
            problem = (
                f"the profile of {server.name!r} is of model {profile.model.name} ({profile.model.hash[:12]}), "
                f"that of {servers[0].name!r} of {first.name} ({first.hash[:12]}); calibrate both with one model"
            )
            raise InputError(scenario.name, "cluster.servers", problem)


def _tables(scenario: Scenario, profile: Profile, sharing: Sequence[ServerSection]) -> DeviceTables:
    params = [scenario.cluster.greedy_of(server) for server in sharing]
    limit = max(param.batch_limit for param in params)
    return compile_tables(profile, limit, jitter=scenario.jitter, util_metric=params[0].util_metric)


def _params(scenario: Scenario, server: ServerSection, tables: DeviceTables, shares: int) -> GreedyParams:
    section = scenario.cluster.greedy_of(server)
    profile = tables.profile
    cap_gb = section.vram_cap_gb
    cap_bytes = profile.device.vram_bytes // shares if cap_gb is None else int(cap_gb * GB)
    if profile.memory.context_bytes > cap_bytes:
        problem = f"{cap_bytes / GB:.3g} GB are less than the context of {server.name!r} alone takes"
        remedy = f"it takes {profile.memory.context_bytes / GB:.3g} GB; raise the cap, or leave it out"
        raise InputError(scenario.name, "cluster.greedy.vram_cap_gb", f"{problem}: {remedy}")
    scale_cap = _SCALE_CAP[profile.device.kind] if section.scale_cap is None else section.scale_cap
    params = GreedyParams(
        widths=profile.model.widths,
        instance_bytes={spec: cost.vram_bytes for spec, cost in tables.instances.items()},
        context_bytes=profile.memory.context_bytes,
        vram_cap_bytes=cap_bytes,
        padded_sizes=padded_sizes(profile, section.batch_limit),
        nests=profile.model.nests,
        scale_cap=scale_cap,
        **_in_ns(section, "vram_cap_gb", "util_metric", "preload", "scale_cap"),
    )
    if params.head_of_line == "wait" and params.idle_unload_ns is None and params.all_bytes > cap_bytes:
        problem = "with `head_of_line: wait` nothing is evicted, so without idle unloads full memory is a deadlock"
        remedy = f"give idle_unload_s, or {params.all_bytes / GB:.2f} GB to {server.name!r}"
        raise InputError(scenario.name, "cluster.greedy.idle_unload_s", f"{problem}; {remedy}")
    return replace(params, preload=_preload(scenario, server, section, params))


def _preload(
    scenario: Scenario, server: ServerSection, section: GreedySection, params: GreedyParams
) -> tuple[tuple[int, float], ...]:
    if isinstance(section.preload, str):
        instances = tuple(sorted(params.instance_bytes)) if section.preload == "all" else ()
    else:
        instances = section.preload
    needed = params.context_bytes + sum(params.instance_bytes[spec] for spec in instances)
    if needed > params.vram_cap_bytes:
        problem = f"needs {needed / GB:.2f} GB, the cap of {server.name!r} is {params.vram_cap_bytes / GB:.2f} GB"
        raise InputError(scenario.name, "cluster.greedy.preload", f"{problem}; preload less or raise vram_cap_gb")
    return instances


def _attachment(server: ServerSection, profile: Profile, source: str) -> Attachment:
    name = f"link:{server.name}"
    section = server.link
    if isinstance(section, LinkSection):
        link = Link(latency_s=section.latency_s, bandwidth_bytes_s=section.bandwidth_bytes_s, loss=section.loss)
        return Attachment(section.medium or name, link)
    if section == "measured":
        if profile.link is None:  # of an emulated device on another host: otherwise checked on reading
            problem = "'measured', which `slimsched run` does before it simulates; run that first, or name the link"
            raise InputError(source, f"cluster.servers.{server.name}.link", problem)
        return Attachment(name, profile.link)
    return Attachment(section if section in SHARED_PRESETS else name, PRESETS[section])


def _in_rack(scenario: Scenario, server: ServerSection, attachment: Attachment) -> Attachment:
    """Return the attachment within its rack; of racks with a `count`, `server.rack` has its number behind the name."""
    if server.rack is None:
        return attachment
    racks = {name: rack for rack in scenario.cluster.racks for name in rack.names}
    uplink = Link(latency_s=racks[server.rack].latency_s, bandwidth_bytes_s=racks[server.rack].bandwidth_bytes_s)
    return replace(attachment, rack=server.rack, uplink=uplink)


def _router_config(
    scenario: Scenario, servers: tuple[ServerSpec, ...], profile: Profile, prior: AccuracyPrior
) -> RouterConfig:
    model, section = profile.model, scenario.router
    fits = tuple(
        tuple(
            tuple(server.params.can_hold((segment, width)) for width in model.widths)
            for segment in range(1, model.segments + 1)
        )
        for server in servers
    )
    model_of = _models_of_classes(scenario, tuple(model.widths_by_model))
    shares = [(number, each.share) for number, each in zip(model_of, scenario.classes, strict=False)]
    config = RouterConfig(
        segments=model.segments,
        widths=model.widths,
        fits=fits,
        models=tuple(model.widths_by_model.values()),
        model_of=model_of,
        model_shares=tuple(
            sum(share for model_number, share in shares if model_number == number)
            for number in range(len(model.models))
        ),
        shed_expired=scenario.shed,
        outstanding_micro_batches=_outstanding_micro_batches(scenario),
        classes=scenario.class_names,
        samples=section.samples or 0,
        **_in_ns(section, "decision_s", "outstanding_micro_batches", "samples"),
    )
    for index, masks in enumerate(zip(*config.masks(), strict=True)):
        if not any(map(any, masks)):
            segment_text = f"segment {index % model.segments + 1}"
            model_text = f" of {model.models[index // model.segments][0]}" if model.models else ""
            caps = ", ".join(f"{server.name} {server.params.vram_cap_bytes / GB:g} GB" for server in servers)
            problem = f"no server can hold {segment_text}{model_text} at any width (caps: {caps}); raise vram_cap_gb"
            raise InputError(scenario.name, "cluster.greedy.vram_cap_gb", problem)
    return replace(config, accuracies=accuracies_of(config, prior))


def _models_of_classes(scenario: Scenario, models: tuple[str, ...]) -> tuple[int, ...]:
    """Return, for each class, its model's number; empty if there is one model.

    Raises:
        InputError: a class names a model that there is not, or none of several.
    """
    model_names = {f"classes.{number}.model": each.model for number, each in enumerate(scenario.classes)}
    for key, name in (model_names or {"classes": None}).items():
        if name not in (models or (None,)):
            fits = f"the network holds the models {', '.join(models)}: name one" if models else "the network is one"
            remedy = "" if models else ": leave it out, or join several (`slimsched model join`)"
            raise InputError(scenario.name, key, f"{name or 'missing'}; {fits}{remedy}")
    return tuple(models.index(name) for name in model_names.values() if name is not None)


def _outstanding_micro_batches(scenario: Scenario) -> int:
    """Return the given number; by default enough that a GPU, whose passes are short, has work during messages."""
    if scenario.router.outstanding_micro_batches is not None:
        return scenario.router.outstanding_micro_batches
    devices = [server.device for server in scenario.cluster.named_servers]
    return 4 if any(device is not None and device.kind == "cuda" for device in devices) else 2


def _host(scenario: Scenario, profiles: tuple[Profile, ...], devices: tuple[DeviceTables, ...]) -> HostTable | None:
    """Return the most expensive of those that were measured: there is one router, and it is on one of the hosts."""
    measured = [profile.router_host for profile in profiles if profile.router_host is not None]
    if not measured:
        return None
    table = HostTable.of(max(measured, key=_usual_s), jitter=scenario.jitter)
    return replace(table, devices=_devices_of_all_cores(devices))


def _devices_of_all_cores(devices: tuple[DeviceTables, ...]) -> tuple[int, ...]:
    """Return the CPU devices, if they leave the router's process no dedicated core
    (`hw.router.router_loop.own_cores`)."""
    shared = [index for index, tables in enumerate(devices) if tables.cpu_work is not None]
    if not shared:
        return ()
    cores_of = [devices[index].profile.execution.get("cores", "any") for index in shared]
    cores = {core for names in cores_of for core in names.split(",")}
    machine = int(devices[shared[0]].profile.device.stamps.get("cpu_cores", "0"))
    return tuple(shared) if "any" in cores or len(cores) >= machine else ()


def _usual_s(host: RouterHost) -> float:
    """Return what a host costs a micro-batch of a usual size, sent and returned."""
    return sum(cost.micro_batch_s + USUAL_MICRO_BATCH * cost.image_s for cost in (host.decision, host.returned))


def _decision_s(scenario: Scenario, profiles: tuple[Profile, ...]) -> float:
    """Return the policy's own time: the scenario's, or within what was measured of the host, or an assumption."""
    if not isinstance(scenario.router.decision_s, str):
        return scenario.router.decision_s
    is_measured = any(profile.router_host is not None for profile in profiles)
    return 0.0 if is_measured else ASSUMED_DECISION_S


# ---------------------------------------------------------------------------------------------------------------- files


MODEL_FILE = "model.safetensors"
ACCURACY_FILE = "accuracy.json"
SCENARIO_FILE = "scenario.yaml"
_EVALUATED = "`slimsched model train` makes it again"
_CALIBRATED = "`slimsched run` makes it again"


def default_folder(scenario: Scenario) -> Path:
    """Return `runs/NAME`, in the current folder."""
    return Path("runs") / scenario.name


def with_named_servers(scenario: Scenario) -> Scenario:
    """Return the scenario with `cluster.servers: auto` spelled out for this machine."""
    if scenario.cluster.servers != "auto":
        return scenario
    from hw.device_settings import local_devices  # opens torch, which a simulation does not need

    return with_local_servers(scenario, local_devices())


def model_path(scenario: Scenario, folder: Path) -> Path:
    """Return the path of the network, made or not."""
    return Path(scenario.model.checkpoint) if scenario.model.checkpoint else folder / MODEL_FILE


def model_file(scenario: Scenario, folder: Path) -> ModelFile:
    """Return the network's file, and which network it is according to the scenario."""
    from hw.networks.network_files import ModelFile  # opens torch, which a simulation does not need

    return ModelFile(model_path(scenario, folder), network_of(scenario))


def network_of(scenario: Scenario) -> Network | None:
    """Return the network that the scenario names; raises `InputError` for an unknown name."""
    from hw.networks.network_files import Network

    section = scenario.model
    return Network(section.network, section.options, scenario.name, "model.network") if section.network else None


def profile_path(folder: Path, server: str) -> Path:
    """Return the path of a server's profile, made or not."""
    return folder / "profiles" / f"{server}.yaml"


def calibrated_path(folder: Path, server: str) -> Path:
    """Return the path of a server's profile as calibration left it, before the overheads of serving were added."""
    return folder / "calibration" / f"{server}.yaml"


def served_path(folder: Path, server: str) -> Path:
    """Return the path of a server's profile with the overheads of serving, if they were measured on this host."""
    return folder / "calibration" / "served" / f"{server}.yaml"


def read_accuracy(scenario: Scenario, folder: Path) -> NetworkAccuracy:
    """Read the scenario's accuracy file, or the one that its run made.

    Raises:
        InputError: there is none yet, it is broken, or it was made with something else than the scenario has now.
    """
    path = Path(scenario.model.accuracy) if scenario.model.accuracy else folder / ACCURACY_FILE
    if not path.is_file():
        problem = f"not evaluated yet (no {path}; the network's files are also searched in the run folder `out`); "
        problem += "`slimsched run` or `slimsched model train` does"
        raise InputError(scenario.name, "model.accuracy", problem)
    is_brought = scenario.model.accuracy is not None
    remedy = f"name another one ({_EVALUATED})" if is_brought else _EVALUATED
    with nullcontext() if is_brought else with_remedy(_EVALUATED):
        table = load_accuracy(path)
    if isinstance(table, Evaluation):
        require_same(path, table.made_with, of_accuracy(scenario), remedy, is_brought=is_brought)
        require_weights(path, model_path(scenario, folder), table, remedy)
    return NetworkAccuracy.of(table)


def read_profiles(scenario: Scenario, folder: Path) -> dict[str, Profile]:
    """Read each server's profile (one that shares a device has that server's).

    Raises:
        InputError: a server has not been calibrated yet, its file is broken, or was made with something else than the
            scenario has now.
    """
    profiles: dict[str, Profile] = {}
    played: dict[tuple[str, float], Profile] = {}  # one object, with its tables, for all servers that emulate it
    for server in scenario.cluster.named_servers:
        if server.shares_device_with is not None:
            continue
        path, device = profile_source(server, folder), server.device
        if device is not None and device.emulated is not None and path != profile_path(folder, server.name):
            key = (device.emulated, device.slowdown)
            if key not in played:
                played[key] = emulated_profile(device)
            profiles[server.name] = played[key]
            continue
        if not path.is_file():
            problem = (
                f"{server.name!r} is not calibrated yet (no {path.name} in {path.parent}); `slimsched run` does it"
            )
            raise InputError(scenario.name, "cluster.servers", problem)
        is_brought = server.profile is not None
        with nullcontext() if is_brought else with_remedy(_CALIBRATED):
            profile = profiles[server.name] = read_profile(path)
        settings = of_network(scenario) if is_brought else of_profile(scenario, server)
        remedy = "`slimsched calibrate` makes one of yours" if is_brought else f"{_CALIBRATED} (remove an edited one)"
        require_same(path, profile.made_with, settings, remedy, is_brought=is_brought)
    return profiles


def profile_source(server: ServerSection, folder: Path) -> Path:
    """Return the file that a server's profile is made of: the one that it names, its run keeps, or it emulates."""
    if server.profile:
        return profile_file(server.profile)
    path = profile_path(folder, server.name)
    if server.device is not None and server.emulated is not None and not _is_played(server.device, path):
        return profile_file(server.emulated)
    return path


def emulated_profile(device: DeviceSection) -> Profile:
    """Return the profile of an emulated device; raises `InputError` if it does not exist."""
    assert device.emulated is not None, "asked of an emulated one"
    return emulated(read_profile(Path(device.emulated)), device.slowdown)


def _is_played(device: DeviceSection, path: Path) -> bool:
    """Return whether a run has kept there the profile that this very device emulates, with what serving costs."""
    if not path.is_file():
        return False
    played, profile = read_profile(path), emulated_profile(device)
    return (played.name, played.latency) == (profile.name, profile.latency)


def make_experiment(scenario: Scenario, folder: Path) -> Experiment:
    """Combine everything; raises `InputError` for what is missing or does not fit."""
    scenario = with_named_servers(scenario)
    profiles = read_profiles(scenario, folder)
    accuracy = read_accuracy(scenario, folder)
    require_same_model(scenario, profiles, accuracy)
    return build_experiment(scenario, profiles, accuracy)


def load_experiment(path: Path, folder: Path | None = None) -> Experiment:
    """Return `make_experiment` from a scenario's file."""
    scenario = load_scenario(path)
    return make_experiment(scenario, folder or default_folder(scenario))


def require_same_model(scenario: Scenario, profiles: Mapping[str, Profile], accuracy: NetworkAccuracy) -> None:
    """Check that a profile is of the network whose accuracy is used, all of it.

    A `datasheet` profile was made for a network's shape, not for its weights: its widths and segments must fit. The
    same holds for any profile used with the paper's table, which is of no weights either.

    Raises:
        InputError: it is of another one.
    """
    segments, widths = (
        len(next(iter(accuracy.prior.accuracies))),
        sorted({width for row in accuracy.prior.accuracies for width in row}),
    )
    for name, profile in profiles.items():
        model = profile.model
        if (model.segments, sorted(model.widths)) != (segments, widths):
            problem = f"the profile of {name!r} has {model.segments} segments at widths {sorted(model.widths)}; "
            problem += f"the accuracy table has {segments} segments at widths {widths}; take those of one network: "
            remedy = "`slimsched model train` makes the table of yours, and `slimsched init --accuracy FILE` names one"
            raise InputError(scenario.name, "model", problem + remedy)
        of_shape = profile.provenance in (Provenance.DATASHEET, Provenance.EMULATED)
        of_weights = not of_shape and accuracy.evaluation is not None
        if of_weights and accuracy.evaluation is not None and model.hash != accuracy.evaluation.hash:
            problem = f"the profile of {name!r} is of another model ({model.name}, {model.hash[:12]}); calibrate again"
            raise InputError(scenario.name, "cluster.servers", problem)
        every = tuples_within(nests_of(model.widths, model.nests), model.segments)
        if missing := [row for row in every if row not in accuracy.prior.accuracies]:
            problem = f"the accuracy table lacks {len(missing)} of {len(every)} width tuples, first {list(missing[0])}"
            raise InputError(scenario.name, "model", f"{problem}; a router may ask for any: write them, too")
