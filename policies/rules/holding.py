"""A router whose lines are held back by a rule: the core does that, and the router itself decides as it would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from kit.errors import InputError
from kit.strict import StrictModel
from policies.goal_control import GoalControl, Steered
from policies.interfaces import RouterConfig, RoutingPolicy
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
        """Whether it fits the network; raises `InputError` if not."""
        if len(self.requests) != config.segments:
            problem = f"holds {len(self.requests)} segments; the network has {config.segments}: one number for each"
            problem += "; `slimsched train` makes a rule for this network"
            raise InputError(source, f"{key}.hold" if key else "hold", problem)

    def rule(self) -> HoldRule:
        """The rule, as the router's core takes it."""
        wait_ns, arrivals_ns = (tuple(map(nanoseconds, each)) for each in (self.wait_s, self.arrivals_s))
        return HoldRule(self.requests, wait_ns, arrivals_ns)


@dataclass(frozen=True, slots=True)
class HoldingRouter(Steered):
    """A router, and what its core holds."""

    router: RoutingPolicy
    hold: HoldRule

    @property
    def control(self) -> GoalControl | None:
        """Where its goals are set: its router's."""
        return getattr(self.router, "control", None)

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | Hold:
        """What the router decides."""
        return self.router.choose(view, rng)


def holding(router: RoutingPolicy, hold: HoldSpec | None) -> RoutingPolicy:
    """A router with what is to be held; itself without."""
    return router if hold is None else HoldingRouter(router, hold.rule())
