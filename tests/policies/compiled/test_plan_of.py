"""What has a compiled form and what has none; plans and their tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import policies.router_plans
from policies.compiled.adaptive_kernels import view_of
from policies.compiled.plan_layout import (
    NONE,
    OUTSIDE,
    ObservationRecord,
    Plan,
    PlanRow,
    SeenServer,
    alike_of,
    blank_observation,
    cost_table,
    work_keys,
)
from policies.compiled.rule_kernels import Variant, VariantSteps
from policies.interfaces import ELSEWHERE, HERE, IN_RACK, WAYS, Alike, RouterConfig, RoutingPolicy
from policies.router_names import make_router
from policies.router_plans import plan_of
from policies.rules import rule_context as rule_costs
from policies.rules.proteus import Milp
from policies.rules.published_rules import SlackFit, Variants, make_variants
from policies.rules.rule_context import ComposedRouter, RouterContext
from policies.rules.rule_parts import (
    FixedWidths,
    Ladder,
    LargestMicroBatch,
    LeastWork,
    RoundRobin,
    ShortestDelay,
    ShortestQueue,
    Sticky,
)
from policies.vocabulary import IMAGE, ROUTER, Choice, ClusterView, WorkKey
from tests import tiny
from tests.parity.scenarios import Scenario


def context_of(servers: int = 2) -> RouterContext:
    profiles = [tiny.profile(f"p{n}", speed=1.0 - 0.1 * n) for n in range(servers)]
    spec = tiny.cluster(profiles, router={"micro_batch_sizes": (1, 2, 4)})
    return Scenario("two", spec, tiny.run(spec, np.array([0.0]), 1.0)).context()


CONTEXT = context_of()
CONFIG = CONTEXT.config
MICRO_BATCH_SIZE, QUEUE = LargestMicroBatch(CONFIG.micro_batch_sizes), ShortestQueue()
FULL = FixedWidths(CONFIG.widths, (1.0, 1.0, 1.0, 1.0))


class Costs:
    alike: Alike | None = None

    def batch_s(self, server: int, key: WorkKey, batch: int) -> float:
        return 1e-3 * batch * (server + 1)

    def image_s(self, server: int, key: WorkKey) -> float:
        return 1e-3

    def energy_j(self, server: int, key: WorkKey) -> float:
        return 0.1 * key.width

    def transfer_s(self, source: int, server: int, segment: int, previous_width: float, images: int) -> float:
        return 1e-4 * images if source != server else 5e-5


class MeasuredInPart(Costs):
    def image_s(self, server: int, key: WorkKey) -> float:
        return {1.0: 1e-3}[key.width]


class Endless(Costs):
    def image_s(self, server: int, key: WorkKey) -> float:
        return 1e15


@dataclass
class OwnRouter:
    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        return Choice(0, 1.0, 1)


class OwnPlacement(ShortestQueue):
    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        return 0


class OwnWidths(FixedWidths):
    def __call__(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        return 0.25


class OwnMicroBatchSize(LargestMicroBatch):
    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        return 1


class OwnComposition(ComposedRouter):
    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        return Choice(0, 1.0, 1)


class OwnSlackFit(SlackFit):
    """Nothing of its own, but who knows?"""


def slackfit(**changes: Any) -> SlackFit:
    return replace(SlackFit(ShortestQueue(), CONTEXT.costs, CONFIG.widths, CONFIG.micro_batch_sizes, 1000), **changes)


def variants(**changes: Any) -> Variants:
    found = make_variants(CONTEXT, 0.0, 0.1, 0.02, 0.1)
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def milp(**changes: Any) -> RoutingPolicy:
    found = make_router("milp", CONTEXT)
    assert isinstance(found, Milp)
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def by(width: Any = FULL, placement: Any = QUEUE, micro_batch_size: Any = MICRO_BATCH_SIZE) -> ComposedRouter:
    return ComposedRouter(placement, width, micro_batch_size)


ASKED: dict[str, Callable[[], RoutingPolicy]] = {
    "a class of the user's own": OwnRouter,
    "a placement of its own": lambda: by(placement=OwnPlacement()),
    "a placement of its own within a known one": lambda: by(placement=Sticky(OwnPlacement())),
    "a function as a placement": lambda: by(placement=lambda view, rng: 0),
    "widths of its own": lambda: by(OwnWidths(CONFIG.widths, FULL.tuple_)),
    "widths of its own in a placement": lambda: by(
        placement=ShortestDelay(CONTEXT.costs, OwnWidths(CONFIG.widths, FULL.tuple_))
    ),
    "a group of its own": lambda: by(micro_batch_size=OwnMicroBatchSize(CONFIG.micro_batch_sizes)),
    "a composition of its own": lambda: OwnComposition(ShortestQueue(), FULL, MICRO_BATCH_SIZE),
    "a known rule under another name": lambda: OwnSlackFit(ShortestQueue(), Costs(), CONFIG.widths, (1,), 1000),
    "widths of another network": lambda: by(FixedWidths((0.5, 1.0), (1.0, 1.0, 1.0, 1.0))),
    "a tuple that is too short": lambda: by(FixedWidths(CONFIG.widths, (1.0, 1.0))),
    "rungs of other classes": lambda: by(Ladder(CONFIG.widths, ((FULL.tuple_,),) * 2, (1.0,))),
    "an empty micro-batch": lambda: by(micro_batch_size=LargestMicroBatch((0,))),
    "no group": lambda: by(micro_batch_size=LargestMicroBatch(())),
    "groups that do not ascend": lambda: slackfit(micro_batch_sizes=(4, 1)),
    "a share that is not a whole number": lambda: slackfit(share_ns=0.5),
    "a share beyond 64 bits": lambda: slackfit(share_ns=10**21),
    "two cost models": lambda: by(FULL, placement=ShortestDelay(Costs(), variants())),
    "costs that are not known for every key": lambda: by(placement=LeastWork(MeasuredInPart())),
    "costs whose sums no float holds": lambda: by(placement=LeastWork(Endless())),
    "variants of another cluster": lambda: by(variants(levels=[0])),
    "a level that is none": lambda: by(variants(levels=[0, 99])),
    "capacities of another cluster": lambda: milp(capacity_img_s=((1.0,),)),
}


@pytest.mark.parametrize("what", ASKED)
def test_python_decides_where_there_is_no_compiled_form(what: str) -> None:
    assert plan_of(ASKED[what](), CONFIG) is None


def test_tables_of_transfers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    router = make_router("shortest-delay", CONTEXT)
    assert plan_of(router, CONFIG) is not None
    monkeypatch.setattr(policies.router_plans, "MAX_TRANSFERS", 100)
    assert plan_of(router, CONFIG) is None
    assert plan_of(make_router("sticky", CONTEXT), CONFIG) is not None, "it asks for no transfers"


def test_a_plan_begins_with_what_its_router_remembers_and_gives_it_back() -> None:
    rule, turns = variants(levels=[2, 1], since_ns=[5, 7]), RoundRobin(1)
    planned = plan_of(by(rule, turns), CONFIG)
    assert planned is not None
    plan = Plan(planned.row)
    first = plan.width_rule.variants_at + VariantSteps.size
    its = planned.row[first : first + 2 * Variant.size].view(Variant.dtype)
    assert its[["level", "since_ns"]].tolist() == [(2, 5), (1, 7)]
    assert plan.turn == 1
    its["level"], its["since_ns"], plan.turn = (0, 3), (11, 13), 0
    planned.keep()
    assert (rule.levels, rule.since_ns, turns.last) == ([0, 3], [11, 13], 0)


def test_a_turn_before_the_first_is_the_first() -> None:
    planned = plan_of(by(placement=RoundRobin(-9)), CONFIG)
    assert planned is not None
    assert Plan(planned.row).turn == NONE


def test_only_what_draws_asks_for_numbers() -> None:
    draws = {name: plan_of(make_router(name, CONTEXT), CONFIG) for name in ("random", "sticky", "power-of-two")}
    assert {name: Plan(each.row).most_draws for name, each in draws.items() if each is not None} == {
        "random": 3,
        "sticky": 0,
        "power-of-two": 2,
    }


# -------------------------------------------------------------------------------------------------------------- tables


def test_tables_have_the_costs_that_rules_add() -> None:
    image, batch = (cost_table(CONFIG, CONTEXT.costs, name) for name in ("image", "batch"))
    for number, key in enumerate(work_keys(CONFIG)):
        for server in range(CONFIG.servers):
            there = CONFIG.has_key(key)
            assert image[server, number] == (rule_costs.image_ns(CONTEXT.costs, server, key) if there else 0)
            expected = [rule_costs.batch_ns(CONTEXT.costs, server, key, n) for n in range(1, 5)] if there else [0] * 4
            assert batch[server, number].tolist() == [0, *expected]


def test_a_table_of_moves_has_every_source() -> None:
    """Also a server itself, whatever a cost model says of that, and the router for images alone."""
    table = cost_table(CONFIG, Costs(), "transfer").reshape(3, 2, WAYS, 4, 5, 5)
    assert table[1, 1, IN_RACK, 2, 3].tolist() == [0, 100_000, 200_000, 300_000, 400_000]
    assert table[1, 0, HERE, 2, 3].tolist() == [0, 50_000, 50_000, 50_000, 50_000]
    assert table[ROUTER + 1, 0, ELSEWHERE, 0, 0, 1] == 100_000
    assert not table[ROUTER + 1, :, ELSEWHERE, 1:].any()


def test_servers_that_cost_the_same_share_the_rows_of_tables() -> None:
    """Every cost that a rule asks for is found in them, whichever servers are alike."""
    costs, config = Costs(), replace(CONFIG, fits=CONFIG.fits[:1] * 5)
    costs.alike = Alike(devices=(7, 7, 3, 7, 3), links=(2, 2, 2, 5, 5), racks=(0, 0, 1, 1, 1))
    assert alike_of(config, costs) == Alike((0, 0, 1, 0, 1), (0, 0, 0, 1, 1), (0, 0, 1, 1, 1))
    assert len(cost_table(config, costs, "batch")) == 2
    ways = alike_of(config, costs).ways()
    assert ways[0, 0, ELSEWHERE] == (ROUTER, 0)
    assert ways[1, 0, IN_RACK] == (0, 1)
    assert ways[1, 1, ELSEWHERE] == (0, 3)
    assert ways[1, 1, IN_RACK] == (2, 3)
    assert (2, 1, ELSEWHERE) not in ways, "both servers of the second link are in one rack"


def test_ways_are_those_of_all_pairs() -> None:
    """Every way that two servers have is there, by a pair that has it."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        servers = range(int(rng.integers(1, 9)))
        links, racks = (rng.integers(0, 3, len(servers)).tolist() for _ in range(2))
        alike = Alike.of(servers, links, racks)

        def way(source: int, server: int, alike: Alike = alike) -> tuple[int, int, int]:
            is_near = source != ROUTER and alike.racks[source] == alike.racks[server]
            place = (HERE if source == server else IN_RACK) if is_near else ELSEWHERE
            return 0 if source == ROUTER else alike.links[source] + 1, alike.links[server], place

        ways = alike.ways()
        assert ways.keys() == {way(*pair) for pair in product((ROUTER, *servers), servers)}
        assert all(way(*pair) == key for key, pair in ways.items())


def test_tables_are_of_one_cost_model_and_one_network() -> None:
    one, wider = Costs(), replace(CONFIG, micro_batch_sizes=(1, 2, 4, 8))
    assert cost_table(CONFIG, one, "batch") is cost_table(CONFIG, one, "batch")
    assert cost_table(CONFIG, Costs(), "batch") is not cost_table(CONFIG, one, "batch")
    assert cost_table(wider, one, "batch").shape[2] == 9
    many = [Costs() for _ in range(40)]
    assert all(cost_table(CONFIG, each, "image").any() for each in many)


def test_a_plan_that_nobody_filled_in_asks_whoever_runs_it() -> None:
    assert PlanRow(CONFIG, None).head.width_rule.rule == OUTSIDE


def test_a_view_of_a_sheet_is_what_a_rule_that_plans_reads() -> None:
    config: RouterConfig = replace(CONFIG, fits=(CONFIG.fits[0], (((False,) * 4),) * 4))
    observation = blank_observation(2)
    seen, first = ObservationRecord(observation), SeenServer(observation, ObservationRecord.size)
    seen.now_ns, seen.segment, seen.previous_width, seen.location = 9, 1, 3, 0
    seen.candidates, seen.entered_ns, seen.fifo_length, seen.completed = 5, 2, 6, 40
    first.code, first.fits, first.requests, first.micro_batches = 15, 15, 7, 1
    view = view_of(observation, config)
    assert (view.now_ns, view.candidates, view.head_entered_ns, view.fifo_length, view.completed) == (9, 5, 2, 6, 40)
    assert (view.head.segment, view.head.previous_width, view.head.location) == (2, 0.75, 0)
    one, other = view.servers
    assert (one.valid, one.outstanding_requests, one.outstanding_micro_batches, any(one.widths)) == (True, 7, 1, True)
    assert (other.valid, other.outstanding_micro_batches, any(other.widths)) == (False, 0, False)
    seen.segment = seen.previous_width = 0
    assert view_of(observation, config).head.previous_width == IMAGE
