"""The compiled twin of the simulator: the same rules over rows of numbers, for thousands of clusters at once.

It is the only permitted second copy of the rules. `sim.simulated_cluster` is the reference and does not depend on it;
for the same cluster, run and choices both give the same decisions, views, credits and records, bit for bit
(`tests/parity`). It refuses unsupported scenarios with `UnsupportedScenario`.
"""

from sim.compiled.row_layout import UnsupportedScenario

__all__ = ["UnsupportedScenario"]
