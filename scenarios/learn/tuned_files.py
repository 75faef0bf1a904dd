"""Files of tuned routers: where they go, and what they say of their making."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from kit.documents import read_text, write_text
from kit.errors import InputError, nearest
from kit.named_files import with_paths
from kit.strict import mapping
from policies.registry import TUNED
from policies.rules.controlled import ControlSpec
from policies.rules.lookahead import LookaheadRule
from policies.rules.specs import LadderRule, RuleSpec
from policies.rules.tide import TideRule
from scenarios.files.made_routers import RULE_SUFFIX
from scenarios.files.router_names import without_ending, write_rule
from scenarios.files.spec import Scenario
from scenarios.learn.knobs import TuningKnobs
from scenarios.learn.tune import Tuned
from scenarios.world.routers import deciding_in
from scenarios.world.world import World

FOLLOWING: Final = ControlSpec()
FAILURE_SUFFIX: Final = ".failed.txt"
_TUNED_BY: Final = re.compile(r"\((slimsched (?:tune|train) .*)\)\s*$")  # ends every note of a failure


def tuned_path(out: Path | None, kind: str) -> Path:
    """Where a tuned router goes.

    Raises:
        InputError: nothing of that kind is tuned; the file could not be read back.
    """
    if kind not in TUNED:
        raise InputError("--router", "", f"{kind!r} can't be tuned; {nearest(kind, TUNED)}")
    path = out or Path(f"{kind}{RULE_SUFFIX}")
    if not path.name.endswith(RULE_SUFFIX):
        raise InputError("--out", "", f"{path}: the file of a tuned {kind} ends with {RULE_SUFFIX}")
    return path


def require_tuned(path: Path) -> Path:
    """The path; raises `InputError` where a file would be replaced that tuning did not make, such as a rule by hand."""
    if path.is_file() and not _is_tuned(path):
        problem = "was not made by `slimsched train`; move it elsewhere, or name another file with --out"
        raise InputError(str(path), "", problem)
    return path


def _is_tuned(path: Path) -> bool:
    """As the file says; its other keys are not looked at."""
    try:
        told = mapping(read_text(path), str(path)).get("made_by")
    except InputError:
        return False
    return isinstance(told, dict) and "command" in told


def failure_path(path: Path) -> Path:
    """Beside where a router would lie: why there is none."""
    return path.with_name(without_ending(path.name) + FAILURE_SUFFIX)


def note_failure(path: Path, problem: str | None) -> None:
    """Write beside where a router would lie why there is none, or remove that; a file of the user's there stays."""
    place = failure_path(path)
    if place.exists() and failed_command(path) is None:
        return
    if problem is None:
        place.unlink(missing_ok=True)
    else:
        write_text(place, f"{problem}\n")


def failed_command(path: Path) -> str | None:
    """Which command could not tune it; None where the note is no such."""
    text = failure_path(path).read_text(encoding="utf-8", errors="replace").rstrip()
    found = _TUNED_BY.search(text)
    return None if found is None else found[1]


def with_control(spec: RuleSpec, control: ControlSpec = FOLLOWING) -> RuleSpec:
    """The same router, told to keep goals: those of the operator, if nothing else is said."""
    assert isinstance(spec, LadderRule | LookaheadRule | TideRule), "one of policies.registry.CONTROLLED"
    return spec.model_copy(update={"control": control})


def load_of(scenario: Scenario) -> dict[str, Any]:
    """What a router had to serve when it was tuned; files by their names alone."""
    named = with_paths(scenario, lambda path: Path(path).name)
    return named.model_dump(mode="json", include={"workload", "faults", "duration_s"}, exclude_defaults=True)


def save_tuned(
    found: Tuned, world: World, knobs: TuningKnobs, path: Path, command: str, *, seconds: float | None = None
) -> dict[str, Any]:
    """Write the router with how it was made (by which `command`, in how many `seconds`); what is reported."""
    making = {
        "command": command,
        "devices": list(world.device_names),
        "deciding": deciding_in(world.cluster),
        "load": load_of(world.scenario),
        "floor": knobs.floor,
        "decisions": found.spent.search,
        "settings_decisions": found.spent.settings,
        "level_decisions": found.spent.levelling,
        "race_decisions": found.spent.race,
        "decisions_in_all": found.spent.in_all,
        "searches": found.searches,
        "race": [each.told for each in found.race],
        "winner": found.winner.name,
        "origin": found.winner.origin,
        "wall_s": None if seconds is None else round(seconds, 1),
        "accuracy": round(found.figures.accuracy, 6),
        "latency_mean_s": round(found.figures.mean_s, 6),
        "latency_p99_s": round(found.figures.p99_s, 6),
        "objective": knobs.objective,
        "p99_limit_s": knobs.p99_limit_s,
        "image_j": round(found.figures.image_j, 6),
        "unserved": round(found.figures.unserved, 6),
    }
    note_failure(path, None)
    write_rule(path, found.spec.model_copy(update={"made_by": making}))
    return {"schema": "slimsched.tuned/1", "router": found.kind, "scenario": world.scenario.name, **making}
