"""Is being told goals worth more than a margin that is found by trying? Ladders and Tide, stretched by a constant.

python -m tests.bench.margin mmpp-10g failing-10g      main scenarios by name

All thresholds, or the loads at which Tide's price has its values, are e^by times as high; `told` keeps what the
scenario promises while it serves. Five runs with seeds of the comparison, means. Whoever picks the best line of them
has seen the runs that it is told of.
"""

from __future__ import annotations

import argparse
from math import exp
from pathlib import Path

import numpy as np

from policies.rules.specs import LadderRule, RuleSpec
from policies.rules.tide import TideRule
from scenarios.learn.tuned_files import with_control
from scenarios.metrics.catalogue import MEASURES
from scenarios.runs.simulate import simulate_metrics
from scenarios.study.tuned_rows import rule_of_now
from scenarios.world.materials import load_world
from scenarios.world.world import World

RUNS = 5
STRETCHES = (0.0, 0.25, 0.5, 0.75, 1.0)


def stretched(rule: RuleSpec, by: float) -> RuleSpec:
    """The same router, later on every step down."""
    if isinstance(rule, LadderRule):
        return rule.model_copy(update={"thresholds": tuple(each * exp(by) for each in rule.thresholds)})
    assert isinstance(rule, TideRule)
    return rule.model_copy(update={"level": rule.level - by * max(1.0, rule.rise)})


def text(world: World, rule: RuleSpec) -> str:
    """Means of its runs."""
    seeds = world.scenario.compare.seeds[:RUNS]
    results = [
        simulate_metrics(world, rule.make(world.context), rule.KIND, seed, engine="compiled", detail=False)
        for seed in seeds
    ]
    names = ("kept_share", "expected_accuracy", "latency_p99_s", "latency_mean_s", "energy_per_image_j")
    return ", ".join(f"{name} {np.mean([MEASURES[name].of(each) for each in results]):.4g}" for name in names)


def main() -> None:
    """A line a router and stretch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", help="of main scenarios, without `main-`")
    for name in parser.parse_args().names:
        path = Path(f"scenarios/main-{name}.yaml")
        world = load_world(path)
        for kind in ("ladder", "tide"):
            rule = rule_of_now(path, world, kind)
            assert rule is not None, f"{name} has no tuned {kind}"
            for by in STRETCHES:
                print(f"{name} {kind} {by:g}: {text(world, stretched(rule, by))}", flush=True)
            print(f"{name} {kind} told: {text(world, with_control(rule))}", flush=True)


if __name__ == "__main__":
    main()
