"""One device measured, here or on another host, with words before and progress meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from calibrate.calibration import CalibrationRequest
from calibrate.log import Log
from calibrate.plan import CalibrationPlan
from calibrate.probe import device_name
from calibrate.session import CalibrationObserver, calibrate
from hw.ray.host import cache, kept
from kit.chance import derived_seed
from scenarios.executors.announce import announcement, require_budget
from scenarios.executors.devices import candidates, device_of, section_of
from scenarios.executors.hosts import host_key, joined_hosts
from scenarios.files.spec import Scenario, ServerSection
from scenarios.show.table import facts, to_text
from scenarios.terminal.progress import Progress, Say
from sim.profile import Profile


def calibrate_device(
    wanted: CalibrationRequest,
    *,
    quiet: bool,
    say: Say = lambda _: None,
    budget_key: tuple[str, str] = ("--budget", ""),
    reserved_s: float = 0.0,
) -> Profile:
    """Measure one device; its log lets an interrupted calibration resume.

    Args:
        wanted: its seed is the run's; the calibration's own comes from it and from the name.
        say: called, before anything is measured, with what will be done and what it costs.
        budget_key: origin of the budget, for the message that it is too small.
        reserved_s: what was taken off the budget that the user gave, reported together with it.
    """
    name, kind = wanted.name, wanted.device.kind
    log_path = wanted.log_path
    progress = Progress(f"calibrate {name}", None, unit="point", quiet=quiet)

    def announce(plan: CalibrationPlan, log: Log) -> None:
        require_budget(plan, log, wanted.budget_s, *budget_key, kind)
        lines = announcement(plan, log, budget_s=wanted.budget_s, kind=kind, reserved_s=reserved_s)
        say(f"calibrate {name}: {device_name(wanted.device)}\n{to_text([facts(lines)])}")
        progress.note = f" ({sum(planned.required for planned in plan.steps)} in any case)"
        begun.enter_context(progress)

    observer = CalibrationObserver(
        on_warning=lambda text: say(f"calibrate {name}: {text}"),
        on_plan=announce,
        on_progress=lambda state: progress.set(state.done, state.total, state.left_s),
    )
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as begun:
        return calibrate(replace(wanted, seed=derived_seed(wanted.seed, f"calibrate:{name}")), observer)


def calibrate_on_host(scenario: Scenario, server: ServerSection, wanted: CalibrationRequest, say: Say) -> Profile:
    """Measure the device of a server of a cluster, on its host.

    The network's file is sent there. An interrupted calibration resumes from the log that is kept there.
    """
    section, key = scenario.cluster, host_key(scenario.cluster, server)
    with joined_hosts(section, scenario.name) as hosts:
        host = section.host_of(server) or hosts.here
        hosts.facts_of(host, key)
        say(f"calibrate {server.name}: on host {host}, for about {wanted.budget_s:.0f} s")
        there = replace(wanted, log_path=Path(wanted.log_path.name))
        text, lines = hosts.ask(
            host, key, calibrated_there, there, wanted.file.path.read_bytes(), server, section.named_servers
        )
    for line in lines:
        say(line)
    return Profile.from_yaml(text, f"host {host}")


def calibrated_there(
    wanted: CalibrationRequest, model: bytes, server: ServerSection, servers: Sequence[ServerSection]
) -> tuple[str, list[str]]:
    """Calibrate on the host; returns the profile as YAML, and the messages."""
    section, lines = section_of(server, servers), list[str]()
    device = device_of(server, servers)
    here = replace(
        wanted,
        file=replace(wanted.file, path=kept(model)),
        device=device,
        peer=device,
        candidates=candidates(device, section),
        log_path=cache() / "calibrations" / wanted.log_path,
    )
    profile = calibrate_device(here, quiet=True, say=lines.append)
    here.log_path.unlink(missing_ok=True)
    return profile.to_yaml(), lines
