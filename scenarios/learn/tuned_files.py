"""Files of tuned routers: where they go, what they say of their making, and how tuning starts from one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from policies.errors import InputError, nearest
from policies.tide import knobs as tide_knobs
from policies.tide.router import TideRouter
from scenarios.files.router_names import ROUTER_SUFFIX, RULE_SUFFIX, write_rule
from scenarios.learn.search import Reals
from scenarios.learn.spaces import KINDS, TuningKnobs
from scenarios.learn.tune import Tuned, natural_floor
from scenarios.world.world import World

FAILURE_SUFFIX: Final = ".failed.txt"


def knobs_of(world: World, arguments: Any) -> TuningKnobs:
    """The scenario's tuning settings, or what the flags say instead; raises `InputError` for an unknown switch."""
    given = world.scenario.tuning
    floor = arguments.floor if arguments.floor is not None else given.floor
    knobs = TuningKnobs(
        floor=0.0 if floor is None else floor,
        decisions=arguments.decisions or given.decisions,
        seed=arguments.seed,
        episodes=given.episodes,
        episode_s=given.episode_s,
        levels=given.levels,
        without=_switches(arguments.router, arguments.without),
    )
    return knobs if floor is not None else replace(knobs, floor=natural_floor(world, knobs))


def _switches(kind: str, without: Sequence[str]) -> tuple[str, ...]:
    if without and kind != tide_knobs.KIND:
        raise InputError("--without", "", f"only tide has something to switch off; {kind!r} has not")
    for switch in without:
        if switch not in tide_knobs.SWITCHES:
            raise InputError("--without", "", f"no switch {switch!r}; {nearest(switch, tide_knobs.SWITCHES)}")
    return tuple(without)


def tuned_path(out: Path | None, kind: str) -> Path:
    """Where a tuned router goes.

    Raises:
        InputError: nothing of that kind is tuned; the file could not be read back.
    """
    if kind not in KINDS:
        raise InputError("--router", "", f"{kind!r} can't be tuned; {nearest(kind, KINDS)}")
    ending = ROUTER_SUFFIX if kind == tide_knobs.KIND else RULE_SUFFIX
    path = out or Path(f"{kind}{ending}")
    if not path.name.endswith(ending):
        raise InputError("--out", "", f"{path}: the file of a tuned {kind} ends with {ending}")
    return path


def failure_path(path: Path) -> Path:
    """Beside where a router would lie: why there is none."""
    ending = next((each for each in (ROUTER_SUFFIX, RULE_SUFFIX) if path.name.endswith(each)), path.suffix)
    return path.with_name(path.name.removesuffix(ending) + FAILURE_SUFFIX)


def read_start(path: Path, world: World, kind: str) -> Reals:
    """The numbers of a Tide that was trained before."""
    if kind != tide_knobs.KIND:
        raise InputError("--start", "", "only tide can begin with a file")
    return TideRouter.load(path, world.context).values


def save_tuned(
    found: Tuned,
    world: World,
    knobs: TuningKnobs,
    path: Path,
    scenario: Path,
    *,
    start: str | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Write the router with how it was made (`start`: from which file; `seconds`: in how long); what is reported."""
    without = "".join(f" --without {switch}" for switch in knobs.without)
    command = f"slimsched tune scenarios/{scenario.name} --router {found.kind} --floor {knobs.floor:g}"
    made_by = {
        "command": f"{command} --decisions {knobs.decisions} --seed {knobs.seed}{without}"
        + (f" --start {start}" if start else ""),
        "floor": knobs.floor,
        "decisions": found.decisions,
        "level_decisions": found.level_decisions,
        "origin": found.origin,
        "wall_s": None if seconds is None else round(seconds, 1),
        "accuracy": round(found.accuracy, 6),
        "latency_mean_s": round(found.mean_s, 6),
        "latency_p99_s": round(found.p99_s, 6),
    }
    failure_path(path).unlink(missing_ok=True)
    if found.spec is None:
        router = found.router()
        assert isinstance(router, TideRouter)
        router.save(path, made_by)
    else:
        write_rule(path, replace(found.spec, made_by=made_by))
    return {"schema": "slimsched.tuned/1", "router": found.kind, "scenario": world.scenario.name, **made_by}
