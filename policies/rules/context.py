"""The data from which a rule is built, and the parts of most rules: a placement, a width rule and a group rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from policies.goal_control import GoalControl, Steered
from policies.interfaces import CostModel, RouterConfig
from policies.reward import AccuracyPrior
from policies.vocabulary import Choice, ClusterView, ServerView

Placement = Callable[[ClusterView, np.random.Generator], int]
WidthRule = Callable[[ClusterView, int, np.random.Generator], float]
GroupRule = Callable[[ClusterView, np.random.Generator], int]
WorkingSet = tuple[tuple[bool, ...], ...]
"""(segments, widths) which widths a server may serve."""


@dataclass(frozen=True, slots=True)
class RouterContext:
    """The data from which a router is built.

    Attributes:
        config: the router core's settings: S, W, the groups, the widths of each server.
        costs: expected costs from the servers' profiles.
        prior: p_acc of Eq. 7.
        power_limits_w: (N,) each server's device power limit.
        deadline_s: end-to-end latency target, if the scenario has one (`slackfit` and `infaas` use it).
        block_ns: the host's time for a block, decided and returned, beyond its images.
        working_sets: (N, S, W) which widths each server may serve, so that all its instances fit together
            (`policies.rules.working_sets`); empty if no server is limited.
    """

    config: RouterConfig
    costs: CostModel
    prior: AccuracyPrior
    power_limits_w: tuple[float, ...]
    deadline_s: float | None = None
    block_ns: int = 0
    working_sets: tuple[WorkingSet, ...] = ()


@dataclass(frozen=True, slots=True)
class ComposedRouter(Steered):
    """A placement, then a width for that server, then a group."""

    placement: Placement
    width: WidthRule
    group: GroupRule

    @property
    def control(self) -> GoalControl | None:
        """The goals of its width rule."""
        return getattr(self.width, "control", None)

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Decide for the view's candidate block."""
        server = self.placement(view, rng)
        width = self.width(view, server, rng)
        return Choice(server, width, self.group(view, rng))


def drawn(count: int, rng: np.random.Generator) -> int:
    """Return a number from 0 to count - 1, uniform: one random draw."""
    return int(rng.random() * count)


def looked_at(view: ClusterView) -> Sequence[int]:
    """Return the servers that a decision examines."""
    return view.looked_at or range(len(view.servers))


def is_up(server: ServerView) -> bool:
    """Return whether a server seems up: one that can't take a block and has none seems down."""
    return server.valid or server.outstanding_blocks > 0
