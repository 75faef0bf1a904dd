"""The stages `calibrate-SERVER` and `serving`: what the devices are, and what serving on this host costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calibrate.calibration import Calibration
from calibrate.log import require_log
from hw.datasets import load_dataset
from hw.device import DeviceSpec
from policies.errors import InputError
from scenarios.executors.calibrate import calibrate_device
from scenarios.executors.devices import device_of
from scenarios.executors.serving import measure_serving, with_overheads
from scenarios.files.documents import inputs_hash, read_text
from scenarios.files.reading import read_profile
from scenarios.files.shipped import profile_file
from scenarios.files.spec import ServerSection
from scenarios.job.job import Job
from scenarios.job.network import blamed_on
from scenarios.world.materials import calibrated_path, profile_path


def make_profiles(job: Job) -> None:
    """Calibrate every device whose server names no profile."""
    servers = job.scenario.cluster.named_servers
    for server in servers:
        if server.shares_device_with is not None:
            continue
        target = profile_path(job.folder.path, server.name)
        job.folder.require_free(target)
        if server.profile is not None:
            _copy(job, profile_file(server.profile), target)  # the folder tells the whole run
            continue
        _calibrate(job, server, target)
        _restore(job, server, target)


def _copy(job: Job, given: Path, target: Path) -> None:
    text = read_text(given)
    if not (target.is_file() and target.read_bytes() == text.encode()):
        job.folder.write_text(target, text)


def _restore(job: Job, server: ServerSection, target: Path) -> None:
    """From the profile as it was calibrated, where the one with what serving costs is missing or can't be read."""
    if not job.folder.drop_damaged(target, read_profile) and target.exists():
        return
    job.say(f"calibrate-{server.name}: {target.name} is made again from what was calibrated")
    _copy(job, calibrated_path(job.folder.path, server.name), target)


def _is_readable(profile: Path) -> bool:
    """Profiles are edited by hand, so what reads as one is taken as the user's."""
    try:
        read_profile(profile)
    except InputError:
        return False
    return True


def _calibrate(job: Job, server: ServerSection, target: Path) -> None:
    scenario = job.scenario
    device = device_of(server, scenario.cluster.named_servers)
    peer = _peer_of(job, server)
    limit = max(
        scenario.cluster.greedy_of(s).batch_limit
        for s in scenario.cluster.named_servers
        if server.name in (s.name, s.shares_device_with)
    )
    budget_s = scenario.calibration.budget
    fingerprint = inputs_hash(repr(device), repr(peer), limit, budget_s, job.model.path, job.code_hash)

    def work() -> Sequence[Path]:
        log_path = job.folder.working(job.folder / "calibration" / f"{server.name}-{fingerprint[:12]}.jsonl")
        job.folder.drop_damaged(log_path, require_log)
        wanted = Calibration(
            job.model,
            device,
            budget_s=budget_s,
            batch_limit=limit,
            log_path=log_path,
            seed=scenario.seed,
            peer=peer,
            name=server.name,
            allow_busy=scenario.calibration.allow_busy,
        )
        key = (scenario.name, "calibration.budget")
        profile = calibrate_device(wanted, quiet=job.quiet, say=job.say, budget_key=key)
        job.folder.write_text(target, profile.to_yaml())
        job.folder.write_text(calibrated_path(job.folder.path, server.name), profile.to_yaml())
        return [calibrated_path(job.folder.path, server.name)]

    job.stage(f"calibrate-{server.name}", fingerprint, work)


def _peer_of(job: Job, server: ServerSection) -> DeviceSpec | None:
    """Another real server to measure the link to, on a machine that has one."""
    servers = job.scenario.cluster.named_servers
    others = [s for s in servers if s.name != server.name and s.device is not None]
    return device_of(others[0], servers) if others else device_of(server, servers)


def make_serving(job: Job) -> None:
    """What serving costs on this host, into the profiles that were made here (the calibrated ones are kept)."""
    servers = [s for s in job.scenario.cluster.named_servers if s.shares_device_with is None]
    if not job.can_validate or any(server.profile is not None for server in servers):
        return
    paths = [profile_path(job.folder.path, server.name) for server in servers]
    sources = [calibrated_path(job.folder.path, server.name) for server in servers]

    def work() -> Sequence[Path]:
        for source, path in zip(sources, paths, strict=True):
            job.folder.write_text(path, read_text(source))
        world = job.world()
        with blamed_on(job.scenario):
            images = load_dataset(job.scenario.model.dataset)
        overheads = measure_serving(
            world, job.model, images, job.scenario.seed, allow_busy=job.scenario.calibration.allow_busy, say=job.say
        )
        names = [server.name for server in job.scenario.cluster.named_servers]
        for server, path in zip(servers, paths, strict=True):
            profile = with_overheads(read_profile(path), overheads, names.index(server.name))
            job.folder.write_text(path, profile.to_yaml())
        return paths

    dumped = job.scenario.model_dump(mode="json")
    rate = [dumped["workload"], dumped["router"], dumped["cluster"]]
    job.stage("serving", inputs_hash(job.model.path, *sources, *rate), work, _is_readable)
