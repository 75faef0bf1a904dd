"""Routers by name: `kind[:numbers][@placement]`, or a user's own as `module:Class`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Final

from policies.errors import InputError, nearest
from policies.interfaces import RoutingPolicy
from policies.rules.context import ComposedRouter, RouterContext
from policies.rules.groups import RandomGroup
from policies.rules.placements import PLACEMENT_NAMES, RandomPlacement
from policies.rules.specs import FixedRule, InfaasRule, LadderRule, MilpRule, RuleSpec, SlackFitRule
from policies.rules.widths import RandomWidth

ROUTER_NAMES: Final[tuple[str, ...]] = (*PLACEMENT_NAMES, "ladder", "slackfit", "infaas", "milp", "tide")
_WITH_PLACEMENT: Final = ("fixed", "ladder", "slackfit", "infaas")
_WITH_NUMBERS: Final = ("fixed", "ladder")


@dataclass(frozen=True, slots=True)
class PaperRandom:
    """The paper's baseline: a valid server, a held width and a group, each uniform."""

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> ComposedRouter:
        """A fresh router for a cluster."""
        return ComposedRouter(RandomPlacement(), RandomWidth(context.config.widths), RandomGroup(context.config.groups))


@dataclass(frozen=True, slots=True)
class UntunedTide:
    """Tide with the numbers that its tuning begins with."""

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
        """A fresh router for a cluster."""
        from policies.tide.knobs import start
        from policies.tide.router import TideRouter  # it needs numba, which rules must not wait for

        return TideRouter(start(context.config.segments, len(context.config.widths)), context)


@dataclass(frozen=True, slots=True)
class OwnClass:
    """A user's class: imported when a router is made, and called with the context."""

    module: str
    name: str

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
        """A fresh router; whatever goes wrong inside the class while it is made is the user's to know."""
        try:
            router: RoutingPolicy = getattr(importlib.import_module(self.module), self.name)(context)
        except Exception as error:
            raise InputError(source, key, f"could not be made: {type(error).__name__}: {error}") from error
        if not callable(getattr(router, "choose", None)):
            raise InputError(source, key, "has no method choose(view, rng) -> Choice")
        return router


def parse_router_name(
    name: str, source: str = "router", key: str = ""
) -> RuleSpec | PaperRandom | UntunedTide | OwnClass:
    """What a name stands for; raises `InputError` (naming `source` and `key`) where it is none.

    A user's class is not imported here, and a width tuple is not held against a cluster: `make` does that.
    """
    rule, has_placement, placement = name.partition("@")
    kind, _, argument = rule.partition(":")
    if has_placement and (kind not in _WITH_PLACEMENT or placement not in PLACEMENT_NAMES):
        problem = f"{name!r}: a placement is named after `@` of {', '.join(_WITH_PLACEMENT)}"
        raise InputError(source, key, f"{problem}; {nearest(placement, PLACEMENT_NAMES)}")
    if kind in _WITH_NUMBERS and (argument or kind == "fixed"):
        return _with_numbers(name, kind, argument, placement or "sticky", source, key)
    if rule in ROUTER_NAMES:
        return _without_numbers(rule, placement or "sticky")
    if all(part.isidentifier() for part in kind.split(".")) and argument.isidentifier() and kind not in ROUTER_NAMES:
        return OwnClass(kind, argument)
    known = nearest(name, (*ROUTER_NAMES, "fixed:w1,w2,..."))
    remedy = "or `module:Class`, a rule file (*.rule.yaml), or a file that `slimsched train` wrote"
    raise InputError(source, key, f"unknown router {name!r}; {known}, {remedy}")


def _without_numbers(kind: str, placement: str) -> RuleSpec | PaperRandom | UntunedTide:
    match kind:
        case "random":
            return PaperRandom()
        case "ladder":
            return LadderRule(placement=placement)
        case "slackfit":
            return SlackFitRule(placement=placement)
        case "infaas":
            return InfaasRule(placement=placement)
        case "milp":
            return MilpRule()
        case "tide":
            return UntunedTide()
        case _:
            return FixedRule(placement=kind)


def _with_numbers(name: str, kind: str, argument: str, placement: str, source: str, key: str) -> RuleSpec:
    try:
        numbers = tuple(float(number) for number in argument.split(","))
    except ValueError:
        raise InputError(source, key, f"{name!r}: numbers with commas between them follow the colon") from None
    if kind == "fixed":
        return FixedRule(placement=placement, tuple_=numbers)
    if list(numbers) != sorted(set(numbers)) or numbers[0] < 0:
        raise InputError(source, key, f"{name!r}: thresholds are requests per server, ascending, from 0")
    return LadderRule(placement=placement, thresholds=numbers)


def make_router(name: str, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
    """A fresh router by its name; raises `InputError` (naming `source` and `key`) for one that can't be made.

    ======================  =========================================================================================
    name                    router
    ======================  =========================================================================================
    `random`                valid server, held width and group, each uniform: the paper's baseline
    a placement             any other of `PLACEMENT_NAMES`: every segment at full width
    `fixed:w1,...,wS`       that width tuple, placed by `sticky`; `fixed:...@jsq` names another placement
    `ladder`                tuples by load (`Ladder`); `ladder:8,32` names thresholds, `ladder@jsq` a placement
    `slackfit`              width and group by slack (`SlackFit`); `slackfit@jsq` names a placement
    `infaas`                each server's tuple by its load (`Variants`); `infaas@jsq` names a placement
    `milp`                  tuples and shares by a programme that is solved every two seconds (`Milp`)
    `tide`                  widths at a price that follows the load (`TideRouter`), not tuned for the cluster
    `module:Class`          a user's own: imported, and called with the context
    ======================  =========================================================================================
    """
    parsed = parse_router_name(name, source, key)
    try:
        return parsed.make(context, source, key)
    except InputError as error:
        raise InputError(source, key, f"{name!r}: {error.problem}") from error.__cause__
