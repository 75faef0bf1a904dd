"""Routers by name: `kind[:numbers][@placement]`, or a user's class as `module:Class`; rules also as plain data.

`policies.router_kinds` lists the kinds. A name, or a file, stands for a `RouterSpec`, which creates routers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from kit import strict
from kit.errors import InputError, WorkError, in_a_line, nearest
from kit.plugins import FAILURES, blaming, code_hash, failure, is_own, own_class
from policies.interfaces import RouterConfig, RoutingPolicy, batching_delay_rule_of, limit_ns_of
from policies.router_kinds import KINDS, RULES, RouterKind
from policies.rules.rule_context import RouterContext
from policies.rules.rule_params import SCHEMA, FixedRule, RouterSpec, RuleSpec
from policies.rules.rule_parts import PLACEMENT_NAMES
from policies.vocabulary import FOLLOW_NS, BatchingDelay, BatchingDelayRule, Choice, ClusterView

ROUTER_NAMES: Final = tuple(
    dict.fromkeys((*PLACEMENT_NAMES, *(kind.name for kind in KINDS.values() if not kind.needs_numbers)))
)

MAX_BATCHING_DELAY: Final = 1 << 62  # of a batching delay rule's numbers: an engine counts in 64 bits


# -------------------------------------------------------------------------------------------------------- by name


def parse_router_name(name: str, source: str = "router", key: str = "") -> RouterSpec:
    """Return the spec that a name stands for; raises `InputError` (naming `source` and `key`) if there is none.

    It neither imports a user's class nor checks a width tuple against a cluster: `make` does both.
    """
    rule, has_placement, placement = name.partition("@")
    kind_name, _, argument = rule.partition(":")
    kind = KINDS.get(kind_name)
    if has_placement and not (kind is not None and kind.is_placed and placement in PLACEMENT_NAMES):
        placed = ", ".join(sorted(each.name for each in KINDS.values() if each.is_placed))
        problem = f"{name!r}: a placement is named after `@` of {placed}; {nearest(placement, PLACEMENT_NAMES)}"
        raise InputError(source, key, problem)
    parameters = {"placement": placement} if has_placement else {}
    if kind is not None and kind.numbers and (argument or kind.needs_numbers):
        return _with_numbers(name, kind, argument, parameters, source, key)
    if rule in KINDS:
        return cast(RouterSpec, KINDS[rule].load()(**parameters))
    if rule in PLACEMENT_NAMES:
        return FixedRule(placement=rule)
    if is_own(rule) and kind_name not in ROUTER_NAMES:
        return OwnRouter(rule)
    closest = nearest(name, (*ROUTER_NAMES, "fixed:w1,w2,..."))
    remedy = "or `module:Class`, a rule file (*.rule.yaml), or a file that `slimsched train` wrote"
    raise InputError(source, key, f"unknown router {name!r}; {closest}, {remedy}")


def _with_numbers(
    name: str, kind: RouterKind, argument: str, parameters: Mapping[str, Any], source: str, key: str
) -> RuleSpec:
    try:
        numbers = [float(number) for number in argument.split(",")]
    except ValueError:
        raise InputError(source, key, f"{name!r}: numbers with commas between them follow the colon") from None
    try:
        spec: RuleSpec = strict.validate(kind.load(), {**parameters, kind.numbers: numbers}, source)
    except InputError as error:
        raise InputError(source, key, f"{name!r}: {kind.numbers}: {error.problem}") from None
    return spec


def make_router(name: str, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
    """Create a router by its name; raises `InputError` (naming `source` and `key`) if that is impossible."""
    parsed = parse_router_name(name, source, key)
    if isinstance(parsed, OwnRouter):
        return parsed.make(context, source, key)
    try:
        return parsed.make(context, source, key)
    except InputError as error:
        raise InputError(source, key, f"{name!r}: {error.problem}") from error.__cause__


# -------------------------------------------------------------------------------------------------- as plain data


def rule_from_dict(raw: Mapping[str, Any], source: str = "rule") -> RuleSpec:
    """Create a rule from plain data, as in its file.

    Raises:
        InputError: naming `source`, the key, what was found and what is expected.
    """
    kind = str(raw.get("kind"))
    if raw.get("schema") != SCHEMA:
        raise InputError(source, "schema", f"found {raw.get('schema')!r}; expected {SCHEMA!r}")
    if kind not in RULES:
        raise InputError(source, "kind", f"unknown {kind!r}; {nearest(kind, RULES)}")
    parameters = {key: value for key, value in raw.items() if key not in ("schema", "kind")}
    spec: RuleSpec = strict.validate(KINDS[kind].load(), parameters, source)
    return spec


# ------------------------------------------------------------------------------------------------ a user's own class


@dataclass(frozen=True, slots=True)
class OwnRouter:
    """A user's class, `module:Class`: imported when a router is created, and called with the context.

    Attributes:
        dial: the value of its routers' attribute `dial` before the first decision, if they have one.
    """

    name: str
    dial: float = 0.0

    def check(self, config: RouterConfig, source: str = "router", key: str = "") -> None:
        """Accept anything: the class is not known before it is imported."""

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
        """Create a router; an exception of the class meanwhile becomes an `InputError`."""
        instance = own_class(self.name, source, key)
        with blaming(self.name, source, key, f"{self.name.partition(':')[2]}(context)"):
            router: RoutingPolicy = instance(context)
            if self.dial:
                router.dial = self.dial  # type: ignore[attr-defined]
        if not callable(getattr(router, "choose", None)):
            raise InputError(source, key, f"{self.name!r} has no method choose(view, rng) -> Choice")
        is_ours = type(router).__module__.startswith("policies.")  # its choices need no check
        return router if is_ours else CheckedRouter(self.name, router, context.config)

    def dialled(self, by: float, context: RouterContext) -> OwnRouter | None:
        """Return a dialled spec (see `RouterSpec`): a class has a dial if its routers have an attribute `dial`."""
        return OwnRouter(self.name, by) if hasattr(own_class(self.name, "router", ""), "dial") else None

    def code_hash(self, source: str = "router", key: str = "") -> str:
        """Hash the class's module and what it imports; raises `InputError` if it is missing, or is refused."""
        return code_hash(self.name, source, key)


@dataclass(frozen=True, slots=True)
class CheckedRouter:
    """A user's router with its choices checked before they reach a core."""

    name: str
    router: RoutingPolicy
    config: RouterConfig

    @property
    def batching_delay(self) -> BatchingDelayRule | None:
        """The router's batching delay rule; raises `WorkError` if it does not fit this network."""
        try:
            rule = batching_delay_rule_of(self.router)
        except FAILURES as error:
            raise WorkError(f"{self.name}: batching_delay: {failure(error)}") from error
        if rule is None:
            return None
        numbers = [*rule.requests, *rule.wait_ns, *rule.arrivals_ns] if isinstance(rule, BatchingDelayRule) else [None]
        is_one = all(type(number) is int and 0 <= number < MAX_BATCHING_DELAY for number in numbers)
        if not is_one or rule.counts != {self.config.segments}:
            expected = "a policies.vocabulary.BatchingDelayRule(requests, wait_ns, arrivals_ns) with a whole number"
            found = in_a_line(repr(rule))
            problem = f"batching_delay is {found}; expected is {expected}, from 0, for each segment, or None"
            raise WorkError(f"{self.name}: {problem}")
        return rule

    @property
    def p99_limit_ns(self) -> int:
        """The router's separate limit; raises `WorkError` if it is invalid."""
        try:
            limit_ns = limit_ns_of(self.router)
        except FAILURES as error:
            raise WorkError(f"{self.name}: p99_limit_ns: {failure(error)}") from error
        if type(limit_ns) is not int or not FOLLOW_NS <= limit_ns < MAX_BATCHING_DELAY:
            allowed = f"whole nanoseconds, 0 for none, or {FOLLOW_NS} for the operator's"
            raise WorkError(f"{self.name}: p99_limit_ns is {in_a_line(repr(limit_ns))}; expected {allowed}")
        return limit_ns

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | BatchingDelay:
        """Return the router's choice; raises `WorkError` if it is invalid, or if the router fails."""
        try:
            choice = self.router.choose(view, rng)
            shown = in_a_line(repr(choice))
        except FAILURES as error:
            raise WorkError(f"{self.name}: choose: {failure(error, 'choose(view, rng)')}") from error
        most = self.config.micro_batch_sizes[-1]  # a micro-batch takes no more; an engine counts in 64 bits
        problem = batching_delay_problem(choice, view, most) if isinstance(choice, BatchingDelay) else None
        if not isinstance(choice, BatchingDelay):
            choice = _plain(choice)
            problem = problem_with(choice, view, self.config)
        if problem is not None:
            raise WorkError(f"{self.name}: choose returned {shown}; {problem}")
        if isinstance(choice, BatchingDelay):
            return BatchingDelay(choice.requests, min(choice.wait_ns, view.batching_delay_left_ns))
        return Choice(choice.server, choice.width, min(choice.micro_batch_size, most), choice.then or ())


def _plain(choice: Choice) -> Choice:
    """Convert numpy's numbers, and whole widths, to Python's; other values stay as they are."""
    if not isinstance(choice, Choice):
        return choice
    server, micro_batch_size = (
        int(part) if isinstance(part, np.integer) else part for part in (choice.server, choice.micro_batch_size)
    )
    then = tuple(map(_plain_width, choice.then)) if isinstance(choice.then, tuple | list | np.ndarray) else choice.then
    return Choice(server, _plain_width(choice.width), micro_batch_size, then)


def _plain_width(width: float) -> float:
    is_number = isinstance(width, int | np.integer | np.floating) and not isinstance(width, bool)
    return float(width) if is_number else width


def batching_delay_problem(batching_delay: BatchingDelay, view: ClusterView, most: int) -> str | None:
    """Return what is wrong with a batching delay for a view, and what is expected; None if it can begin."""
    if view.batching_delay_left_ns <= 0:
        return (
            "these candidates may not be held now (view.batching_delay_left_ns is 0; see router.max_batching_delay_s)"
        )
    if type(batching_delay.requests) is not int or type(batching_delay.wait_ns) is not int:
        return "expected Python's int for requests and wait_ns"
    if not view.candidates < batching_delay.requests <= most:
        return f"expected requests: from {view.candidates + 1} (one more than wait) to {most} (the largest micro-batch)"
    return None if batching_delay.wait_ns >= 1 else "wait_ns must be above 0"


def problem_with(choice: object, view: ClusterView, config: RouterConfig) -> str | None:
    """Return what is wrong with a choice for a view, and what is expected; None if it is valid."""
    if not isinstance(choice, Choice):
        return "expected a policies.vocabulary.Choice(server, width, micro_batch_size)"
    if type(choice.server) is not int or type(choice.width) is not float or type(choice.micro_batch_size) is not int:
        kinds = ", ".join(type(part).__name__ for part in (choice.server, choice.width, choice.micro_batch_size))
        return f"expected Python's int, float and int for server, width and micro-batch size, not {kinds}"
    valid = [index for index, server in enumerate(view.servers) if server.valid]
    if choice.server not in valid:
        return f"expected servers: those that are valid now: {', '.join(map(str, valid))}"
    held = [width for width, is_held in zip(config.widths, view.servers[choice.server].widths, strict=True) if is_held]
    if choice.width not in held:
        return f"expected widths on server {choice.server}: {', '.join(map(str, held))}"
    if choice.micro_batch_size < 1:
        return "expected: micro_batch_size, a whole number from 1"
    return _problem_with_path(choice, view, config) if choice.then else None


def _problem_with_path(choice: Choice, view: ClusterView, config: RouterConfig) -> str | None:
    left = config.segments - view.head.segment
    if not isinstance(choice.then, tuple) or len(choice.then) > left:
        return f"expected then: a tuple of widths of at most {left} following segments"
    masks = config.masks()[choice.server]
    for segment, width in enumerate(choice.then, start=view.head.segment + 1):
        mask = masks[config.place_of(segment, view.head.service_class)]
        held = [width for width, is_held in zip(config.widths, mask, strict=True) if is_held]
        if width not in held:
            return f"expected then: widths of segment {segment} on server {choice.server}: {', '.join(map(str, held))}"
    return None
