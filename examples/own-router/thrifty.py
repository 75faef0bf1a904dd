"""A custom router: it saves joules as long as no image waits for it.

What a router may see is `policies.vocabulary.ClusterView`, what it is made of
`policies.rules.rule_context.RouterContext`.
"""

from __future__ import annotations

import numpy as np

from policies.rules.rule_context import RouterContext
from policies.vocabulary import Choice, ClusterView, WorkKey

STEP = 16  # requests at a server; with each so many more, images there run one width narrower


class Thrifty:
    """The server where an image costs the fewest joules, of those with short queues; narrower where they are long."""

    def __init__(self, context: RouterContext) -> None:
        self.config, self.costs = context.config, context.costs

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """For the micro-batch that waits; the first widest width whose turn it is."""
        valid = [index for index, server in enumerate(view.servers) if server.valid]
        index = min(valid, key=lambda index: (self.crowd(view, index), self.joules(view, index)))
        held = [width for width, fits in zip(self.config.widths, view.servers[index].widths, strict=True) if fits]
        return Choice(index, held[max(0, len(held) - 1 - self.crowd(view, index))], self.config.micro_batch_sizes[-1])

    def crowd(self, view: ClusterView, index: int) -> int:
        """How many steps of requests are at a server."""
        return view.servers[index].outstanding_requests // STEP

    def joules(self, view: ClusterView, index: int) -> float:
        """Of one image at full width there, by its profile."""
        return self.costs.energy_j(index, WorkKey(view.head.segment, 1.0, view.head.previous_width))
