"""Rules as plain data: the parameters in a rule file (`*.rule.yaml`), the space of tuning, and batching delays.

    schema: slimsched.rule/1
    kind: ladder                    # one of `policies.router_kinds.RULES`
    placement: sticky               # by name; a `milp` places itself
    micro_batch_size: largest       # or the largest number of requests in a micro-batch
    batching_delay: {requests: [8, 8, 8, 8], wait_s: [2e-4, 2e-4, 2e-4, 2e-4]}    # the core's rule; or nothing
    rungs: [[1, 1, 1, 1], [0.25, 0.5, 0.75, 1]]
    thresholds: [24]
    made_by: {command: slimsched train ..., seed: 7}         # anything; no decision depends on it

Batching delays: `DelayingRouter` is a router with a batching delay rule for the core (`BatchingDelaySpec`), and with
its widths limited to the servers' working sets.

Each kind of rule has a class with its parameters and their defaults. The classes of plain rules are in this module; the
classes of rules in separate modules are in those modules (`slackfit`, `infaas`, `milp`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp
from operator import and_
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace as replace_struct
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from kit.errors import InputError, nearest
from kit.strict import Plain, StrictModel, form
from policies.goal_control import MAX_STRETCH, GoalControl, Steered
from policies.interfaces import RouterConfig, RoutingPolicy
from policies.rules.rule_context import (
    ComposedRouter,
    PathRule,
    RouterContext,
    WidthRule,
    WorkingSet,
    corner_tuples,
    efficient_tuples,
    full_widths,
    spread,
)
from policies.rules.rule_parts import (
    PLACEMENT_NAMES,
    ControlledLadder,
    ControlSpec,
    FixedWidths,
    Ladder,
    LargestMicroBatch,
    RandomMicroBatch,
    RandomPlacement,
    RandomWidth,
    make_placement,
)
from policies.vocabulary import BatchingDelay, BatchingDelayRule, Choice, ClusterView, nanoseconds

# ------------------------------------------------------------------------------------------------------ batching delays


LONGEST_S = 3600.0


class BatchingDelaySpec(StrictModel):
    """By segment, for how many requests a batch queue waits, and for how long at most; 1, or 0 s, for no delay.

    Attributes:
        arrivals_s: by segment, it waits for the arrivals of this time, at the rate seen, if those are more; empty for
            `requests` alone.
    """

    requests: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    wait_s: Annotated[tuple[Annotated[float, Field(ge=0, le=LONGEST_S)], ...], Field(min_length=1)]

    arrivals_s: tuple[Annotated[float, Field(ge=0, le=LONGEST_S)], ...] = ()

    @model_validator(mode="after")
    def _one_a_segment(self) -> BatchingDelaySpec:
        for name, numbers in {"wait_s": self.wait_s, "arrivals_s": self.arrivals_s or self.wait_s}.items():
            if len(numbers) != len(self.requests):
                counts = f"{len(self.requests)} requests and {len(numbers)} {name}"
                raise ValueError(f"{counts}; each needs one a segment")
        return self

    def check(self, config: RouterConfig, source: str, key: str) -> None:
        """Check that it fits the network; raises `InputError` if not."""
        if len(self.requests) != config.segments:
            problem = f"holds {len(self.requests)} segments; the network has {config.segments}: one number for each"
            problem += "; `slimsched train` makes a rule for this network"
            raise InputError(source, f"{key}.batching_delay" if key else "batching_delay", problem)

    def rule(self) -> BatchingDelayRule:
        """Return the rule in the router core's form."""
        wait_ns, arrivals_ns = (tuple(map(nanoseconds, each)) for each in (self.wait_s, self.arrivals_s))
        return BatchingDelayRule(self.requests, wait_ns, arrivals_ns)


@dataclass(frozen=True, slots=True)
class DelayingRouter(Steered):
    """A router, its batching delay rule, and the widths that it may choose from.

    Attributes:
        sets: (servers, segments, widths) each server's working set; empty if none is limited.
    """

    router: RoutingPolicy
    batching_delay: BatchingDelayRule | None = None
    sets: tuple[WorkingSet, ...] = ()

    @property
    def control(self) -> GoalControl | None:
        """The goals of its router."""
        return getattr(self.router, "control", None)

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | BatchingDelay:
        """Decide as the router does."""
        return self.router.choose(self._limited(view) if self.sets else view, rng)

    def _limited(self, view: ClusterView) -> ClusterView:
        servers = zip(view.servers, (each[view.head.segment - 1] for each in self.sets), strict=True)
        narrowed = (replace_struct(server, widths=tuple(map(and_, server.widths, mask))) for server, mask in servers)
        return replace_struct(view, servers=tuple(narrowed))


def holding(router: RoutingPolicy, batching_delay: BatchingDelayRule | None, context: RouterContext) -> RoutingPolicy:
    """Wrap a router with a batching delay rule and a cluster's working sets; return the router itself if there is
    neither."""
    sets = context.working_sets
    return DelayingRouter(router, batching_delay, sets) if batching_delay is not None or sets else router


SCHEMA: Final = "slimsched.rule/1"
LARGEST: Final = "largest"
_BY_MODEL: Final = "take ladder, compass, slackfit, lookahead, or `fixed` with tuples by class"
LADDER_THRESHOLDS: Final[tuple[float, ...]] = (16.0, 32.0, 64.0, 128.0, 256.0)
MIN_STEP: Final = 0.01  # lower bound of tuning, between the logarithms of thresholds
MAX_HYSTERESIS: Final = 0.9  # upper bound of tuning: beyond, a ladder hardly ever steps back up
POINT: Final = 0.01  # of accuracy

Reals = npt.NDArray[np.float64]


# ------------------------------------------------------------------------------------------------------ plain values


def _ascending(values: tuple[float, ...]) -> tuple[float, ...]:
    if list(values) != sorted(set(values)):
        raise ValueError(f"{list(values)}: expected requests per server, ascending, from 0")
    return values


def _placement(value: object) -> object:
    if value not in PLACEMENT_NAMES:
        raise ValueError(f"no placement {value!r}; {nearest(str(value), PLACEMENT_NAMES)}")
    return value


Above0 = Annotated[float, Field(gt=0)]
From0 = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
ShareBelow1 = Annotated[float, Field(ge=0, lt=1)]
ShareAbove0 = Annotated[float, Field(gt=0, le=1)]
Widths = Annotated[tuple[ShareAbove0, ...], Field(min_length=1)]  # one for each segment
Rungs = Annotated[tuple[Widths, ...], Field(min_length=1)]
Thresholds = Annotated[tuple[From0, ...], Field(min_length=1), AfterValidator(_ascending)]
PlacementName = Annotated[str, BeforeValidator(_placement)]
Group = Annotated[
    Annotated[Literal["largest"], Tag("<word>")] | Annotated[int, Field(ge=1), Tag("<number>")], Discriminator(form)
]


# ------------------------------------------------------------------------------------------------------------- rules


class RouterSpec(Protocol):
    """A kind of router with its parameters: the meaning of every name and every file of a router."""

    def check(self, config: RouterConfig, source: str = "router", key: str = "") -> None:
        """Check that it fits a cluster's network; raises `InputError` (naming `source` and `key`) if not."""
        ...

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
        """Create a router for a cluster; raises `InputError` (naming `source` and `key`) if it doesn't fit."""
        ...

    def dialled(self, by: float, context: RouterContext) -> RouterSpec | None:
        """Return the same kind, more accurate and slower for `by` above 0, without separate goals; None without a
        dial."""
        ...


@dataclass(frozen=True, slots=True)
class Space:
    """The search space of tuning: the numbers of one kind of router.

    Attributes:
        stream: name of the search's random stream.
        start, spread: (K,) the start of the search, and its initial step sizes.
        spec: creates the router's parameters from such numbers.
        starts: (K,) each, possible starts: the first one, unless it overloads the cluster and another does not.
    """

    stream: str
    start: Reals
    spread: Reals
    spec: Callable[[Reals], RuleSpec]
    starts: Sequence[Reals] = ()


class RuleSpec(StrictModel, ABC):
    """A rule and its parameters; `make` gives a fresh router of it, which stays within the servers' working sets.

    Attributes:
        micro_batch_size: the most that a micro-batch may take, or `largest`.
        batching_delay: which batch queues the router's core delays; none if it is not given.
        made_by: the source of the parameters; free text, on which no decision depends.
    """

    KIND: ClassVar[str]
    BY_MODEL: ClassVar[bool] = True  # whether it can serve several models

    micro_batch_size: Group = "largest"
    batching_delay: BatchingDelaySpec | None = None
    made_by: Plain = Field(default_factory=dict)

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
        """Create a router for a cluster; raises `InputError` (naming `source` and `key`) if it doesn't fit."""
        batching_delay = None if self.batching_delay is None else self.batching_delay.rule()
        return holding(self.chooser(context, source, key), batching_delay, context)

    @abstractmethod
    def chooser(self, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
        """Create that router without its batching delay rule; raises `InputError` as `make` does."""

    @classmethod
    def space(cls, context: RouterContext, floor: float) -> Space | None:
        """Return the search space of tuning, for a mean accuracy of `floor`; None if there is little to choose from."""
        return None

    def dialled(self, by: float, context: RouterContext) -> RuleSpec | None:
        """Return the same rule, more accurate and slower for `by` above 0, without separate goals; None without a dial.

        A dial is the logarithm of the load, the price or the time at which the rule changes to narrower widths.
        """
        return None

    def check(self, config: RouterConfig, source: str = "router", key: str = "") -> None:
        """Check that the rule fits the network's segments and widths, and the micro-batch sizes; raises `InputError` if
        not."""
        if config.models and not self.BY_MODEL:
            raise InputError(source, key, f"{self.KIND} supports one model, here are {len(config.models)}; {_BY_MODEL}")
        self.micro_batch_sizes(config, source, key)
        if self.batching_delay is not None:
            self.batching_delay.check(config, source, key)

    def micro_batch_sizes(self, config: RouterConfig, source: str = "router", key: str = "") -> tuple[int, ...]:
        """Return the micro-batch sizes that it may use; raises `InputError` if there are none."""
        sizes = tuple(
            size
            for size in config.micro_batch_sizes
            if self.micro_batch_size == "largest" or size <= self.micro_batch_size
        )
        if not sizes:
            raise InputError(
                source,
                key,
                f"micro_batch_size {self.micro_batch_size} is below the smallest one, {config.micro_batch_sizes[0]}",
            )
        return sizes

    def to_dict(self) -> dict[str, Any]:
        """Return plain data from which `rule_from_dict` restores the rule, without values left to defaults of the
        cluster.

        A field is kept if its absence would have another meaning: Compass' `control: null`.
        """
        dumped = self.model_dump(mode="json", by_alias=True, exclude={"batching_delay"})
        made_by, micro_batch_size = dumped.pop("made_by"), dumped.pop("micro_batch_size")
        batching_delay = (
            None if self.batching_delay is None else self.batching_delay.model_dump(mode="json", exclude_defaults=True)
        )
        placement = {"placement": dumped.pop("placement")} if "placement" in dumped else {}
        defaults = {name: item.get_default(call_default_factory=True) for name, item in type(self).model_fields.items()}
        explicit = {key: value for key, value in dumped.items() if value is not None or defaults.get(key) is not None}
        return {
            "schema": SCHEMA,
            "kind": self.KIND,
            **placement,
            "micro_batch_size": micro_batch_size,
            **({"batching_delay": batching_delay} if batching_delay else {}),
            **explicit,
            **({"made_by": made_by} if made_by else {}),
        }


class PlacedRule(RuleSpec):
    """A rule for widths on a placement, which is given by name."""

    placement: PlacementName = "sticky"

    def _composed(self, context: RouterContext, width: WidthRule, source: str, key: str) -> ComposedRouter:
        micro_batch_size = LargestMicroBatch(self.micro_batch_sizes(context.config, source, key))
        placement = make_placement(self.placement, context, width)
        return ComposedRouter(placement, width, micro_batch_size)


def _check_tuple(
    tuple_: tuple[float, ...], config: RouterConfig, source: str, key: str, widths: Sequence[float] = ()
) -> None:
    """Check `widths`, of a class's model; a tuple for all classes is of all models."""
    if config.models and not widths:
        raise InputError(source, key, f"{list(tuple_)} is of one model, here are {len(config.models)}; {_BY_MODEL}")
    widths = widths or config.widths
    if len(tuple_) != config.segments or not set(tuple_) <= set(widths):
        allowed = f"one of {', '.join(map(str, widths))} for each of {config.segments} segments"
        raise InputError(source, key, f"{list(tuple_)} does not fit the network: a width tuple needs {allowed}")


class TupleRule(PlacedRule):
    """A rule that has a width tuple for each micro-batch.

    Attributes:
        paths: whether a micro-batch passes all its segments at its server, at the widths of one tuple, without further
            decisions.
    """

    paths: bool = False

    def _composed(self, context: RouterContext, width: WidthRule, source: str, key: str) -> ComposedRouter:
        if not self.paths:
            return super()._composed(context, width, source, key)
        # with paths no work is still to come to a server
        placed = self.model_copy(update={"placement": self.placement.removesuffix("-coming"), "paths": False})
        return replace(placed._composed(context, width, source, key), paths=PathRule.of(context))


class FixedRule(TupleRule):
    """One width tuple for every request; full width where none is given.

    Attributes:
        tuples: one for each class of requests, by its name, instead of `tuple`.
    """

    KIND: ClassVar[str] = "fixed"

    tuple_: Widths | None = Field(None, alias="tuple")
    tuples: dict[str, Widths] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> FixedRule:
        if self.tuple_ is not None and self.tuples is not None:
            raise ValueError("tuple and tuples are both given; give tuple for all requests, or tuples by class")
        return self

    def check(self, config: RouterConfig, source: str = "router", key: str = "") -> None:
        """Check its tuple, too."""
        super().check(config, source, key)
        if self.tuple_ is not None:
            _check_tuple(self.tuple_, config, source, key)
        if self.tuples is None:
            return
        if set(self.tuples) != set(config.classes):
            has = f"the scenario's classes are {', '.join(config.classes)}" if config.classes else "it has no classes"
            raise InputError(source, f"{key}.tuples" if key else "tuples", f"names {', '.join(self.tuples)}, but {has}")
        for name, widths in zip(config.classes, config.class_widths, strict=True):
            _check_tuple(self.tuples[name], config, source, key, widths)

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
        """See `RuleSpec`; its tuple does not depend on whether a server holds all of it together."""
        return super().make(replace(context, working_sets=()), source, key)

    def chooser(self, context: RouterContext, source: str = "router", key: str = "") -> ComposedRouter:
        """See `RuleSpec`."""
        self.check(context.config, source, key)
        config = context.config
        tuple_ = full_widths(config) if self.tuple_ is None else self.tuple_
        by_class = () if self.tuples is None else tuple(self.tuples[name] for name in config.classes)
        return self._composed(context, FixedWidths(config.widths, tuple_, by_class), source, key)


class LadderRule(TupleRule):
    """Width tuples by load (`rule_parts.Ladder`).

    Attributes:
        rungs: width tuples, the most accurate first, one more than thresholds; None for efficient ones of the accuracy
            table, evenly.
        thresholds: requests per server, ascending.
        hysteresis: a rung is left upwards only at its threshold times (1 - hysteresis).
        control: that it keeps goals, for which its thresholds move; fixed if not given.
    """

    KIND: ClassVar[str] = "ladder"

    rungs: Rungs | None = None
    thresholds: Thresholds = LADDER_THRESHOLDS
    hysteresis: ShareBelow1 = 0.0
    control: ControlSpec | None = None

    @model_validator(mode="after")
    def _one_more_rung(self) -> LadderRule:
        if self.rungs is not None and len(self.rungs) != len(self.thresholds) + 1:
            raise ValueError(f"{len(self.rungs)} rungs and {len(self.thresholds)} thresholds; rungs are one more")
        return self

    @classmethod
    def space(cls, context: RouterContext, floor: float) -> Space:
        """Return the space of three numbers: the first threshold, the ratio of each to the previous one, both as
        logarithms; hysteresis.

        The rungs are the corners of the accuracy table's front. A separate threshold for each of eight rungs was found
        to be harder to search: on two scenarios the mean latencies of three searches differed by 17 and 107 %.
        """
        rungs = tuple(corner_tuples(context))

        def rule(values: Reals) -> LadderRule:
            first, step, hysteresis = values.tolist()
            thresholds = np.exp(first + max(step, MIN_STEP) * np.arange(max(len(rungs) - 1, 1)))
            return cls(
                rungs=rungs if len(rungs) > 1 else None,
                thresholds=tuple(thresholds.tolist()),
                hysteresis=min(max(hysteresis, 0.0), MAX_HYSTERESIS),
            )

        starts = [np.array([first, 0.25, 0.1]) for first in (2.5, 1.5, 0.5, 3.5)]
        return Space("LadderSpace", starts[0], np.array([0.8, 0.2, 0.2]), rule, starts)

    def dialled(self, by: float, context: RouterContext) -> LadderRule:
        """See `RuleSpec`."""
        thresholds = tuple(exp(by) * load for load in self.thresholds)
        return self.model_copy(update={"thresholds": thresholds, "control": None})

    def check(self, config: RouterConfig, source: str = "router", key: str = "") -> None:
        """Check its rungs, too."""
        super().check(config, source, key)
        for rung in self.rungs or ():
            _check_tuple(rung, config, source, key)

    def chooser(self, context: RouterContext, source: str = "router", key: str = "") -> ComposedRouter:
        """See `RuleSpec`; a short accuracy table makes a short ladder: surplus thresholds are dropped."""
        self.check(context.config, source, key)
        config, count = context.config, len(self.thresholds) + 1
        of_model = [self.rungs or spread(efficient_tuples(context, each), count) for each in config.model_widths]
        for widths, rungs in zip(config.model_widths, of_model, strict=True):
            if not rungs:
                raise InputError(source, key, f"the accuracy table has no tuple of the widths {widths}")
        by_class, at = tuple(of_model[model] for model in config.class_models), [0] * config.class_count
        thresholds = self.thresholds[: max(map(len, by_class)) - 1]
        ladder = Ladder(config.widths, by_class, thresholds, self.hysteresis, at)
        if self.control is None:
            return self._composed(context, ladder, source, key)
        control = self.control.make(context.config, source, key, MAX_STRETCH)
        return self._composed(context, ControlledLadder(ladder, control), source, key)


@dataclass(frozen=True, slots=True)
class PaperRandom:
    """The paper's baseline: a valid server, a held width and a micro-batch size, each uniform. It has no parameters."""

    def check(self, config: RouterConfig, source: str = "router", key: str = "") -> None:
        """Accept every cluster."""

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> ComposedRouter:
        """Create a router for a cluster."""
        return ComposedRouter(
            RandomPlacement(), RandomWidth(context.config.widths), RandomMicroBatch(context.config.micro_batch_sizes)
        )

    def dialled(self, by: float, context: RouterContext) -> None:
        """Return None: it has no dial."""
