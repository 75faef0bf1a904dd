"""A rule decides the same whoever carries it out: Python on the reference, Python on the compiled engine, or its plan.

Records are compared to the last bit; so is what router and generator are left with, when Python and plan had the same
engine. That a plan really decided is seen from `plan_of`, which the engine asks, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from kit.errors import WorkError
from kit.random_streams import stream
from policies import router_plans
from policies.compiled import plan_layout as draws
from policies.faults import Crash, Slowness
from policies.interfaces import RoutingPolicy, limit_ns_of
from policies.router_names import make_router, rule_from_dict
from policies.router_plans import plan_of
from policies.rules.compass import CompassRule, Numbers
from policies.rules.lookahead import LookaheadRule
from policies.rules.proteus import MilpRule, make_milp
from policies.rules.published_rules import InfaasRule, SlackFit, SlackFitRule, make_variants
from policies.rules.rule_context import ComposedRouter, RouterContext, full_widths, path_energy_j
from policies.rules.rule_params import FixedRule, LadderRule, RuleSpec, holding
from policies.rules.rule_parts import (
    PLACEMENT_NAMES,
    ControlSpec,
    FixedWidths,
    Ladder,
    LargestMicroBatch,
    RandomMicroBatch,
    RandomPlacement,
    RandomWidth,
    RoundRobin,
    ShortestDelay,
    Sticky,
)
from policies.run_records import RunRecord
from policies.vocabulary import NS_PER_S, BatchingDelay, Choice, ClusterView
from sim.compiled.cluster_rows import Program, Shape, margin, message_margin
from sim.compiled.compiled_run import RunRow
from sim.compiled.compiled_simulation import CompiledSimulation
from sim.compiled.row_layout import REQUESTS_FULL
from sim.device_profile import Link
from sim.simulated_cluster import MatrixCorrectness, Simulation
from tests import tiny
from tests.parity.compare import difference
from tests.parity.draws import GivenDraws, SeededDraws
from tests.parity.mutants import Mutant, source_mutants
from tests.parity.scenarios import Scenario, draw_scenario, of_two_models, sampled, with_classes

MakeRouter = Callable[[Scenario, RouterContext], RoutingPolicy]

# Two to five servers that share devices, with faults, lossy links, deadlines, blocks of any location, one group size
# or six, and servers that can't hold everything.
SEEDS = (41, 54, 68, 114)
MADE = 3  # scenarios stand before the drawn ones


@dataclass
class Asked:
    """A router of the user's own, to the engine: it has no plan."""

    router: RoutingPolicy

    @property
    def p99_limit_ns(self) -> int:
        return limit_ns_of(self.router)

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | BatchingDelay:
        return self.router.choose(view, rng)


# ------------------------------------------------------------------------------------------------------------- routers


def narrow(context: RouterContext) -> tuple[float, ...]:
    widths = context.config.widths
    return tuple(widths[(2 * s + 1) % len(widths)] for s in range(context.config.segments))


def length_s(scenario: Scenario) -> float:
    return scenario.run.horizon_ns / NS_PER_S


def named(name: str) -> MakeRouter:
    return lambda scenario, context: make_router(name, context)


def fixed(placement: str) -> MakeRouter:
    return lambda scenario, context: FixedRule(placement=placement, tuple=narrow(context)).make(context)


def fixed_by_class(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    """A tuple for each class; of one class, all narrow."""
    config = context.config
    tuples = {
        name: (config.widths[at % len(config.widths)],) * config.segments for at, name in enumerate(config.classes)
    }
    rule = FixedRule(tuples=tuples) if tuples else FixedRule(tuple=(config.widths[0],) * config.segments)
    return rule.make(context)


def ladder(placement: str) -> MakeRouter:
    rule = LadderRule(placement=placement, thresholds=(1.0, 2.5, 4.0, 8.0))
    return lambda scenario, context: rule.make(context)


def slow_ladder(placement: str) -> MakeRouter:
    rule = LadderRule(placement=placement, thresholds=(1.0, 2.5, 4.0, 8.0), hysteresis=0.7)
    return lambda scenario, context: rule.make(context)


def two_ladders(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    """A placement that reckons with a ladder that comes back later than the router's."""
    widths = context.config.widths
    rungs = tuple((width,) * context.config.segments for width in widths[::-1])
    thresholds, classes = tuple(map(float, range(1, len(rungs)))), context.config.class_count
    one, other = (Ladder(widths, (rungs,) * classes, thresholds, share, [0] * classes) for share in (0.8, 0.3))
    return ComposedRouter(ShortestDelay(context.costs, one), other, LargestMicroBatch(context.config.micro_batch_sizes))


def controlled(placement: str) -> MakeRouter:
    """Goals are the operator's where there are any, else in the middle of the table and of what is usual."""

    def make(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
        control = own_goals(scenario, context)
        return LadderRule(placement=placement, thresholds=(1.0, 2.5, 4.0, 8.0), control=control).make(context)

    return make


def own_goals(scenario: Scenario, context: RouterContext) -> ControlSpec:
    if scenario.run.goals:
        return ControlSpec()
    limit_s = length_s(scenario) / 20
    return ControlSpec(floor=context.prior.mean_accuracy, p99_limit_s=limit_s)


def limited(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    """No floor, whatever the operator asks for."""
    control = ControlSpec(floor=0.0, p99_limit_s=length_s(scenario) / 12)
    return LadderRule(thresholds=(1.0, 2.5, 4.0, 8.0), control=control).make(context)


def small_micro_batch_sizes(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    return SlackFitRule(placement="jsq", micro_batch_size=context.config.micro_batch_sizes[0]).make(context)


def infaas(placement: str) -> MakeRouter:
    """Quick enough for servers to step in so short a run."""
    return lambda scenario, context: InfaasRule(
        placement=placement, target_s=max(length_s(scenario) / 12, 1e-8), up=0.02, down=0.1
    ).make(context)


def leaping(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    """It steps often, and down by several variants: on the busy cluster."""
    target_s = max(length_s(scenario) / 12, 1e-8)
    return InfaasRule(target_s=target_s, up=0.1, down=0.15, dwell_s=target_s / 10, leap=3).make(context)


def slackfit(placement: str, share: float) -> MakeRouter:
    return lambda scenario, context: SlackFitRule(
        placement=placement, target_s=max(length_s(scenario) * share, 1e-8)
    ).make(context)


def milp(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    return make_milp(context, context.config.micro_batch_sizes, max(length_s(scenario) / 4, 1e-8), 1.2, 0.5)


def clearing(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    period_s = max(length_s(scenario) / 12, 1e-8)
    return make_milp(context, context.config.micro_batch_sizes, period_s, 0.5, 0.5, period_s)


def lookahead(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    """A latency's worth at which widths differ, and a horizon in which some arrive."""
    target_s = length_s(scenario) / 10
    rule = LookaheadRule(worth_s=target_s / 200, horizon_s=max(target_s, 1e-8), micro_batches=2, weight=0.7)
    return rule.make(context)


def plain_compass(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    """At a price at which widths differ, and with no batching delay: records would differ by that alone."""
    return holding(CompassRule(numbers=Numbers(level=-3.0)).chooser(context), None, context)


def controlled_compass(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    return CompassRule(numbers=Numbers(level=-3.0), control=own_goals(scenario, context)).chooser(context)


def weighing_compass(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    """A joule costs about half of what the steps between the rungs are worth."""
    weight = 20.0 / max(path_energy_j(context, full_widths(context.config)), 1e-3)
    control = ControlSpec(floor=0.0, p99_limit_s=0.0, energy_weight=weight)
    return CompassRule(numbers=Numbers(level=-3.0), control=control).chooser(context)


def controlled_lookahead(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    return LookaheadRule(control=own_goals(scenario, context)).make(context)


def spare(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    """A plan without a share for the first server: it gets a micro-batch only where no other can take one."""
    router = make_milp(context, context.config.micro_batch_sizes, 1e6, 1.2, 0.5)
    shares = (0.0, 0.9, *(0.1 for _ in range(context.config.servers - 2)))
    router.plan = replace(router.plan, shares=shares)
    return router


def of_file(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    widths, segments = context.config.widths, context.config.segments
    raw = {"schema": "slimsched.rule/1", "kind": "ladder", "placement": "shortest-delay", "thresholds": [3.0]}
    return rule_from_dict({**raw, "rungs": [[widths[-1]] * segments, [widths[0]] * segments]}).make(context)


def all_drawn(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    """More numbers a decision than any rule by name: a width for every server that the placement asks about."""
    config, width = context.config, RandomWidth(context.config.widths)
    return ComposedRouter(ShortestDelay(context.costs, width), width, RandomMicroBatch(config.micro_batch_sizes))


def drawn_within(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    """A placement that draws the widths it reckons with; the router draws none."""
    config = context.config
    expected = ShortestDelay(context.costs, RandomWidth(config.widths))
    return ComposedRouter(
        expected, FixedWidths(config.widths, narrow(context)), RandomMicroBatch(config.micro_batch_sizes)
    )


def two_memories(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    """A placement that reckons with variants of its own, which step at other times than the router's."""
    target_s = max(length_s(scenario) / 10, 1e-8)
    one, other = (make_variants(context, 0.0, target_s * factor, 0.02, 0.1) for factor in (1.0, 0.3))
    return ComposedRouter(Sticky(Sticky(ShortestDelay(context.costs, one))), other, LargestMicroBatch((1, 3)))


def between_widths(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    """Tuples of widths that there are not, and a slack-fitting placement that reckons with a ladder."""
    widths = context.config.widths
    rungs = tuple((width,) * context.config.segments for width in (widths[-1] + 0.1, 0.6, widths[0] / 2))
    classes = context.config.class_count
    ladder = Ladder(widths, (rungs,) * classes, (1.0, 2.0), at=[0] * classes)
    expected = ShortestDelay(context.costs, ladder)
    return SlackFit(
        expected, context.costs, widths, context.config.micro_batch_sizes[:2], round(2e8 * length_s(scenario))
    )


def random_place(scenario: Scenario, context: RouterContext) -> RoutingPolicy:
    classes = context.config.class_count
    width = Ladder(context.config.widths, ((narrow(context),),) * classes, (), at=[0] * classes)
    return ComposedRouter(Sticky(RandomPlacement()), width, RandomMicroBatch((2, 1, 5)))


def with_paths(scenario: Scenario, context: RouterContext, kind: str) -> RoutingPolicy:
    """A rule of a kind whose micro-batches pass all segments at a server."""
    target_s, period_s = max(length_s(scenario) / 10, 1e-8), max(length_s(scenario) / 4, 1e-8)
    rules: dict[str, RuleSpec] = {
        "fixed": FixedRule(tuple=narrow(context), paths=True),
        "ladder": LadderRule(placement="jsq", thresholds=(1.0, 2.5, 4.0, 8.0), paths=True),
        "infaas": InfaasRule(target_s=target_s, up=0.1, down=0.15, dwell_s=target_s / 10, paths=True),
        "milp": MilpRule(period_s=max(0.01, period_s), paths=True),
    }
    return rules[kind].make(context)


COSTED = ("least-work", "least-work-coming", "shortest-delay", "packed", "sticky-coming")

ROUTERS: dict[str, MakeRouter] = {
    **{name: named(name) for name in PLACEMENT_NAMES},
    **{f"fixed@{name}": fixed(name) for name in COSTED},  # the others place so, too, under a ladder
    "fixed by class": fixed_by_class,
    **{f"ladder@{name}": ladder(name) for name in PLACEMENT_NAMES},
    **{f"slow ladder@{name}": slow_ladder(name) for name in ("sticky", "shortest-delay")},
    "two ladders": two_ladders,
    **{f"controlled ladder@{name}": controlled(name) for name in ("sticky", "shortest-delay")},
    "ladder with a limit": limited,
    **{f"infaas@{name}": infaas(name) for name in ("sticky", "shortest-delay", "jsq", "power-of-two-speed")},
    **{f"slackfit@{name}": slackfit(name, 0.2) for name in ("sticky", "shortest-delay", "power-of-two", "jiq")},
    **{f"{name} by name": named(name) for name in ("ladder", "slackfit", "infaas", "milp", "lookahead")},
    "slackfit in a hurry": slackfit("sticky", 0.05),
    "slackfit at leisure": slackfit("jsq", 4.0),
    "small groups": small_micro_batch_sizes,
    "infaas that leaps": leaping,
    "milp": milp,
    "milp that clears": clearing,
    "lookahead": lookahead,
    "controlled lookahead": controlled_lookahead,
    "compass": plain_compass,
    **{f"{kind} with paths": partial(with_paths, kind=kind) for kind in ("fixed", "ladder", "infaas", "milp")},
    "controlled compass": controlled_compass,
    "compass that weighs joules": weighing_compass,
    "milp with a server to spare": spare,
    "rule file": of_file,
    "all drawn": all_drawn,
    "drawn within": drawn_within,
    "two memories": two_memories,
    "between widths": between_widths,
    "random place": random_place,
}  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- scenarios


def busy() -> Scenario:
    """Three unequal devices with real curves, overloaded for a while, and a server that dies."""
    spec = tiny.cluster(
        [tiny.profile(name, speed=speed, load_s=0.002) for name, speed in (("a", 1.0), ("b", 0.6), ("c", 0.3))],
        router={"micro_batch_sizes": (1, 2, 4, 8)},
        greedy={"batch_limit": 8},
    )
    arrivals_s = sorted([*tiny.poisson_s(600, 0.2), *(0.1 + tiny.poisson_s(2500, 0.05, 1))])
    faults = (Crash(0, 120_000_000), Slowness(1, 50_000_000, 150_000_000, 1.7))
    return Scenario("busy", spec, tiny.run(spec, np.array(arrivals_s), 0.2, faults=faults))


def classed() -> Scenario:
    """The busy one with classes of requests, each of which is asked for something else."""
    return replace(with_classes(SeededDraws(5), busy()), name="classed")


@lru_cache
def two_models() -> Scenario:
    """The busy one with two models of two widths each; the first class is of the second model."""
    draws = GivenDraws([1, 1, 0, 1])
    return of_two_models(draws, replace(with_classes(SeededDraws(6), busy()), name="busy"))


def cramped() -> Scenario:
    """Two devices whose memory does not hold all full-width instances, of the second one fewer; a load takes as long as
    some batches."""
    spec = tiny.cluster(
        [tiny.profile(name, speed=speed, load_s=0.004) for name, speed in (("a", 1.0), ("b", 0.5))],
        router={"micro_batch_sizes": (1, 2, 4, 8)},
        greedy={"batch_limit": 8, "vram_cap_bytes": 500_000_000, "idle_unload_ns": 20_000_000},
    )
    one, other = spec.servers
    other = replace(other, params=replace(other.params, vram_cap_bytes=400_000_000))
    spec = replace(spec, servers=(one, other))
    return Scenario("cramped", spec, tiny.run(spec, np.array([*tiny.poisson_s(300, 0.3)]), 0.3))


def many() -> Scenario:
    """Nine servers of three kinds, in three racks, of which a decision looks at three; two die."""
    kinds = [tiny.profile(name, speed=speed, load_s=0.002) for name, speed in (("a", 1.0), ("b", 0.6), ("c", 0.3))]
    spec = tiny.cluster(kinds * 3, router={"micro_batch_sizes": (1, 2, 4, 8), "samples": 3}, greedy={"batch_limit": 8})
    uplink = Link(latency_s=2e-5, bandwidth_bytes_s=2e7)
    spec = replace(
        spec,
        servers=tuple(
            replace(server, attachment=replace(server.attachment, rack="xyz"[index % 3], uplink=uplink))
            for index, server in enumerate(spec.servers)
        ),
    )
    faults = (Crash(0, 60_000_000), Crash(4, 120_000_000))
    return Scenario("many", spec, tiny.run(spec, tiny.poisson_s(4000, 0.15), 0.15, faults=faults))


@lru_cache
def scenarios() -> tuple[tuple[Scenario, RouterContext], ...]:
    """A busy one, one with little memory, and drawn ones that are not too large and have something to decide."""
    found = [busy(), classed(), cramped(), *(draw_scenario(SeededDraws(seed), f"seed {seed}") for seed in SEEDS)]
    found += [many(), *(sampled(each, 2) for each in found[3:] if each.cluster.router.servers > 3)]
    return tuple((each, each.context()) for each in found)


# --------------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("name", ROUTERS)
def test_a_plan_decides_as_its_rule_does(name: str) -> None:
    """In each made scenario, and in every other drawn one in turn. On the reference and asked view by view in one of
    them: this takes several times as long, and no rule knows who asks it."""
    turn = list(ROUTERS).index(name)
    for number, (scenario, context) in enumerate(scenarios()):
        is_turn = (number - turn) % len(scenarios()) == 0
        if number >= MADE and (number - turn) % 2 and not is_turn:
            continue
        expected = decided_alike(name, scenario, context)
        if is_turn:
            require_views_alike(name, scenario, context, expected)
            router = ROUTERS[name](scenario, context)
            record = Simulation(scenario.cluster, scenario.run).run(router, stream(scenario.run.seed, "router"))
            assert difference(expected, record, "record") is None, f"{scenario.name}, the reference"


def decided_alike(name: str, scenario: Scenario, context: RouterContext) -> RunRecord:
    """What the rule makes of a scenario, and so does its plan."""
    asked, planned = (ROUTERS[name](scenario, context) for _ in range(2))
    assert plan_of(planned, context.config) is not None, "it has no compiled form"
    rngs = [stream(scenario.run.seed, "router") for _ in range(2)]
    expected = CompiledSimulation(scenario.cluster, scenario.run).run(Asked(asked), rngs[0])
    record = CompiledSimulation(scenario.cluster, scenario.run).run(planned, rngs[1])
    assert difference(expected, record, "record") is None, f"{scenario.name}, the plan"
    assert planned == asked, "what it remembers"
    assert rngs[1].bit_generator.state == rngs[0].bit_generator.state
    return expected


def require_views_alike(name: str, scenario: Scenario, context: RouterContext, expected: RunRecord) -> None:
    """The plan asked view by view, as executors do, decides as its rule did."""
    by_views = router_plans.by_plan(ROUTERS[name](scenario, context), context.config)
    assert isinstance(by_views, router_plans.PlannedRouter)
    record = CompiledSimulation(scenario.cluster, scenario.run).run(by_views, stream(scenario.run.seed, "router"))
    assert difference(expected, record, "record") is None, f"{scenario.name}, view by view"


BY_MODEL = [name for name in ROUTERS if not name.startswith(("fixed", "infaas", "milp", "rule file", "two memories"))]


@pytest.mark.parametrize("name", BY_MODEL)
def test_a_plan_decides_as_its_rule_does_for_two_models(name: str) -> None:
    scenario = two_models()
    record = decided_alike(name, scenario, scenario.context())
    require_views_alike(name, scenario, scenario.context(), record)
    router, classes = scenario.cluster.router, scenario.run.class_of
    assert {router.class_widths[number] for number in classes} == set(router.models)
    for request in record.requests:
        assert set(request.widths) <= set(router.class_widths[classes[request.request]])


@lru_cache
def record_of(name: str, number: int) -> RunRecord:
    scenario, context = scenarios()[number]
    router = ROUTERS[name](scenario, context)
    return CompiledSimulation(scenario.cluster, scenario.run).run(router, stream(scenario.run.seed, "router"))


def test_rules_differ_where_they_are_compared() -> None:
    """A rule that never decides otherwise than another is not tested."""
    alike = [
        (one, other)
        for one, other in combinations(ROUTERS, 2)
        if all(record_of(one, number) == record_of(other, number) for number in range(len(scenarios())))
    ]
    assert alike == []


@pytest.mark.parametrize("mutant", source_mutants("policies.rules."), ids=lambda mutant: mutant.name)
def test_a_broken_price_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some router in some scenario decides otherwise with it, in Python, than its plan."""
    priced = ("compass", "compass that weighs joules", "ladder@sticky")
    expected = {(each, number): record_of(each, number) for each in priced for number in range(len(scenarios()))}
    mutant.break_it(monkeypatch)

    def broken(name: str, number: int) -> RunRecord:
        scenario, context = scenarios()[number]
        router = Asked(ROUTERS[name](scenario, context))
        return CompiledSimulation(scenario.cluster, scenario.run).run(router, stream(scenario.run.seed, "router"))

    assert any(broken(*position) != record for position, record in expected.items())


# ------------------------------------------------------------------------------------------------- around a run's plan


def simulation(number: int = 0) -> CompiledSimulation:
    scenario, _ = scenarios()[number]
    return CompiledSimulation(scenario.cluster, scenario.run)


@pytest.mark.parametrize(
    "name",
    ["round-robin", "slow ladder@shortest-delay", "infaas@shortest-delay", "milp", "all drawn", "controlled compass"],
)
def test_a_router_goes_on_from_what_it_remembers(name: str) -> None:
    """One router for two runs is not a good idea, but it is the same bad idea with a plan."""
    ends = []
    for wrap in (Asked, lambda router: router):
        policy, rng = wrap(ROUTERS[name](*scenarios()[0])), stream(7, "router")
        ends.append(([simulation().run(policy, rng) for _ in range(2)], rng.random()))
    assert difference(ends[0], ends[1], "runs") is None


def test_a_plan_takes_over_in_the_middle_of_a_run() -> None:
    for is_answered in (False, True):
        records = []
        for wrap in (Asked, lambda router: router):
            router, rng, run = ROUTERS["infaas@shortest-delay"](*scenarios()[0]), stream(7, "router"), simulation()
            for _ in range(20):
                asked = run.advance()
                assert asked is not None
                run.decide(router.choose(asked.view, rng))
            if not is_answered:
                run.advance()
            records.append(run.run(wrap(router), rng))
            assert (run.pending, run.advance()) == (None, None)
        assert difference(records[0], records[1], "record") is None


def test_a_plan_goes_on_when_numbers_and_room_are_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    grown: list[int] = []
    grow, router = RunRow.grow, ROUTERS["all drawn"]
    ample = simulation().run(router(*scenarios()[0]), stream(7, "router"))

    def scarce(
        program: Program, requests: int, instances: int, micro_batches: int, messages: int, **rest: Any
    ) -> Shape:
        least = (2, margin(program), 1, message_margin(program))
        sizes = (requests, instances, micro_batches, messages) if grown else least
        return Shape(program, *sizes, **rest)

    def noted(self: RunRow, status: int) -> None:
        grown.append(status)
        grow(self, status)

    monkeypatch.setattr(Program, "shape", scarce)
    monkeypatch.setattr(RunRow, "grow", noted)
    monkeypatch.setattr(draws, "_DRAWN", 3)
    assert simulation().run(router(*scenarios()[0]), stream(7, "router")) == ample
    assert REQUESTS_FULL in grown


class OwnGenerator(np.random.Generator):
    def random(self, *args: Any, **kwargs: Any) -> Any:
        assert not args, "one number at a time"
        assert not kwargs
        return 0.25


def test_a_generator_of_ones_own_is_asked_for_each_number() -> None:
    first = simulation().run(ROUTERS["random"](*scenarios()[0]), OwnGenerator(np.random.PCG64(0)))
    again = simulation().run(ROUTERS["random"](*scenarios()[0]), OwnGenerator(np.random.PCG64(1)))
    assert first == again


def test_a_plan_stops_where_the_run_comes_to_what_was_never_evaluated() -> None:
    scenario, context = scenarios()[0]
    images = np.zeros(len(scenario.run.arrivals_ns), np.int64)
    labels = MatrixCorrectness([(0.25,) * 4], np.ones((1, 1), np.bool_), images)
    router = RoundRobin()
    policy = ComposedRouter(router, RandomWidth(context.config.widths), LargestMicroBatch((4,)))
    with pytest.raises(WorkError, match="width tuple"):
        CompiledSimulation(scenario.cluster, replace(scenario.run, correctness=labels)).run(policy, stream(0, "x"))
    assert router.last >= 0
