"""The stages `decide-ROUTER`: what each router's own decisions take on this host, for simulations to charge.

They are made if serving was measured on this machine, in this run folder; what was measured before is taken as it is,
wherever the folder is now. Simulations elsewhere charge the times in the scenario and the profiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.documents import write_json
from scenarios.files.decision_times import read_decision_time
from scenarios.files.router_names import display_name
from scenarios.job.context import Run
from scenarios.runs.records import plain_name
from scenarios.world.world import World

REFERENCE = "random"  # what the host's costs are measured with
OF_THE_MACHINE = ("system", "cores")


def with_decision_times(run: Run, world: World, routers: Sequence[str]) -> World:
    """Return the world in which each of these routers' decisions take their time measured here, if that is known."""
    if world.scenario.router.decision_s != "measured" or all(p.router_host is None for p in world.profiles):
        return world  # the user's own word, or costs that `random` is not part of
    noted = run.folder.environments.get("serving")  # if this folder's own stage has measured what serving costs
    is_here = noted is not None and _machine_of(noted) == _machine_of(run.environment)
    times = {}
    for router in dict.fromkeys(routers):
        name = display_name(router)
        path = run.folder / f"decisions/{plain_name(name)}.json"
        if name != REFERENCE and _make(run, world, router, path, is_here):
            times[name] = read_decision_time(path, name).beyond_s
    return world.with_decision_times(times)


def _make(run: Run, world: World, router: str, path: Path, is_here: bool) -> bool:
    """Run one stage; returns whether its file is there now."""
    name, seed = display_name(router), run.scenario.seed
    stage = f"decide-{plain_name(name)}"
    fingerprint = run.fingerprint(*run.world_parts(), *run.router_parts([router]), seed)
    if not is_here and not run.folder.is_done(stage, fingerprint):
        return False

    def work() -> Sequence[Path]:
        from scenarios.executors.deciding import measure_decisions  # opens torch, which a comparison does not need

        time = measure_decisions(world, name, lambda: world.router(router, run.folder.path), seed)
        write_json(path, time.model_dump(mode="json", by_alias=True))
        if (beyond_us := round(1e6 * time.beyond_s)) > 0:
            run.say(f"{stage}: {beyond_us} us a decision beyond {REFERENCE}'s")
        return [path]

    run.stage(stage, fingerprint, work)
    return True


def _machine_of(found: dict[str, Any]) -> list[Any]:
    devices = [device.get("name") for device in found.get("devices", []) if isinstance(device, dict)]
    return [*(found.get(name) for name in OF_THE_MACHINE), devices]
