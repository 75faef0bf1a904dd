"""Reads scenarios and profiles, and checks them whole. What is wrong in one is an `InputError` before anything starts.

It builds nothing from what it read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hw.networks.datasets import is_image_folder, require_image_folder
from kit import strict
from kit.documents import read_text, with_remedy
from kit.errors import InputError, nearest
from kit.plugins import is_own
from kit.strict import with_paths
from scenarios.files.bundled_files import accuracy_file, profile_file, weights_file
from scenarios.files.router_files import check_fits, check_router
from scenarios.files.scenario_keys import NETWORKS, GreedySection, MomentFault, Scenario, ServerSection, SpanFault
from sim.device_profile import Profile
from sim.host_and_network import PRESETS


def load_scenario(path: Path | str, changes: Mapping[str, Any] | None = None) -> Scenario:
    """Read a scenario and check it whole. Paths in it are relative to its folder, and absolute in what is returned.

    Args:
        changes: other values than the file's, by dotted keys: `workload.rate_img_s`, `cluster.servers.0.link`.

    Raises:
        InputError: anything in it, or in a file that it names, is wrong.
    """
    path = Path(path)
    source = str(path)
    folder = path.parent.absolute()
    raw = strict.mapping(read_text(path), source)
    for key, value in (changes or {}).items():
        strict.change(raw, key.split("."), value, source)
    parsed = strict.validate(Scenario, raw, source)
    files: dict[str, str] = {}
    if (file := parsed.model.accuracy) is not None:
        files["accuracy"] = accuracy_file(file, folder, source, "model.accuracy")
    if (file := parsed.model.checkpoint) is not None:
        files["checkpoint"] = weights_file(file, folder, source, "model.checkpoint")
    parsed = parsed.model_copy(update={"model": parsed.model.model_copy(update=files)})
    scenario = with_paths(parsed, lambda text: str(folder / Path(text).expanduser()))
    with _naming_items(raw, source):
        _check(scenario, source)
    return scenario


@contextmanager
def _naming_items(raw: Mapping[str, Any], source: str) -> Iterator[None]:
    """Report an item's problem with the item's name instead of its index."""
    try:
        yield
    except InputError as error:
        key = strict.with_name(raw, error.key) if error.source == source else error.key
        raise InputError(error.source, key, error.problem) from None


def _check(scenario: Scenario, source: str) -> None:
    """Check all that no single key can; raises `InputError`."""
    if scenario.model.accuracy is not None:
        with with_remedy("`slimsched model train` writes one; slimresnet18-paper names the paper's, which is bundled"):
            read_text(Path(scenario.model.accuracy), source, "model.accuracy")
    _check_network(scenario, source)
    if is_image_folder(scenario.model.dataset):  # a user's own class is imported when it is needed
        try:
            require_image_folder(Path(scenario.model.dataset))
        except InputError as error:
            raise InputError(source, "model.dataset", error.problem) from None
    _check_servers(scenario, source)
    first = _check_profiles(scenario, source)
    check_faults(scenario, source)
    for section, routers in (("compare", scenario.compare.routers), ("validate", scenario.validate_.routers)):
        for index, name in enumerate(routers):
            _check_router(name, first, source, f"{section}.routers.{index}")
    scenario.workload.require_files()


def read_profile(path: Path, source: str | None = None, key: str = "") -> Profile:
    """Read a profile from its file, or a bundled one by its name.

    Raises:
        InputError: it is missing, broken or of another version, or no such profile is bundled.
    """
    path = profile_file(path, source, key)
    text = read_text(path, source, key)
    if not text.strip():
        raise InputError(str(path), "", "is empty; `slimsched calibrate` writes profiles")
    if text.startswith('{"schema": "slimsched.calibration-log/'):
        profile = path.with_suffix(".yaml")
        remedy = f"name {profile}" if profile.is_file() else "`slimsched calibrate` resumes from it and writes one"
        raise InputError(str(path), "", f"is the log of a calibration, not a profile; {remedy}")
    return Profile.from_yaml(text, str(path))


def as_made(path: Path) -> Profile | None:
    """Return a profile that a command made and that is unedited since; None for any other."""
    try:
        profile = read_profile(path)
    except InputError:
        return None
    return profile if "\nchecksum:" in path.read_text(encoding="utf-8") else None


def relative_paths(scenario: Scenario, folder: Path) -> Scenario:
    """Return the scenario with paths relative to `folder`: it reads back from there, and names no local path."""
    start = folder.absolute()
    return with_paths(scenario, lambda text: os.path.relpath(text, start))


# ------------------------------------------------------------------------------------------------------------- checks


def _check_network(scenario: Scenario, source: str) -> None:
    """Check its name only: a user's own class is imported when it is needed."""
    name = scenario.model.network
    if name is None or name in NETWORKS:
        return
    if not is_own(name):
        problem = f"unknown network {name!r}; {nearest(name, NETWORKS)}, or `module:Class` for a custom one"
        raise InputError(source, "model.network", problem)


def _check_servers(scenario: Scenario, source: str) -> None:
    servers = scenario.cluster.named_servers
    names: set[str] = set()
    owners = {server.name: server for server in scenario.cluster.owners}
    real = next((server for server in servers if server.device is not None and server.emulated is None), None)
    for index, server in scenario.cluster.numbered_servers:
        key = f"cluster.servers.{index}"
        if server.name in names:
            raise InputError(source, f"{key}.name", f"{server.name!r} is given twice; rename one of the two")
        names.add(server.name)
        _check_device(server, owners.keys(), source, key)
        _check_emulation(server, owners, real, source, key)
        if server.known_profile is None and not scenario.model.is_runnable:
            problem = "missing; without a network (model.network or model.checkpoint) nothing can be calibrated"
            raise InputError(source, f"{key}.profile", problem)
    if scenario.cluster.servers == "auto" and not scenario.model.is_runnable:
        raise InputError(source, "cluster.servers", "`auto` needs a network: model.network or model.checkpoint")


def _check_device(server: ServerSection, owners: Set[str], source: str, key: str) -> None:
    shared = server.shares_device_with
    if server.emulated is not None and server.profile is not None:
        problem = f"{server.profile!r}, and device.emulated is {server.emulated!r}; leave one of the two out"
        raise InputError(source, f"{key}.profile", problem)
    if shared is None:
        if server.device is None and server.profile is None:
            raise InputError(source, key, "give device (a real or an emulated one) or profile (a simulated one)")
        return
    if shared not in owners:
        problem = f"{shared!r} is not a server with a separate device; {nearest(shared, owners)}"
        raise InputError(source, f"{key}.shares_device_with", problem)


def _check_emulation(
    server: ServerSection, owners: Mapping[str, ServerSection], real: ServerSection | None, source: str, key: str
) -> None:
    """Check that no server shares an emulated device, and that none is mixed with real ones."""
    shared = server.shares_device_with
    if shared is not None and owners[shared].emulated is not None:
        problem = f"the device of {shared!r} is emulated, by one process for one server"
        raise InputError(source, f"{key}.shares_device_with", f"{problem}; give {server.name!r} a separate device")
    if server.emulated is not None and real is not None:
        problem = f"emulated, and the device of {real.name!r} is real: one can't use the other's activations"
        raise InputError(source, f"{key}.device.emulated", f"{problem}; emulate all devices or none")


def _check_profiles(scenario: Scenario, source: str) -> Profile | None:
    """Check that profiles are readable, of one network, and cover what servers ask of them; returns the first."""
    first: tuple[str, Profile] | None = None
    for index, server in scenario.cluster.numbered_servers:
        if server.known_profile is None:
            continue
        key = f"cluster.servers.{index}"
        profile_key = f"{key}.{server.profile_key}"
        with _named_by(source, f"{profile_key} ({server.name})"):
            profile = read_profile(Path(server.known_profile), source, profile_key)
        first = first or (server.name, profile)
        if (profile.model.segments, profile.model.widths) != (first[1].model.segments, first[1].model.widths):
            network, other = _network_of(profile), f"{first[0]!r} has another network: {_network_of(first[1])}"
            remedy = "give all servers profiles of one network (`slimsched profile synth --network`, or calibrate)"
            raise InputError(source, profile_key, f"{profile.name!r} is of {network}; {other}; {remedy}")
        params, spans_hosts = scenario.cluster.greedy_of(server), scenario.cluster.backend == "ray"
        _check_server_against(profile, server, params, source, key, spans_hosts=spans_hosts)
    return None if first is None else first[1]


def _network_of(profile: Profile) -> str:
    return f"{profile.model.name}, {profile.model.segments} segments, widths {list(profile.model.widths)}"


@contextmanager
def _named_by(source: str, key: str) -> Iterator[None]:
    """Report what is wrong within a file together with the key that named it."""
    try:
        yield
    except InputError as error:
        if error.source == source:
            raise
        raise InputError(error.source, error.key, f"{error.problem} (named by {source}: {key})") from None


def _check_server_against(
    profile: Profile, server: ServerSection, greedy: GreedySection, source: str, key: str, *, spans_hosts: bool
) -> None:
    if greedy.batch_limit > profile.batch_limit:
        problem = f"{greedy.batch_limit} is beyond what the profile of {server.name!r} covers"
        problem += f"; expected 1 to {profile.batch_limit}"
        raise InputError(source, _greedy_key(server, "batch_limit", key), problem)
    instances = {(cost.segment, cost.width) for cost in profile.memory.instances}
    for pair in () if isinstance(greedy.preload, str) else greedy.preload:
        if pair not in instances:
            allowed = f"segments 1 to {profile.model.segments} at widths {list(profile.model.widths)}"
            problem = f"no instance {list(pair)} of {server.name!r}; expected {allowed}"
            raise InputError(source, _greedy_key(server, "preload", key), problem)
    if server.link == "measured" and profile.link is None and not (spans_hosts and server.emulated):
        allowed = f"{', '.join(PRESETS)} or latency_s and bandwidth_bytes_s"
        raise InputError(source, f"{key}.link", f"'measured', but the profile holds no link; expected {allowed}")


def _greedy_key(server: ServerSection, param: str, key: str) -> str:
    """Return the key of a server's parameter: its own, or the whole cluster's."""
    return f"{key}.greedy.{param}" if param in server.greedy.model_fields_set else f"cluster.greedy.{param}"


def check_faults(scenario: Scenario, source: str) -> None:
    """Check that the cluster has each fault's server, and no two of a kind overlap there; raises `InputError`."""
    names = [server.name for server in scenario.cluster.named_servers]
    for index, fault in enumerate(scenario.faults):
        if names and isinstance(fault, SpanFault | MomentFault):
            check_fault_server(fault.server, names, source, index)
    until_s: dict[tuple[str, str], float] = {}
    spans = [(index, fault) for index, fault in enumerate(scenario.faults) if isinstance(fault, SpanFault)]
    for index, fault in sorted(spans, key=lambda item: item[1].start_s):
        if fault.start_s < until_s.get((fault.kind, fault.server), 0.0):
            problem = f"{fault.start_s:g} is within the previous {fault.kind} of {fault.server!r}"
            raise InputError(source, f"faults.{index}.start_s", problem)
        until_s[fault.kind, fault.server] = float("inf") if fault.end_s is None else fault.end_s


def check_fault_server(name: str, names: Sequence[str], source: str, index: int) -> None:
    """Check that the cluster has the server of the fault with this index; raises `InputError`."""
    if name not in names:
        raise InputError(source, f"faults.{index}.server", f"no server {name!r}; {nearest(name, names)}")


def _check_router(name: str, profile: Profile | None, source: str, key: str = "") -> None:
    check_router(name, source, key)
    if profile is not None:
        check_fits(name, profile.model.segments, profile.model.widths, source, key)


def require_router(name: str, scenario: Scenario, flag: str = "--router") -> None:
    """Check that what a flag names can be a router, and fits the network if a profile already fixes it.

    Raises:
        InputError: it can't, or doesn't.
    """
    profiles = [server.known_profile for server in scenario.cluster.named_servers]
    first = next((Path(profile) for profile in profiles if profile is not None), None)
    _check_router(name, None if first is None else read_profile(first), flag)


@contextmanager
def naming_servers(scenario: Scenario) -> Iterator[None]:
    """Report what is wrong with a server together with its name."""
    servers = [{"name": server.name} for server in scenario.cluster.named_servers]
    with _naming_items({"cluster": {"servers": servers}}, scenario.name):
        yield
