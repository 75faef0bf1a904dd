"""Gymnasium's environment: importing this registers `SlimCluster-v0`.

`gymnasium.make("slimsched.gym:SlimCluster-v0", scenario="paper")` imports it (`scenarios.cluster_gym`).
"""

import scenarios.cluster_gym  # noqa: F401
