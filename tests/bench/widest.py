"""The best that one width tuple can do for what is promised: of all efficient ones, who keeps most windows.

python -m tests.bench.widest mmpp-10g flash-1g      main scenarios by name, with the first seed of their comparison

Each tuple runs with placement, hold and group of the scenario's tuned `fixed`; of those that keep as many windows the
most accurate one is told. It is chosen on the very run that it is told of, so nobody could have done better with one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from policies.rules.costs import efficient_tuples
from policies.rules.specs import FixedRule, RuleSpec
from scenarios.metrics.catalogue import MEASURES
from scenarios.metrics.result import Result
from scenarios.runs.simulate import simulate_metrics
from scenarios.study.tuned_rows import rule_of_now
from scenarios.world.materials import load_world
from scenarios.world.world import World


def served(world: World, rule: RuleSpec) -> Result:
    """One run."""
    seed = world.scenario.compare.seeds[0]
    return simulate_metrics(world, rule.make(world.context), rule.KIND, seed, engine="compiled", detail=False)


def merit(result: Result) -> tuple[float, float]:
    """Windows kept, then accuracy."""
    return result["kept"]["both"] or 0.0, result["expected_accuracy"] or 0.0


def text(result: Result) -> str:
    """What counts of a run."""
    names = ("kept_share", "expected_accuracy", "latency_p99_s", "energy_per_image_j")
    return ", ".join(f"{name} {MEASURES[name].of(result):.4g}" for name in names)


def main() -> None:
    """A line a scenario."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", help="of main scenarios, without `main-`")
    for name in parser.parse_args().names:
        path = Path(f"scenarios/main-{name}.yaml")
        world = load_world(path)
        tuned = rule_of_now(path, world, FixedRule.KIND)
        assert isinstance(tuned, FixedRule), f"{name} has no tuned tuple"
        rules = [tuned.model_copy(update={"tuple_": each}) for each in efficient_tuples(world.context)]
        found = [(served(world, rule), rule) for rule in rules if world.accuracy.prior(rule.tuple_ or ()) > 0.74]
        result, rule = max(found, key=lambda each: merit(each[0]))
        print(f"{name}: {rule.tuple_}: {text(result)}", flush=True)


if __name__ == "__main__":
    main()
