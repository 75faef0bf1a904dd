"""What leaving servers alone is worth: a fixed tuple on two placements, with and without holds.

python -m benchmarks.speed.packed
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from policies.rules.holding import HoldSpec
from policies.rules.specs import FixedRule
from scenarios.learn.course import Course
from scenarios.learn.tuning import knobs_of
from scenarios.world.materials import load_world

ROOT = Path(__file__).parents[2]
CASES = {
    "main-poisson50-10g": ((0.5, 0.5, 1.0, 1.0), 1),
    "main-poisson70-10g": ((0.5, 0.5, 0.75, 1.0), 1),
    "main-ten-10g": ((0.5, 0.5, 0.75, 1.0), 5),
}
HOLDS = (None, (4, 1e-3), (8, 4e-3), (16, 4e-3))


def rows(workers: ThreadPoolExecutor) -> Iterator[str]:
    """A line for each scenario, placement and hold: the mean of two runs of tuning."""
    for name, (widths, slower) in CASES.items():
        world = load_world(ROOT / f"scenarios/{name}.yaml")
        course = Course(world, knobs_of(world, seed=0), workers)
        for placement in ("sticky", "sticky-coming", "packed"):
            for given in HOLDS:
                segments = len(widths)
                hold = given and HoldSpec(requests=(given[0],) * segments, wait_s=(slower * given[1],) * segments)
                rule = FixedRule(tuple=widths, placement=placement, hold=hold)
                runs = [(rule, course.excerpt(f"x{part}", part)) for part in range(2)]
                scores = course.measure(runs)
                mean_ms, p99_ms = (1e3 * np.mean([getattr(s, each) for s in scores]) for each in ("mean_s", "p99_s"))
                image_j = np.mean([score.image_j for score in scores])
                held = "none" if given is None else f"{given[0]} requests, {1e3 * slower * given[1]:g} ms"
                yield f"| {name} | {placement} | {held} | {mean_ms:.1f} | {p99_ms:.1f} | {image_j:.3f} |"


if __name__ == "__main__":
    print("| scenario | placement | hold | mean ms | p99 ms | J an image |\n|---|---|---|---|---|---|")
    with ThreadPoolExecutor(2) as threads:
        for row in rows(threads):
            print(row, flush=True)
