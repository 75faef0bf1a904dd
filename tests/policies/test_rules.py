import sys
from collections import Counter
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import WorkError
from policies import rules
from policies.interfaces import AccuracyPrior, RoutingPolicy, batching_delay_rule_of, limit_ns_of
from policies.router_kinds import KINDS, RouterKind
from policies.router_names import ROUTER_NAMES, CheckedRouter, OwnRouter, make_router, parse_router_name
from policies.rules.rule_context import (
    ComposedRouter,
    RouterContext,
    efficient_tuples,
    held_width,
    outstanding_ns,
    spread,
)
from policies.rules.rule_params import FixedRule, PlacedRule, RuleSpec
from policies.rules.rule_parts import PLACEMENT_NAMES, Ladder, Packed, two_of
from policies.vocabulary import (
    FOLLOW_NS,
    IMAGE,
    BatchingDelay,
    BatchingDelayRule,
    Choice,
    ClusterView,
    HeadKey,
    ServerView,
    WorkKey,
)
from tests.policies.cluster_views import WIDTHS, LinearCosts, choice_of, context, server, view

ALL_NAMES = (
    *ROUTER_NAMES,
    "fixed:0.25,0.5,0.75,1",
    "fixed:1,1,1,1@jsq",
    "ladder:4,8@round-robin",
    "slackfit@random",
    "infaas@shortest-delay",
)


def choose(name: str, seen: ClusterView, costs: LinearCosts | None = None, seed: int = 0) -> Choice:
    router = make_router(name, context(costs, servers=len(seen.servers)))
    return choice_of(router, seen, np.random.default_rng(seed))


# ------------------------------------------------------------------------------------------------------ any router

holdings = st.lists(st.booleans(), min_size=4, max_size=4).filter(any)
servers = st.builds(
    lambda requests, valid, widths: server(requests, valid=valid, widths=widths),
    st.integers(0, 200),
    st.booleans(),
    holdings,
)
clusters = st.lists(servers, min_size=1, max_size=6).filter(lambda each: any(one.valid for one in each))


@given(
    st.sampled_from(ALL_NAMES), clusters, st.integers(1, 4), st.integers(-2, 5), st.integers(1, 40), st.integers(0, 9)
)
def test_every_choice_is_legal(
    name: str, cluster: list[ServerView], segment: int, location: int, candidates: int, seed: int
) -> None:
    """Whatever the cluster, a router names a valid server, a width it can hold and a group of the set."""
    head = HeadKey(segment, 0.5 if segment > 1 else IMAGE, min(location, len(cluster) - 1))
    choice = choose(name, view(*cluster, head=head, candidates=candidates), seed=seed)
    chosen = cluster[choice.server]
    assert chosen.valid
    assert chosen.widths[WIDTHS.index(choice.width)]
    assert choice.micro_batch_size in context().config.micro_batch_sizes


@pytest.mark.parametrize("name", sorted(set(PLACEMENT_NAMES) - {"random"}))
def test_placement_only_routers_run_full_width_in_the_largest_group(name: str) -> None:
    """A router that only places chooses width 1 and the largest group."""
    choice = choose(name, view(server(2), server(1), server(0)))
    assert (choice.width, choice.micro_batch_size) == (1.0, 32)


DRAWING = ("random", "weighted-random", "power-of-two", "power-of-two-speed")


@pytest.mark.parametrize("name", sorted({*ROUTER_NAMES} - {*DRAWING, "milp"}))
def test_ties_go_to_the_lowest_server(name: str) -> None:
    assert choose(name, view(server(), server(), server())).server == 0
    if name != "jiq":  # nobody is idle
        assert choose(name, view(server(valid=False), server(4), server(4))).server == 1


class Uniforms:
    """A generator that has nothing but these uniform numbers, one at a time."""

    def __init__(self, *numbers: float) -> None:
        self.left = list(numbers)

    def random(self) -> float:
        return self.left.pop(0)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_chance_is_drawn_one_uniform_number_at_a_time(name: str) -> None:
    """So other code can reproduce a decision: no rule asks its generator for anything else."""
    router = make_router(name, context())
    drawn = {"random": 3, "weighted-random": 1, "power-of-two": 2, "power-of-two-speed": 2, "jiq": 1}
    rng = Uniforms(*[0.5] * drawn.get(name, 1 if name.endswith("@random") else 0))
    choice_of(router, view(server(3), server(2), server(4)), rng)  # type: ignore[arg-type]
    assert rng.left == []


@given(st.permutations([(WorkKey(s, w, 0.5), s + 2) for s in (2, 3, 4) for w in (0.25, 0.75, 1.0)]))
def test_outstanding_work_does_not_depend_on_its_order(work: list[tuple[WorkKey, int]]) -> None:
    """Times are whole nanoseconds before they are added; as floats these would differ in their last bits."""
    costs = LinearCosts(speeds=(0.3,))
    expected = outstanding_ns(costs, view(server(outstanding=dict(sorted(work)))), 0)
    assert outstanding_ns(costs, view(server(outstanding=dict(work))), 0) == expected
    assert expected == sum(count * round(costs.image_s(0, key) * 1e9) for key, count in work)


# ------------------------------------------------------------------------------------------------------- placements


def test_two_of_draws_every_pair_alike_and_never_one_server_twice() -> None:
    """Over a grid of uniform numbers each pair comes equally often; of one server there is one draw all the same."""
    grid = [(first, second) for first in range(12) for second in range(12)]
    drawn = Counter(tuple(two_of([2, 5, 7, 9], Uniforms(a / 12, b / 12))) for a, b in grid)  # type: ignore[arg-type]
    assert drawn == dict.fromkeys(combinations([2, 5, 7, 9], 2), 24)
    rng = Uniforms(0.9)
    assert two_of([4], rng) == [4]  # type: ignore[arg-type]
    assert rng.left == []


# ------------------------------------------------------------------------------------------------------------- widths


def test_packed_placement_takes_the_next_server_at_a_full_micro_batch_of_work() -> None:
    costs, seen = LinearCosts(), view(server(3), server(9))
    full_ns = outstanding_ns(costs, seen, 1)
    for full, chosen in (((0, full_ns + 1), 1), ((full_ns, full_ns), 0), ((0, full_ns), 0)):
        assert Packed(costs, order=(1, 0), full_ns=full)(seen, np.random.default_rng(0)) == chosen


def test_held_width_goes_narrower_first() -> None:
    """What can't be held becomes the next narrower held width, or else the narrowest held."""
    assert held_width(WIDTHS, (True, True, False, False), 1.0) == 0.5
    assert held_width(WIDTHS, (False, False, True, True), 0.5) == 0.75
    assert held_width(WIDTHS, (True, True, True, True), 0.75) == 0.75


def test_efficient_tuples_are_a_pareto_front() -> None:
    """(1, .75, .5, .25) and uniform 0.75 cost no less than a more accurate tuple: both are left out."""
    assert efficient_tuples(context()) == [
        (1.0, 1.0, 1.0, 1.0),
        (0.25, 0.5, 0.75, 1.0),
        (0.5, 0.5, 0.5, 0.5),
        (0.25, 0.25, 0.25, 0.25),
    ]


def test_efficient_tuples_break_ties_by_cost_and_accuracy() -> None:
    """Equally accurate: the cheaper one stays. Equally cheap: the more accurate one stays."""
    small = replace(context(), prior=AccuracyPrior({(0.5,) * 4: 0.6, (1.0,) * 4: 0.6}))
    assert efficient_tuples(small) == [(0.5,) * 4]
    small = replace(context(), prior=AccuracyPrior({(0.5, 1, 1, 1): 0.6, (1, 1, 1, 0.5): 0.7}))
    assert efficient_tuples(small) == [(1, 1, 1, 0.5)]
    foreign = replace(context(), prior=AccuracyPrior({(0.3,) * 4: 0.9, (1.0,) * 4: 0.6}))
    assert efficient_tuples(foreign) == [(1.0,) * 4]


def test_ladder_has_no_more_thresholds_than_rungs_need() -> None:
    """A short table makes a short ladder: the default thresholds that are left over are dropped."""
    router = make_router("ladder", context())
    assert isinstance(router, ComposedRouter)
    assert isinstance(router.width, Ladder)
    assert len(router.width.rungs[0]) == 4
    assert router.width.thresholds == (16.0, 32.0, 64.0)


def test_spread_keeps_both_ends() -> None:
    many = [(float(n),) for n in range(10)]
    assert spread(many, 4) == ((0.0,), (3.0,), (6.0,), (9.0,))
    assert spread(many[:2], 4) == ((0.0,), (1.0,))
    assert spread(many, 1) == ((0.0,),)


# ------------------------------------------------------------------------------------------------------ names, errors


def test_names_can_be_checked_without_a_cluster() -> None:
    """Every documented name parses; a user's class is not imported for it."""
    for name in ALL_NAMES:
        parse_router_name(name)
    assert parse_router_name("my.routers:Mine") == OwnRouter("my.routers:Mine")
    assert parse_router_name("fixed:1,0.5@jsq") == FixedRule(placement="jsq", tuple=(1.0, 0.5))


class _First:
    def __init__(self, context: RouterContext) -> None:
        self.width = context.config.widths[0]

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        return Choice(0, self.width, 1)


def test_a_users_class_is_called_with_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """`module:Class` imports the module and makes the class with the context."""
    module = ModuleType("users_routers")
    module.First = _First  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_routers", module)
    router: RoutingPolicy = make_router("users_routers:First", context())
    assert choice_of(router, view(server()), np.random.default_rng(0)) == Choice(0, 0.25, 1)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (None, "choose returned None; expected"),
        (Choice(-1, 1.0, 1), r"valid now: 1, 2"),
        (Choice(0, 1.0, 1), r"valid now: 1, 2"),
        (Choice(1, 1.0, 1), r"expected widths on server 1: 0\.25, 0\.5"),
        (Choice(1.0, 0.5, 1), "int, float and int for server, width and micro-batch size, not float, float, int"),  # type: ignore[arg-type]
        (Choice(1, "0.5", 1), "not int, str, int"),  # type: ignore[arg-type]
        (Choice(True, 0.5, 1), "not bool, float, int"),
        (Choice(1, 0.5, True), "not int, float, bool"),
        (Choice(1, 0.5, 1, (0.5,) * 4), "expected then: a tuple of widths of at most 3 following segments"),
        (Choice(1, 0.5, 1, 0.5), "expected then: a tuple of widths of at most 3 following segments"),  # type: ignore[arg-type]
        (Choice(1, 0.5, 1, (0.5, 0.3)), r"expected then: widths of segment 3 on server 1: 0\.25, 0\.5, 0\.75, 1"),
    ],
)
def test_a_users_nonsense_is_one_line_with_what_is_allowed(choice: Any, words: str) -> None:
    """Before the core sees it, naming the class and what it returned."""
    seen = view(server(valid=False), server(widths=(True, True, False, False)), server())
    users = SimpleNamespace(choose=lambda view, rng: choice)
    router = CheckedRouter("my.routers:Mine", users, context().config)
    with pytest.raises(WorkError, match=f"my.routers:Mine: .*{words}"):
        choice_of(router, seen, np.random.default_rng(0))


def test_a_users_router_may_choose_with_numpys_numbers() -> None:
    """They are what `argmin` and a row of widths give; a core gets Python's."""
    given = Choice(np.int64(1), np.float64(0.5), np.int32(2), np.array([1.0, 0.5]))  # type: ignore[arg-type]
    router = CheckedRouter("m:C", SimpleNamespace(choose=lambda view, rng: given), context().config)
    chosen = choice_of(router, view(server(), server()), np.random.default_rng(0))
    assert chosen == Choice(1, 0.5, 2, (1.0, 0.5))
    assert [type(part) for part in (chosen.server, chosen.width, chosen.micro_batch_size)] == [int, float, int]


def test_a_users_long_words_are_cut_to_a_line() -> None:
    def choose(view: ClusterView, rng: np.random.Generator) -> Choice:
        raise ValueError("first\nsecond")

    for users in (SimpleNamespace(choose=choose), SimpleNamespace(choose=lambda view, rng: ["x"] * 100_000)):
        with pytest.raises(WorkError) as wrong:
            CheckedRouter("m:C", users, context().config).choose(view(server()), np.random.default_rng(0))
        assert "\n" not in str(wrong.value)
        assert len(str(wrong.value)) < 500


@pytest.mark.parametrize("micro_batch_size", [33, 64, 2**63, 10**30])
def test_a_users_group_beyond_the_largest_is_the_largest(micro_batch_size: int) -> None:
    """No micro-batch takes more; a compiled engine could not even count so far."""
    users = SimpleNamespace(choose=lambda view, rng: Choice(0, 0.5, micro_batch_size))
    router = CheckedRouter("m:C", users, context().config)
    assert choice_of(router, view(server()), np.random.default_rng(0)) == Choice(0, 0.5, 32)


def test_routers_of_ours_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by name, nor where a user's function makes one: they would lose their compiled form."""
    module = ModuleType("users_makers")
    module.make = lambda context: make_router("jsq", context)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_makers", module)
    assert type(make_router("users_makers:make", context())) is ComposedRouter
    assert type(make_router("jsq", context())) is ComposedRouter


# ------------------------------------------------------------------------------------------------------- the registry


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_row_of_the_registry_is_true(kind: RouterKind) -> None:
    """What it says of its kind is what the kind's class does, and the page of routers has it."""
    spec = kind.load()
    assert kind.help
    assert kind.is_rule == (issubclass(spec, RuleSpec) and kind.name == spec.KIND)
    assert kind.is_placed == issubclass(spec, PlacedRule)
    assert not kind.numbers or kind.numbers in {each.alias or name for name, each in spec.model_fields.items()}
    assert hasattr(spec, "space") == kind.is_tuned
    router = spec().make(context())
    assert callable(router.choose)
    assert f"`{kind.name}" in Path("docs/routers.md").read_text()


def test_every_rule_and_placement_is_registered() -> None:
    """A class of rules that no row names could not be asked for; placements stand on the page, too."""
    modules = [import_module(f"{rules.__name__}.{found.name}") for found in iter_modules(rules.__path__)]
    values = [value for module in modules for value in vars(module).values()]
    classes = {value for value in values if isinstance(value, type) and issubclass(value, RuleSpec)}
    named = {spec for spec in classes if "KIND" in vars(spec)}
    assert named == {kind.load() for kind in KINDS.values() if kind.is_rule}
    page = Path("docs/routers.md").read_text()
    assert [name for name in PLACEMENT_NAMES if f"`{name}`" not in page] == []


WAITING = msgspec.structs.replace(view(server(), candidates=2), batching_delay_left_ns=500)


@pytest.mark.parametrize(
    ("seen", "batching_delay", "words"),
    [
        (view(server()), BatchingDelay(4, 100), r"may not be held now .*router\.max_batching_delay_s"),
        (WAITING, BatchingDelay(2, 100), r"from 3 .* to 32"),
        (WAITING, BatchingDelay(33, 100), r"from 3 .* to 32"),
        (WAITING, BatchingDelay(4, 0), "wait_ns must be above 0"),
        (WAITING, BatchingDelay(4.0, 100), "int for requests and wait_ns"),  # type: ignore[arg-type]
    ],
)
def test_a_users_hold_that_is_none_is_one_line(seen: ClusterView, batching_delay: BatchingDelay, words: str) -> None:
    """What is wrong with it, and what is allowed; what is right goes on, cut to what is left."""
    router = CheckedRouter("m:C", SimpleNamespace(choose=lambda view, rng: batching_delay), context().config)
    with pytest.raises(WorkError, match=words):
        router.choose(seen, np.random.default_rng(0))
    right = CheckedRouter("m:C", SimpleNamespace(choose=lambda view, rng: BatchingDelay(4, 10_000)), context().config)
    assert right.choose(WAITING, np.random.default_rng(0)) == BatchingDelay(4, 500)


@pytest.mark.parametrize(
    "rule",
    [
        BatchingDelayRule((4,), (100,)),
        BatchingDelayRule((4,) * 4, (1e-3,) * 4),  # type: ignore[arg-type]
        BatchingDelayRule((4,) * 4, (1,) * 4, (1,)),
        (4, 100),
    ],
)
def test_a_users_rule_of_holds_is_checked(rule: Any) -> None:
    users = SimpleNamespace(choose=lambda view, rng: None, batching_delay=rule)
    with pytest.raises(WorkError, match=r"m:C: batching_delay is .*; expected is a policies\.vocab"):
        batching_delay_rule_of(CheckedRouter("m:C", users, context().config))
    fine = BatchingDelayRule((4,) * 4, (100,) * 4)
    users = SimpleNamespace(choose=lambda view, rng: None, batching_delay=fine)
    assert batching_delay_rule_of(CheckedRouter("m:C", users, context().config)) is fine


@pytest.mark.parametrize("limit_ns", [-2, 0.03, None])
def test_a_users_limit_is_checked(limit_ns: Any) -> None:
    users = SimpleNamespace(choose=lambda view, rng: None, p99_limit_ns=limit_ns)
    with pytest.raises(WorkError, match=r"m:C: p99_limit_ns is .*; expected whole nanoseconds, 0 for none, or -1"):
        limit_ns_of(CheckedRouter("m:C", users, context().config))
    users.p99_limit_ns = 30_000_000
    assert limit_ns_of(CheckedRouter("m:C", users, context().config)) == 30_000_000
    plain = SimpleNamespace(choose=lambda view, rng: None)
    assert limit_ns_of(CheckedRouter("m:C", plain, context().config)) == FOLLOW_NS
