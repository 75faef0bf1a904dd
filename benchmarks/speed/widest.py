"""The best that one width tuple can do for what is promised: of all efficient ones, who keeps most windows.

python -m benchmarks.speed.widest mmpp-10g flash-1g      main scenarios by name, with the first seed of their comparison

Each tuple runs with placement, hold and group of the scenario's tuned `fixed`; of those that keep as many windows the
most accurate one is told. It is chosen on the very run that it is told of.
"""

from __future__ import annotations

from benchmarks.speed.promised import asked_for, means, told, tuned
from policies.rules.costs import efficient_tuples
from policies.rules.specs import FixedRule

LEAST = 0.74  # of accuracy: narrower ones keep no scenario's floor


def main() -> None:
    """A line a scenario."""
    for name, path, world in asked_for(__doc__):
        base = tuned(path, world, FixedRule.KIND)
        tuples = [each for each in efficient_tuples(world.context) if world.accuracy.prior(each) > LEAST]
        found = [(means(world, base.model_copy(update={"tuple_": each}), 1), each) for each in tuples]
        best, widths = max(found, key=lambda each: (each[0]["kept_share"], each[0]["expected_accuracy"]))
        print(f"{name}: {widths}: {told(best)}", flush=True)


if __name__ == "__main__":
    main()
