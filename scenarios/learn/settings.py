"""What tuning picks from lists, for every kind of router alike: its placement, what is held for it, its largest group.

One after the other is set to what does best with the others as they are, on runs that all see alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np

from policies.rules.holding import HoldSpec
from policies.rules.placements import PLACEMENT_NAMES
from policies.rules.specs import LARGEST, PlacedRule, RuleSpec, Space
from policies.vocabulary import NS_PER_S
from scenarios.learn.evaluator import Evaluator, latency_cost, shortfall

PRICE: Final = 0.4  # what a point of accuracy is worth at first, in the logarithm of the latency
WAITS: Final = (0.1, 0.3, 1.0)  # of an equal share of what a request may be held in all, for each segment
FEWEST: Final = 4  # that a group is limited to, or that are waited for

Settings = Mapping[str, Any]


def holds_of(evaluator: Evaluator) -> tuple[HoldSpec | None, ...]:
    """Nothing, and until so many or for so long in every segment; nothing alone where nobody may be held."""
    config = evaluator.context.config
    share_s = config.max_batching_delay_ns / NS_PER_S / config.segments
    sizes = [group for group in config.groups if group >= FEWEST] if share_s else []
    return None, *(
        HoldSpec(requests=(size,) * config.segments, wait_s=(wait * share_s,) * config.segments)
        for size, wait in product(sizes, WAITS)
    )


def with_settings(spec: RuleSpec, settings: Settings) -> RuleSpec:
    """The same router with these."""
    return spec.model_copy(update=dict(settings))


def best_settings(spec: RuleSpec, evaluator: Evaluator, name: str, settings: Settings) -> Settings:
    """What does best with this router, beginning with some settings; the runs are named after `name`.

    Finding it comes on top of the budget of the search.
    """
    knobs = evaluator.knobs
    runs = [evaluator.trace_slice(f"{name}:{part}", part) for part in range(knobs.episodes)]
    found = dict(settings)
    for key, options in options_of(spec, evaluator):
        costs = []
        for option in options:
            tried = with_settings(spec, {**found, key: option})
            scores = evaluator.measure([(tried, run) for run in runs])
            costs.append(latency_cost(scores, knobs) + PRICE * max(0.0, shortfall(scores, knobs.floor)))
        found[key] = options[int(np.argmin(costs))]
    return found


def options_of(spec: RuleSpec, evaluator: Evaluator) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The settings in the order in which they are looked at; those with one option, or left as they are, not."""
    groups = tuple(group for group in evaluator.context.config.groups[:-1] if group >= FEWEST)
    found: dict[str, tuple[Any, ...]] = {
        "placement": PLACEMENT_NAMES if isinstance(spec, PlacedRule) else (),
        "hold": holds_of(evaluator),
        "group": (LARGEST, *groups),
    }
    for key, options in found.items():
        if len(options) > 1 and key not in evaluator.knobs.as_they_are:
            yield key, options


def settled(space: Space, settings: Settings) -> Space:
    """A space whose routers all have these settings."""
    return replace(space, spec=lambda values: with_settings(space.spec(values), settings))
