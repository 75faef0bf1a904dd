"""A rule with its parameters, as plain data: what a rule file (`*.rule.yaml`) holds, and what tuning searches over.

    schema: slimsched.rule/1
    kind: ladder                    # fixed | ladder | slackfit | infaas | milp
    placement: sticky               # by name; a `milp` places itself
    group: largest                  # or the most that a block may take
    rungs: [[1, 1, 1, 1], [0.25, 0.5, 0.75, 1]]
    thresholds: [24]
    made_by: {command: slimsched tune ..., seed: 7}         # anything; no decision depends on it

What a kind is told, and what is assumed where it isn't, stands at its class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, Final, TypeVar

from policies.errors import InputError, nearest
from policies.interfaces import RouterConfig, RoutingPolicy
from policies.rules.context import ComposedRouter, RouterContext, WidthRule
from policies.rules.costs import default_target_s, efficient_tuples, full_widths, spread
from policies.rules.groups import LargestGroup
from policies.rules.infaas import make_variants
from policies.rules.milp import make_milp
from policies.rules.placements import PLACEMENT_NAMES, make_placement
from policies.rules.slackfit import SlackFit
from policies.rules.widths import FixedWidths, Ladder
from policies.vocabulary import NS_PER_S

SCHEMA: Final = "slimsched.rule/1"
LARGEST: Final = "largest"
LADDER_THRESHOLDS: Final[tuple[float, ...]] = (16.0, 32.0, 64.0, 128.0, 256.0)

Widths = tuple[float, ...]
Value = TypeVar("Value")
Reader = Callable[[object], Any]  # raises ValueError that says what is allowed


# ------------------------------------------------------------------------------------------------------ plain values


def _number(low: float, high: float = inf, *, above: bool = False) -> Reader:
    """A number of [low, high], or of (low, high]; never infinite."""
    allowed = f"numbers {'above' if above else 'from'} {low:g}" + ("" if high == inf else f" to {high:g}")

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) == inf:
            raise ValueError(f"allowed are {allowed}")
        if not (low < value if above else low <= value) or not value <= high:
            raise ValueError(f"allowed are {allowed}")
        return float(value)

    return read


def _many(read: Reader, what: str) -> Reader:
    """A list of at least one."""

    def read_all(value: object) -> tuple[Any, ...]:
        if not isinstance(value, Sequence) or isinstance(value, str) or not value:
            raise ValueError(f"allowed is a list of {what}")
        return tuple(read(each) for each in value)

    return read_all


def _thresholds(value: object) -> Widths:
    found: Widths = _many(_number(0), "requests per server")(value)
    if list(found) != sorted(set(found)):
        raise ValueError("allowed are requests per server, ascending, from 0")
    return found


def _placement(value: object) -> str:
    if not isinstance(value, str) or value not in PLACEMENT_NAMES:
        raise ValueError(nearest(str(value), PLACEMENT_NAMES))
    return value


def _group(value: object) -> int | None:
    if value == LARGEST:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"allowed are {LARGEST!r} and whole numbers from 1")
    return value


def _notes(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("allowed are keys and values")
    return dict(value)


_WIDTHS: Final = _many(_number(0, 1, above=True), "widths, one a segment")


# ------------------------------------------------------------------------------------------------------------- rules


@dataclass(frozen=True, kw_only=True)
class RuleSpec(ABC):
    """A rule and its parameters; `make` gives a fresh router of it.

    Attributes:
        group: the most that a block may take; None for the largest of the groups.
        made_by: where the parameters come from; free, and no part of the rule.
    """

    KIND: ClassVar[str]
    READERS: ClassVar[Mapping[str, Reader]] = {"group": _group, "made_by": _notes}

    group: int | None = None
    made_by: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @abstractmethod
    def make(self, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
        """A fresh router for a cluster; raises `InputError` (naming `source` and `key`) where it doesn't fit."""

    def check(self, config: RouterConfig, source: str = "router", key: str = "") -> None:
        """Whether the rule fits the network's segments and widths, and the groups; raises `InputError` if not."""
        self.groups(config, source, key)

    def groups(self, config: RouterConfig, source: str = "router", key: str = "") -> tuple[int, ...]:
        """The group sizes that it may use; raises `InputError` where there are none."""
        found = tuple(size for size in config.groups if self.group is None or size <= self.group)
        if not found:
            raise InputError(source, key, f"group {self.group} is below the smallest that there is, {config.groups[0]}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """What `rule_from_dict` reads back as the same: plain data, without what is left to defaults of the cluster."""
        raw = {key: _plain(getattr(self, _ATTRIBUTES.get(key, key))) for key in self.READERS}
        raw["group"] = raw["group"] or LARGEST
        raw["made_by"] = raw.pop("made_by") or None  # at the end
        return {"schema": SCHEMA, "kind": self.KIND, **{key: value for key, value in raw.items() if value is not None}}


@dataclass(frozen=True, kw_only=True)
class PlacedRule(RuleSpec):
    """A rule for widths on a placement, which is given by name."""

    READERS: ClassVar[Mapping[str, Reader]] = {"placement": _placement, **RuleSpec.READERS}

    placement: str = "sticky"

    def _composed(self, context: RouterContext, width: WidthRule, source: str, key: str) -> ComposedRouter:
        group = LargestGroup(self.groups(context.config, source, key))
        return ComposedRouter(make_placement(self.placement, context, width), width, group)


_ATTRIBUTES: Final = {"tuple": "tuple_"}  # Python's own word


def _plain(value: Any) -> Any:
    """Tuples as lists."""
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, Mapping) else value


def _check_tuple(widths: Widths, config: RouterConfig, source: str, key: str) -> None:
    if len(widths) != config.segments or not set(widths) <= set(config.widths):
        allowed = f"one of {', '.join(map(str, config.widths))} for each of {config.segments} segments"
        raise InputError(source, key, f"{list(widths)} does not fit the network: a width tuple needs {allowed}")


@dataclass(frozen=True, kw_only=True)
class FixedRule(PlacedRule):
    """One width tuple for every request; full width where none is given."""

    KIND: ClassVar[str] = "fixed"
    READERS: ClassVar[Mapping[str, Reader]] = {**PlacedRule.READERS, "tuple": _WIDTHS}

    tuple_: Widths | None = None

    def check(self, config: RouterConfig, source: str = "router", key: str = "") -> None:
        """Also its tuple."""
        super().check(config, source, key)
        if self.tuple_ is not None:
            _check_tuple(self.tuple_, config, source, key)

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> ComposedRouter:
        """See `RuleSpec`."""
        self.check(context.config, source, key)
        wanted = full_widths(context.config) if self.tuple_ is None else self.tuple_
        return self._composed(context, FixedWidths(context.config.widths, wanted), source, key)


@dataclass(frozen=True, kw_only=True)
class LadderRule(PlacedRule):
    """Width tuples by load (`widths.Ladder`).

    Attributes:
        rungs: width tuples, the most accurate first, one more than thresholds; None for efficient ones of the accuracy
            table, evenly.
        thresholds: requests per server, ascending.
    """

    KIND: ClassVar[str] = "ladder"
    READERS: ClassVar[Mapping[str, Reader]] = {
        **PlacedRule.READERS,
        "rungs": _many(_WIDTHS, "width tuples"),
        "thresholds": _thresholds,
    }

    rungs: tuple[Widths, ...] | None = None
    thresholds: tuple[float, ...] = LADDER_THRESHOLDS

    def __post_init__(self) -> None:
        if self.rungs is not None and len(self.rungs) != len(self.thresholds) + 1:
            raise ValueError(f"{len(self.rungs)} rungs and {len(self.thresholds)} thresholds; rungs are one more")

    def check(self, config: RouterConfig, source: str = "router", key: str = "") -> None:
        """Also its rungs."""
        super().check(config, source, key)
        for rung in self.rungs or ():
            _check_tuple(rung, config, source, key)

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> ComposedRouter:
        """See `RuleSpec`; a short accuracy table makes a short ladder: thresholds that are left over are dropped."""
        self.check(context.config, source, key)
        rungs = self.rungs or spread(efficient_tuples(context), len(self.thresholds) + 1)
        if not rungs:
            raise InputError(source, key, f"the accuracy table has no tuple of the widths {context.config.widths}")
        width = Ladder(context.config.widths, rungs, self.thresholds[: len(rungs) - 1])
        return self._composed(context, width, source, key)


@dataclass(frozen=True, kw_only=True)
class SlackFitRule(PlacedRule):
    """Width and group by slack (`slackfit.SlackFit`).

    Attributes:
        target_s: end-to-end latency target; None for the scenario's deadline, or a guess from the profiles.
    """

    KIND: ClassVar[str] = "slackfit"
    READERS: ClassVar[Mapping[str, Reader]] = {**PlacedRule.READERS, "target_s": _number(0, above=True)}

    target_s: float | None = None

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> SlackFit:
        """See `RuleSpec`."""
        config = context.config
        placement = make_placement(self.placement, context, FixedWidths(config.widths, full_widths(config)))
        target_s = default_target_s(context) if self.target_s is None else self.target_s
        share_ns = round(target_s * NS_PER_S / config.segments)
        return SlackFit(placement, context.costs, config.widths, self.groups(config, source, key), share_ns)


@dataclass(frozen=True, kw_only=True)
class InfaasRule(PlacedRule):
    """Each server's variant by its load (`infaas.Variants`).

    Attributes:
        floor: accuracy in [0, 1] of the cheapest variant, at least.
        target_s: as for `slackfit`.
        up, down: shares of the target; a server goes to a better variant while requests would wait for less than `up`
            of it, to a cheaper one above `down` of it.
    """

    KIND: ClassVar[str] = "infaas"
    READERS: ClassVar[Mapping[str, Reader]] = {
        **PlacedRule.READERS,
        "floor": _number(0, 1),
        "target_s": _number(0, above=True),
        "up": _number(0),
        "down": _number(0, above=True),
    }

    floor: float = 0.0
    target_s: float | None = None
    up: float = 0.02
    down: float = 0.1

    def __post_init__(self) -> None:
        if self.up >= self.down:
            raise ValueError(f"up ({self.up:g}) must be below down ({self.down:g})")

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> ComposedRouter:
        """See `RuleSpec`."""
        target_s = default_target_s(context) if self.target_s is None else self.target_s
        try:
            width = make_variants(context, self.floor, target_s, self.up, self.down)
        except ValueError as error:
            raise InputError(source, key, str(error)) from None
        return self._composed(context, width, source, key)


@dataclass(frozen=True, kw_only=True)
class MilpRule(RuleSpec):
    """Tuples and shares from a mixed integer programme, every period (`milp.Milp`). It places itself.

    Attributes:
        period_s: how often a plan is made.
        headroom: the demand to plan for, in times of the rate that was seen.
        utilization: the share of its time that a server may be planned to be busy.
    """

    KIND: ClassVar[str] = "milp"
    READERS: ClassVar[Mapping[str, Reader]] = {
        **RuleSpec.READERS,
        "period_s": _number(0.01),
        "headroom": _number(0, above=True),
        "utilization": _number(0, 1, above=True),
    }

    period_s: float = 2.0
    headroom: float = 1.2
    utilization: float = 0.5

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
        """See `RuleSpec`."""
        groups = self.groups(context.config, source, key)
        try:
            return make_milp(context, groups, self.period_s, self.headroom, self.utilization)
        except ValueError as error:
            raise InputError(source, key, str(error)) from None


RULES: Final[Mapping[str, type[RuleSpec]]] = {
    rule.KIND: rule for rule in (FixedRule, LadderRule, SlackFitRule, InfaasRule, MilpRule)
}


def rule_from_dict(raw: Mapping[str, Any], source: str = "rule") -> RuleSpec:
    """A rule from plain data, as its file holds it.

    Raises:
        InputError: naming `source`, the key, what was found and what is allowed.
    """
    kind = str(raw.get("kind"))
    if raw.get("schema") != SCHEMA:
        raise InputError(source, "schema", f"found {raw.get('schema')!r}; allowed is {SCHEMA!r}")
    if kind not in RULES:
        raise InputError(source, "kind", f"unknown {kind!r}; {nearest(kind, RULES)}")
    rule = RULES[kind]
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key in ("schema", "kind"):
            continue
        if key not in rule.READERS:
            raise InputError(source, str(key), f"unknown key of a {kind} rule; {nearest(str(key), rule.READERS)}")
        try:
            values[_ATTRIBUTES.get(key, key)] = rule.READERS[key](value)
        except ValueError as error:
            raise InputError(source, key, f"found {value!r:.80}; {error}") from None
    try:
        return rule(**values)
    except ValueError as error:
        raise InputError(source, "", str(error)) from None
