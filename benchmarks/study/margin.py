"""A tuned router with a margin: the same one, more accurate by so many steps of the dial that levelling turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp
from typing import Any, Final

from policies.rules.costs import efficient_tuples
from policies.rules.infaas import InfaasRule
from policies.rules.lookahead import LookaheadRule
from policies.rules.milp import MilpRule
from policies.rules.slackfit import SlackFitRule
from policies.rules.specs import POINT, FixedRule, LadderRule, RuleSpec
from policies.rules.tide import TideRule
from scenarios.world.world import World

Margin = float | tuple[float, ...]
"""Steps of the dial; of `fixed`, which has none, the width tuple."""

STEPS: Final = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)


def margins_of(spec: RuleSpec, world: World) -> Iterator[Margin]:
    """What is worth a try: of `fixed` the width tuples that keep the floor."""
    if not isinstance(spec, FixedRule):
        yield from STEPS
        return
    floor, prior = world.scenario.service.floor or 0.0, world.accuracy.prior
    yield from (widths for widths in efficient_tuples(world.context) if prior(widths) >= floor)


def margins_in(rows: Sequence[Mapping[str, Any]], scenario: str) -> dict[str, tuple[str, Margin]]:
    """By router, the digest of the file that a margin was picked for, and the margin."""
    found: dict[str, tuple[str, Margin]] = {}
    for row in rows:
        if row["scenario"] == scenario:
            margin = row["margin"]
            found[row["router"]] = (row["file"], tuple(margin) if isinstance(margin, list) else float(margin))
    return found


def with_margin(spec: RuleSpec, margin: Margin, world: World) -> RuleSpec:
    """A step is that of `Space.accurate`: the loads at which a rule narrows are e times as high, or what it spends on
    accuracy is."""
    if isinstance(margin, tuple):
        assert isinstance(spec, FixedRule), "it alone has no dial"
        return spec.model_copy(update={"tuple_": margin})
    return spec.model_copy(update=_turned(spec, margin, world))


def _turned(spec: RuleSpec, by: float, world: World) -> dict[str, object]:
    match spec:
        case LadderRule():
            return {"thresholds": tuple(each * exp(by) for each in spec.thresholds)}
        case TideRule():  # its price falls by its rise in the load that is e times as high
            return {"level": spec.level - by * max(1.0, spec.rise)}
        case LookaheadRule() if spec.worth_s is not None:
            return {"worth_s": spec.worth_s * exp(by)}
        case SlackFitRule() if spec.target_s is not None:
            return {"target_s": spec.target_s * exp(by)}
        case MilpRule():
            return {"headroom": spec.headroom * exp(-by)}
        case InfaasRule():
            half, most = exp(by / 2), max(world.held_top1.values())
            return {"down": spec.down * half, "up": spec.up * half, "floor": min(spec.floor + by * POINT, most)}
    raise AssertionError(f"{spec.KIND} was not tuned")
