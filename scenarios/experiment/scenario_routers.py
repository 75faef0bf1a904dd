"""A scenario's routers, as objects that decide, and what its files were made with, compared with it now.

`MadeWith`: accuracies, profiles and routers are made once and read often. If a setting has changed meanwhile, the file
is refused; it is never used with the old numbers. A file that does not record a setting is taken as it is: it was
brought from elsewhere. Seeds are left out: with another seed the same thing would only be drawn again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hw.networks.accuracy_table import network_settings
from hw.networks.datasets import dataset_label
from kit.checkpoint import header
from kit.documents import inputs_hash, with_remedy
from kit.errors import InputError
from kit.strict import named_files, with_paths
from policies.interfaces import RouterConfig, RoutingPolicy
from policies.router_kinds import COMPASS, CONTROLLED
from policies.router_names import make_router, parse_router_name
from policies.rules.lookahead import LookaheadRule
from policies.rules.rule_context import RouterContext
from policies.rules.rule_params import LadderRule, RouterSpec
from policies.vocabulary import NS_PER_S
from scenarios.files.bundled_files import made_file, made_kind
from scenarios.files.router_files import code_of, made_by, read_router, router_file, spec_of
from scenarios.files.scenario_keys import DeviceSection, Scenario, ServerSection
from sim.simulated_cluster import ClusterSpec

if TYPE_CHECKING:
    from hw.networks.accuracy_table import Evaluation
    from sim.device_profile import Profile


MADE_WITH: Final = "made_with"  # of what a router's file records of its making: see `of_router`
USUAL_MICRO_BATCH: Final = 16  # images
ALIKE: Final = 1.5  # times as expensive, and a decision costs about the same


def require_routers(scenario: Scenario, segments: int, widths: tuple[float, ...]) -> None:
    """Check that routers' files that the scenario names are of its cluster.

    Raises:
        InputError: one is of another shape, or damaged.
    """
    servers = len(scenario.cluster.named_servers)
    fits = (((True,) * len(widths),) * segments,) * servers
    config = RouterConfig(segments, widths, fits, scenario.router.micro_batch_sizes)
    for router in (*scenario.compare.routers, *scenario.validate_.routers):
        if (path := router_file(router)) is not None:
            read_router(path).check(config, router)


def deciding_in(cluster: ClusterSpec) -> dict[str, float]:
    """Return a decision's cost in a cluster, the in-flight limit, the batching delay limit: rules depend on it."""
    host, config = cluster.host, cluster.router
    micro_batch_ns, image_ns = (0, 0) if host is None else host.decision
    return {
        "decision_s": (cluster.decision_ns + micro_batch_ns) / NS_PER_S,
        "image_s": image_ns / NS_PER_S,
        "outstanding_micro_batches": config.outstanding_micro_batches,
        "max_batching_delay_s": config.max_batching_delay_ns / NS_PER_S,
    }


def _is_another(tuned: Mapping[str, Any], current: Mapping[str, float]) -> bool:
    """Return whether a router was tuned for another way of deciding: no two calibrations agree on a decision's cost."""
    try:
        recorded = {name: float(tuned[name]) for name in current}
    except (KeyError, TypeError, ValueError):
        return False  # it is not recorded
    costs_s = sorted(each["decision_s"] + USUAL_MICRO_BATCH * each["image_s"] for each in (recorded, current))
    limits = ("outstanding_micro_batches", "max_batching_delay_s")
    return costs_s[1] > ALIKE * costs_s[0] or any(recorded[name] != current[name] for name in limits)


def _in_words(deciding: Mapping[str, float]) -> str:
    cost = f"{1e6 * deciding['decision_s']:.3g} us + {1e6 * deciding['image_s']:.3g} us an image a decision"
    micro_batches, delay_ms = deciding["outstanding_micro_batches"], 1e3 * deciding["max_batching_delay_s"]
    return f"{cost}, {micro_batches:g} micro-batches a server, batching delays of {delay_ms:g} ms"


def routers_tuned_elsewhere(routers: Sequence[str], devices: Sequence[str], cluster: ClusterSpec) -> Iterator[str]:
    """Yield a warning for each router's file that was tuned on another cluster, as far as it records that.

    It fits, but its numbers were found elsewhere. (What PPO learned fits no other cluster, and is refused.)
    """
    for name in dict.fromkeys(routers):
        origin = made_by(path) if (path := router_file(name)) is not None else {}
        tuned = origin.get("devices")
        deciding, current = origin.get("deciding"), deciding_in(cluster)
        if isinstance(tuned, list) and tuned != list(devices):
            servers = f"{', '.join(map(str, tuned)):.300}; here: {', '.join(devices):.300}"
            yield f"warning: {name} was tuned for other servers ({servers}); tune it here as well"
        elif isinstance(deciding, Mapping) and _is_another(deciding, current):
            costs = f"{_in_words(deciding)}; here: {_in_words(current)}"
            yield f"warning: {name} was tuned for another way of deciding ({costs}); tune it here as well"


def routers_ignoring_goals(routers: Sequence[str], scenario: Scenario, made_in: Path) -> Iterator[str]:
    """Yield a warning for routers that don't follow what the operator asks for.

    A constant promise causes no warning: results are compared with it. `made_in`: as for `maker_of`.
    """
    asked_for = scenario.slo.goals(scenario.tuning.floor)
    goals = [
        goal for goal in ("floor", "p99_limit_s", "energy_weight") if any(getattr(each, goal) for each in asked_for)
    ]
    if scenario.slo.schedule or "energy_weight" in goals:
        yield from routers_ignoring(goals, routers, made_in)


def routers_ignoring(goals: Sequence[str], routers: Sequence[str], made_in: Path) -> Iterator[str]:
    """Yield a warning for routers that don't follow some of these goals of the operator's (names of keys in `slo`)."""
    names_by_ignored: dict[tuple[str, ...], list[str]] = {}
    for name in dict.fromkeys(routers):
        names_by_ignored.setdefault(_ignored(spec_of(name, made_in), goals), []).append(name)
    for ignored, names in names_by_ignored.items():
        if ignored:
            kinds = (COMPASS,) if "energy_weight" in ignored else CONTROLLED
            keys, capable = ", ".join(f"slo.{goal}" for goal in ignored), ", ".join(kinds)
            remedy = f"what can is {capable}, with `control` in the router's file (tuning.control)"
            yield f"warning: {', '.join(names)} can't follow {keys}; {remedy}"


def _ignored(spec: RouterSpec, goals: Sequence[str]) -> tuple[str, ...]:
    """Return all goals without `control`; otherwise the router's own, and joules if it has none."""
    control = getattr(spec, "control", None)
    if control is None:
        return tuple(goals)
    joules = ("energy_weight",) if isinstance(spec, LadderRule | LookaheadRule) else ()
    return tuple(goal for goal in goals if goal in joules or getattr(control, goal) is not None)


@dataclass(frozen=True, slots=True)
class RouterMaker:
    """What makes a scenario's router: a value that needs no file, so that it can travel to other machines.

    Attributes:
        name: as the scenario has it.
        source, key: where the name is, for messages; of a router that was read from a file, the file.
        spec: what the file held; None if the name is enough.
        code: of a user's class (`code_of`), which is to be the same wherever routers are made; empty: not looked at.
    """

    name: str
    source: str
    key: str = ""
    spec: RouterSpec | None = None
    code: str = ""

    def make(self, context: RouterContext) -> RoutingPolicy:
        """Make a fresh router; raises `InputError` if it does not fit, or a user's class is missing or another one."""
        if self.spec is not None:
            return self.spec.make(context, self.source)
        if self.code:
            _require_code(self.name, self.source, self.code)
        return make_router(self.name, context, self.source, self.key)

    def dialled(self, by: float, context: RouterContext) -> RouterMaker | None:
        """Return the same with its dial set (`RouterSpec.dialled`); None if it has none."""
        spec = self.spec or parse_router_name(self.name, self.source, self.key)
        dialled = spec.dialled(by, context)
        return None if dialled is None else replace(self, spec=dialled)


@cache  # once in a process, which has imported it then
def _require_code(name: str, source: str, code: str) -> None:
    if code_of(name, source) != code:
        raise InputError(source, "routers", f"{name!r} is other code here than on the requesting host; copy it again")


def maker_of(name: str, scenario: Scenario, devices: Sequence[str], made_in: Path | None, key: str) -> RouterMaker:
    """Return a router's maker by its name in a scenario, its file read; raises `InputError` if it can't be made."""
    if (kind := made_kind(name)) is not None:
        path = None if made_in is None else made_in / made_file(kind)
        if path is None or not path.is_file():
            remedy = f"`slimsched train SCENARIO --router {kind}` does it"
            raise InputError(scenario.name, key, f"{name}: not made yet for this scenario; {remedy}")
        with with_remedy("`slimsched train` makes it again"):
            spec = read_router(path, deterministic=scenario.training.deterministic, devices=devices)
        return RouterMaker(name, str(path), spec=spec)
    if (path := router_file(name)) is not None:  # it has its own mode
        return RouterMaker(name, str(path), spec=read_router(path, devices=devices))
    return RouterMaker(name, scenario.name, key)


MadeWith = dict[str, str]
"""A setting's key, or what else was read, and its value in words."""

OF_AN_EXPERIMENT: Final = (
    *("cluster", "router", "workload", "faults", "supervision", "deadline_s", "shed", "classes", "reward", "jitter"),
    "end",
)
"""The parts of a scenario that every simulation reads."""
_PLAYED: Final = {"emulated", "slowdown"}  # by a device without measurements
_WATCHED: Final = {"device", "checkpoint_epochs", "probe_epochs"}  # where and how often, not what


def of_network(scenario: Scenario) -> MadeWith:
    """Return the network that the scenario names, and a user's code; empty if it names none."""
    section = scenario.model
    if section.network is None:
        return {}
    return network_settings(section.network, section.options, scenario.name, "model.network")


def of_accuracy(scenario: Scenario) -> MadeWith:
    """Return what an accuracy table depends on: network, images, and the network's training if that is done here."""
    section, origin = scenario.model, of_network(scenario)
    if section.accuracy is None or "dataset" in section.model_fields_set:  # a table that is brought may be of any other
        try:
            origin["model.dataset"] = dataset_label(section.dataset)
        except InputError as error:
            raise InputError(scenario.name, f"model.{error.key}", error.problem) from None
    if section.checkpoint is None:
        training = section.training.model_dump(mode="json", exclude_none=True, exclude=_WATCHED)
        origin |= _flat("model.training", training)
    return origin


def of_profile(scenario: Scenario, server: ServerSection) -> MadeWith:
    """Return what a device's calibration depends on: network, budget, and the scenario's keys of the device."""
    device = server.device or DeviceSection()
    settings = device.model_dump(mode="json", exclude_none=True, exclude=_PLAYED)
    budget = {"calibration.budget": f"{scenario.calibration.budget:g} s"}
    return of_network(scenario) | budget | _flat(f"cluster.servers.{server.name}.device", settings)


def of_router(
    scenario: Scenario, profiles: Sequence[Profile], accuracies: Mapping[tuple[float, ...], float]
) -> MadeWith:
    """Return the experiment that a router is made for: load, cluster, profiles and accuracies; not how long it learned.

    Args:
        profiles: each server's.
        top1: accuracies by width tuple.
    """
    dumped = with_paths(scenario, lambda _: "").model_dump(
        mode="json", include=set(OF_AN_EXPERIMENT), exclude_defaults=True
    )
    origin = {key: value for part in dumped for key, value in _flat(part, dumped[part]).items()}
    origin |= {f"workload.{file.key}": inputs_hash(file.path)[:16] for file in named_files(scenario.workload)}
    for server, profile in zip(scenario.cluster.named_servers, profiles, strict=True):
        origin[f"the profile of {server.name}"] = inputs_hash(profile.model_dump_json(exclude_none=True))[:16]
    return origin | {"the accuracies": inputs_hash(sorted(accuracies.items()))[:16]}


def _flat(key: str, value: Any) -> MadeWith:
    """Flatten a section's settings into dotted keys; a list of plain values is one value."""
    if isinstance(value, Mapping):
        return {name: text for part in value for name, text in _flat(f"{key}.{part}", value[part]).items()}
    if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        return {name: text for index, each in enumerate(value) for name, text in _flat(f"{key}.{index}", each).items()}
    return {key: value if isinstance(value, str) else json.dumps(value)}


# ------------------------------------------------------------------------------------------------------------ refused


def require_same(
    path: Path, origin: Mapping[str, str] | None, settings: Mapping[str, str], remedy: str, *, is_brought: bool = False
) -> None:
    """Check that a file was made with the scenario's present settings.

    Args:
        is_brought: the scenario names it, so that only settings in both must agree.

    Raises:
        InputError: something differs; it names the file and the first such setting.
    """
    if not origin:
        return
    for key in {**settings, **origin}:
        recorded, current = origin.get(key), settings.get(key)
        if recorded != current and not (is_brought and None in (recorded, current)):
            texts = ("nothing" if each is None else f"{each:.200}" for each in (recorded, current))
            raise InputError(str(path), key, "made with {}, the scenario has {}; ".format(*texts) + remedy)


def require_weights(path: Path, model: Path, evaluation: Evaluation, remedy: str) -> None:
    """Check that an accuracy table is of the weights that are there, if some are.

    Raises:
        InputError: it is of others, or they can't be read.
    """
    if not model.is_file():
        return
    with with_remedy(remedy):
        stored = header(model).get("hash", evaluation.hash)
    if stored != evaluation.hash:
        raise InputError(str(path), "model", f"of the weights {evaluation.hash}, {model} has {stored}; {remedy}")
