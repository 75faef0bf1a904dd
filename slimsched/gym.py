"""Gymnasium's environments: importing this registers `SlimCluster-v0` and `JobCluster-v0`.

`gymnasium.make("slimsched.gym:SlimCluster-v0", scenario="paper")` does it by itself (`scenarios.gym`,
`slimsched.jobs.gym`).
"""

import slimsched.jobs.gym  # noqa: F401
