"""A tiny main scenario with tuned routers beside it, as tuning would leave them now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.study.tuned_files import note_failure
from policies.rules.compass import CompassRule
from policies.rules.specs import LadderRule, RuleSpec
from scenarios.files.router_names import write_rule
from scenarios.learn.tuned_files import world_of_now
from scenarios.world.materials import load_world
from tests.scenarios.files import write_scenario

RULE = LadderRule(rungs=((1.0, 1.0), (0.5, 1.0)), thresholds=(8.0,))
WORLD = ("devices", "deciding", "load")  # what a router's file says of the world that it was tuned in


def write_case(folder: Path, name: str = "main-tiny", **changes: Any) -> Path:
    """A scenario with a tuned ladder and a tuned Compass beside it."""
    document = yaml.safe_load(write_scenario(folder).read_text())
    (folder / "tiny.yaml").unlink()
    workload = {"kind": "mmpp", "rate_img_s": 200, "burst_factor": 2, "burst_share": 0.3, "dwell_s": 0.2}
    document |= {"name": name, "workload": workload, "tuning": {"floor": 0.8}, "warmup_s": 0, **changes}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    write_tuned(path, "ladder")
    write_tuned(path, "compass")
    return path


def write_tuned(
    path: Path,
    kind: str,
    told: Mapping[str, Any] | None = None,
    rule: RuleSpec | None = None,
    changes: Mapping[str, Any] | None = None,
) -> None:
    """A tuned rule, or a note that there is none, as tuning would leave it now, but for the changes."""
    world = load_world(path)
    changed = dict(changes or {})
    settings = {"tuning.floor": "0.8", "tuning.decisions": "40000000", "tuning.searches": "1", "seed": "0"} | changed
    words = " ".join(f"--set {name}={value}" for name, value in settings.items() if name not in WORLD)
    command = f"slimsched train {path.name} --router {kind} {words}"
    place = path.parent / "data/routers" / path.stem
    if kind == "milp":
        note_failure(place / "milp.rule.yaml", "no setting keeps the floor", command)
        return
    making = {"command": command, **world_of_now(world)}
    making |= {name: value for name, value in changed.items() if name in making} | dict(told or {})
    rule = rule or (CompassRule(control=None) if kind == "compass" else RULE)
    write_rule(place / f"{kind}.rule.yaml", rule.model_copy(update={"made_by": making}))
