"""The stages that measure: a device's profile, the costs of serving, and what each router's decisions take here.

The stages `decide-ROUTER` run if serving was measured on this machine, in this run folder. Decision times that were
measured before are used as they are, wherever the folder is now. Simulations elsewhere charge the times in the scenario
and the profiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from calibrate.calibration_log import CalibrationRequest
from hw.networks.datasets import load_dataset
from kit.documents import read_text, with_remedy, write_json, write_text
from kit.files import set_aside
from scenarios.executors.device_calibration import calibrate_device, calibrate_on_host
from scenarios.executors.device_choice import candidates, device_of, joined_hosts, section_of, share_warning
from scenarios.executors.preflight import measure_links
from scenarios.executors.serving_measurement import measure_decisions, measure_serving, with_overheads
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import calibrated_path, emulated_profile, profile_path, served_path
from scenarios.experiment.scenario_routers import of_profile
from scenarios.files.bundled_files import profile_file
from scenarios.files.router_files import display_name
from scenarios.files.scenario_keys import DeviceSection, ServerSection
from scenarios.files.scenario_reading import read_profile
from scenarios.files.series_files import read_decision_time
from scenarios.job.job_stages import OF_SERVING, Run, blamed_on
from scenarios.metrics.result_documents import LINKS_SCHEMA, ClusterMeasurements
from scenarios.runs.run_store import plain_name
from sim.device_profile import SCHEMA as PROFILE_SCHEMA
from sim.device_profile import Profile


def make_profiles(run: Run) -> None:
    """Calibrate every device whose server names no profile, and put each server's profile in its place.

    A profile there is always from its current source, because a scenario may have named another one since: the file
    that it names, or what was calibrated here, with what serving costs once that is known. What a user has edited in
    its place stays.
    """
    owners = run.scenario.cluster.owners
    if _spans_hosts(run):
        _measure_links(run)
    for server in owners:
        if server.device is not None and server.emulated is not None:
            _emulate(run, server.name, server.device)
        elif server.profile is None:
            _calibrate(run, server)
    is_served = _can_be_served(run) and run.folder.is_done("serving", _serving_hash(run))
    for server in owners:
        path = (served_path if is_served else calibrated_path)(run.folder.path, server.name)
        if server.profile is not None:
            _put(run, server, read_text(profile_file(server.profile)))  # the folder documents the whole run
        elif not _is_edited(run, server):
            _put(run, server, read_text(path))
        else:
            target = profile_path(run.folder.path, server.name)
            with with_remedy("fix it, or remove it: then it is made again"):
                read_profile(target)
            run.say(f"profiles/{target.name} was edited since, and is used as it is")


def _put(run: Run, server: ServerSection, text: str) -> None:
    """Write a server's profile to its place; what a user has edited there is kept next to it."""
    target = profile_path(run.folder.path, server.name)
    if target.is_file() and target.read_bytes() == text.encode():
        return
    if _is_edited(run, server):
        run.say(f"{target} was edited since: it is kept as {set_aside(target, '.edited').name}")
    write_text(target, text)
    run.folder.finish(f"profile-{server.name}", "", [target])


def _is_edited(run: Run, server: ServerSection) -> bool:
    """Return whether a profile is another one than was put in its place."""
    outputs = run.folder.outputs(f"profile-{server.name}")
    target = profile_path(run.folder.path, server.name)
    return target.exists() and not (outputs and run.folder.is_whole(outputs))


def _emulate(run: Run, name: str, device: DeviceSection) -> None:
    """Write what an emulated device emulates, which is known: nothing is measured."""
    assert device.emulated is not None, "asked before"
    fingerprint = run.fingerprint(PROFILE_SCHEMA, profile_file(device.emulated), device.slowdown, *_link_parts(run))
    path = calibrated_path(run.folder.path, name)

    def work() -> Sequence[Path]:
        write_text(path, _with_link(run, name, emulated_profile(device)).to_yaml())
        return [path]

    run.stage(f"emulate-{name}", fingerprint, work)


LINKS_FILE: Final = "calibration/links.json"


def _spans_hosts(run: Run) -> bool:
    """Check whether real servers are on the hosts of a cluster, whose links are unknown."""
    return run.can_validate and run.scenario.cluster.backend == "ray"


def _link_parts(run: Run) -> list[Path]:
    return [run.folder / LINKS_FILE] if _spans_hosts(run) else []


def _measure_links(run: Run) -> None:
    """Run the stage `links`: the links between the hosts, and the offsets of their clocks."""
    section, target = run.scenario.cluster, run.folder / LINKS_FILE
    names = [section.host_of(server) or "" for server in section.owners]

    def work() -> Sequence[Path]:
        with joined_hosts(section, run.scenario.name) as hosts:
            measured = measure_links(hosts, [host or hosts.here for host in names], run.say)
        write_json(target, msgspec.to_builtins(measured))
        return [target]

    run.stage("links", run.fingerprint(LINKS_SCHEMA, section.address, *names), work)


def _with_link(run: Run, name: str, profile: Profile) -> Profile:
    """Return a cluster server's profile with the link that brings activations to its host."""
    if not _spans_hosts(run):
        return profile
    measured = msgspec.convert(run.folder.read_json(LINKS_FILE), ClusterMeasurements)
    server = next(server for server in run.scenario.cluster.owners if server.name == name)
    return profile.model_copy(update={"link": measured.into(server.host or measured.clocks[0].host)})


def _calibrate(run: Run, server: ServerSection) -> None:
    scenario = run.scenario
    servers = scenario.cluster.named_servers
    device = device_of(server, servers)
    others = [other for other in servers if other.name != server.name and other.device is not None]
    peer = device_of(others[0], servers) if others else device  # to measure the link to
    limit = max(
        scenario.cluster.greedy_of(other).batch_limit
        for other in servers
        if server.name in (other.name, other.shares_device_with)
    )
    made_with = of_profile(scenario, server)
    parts = (*_link_parts(run), *((server.host or "",) if _spans_hosts(run) else ()))
    fingerprint = run.fingerprint(repr(device), repr(peer), limit, made_with, run.model.path, *parts)

    def work() -> Sequence[Path]:
        log_path = run.folder / "calibration" / f"{server.name}-{fingerprint[:12]}.jsonl"
        request = CalibrationRequest(
            run.model,
            device,
            candidates=candidates(device, section_of(server, servers)),
            budget_s=scenario.calibration.budget,
            batch_limit=limit,
            log_path=log_path,
            seed=scenario.seed,
            peer=peer,
            name=server.name,
            allow_busy=scenario.calibration.allow_busy,
        )
        key = (scenario.name, "calibration.budget")
        if warning := share_warning(server.name, device):
            run.warn(warning)
        if _spans_hosts(run):
            profile = _with_link(run, server.name, calibrate_on_host(scenario, server, request, run.say))
        else:
            profile = calibrate_device(request, quiet=run.quiet, say=run.say, budget_key=key)
        path = calibrated_path(run.folder.path, server.name)
        write_text(path, profile.model_copy(update={"made_with": made_with}).to_yaml())
        return [path]

    run.stage(f"calibrate-{server.name}", fingerprint, work)


def make_serving(run: Run) -> None:
    """Write what serving costs on this host into the profiles that were made here (the calibrated ones are kept)."""
    if not _can_be_served(run):
        return
    servers = run.scenario.cluster.owners
    sources = [calibrated_path(run.folder.path, server.name) for server in servers]
    served = [served_path(run.folder.path, server.name) for server in servers]

    def work() -> Sequence[Path]:
        for server, source in zip(servers, sources, strict=True):
            _put(run, server, read_text(source))
        experiment = run.experiment()
        images, model = None, run.model_to_serve
        if model is not None:
            with blamed_on(run.scenario):
                images = load_dataset(run.scenario.model.dataset)
        overheads = measure_serving(
            experiment, model, images, run.scenario.seed, allow_busy=run.scenario.calibration.allow_busy, say=run.say
        )
        for device, (server, source, target) in enumerate(zip(servers, sources, served, strict=True)):
            text = with_overheads(read_profile(source), overheads, device).to_yaml()
            write_text(target, text)
            _put(run, server, text)
        return served

    run.stage("serving", _serving_hash(run), work)


def _can_be_served(run: Run) -> bool:
    """Return whether the profiles are made here, and there are executors to serve with."""
    return run.can_validate and all(server.profile is None for server in run.scenario.cluster.owners)


def _serving_hash(run: Run) -> str:
    sources = [calibrated_path(run.folder.path, server.name) for server in run.scenario.cluster.owners]
    parts = (*run.scenario_parts(OF_SERVING), run.scenario.seed)
    return run.fingerprint(PROFILE_SCHEMA, *parts, *sources, run.accuracy_path, *run.served_parts)


REFERENCE = "random"  # what the host's costs are measured with
OF_THE_MACHINE = ("system", "cores")


def with_decision_times(run: Run, experiment: Experiment, routers: Sequence[str]) -> Experiment:
    """Return the experiment with these routers' decision times, as measured here."""
    if experiment.scenario.router.decision_s != "measured" or all(
        profile.router_host is None for profile in experiment.profiles
    ):
        return experiment  # the user's own word, or costs that `random` is not part of
    recorded = run.folder.environments.get("serving")  # if this folder's own stage has measured what serving costs
    is_here = recorded is not None and _machine_of(recorded) == _machine_of(run.environment)
    times = {}
    for router in dict.fromkeys(routers):
        name = display_name(router)
        path = run.folder / f"decisions/{plain_name(name)}.json"
        if name != REFERENCE and _make(run, experiment, router, path, is_here):
            times[name] = read_decision_time(path, name).beyond_s
    return experiment.with_decision_times(times)


def _make(run: Run, experiment: Experiment, router: str, path: Path, is_here: bool) -> bool:
    """Run one stage; returns whether its file exists now."""
    name, seed = display_name(router), run.scenario.seed
    stage = f"decide-{plain_name(name)}"
    fingerprint = run.fingerprint(*run.experiment_parts(), *run.router_parts([router]), seed)
    if not is_here and not run.folder.is_done(stage, fingerprint):
        return False

    def work() -> Sequence[Path]:
        time = measure_decisions(experiment, name, lambda: experiment.router(router, run.folder.path), seed)
        write_json(path, time.model_dump(mode="json", by_alias=True))
        if (beyond_us := round(1e6 * time.beyond_s)) > 0:
            run.say(f"{stage}: {beyond_us} us a decision beyond {REFERENCE}'s")
        return [path]

    run.stage(stage, fingerprint, work)
    return True


def _machine_of(recorded: dict[str, Any]) -> list[Any]:
    devices = [device.get("name") for device in recorded.get("devices", []) if isinstance(device, dict)]
    return [*(recorded.get(name) for name in OF_THE_MACHINE), devices]
