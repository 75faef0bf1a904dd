"""Width and group by slack, after SuperServe (Khare et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import ClassVar, Final

import numpy as np

from policies.interfaces import CostModel
from policies.rules.context import Placement, RouterContext
from policies.rules.costs import batch_ns, default_target_s, full_widths, outstanding_ns, transfer_ns
from policies.rules.placements import make_placement
from policies.rules.specs import Above0, PlacedRule, Space
from policies.rules.widths import FixedWidths
from policies.vocabulary import NS_PER_S, Choice, ClusterView, WorkKey

SLACK_BUCKETS: Final = 16


@dataclass(frozen=True, slots=True)
class SlackFit:
    """After SuperServe (Khare et al. 2025, SlackFit): the block's slack picks a bucket of expected latency.

    The choices (width, group) of the placed server are put into evenly spaced buckets of their expected latency. The
    last bucket that fits the slack completely is taken, or the first if none does; in it, the largest group, then the
    widest width. So a long slack allows width if the queue is short, and batching if it is long.

    Slack = the segment's share of the latency target, less the wait of the oldest candidate so far, less the server's
    outstanding work and the transfer.

    Attributes:
        share_ns: a segment's share of the end-to-end latency target.
    """

    placement: Placement
    costs: CostModel
    widths: tuple[float, ...]
    groups: tuple[int, ...]
    share_ns: int

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Decide for the view's candidate block."""
        server = self.placement(view, rng)
        options = self._options(view, server)
        first_ns = min(latency_ns for latency_ns, _, _ in options)
        spread_ns = max(max(latency_ns for latency_ns, _, _ in options) - first_ns, 1)
        buckets: dict[int, list[tuple[int, int, float]]] = {}
        for option in options:
            buckets.setdefault((option[0] - first_ns) * SLACK_BUCKETS // spread_ns, []).append(option)
        waited_ns = view.now_ns - view.head_entered_ns
        busy_ns = outstanding_ns(self.costs, view, server)
        slack_ns = self.share_ns - waited_ns - busy_ns - transfer_ns(self.costs, view, server)
        fitting = [number for number, bucket in buckets.items() if max(bucket)[0] <= slack_ns]
        _, group, width = max(buckets[max(fitting, default=0)], key=lambda option: option[1:])
        return Choice(server, width, group)

    def _options(self, view: ClusterView, server: int) -> list[tuple[int, int, float]]:
        """Return (expected latency in ns, group, width); groups beyond the first that takes all candidates change
        nothing."""
        groups = [g for g in self.groups if g < view.candidates]
        groups += [g for g in self.groups if g >= view.candidates][:1]
        held = zip(self.widths, view.servers[server].widths, strict=True)
        keys = [WorkKey(view.head.segment, width, view.head.previous_width) for width, holds in held if holds]
        return [
            (batch_ns(self.costs, server, key, min(group, view.candidates)), group, key.width)
            for key in keys
            for group in groups
        ]


class SlackFitRule(PlacedRule):
    """Width and group by slack (`SlackFit`).

    Attributes:
        target_s: end-to-end latency target; None for the scenario's deadline, or a guess from the profiles.
    """

    KIND: ClassVar[str] = "slackfit"

    target_s: Above0 | None = None

    @classmethod
    def space(cls, context: RouterContext, floor: float) -> Space:
        """Return the space of the target's logarithm."""
        first = np.array([log(default_target_s(context))])
        return Space("SlackFitSpace", first, np.array([1.5]), lambda x: cls(target_s=exp(x[0])))

    def dialled(self, by: float, context: RouterContext) -> SlackFitRule:
        """See `RuleSpec`."""
        return self.model_copy(update={"target_s": exp(by) * (self.target_s or default_target_s(context))})

    def chooser(self, context: RouterContext, source: str = "router", key: str = "") -> SlackFit:
        """See `RuleSpec`."""
        config = context.config
        expected = FixedWidths(config.widths, full_widths(config))
        placement = make_placement(self.placement, context, expected)
        target_s = default_target_s(context) if self.target_s is None else self.target_s
        share_ns = round(target_s * NS_PER_S / config.segments)
        groups = self.groups(config, source, key)
        return SlackFit(placement, context.costs, config.widths, groups, share_ns)
