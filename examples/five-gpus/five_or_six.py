"""Five GPUs beside six, the sixth of one's own: which helps more, a GPU or a router that narrows?

In this folder, when `rtx-4070.yaml` was made (`scenario.yaml` shows how): `python five_or_six.py`. It prints:

    five  jsq     mean 0.339 +-0.158 s  p99 1.11 +-0.33 s  accuracy 76.43% +-0.00%  0.99 +-0.07 J/image
    five  ladder  mean 0.073 +-0.006 s  p99 0.21 +-0.02 s  accuracy 76.18% +-0.08%  0.90 +-0.09 J/image
    six   jsq     mean 0.086 +-0.015 s  p99 0.32 +-0.05 s  accuracy 76.43% +-0.00%  1.01 +-0.08 J/image
    six   ladder  mean 0.062 +-0.004 s  p99 0.19 +-0.02 s  accuracy 76.31% +-0.04%  0.95 +-0.09 J/image

In bursts full width (`jsq`) waits. The sixth GPU cuts its mean latency to a quarter. The ladder on five GPUs does a
little more than that, for a quarter of a point of accuracy. With both, it narrows less. Energies differ by less
than their intervals; seed by seed (`energy_per_image_change_pct`) more could be told.
"""

from __future__ import annotations

import slimsched

MINE = {"name": "mine", "device": {"emulated": "rtx-4070.yaml", "slowdown": 20}, "link": "10gbe"}
BASELINE = {"compare.baseline": "jsq"}
CLUSTERS = {
    "five": slimsched.load("scenario.yaml", BASELINE),
    "six": slimsched.load("scenario.yaml", {**BASELINE, "cluster.servers.5": MINE}),  # after the last: one more
}

for name, scenario in CLUSTERS.items():
    table = slimsched.compare(scenario, ["jsq", "ladder"], engine="compiled", out=f"runs/{name}")
    for router in table.routers:
        found = router.estimates
        print(
            f"{name:4}  {router.router:6}",
            f"mean {found['latency_mean_s']:.3f} s",
            f"p99 {found['latency_p99_s']:.2f} s",
            f"accuracy {found['expected_accuracy']:.2%}",
            f"{found['energy_per_image_j']:.2f} J/image",
            sep="  ",
        )
