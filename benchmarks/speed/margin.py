"""Is being told goals worth more than a margin that is found by trying? Ladders and Tide, stretched by a constant.

python -m benchmarks.speed.margin mmpp-10g failing-10g      main scenarios by name

All thresholds, or the loads at which Tide's price has its values, are e^by times as high; `told` keeps what the
scenario promises while it serves. Five runs with seeds of the comparison, means. Whoever picks the best line of them
has seen the runs that it is told of.
"""

from __future__ import annotations

from math import exp

from benchmarks.speed.promised import asked_for, means, told, tuned
from policies.rules.specs import LadderRule, RuleSpec
from policies.rules.tide import TideRule
from scenarios.learn.tuned_files import with_control

RUNS = 5
STRETCHES = (0.0, 0.25, 0.5, 0.75, 1.0)


def stretched(rule: RuleSpec, by: float) -> RuleSpec:
    """The same router, later on every step down."""
    if isinstance(rule, LadderRule):
        return rule.model_copy(update={"thresholds": tuple(each * exp(by) for each in rule.thresholds)})
    assert isinstance(rule, TideRule)
    return rule.model_copy(update={"level": rule.level - by * max(1.0, rule.rise)})


def main() -> None:
    """A line a router and stretch."""
    for name, path, world in asked_for(__doc__):
        for kind in (LadderRule.KIND, TideRule.KIND):
            rule = tuned(path, world, kind)
            ways = {f"{by:g}": stretched(rule, by) for by in STRETCHES} | {"told": with_control(rule)}
            for way, its in ways.items():
                print(f"{name} {kind} {way}: {told(means(world, its, RUNS))}", flush=True)


if __name__ == "__main__":
    main()
