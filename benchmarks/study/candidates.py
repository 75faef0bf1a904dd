"""Which scenarios the results are of, which routers run in each, and what is missing. It runs nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.grid import ROOT
from benchmarks.study.paper import is_replica
from benchmarks.study.tuned_files import failure_path, why_tune
from kit.documents import inputs_hash
from kit.errors import InputError, nearest
from kit.named_files import with_paths
from policies.interfaces import RoutingPolicy
from policies.registry import BASELINES, COMPASS, CONTROLLED
from policies.rules.specs import LARGEST, FixedRule, LadderRule
from scenarios.files.made_routers import ROUTER_SUFFIX, RULE_SUFFIX
from scenarios.files.reading import load_scenario
from scenarios.files.router_names import display_name, made_by, read_rule
from scenarios.files.spec import PoissonWorkload, Scenario
from scenarios.learn.tune import knobs_of
from scenarios.learn.tuned_files import train_command, with_control
from scenarios.world.materials import default_folder, make_world
from scenarios.world.routers import RouterMaker
from scenarios.world.world import World

SCENARIOS: Final = ROOT / "scenarios"
ROUTERS: Final = Path("data") / "routers"  # from the scenarios' folder on
MAIN: Final = ("main-*.yaml", "memory-*.yaml", "mixed-links.yaml", "night.yaml")
PLACEMENTS: Final = ("jsq", "least-work", "shortest-delay", "sticky")  # that a tuned tuple is tried on
PPO_KINDS: Final = ("heavy", "relaxed", "latency")  # the paper's two weightings, and its ablation
BASELINE: Final = "random"
MIN_SEEDS: Final = 10
OVERLOADED_S: Final = 0.1  # with this mean latency a tuned tuple does not carry the load; it is not placed otherwise

LEARNED, TUNED, PLACED, PLAIN = "learned", "tuned", "tuned tuple, placed by", "not tuned"
TOLD: Final = "told its goals"
FINE_TUNED: Final = f"{COMPASS}, fine-tuned"  # for its scenario; without these words the one that ships
GROUPS: Final = (LEARNED, TUNED, TOLD, PLACED, PLAIN)  # in the order of the tables
FAULTS, MOVING, STATIONARY = LOADS = ("faults", "moving", "stationary")


@dataclass(frozen=True)
class Candidate:
    """A router in a scenario.

    Attributes:
        label: its name in the tables.
        group: one of `GROUPS`; in `TOLD` it keeps, while it serves, what the scenario promises.
        router: as `--router` takes it: a name, or a file.
        file: where it lies, if it is one.
    """

    label: str
    group: str
    router: str
    file: Path | None = None

    @property
    def name(self) -> str:
        """In its results, and of its random stream: what `slimsched compare` would call it."""
        return display_name(self.router)

    def maker(self, world: World) -> RouterMaker:
        """What makes such routers on any machine."""
        if self.group == TOLD and self.file is not None:
            return RouterMaker(self.router, self.router, spec=with_control(read_rule(self.file)))
        return world.router_maker(self.router)

    def make(self, world: World) -> RoutingPolicy:
        """A fresh router."""
        return self.maker(world).make(world.context)


def tuned_label(kind: str) -> str:
    """The label of a router of this kind that was tuned for its scenario."""
    return FINE_TUNED if kind == COMPASS else kind


def told(kind: str) -> str:
    """The label of a tuned router of this kind that is told its goals."""
    return f"{kind}, {TOLD}"


@dataclass(frozen=True)
class ScenarioCase:
    """A scenario with everything that runs in it.

    Attributes:
        missing: what should be here and isn't, or is stale and does not run, in words.
    """

    path: Path
    scenario: Scenario
    world: World
    candidates: tuple[Candidate, ...]
    missing: tuple[str, ...]
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        """The scenario's."""
        return self.scenario.name

    @property
    def is_paper(self) -> bool:
        """Whether it is the paper's experiment."""
        return is_replica(self.name)

    @property
    def load(self) -> str:
        """One of `LOADS`: whether servers or the rate change while it runs."""
        if self.scenario.faults:
            return FAULTS
        return STATIONARY if isinstance(self.scenario.workload, PoissonWorkload) else MOVING


def scenario_files(folder: Path, only: Collection[str] = ()) -> list[Path]:
    """The main scenarios, then the paper's; `only` names some of them.

    Raises:
        InputError: there are none, or one of `only` is none.
    """
    files = [path for pattern in (*MAIN, "paper*.yaml") for path in folder.glob(pattern)]
    by_name = {path.stem: path for path in sorted(files, key=lambda path: path.stem)}  # `paper` before what varies it
    if not by_name:
        raise InputError("--scenarios", "", f"{folder}: no {', '.join(MAIN)} and no paper*.yaml there")
    for name in only:
        if name not in by_name:
            raise InputError("--only", "", f"no scenario {name!r}; {nearest(name, by_name)}")
    return [path for name, path in by_name.items() if not only or name in only]


def read_case(path: Path, seeds: int | None = None) -> ScenarioCase:
    """A scenario with its routers, which lie in `data/routers/` beside it, and its first so many seeds.

    Raises:
        InputError: the scenario, or a router's file, is wrong; or it has fewer seeds.
    """
    scenario = load_scenario(path)
    world = make_world(scenario, default_folder(scenario))
    given = scenario.compare.seeds
    if seeds is not None and seeds > len(given):
        raise InputError("--seeds", "", f"{seeds}; {path.name} has {len(given)} (compare.seeds)")
    find = _paper_candidates if is_replica(scenario.name) else _main_candidates
    candidates, missing = find(path, world, path.parent / ROUTERS)
    if len(given) < MIN_SEEDS:
        missing.append(f"seeds: `compare.seeds` has {len(given)}, {MIN_SEEDS} are asked for")
    for candidate in candidates:
        candidate.make(world)  # what does not fit is told before anything runs
    return ScenarioCase(path, scenario, world, tuple(candidates), tuple(missing), given[:seeds])


def experiments(cases: Sequence[ScenarioCase]) -> list[ScenarioCase]:
    """Without those of the paper that differ from an earlier one in the reward alone: a router was trained on them."""
    by_key: dict[str, ScenarioCase] = {}
    for case in cases:
        given = case.scenario.model_dump(mode="json", exclude={"name", "reward", "training", "compare", "tuning"})
        by_key.setdefault(json.dumps(given, sort_keys=True) if case.is_paper else case.name, case)
    return list(by_key.values())


def state_of(scenario: Scenario, without: Collection[str] = ("validate_", "training")) -> str:
    """Fingerprint of a scenario's keys; files by their names alone, so that it is the same on every machine.

    Keys at their defaults count for nothing: a key that is new changes no scenario that does not use it. Nor do the
    routers of its comparison, which rows name themselves.
    """
    named = with_paths(scenario, lambda path: Path(path).name)
    rest: dict[str, Any] = {"compare": {"routers"}, **dict.fromkeys(without, True)}
    return inputs_hash(named.model_dump(mode="json", exclude=rest, exclude_defaults=True))[:16]


def _main_candidates(path: Path, world: World, routers: Path) -> tuple[list[Candidate], list[str]]:
    folder, knobs = routers / world.scenario.name, knobs_of(world)
    candidates = [Candidate(COMPASS, LEARNED, COMPASS)]
    tuned: dict[str, Path] = {}
    missing: list[str] = []
    for kind in (COMPASS, *BASELINES):
        file = tuned_file(folder, kind)
        failure = failure_path(file)
        if not (file.is_file() or failure.is_file()):
            missing.append(f"{kind}: no {_shown(file)} (`make routers`)")
        elif why := why_tune(file, train_command(str(path), kind, knobs), world):
            missing.append(f"{kind}: {_shown(file if file.is_file() else failure)} is stale (`make routers`): {why}")
        elif file.is_file():
            tuned[kind] = file
            candidates.append(Candidate(tuned_label(kind), LEARNED if kind == COMPASS else TUNED, str(file), file))
        else:
            candidates += [Candidate(f"{kind}, not tuned", PLAIN, kind)] if kind != COMPASS else []
            missing.append(failure.read_text(encoding="utf-8").strip())
    if None not in (world.scenario.slo.floor, world.scenario.slo.p99_limit_s):
        candidates += [
            Candidate(told(kind), TOLD, str(file), file) for kind, file in tuned.items() if kind in CONTROLLED
        ]
    if (fixed := tuned.get(FixedRule.KIND)) is not None:
        candidates += _placed(fixed) if made_by(fixed).get("latency_mean_s", 0.0) < OVERLOADED_S else ()
    else:
        missing.append(f"placements ({', '.join(PLACEMENTS)}): they run the tuned tuple, and there is none")
    plain = Candidate(f"{LadderRule.KIND}, not tuned", PLAIN, LadderRule.KIND)
    candidates += [plain] if plain not in candidates else []
    candidates.append(Candidate(BASELINE, PLAIN, BASELINE))
    return candidates, missing


def _placed(fixed: Path) -> Iterator[Candidate]:
    """The tuned tuple on every other placement; on its own it is the tuned rule `fixed`, and runs as that."""
    rule = read_rule(fixed)
    if not isinstance(rule, FixedRule) or rule.tuple_ is None:
        raise InputError(str(fixed), "kind", f"found {rule.KIND}; a `fixed` rule with a tuple is asked for here")
    widths = ",".join(f"{width:g}" for width in rule.tuple_)
    for placement in PLACEMENTS:
        if placement != rule.placement or rule.group != LARGEST:
            yield Candidate(placement, PLACED, f"fixed:{widths}@{placement}")


def _paper_candidates(_: Path, world: World, routers: Path) -> tuple[list[Candidate], list[str]]:
    config = world.cluster.router
    candidates = [Candidate(BASELINE, PLAIN, BASELINE)]
    for width in (config.widths[0], config.widths[-1]):
        name = f"fixed:{','.join([f'{width:g}'] * config.segments)}"
        candidates.append(Candidate(f"sticky at {width:g}", PLAIN, name))
    missing = []
    for kind in PPO_KINDS:
        file = routers / f"paper-{kind}{ROUTER_SUFFIX}"
        if file.is_file():
            candidates.append(Candidate(f"ppo-{kind}", LEARNED, str(file), file))
        else:
            missing.append(f"PPO, {kind}: no {_shown(file)}")
    return candidates, missing


def tuned_file(folder: Path, kind: str) -> Path:
    """Where a scenario's tuned router lies."""
    return folder / f"{kind}{RULE_SUFFIX}"


def _shown(file: Path) -> str:
    """From the routers' folder on, so that no path of a machine is on a page."""
    parts = file.parts
    at = max(place for place, part in enumerate(parts) if part == "routers")
    return f"`{'/'.join(parts[at:])}`"
