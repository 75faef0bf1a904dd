from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml

from kit.errors import InputError
from policies.interfaces import AccuracyPrior
from policies.router_kinds import RULES
from policies.router_names import rule_from_dict
from policies.rules.compass import CompassRule, Numbers
from policies.rules.lookahead import Lookahead, LookaheadRule
from policies.rules.proteus import Milp, MilpRule
from policies.rules.published_rules import InfaasRule, SlackFit, SlackFitRule, Variants
from policies.rules.rule_context import ComposedRouter, corner_tuples
from policies.rules.rule_params import MIN_STEP, BatchingDelaySpec, DelayingRouter, FixedRule, LadderRule, RuleSpec
from policies.rules.rule_parts import (
    PLACEMENT_NAMES,
    ControlSpec,
    FixedWidths,
    Ladder,
    LargestMicroBatch,
    PowerOfTwo,
    ShortestDelay,
    Sticky,
)
from tests.policies.cluster_views import context, known

LOW, HIGH = (0.25, 0.25, 0.25, 0.25), (1.0, 1.0, 1.0, 1.0)
BATCHING_DELAY = BatchingDelaySpec(requests=(8, 8, 8, 8), wait_s=(2e-4, 2e-4, 2e-4, 2e-4))
SOME: tuple[RuleSpec, ...] = (
    FixedRule(),
    FixedRule(
        tuple=(0.25, 0.5, 0.75, 1.0), placement="jiq", micro_batch_size=8, made_by={"seed": 7, "figures": [1, 2.5]}
    ),
    LadderRule(),
    LadderRule(rungs=(HIGH, LOW), thresholds=(12.5,), hysteresis=0.4, placement="shortest-delay"),
    SlackFitRule(),
    SlackFitRule(target_s=0.05, micro_batch_size=4),
    InfaasRule(floor=0.72, target_s=0.1, up=0.2, down=0.9, dwell_s=0.01, leap=3),
    InfaasRule(target_s=0.1),
    MilpRule(period_s=0.5, headroom=1.3, utilization=0.7, clear_s=0.2, made_by={"command": "slimsched tune"}),
    LookaheadRule(),
    CompassRule(numbers=Numbers(level=-5.0, rise=0.4), control=ControlSpec(), micro_batch_size=8),
    CompassRule(control=None),
    FixedRule(
        batching_delay=BatchingDelaySpec(requests=(1,) * 4, wait_s=(0.002, 0, 0, 0), arrivals_s=(0.001, 0, 0, 0))
    ),
    LadderRule(placement="jsq", batching_delay=BATCHING_DELAY, control=ControlSpec(floor=0.75)),
    LookaheadRule(
        worth_s=0.002, horizon_s=0.05, weight=0.5, micro_batches=2, micro_batch_size=8, batching_delay=BATCHING_DELAY
    ),
)


def raw(**changes: Any) -> dict[str, Any]:
    """A ladder's file, with some keys changed or (None) left out."""
    document = {
        "schema": "slimsched.rule/1",
        "kind": "ladder",
        "placement": "sticky",
        "micro_batch_size": "largest",
        "rungs": [list(HIGH), list(LOW)],
        "thresholds": [24],
        "made_by": {"seed": 7},
    }
    return {key: value for key, value in {**document, **changes}.items() if value is not None}


@pytest.mark.parametrize("rule", SOME, ids=lambda rule: rule.KIND)
def test_a_rule_comes_back_from_its_file(rule: RuleSpec) -> None:
    """Through YAML, with all its parameters and where they are from; and it makes a router."""
    read = rule_from_dict(yaml.safe_load(yaml.safe_dump(rule.to_dict())))
    assert read == rule
    assert read.made_by == rule.made_by
    rule.make(known())


def test_every_kind_is_tried() -> None:
    assert {rule.KIND for rule in SOME} == set(RULES)


def test_parameters_reach_the_router() -> None:
    """What a file says is what decides: tuples, thresholds, group, placement, times in nanoseconds."""
    fixed = SOME[1].make(context())
    assert isinstance(fixed, ComposedRouter)
    assert fixed.width == FixedWidths((0.25, 0.5, 0.75, 1.0), (0.25, 0.5, 0.75, 1.0))
    assert fixed.micro_batch_size == LargestMicroBatch((1, 2, 4, 8))
    ladder = SOME[3].make(context())
    assert isinstance(ladder, ComposedRouter)
    assert ladder.width == Ladder((0.25, 0.5, 0.75, 1.0), ((HIGH, LOW),), (12.5,), 0.4)
    assert isinstance(ladder.placement, ShortestDelay)
    assert ladder.placement.width == ladder.width
    slackfit = SOME[5].make(context())
    assert isinstance(slackfit, SlackFit)
    assert (slackfit.share_ns, slackfit.micro_batch_sizes) == (12_500_000, (1, 2, 4))
    infaas = SOME[6].make(context())
    assert isinstance(infaas, ComposedRouter)
    assert isinstance(infaas.width, Variants)
    assert (infaas.width.up_ns, infaas.width.down_ns, infaas.width.dwell_ns) == (20_000_000, 90_000_000, 10_000_000)
    assert infaas.width.leap == 3
    plain = SOME[7].make(context())
    assert isinstance(plain, ComposedRouter)
    assert isinstance(plain.width, Variants)
    assert (plain.width.dwell_ns, plain.width.leap) == (100_000_000, 1)
    milp = SOME[8].make(context())
    assert isinstance(milp, Milp)
    assert (milp.period_ns, milp.headroom, milp.clear_s) == (500_000_000, 1.3, 0.2)
    held = SOME[-1].make(context())
    assert isinstance(held, DelayingRouter)
    assert held.batching_delay == BATCHING_DELAY.rule()
    ahead = held.router
    assert isinstance(ahead, Lookahead)
    assert (ahead.horizon_s, ahead.weight, ahead.micro_batches, ahead.micro_batch_sizes) == (0.05, 0.5, 2, (1, 2, 4, 8))
    assert ahead.worth_ns[0][0] == 0
    assert isinstance(FixedRule(placement="power-of-two").chooser(context()).placement, PowerOfTwo)


def test_rule_file_with_omitted_keys_has_the_defaults() -> None:
    """A file with a schema and a kind is whole: sticky, the largest group, full width."""
    router = rule_from_dict({"schema": "slimsched.rule/1", "kind": "fixed"}).make(context())
    assert isinstance(router, ComposedRouter)
    assert isinstance(router.placement, Sticky)
    assert router.width == FixedWidths((0.25, 0.5, 0.75, 1.0), HIGH)
    assert router.micro_batch_size == LargestMicroBatch((1, 2, 4, 8, 16, 32))


@pytest.mark.parametrize(
    "changes, key, words",
    [
        ({"schema": "slimsched.rule/2"}, "schema", ["'slimsched.rule/2'", "'slimsched.rule/1'"]),
        ({"schema": None}, "schema", ["None", "'slimsched.rule/1'"]),
        ({"kind": "laddr"}, "kind", ["'laddr'", "did you mean 'ladder'", "milp"]),
        ({"kind": ["ladder"]}, "kind", ["known: compass"]),
        ({"treshholds": [4]}, "treshholds", ["unknown key; did you mean 'thresholds'"]),
        ({"tuple": [1, 1, 1, 1]}, "tuple", ["unknown key; known: batching_delay, control, hysteresis, made_by"]),
        ({"placement": "stiky"}, "placement", ["'stiky'", "did you mean 'sticky'", *PLACEMENT_NAMES]),
        ({"placement": 3}, "placement", ["no placement 3", "jsq"]),
        ({"micro_batch_size": 0}, "micro_batch_size", ["found 0", "greater than or equal to 1"]),
        ({"micro_batch_size": "big"}, "micro_batch_size", ["found 'big'", "'largest'"]),
        ({"micro_batch_size": [4]}, "micro_batch_size", ["found [4]", "a word (largest) or a number"]),
        ({"rungs": []}, "rungs", ["found []", "at least 1 item"]),
        ({"rungs": [[1, 1, 0, 1], [1, 1, 1, 1]]}, "rungs.0.2", ["found 0", "greater than 0"]),
        ({"thresholds": [24, 8]}, "thresholds", ["[24.0, 8.0]", "ascending"]),
        ({"thresholds": [-1]}, "thresholds.0", ["found -1", "greater than or equal to 0"]),
        ({"thresholds": [float("inf")]}, "thresholds.0", ["finite number"]),
        ({"thresholds": [8, 24]}, "", ["2 rungs and 2 thresholds", "one more"]),
        ({"hysteresis": 1}, "hysteresis", ["found 1", "less than 1"]),
        ({"control": {"floor": 75}}, "control.floor", ["found 75", "less than or equal to 1"]),
        ({"made_by": "me"}, "made_by", ["found 'me'", "an object"]),
        (
            {"kind": "milp", "rungs": None, "thresholds": None},
            "placement",
            ["unknown key; known: batching_delay, clear_s, headroom"],
        ),
    ],
)
def test_bad_files_name_file_key_value_and_what_is_allowed(changes: dict[str, Any], key: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        rule_from_dict(raw(**changes), "mine.rule.yaml")
    assert (caught.value.source, caught.value.key) == ("mine.rule.yaml", key)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "document, key, words",
    [
        ({"kind": "slackfit", "target_s": 0}, "target_s", ["found 0", "greater than 0"]),
        ({"kind": "infaas", "floor": 1.5}, "floor", ["found 1.5", "less than or equal to 1"]),
        ({"kind": "infaas", "up": 0.9, "down": 0.4}, "", ["up (0.9)", "down (0.4)"]),
        ({"kind": "infaas", "leap": 0}, "leap", ["found 0", "greater than or equal to 1"]),
        ({"kind": "infaas", "dwell_s": -1}, "dwell_s", ["found -1", "greater than or equal to 0"]),
        ({"kind": "milp", "clear_s": 0}, "clear_s", ["found 0", "greater than 0"]),
        ({"kind": "lookahead", "micro_batches": 0}, "micro_batches", ["found 0", "greater than or equal to 1"]),
        ({"kind": "milp", "utilization": 0}, "utilization", ["found 0", "greater than 0"]),
        ({"kind": "milp", "period_s": 0.001}, "period_s", ["found 0.001", "greater than or equal to 0.01"]),
        ({"kind": "compass", "numbers": {"level": "low"}}, "numbers.level", ["found 'low'", "valid number"]),
    ],
)
def test_parameters_have_limits(document: dict[str, Any], key: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        rule_from_dict({"schema": "slimsched.rule/1", **document}, "mine.rule.yaml")
    assert caught.value.key == key
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("rule", [LadderRule(), MilpRule(), CompassRule()])
def test_accuracy_table_without_the_networks_widths_is_refused(rule: RuleSpec) -> None:
    foreign = replace(context(), prior=AccuracyPrior({(0.3,) * 4: 0.9}))
    with pytest.raises(InputError, match=r"the accuracy table has no tuple of the widths \(0.25, 0.5, 0.75, 1.0\)"):
        rule.make(foreign)


def test_a_group_that_no_cluster_has_is_refused() -> None:
    few = replace(context(), config=replace(context().config, micro_batch_sizes=(4, 8)))
    assert FixedRule(micro_batch_size=7).chooser(few).micro_batch_size == LargestMicroBatch((4,))
    with pytest.raises(InputError, match="micro_batch_size 3 is below the smallest one, 4"):
        MilpRule(micro_batch_size=3).make(few)


def test_a_search_over_ladders_has_three_numbers_on_the_corners() -> None:
    """Thresholds ascend in one ratio, whatever is tried; hysteresis is from none to what a ladder comes back from."""
    space = LadderRule.space(context(), 0.75)
    tried = [space.spec(np.append(space.start[:-1], value)) for value in (-0.2, 0.25, 7.0)]
    assert [rule.hysteresis for rule in tried if isinstance(rule, LadderRule)] == [0.0, 0.25, 0.9]
    for step in (0.5, -3.0):
        rule = space.spec(np.array([1.0, step, 0.0]))
        assert isinstance(rule, LadderRule)
        assert rule.rungs == tuple(corner_tuples(context()))
        assert rule.thresholds[0] == pytest.approx(np.e)
        ratios = np.divide(rule.thresholds[1:], rule.thresholds[:-1])
        assert ratios == pytest.approx(np.exp(max(step, MIN_STEP)))


def test_a_ladder_of_one_tuple_can_be_searched() -> None:
    """There is nothing to choose; it says so by having no rungs of its own."""
    one = replace(context(), prior=AccuracyPrior({HIGH: 0.7}))
    rule = LadderRule.space(one, 0.5).spec(np.array([1.0, 0.5, 0.0]))
    assert isinstance(rule, LadderRule)
    assert rule.rungs is None
    assert isinstance(rule.make(one), ComposedRouter)
