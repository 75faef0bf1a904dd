"""What to run where."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kit.errors import InputError
from scenarios.metrics.plan import Plan
from slimsched.arguments import (
    Changes,
    Out,
    Routers,
    Scenario,
    ScenarioLike,
    changes_of,
)
from slimsched.simulating import CAPACITY_RUNS
from slimsched.working import (
    announcing_compilation,
    begin,
    observer,
    ready_engine,
    tell_overload,
    verb,
    with_routers,
)

if TYPE_CHECKING:
    from scenarios.job.context import Run
    from scenarios.metrics.slo import Slo
    from scenarios.runs.folder import RunFolder
    from scenarios.world.world import World

CARRIED_S: Final = 20.0
SEEDS: Final = 3  # of the comparison's


@verb
def plan(
    scenario: ScenarioLike,
    /,
    routers: Routers = (),
    *,
    out: Out = None,
    changes: Changes | None = None,
) -> Plan:
    """Tell what to run where, how much that carries, and what comes of more load or a loss.

    Routers stand beside plain replication: every image at full width, or at the one width tuple that keeps the floor
    and carries most. All of it is simulated: under the scenario's own load, and for what is carried under Poisson
    arrivals, as `capacity` does, in runs of 20 s, or of the scenario's length where that is shorter. What is to be
    kept is the scenario's `slo`; a floor that it does not name is the untuned ladder's accuracy.

    Args:
        scenario: a scenario's file (YAML), or a shipped one by name; or what `load` returned.
        routers: by name or file, instead of the scenario's (`compare.routers`); may be given several times. The kinds
            that keep goals are always tried, as they are before tuning.
        out: the run folder whose network, profiles and routers are taken, and where the rule to run is written if it
            has no file yet; `runs/NAME` by default.
        changes: other values than the scenario's, by dotted keys, such as slo.floor=0.75. Of `compare.seeds` the first
            three are taken.

    Raises:
        InputError: no such scenario or router, or something that it needs is missing.

    Example:
        ```python
        what = slimsched.plan(short, ["jsq"])
        print(what.choice, [(server.server, round(server.share, 2)) for server in what.servers])
        ```
    """
    from scenarios.files.router_names import display_name, require_distinct_names
    from scenarios.metrics.prediction import NEW_RUNS
    from scenarios.runs import planning
    from scenarios.terminal.progress import Progress

    run = with_routers(begin(scenario, changes, out), "compare", routers)
    given = run.scenario
    if given.classes:
        remedy = "`slimsched capacity` tells what each router carries, class by class"
        raise InputError(given.name, "classes", f"a plan knows no classes of requests; {remedy}")
    world = run.world()
    named = tuple(map(str, given.compare.routers))
    require_distinct_names(named)
    chosen_seeds = given.compare.seeds[:SEEDS]
    slo = _slo_of(world)
    if doubt := planning.floor_doubt(world, slo):
        observer().remark(f"warning: {doubt}")
    candidates, unmade = planning.candidates(world, slo, named, run.folder.path)
    runs = CAPACITY_RUNS * len(candidates) * len(chosen_seeds) + NEW_RUNS
    engine = ready_engine(world, "auto", runs, chosen_seeds[0])
    tell_overload(world)
    steps = planning.steps_of(world, len(candidates), len(chosen_seeds))
    with (
        nullcontext() if run.folder.is_in_use else run.opened(),  # a `serve` may be in progress there
        announcing_compilation(named, engine),
        Progress("plan", steps, unit="step", quiet=observer().quiet) as progress,
    ):
        trial = planning.Trial(world, slo, chosen_seeds, engine, min(CARRIED_S, given.duration_s), progress.update)
        found = replace(
            planning.plan(trial, candidates, unmade), unreliable=_unreliable(world), trusted=_trusted(run.folder)
        )
        found = _with_rule(found, run)
    router = str(found.file or {display_name(name): name for name in named}.get(found.choice or "", found.choice))
    commands = () if found.choice is None else _commands(run, _words(scenario, changes, out), router)
    return replace(found, commands=commands)


def _slo_of(world: World) -> Slo:
    """Return the scenario's SLO; with the untuned ladder's accuracy, if it names no floor."""
    from scenarios.learn.tune import knobs_of
    from scenarios.metrics.slo import Slo

    slo = Slo.of(world.scenario)
    if slo.floor is not None:
        return slo
    floor = knobs_of(world).floor
    observer().remark(f"no floor is named (slo.floor): the untuned ladder's is taken, {100 * (floor or 0):.1f} %")
    return replace(slo, floor=floor)


def _unreliable(world: World) -> tuple[str, ...]:
    """Return `Plan.unreliable`."""
    from scenarios.show.profile import unreliable

    owners = world.scenario.cluster.owners
    return tuple(server.name for server in owners if unreliable(world.profile_of(server.name)))


def _trusted(folder: RunFolder) -> tuple[str, ...]:
    """Return `Plan.trusted`."""
    from kit.documents import told_of
    from scenarios.show.answers import TRUSTED, answers

    files = ("comparison.json", "validation.json")
    comparison, validation = (folder.read_json(name) if (folder / name).exists() else None for name in files)
    with told_of(folder / "validation.json", folder.remedy("validation.json")):
        told = answers(comparison, validation) if validation else []
    return next((tuple(each.lines) for each in told if each.label == TRUSTED), ())


def _with_rule(plan: Plan, run: Run) -> Plan:
    """Write the rule of a choice that has no file yet."""
    from policies.names import rule_from_dict
    from scenarios.files.made_routers import planned_file
    from scenarios.files.router_names import write_rule

    chosen = plan.of(plan.choice)
    if chosen is None or chosen.rule is None:
        return plan
    file = run.folder / planned_file(chosen.router)
    write_rule(file, rule_from_dict(chosen.rule, str(file)))
    return replace(plan, file=file)


def _commands(run: Run, words: Sequence[str], router: str) -> tuple[str, ...]:
    """Return what to type to continue with a router; executors serve if each server has a device."""
    verbs = ("simulate", "serve") if run.can_validate else ("simulate",)
    scenario, *rest = words
    return tuple(shlex.join(["slimsched", verb, scenario, "--router", router, *rest]) for verb in verbs)


def _words(scenario: ScenarioLike, changes: Mapping[str, Any] | None, out: Out) -> list[str]:
    """Return a scenario with its changes and its run folder, as commands take them."""
    path, other = scenario, changes_of(changes)
    if isinstance(scenario, Scenario):
        path, other = scenario.path, json.loads(scenario.changed or "{}")
    texts = {key: value if isinstance(value, str) else json.dumps(value, default=str) for key, value in other.items()}
    sets = [word for key, text in texts.items() for word in ("--set", f"{key}={text}")]
    return [str(path), *sets, *([] if out is None else ["--out", str(out)])]
