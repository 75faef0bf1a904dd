"""What tuning picks from lists, for every kind of router: its placement, what is held for it, its largest group.

Each setting in turn is set to the best option with the others as they are, on runs that are the same for all options;
after the first of them the better half continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from policies.rules.context import RouterContext
from policies.rules.holding import HoldSpec
from policies.rules.placements import PLACEMENT_NAMES
from policies.rules.specs import LARGEST, PlacedRule, RuleSpec, Space
from policies.vocabulary import NS_PER_S
from scenarios.learn.evaluator import Evaluator, lacking, latency_cost
from sim.compiled.scoring import RunScore

PRICE: Final = 0.4  # what a point of accuracy is worth at first, in the logarithm of the latency
EARLY: Final = 0.15  # of it after one run, which shows little of the floor
WAITS: Final = (0.3, 1.0)  # of what a request may be held in all, or of each segment's equal share of it
FEWEST: Final = 4  # that a group is limited to, or that are waited for
HOST: Final = ((1.0, 0.0), (1.7, 0.0), (1.7, 0.6), (2.7, 0.6))  # at the first segment and at later ones; see `holds_of`

Settings = Mapping[str, Any]


def holds_of(context: RouterContext) -> tuple[HoldSpec | None, ...]:
    """Return the options: nothing; until N or for a time, in every segment or at the first alone; or Compass' way.

    That is: as many as arrive while the router's host decides an image's end-to-end path alone, times a factor
    (`HOST`). If holding is not allowed, the only option is nothing.
    """
    config = context.config
    limit_s, later = config.max_batching_delay_ns / NS_PER_S, config.segments - 1
    share_s, host_s = limit_s / config.segments, config.segments * context.block_ns / NS_PER_S
    if not limit_s:
        return (None,)
    sizes = [(size, wait) for size in config.groups if size >= FEWEST for wait in WAITS]
    each = [HoldSpec(requests=(n,) * (later + 1), wait_s=(wait * share_s,) * (later + 1)) for n, wait in sizes]
    first = [HoldSpec(requests=(n, *[1] * later), wait_s=(wait * limit_s, *[0.0] * later)) for n, wait in sizes]
    by_host = [
        HoldSpec(
            requests=(FEWEST, *[1] * later),
            wait_s=(limit_s, *[share_s] * later),
            arrivals_s=(at_first * host_s, *[at_later * host_s] * later),
        )
        for at_first, at_later in (HOST if host_s else ())
    ]
    return None, *each, *first, *by_host


def with_settings(spec: RuleSpec, settings: Settings) -> RuleSpec:
    """Return the same router with these."""
    return spec.model_copy(update=dict(settings))


def best_settings(spec: RuleSpec, evaluator: Evaluator, name: str, settings: Settings) -> Settings:
    """Return the best settings for this router, beginning with some; the runs are named after `name`.

    Finding it comes on top of the budget of the search.
    """
    knobs = evaluator.knobs
    runs = [evaluator.trace_slice(f"{name}:{part}", part) for part in range(knobs.episodes)]

    def cost(scores: Sequence[RunScore], price: float = PRICE) -> float:
        return latency_cost(scores, knobs) + price * max(0.0, lacking(scores, knobs))

    picked = dict(settings)
    for key, options in options_of(spec, evaluator):
        specs = [with_settings(spec, {**picked, key: option}) for option in options]
        scores = evaluator.measure_all(specs, runs, partial(cost, price=EARLY * PRICE))
        picked[key] = options[min(scores, key=lambda place: cost(scores[place]))]
    return picked


def options_of(spec: RuleSpec, evaluator: Evaluator) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the settings in the order of the search; those with one option, or left as they are, not."""
    context, is_placed = evaluator.context, isinstance(spec, PlacedRule)
    options: dict[str, tuple[Any, ...]] = {
        "placement": PLACEMENT_NAMES if is_placed else (),
        "hold": holds_of(context),
        "group": (LARGEST, *(group for group in context.config.groups[:-1] if group >= FEWEST)),
    }
    for key, each in options.items():
        if len(each) > 1 and key not in evaluator.knobs.as_they_are:
            yield key, each


def settled(space: Space, settings: Settings) -> Space:
    """Return a space whose routers all have these settings."""
    return replace(space, spec=lambda values: with_settings(space.spec(values), settings))
