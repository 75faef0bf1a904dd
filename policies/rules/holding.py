"""A router with a hold rule for the core, and with widths limited to the servers' working sets."""

from __future__ import annotations

from dataclasses import dataclass
from operator import and_
from typing import Annotated

import numpy as np
from msgspec.structs import replace
from pydantic import Field, model_validator

from kit.errors import InputError
from kit.strict import StrictModel
from policies.goal_control import GoalControl, Steered
from policies.interfaces import RouterConfig, RoutingPolicy
from policies.rules.context import RouterContext, WorkingSet
from policies.vocabulary import Choice, ClusterView, Hold, HoldRule, nanoseconds

LONGEST_S = 3600.0


class HoldSpec(StrictModel):
    """By segment, until how many requests a line waits, and for how long at most: nobody waits for 1, or for 0 s.

    Attributes:
        arrivals_s: by segment, it waits for as many as arrive within this time, at the rate seen, where those are more;
            or none of it.
    """

    requests: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    wait_s: Annotated[tuple[Annotated[float, Field(ge=0, le=LONGEST_S)], ...], Field(min_length=1)]

    arrivals_s: tuple[Annotated[float, Field(ge=0, le=LONGEST_S)], ...] = ()

    @model_validator(mode="after")
    def _one_a_segment(self) -> HoldSpec:
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
            raise InputError(source, f"{key}.hold" if key else "hold", problem)

    def rule(self) -> HoldRule:
        """Return the rule in the router core's form."""
        wait_ns, arrivals_ns = (tuple(map(nanoseconds, each)) for each in (self.wait_s, self.arrivals_s))
        return HoldRule(self.requests, wait_ns, arrivals_ns)


@dataclass(frozen=True, slots=True)
class HoldingRouter(Steered):
    """A router, its hold rule, and the widths that it may choose from.

    Attributes:
        sets: (servers, segments, widths) each server's working set; empty if none is limited.
    """

    router: RoutingPolicy
    hold: HoldRule | None = None
    sets: tuple[WorkingSet, ...] = ()

    @property
    def control(self) -> GoalControl | None:
        """The goals of its router."""
        return getattr(self.router, "control", None)

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | Hold:
        """Decide as the router does."""
        return self.router.choose(self._limited(view) if self.sets else view, rng)

    def _limited(self, view: ClusterView) -> ClusterView:
        servers = zip(view.servers, (each[view.head.segment - 1] for each in self.sets), strict=True)
        narrowed = (replace(seen, widths=tuple(map(and_, seen.widths, mask))) for seen, mask in servers)
        return replace(view, servers=tuple(narrowed))


def holding(router: RoutingPolicy, hold: HoldRule | None, context: RouterContext) -> RoutingPolicy:
    """Wrap a router with a hold rule and a cluster's working sets; return the router itself if there is neither."""
    sets = context.working_sets
    return HoldingRouter(router, hold, sets) if hold is not None or sets else router
